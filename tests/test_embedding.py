"""Embedding with a cache: nothing paid for twice, nothing wrong kept."""

from pathlib import Path

import numpy as np
import pytest

from drift_pg import errors
from drift_pg.embedders import load_embedder
from drift_pg.embedding import EmbeddingCache, embed_all
from tests import embedders

TEXTS = [f"text {i}" for i in range(50)]


@pytest.fixture
def cache(tmp_path: Path) -> EmbeddingCache:
    """A cache in a folder that does not exist yet."""
    return EmbeddingCache(tmp_path / "new" / "embeddings.sqlite", "model")


def run(cache: EmbeddingCache, embedder=embedders.hashed, texts: list[str] = TEXTS, **options) -> np.ndarray:
    embedders.calls.clear()
    with cache as opened:
        return embed_all(embedder, texts, opened, dimensions=embedders.DIMENSIONS, batch=10, **options)


def test_vectors_come_back_in_order_and_are_not_paid_for_twice(cache: EmbeddingCache) -> None:
    expected = embedders.hashed(TEXTS)
    assert np.allclose(run(cache), expected, atol=1e-6)
    assert embedders.calls == [1, 10, 10, 10, 10, 9]
    assert np.allclose(run(cache), expected, atol=1e-6)
    assert embedders.calls == [1]


def test_repeated_texts_are_embedded_once(cache: EmbeddingCache) -> None:
    assert run(cache, texts=["a", "b", "a", "a"]).shape == (4, embedders.DIMENSIONS)
    assert sum(embedders.calls) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_loses_at_most_one_batch(cache: EmbeddingCache, error: type[BaseException]) -> None:
    with pytest.raises((KeyboardInterrupt, errors.EmbedderFailed)):
        run(cache, embedders.Interrupted(3, error))
    run(cache)
    assert sum(embedders.calls) == 1 + 50 - (1 + 2 * 10)


def test_another_namespace_is_another_model(cache: EmbeddingCache) -> None:
    run(cache)
    assert np.allclose(run(EmbeddingCache(cache.path, "other"), embedders.other), embedders.other(TEXTS), atol=1e-6)


def test_an_embedder_that_changed_under_its_name_is_found_out(cache: EmbeddingCache) -> None:
    run(cache)
    with pytest.raises(errors.InvalidInput, match="other vectors than those it gave before"):
        run(cache, embedders.other)


def test_wrong_dimensions_cost_one_text(cache: EmbeddingCache) -> None:
    with pytest.raises(errors.WrongDimensions, match="gives 7 dimensions, the model has 24"):
        run(cache, embedders.narrow)
    assert embedders.calls[0] == 1
    assert max(embedders.calls) == 1


@pytest.mark.parametrize(
    ("embedder", "says"),
    [
        (embedders.raising, "RuntimeError: 503"),
        (embedders.not_a_number, "1 vectors with NaN"),
        (embedders.zeros, "1 of zero length"),
        (embedders.short, r"shape \(0, 24\) for 1 texts"),
        (lambda texts: None, r"shape \(\)"),
        (lambda texts: [["a"]], "ValueError"),
    ],
)
def test_what_is_no_batch_of_vectors_is_refused_and_not_kept(cache: EmbeddingCache, embedder, says: str) -> None:
    with pytest.raises(errors.EmbedderFailed, match=says):
        run(cache, embedder)
    run(cache)
    assert sum(embedders.calls) == 50


def test_progress_is_told(cache: EmbeddingCache) -> None:
    told: list[tuple[int, int]] = []
    run(cache, progress=lambda done, total: told.append((done, total)))
    assert told[0] == (1, 50)
    assert told[-1] == (50, 50)


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("tests.embedders", "does not name an embedder"),
        (":hashed", "does not name an embedder"),
        ("tests.nope:hashed", "No module named"),
        ("tests.embedders:nope", "has no attribute 'nope'"),
        ("tests.embedders:text", "is a str"),
    ],
)
def test_a_reference_that_is_no_embedder_is_named(reference: str, says: str) -> None:
    with pytest.raises(errors.InvalidInput, match=says):
        load_embedder(reference)
    assert load_embedder("tests.embedders:hashed") is embedders.hashed
