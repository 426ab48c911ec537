"""Largest batch whose step fits a memory budget.

Tensors of the example that share its first dimension are resized. Imports torch: only `po.torch.plan` imports it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from poetopt.torch.budget import MemoryPlan
from poetopt.util.errors import InfeasibleError, ModelError, NoScheduleError
from poetopt.util.units import show_bytes

PLANS = 6
"""Maximum number of batches that are planned."""


def largest_batch(
    example: Any, budget_bytes: int, least_of: Callable[[Any], MemoryPlan], plan_of: Callable[[Any], MemoryPlan]
) -> MemoryPlan:
    """Return the plan of the largest batch that has one, with that batch and the bound above it.

    The lower bound of a step grows by the same amount for each row. Two batches therefore give the bound, which is then
    checked at that batch and at the next larger one. Between no batch and the bound, plans are bisected, at most
    `PLANS` times.

    Parameters
    ----------
    least_of, plan_of
        Functions of an example, that return a plan's lower bound, and a plan; they raise InfeasibleError or
        NoScheduleError.

    Raises
    ------
    InfeasibleError, NoScheduleError
        If no batch has a plan.
    ModelError
        If the step's memory doesn't grow with the batch.
    """
    rows = next((len(x) for x in tree_leaves(example) if isinstance(x, torch.Tensor) and x.dim()), 0)

    def example_of(batch: int) -> Any:
        def sized(x: Any) -> Any:
            if isinstance(x, torch.Tensor) and x.dim() and len(x) == rows:
                return x.detach()[torch.arange(batch, device=x.device) % rows]
            return x

        return tree_map(sized, example)

    def least_bytes(batch: int) -> int:
        largest = least_of(example_of(batch))
        return largest.least_bytes + largest.beside_bytes

    first = least_bytes(rows) if rows else 0
    bytes_per_rows = least_bytes(2 * rows) - first if rows else 0
    if bytes_per_rows <= 0:
        raise ModelError("the memory of a step doesn't grow with dimension 0 of the example's tensors")
    bound = max(0, rows + (budget_bytes - first) * rows // bytes_per_rows)
    if bound and (least_bytes(bound) > budget_bytes or least_bytes(bound + 1) <= budget_bytes):
        bound = bisect_right(range(1, 2 * bound + 1), budget_bytes, key=least_bytes)
    if not bound:
        raise InfeasibleError(
            f"a batch of 1 takes at least {show_bytes(least_bytes(1))}, and the budget is {budget_bytes:,} bytes"
        )
    best: MemoryPlan | None = None
    largest, smallest_failed, batch = 0, bound + 1, bound
    for _ in range(PLANS):
        try:
            best, largest = plan_of(example_of(batch)), batch
        except (InfeasibleError, NoScheduleError):
            smallest_failed = batch
        if smallest_failed - largest == 1:
            break
        batch = (largest + smallest_failed) // 2
    if best is None:
        raise NoScheduleError(
            f"no plan was found for any batch, though none up to {bound} is proven to exceed the budget"
        )
    best.batch, best.batch_bound = largest, bound
    return best
