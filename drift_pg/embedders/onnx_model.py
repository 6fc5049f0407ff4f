"""Embedding by an ONNX model and its tokenizer, on this machine's processor."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from drift_pg.adapter import Float32, unit
from drift_pg.embedders.extras import library
from drift_pg.embedders.onnx_folder import Folder
from drift_pg.embedding import Embedder
from drift_pg.errors import InvalidInput

Pooling = Literal["mean", "cls"]

MAX_TOKENS = 512
"""Where nothing tells: what models of BERT's kind take."""

_TYPES = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}


def onnx(
    model: str | Path,
    tokenizer: str | Path | None = None,
    *,
    pooling: Pooling | None = None,
    normalize: bool | None = None,
    max_tokens: int | None = None,
    batch: int = 4,
) -> Embedder:
    """An embedder that runs an ONNX model of BERT's kind (extra `onnx`).

    Longer texts are cut at `max_tokens`. An output named sentence_embedding is taken as it is; else the token vectors
    are pooled.

    Args:
        model: the file, or a folder as Hugging Face lays it out: what its files say holds where an argument is None.
        tokenizer: tokenizer.json; None: the one in the model's folder.
        pooling: the mean of the token vectors, or the vector of the first token; None: mean.
        normalize: scale to unit length; None: yes.
        max_tokens: None: the tokenizer's own limit, or `MAX_TOKENS`.
        batch: texts that run together, one batch on each core. Many cores are used better by small batches side by side.

    Returns:
        An embedder: n texts to (n, d) float32.

    Raises:
        InvalidInput: a file is missing or is not what it should be, or the model is of another kind.
        MissingExtra: onnxruntime or tokenizers is not installed.
    """
    path = Path(model)
    folder = Folder.read(path) if path.is_dir() else Folder(path, path.with_name("tokenizer.json"), None, True, None)
    pooled = pooling or folder.pooling or "mean"
    if pooled not in ("mean", "cls"):
        raise InvalidInput(f"pooling {pooled!r} is neither mean nor cls")
    return _Model(
        _session(folder.model),
        _tokenizer(Path(tokenizer or folder.tokenizer), max_tokens or folder.max_tokens),
        pooled, folder.normalize if normalize is None else normalize, batch,
    )  # fmt: skip


def _session(file: Path) -> Any:
    runtime = library("onnxruntime", "onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1  # batches run side by side instead
    try:
        session = runtime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common class
        raise InvalidInput(f"{str(file)!r} cannot be loaded as an ONNX model: {error}") from error
    unknown = [i.name for i in session.get_inputs() if i.name not in ("input_ids", "attention_mask", "token_type_ids")]
    if unknown:
        raise InvalidInput(
            f"{str(file)!r} wants the input {unknown[0]!r}, which models of BERT's kind do not have",
            hint="embed by a function of your own: --embed module:function",
        )
    return session


def _tokenizer(file: Path, max_tokens: int | None) -> Any:
    package = library("tokenizers", "onnx")
    try:
        tokenizer = package.Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises bare Exception
        raise InvalidInput(f"the tokenizer {str(file)!r} cannot be loaded: {error}") from error
    limit = max_tokens or (tokenizer.truncation or {}).get("max_length") or MAX_TOKENS
    tokenizer.enable_truncation(limit)
    return tokenizer


class _Model:
    def __init__(self, session: Any, tokenizer: Any, pooling: str, normalize: bool, batch: int) -> None:
        self._session = session
        self._tokenizer = tokenizer
        self._padding = int((tokenizer.padding or {}).get("pad_id", 0))
        tokenizer.no_padding()
        self._pooling = pooling
        self._normalize = normalize
        self._batch = batch

    def __call__(self, texts: list[str]) -> Float32:
        """Texts of similar length run together, since a batch is padded to its longest."""
        encodings = [np.array(encoding.ids, np.int64) for encoding in self._tokenizer.encode_batch(list(texts))]
        order = sorted(range(len(texts)), key=lambda i: len(encodings[i]))
        batches = [order[start : start + self._batch] for start in range(0, len(order), self._batch)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            vectors = list(pool.map(lambda rows: self._run([encodings[i] for i in rows]), batches))
        found = np.empty((len(texts), vectors[0].shape[1] if vectors else 0), np.float32)
        for rows, values in zip(batches, vectors, strict=True):
            found[rows] = values
        return unit(found) if self._normalize else found

    def _run(self, encodings: Sequence[NDArray[np.int64]]) -> Float32:
        """(batch, d) vectors of texts as token ids."""
        width = max(len(ids) for ids in encodings)
        ids = np.array([np.pad(ids, (0, width - len(ids)), constant_values=self._padding) for ids in encodings])
        mask = np.array([np.arange(width) < len(ids) for ids in encodings])
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        inputs = {i.name: given[i.name].astype(_TYPES.get(i.type, np.int64)) for i in self._session.get_inputs()}
        outputs = zip(self._session.get_outputs(), self._session.run(None, inputs), strict=True)
        return self._pooled({output.name: values for output, values in outputs}, mask)

    def _pooled(self, outputs: dict[str, NDArray[Any]], mask: NDArray[np.bool_]) -> Float32:
        """(batch, d): the model's own vector of a text, or its token vectors (batch, tokens, d) pooled."""
        tokens = next((values for values in outputs.values() if values.ndim == 3), None)
        if "sentence_embedding" in outputs or tokens is None:
            return np.asarray(outputs.get("sentence_embedding", next(iter(outputs.values()))), np.float32)
        if self._pooling == "cls":
            return np.asarray(tokens[:, 0], np.float32)
        weights = mask.astype(np.float32)
        count = np.maximum(weights.sum(axis=1, keepdims=True), 1)
        return np.asarray(np.einsum("btd,bt->bd", tokens.astype(np.float32), weights) / count)
