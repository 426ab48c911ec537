"""Solvers of models: HiGHS, Gurobi, and any solver that Pyomo knows."""
