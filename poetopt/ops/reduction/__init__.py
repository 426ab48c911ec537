"""Sums, means, norms and extremes along axes."""
