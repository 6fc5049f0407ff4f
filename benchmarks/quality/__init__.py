"""What an upgrade keeps: every method, the peers beside them, and what the figures say. `python -m benchmarks.quality`."""
