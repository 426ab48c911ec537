"""Solver backends: HiGHS, Gurobi, and any solver that Pyomo knows."""
