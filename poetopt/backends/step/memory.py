"""Blocks of memory of an exact size, and views of tensors in them."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from poetopt.graph import PACKED, Tensor

if TYPE_CHECKING:
    from poetopt.graph import Array

ALIGNMENT = 64
"""Every buffer starts at a multiple of it. Kernels that sum in vector registers round by how their input is aligned,
so two runs can only agree bit by bit where all buffers are aligned alike; onnxruntime's own allocator uses 64, too."""

PIECE = 2**20
"""Bytes of a file that are in memory at once while they are copied."""

POISON = 0xFF
"""What freed bytes are overwritten with while a plan is checked: NaN as a float, -1 as an integer."""


def numpy_dtype(dtype: str) -> np.dtype[np.generic]:
    """Numpy's type for a tensor's `dtype`; those that numpy itself lacks (bfloat16) included, bytes for packed ones."""
    if dtype in PACKED:
        return np.dtype(np.uint8)
    try:
        return np.dtype(dtype)
    except TypeError:
        from onnx.helper import tensor_dtype_to_np_dtype

        from poetopt.frontends.proto import elem_type

        found: np.dtype[np.generic] = np.dtype(tensor_dtype_to_np_dtype(elem_type(dtype)))
        return found


class MappedBlock:
    """One block of `nbytes` bytes, zero at first, that starts at a page."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._map = mmap.mmap(-1, max(nbytes, 1))
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)[:nbytes]
        self.address = int(self.bytes.ctypes.data)

    def give_back(self) -> None:
        """Let the system have the memory until it is touched again; what was in it is lost."""
        if hasattr(mmap, "MADV_REMOVE"):  # the mapping is a shared one, of which other advice frees nothing
            with suppress(OSError):
                self._map.madvise(mmap.MADV_REMOVE)

    def span(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """The bytes from `offset` on, without a copy."""
        return self.bytes[offset : offset + nbytes]

    def view(self, offset: int, tensor: Tensor) -> Array:
        """`tensor` at `offset`, without a copy."""
        return self.span(offset, tensor.nbytes).view(numpy_dtype(tensor.dtype)).reshape(tensor.array_shape)


def pack_apart(tensors: Iterable[Tensor]) -> tuple[Mapping[str, Array], MappedBlock]:
    """A view for each tensor in a block of their own, side by side."""
    offsets: dict[str, tuple[int, Tensor]] = {}
    end = 0
    for tensor in tensors:
        offsets[tensor.name] = (end, tensor)
        end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    block = MappedBlock(end)
    return {name: block.view(offset, tensor) for name, (offset, tensor) in offsets.items()}, block


def copy_mapped(target: Array, source: Array) -> None:
    """`np.copyto` that keeps no more than a piece of a file in memory where `source` is mapped from one."""
    if not (source.flags.c_contiguous and target.flags.c_contiguous):
        np.copyto(target, source)
        return
    to, at = target.reshape(-1).view(np.uint8), 0
    for piece in pieces(source.reshape(-1).view(np.uint8)):
        to[at : at + piece.size] = piece
        at += piece.size


def pieces(source: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    """All bytes of `source` in order; where it is mapped from a file, piece by piece, so that one is there at once."""
    base: object = source
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    mapping = base.base if isinstance(base, np.memmap) else None
    if not isinstance(mapping, mmap.mmap) or not hasattr(mapping, "madvise"):
        yield source
        return
    for start in range(0, source.size, PIECE):
        yield source[start : start + PIECE]
        mapping.madvise(mmap.MADV_DONTNEED)


def bytes_of(array: Array) -> NDArray[np.uint8]:
    """The bytes of an array that lies in one piece, without a copy of them where it does."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def aligned_copy(array: Array) -> Array:
    """A read-only copy of `array`, contiguous and aligned; `array` itself where it is both already."""
    if array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0:
        return array
    copy = writable_copy(array)
    copy.flags.writeable = False
    return copy


def writable_copy(array: Array) -> Array:
    """A copy of `array`, contiguous and aligned, that may be written to."""
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array of no values yet, contiguous and aligned."""
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes].view(dtype).reshape(shape)


SLICE = 1 << 16
"""Elements that are worked on at once where nothing of a tensor's size is to be allocated."""


def descend(parameters: Mapping[str, Array], gradients: Mapping[str, Array], lr: float) -> None:
    """Plain descent in place, p = p - lr g, slice by slice."""
    for name, parameter in parameters.items():
        # Of any floating type, for which numpy's own annotations have no arithmetic in place.
        p: Any = parameter.reshape(-1)
        g: Any = gradients[name].reshape(-1)
        for start in range(0, p.size, SLICE):
            p[start : start + SLICE] -= g[start : start + SLICE] * p.dtype.type(lr)
