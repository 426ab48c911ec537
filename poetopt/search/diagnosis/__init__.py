"""What to tell where there is no schedule, and what a proof rests on: minimum budgets, what binds, certificates."""
