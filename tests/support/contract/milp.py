"""Small integer programs whose answers are known, for `check_backend`."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyomo.environ as pyo
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Covering:
    """min costs x + constant, rows x >= sides, x in {0, 1}^n; `sets` are the rows as arrays."""

    model: Any
    costs: Floats
    rows: Floats
    sides: Floats
    constant: float

    def best(self, held: dict[int, float] | None = None, extra: tuple[Floats, float] | None = None) -> float | None:
        """The optimum, by trying everything; with some variables held, and under one more row; None: infeasible."""
        every = np.array(list(itertools.product((0.0, 1.0), repeat=len(self.costs))))
        kept = np.all(every @ self.rows.T >= self.sides - 1e-9, axis=1)
        for x, value in (held or {}).items():
            kept &= every[:, x] == value
        if extra is not None:
            kept &= every @ extra[0] >= extra[1] - 1e-9
        if not kept.any():
            return None
        return float((every[kept] @ self.costs).min()) + self.constant


def covering(rng: random.Random, n: int = 9, m: int = 5) -> Covering:
    """A covering problem with a solution: all ones."""
    costs = np.array([float(rng.randint(1, 20)) for _ in range(n)])
    rows = np.array([[float(rng.choice((0, 0, 1, 2, 3))) for _ in range(n)] for _ in range(m)])
    rows[:, rng.randrange(n)] += 1.0
    sides = np.floor(rows.sum(axis=1) * 0.45) + 0.5
    constant = float(rng.randint(-5, 5))
    model = pyo.ConcreteModel()
    model.x = pyo.Var(range(n), domain=pyo.Binary)
    model.unused = pyo.Var(range(2), domain=pyo.Binary)
    model.covered = pyo.Constraint(
        range(m), rule=lambda b, r: sum(rows[r, x] * b.x[x] for x in range(n) if rows[r, x]) >= sides[r]
    )
    model.cost = pyo.Objective(expr=sum(costs[x] * model.x[x] for x in range(n)) + constant)
    return Covering(model, costs, rows, sides, constant)


def every_kind() -> Any:
    """A linear program with equality, range, free and bounded variables and a constant: its optimum is 4.5.

    min x + 2 y - z + 3 subject to x + y = 3, 1 <= y - x <= 2, z <= 5.5 + w, w = -2: so x = 1, y = 2, z = 3.5.
    """
    model = pyo.ConcreteModel()
    model.x = pyo.Var(bounds=(0, None))
    model.y = pyo.Var(bounds=(None, 9))
    model.z = pyo.Var(domain=pyo.Reals)
    model.w = pyo.Var(domain=pyo.Reals)
    model.equal = pyo.Constraint(expr=model.x + model.y == 3)
    model.range = pyo.Constraint(expr=(1, model.y - model.x, 2))
    model.upper = pyo.Constraint(expr=model.z - model.w <= 5.5)
    model.fixed = pyo.Constraint(expr=model.w == -2)
    model.cost = pyo.Objective(expr=model.x + 2 * model.y - model.z + 3)
    return model


def infeasible(*, relaxed: bool) -> Any:
    """A model without a solution; `relaxed` says whether its relaxation has none either."""
    model = pyo.ConcreteModel()
    model.x = pyo.Var(range(3), domain=pyo.Binary)
    total = model.x[0] + model.x[1] + model.x[2]
    model.row = pyo.Constraint(expr=total >= 4) if relaxed else pyo.Constraint(expr=2 * total == 3)
    model.cost = pyo.Objective(expr=total)
    return model


def unbounded() -> Any:
    """min -x with x + y >= 1 and nothing above."""
    model = pyo.ConcreteModel()
    model.x = pyo.Var(bounds=(0, None))
    model.y = pyo.Var(bounds=(0, None))
    model.row = pyo.Constraint(expr=model.x + model.y >= 1)
    model.cost = pyo.Objective(expr=-model.x)
    return model


def endless(seed: int = 0, n: int = 50, m: int = 6) -> Any:
    """A market split (Cornuejols & Dawande 1998): solutions everywhere, and no solver proves the best one in a day."""
    rng = random.Random(seed)
    weights = [[rng.randint(1, 99) for _ in range(n)] for _ in range(m)]
    model = pyo.ConcreteModel()
    model.x = pyo.Var(range(n), domain=pyo.Binary)
    model.over = pyo.Var(range(m), bounds=(0, None))
    model.under = pyo.Var(range(m), bounds=(0, None))
    model.split = pyo.Constraint(
        range(m),
        rule=lambda b, r: (
            sum(weights[r][x] * b.x[x] for x in range(n)) + b.under[r] - b.over[r] == sum(weights[r]) // 2
        ),
    )
    model.cost = pyo.Objective(expr=sum(model.over[r] + model.under[r] for r in range(m)))
    return model
