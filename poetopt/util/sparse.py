"""SciPy's sparse matrices, without the half second that Pyomo and SciPy spend on other imports.

If both are installed, Pyomo imports `scipy.stats`, `scipy.integrate` and `scipy.spatial` for its deferred imports, and
SciPy imports all submodules of numpy, including f2py and tests. poetopt needs none of them, so placeholders replace
them during the import; later imports get the real modules.
"""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as np

_UNNEEDED = ("scipy.stats", "scipy.integrate", "scipy.spatial", "numpy.ctypeslib", "numpy.f2py", "numpy.testing")

_placeholders = {name: ModuleType(name) for name in _UNNEEDED if name not in sys.modules}
_of_numpy = {name.removeprefix("numpy."): one for name, one in _placeholders.items() if name.startswith("numpy.")}
sys.modules.update(_placeholders)
vars(np).update(_of_numpy)  # else numpy would import them
try:
    import pyomo.common.dependencies  # noqa: F401
    from scipy.sparse import coo_matrix, csr_matrix, vstack
finally:
    for _name in _placeholders:
        del sys.modules[_name]
    for _name in _of_numpy:
        del vars(np)[_name]

__all__ = ["coo_matrix", "csr_matrix", "vstack"]
