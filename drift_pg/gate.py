"""The quality gate's one number, for Python and SQL alike."""

DEFAULT_MINIMUM = 0.8
"""The lower end of a score below which an adapter is not activated unless forced; see `Evaluation.score`.

Over all runs of benchmarks/quality (1,000 held-out items, docs/quality.md) every adapter that keeps half of a full
re-embedding's Recall@10 or more passes, and none passes that keeps less than two fifths.
"""
