"""Embedding by an endpoint with OpenAI's interface: OpenAI itself, or a server of your own."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from drift_pg.adapter import Float32
from drift_pg.embedders.extras import library
from drift_pg.embedding import AGAIN, Embedder
from drift_pg.errors import EmbedderFailed, InvalidInput, WrongDimensions

MOST_TEXTS = 2048
"""In a request, by OpenAI's reference; other servers may take fewer."""

MOST_BYTES = 300_000
"""In a request: OpenAI takes 300,000 tokens, and no token is shorter than a byte."""

NO_KEY = "none"
"""Sent to a server of one's own, which mostly wants no key."""

_URL_HINT = "check OPENAI_BASE_URL, which mostly ends in /v1, and that the server runs"


def openai(
    model: str,
    *,
    dimensions: int | None = None,
    base_url: str | None = None,
    api_key: str | None = None,
    batch: int = MOST_TEXTS,
    retries: int = 5,
    timeout: float = 60.0,
) -> Embedder:
    """An embedder that asks an OpenAI-compatible endpoint (extra `openai`).

    Overload, failures of the server and lost connections are tried again, later each time or when the server says.
    Texts longer than the model takes are the endpoint's to refuse or to cut.

    Args:
        model: its name there.
        dimensions: ask for vectors shortened to these, where the model can; None: as it makes them.
        base_url: None: the environment's OPENAI_BASE_URL, else OpenAI's own.
        api_key: None: the environment's OPENAI_API_KEY.
        batch: texts in a request, at most; long ones make it smaller.
        retries: of a request, after its first try; 0 for `drift_pg.search`, which does not wait for them.
        timeout: seconds that the endpoint may be silent in one try.

    Returns:
        An embedder: n texts to (n, d) float32, whose errors are EmbedderFailed and WrongDimensions. None holds the key.

    Raises:
        InvalidInput: no key for OpenAI, or a key or URL that cannot be one.
        MissingExtra: the package openai is not installed.
    """
    url = base_url or os.environ.get("OPENAI_BASE_URL") or ""
    if url and not url.startswith(("http://", "https://")):
        raise InvalidInput("the base URL does not start with http:// or https://", hint=_URL_HINT)
    if batch < 1 or retries < 0:
        raise InvalidInput(f"batch is {batch}, of at least 1, and retries {retries}, of at least 0")
    package = library("openai", "openai")
    key = _key(api_key or os.environ.get("OPENAI_API_KEY") or "", own_server=bool(url))
    client = package.OpenAI(
        api_key=key, base_url=url or "https://api.openai.com/v1", max_retries=retries, timeout=timeout
    )
    return _Endpoint(package, client, key, model, dimensions, batch)


def _key(given: str, own_server: bool) -> str:
    key = given.strip()  # a line's end from a file
    if not (key.isascii() and key.isprintable()):
        raise InvalidInput("the API key has characters that no key has", hint="check OPENAI_API_KEY")
    if not (key or own_server):
        raise InvalidInput(
            "OpenAI wants an API key, and there is none",
            hint="set OPENAI_API_KEY, or OPENAI_BASE_URL for a server of your own",
        )
    return key or NO_KEY


def requests(texts: Sequence[str], batch: int) -> Iterator[list[str]]:
    """Texts in order, as many together as one request may hold."""
    part: list[str] = []
    size = 0
    for text in texts:
        length = len(text.encode())
        if part and (len(part) == batch or size + length > MOST_BYTES):
            yield part
            part, size = [], 0
        part.append(text)
        size += length
    if part:
        yield part


class _Endpoint:
    """Has no readable representation, so that no log shows its key."""

    def __init__(self, package: Any, client: Any, key: str, model: str, dimensions: int | None, batch: int) -> None:
        self._package = package
        self._client = client
        self._key = key
        self._dimensions = dimensions
        self._batch = batch
        self._request: dict[str, Any] = {"model": model, "encoding_format": "float"}  # base64 is not everywhere
        if dimensions is not None:
            self._request["dimensions"] = dimensions
        url = urlsplit(str(client.base_url))
        place = f"{url.hostname}:{url.port}" if url.port else url.hostname  # a URL can hold a password
        self._where = f"{model} at {place}{url.path.rstrip('/')}"

    def __call__(self, texts: list[str]) -> Float32:
        if "" in texts:
            raise EmbedderFailed(
                f"text {texts.index('') + 1} of {len(texts)} is empty, which {self._where} cannot embed",
                hint="leave rows and queries without text out",
            )
        parts = [self._vectors(part) for part in requests(texts, self._batch)]
        return np.concatenate(parts) if parts else np.empty((0, self._dimensions or 0), np.float32)

    def _vectors(self, texts: list[str]) -> Float32:
        items = self._ordered(self._answer(texts), len(texts))
        try:
            vectors = np.asarray([item.embedding for item in items], np.float32)
        except (TypeError, ValueError):
            raise EmbedderFailed(f"{self._where} returned something else than vectors of one length") from None
        if self._dimensions not in (None, vectors.shape[-1]):
            raise WrongDimensions(
                f"{self._where} gives {vectors.shape[-1]} dimensions, though {self._dimensions} were asked for",
                hint="this model or server does not shorten its vectors: register the model with its own dimensions",
            )
        return vectors

    def _answer(self, texts: list[str]) -> Any:
        # `from None`: what the library raises holds the request, and with it the key.
        try:
            return self._client.embeddings.create(input=texts, **self._request)
        except self._package.APITimeoutError:
            tries, seconds = self._client.max_retries + 1, self._client.timeout
            raise EmbedderFailed(f"{self._where} did not answer in {tries} × {seconds:g} s", hint=AGAIN) from None
        except self._package.APIConnectionError as error:
            reason = self._safe(error.__cause__ or error)
            raise EmbedderFailed(f"{self._where} cannot be reached: {reason}", hint=_URL_HINT) from None
        except self._package.APIStatusError as error:
            said = self._safe(_said(error))
            hint = _hint(error.status_code, texts)
            raise EmbedderFailed(f"{self._where} answered {error.status_code}: {said}", hint=hint) from None
        except ValueError as error:
            raise EmbedderFailed(f"{self._where} did not answer in JSON: {error}", hint=_URL_HINT) from None

    def _ordered(self, answer: Any, n: int) -> list[Any]:
        """One item for each text, in the order of the texts, whatever order they came in."""
        items = getattr(answer, "data", None)
        if not isinstance(items, list):
            raise EmbedderFailed(f"{self._where} did not answer with embeddings", hint=_URL_HINT)
        if len(items) != n:
            raise EmbedderFailed(f"{self._where} returned {len(items)} vectors for {n} texts")
        places = [item.index for item in items]
        if set(places) == {None}:  # some servers do not number them
            return items
        if set(places) != set(range(n)):
            raise EmbedderFailed(f"{self._where} does not say which vector is which text's: {places[:10]}")
        return sorted(items, key=lambda item: int(item.index))

    def _safe(self, message: object) -> str:
        """One line that does not hold the key, though a server may repeat it."""
        line = " ".join(str(message).split())
        return (line if self._key == NO_KEY else line.replace(self._key, "***"))[:500]


def _said(error: Any) -> object:
    """What the server said, in one of the forms that servers use."""
    body = error.body
    if isinstance(body, dict):
        return body.get("message") or body.get("detail") or body.get("error") or body
    return body or error.message


def _hint(status: int, texts: list[str]) -> str:
    """What to do about a refusal."""
    if status in (401, 403):
        return "check OPENAI_API_KEY, and that OPENAI_BASE_URL is the place it is for"
    if status == 404:
        return f"check the model's name; {_URL_HINT}"
    if status in (400, 413, 422):
        return (
            f"the request held {len(texts)} texts, the longest of {max(map(len, texts)):,} characters: send fewer "
            "(batch), or shorten what is longer than the model takes in a function of your own"
        )
    return f"the server is overloaded, or a quota is used up; {AGAIN}" if status == 429 else AGAIN
