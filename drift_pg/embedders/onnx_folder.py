"""What the files beside an ONNX model say of it, as Hugging Face and sentence-transformers lay them out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drift_pg.errors import InvalidInput

_SANE = 100_000
"""Tokenizers write a number beyond any text for "no limit"."""


@dataclass(frozen=True)
class Folder:
    """A model's files, and how its token vectors become one vector.

    Attributes:
        model: model.onnx, in the folder or in its folder onnx.
        pooling: None if no file says it.
        normalize: False only if its layers are listed and no Normalize is among them.
        max_tokens: None if no file says it.
    """

    model: Path
    tokenizer: Path
    pooling: str | None
    normalize: bool
    max_tokens: int | None

    @classmethod
    def read(cls, path: Path) -> Folder:
        """Raises InvalidInput: no model.onnx, or layers or a pooling that only sentence-transformers has."""
        model = next((file for file in (path / "model.onnx", path / "onnx/model.onnx") if file.is_file()), None)
        if model is None:
            raise InvalidInput(
                f"{str(path)!r} has no model.onnx", hint="name the folder that holds it and tokenizer.json"
            )
        layers = [layer["type"].rpartition(".")[2] for layer in _json(path / "modules.json", [])]
        _refuse_others(path, layers)
        return cls(
            model, path / "tokenizer.json", _pooling(_json(path / "1_Pooling/config.json", {})),
            not layers or "Normalize" in layers, _max_tokens(path),
        )  # fmt: skip


def _json(file: Path, missing: Any) -> Any:
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else missing


def _refuse_others(path: Path, layers: list[str]) -> None:
    others = sorted(set(layers) - {"Transformer", "Pooling", "Normalize"})
    if others:
        raise InvalidInput(
            f"the model in {str(path)!r} has the layer {others[0]}, which is not part of its ONNX file",
            hint=f"--embed sentence-transformers:{path}",
        )


def _pooling(config: dict[str, Any]) -> str | None:
    """From either way in which sentence-transformers has written it."""
    if "pooling_mode" in config:
        return str(config["pooling_mode"])
    prefix = "pooling_mode_"
    modes = [key.removeprefix(prefix).removesuffix("_token").removesuffix("_tokens")
             for key, used in config.items() if key.startswith(prefix) and used is True]  # fmt: skip
    return " and ".join(modes) or None


def _max_tokens(path: Path) -> int | None:
    limits = (
        _json(path / "sentence_bert_config.json", {}).get("max_seq_length"),
        _json(path / "tokenizer_config.json", {}).get("model_max_length"),
    )
    return next((int(limit) for limit in limits if limit and limit < _SANE), None)
