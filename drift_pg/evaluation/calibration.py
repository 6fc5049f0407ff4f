"""What a bridge's score says of the new model's: without it the two cannot stand in one order.

A line, not a monotone curve: it makes no ties, so that without any new vectors the order is the bridge's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from drift_pg.adapter import Adapter, Float32
from drift_pg.errors import NotCalibrated
from drift_pg.evaluation.items import check_dimensions
from drift_pg.evaluation.metrics import Float64, overlap_at, recall_at
from drift_pg.evaluation.mixed import merged, scores
from drift_pg.neighbours import METRICS, Indices, largest
from drift_pg.pairs import Pairs

FIRST, PART = 200, 5
"""How far down the bridge's ranking the line is fitted: where its candidates for a rerank are. Of fewer than 1,000
items a fifth: what lies at the end of a small ranking is never a candidate in a table."""

QUERIES, ITEMS, DIFFERENCES = 500, 5000, 1_000_000_000
"""How many held-out items search, among how many; of l1, which is no matrix product, how many differences are taken."""

MINIMUM = 20
"""Below this many pairs a line is not worth its name."""

SURE = 3
"""A slope is told from zero if it is so many times its standard error."""

USUAL, MARGINS = 0.5, (0.0, 0.25, 0.5, 1.0)
"""In residuals; half of one was best wherever it was measured (DESIGN.md, section 1)."""

BETTER = 0.005
"""How much better another margin than the usual one has to be: less is within the simulation's noise."""

COVERAGE = (0.0, 0.05, 0.25, 0.5, 0.75, 0.9, 1.0)


@dataclass(frozen=True)
class Calibration:
    """New score ≈ intercept + slope · bridge score, of an adapter and a metric.

    Attributes:
        slope: > 0.
        intercept: any.
        residual: standard deviation of what the line leaves unexplained.
        margin: ≥ 0, added where exactly scored rows stand beside, so that a few of them do not crowd out
            better ones without.
    """

    slope: float
    intercept: float
    residual: float
    margin: float

    def expected(self, bridge: Float32) -> Float64:
        """What rows of these bridge scores, of any shape, are merged by."""
        return np.asarray(self.intercept + self.margin + self.slope * bridge.astype(np.float64))

    def as_dict(self) -> dict[str, float]:
        """For JSON and `drift.store_calibration`; in full, since rounding would not be the line any more."""
        return asdict(self)


def calibrate(adapter: Adapter, pairs: Pairs, metric: str = "cosine", *, seed: int = 0) -> Calibration:
    """Fit the line on held-out pairs, and choose the margin by what mixed search then finds among them.

    Args:
        adapter: maps (m,) to (k,).
        pairs: that fitting has not seen; each searches for the others. Some hundreds suffice: among 1,000 or
            5,000 items the line is the same.
        metric: of the embedding column: "cosine", "inner_product", "l2" or "l1".
        seed: draws the items, and the rows that have new vectors.

    Raises:
        NotCalibrated: fewer than 20 pairs, or the bridge's score says nothing of the new model's.
        InvalidInput: an unknown metric.
        WrongDimensions: the pairs do not fit the adapter.
    """
    if len(pairs) < MINIMUM:
        raise NotCalibrated(f"{len(pairs)} held-out pairs are too few to calibrate by, expected at least {MINIMUM}")
    check_dimensions("pairs", pairs, adapter)
    sample = _Sample.of(adapter, pairs, metric, np.random.default_rng(seed))
    line = sample.line(metric)
    curves = {share: sample.curve(line, share * line.residual, seed) for share in MARGINS}
    return Calibration(line.slope, line.intercept, line.residual, best_margin(curves) * line.residual)


def calibrations(adapter: Adapter, pairs: Pairs, *, seed: int = 0) -> tuple[dict[str, Calibration], list[str]]:
    """The lines of all metrics that have one, and in sentences why others have not; arguments as `calibrate`."""
    tried = {metric: _tried(adapter, pairs, metric, seed) for metric in METRICS}
    problems = [f"Mixed search (rerank) is refused: {text}." for text in tried.values() if isinstance(text, str)]
    return {m: line for m, line in tried.items() if isinstance(line, Calibration)}, list(dict.fromkeys(problems))


def _tried(adapter: Adapter, pairs: Pairs, metric: str, seed: int) -> Calibration | str:
    try:
        return calibrate(adapter, pairs, metric, seed=seed)
    except NotCalibrated as problem:
        return problem.message


def best_margin(curves: Mapping[float, Float64]) -> float:
    """The margin whose curve is highest over all coverages and does not fall as coverage grows; mostly the usual one.

    Args:
        curves: per margin, in residuals, how well the search answers by coverage; the usual one among them.
    """
    worth = {margin: float(curve.mean() - dip(curve)) for margin, curve in curves.items()}
    best = max(worth, key=worth.__getitem__)
    return best if worth[best] > worth[USUAL] + BETTER else USUAL


def dip(curve: Float64) -> float:
    """How far a curve falls below what it had reached."""
    return float((np.maximum.accumulate(curve) - curve).max())


@dataclass(frozen=True, eq=False)
class _Sample:
    """Held-out items as queries, each masked from its own search.

    exact (q, n): the new model's scores; candidates (q, N): what the bridge finds; bridge (q, N): their scores.
    """

    exact: Float32
    candidates: Indices
    bridge: Float32

    @classmethod
    def of(cls, adapter: Adapter, pairs: Pairs, metric: str, rng: np.random.Generator) -> _Sample:
        rows = rng.permutation(len(pairs))[:ITEMS]
        new, legacy = pairs.source[rows], pairs.target[rows]
        asked = np.arange(min(QUERIES, len(rows)))
        if metric == "l1":
            asked = asked[: max(MINIMUM, DIFFERENCES // (new.size + legacy.size))]
        exact, bridge = scores(metric, new[asked], new), scores(metric, adapter.apply(new[asked]), legacy)
        exact[asked, asked] = bridge[asked, asked] = -np.inf
        candidates = largest(bridge, min(FIRST, max(10, len(new) // PART)))
        return cls(exact, candidates, np.take_along_axis(bridge, candidates, 1))

    def line(self, metric: str) -> Calibration:
        """Least squares; its error by query, since a query's scores vary together."""
        x = self.bridge.astype(np.float64)
        y = np.take_along_axis(self.exact, self.candidates, 1).astype(np.float64)
        away = x - x.mean()
        spread = (away**2).sum()
        if spread <= 1e-12 * x.size or np.ptp(y) < 1e-6:
            raise NotCalibrated(f"{metric}: all scores are equal, so one model's say nothing of the other's")
        slope = float((away * (y - y.mean())).sum() / spread)
        left = y - y.mean() - slope * away
        error = float(np.sqrt(((away * left).sum(1) ** 2).sum()) / spread)
        if slope <= SURE * error:
            raise NotCalibrated(
                f"{metric}: the bridge's score says nothing of the new model's (slope {slope:.3g} ± {error:.2g}, expected above 0)",
                hint="fit on more pairs; were the two sides of the pairs joined rightly?",
            )
        return Calibration(slope, float(y.mean() - slope * x.mean()), float(left.std()), 0.0)

    def curve(self, line: Calibration, margin: float, seed: int) -> Float64:
        """How the search answers against the new model's own, by the share of rows that have new vectors, drawn at random.

        The mean of "the new model's first is among the ten" and overlap: what few exact rows crowd out shows in the
        first (as in labelled queries), what a large margin costs in the second.
        """
        expected = line.expected(self.bridge) + margin
        k = min(10, self.candidates.shape[1])
        wanted, items = largest(self.exact, k), self.exact.shape[1]
        place = np.random.default_rng(seed).permutation(items)
        found = [merged(self.exact, self.candidates, expected, place < round(f * items), k) for f in COVERAGE]
        return np.array([recall_at(p, wanted[:, 0], k).mean() + overlap_at(p, wanted, k).mean() for p in found]) / 2
