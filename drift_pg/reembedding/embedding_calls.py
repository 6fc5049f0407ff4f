"""Calling an embedder for a search that does not wait longer than it said."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future, wait
from contextlib import suppress

from drift_pg.adapter import Float32
from drift_pg.embedding import Embedder, embed
from drift_pg.errors import DriftError, EmbedderFailed

MOST_LATE = 8
"""Calls that nobody waits for any more, after which no further one is started: a service that hangs must not
collect a thread for each search."""

_LATE = "drift_pg embedding, late"

_most: dict[str, int] = {}
_counting = threading.Lock()


def affordable(embedder: Embedder, wanted: int) -> int:
    """How many of so many texts to give an embedder: half as many as it was late with, and one more after each success.

    Without that, one slower than its searches' patience would be asked for ever, and never embed anything.
    """
    return min(wanted, _most.get(_name(embedder), wanted))


def _learn(embedder: Embedder, texts: int, *, late: bool) -> None:
    name = _name(embedder)
    with _counting:
        if late:
            _most[name] = max(1, texts // 2)
        elif texts == _most.get(name):
            _most[name] = texts + 1


def _name(embedder: Embedder) -> str:
    # Not the function itself: a bound method is another object each time.
    return f"{getattr(embedder, '__module__', '')}.{getattr(embedder, '__qualname__', type(embedder).__qualname__)}"


class Call:
    """One call of an embedder in a thread of its own, which ends with the process if it never returns."""

    def __init__(self, embedder: Embedder, texts: Sequence[str], dimensions: int) -> None:
        self._embedder, self._texts = embedder, len(texts)
        self._result: Future[Float32] = Future()
        self._thread = threading.Thread(
            target=self._work, args=(embedder, texts, dimensions), name="drift_pg embedding", daemon=True
        )
        if sum(thread.name == _LATE for thread in threading.enumerate()) < MOST_LATE:
            self._thread.start()
        else:
            problem = f"{MOST_LATE} calls of embedders are running still, long after their time"
            self._result.set_exception(EmbedderFailed(problem))

    def _work(self, embedder: Embedder, texts: Sequence[str], dimensions: int) -> None:
        try:
            self._result.set_result(embed(embedder, texts, dimensions=dimensions))
        except DriftError as error:
            self._result.set_exception(error)
        except BaseException as error:  # sys.exit() in an embedder ends its thread, not the search
            self._result.set_exception(EmbedderFailed(f"the embedder raised {type(error).__name__}: {error}"))

    def wait(self, seconds: float) -> None:
        """Until it is done, but not longer."""
        wait([self._result], timeout=seconds)

    async def wait_async(self, seconds: float) -> None:
        """Until it is done, but not longer, while other tasks run."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def tell(_: Future[Float32]) -> None:
            with suppress(RuntimeError):  # the loop has ended before an embedder that nobody waits for
                loop.call_soon_threadsafe(done.set)

        self._result.add_done_callback(tell)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(done.wait(), seconds)

    def outcome(self, seconds: float) -> Float32 | BaseException:
        """(n, d) vectors, or why there are none: an EmbedderFailed or WrongDimensions."""
        if not self._result.done():
            self._thread.name = _LATE
            _learn(self._embedder, self._texts, late=True)
            return EmbedderFailed(
                f"the embedder has not embedded {self._texts} texts within {seconds:g} s, it is given fewer next time",
                hint="search(…, at_most=…, within=…): fewer texts, or more seconds",
            )
        _learn(self._embedder, self._texts, late=False)
        return self._result.exception() or self._result.result()
