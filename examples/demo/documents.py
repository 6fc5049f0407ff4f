"""The demo's documents: docstrings of the standard library and of packages that the demo installs.

Sources are parsed, never imported: reading a module must not run it. What is read depends only on the
installed versions, so that two runs see the same documents in the same order.
"""

from __future__ import annotations

import ast
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from textwrap import shorten

PACKAGES = (
    "alembic", "anyio", "click", "filelock", "flatbuffers", "fsspec", "hatchling", "httpx2",
    "huggingface_hub", "idna", "mako", "markdown_it", "numpy", "onnxruntime", "packaging", "pathspec", "pgvector",
    "platformdirs", "pluggy", "psutil", "psycopg", "pygments", "rich", "safetensors", "sqlalchemy", "tokenizers",
    "tomlkit", "tqdm", "yaml",
)  # fmt: skip
"""What drift-pg and its demo depend on; one that is not installed is passed over."""

SKIPPED = frozenset({"test", "tests", "testing", "_vendor", "idlelib", "turtledemo", "lib2to3", "encodings"})
MIN_SUMMARY, MIN_WORDS = 20, 4
MIN_REST, MAX_REST = 80, 240
SEED = 7

Progress = Callable[[int, int], None]
Scope = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Document:
    """A public object's docstring, its first line apart: that is the query which must find the rest.

    Attributes:
        title: where the object is defined, dotted.
        summary: the first line; never part of what is embedded.
        rest: the beginning of what is below it, a passage of some 70 tokens: search works on passages.
    """

    title: str
    summary: str
    rest: str

    @property
    def body(self) -> str:
        """What is stored and embedded."""
        return f"{self.title}\n{self.rest}"


def collect(limit: int, progress: Progress) -> list[Document]:
    """Up to `limit` documents in a random order that is always the same, no summary or text twice."""
    found: dict[str, Document] = {}
    files = list(_files())
    for done, (module, path) in enumerate(files, 1):
        for document in _documents(module, path):
            found.setdefault(document.summary, document)
        progress(done, len(files))
    distinct = list({document.rest: document for document in found.values()}.values())
    random.Random(SEED).shuffle(distinct)
    return distinct[:limit]


def _files() -> Iterator[tuple[str, Path]]:
    """Module names and their sources, in order of name."""
    standard = [name for name in sys.stdlib_module_names if not name.startswith("_")]
    for package in [*sorted(standard), *PACKAGES]:
        spec = find_spec(package)
        if spec is None or package in SKIPPED:
            continue
        if not spec.submodule_search_locations:
            yield from [(package, Path(spec.origin))] if spec.has_location and spec.origin else []
        for folder in map(Path, spec.submodule_search_locations or []):
            yield from _inside(package, folder)


def _inside(package: str, folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*.py")):
        inner = path.relative_to(folder).with_suffix("").parts
        if SKIPPED.isdisjoint(inner):
            yield ".".join([package, *(part for part in inner if part != "__init__")]), path


def _documents(module: str, path: Path) -> Iterator[Document]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old sources hold escapes that a new Python warns of
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError):  # compiled modules, templates, sources for another Python
            return
    yield from _described(tree, module)


def _described(scope: Scope, title: str) -> Iterator[Document]:
    """The document of an object and of the public ones in it; what is inside a function is private."""
    summary, _, rest = (ast.get_docstring(scope) or "").partition("\n")
    summary, rest = summary.strip(), shorten(rest, MAX_REST, placeholder=" …")
    if len(summary) >= MIN_SUMMARY and len(summary.split()) >= MIN_WORDS and len(rest) >= MIN_REST:
        yield Document(title, summary, rest)
    if isinstance(scope, (ast.Module, ast.ClassDef)):
        for inner in scope.body:
            if isinstance(inner, Scope) and not inner.name.startswith("_"):
                yield from _described(inner, f"{title}.{inner.name}")
