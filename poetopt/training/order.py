"""Which rows each batch of an epoch has: a function of seed and epoch alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from poetopt.errors import OptionError

if TYPE_CHECKING:
    from poetopt.graph import Array

ORDERS = ("shuffle", "sequential")


def rows_in_order(rows: int, order: str, seed: int, epoch: int) -> Array:
    """The numbers of all rows in the order of an epoch (from 0). Raises OptionError for an unknown order.

    What is shuffled comes from numpy's legacy generator, whose numbers never change: a resumed training may have
    another numpy.
    """
    if order not in ORDERS:
        raise OptionError(f"--batch-order {order}: must be {' or '.join(ORDERS)}")
    found: Array = np.arange(rows, dtype=np.uint32 if rows < 2**32 else np.uint64)
    if order == "shuffle":
        np.random.RandomState([seed % 2**32, epoch]).shuffle(found)
    return found
