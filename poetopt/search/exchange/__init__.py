"""Models for other solvers, and the plans of their solutions."""
