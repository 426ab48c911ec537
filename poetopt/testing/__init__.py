"""Contract suites, which a package that extends poetopt runs on its extension.

    import poetopt as po

    def test_my_block() -> None:
        po.testing.check_block(my_block)

`check_block` and `check_vjp` raise ContractError, whose message says what is wrong and where, and return a record of
their checks. They need neither pytest nor the network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from poetopt.util.imports import loading

if TYPE_CHECKING:
    from poetopt.testing.block import check_block as check_block
    from poetopt.testing.contract import ContractError as ContractError
    from poetopt.testing.vjp import check_vjp as check_vjp

__getattr__, __all__ = loading(__name__, {
    "block": "check_block",
    "contract": "ContractError",
    "vjp": "check_vjp",
})  # fmt: skip
