"""How good a search or an adapter is: metrics, an adapter's evaluation, and the advice that follows from it."""

from drift_pg.evaluation.advice import Advice, ReembeddingCost, reembedding_cost
from drift_pg.evaluation.assessment import Evaluation, evaluate
from drift_pg.evaluation.figures import Figure

__all__ = ["Advice", "Evaluation", "Figure", "ReembeddingCost", "evaluate", "reembedding_cost"]
