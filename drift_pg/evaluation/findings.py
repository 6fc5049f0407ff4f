"""What is odd about test pairs: said in sentences, since figures of such pairs mean something else."""

from __future__ import annotations

import numpy as np

from drift_pg.adapter import Float32
from drift_pg.evaluation.agreement import ranks
from drift_pg.evaluation.items import Items
from drift_pg.pairs import Pairs

DUPLICATES = 0.01
"""Share of equal vectors from which it is worth a sentence: a few texts repeat in any table."""

WRONG = 0.01
"""Share of wrong pairs from which it is worth a sentence."""

FAR = 8
"""A rank beyond 1/8 of the items is far: where 7 of 8 items of wrong pairs lie, and few of right ones."""

FEW_ITEMS = 1000
FEW_QUERIES = 100


def findings(test: Pairs, items: Items, queries: int | None = None) -> list[str]:
    """Sentences on the test pairs and, if there are any, the number of labelled queries.

    Args:
        test: the pairs as given.
        items: the same and the corpus, as searched.
        queries: how many have labels, None if labels were not given.
    """
    found = [s for side, v in (("new", test.source), ("legacy", test.target)) for s in _side(f"{side} model", v)]
    share = wrong_share(items)
    if share >= WRONG:
        found.append(
            f"About {share:.0%} of the test pairs seem to be wrong: their two vectors are far from each other while most "
            "others find themselves. Were the rows changed since they were embedded, or the files joined by position?"
        )
    if len(items) < FEW_ITEMS:
        found.append(
            f"Only {len(items):,} items were searched; among more, each search finds less. Give more test pairs or a corpus."
        )
    if queries is not None and queries < FEW_QUERIES:
        found.append(f"Only {queries} queries have labels: their intervals are wide, and narrower than they should be.")
    return found


def _side(name: str, vectors: Float32) -> list[str]:
    distinct = len({row.tobytes() for row in vectors})
    if distinct == 1:
        return [
            f"All {len(vectors):,} vectors of the {name} are equal: nothing can be told from them. Is its embedder right?"
        ]
    found = []
    if (share := 1 - distinct / len(vectors)) >= DUPLICATES:
        found.append(f"{share:.0%} of the vectors of the {name} repeat another: such items cannot be told apart.")
    if constant := int((np.ptp(vectors, axis=0) == 0).sum()):
        found.append(
            f"{constant} of {vectors.shape[1]} dimensions of the {name} are the same in all vectors, and carry nothing."
        )
    return found


def wrong_share(items: Items) -> float:
    """An estimate of the share of pairs whose two vectors are not of the same item; 0 if most pairs are far apart.

    An item counts if its own legacy vector is far down its adapted vector's ranking *and* the reverse: one
    way alone also happens to an item that nothing is near to. Of wrong pairs the share (7/8)² counts.
    """
    tested = items.legacy[: items.tested]
    limit = items.tested / FAR
    above, tied = ranks(items.adapted, tested, items.rows)
    if np.median(above + (tied - 1) / 2) > limit / 4:
        return 0.0
    back, _ = ranks(tested, items.adapted, items.rows)
    return float(min(1, ((above > limit) & (back > limit)).mean() / (1 - 1 / FAR) ** 2))
