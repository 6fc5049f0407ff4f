"""Embedders for common models: each function returns one, a function of a list of texts; all need an extra."""

from drift_pg.embedders.endpoint import openai
from drift_pg.embedders.naming import load_embedder
from drift_pg.embedders.onnx_model import onnx
from drift_pg.embedders.sentence_model import sentence_transformers

__all__ = ["load_embedder", "onnx", "openai", "sentence_transformers"]
