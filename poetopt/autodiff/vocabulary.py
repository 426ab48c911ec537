"""The vocabulary of the gradient rules: thin wrappers of ONNX ops that compute the output shape themselves.

A wrapper writes no node that would do nothing (a product with one, a sum over no axes, a cast to the same type).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from poetopt.graph import Tensor

if TYPE_CHECKING:
    from poetopt.autodiff.emit import GraphBuilder


def normalized(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Return `axes` as ascending, distinct, non-negative numbers."""
    return tuple(sorted({axis % rank for axis in axes}))


class Vocabulary(ABC):
    """Methods by which a rule writes nodes into an operator; each returns the tensor that its node writes."""

    graph: GraphBuilder
    name: str

    @abstractmethod
    def node(
        self, op_type: str, inputs: Sequence[Tensor | None], shape: Sequence[int], dtype: str, **attributes: object
    ) -> Tensor:
        """Append a node with one output of this shape and type."""

    # --- element-wise ------------------------------------------------------------------------------

    def unary(self, op_type: str, x: Tensor, **attributes: object) -> Tensor:
        """Write an element-wise op of one input."""
        return self.node(op_type, [x], x.shape, x.dtype, **attributes)

    def binary(self, op_type: str, a: Tensor, b: Tensor, dtype: str | None = None) -> Tensor:
        """Write an element-wise op of two inputs that broadcast."""
        return self.node(op_type, [a, b], np.broadcast_shapes(a.shape, b.shape), dtype or a.dtype)

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """Write a + b."""
        return self.binary("Add", a, b)

    def sub(self, a: Tensor, b: Tensor) -> Tensor:
        """Write a - b."""
        return self.binary("Sub", a, b)

    def mul(self, a: Tensor | float, b: Tensor | float) -> Tensor:
        """Write a * b; a factor of one needs no node, and the product of constants is a constant."""
        if not isinstance(a, Tensor):
            a, b = b, a
        if not isinstance(a, Tensor):
            raise TypeError("one factor must be a tensor")
        other = b if isinstance(b, Tensor) else self.graph.scalar(b, a.dtype)
        shape = np.broadcast_shapes(a.shape, other.shape)
        for factor, product in ((other, a), (a, other)):
            if product.shape == shape and self.graph.is_constant(factor, 1.0):
                return product
        left, right = self.graph.constant_value(a), self.graph.constant_value(other)
        if left is not None and right is not None and a.size * other.size <= 4096:
            return self.graph.constant(np.multiply(left, right))
        return self.binary("Mul", a, other)

    def div(self, a: Tensor, b: Tensor) -> Tensor:
        """Write a / b."""
        return self.binary("Div", a, b)

    def neg(self, x: Tensor) -> Tensor:
        """Write -x."""
        return self.unary("Neg", x)

    def sign(self, x: Tensor) -> Tensor:
        """Write the sign: -1, 0 or 1."""
        return self.unary("Sign", x)

    def compare(self, op_type: str, a: Tensor, b: Tensor | float) -> Tensor:
        """Write a comparison (Greater, Less, Equal, ...), whose result is a bool tensor."""
        other = b if isinstance(b, Tensor) else self.graph.scalar(b, a.dtype)
        return self.binary(op_type, a, other, "bool")

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """Write x with elements of type `dtype`."""
        from poetopt.frontends.proto import elem_type  # imported here so that running a plan doesn't import onnx

        return x if x.dtype == dtype else self.node("Cast", [x], x.shape, dtype, to=elem_type(dtype))

    def where(self, condition: Tensor, a: Tensor, b: Tensor | float) -> Tensor:
        """Write a where `condition` holds, else b.

        Use it for small tensors only: the kernel's workspace is twice the output.
        """
        other = b if isinstance(b, Tensor) else self.graph.scalar(b, a.dtype)
        shape = np.broadcast_shapes(condition.shape, a.shape, other.shape)
        return self.node("Where", [condition, a, other], shape, a.dtype)

    # --- shapes ------------------------------------------------------------------------------------

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Write x under another shape; -1 and a 0 that means "keep" are not allowed."""
        new_shape = tuple(int(d) for d in shape)
        if x.shape == new_shape:
            return x
        if math.prod(new_shape) != x.size:
            raise ValueError(f"{self.name}: {x.name} of shape {x.shape} can't be reshaped to {new_shape}")
        attributes = {"allowzero": 1} if self.graph.opset >= 14 and 0 in new_shape else {}
        return self.node("Reshape", [x, self.graph.ints(new_shape)], new_shape, x.dtype, **attributes)

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        """Write x with its axes in the order `perm`; where only axes of length one move, a reshape does it."""
        shape = tuple(x.shape[axis] for axis in perm)
        moved_axes = [axis for axis in perm if x.shape[axis] != 1]
        if moved_axes == sorted(moved_axes):
            return self.reshape(x, shape)
        return self.node("Transpose", [x], shape, x.dtype, perm=list(perm))

    def slice(
        self, x: Tensor, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int],
        steps: Sequence[int] | None = None,
    ) -> Tensor:  # fmt: skip
        """Write x[starts:ends:steps] along `axes`, with 0 <= start < end <= length and steps > 0."""
        strides = list(steps) if steps is not None else [1] * len(axes)
        shape, kept = list(x.shape), []
        for k, axis in enumerate(axes):
            if (starts[k], ends[k], strides[k]) != (0, x.shape[axis], 1):
                shape[axis] = len(range(starts[k], ends[k], strides[k]))
                kept.append(k)
        if not kept:
            return x
        ints = self.graph.ints
        inputs = [x, ints(starts[k] for k in kept), ints(ends[k] for k in kept), ints(axes[k] for k in kept)]
        if any(strides[k] != 1 for k in kept):
            inputs.append(ints(strides[k] for k in kept))
        return self.node("Slice", inputs, shape, x.dtype)

    def flip(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """Write x in reverse order along `axes`."""
        along = [axis for axis in axes if x.shape[axis] > 1]
        if not along:
            return x
        ints = self.graph.ints
        inputs = [x, ints([-1] * len(along)), ints([-(2**63) + 1] * len(along)), ints(along), ints([-1] * len(along))]
        return self.node("Slice", inputs, x.shape, x.dtype)

    def concat(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """Write `parts` concatenated along `axis`."""
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.node("Concat", parts, shape, parts[0].dtype, axis=axis)

    def pad(self, x: Tensor, before: Sequence[int], after: Sequence[int]) -> Tensor:
        """Write x with zeros around it; a negative number crops."""
        if not any(before) and not any(after):
            return x
        shape = [b + d + a for b, d, a in zip(before, x.shape, after, strict=True)]
        return self.node("Pad", [x, self.graph.ints((*before, *after))], shape, x.dtype)

    def expand(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Write x repeated along its axes of length one."""
        return x if x.shape == tuple(shape) else self.node("Expand", [x, self.graph.ints(shape)], shape, x.dtype)

    def zeros(self, shape: Sequence[int], dtype: str) -> Tensor:
        """Write a tensor of zeros, filled at run time so that no constant takes up the resident region."""
        value = np.zeros(1, dtype)
        return self.node("ConstantOfShape", [self.graph.ints(shape)], shape, dtype, value=value)

    def scatter_add(self, data: Tensor, indices: Tensor, updates: Tensor, axis: int) -> Tensor:
        """Write `data` with `updates` added at `indices` along `axis`; unlike ScatterND's, it has no races."""
        return self.scatter(data, indices, updates, axis, "add")

    def scatter(self, data: Tensor, indices: Tensor, updates: Tensor, axis: int, reduction: str) -> Tensor:
        """Write a scatter with the reduction `add` or `mul`.

        Half precision is computed in float32, as onnxruntime has neither reduction for it.
        """
        dtype = "float32" if data.dtype in {"float16", "bfloat16"} else data.dtype
        operands = [self.cast(data, dtype), indices, self.cast(updates, dtype)]
        return self.cast(
            self.node("ScatterElements", operands, data.shape, dtype, axis=axis, reduction=reduction), data.dtype
        )

    # --- sums and products -------------------------------------------------------------------------

    def reduce_sum(self, x: Tensor, axes: Sequence[int], *, keepdims: bool = True) -> Tensor:
        """Write the sum over `axes`."""
        summed = normalized(axes, len(x.shape)) if axes else ()
        kept = [1 if axis in summed else d for axis, d in enumerate(x.shape)]
        shape = kept if keepdims else [d for axis, d in enumerate(x.shape) if axis not in summed]
        if all(x.shape[axis] == 1 for axis in summed):
            return self.reshape(x, shape)
        return self.node("ReduceSum", [x, self.graph.ints(summed)], shape, x.dtype, keepdims=int(keepdims))

    def sum_to(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Write x summed over the axes along which `shape` was broadcast to x's shape."""
        if x.shape == tuple(shape):
            return x
        extra = len(x.shape) - len(shape)
        axes = [*range(extra), *(extra + k for k, d in enumerate(shape) if d == 1 and x.shape[extra + k] != 1)]
        return self.reshape(self.reduce_sum(x, axes), shape)

    def gemm(
        self, a: Tensor, b: Tensor, c: Tensor | None = None, *, alpha: float = 1.0, trans_a: bool = False,
        trans_b: bool = False,
    ) -> Tensor:  # fmt: skip
        """Write alpha a' b' + c for matrices, where a prime is an optional transpose."""
        shape = (a.shape[1 if trans_a else 0], b.shape[0 if trans_b else 1])
        attributes: dict[str, object] = {}
        if alpha != 1.0:
            attributes["alpha"] = float(alpha)
        if trans_a:
            attributes["transA"] = 1
        if trans_b:
            attributes["transB"] = 1
        return self.node("Gemm", [a, b] if c is None else [a, b, c], shape, a.dtype, **attributes)

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """Write the (batched) matrix product of tensors of rank two or more."""
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        return self.node("MatMul", [a, b], (*batch, a.shape[-2], b.shape[-1]), a.dtype)

    def conv(
        self, x: Tensor, w: Tensor, *, strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int],
        group: int = 1,
    ) -> Tensor:  # fmt: skip
        """Write a convolution without bias; `pads` is (before..., after...) of the spatial axes."""
        rank = len(x.shape) - 2
        spatial = [
            (x.shape[2 + k] + pads[k] + pads[rank + k] - dilations[k] * (w.shape[2 + k] - 1) - 1) // strides[k] + 1
            for k in range(rank)
        ]
        attributes: dict[str, object] = {
            "strides": list(strides), "dilations": list(dilations), "pads": list(pads),
            "kernel_shape": list(w.shape[2:]), "group": group,
        }  # fmt: skip
        return self.node("Conv", [x, w], (x.shape[0], w.shape[0], *spatial), x.dtype, **attributes)
