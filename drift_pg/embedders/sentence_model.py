"""Embedding by a model of the library sentence-transformers, on this machine."""

from __future__ import annotations

from pathlib import Path
from threading import Lock

import numpy as np

from drift_pg.adapter import Float32
from drift_pg.embedders.extras import library
from drift_pg.embedding import BATCH, Embedder
from drift_pg.errors import InvalidInput


def sentence_transformers(
    name_or_path: str | Path,
    *,
    dimensions: int | None = None,
    prompt_name: str | None = None,
    device: str | None = None,
    batch: int = BATCH,
) -> Embedder:
    """An embedder that runs a SentenceTransformer as `model.encode` does (extra `sentence-transformers`).

    Longer texts are cut at the model's limit.

    Args:
        name_or_path: of a model on the hub, fetched at its first use, or a folder.
        dimensions: cut vectors to their first ones, for models made so that this is possible.
        prompt_name: which of the model's prompts goes before each text, such as "query"; None: its default.
        device: such as "cuda"; None: the best there is.
        batch: texts that the model takes at once.

    Returns:
        An embedder: n texts to (n, d) float32. Threads that share it wait for each other.

    Raises:
        InvalidInput: there is no such model, or no such prompt.
        MissingExtra: the package is not installed.
    """
    package = library("sentence_transformers", "sentence-transformers")
    try:
        model = package.SentenceTransformer(str(name_or_path), truncate_dim=dimensions, device=device)
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidInput(
            f"sentence-transformers cannot load {str(name_or_path)!r}: {error}",
            hint="give a model's name on the hub, or a folder that SentenceTransformer.save wrote",
        ) from error
    if prompt_name is not None and prompt_name not in model.prompts:
        known = ", ".join(model.prompts) or "none"
        raise InvalidInput(f"{str(name_or_path)!r} has no prompt {prompt_name!r}", hint=f"it has: {known}")
    lock = Lock()  # its tokenizer raises "Already borrowed" when two threads use it

    def embed_texts(texts: list[str]) -> Float32:
        with lock:
            vectors = model.encode(texts, batch_size=batch, prompt_name=prompt_name, show_progress_bar=False)
        return np.asarray(vectors, np.float32)

    return embed_texts
