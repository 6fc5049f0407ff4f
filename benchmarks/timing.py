"""Timing side by side: every repetition runs everything once, in a new order, so that noise falls on all alike.

What two searches for the same query read is warm for the second, which no application would see. So within
a repetition each action has another query; over all repetitions each has had every query once.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter

Action = Callable[[int], object]
"""What is timed; it is given the number of a query, from 0 to the number of repetitions."""


@dataclass(frozen=True)
class Timing:
    """How long one call took.

    Attributes:
        median_ms, p90_ms: over the repetitions.
        repeats: how many there were.
    """

    median_ms: float
    p90_ms: float
    repeats: int

    @classmethod
    def of(cls, seconds: list[float]) -> Timing:
        """Summarise."""
        return cls(1e3 * median(seconds), 1e3 * quantiles(seconds, n=10)[-1], len(seconds))


def interleaved(actions: Mapping[str, Action], repeats: int, *, calls: int = 1, warm_up: int = 10) -> dict[str, Timing]:
    """Time actions against each other.

    Args:
        actions: by name.
        repeats: measurements of each.
        calls: calls per measurement, where one is too short for the clock.
        warm_up: repetitions before the first that counts.
    """
    shuffle = random.Random(0).shuffle
    names, seconds = list(actions), {name: list[float]() for name in actions}
    first = {name: i * repeats // len(names) for i, name in enumerate(names)}
    with _no_collector():
        for repeat in range(-warm_up, repeats):
            shuffle(names)
            for name in names:
                taken = once(actions[name], (first[name] + repeat) % repeats, calls)
                if repeat >= 0:
                    seconds[name].append(taken)
    return {name: Timing.of(values) for name, values in seconds.items()}


def once(action: Action, query: int = 0, calls: int = 1) -> float:
    """Seconds of a call, the mean of several if so many are asked for."""
    started = perf_counter()
    for _ in range(calls):
        action(query)
    return (perf_counter() - started) / calls


@contextmanager
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
