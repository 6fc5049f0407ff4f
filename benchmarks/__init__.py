"""What drift_pg costs, measured side by side with what it is added to: `python -m benchmarks.serving`."""
