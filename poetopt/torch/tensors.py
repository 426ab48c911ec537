"""Import of torch when a call needs it, and a module's tensors by their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.util.errors import BackendUnavailableError, ModelError

if TYPE_CHECKING:
    from poetopt.graph import Array

COUNTER = "num_batches_tracked"
"""BatchNormalization's counter of batches, which isn't part of the ONNX computation."""


INSTALL = "pip install 'poetopt[torch]'"


def needed(*others: str) -> Any:
    """Import torch and `others`; return torch. Raises BackendUnavailableError if one isn't installed."""
    for name in ("torch", *others):
        try:
            import_module(name)
        except ImportError as error:
            raise BackendUnavailableError(f"{name} is not installed. Install it with: {INSTALL}") from error
    return import_module("torch")


def check_module(module: Any) -> None:
    """Raise ModelError for anything but a torch module."""
    if not isinstance(module, import_module("torch").nn.Module):
        hint = f". Create an object first: {module.__name__}()" if isinstance(module, type) else ""
        raise ModelError(f"a torch.nn.Module is needed here, not a {type(module).__name__}{hint}")


@dataclass(frozen=True)
class Stored:
    """Parameter or saved buffer.

    Attributes
    ----------
    names
        All of its names, in the module's order; a shared tensor has several.
    tensor
        The torch tensor.
    parameter
        Whether it is a parameter.
    """

    names: tuple[str, ...]
    tensor: Any
    parameter: bool

    @property
    def trained(self) -> bool:
        """Return whether it wants a gradient."""
        return self.parameter and bool(self.tensor.requires_grad)

    def among(self, names: Mapping[str, object]) -> list[str]:
        """Return those of its names that `given` has."""
        return [name for name in self.names if name in names]


def stored_in(module: Any) -> tuple[Stored, ...]:
    """Return the tensors of `module.state_dict()`, each once, without counters of batches."""
    parameters = {id(tensor) for tensor in module.parameters()}
    names: dict[int, list[str]] = {}
    tensors: dict[int, Any] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if name.rpartition(".")[2] != COUNTER and hasattr(tensor, "dtype"):
            names.setdefault(id(tensor), []).append(name)
            tensors[id(tensor)] = tensor
    return tuple(
        Stored(tuple(names_of_tensor), tensors[key], key in parameters) for key, names_of_tensor in names.items()
    )


def type_of(tensor: Any) -> str:
    """Return NumPy's name of a torch tensor's type."""
    return str(tensor.dtype).removeprefix("torch.")


def difference(array: Array, tensor: Any) -> str:
    """Return the type or shape in which an array differs from a tensor; "" if it can be its value."""
    if tensor.is_meta:
        return "there it has no memory: device meta"
    if array.dtype.name != type_of(tensor):
        return f"{array.dtype.name} instead of {type_of(tensor)}"
    if array.shape != tuple(tensor.shape):
        return f"{shape_word(array.shape)} instead of {shape_word(tuple(tensor.shape))}"
    return ""


def shape_word(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "scalar"


def bits(tensor: Any) -> bytes:
    """Return the bytes of a tensor's elements, in order."""
    import torch

    contiguous = tensor.detach().cpu().contiguous()
    return bytes(contiguous.reshape(-1).view(torch.uint8).numpy().tobytes()) if contiguous.numel() else b""


def put(array: Array, tensor: Any) -> None:
    """Copy the bits of an array into a tensor of the same type and shape."""
    import torch

    if tensor.numel():
        raw = bytearray(np.ascontiguousarray(array).tobytes())
        with torch.no_grad():
            tensor.copy_(torch.frombuffer(raw, dtype=tensor.dtype).reshape(tensor.shape))
