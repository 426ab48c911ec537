"""Python interface: load, differentiate, cost, solve, simulate, execute.

    import poetopt as po
    problem = po.load("model.onnx").differentiate(loss="cross-entropy").cost(po.device("a72"))
    report = po.solve(problem, ram="40%", deadline="1.2x")
    po.execute(report)

The command line is built on it. `poetopt` exports all of it by name.
"""
