"""Embedders by name, and one that asks an endpoint, which fails in every way."""

import json
import logging
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psycopg
import pytest
from click.testing import CliRunner, Result

import drift_pg
from drift_pg import errors
from drift_pg.cli import cache as cli_cache
from drift_pg.cli import main
from drift_pg.embedders import load_embedder, openai
from drift_pg.embedding import EmbeddingCache, embed, embed_all
from tests import embedders
from tests.endpoint import JSON, Stub, answer, good, serving
from tests.tables import make_docs, rotation

KEY = "sk-secret-0123456789"
TEXTS = [f"text {i}" for i in range(5)]


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    """A server that the environment names."""
    with serving() as served:
        monkeypatch.setenv("OPENAI_BASE_URL", served.url)
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield served


def reply(status: int, body: object = "", **headers: str):
    """A reply for `Stub.replies`; what is no text is sent as JSON."""
    text = body if isinstance(body, str) else json.dumps(body)
    kind = {"Content-Type": "text/html"} if isinstance(body, str) else JSON
    return lambda _: (
        status,
        {**kind, **{name.replace("_", "-"): value for name, value in headers.items()}},
        text.encode(),
    )


def edited(change):
    """A good answer, changed."""

    def edit(request: dict):
        body = answer(request)
        change(body["data"])
        return 200, JSON, json.dumps(body).encode()

    return edit


# An endpoint


def test_vectors_come_in_the_order_of_the_texts_and_a_batch_at_a_time(stub: Stub) -> None:
    vectors = openai("m", batch=2)(TEXTS)
    assert vectors.dtype == np.float32
    assert np.allclose(vectors, embedders.hashed(TEXTS), atol=1e-6)
    assert stub.sizes == [2, 2, 1]
    assert stub.requests[0] == {"path": "/v1/embeddings", "model": "m", "input": TEXTS[:2], "encoding_format": "float"}
    assert set(stub.keys) == {KEY}


def test_long_texts_make_a_request_smaller(stub: Stub) -> None:
    openai("m")(["ä" * 70_000, "b" * 150_000, "c" * 20_000, "d" * 400_000])
    assert stub.sizes == [2, 1, 1]


def test_vectors_that_a_server_does_not_number_keep_its_order(stub: Stub) -> None:
    def unnumbered(items: list[dict]) -> None:
        items.reverse()
        for item in items:
            del item["index"]

    stub.replies = [edited(unnumbered)]
    assert np.allclose(openai("m")(TEXTS), embedders.hashed(TEXTS), atol=1e-6)


def test_overload_and_failures_are_tried_again_when_the_server_says(stub: Stub) -> None:
    stub.replies = [reply(429, Retry_After="0.7"), reply(500, retry_after_ms="1"), reply(503, retry_after_ms="1")]
    assert np.allclose(openai("m", retries=3)(TEXTS), embedders.hashed(TEXTS), atol=1e-6)
    assert stub.sizes == [5, 5, 5, 5]
    assert stub.times[1] - stub.times[0] >= 0.7  # unasked it would have been at most 0.5


def test_retries_end(stub: Stub) -> None:
    stub.replies = [reply(500, {"error": {"message": "no GPU"}}, retry_after_ms="1")] * 9
    with pytest.raises(errors.EmbedderFailed, match="answered 500: no GPU") as raised:
        openai("m", retries=2)(TEXTS)
    assert len(stub.requests) == 3
    assert "run the same command again" in str(raised.value)


@pytest.mark.parametrize(
    ("refusal", "says"),
    [
        (reply(401, {"error": {"message": f"Incorrect API key: {KEY}"}}), ["401: Incorrect API key: ***", "OPENAI_API_KEY"]),
        (reply(403, KEY), ["403: ***", "OPENAI_API_KEY"]),
        (reply(404, {"detail": "Not Found"}), ["404: Not Found", "the model's name", "/v1"]),
        (reply(400, {"error": {"message": "maximum context length is 8192"}}), ["8192", "longest of 6 characters"]),
        (reply(422, "batch size 5 > maximum 4"), ["batch size 5 > maximum 4", "held 5 texts", "send fewer"]),
        (reply(429, {"error": "quota"}, x_should_retry="false"), ["429: quota", "overloaded", "is kept"]),
    ],
)  # fmt: skip
def test_a_refusal_is_not_tried_again_and_never_shows_the_key(
    stub: Stub, caplog: pytest.LogCaptureFixture, refusal, says: list[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    stub.replies = [refusal] * 9
    embedder = openai("m")
    with pytest.raises(errors.EmbedderFailed) as raised:
        embed(embedder, TEXTS)
    told = "".join(traceback.format_exception(raised.value))
    assert all(part in told for part in ["m at 127.0.0.1:", *says])
    assert KEY not in told + repr(embedder) + caplog.text
    assert len(stub.requests) == 1


def test_an_endpoint_that_hangs_is_given_up(stub: Stub) -> None:
    stub.replies = [stub.hang]
    with pytest.raises(errors.EmbedderFailed, match=r"did not answer in 1 × 0\.1 s"):
        openai("m", timeout=0.1, retries=0)(TEXTS)


def test_an_endpoint_that_is_not_there_is_named_without_its_password(stub: Stub) -> None:
    with pytest.raises(errors.EmbedderFailed, match=r"m at localhost:1/v1 cannot be reached: .*refused") as raised:
        openai("m", base_url="http://me:hush@localhost:1/v1", retries=0)(TEXTS)
    assert "OPENAI_BASE_URL" in str(raised.value)
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (edited(lambda items: items.pop()), "returned 4 vectors for 5 texts"),
        (edited(lambda items: items[0].update(index=0)), "does not say which vector is which"),
        (edited(lambda items: items[0].update(embedding=[1.0])), "something else than vectors of one length"),
        (edited(lambda items: items[0].update(embedding="AACAPw==")), "something else than vectors of one length"),
        (edited(lambda items: items[0]["embedding"].__setitem__(3, None)), "1 vectors with NaN"),
        (edited(lambda items: items[0]["embedding"].__setitem__(3, float("nan"))), "1 vectors with NaN"),
        (reply(200, "<html>"), "did not answer with embeddings"),
        (reply(200, {"models": []}), "did not answer with embeddings"),
        (lambda _: (200, JSON, b'{"data": ['), "did not answer in JSON"),
    ],
)
def test_an_answer_that_is_no_batch_of_vectors_is_refused(stub: Stub, wrong, says: str) -> None:
    stub.replies = [wrong]
    with pytest.raises(errors.EmbedderFailed, match=says):
        embed(openai("m"), TEXTS)
    assert len(stub.requests) == 1


def test_shortened_vectors_are_asked_for_and_checked(stub: Stub) -> None:
    assert openai("m", dimensions=7)(TEXTS).shape == (5, 7)
    assert stub.requests[0]["dimensions"] == 7
    stub.replies = [lambda request: good({**request, "dimensions": None})]
    with pytest.raises(errors.WrongDimensions, match="gives 24 dimensions, though 7 were asked for"):
        embed(openai("m", dimensions=7), TEXTS)


def test_a_model_of_other_dimensions_costs_one_text(stub: Stub, tmp_path: Path) -> None:
    with (
        EmbeddingCache(tmp_path / "e", "m") as kept,
        pytest.raises(errors.WrongDimensions, match="gives 24 dimensions"),
    ):
        embed_all(openai("m"), TEXTS, kept, dimensions=32)
    assert stub.sizes == [1]


def test_an_empty_text_is_not_sent(stub: Stub) -> None:
    with pytest.raises(errors.EmbedderFailed, match="text 2 of 3 is empty"):
        embed(openai("m"), ["a", "", "b"])
    assert openai("m")([]).shape == (0, 0)
    assert not stub.requests


def test_a_server_of_ones_own_needs_no_key(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    assert openai("m")(TEXTS).shape == (5, embedders.DIMENSIONS)
    openai("m", api_key=f" {KEY}\n")(TEXTS)
    assert stub.keys == ["none", KEY]
    monkeypatch.delenv("OPENAI_BASE_URL")
    with pytest.raises(errors.InvalidInput, match="wants an API key") as raised:
        openai("m")
    assert "set OPENAI_API_KEY" in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"api_key": f"{KEY}…"}, "characters that no key has"),
        ({"base_url": "localhost:8080/v1"}, "does not start with http"),
        ({"batch": 0}, "batch is 0"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_sent(stub: Stub, arguments: dict, says: str) -> None:
    with pytest.raises(errors.InvalidInput, match=says) as raised:
        openai("m", **arguments)
    assert KEY not in "".join(traceback.format_exception(raised.value))


# By name


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("openai:", "does not name an embedder"),
        ("openai:m,dimensions=x", "'dimensions=x' is no option of openai embedders"),
        ("openai:m,api_key=x", "is no option of openai embedders"),
        ("openai:m,dimensions", "is no option of openai embedders"),
        ("onnx:/nope", "cannot be loaded as an ONNX model"),
    ],
)
def test_a_name_that_is_no_embedder(stub: Stub, reference: str, says: str) -> None:
    with pytest.raises(errors.InvalidInput, match=says):
        load_embedder(reference)


@pytest.mark.parametrize(
    ("reference", "module", "extra"),
    [
        ("openai:m", "openai", "openai"),
        ("onnx:model.onnx", "onnxruntime", "onnx"),
        ("sentence-transformers:m", "sentence_transformers", "sentence-transformers"),
    ],
)
def test_a_missing_library_says_what_to_install(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, reference: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(errors.MissingExtra, match=f"needs the package {module}") as raised:
        load_embedder(reference)
    assert f"pip install 'drift-pg[{extra}]'" in str(raised.value)


def test_commands_embed_by_an_endpoint(
    stub: Stub, dsn: str, conn: psycopg.Connection, rng: np.random.Generator, tmp_path: Path, monkeypatch
) -> None:
    loads: list[str] = []
    monkeypatch.setattr(cli_cache, "load_embedder", lambda name: loads.append(name) or load_embedder(name))
    texts = [f"text {i}" for i in range(150)]
    make_docs(conn, embedders.hashed(texts) @ rotation(rng, embedders.DIMENSIONS))
    drift_pg.register_model(conn, "legacy", dimensions=embedders.DIMENSIONS)
    drift_pg.register_model(conn, "new", dimensions=embedders.DIMENSIONS)
    drift_pg.register_model(conn, "wide", dimensions=32)
    drift_pg.register_column(conn, "public.docs", "embedding", model="legacy")

    def fit(model: str) -> Result:
        table = ["--dsn", dsn, "--column", "public.docs.embedding", "--text", "body", "--cache", str(tmp_path)]
        how = ["--family", "procrustes", "--batch", "50", "--query-model", model, "--embed", "openai:stub:v1"]
        return CliRunner().invoke(main, ["fit", *table, *how])

    assert "gives 24 dimensions, the model has 32" in fit("wide").output
    assert stub.sizes == [1]
    assert fit("new").exit_code == 0
    assert stub.sizes[1:] == [1, 50, 50, 49]
    assert stub.requests[-1]["model"] == "stub:v1"
    assert loads == ["openai:stub:v1"] * 2  # once in each command
