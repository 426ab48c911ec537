"""The C library's allocator, kept from holding what kernels are done with.

Kernels take scratch memory from `malloc`. What they free stays with the process: the next kernel that finds the gap too
small takes new pages beside it, so that a step of resnet18-cifar holds 3.9 MB where no kernel takes more than 1.2.
`malloc_trim` gives all free pages back, in about 0.1 ms. A step calls it before a kernel that could else bring the sum
over the plan's reserve (`poetopt.step.parts.GiveBack`). It takes glibc; elsewhere nothing is called.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


@cache
def give_back() -> Callable[[], object] | None:
    """What returns all free pages to the system; None where the C library has no such function."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    return lambda: trim(0)
