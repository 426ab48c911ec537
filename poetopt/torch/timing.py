"""Seconds of the kernels of a joint graph: measured one by one on random data, or estimated by FLOPs and bytes.

Imports torch: only `po.torch.compile` and `po.torch.plan` import it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from poetopt.util.errors import ModelError

FLOP_PER_S = 5e10
"""Assumed rate of a kernel that multiplies; with the bytes below, about that of one core. Only their ratio matters."""
BYTES_PER_S = 1e10
"""Assumed rate of a kernel's reads and writes."""
CALL_S = 2e-6
"""Assumed fixed cost of a kernel."""
RUNS, ENOUGH_S = 7, 0.1
"""Maximum number of runs of a kernel (at least two), and seconds after which they end; the fastest counts."""
DRAWN = 1 << 16
"""Number of random elements, which are repeated for larger tensors."""

Key = tuple[object, ...]
MEASURED: dict[Key, float | None] = {}
"""Measured seconds of each kernel in this process; None for one that can't run alone."""


def size_of(size: Any) -> int | None:
    """Return a size as an integer: that of the first call if it varies, None if it depends on data."""
    value = size.node.hint if isinstance(size, torch.SymInt) else size
    return None if value is None else int(value)


def seconds_of(node: fx.Node, measure: bool) -> float:
    """Return the time of a node's kernel, measured if requested and possible, else estimated."""
    measured_s = _measured(node) if measure else None
    return _estimated(node) if measured_s is None else measured_s


def _measured(node: fx.Node) -> float | None:
    """Return seconds of the fastest of several runs on data of the same shapes, strides and types, or None.

    Each such kernel is measured once.
    """
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    values = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    key: Key = (node.target, torch.get_num_threads(), str(tree_map(_layout_of, values)))
    if key not in MEASURED:
        try:
            with apart():
                args, kwargs = tree_map(_random_tensor, values)
                MEASURED[key] = quickest(lambda: node.target(*args, **kwargs))  # type: ignore[operator]
        except (RuntimeError, TypeError, ValueError, LookupError, AssertionError):
            MEASURED[key] = None  # for example, a kernel that needs valid indices
    return MEASURED[key]


@contextmanager
def apart() -> Iterator[None]:
    """Run with real tensors outside of torch's tracing, and restore the random state."""
    with _disable_current_modes(), torch._C._DisableAutocast(), torch.random.fork_rng(), torch.no_grad():
        yield


def quickest(run: Callable[[], Any]) -> float:
    """Return seconds of the fastest of several runs."""
    fastest_s = spent_s = math.inf
    for turn in range(1 + RUNS):  # the first run allocates memory, and doesn't count
        begin_s = time.perf_counter()
        outputs = run()
        for device in {value.device for value in tree_leaves(outputs) if isinstance(value, torch.Tensor)}:
            if device.type != "cpu":
                torch.accelerator.synchronize(device)
        elapsed_s = time.perf_counter() - begin_s
        fastest_s, spent_s = (min(fastest_s, elapsed_s), spent_s + elapsed_s) if turn else (math.inf, 0.0)
        if turn > 1 and spent_s > ENOUGH_S:
            break
    return fastest_s


class TensorLayout(NamedTuple):
    """Sizes, strides, type and device of a fake tensor, as integers."""

    shape: list[int]
    stride: list[int]
    dtype: torch.dtype
    device: torch.device

    @property
    def elements(self) -> int:
        """Number of elements of its storage."""
        return (
            1 + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True)) if all(self.shape) else 0
        )


def _layout_of(value: Any) -> Any:
    """Return a tensor's form, or a size's planned value. Raises ModelError for a size that depends on data."""
    if isinstance(value, torch.Tensor):
        shape, stride = ([_layout_of(n) for n in sizes] for sizes in (value.shape, value.stride()))
        return TensorLayout(shape, stride, value.dtype, value.device)
    if not isinstance(value, torch.SymInt):
        return value
    planned = size_of(value)
    if planned is None:
        raise ModelError(f"a size is {value}: sizes that depend on the data can't be planned for")
    return planned


def _random_tensor(value: Any) -> Any:
    """Return a real tensor like a fake one; indices are 0, which is always valid."""
    value = _layout_of(value)
    if not isinstance(value, TensorLayout):
        return value
    count = value.elements
    if value.dtype.is_floating_point:
        drawn = torch.rand(min(count, DRAWN), device=value.device).to(value.dtype)
        flat = drawn.repeat(-(-count // DRAWN)) if count > DRAWN else drawn
    elif value.dtype is torch.bool:
        flat = torch.arange(count, device=value.device) % 2 == 0
    else:
        flat = torch.zeros(count, dtype=value.dtype, device=value.device)
    return flat.as_strided(value.shape, value.stride)


def _estimated(node: fx.Node) -> float:
    """Return the time of a kernel by its FLOPs, and the bytes that it reads and writes."""
    values = tree_leaves([n.meta.get("val") for n in (node, *node.all_input_nodes)])
    forms = [_layout_of(value) for value in values if isinstance(value, torch.Tensor)]
    moved_bytes = sum(math.prod(form.shape) * form.dtype.itemsize for form in forms)
    return CALL_S + float(moved_bytes) / BYTES_PER_S + _flops(node) / FLOP_PER_S


def _flops(node: fx.Node) -> float:
    """Return the FLOPs of a kernel if torch counts them, else 0."""
    count = flop_registry.get(getattr(node.target, "_overloadpacket", None))
    if count is None:
        return 0.0
    values = fx.map_arg((node.args, node.kwargs, node), lambda n: n.meta.get("val"))
    try:
        with _disable_current_modes():
            args, kwargs, out = tree_map(_meta_tensor, values)
            flops = float(count(*args, **kwargs, out_val=out))
    except (TypeError, ValueError, AssertionError, IndexError):
        return 0.0  # torch's formula doesn't cover this call; its bytes still count
    return flops if math.isfinite(flops) else 0.0


def _meta_tensor(value: Any) -> Any:
    """Return a tensor without data, of the planned size."""
    value = _layout_of(value)
    return (
        torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device="meta")
        if isinstance(value, TensorLayout)
        else value
    )
