"""The largest batch whose step keeps a budget: tensors of the example that share its first dimension grow and shrink.

Imports torch: only `po.torch.plan` imports it.
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
"""So many batches are planned for at most."""


def largest_batch(
    example: Any, budget_bytes: int, least_of: Callable[[Any], MemoryPlan], plan_of: Callable[[Any], MemoryPlan]
) -> MemoryPlan:
    """The plan of the largest batch that has one, which says that batch, and above which batch there is none.

    least_of, plan_of
        Of an example: what no plan takes less than, and a plan; it raises InfeasibleError or NoScheduleError.

    What a step takes at least grows by the same for each row, so that the second comes from two batches; it is looked
    at, and at the one above. Between no batch and that one plans are halved in, `PLANS` at most.

    Raises InfeasibleError or NoScheduleError where no batch has a plan, ModelError where nothing grows.
    """
    rows = next((len(x) for x in tree_leaves(example) if isinstance(x, torch.Tensor) and x.dim()), 0)

    def at(batch: int) -> Any:
        def sized(x: Any) -> Any:
            if isinstance(x, torch.Tensor) and x.dim() and len(x) == rows:
                return x.detach()[torch.arange(batch, device=x.device) % rows]
            return x

        return tree_map(sized, example)

    def least(batch: int) -> int:
        found = least_of(at(batch))
        return found.least_bytes + found.beside_bytes

    first = least(rows) if rows else 0
    more = least(2 * rows) - first if rows else 0
    if more <= 0:
        raise ModelError("what a step takes doesn't grow with dimension 0 of the example's tensors")
    top = max(0, rows + (budget_bytes - first) * rows // more)
    if top and (least(top) > budget_bytes or least(top + 1) <= budget_bytes):
        top = bisect_right(range(1, 2 * top + 1), budget_bytes, key=least)
    if not top:
        raise InfeasibleError(
            f"a batch of 1 takes {show_bytes(least(1))} or more; the budget is {budget_bytes:,} bytes"
        )
    best: MemoryPlan | None = None
    found, failed, batch = 0, top + 1, top
    for _ in range(PLANS):
        try:
            best, found = plan_of(at(batch)), batch
        except (InfeasibleError, NoScheduleError):
            failed = batch
        if failed - found == 1:
            break
        batch = (found + failed) // 2
    if best is None:
        raise NoScheduleError(f"no batch was found that fits; none is proven to need more than the budget up to {top}")
    best.batch, best.batch_bound = found, top
    return best
