"""Answers where there is no schedule, and the grounds of a proof: minimum budgets, what binds, certificates."""
