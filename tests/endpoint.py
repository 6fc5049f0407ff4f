"""A server on this machine with OpenAI's interface for embeddings, which can be told to fail."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests import embedders

Reply = tuple[int, dict[str, str], bytes]
"""Status, headers, body."""

JSON = {"Content-Type": "application/json"}


def answer(request: dict) -> dict:
    """Vectors of a request's texts, the last text's first."""
    vectors = embedders.hashed(request["input"])[:, : request.get("dimensions")].tolist()
    items = [{"object": "embedding", "index": i, "embedding": v} for i, v in enumerate(vectors)]
    return {"object": "list", "data": items[::-1], "model": request["model"], "usage": {}}


def good(request: dict) -> Reply:
    return 200, JSON, json.dumps(answer(request)).encode()


@dataclass
class Stub:
    """What was asked, and how the next requests are answered.

    Attributes:
        replies: of the requests to come, one each; after the last all are good.
    """

    url: str
    replies: list[Callable[[dict], Reply]] = field(default_factory=list)
    requests: list[dict] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def sizes(self) -> list[int]:
        return [len(request["input"]) for request in self.requests]

    def hang(self, request: dict) -> Reply:
        """Answer when the test is over."""
        self.ended.wait(30)
        return good(request)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    stub: Stub

    def log_message(self, *_) -> None:
        pass

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        stub = self.stub
        stub.requests.append({"path": self.path, **request})
        stub.keys.append(self.headers["Authorization"].removeprefix("Bearer "))
        stub.times.append(time.monotonic())
        status, headers, body = (stub.replies.pop(0) if stub.replies else good)(request)
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving() -> Iterator[Stub]:
    """A stub on a free port of the loopback interface."""
    handler = type("Bound", (Handler,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        handler.stub = Stub(f"http://127.0.0.1:{server.server_port}/v1")
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # a client that has gone away
        server.block_on_close = False
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield handler.stub
        finally:
            handler.stub.ended.set()
            server.shutdown()
            thread.join()
