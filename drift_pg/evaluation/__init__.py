"""How good a search or an adapter is: metrics, and later the quality gate and its report."""
