"""How much memory torch's tensors take while a step runs, counted by storages from their birth to their end."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from poetopt.torch.tensors import bits


class LiveBytes(TorchDispatchMode):
    """Counts the storages that are made while it is on. `peak_bytes(without)` leaves some out."""

    def __init__(self) -> None:
        super().__init__()
        self._known: set[int] = set()
        self._events: list[tuple[int, int]] = []

    def know(self, tensor: Any) -> None:
        """Leave out a tensor that is there already."""
        self._known.add(tensor.untyped_storage()._cdata)

    def see(self, tensor: Any) -> None:
        """Count a tensor's storage, until it is gone."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._known and storage.nbytes():
            self._known.add(key)
            self._events.append((key, storage.nbytes()))
            weakref.finalize(storage, self._gone, key, storage.nbytes())

    def _gone(self, key: int, nbytes: int) -> None:
        self._known.discard(key)
        self._events.append((key, -nbytes))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.see(leaf)
        return result

    def peak_bytes(self, without: Sequence[Any] = ()) -> int:
        """The most that was live at once, without what these tensors have now."""
        last = {key: place for place, (key, nbytes) in enumerate(self._events) if nbytes > 0}
        left = {last[key] for tensor in without if (key := tensor.untyped_storage()._cdata) in last}
        live = most = 0
        for place, (_, nbytes) in enumerate(self._events):
            live += 0 if place in left else nbytes
            most = max(most, live)
        return most


@dataclass(frozen=True)
class Step:
    """What a step took, and what it left: gradients of the parameters, then buffers, as bytes."""

    peak_bytes: int
    results: tuple[bytes | None, ...]


def stepped(
    module: Any, example: Sequence[Any], loss: Callable[[Any], Any] | None = None, program: Any | None = None
) -> Step:
    """A forward and a backward pass of a module, of which nobody needs the state afterwards.

    loss
        Of the output; by default the mean of its squares.
    program
        What is called in the module's stead, and has its parameters and buffers.
    """
    given = [argument.detach().clone() if isinstance(argument, torch.Tensor) else argument for argument in example]
    count = LiveBytes()
    for tensor in (*module.parameters(), *module.buffers()):
        count.know(tensor)
    with torch.random.fork_rng(devices=[]), torch.enable_grad(), count:
        torch.manual_seed(0)
        for argument in given:
            if isinstance(argument, torch.Tensor):
                count.see(argument)
        output = (module if program is None else program)(*given)
        (_mean_square(output) if loss is None else loss(output)).backward()
        del output
    gradients = [parameter.grad for parameter in module.parameters()]
    peak = count.peak_bytes([gradient for gradient in gradients if gradient is not None])
    left = [*gradients, *module.buffers()]
    return Step(peak, tuple(None if tensor is None else bits(tensor) for tensor in left))


def _mean_square(output: Any) -> Any:
    leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    return sum(leaf.square().mean() for leaf in leaves)
