"""Methods side by side on the same budgets, and the front of energy against RAM."""
