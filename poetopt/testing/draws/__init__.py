"""Random calls of each op that there is a kernel for: shapes, attributes and values, within what onnxruntime takes."""

from __future__ import annotations

from collections.abc import Mapping

from poetopt.testing.draws import elementwise, movement, norms, recurrent, sums, windows
from poetopt.testing.kernel_cases import Draw

DRAWS: Mapping[tuple[str, str], Draw] = {
    **elementwise.DRAWS,
    **movement.DRAWS,
    **sums.DRAWS,
    **windows.DRAWS,
    **norms.DRAWS,
    **recurrent.DRAWS,
}
"""How to draw cases of each op, by its domain and type."""
