"""Capacity of the storage: the row with which both formulations bound their written tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyomo.core as pyo
from pyomo.core.expr.numeric_expr import LinearExpression

from poetopt.formulations.block import PyomoRow
from poetopt.graph.problem import Problem

MAX_COEFFICIENT = 1 << 10
"""Largest coefficient, roughly. Solvers' tolerances are absolute, so larger ones would lose precision."""


def fits_storage(model: Any, tensors: Sequence[int], written: Sequence[Any]) -> PyomoRow:
    """Return the row that bounds the storage blocks of all `tensors` whose variable in `written` is 1.

    The result is `Skip` if everything fits or the capacity is unknown, and `Infeasible` if the tensors that begin on
    storage don't fit. With a capacity that is a Param the row is always there. The row is divided by a power of two,
    which is exact. A tensor that is larger than the storage has its variable bounded by 0.
    """
    problem: Problem = model.space.problem
    capacity = problem.storage_blocks
    if capacity is None:
        return pyo.Constraint.Skip
    # a stored tensor always takes its blocks, unless its update invalidates the copy and it may stay in RAM instead
    tensors_of = problem.tensors
    always = {i for i in problem.stored_at_start if not (tensors_of[i].carried and tensors_of[i].updated)}
    always_blocks = sum(problem.blocks(i) for i in always)
    blocks_of = [(v, problem.blocks(i)) for i, v in zip(tensors, written, strict=True) if i not in always]
    if model.space.limits.open:
        return sum(count * v for v, count in blocks_of) <= model.storage_bytes / _block_size(problem) - always_blocks
    capacity -= always_blocks
    if capacity < 0:
        return pyo.Constraint.Infeasible
    if sum(count for _, count in blocks_of) <= capacity:
        return pyo.Constraint.Skip
    for variable, count in blocks_of:
        if count > capacity:
            variable.setub(0)  # not fixed, because rows of separators may name it
    unit = 1 << max(0, max(count for _, count in blocks_of).bit_length() - MAX_COEFFICIENT.bit_length())
    scaled = [(variable, count / unit) for variable, count in blocks_of if count <= capacity]
    if not scaled:
        return pyo.Constraint.Skip
    variables, coefficients = zip(*scaled, strict=True)
    return None, LinearExpression(linear_coefs=list(coefficients), linear_vars=list(variables)), capacity / unit


def _block_size(problem: Problem) -> Any:
    from poetopt.formulations.parameters import BYTE  # units take Pyomo half a second

    return problem.storage_block_bytes * BYTE
