"""Whether a session's nodes keep the contract of `poetopt.backends.solvers.nodes`: part of `check_backend`."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.optimize import linprog

from poetopt.backends.solvers.nodes import Nodes, StoppedError
from poetopt.backends.solvers.solver import Session
from poetopt.formulations.rows import Row
from tests.support.contract import milp

Need = Callable[[object, str], None]
TOLERANCE = 1e-6


def check_nodes(session: Session, problem: milp.Covering, rng: random.Random, need: Need) -> None:
    """Bounds, bases, cutoffs, probes, searches and rows of the nodes of `session`, whose relaxation is solved.

    Relaxations are compared with scipy's, and optima with trying everything.

    need
        Told what must hold, and the message where it doesn't; it raises then.
    """
    n = len(problem.costs)
    nodes = session.nodes()
    need(bool(nodes.integer.all()), "its nodes have columns that aren't integers, and all are")
    root = nodes.solve(None, math.inf)
    need(root is not None, "at the root its nodes have no solution, and the relaxation has")
    assert root is not None
    before = session.incumbent_bound
    need(_close(root.objective, _relaxed(problem, {})), f"at the root its nodes come to {root.objective}")
    # the column of each x: its value where that of every column is its number
    numbers = replace(root, values=np.arange(len(nodes.lower), dtype=float))
    at = nodes.point(numbers, False)[problem.model.x].astype(int).tolist()
    row = Row(list(problem.model.x.values()), [1.0] * n, math.ceil(n / 2), math.inf, 1.0, "half", core=True)
    for extra in (None, row):
        if extra is not None:
            nodes.add([extra])
        held = {x: float(rng.random() < 0.7) for x in rng.sample(range(n), 3)}
        lower, upper = nodes.lower.copy(), nodes.upper.copy()
        for x, value in held.items():
            lower[at[x]] = upper[at[x]] = value
        nodes.enter(lower, upper)
        vertex = nodes.solve(root.basis, math.inf)
        known = _relaxed(problem, held, extra is not None)
        if vertex is None:
            need(math.isinf(known), f"a node has no solution, and its relaxation is {known}")
            continue
        need(_close(vertex.objective, known), f"a node comes to {vertex.objective}, and its relaxation is {known}")
        need(_close(float(nodes.costs @ vertex.values) + problem.constant, known), "a vertex isn't worth its objective")
        free = rng.choice([x for x in range(n) if x not in held])
        for value in (0.0, 1.0):
            objective, proven = nodes.probe(at[free], value, value, vertex.basis, math.inf)
            truth = _relaxed(problem, {**held, free: value}, extra is not None)
            below = objective <= truth + TOLERANCE * max(1.0, abs(truth))
            need(below or not proven, f"a probe says {objective} is a bound, and the relaxation is {truth}")
        need(nodes.solve(None, known - 0.5) is None, "a node has something below a cutoff that is below its optimum")
        again = nodes.solve(vertex.basis, known + 0.5)
        need(again is not None and _close(again.objective, known), "after probes a node isn't what it was")
    need(session.incumbent_bound == before, "what its nodes do changed the session's bound")
    nodes.stop()
    need(_refuses(nodes), "nodes that were stopped must raise StoppedError")


def _refuses(nodes: Nodes) -> bool:
    try:
        nodes.solve(None, math.inf)
    except StoppedError:
        return True
    return False


def _relaxed(problem: milp.Covering, held: dict[int, float], half: bool = False) -> float:
    """The relaxation with some variables held, by scipy; inf where it has none."""
    n = len(problem.costs)
    bounds = [(held.get(x, 0.0), held.get(x, 1.0)) for x in range(n)]
    rows, sides = problem.rows, problem.sides
    if half:
        rows, sides = np.vstack([rows, np.ones(n)]), np.append(sides, math.ceil(n / 2))
    solved = linprog(problem.costs, A_ub=-rows, b_ub=-sides, bounds=bounds)
    return float(solved.fun) + problem.constant if solved.status == 0 else math.inf


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= TOLERANCE * max(1.0, abs(a), abs(b))
