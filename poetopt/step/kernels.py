"""What a program asks of a runtime's kernels on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from poetopt.graph import Node, Tensor
from poetopt.runtimes.contract import Runtime

Act = Callable[[], object]
"""Something that a step does, with everything prepared."""


class Kernels(Protocol):
    """Kernels of one runtime, for the nodes of one graph."""

    @property
    def runtime(self) -> Runtime:
        """What they take of RAM."""
        ...

    def bound(self, node: Node, addresses: Mapping[str, int], shapes: Mapping[str, Tensor] | None = None) -> Act:
        """Running `node` with every tensor that it names at its address.

        shapes
            The tensors as the node sees them, where they are not those of the graph: of a slice.

        Raises `ExecutionError` where there is no kernel for it.
        """
        ...

    def draws(self, node: Node) -> bool:
        """Whether a bound node draws random numbers: bound anew, it draws the same ones again."""
        ...

    def give_back(self) -> Act | None:
        """What returns to the system all memory that kernels have freed; None where nothing does."""
        ...

    def errors(self) -> tuple[type[Exception], ...]:
        """The exceptions that a kernel may raise."""
        ...

    def reason(self, error: BaseException) -> str:
        """What such an exception says, on one line."""
        ...
