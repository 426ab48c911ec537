"""The room on the storage: the row that both formulations bound their written tensors by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyomo.core as pyo
from pyomo.core.expr.numeric_expr import LinearExpression

from poetopt.formulations.block import PyomoRow
from poetopt.graph.problem import Problem

WIDEST = 1 << 10
"""Coefficients are at most about this: solvers' tolerances are absolute."""


def fits_storage(model: Any, tensors: Sequence[int], written: Sequence[Any]) -> PyomoRow:
    """The row that the blocks of all `tensors` whose variable in `written` is 1 are no more than the storage has.

    It is skipped where everything fits, or where nobody knows what the storage holds; no variable keeps it where what
    begins there doesn't fit. Where the capacity is a Param all of it stands. Divided by a power of two, which changes
    no figure. A variable of a tensor that is larger than the storage is bounded by 0.
    """
    problem: Problem = model.space.problem
    capacity = problem.storage_blocks
    if capacity is None:
        return pyo.Constraint.Skip
    # what storage holds takes its blocks anyway, unless its update ends that and it may stay in RAM instead
    held = problem.tensors
    anyway = {i for i in problem.stored_at_start if not (held[i].carried and held[i].updated)}
    taken = sum(problem.blocks(i) for i in anyway)
    given = [(v, problem.blocks(i)) for i, v in zip(tensors, written, strict=True) if i not in anyway]
    if model.space.limits.open:
        return sum(count * v for v, count in given) <= model.storage_bytes / _block(problem) - taken
    capacity -= taken
    if capacity < 0:
        return pyo.Constraint.Infeasible
    if sum(count for _, count in given) <= capacity:
        return pyo.Constraint.Skip
    for variable, count in given:
        if count > capacity:
            variable.setub(0)  # not fixed: separators' rows may name it
    unit = 1 << max(0, max(count for _, count in given).bit_length() - WIDEST.bit_length())
    fits = [(variable, count / unit) for variable, count in given if count <= capacity]
    if not fits:
        return pyo.Constraint.Skip
    variables, coefficients = zip(*fits, strict=True)
    return None, LinearExpression(linear_coefs=list(coefficients), linear_vars=list(variables)), capacity / unit


def _block(problem: Problem) -> Any:
    from poetopt.formulations.parameters import BYTE  # units take Pyomo half a second

    return problem.storage_block_bytes * BYTE
