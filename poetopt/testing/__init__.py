"""Contract suites: what a package that extends poetopt runs on its own extension.

    import poetopt as po

    def test_my_block() -> None:
        po.testing.check_block(my_block)

`check_block`, `check_vjp`, `check_backend`, `check_device`, `check_runtime` and `check_kernel` raise ContractError,
which says what is wrong and where, and return a small record of what they did. They need neither pytest nor the
network; `check_kernel` needs a C compiler.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from poetopt.testing.backend import check_backend
    from poetopt.testing.block import check_block
    from poetopt.testing.contract import ContractError
    from poetopt.testing.device import check_device
    from poetopt.testing.kernel import check_kernel
    from poetopt.testing.runtime import check_runtime
    from poetopt.testing.vjp import check_vjp

_HOMES = {
    "ContractError": "contract",
    "check_backend": "backend",
    "check_block": "block",
    "check_device": "device",
    "check_kernel": "kernel",
    "check_runtime": "runtime",
    "check_vjp": "vjp",
}

__all__ = [
    "ContractError",
    "check_backend",
    "check_block",
    "check_device",
    "check_kernel",
    "check_runtime",
    "check_vjp",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(importlib.import_module(f"poetopt.testing.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'poetopt.testing' has no attribute {name!r}")
