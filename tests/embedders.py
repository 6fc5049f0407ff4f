"""Embedders for tests of mechanics: deterministic vectors from a text's hash; none of them knows meaning."""

import hashlib

import numpy as np

DIMENSIONS = 24
calls: list[int] = []


def hashed(texts: list[str]) -> np.ndarray:
    """A unit vector of each text's hash."""
    calls.append(len(texts))
    seeds = [int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) for text in texts]
    vectors = np.array([np.random.default_rng(seed).standard_normal(DIMENSIONS) for seed in seeds])
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def narrow(texts: list[str]) -> np.ndarray:
    """Too few dimensions."""
    calls.append(len(texts))
    return hashed(texts)[:, :7]


def other(texts: list[str]) -> np.ndarray:
    """Another model."""
    return hashed([f"other {text}" for text in texts])


def short(texts: list[str]) -> np.ndarray:
    """Loses the last text."""
    return hashed(texts)[:-1]


def not_a_number(texts: list[str]) -> np.ndarray:
    """NaN."""
    return np.full((len(texts), DIMENSIONS), np.nan)


def zeros(texts: list[str]) -> np.ndarray:
    """Zero vectors."""
    return np.zeros((len(texts), DIMENSIONS))


def raising(texts: list[str]) -> np.ndarray:
    """A service that is down."""
    raise RuntimeError("503 service unavailable")


class Interrupted:
    """Fails after some batches, as Ctrl-C or a crash would."""

    def __init__(self, batches: int, error: type[BaseException]) -> None:
        self.left = batches
        self.error = error

    def __call__(self, texts: list[str]) -> np.ndarray:
        if self.left == 0:
            raise self.error
        self.left -= 1
        return hashed(texts)


text = "not a function"
