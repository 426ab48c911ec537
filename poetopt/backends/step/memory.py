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
"""Alignment of every buffer, in bytes. Kernels that sum in vector registers round by the alignment of their input,
so two runs agree bit by bit only where all buffers are aligned alike. onnxruntime's own allocator uses 64, too.
"""

PIECE = 2**20
"""Bytes of a file that are in memory at once during a copy."""

POISON = 0xFF
"""Byte that overwrites freed memory while a plan is checked: NaN as a float, -1 as an integer."""


def numpy_dtype(dtype: str) -> np.dtype[np.generic]:
    """Return numpy's type for a tensor's `dtype`.

    Types that numpy itself lacks (bfloat16) come from the onnx library; packed types are bytes.
    """
    if dtype in PACKED:
        return np.dtype(np.uint8)
    try:
        return np.dtype(dtype)
    except TypeError:
        from onnx.helper import tensor_dtype_to_np_dtype

        from poetopt.frontends.proto import elem_type

        converted: np.dtype[np.generic] = np.dtype(tensor_dtype_to_np_dtype(elem_type(dtype)))
        return converted


class MappedBlock:
    """Block of `nbytes` bytes, zero at first, that starts at a page."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self._map = mmap.mmap(-1, max(nbytes, 1))
        self.bytes: NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)[:nbytes]
        self.address = int(self.bytes.ctypes.data)

    def give_back(self) -> None:
        """Release the memory to the system until it is touched again. Its contents are lost."""
        if hasattr(mmap, "MADV_REMOVE"):  # the mapping is shared; other advice frees none of it
            with suppress(OSError):
                self._map.madvise(mmap.MADV_REMOVE)

    def span(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """Return the `nbytes` bytes that begin at `offset`, without a copy."""
        return self.bytes[offset : offset + nbytes]

    def view(self, offset: int, tensor: Tensor) -> Array:
        """Return `tensor` at `offset`, without a copy."""
        return self.span(offset, tensor.nbytes).view(numpy_dtype(tensor.dtype)).reshape(tensor.array_shape)


def pack_apart(tensors: Iterable[Tensor]) -> tuple[Mapping[str, Array], MappedBlock]:
    """Return a view of each tensor in a new block, side by side, and the block."""
    offsets: dict[str, tuple[int, Tensor]] = {}
    end = 0
    for tensor in tensors:
        offsets[tensor.name] = (end, tensor)
        end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
    block = MappedBlock(end)
    return {name: block.view(offset, tensor) for name, (offset, tensor) in offsets.items()}, block


def copy_mapped(target: Array, source: Array) -> None:
    """Copy like `np.copyto`, with at most `PIECE` bytes of a mapped file in memory."""
    if not (source.flags.c_contiguous and target.flags.c_contiguous):
        np.copyto(target, source)
        return
    to, at = target.reshape(-1).view(np.uint8), 0
    for piece in pieces(source.reshape(-1).view(np.uint8)):
        to[at : at + piece.size] = piece
        at += piece.size


def pieces(source: NDArray[np.uint8]) -> Iterator[NDArray[np.uint8]]:
    """Yield all bytes of `source` in order; those of a mapped file piece by piece, with one piece in memory."""
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
    """Return the bytes of an array; a contiguous array isn't copied."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def aligned_copy(array: Array) -> Array:
    """Return a read-only, contiguous and aligned copy of `array`; `array` itself where it is both already."""
    if array.flags.c_contiguous and array.ctypes.data % ALIGNMENT == 0:
        return array
    copy = writable_copy(array)
    copy.flags.writeable = False
    return copy


def writable_copy(array: Array) -> Array:
    """Return a writable copy of `array`, contiguous and aligned."""
    copy = aligned_empty(array.shape, array.dtype)
    copy[...] = array
    return copy


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an uninitialized array, contiguous and aligned."""
    nbytes = math.prod(shape) * dtype.itemsize
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes].view(dtype).reshape(shape)


SLICE = 1 << 16
"""Elements per slice of an update in place, so that no memory of a tensor's size is allocated."""


def descend(parameters: Mapping[str, Array], gradients: Mapping[str, Array], lr: float) -> None:
    """Update `parameters` in place by plain gradient descent, p = p - lr g, slice by slice."""
    for name, parameter in parameters.items():
        # any floating type: numpy's annotations have no arithmetic in place for it
        p: Any = parameter.reshape(-1)
        g: Any = gradients[name].reshape(-1)
        for start in range(0, p.size, SLICE):
            p[start : start + SLICE] -= g[start : start + SLICE] * p.dtype.type(lr)
