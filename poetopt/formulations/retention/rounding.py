r"""Block `rounding`: memory rows rounded to whole tensors. No variables, only a separator.

A row of `memory` is a knapsack $\sum_j a_j x_j \le b$ over binaries. Some of its terms (the set C) are complemented:
with $y_j = 1 - x_j$ there and $y_j = x_j$ elsewhere the row is $\sum_j \alpha_j y_j \le \beta$ with
$\alpha_j = \mp a_j$, $\beta = b - \sum_{C} a_j$. For a divisor d, with $f = \beta \bmod d$ and
$f_j = \alpha_j \bmod d$, the row

$$ \sum_j \left( \left\lfloor \frac{\alpha_j}{d} \right\rfloor + \frac{\max(0, f_j - f)}{d - f} \right) y_j
   \le \left\lfloor \frac{\beta}{d} \right\rfloor $$

holds for all integral y: mixed-integer rounding. Room for 14.5 equal tensors is room for 14. If it matters which of
them leaves, the chain cuts of the next round use that. A solver finds such rows too, but only after the chain cuts.

*Separation*: terms above a half are complemented. Divisors are the sizes of tensors that are partly there, and halves
and quarters of them. Each row gives its most violated cut, measured by the distance from the point.

Source: Nemhauser and Wolsey 1990; the choice of C and d after Marchand and Wolsey, "Aggregation and mixed integer
rounding to solve MIPs", Operations Research 49 (2001).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from poetopt.formulations.block import Block, PyomoBlock
from poetopt.formulations.rows import Floats, Ints, PointLike, Row


class Rounded(NamedTuple):
    """Key of a rounded row of `memory`.

    Attributes
    ----------
    stage, found
        The stage row of `stage` if `found` is -1; else row number `found` of the separator of `memory`.
    divisor
        The divisor, in units of memory rows.
    complemented
        Indices of the row's complemented terms.
    """

    stage: int
    found: int
    divisor: int
    complemented: tuple[int, ...]


MIN_VIOLATION = 0.01
"""Smallest distance from the point for which a cut is added."""
CUTS_PER_ROUND = 150
"""Largest number of cuts in a round, the most violated first."""
MAX_DIVISORS = 10
"""Largest number of tensor sizes tried as divisors of a row, the largest first."""
PARTS = (1, 2, 4)
"""Parts of each size: the whole, the half and the quarter."""
MIN_REST_SHARE = 1e-3
"""Least (divisor - remainder) / divisor. A smaller one gives huge coefficients."""
RELAXATION = 1e-9
"""Relaxation of the right-hand side, as a share of the sum of coefficients, because these are rounded to floats."""


@dataclass(frozen=True)
class _Knapsack:
    """A row of `memory` in integers.

    Attributes
    ----------
    place
        (m,) indices of the variables among all.
    coefficients, room
        (m,) coefficients and the right-hand side, in memory units.
    sizes, size
        (u,) distinct magnitudes of coefficients, and (m,) the index of each coefficient's magnitude.
    """

    stage: int
    found: int
    place: Ints
    coefficients: Ints
    room: int
    sizes: Ints
    size: Ints


def _build(block: PyomoBlock) -> None:
    """Prepare the state of the separator; the block has no variables and no rows."""
    model = block.model()
    block.variables = [*model.residency.k.values(), *model.recompute.r.values()]
    if model.space.paging:
        block.variables += model.paging.p.values()
    if model.space.streams:  # `held` is integral if all others are
        block.variables += [*model.streaming.y.values(), *model.memory.held.values()]
    block.rows = None
    block.numbered = 0


def _stage_rows(block: PyomoBlock) -> list[_Knapsack]:
    """Number the variables and return the stage rows. A model that its first relaxation solves never needs this."""
    block.place = {id(variable): place for place, variable in enumerate(block.variables)}
    return [
        _knapsack(block, t, -1, row.body.linear_vars, row.body.linear_coefs, row.upper())
        for t, row in block.model().memory.stage.items()
        if row.body.is_potentially_variable()  # otherwise no tensor fits there
    ]


def _knapsack(
    block: PyomoBlock, stage: int, found: int, variables: list[object], coefficients: list[float], room: float
) -> _Knapsack:
    place = np.array([block.place[id(variable)] for variable in variables])
    whole = np.rint(coefficients).astype(np.int64)
    sizes, size = np.unique(np.abs(whole), return_inverse=True)
    return _Knapsack(stage, found, place, whole, round(room), sizes, size)


def _separate(block: PyomoBlock, point: PointLike) -> list[Row]:
    if point.integral:
        return []
    model = block.model()
    if block.rows is None:
        block.rows = _stage_rows(block)
    for number in range(block.numbered, len(model.memory.found)):
        row = model.memory.found[number]
        block.rows.append(_knapsack(block, -1, number, row.variables, row.coefficients, row.upper))
    block.numbered = len(model.memory.found)
    parts = [point[model.residency.k], point[model.recompute.r]]
    if model.space.paging:
        parts.append(point[model.paging.p])
    if model.space.streams:
        parts += [point[model.streaming.y], point[model.memory.held]]
    values = np.clip(np.concatenate(parts), 0.0, 1.0)
    cuts = [cut for knapsack in block.rows if (cut := _cut(block, knapsack, values)) is not None]
    return sorted(cuts, key=lambda row: -row.violation)[:CUTS_PER_ROUND]


def _cut(block: PyomoBlock, knapsack: _Knapsack, values: Floats) -> Row | None:
    """Return the most violated rounding of one row, or None."""
    x, a = values[knapsack.place], knapsack.coefficients
    partly = (x > 1e-6) & (x < 1 - 1e-6) & (a != 0)
    if not partly.any() or knapsack.room - a @ x > np.abs(a[partly]).max():
        return None
    sizes = sorted(set(np.abs(a[partly]).tolist()), reverse=True)[:MAX_DIVISORS]
    divisors = np.array(sorted({size // part for size in sizes for part in PARTS} - {0}))
    missing = x > 0.5
    # few sizes differ, so terms are grouped by size and sign
    alpha = np.concatenate([knapsack.sizes, -knapsack.sizes])
    group = knapsack.size + len(knapsack.sizes) * ((a > 0) == missing)
    rounded, right, valid = roundings(
        alpha, knapsack.room - int(a[missing].sum()), np.zeros(len(alpha), dtype=bool), divisors
    )
    y = np.bincount(group, np.where(missing, 1 - x, x), len(alpha))
    distance = np.full(len(divisors), -np.inf)
    norm = np.sqrt(rounded[valid] ** 2 @ np.bincount(group, minlength=len(alpha)))
    distance[valid] = (rounded[valid] @ y - right[valid]) / np.maximum(norm, 1e-9)
    best = int(np.argmax(distance))
    if distance[best] < MIN_VIOLATION:
        return None
    terms = rounded[best][group]
    coefficients = np.where(missing, -terms, terms)
    upper = right[best] - terms[missing].sum()
    used = np.flatnonzero(coefficients)
    return Row(
        variables=[block.variables[knapsack.place[term]] for term in used],
        coefficients=coefficients[used].tolist(),
        lower=-np.inf,
        upper=float(upper + RELAXATION * np.abs(coefficients).sum()),
        violation=float(distance[best]),
        kind="rounded memory",
        key=Rounded(knapsack.stage, knapsack.found, int(divisors[best]), tuple(np.flatnonzero(missing).tolist())),
    )


def roundings(
    a: Ints, room: int, missing: NDArray[np.bool_], divisors: Ints
) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Return the rounded rows over y, one for each divisor.

    Parameters
    ----------
    a
        (m,) integers; the row is a x <= room.
    missing
        (m,) bool: the complemented terms.

    Returns
    -------
    (D, m) coefficients, (D,) right-hand sides, and (D,) bool: the rows that are useful.
    """
    alpha = np.where(missing, -a, a)
    beta = room - int(a[missing].sum())
    whole, over = np.divmod(alpha[None, :], divisors[:, None])
    right, left = np.divmod(beta, divisors)
    rest = divisors - left
    valid = (left > 0) & (rest > MIN_REST_SHARE * divisors)
    return whole + np.maximum(0, over - left[:, None]) / rest[:, None], right.astype(float), valid


rounding = Block("rounding", _build, requires=("recompute", "residency", "memory"), separator=_separate)
