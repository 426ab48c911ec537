"""Comparison of methods on the same budgets, and the Pareto front of energy against RAM."""
