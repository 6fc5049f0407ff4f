"""What training is given beside the pairs: further queries, a time budget, and whom to tell."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from drift_pg.adapter import Float32

Progress = Callable[[int, int], None]
"""Is told how many steps are done, of how many at most."""


def silent(done: int, total: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, eq=False)
class Training:
    """Beside the pairs.

    Attributes:
        query_log: (q, m) queries embedded by the new model; they need no legacy embedding. None if there is no log.
        seconds: a budget; training stops at the best weights it has when it is spent. None for no limit.
        force: train although there are so few pairs that it will overfit.
        progress: told after each step.
        started: when the budget began, by time.perf_counter.
    """

    query_log: Float32 | None = None
    seconds: float | None = None
    force: bool = False
    progress: Progress = silent
    started: float = field(default_factory=time.perf_counter)

    @property
    def spent(self) -> bool:
        """Whether the budget is used up."""
        return self.seconds is not None and time.perf_counter() - self.started > self.seconds
