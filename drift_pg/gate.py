"""The quality gate's one number, for Python and SQL alike."""

DEFAULT_MINIMUM = 0.4
"""The score below which an adapter is not activated unless forced; see `Evaluation.score`."""
