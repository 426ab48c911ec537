"""SciPy's sparse matrices, without the half second that Pyomo spends on importing more of SciPy.

Once both are there, Pyomo imports `scipy.stats`, `scipy.integrate` and `scipy.spatial`, for users of its own deferred
imports. Nothing here needs them, so they have placeholders while it does; whoever imports them later has them whole.
"""

from __future__ import annotations

import sys
from types import ModuleType

_placeholders = {
    name: ModuleType(name) for name in ("scipy.stats", "scipy.integrate", "scipy.spatial") if name not in sys.modules
}
sys.modules.update(_placeholders)
try:
    import pyomo.common.dependencies  # noqa: F401
    from scipy.sparse import coo_matrix, csr_matrix, vstack
finally:
    for _name in _placeholders:
        del sys.modules[_name]

__all__ = ["coo_matrix", "csr_matrix", "vstack"]
