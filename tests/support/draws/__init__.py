"""Random calls of each op that there is a kernel for: shapes, attributes and values, within what onnxruntime takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from poetopt.ops.runtimes.c.kernel import Kernel
from poetopt.ops.runtimes.c.steps import call_of
from tests.support.contract.kernel import Case
from tests.support.draws import elementwise, movement, norms, quantized, recurrent, sums, windows
from tests.support.draws.pieces import Draw

DRAWS: Mapping[tuple[str, str], Draw] = {
    **elementwise.DRAWS,
    **movement.DRAWS,
    **sums.DRAWS,
    **windows.DRAWS,
    **norms.DRAWS,
    **quantized.DRAWS,
    **recurrent.DRAWS,
}
"""How to draw cases of each op, by its domain and type."""


def cases_of(kernel: Kernel, count: int, seed: int = 0) -> Iterator[Case]:
    """`count` random cases of a kernel's op; none where `DRAWS` has none of it.

    Calls that the kernel refuses are drawn again.
    """
    draw = DRAWS.get((kernel.domain, kernel.op_type))
    random = np.random.default_rng(seed)
    made = tried = 0
    while draw is not None and made < count and tried < 20 * count:
        tried += 1
        for case in draw(random):
            call = call_of(case.operator, case.node, case.tensors)
            if made < count and kernel.refuses(call) is None:
                made += 1
                yield case
