"""What solves a model: HiGHS, Gurobi, and any solver that Pyomo knows."""
