"""Seconds of the kernels of a joint graph: measured one by one on random data, or by FLOPs and bytes.

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
"""Of a kernel that multiplies; with the bytes below, about what one core does. Only their ratio decides."""
BYTES_PER_S = 1e10
"""Of memory that a kernel reads and writes."""
CALL_S = 2e-6
"""Of calling a kernel, however small."""
RUNS, ENOUGH_S = 7, 0.1
"""A kernel runs so often, twice at least, or until its runs took so many seconds; the quickest counts."""
DRAWN = 1 << 16
"""So many elements are drawn at random, and repeated."""

Key = tuple[object, ...]
MEASURED: dict[Key, float | None] = {}
"""Seconds of each kernel that ran in this process; None of one that can't run alone."""


def size_of(size: Any) -> int | None:
    """An integer; of a size that may change from call to call the first call's, None where it depends on data."""
    found = size.node.hint if isinstance(size, torch.SymInt) else size
    return None if found is None else int(found)


def seconds_of(node: fx.Node, measure: bool) -> float:
    """Time of a node's kernel, measured where it can run alone and that is asked for."""
    found = _measured(node) if measure else None
    return _estimated(node) if found is None else found


def _measured(node: fx.Node) -> float | None:
    """Seconds of the quickest of several runs on data of the same shapes, strides and types; each such kernel once."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    values = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    key: Key = (node.target, torch.get_num_threads(), str(tree_map(_form, values)))
    if key not in MEASURED:
        try:
            with apart():
                args, kwargs = tree_map(_real, values)
                MEASURED[key] = quickest(lambda: node.target(*args, **kwargs))  # type: ignore[operator]
        except (RuntimeError, TypeError, ValueError, LookupError, AssertionError):
            MEASURED[key] = None  # as with indices that others have to make
    return MEASURED[key]


@contextmanager
def apart() -> Iterator[None]:
    """Real tensors, whatever torch is tracing, and the random state as it was."""
    with _disable_current_modes(), torch._C._DisableAutocast(), torch.random.fork_rng(), torch.no_grad():
        yield


def quickest(run: Callable[[], Any]) -> float:
    """Seconds of the quickest of several runs."""
    best = spent = math.inf
    for turn in range(1 + RUNS):  # the first finds its memory
        begin = time.perf_counter()
        found = run()
        for device in {value.device for value in tree_leaves(found) if isinstance(value, torch.Tensor)}:
            if device.type != "cpu":
                torch.accelerator.synchronize(device)
        took = time.perf_counter() - begin
        best, spent = (min(best, took), spent + took) if turn else (math.inf, 0.0)
        if turn > 1 and spent > ENOUGH_S:
            break
    return best


class Form(NamedTuple):
    """A fake tensor's sizes and the like, as integers."""

    shape: list[int]
    stride: list[int]
    dtype: torch.dtype
    device: torch.device

    @property
    def elements(self) -> int:
        """As many as its storage needs."""
        return (
            1 + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True)) if all(self.shape) else 0
        )


def _form(value: Any) -> Any:
    """A tensor's form; a number as it is planned for. Raises ModelError where it depends on data."""
    if isinstance(value, torch.Tensor):
        shape, stride = ([_form(n) for n in sizes] for sizes in (value.shape, value.stride()))
        return Form(shape, stride, value.dtype, value.device)
    if not isinstance(value, torch.SymInt):
        return value
    found = size_of(value)
    if found is None:
        raise ModelError(f"a size of {value}: sizes that depend on the data can't be planned for")
    return found


def _real(value: Any) -> Any:
    """A tensor like a fake one; indices are 0, which is right wherever there are any."""
    value = _form(value)
    if not isinstance(value, Form):
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
    """Time of a kernel by its FLOPs and the bytes that it reads and writes."""
    values = tree_leaves([n.meta.get("val") for n in (node, *node.all_input_nodes)])
    forms = [_form(value) for value in values if isinstance(value, torch.Tensor)]
    moved = sum(math.prod(form.shape) * form.dtype.itemsize for form in forms)
    return CALL_S + float(moved) / BYTES_PER_S + _flops(node) / FLOP_PER_S


def _flops(node: fx.Node) -> float:
    """Multiplications and additions, where torch counts them; an element's few otherwise."""
    count = flop_registry.get(getattr(node.target, "_overloadpacket", None))
    if count is None:
        return 0.0
    values = fx.map_arg((node.args, node.kwargs, node), lambda n: n.meta.get("val"))
    try:
        with _disable_current_modes():
            args, kwargs, out = tree_map(_hollow, values)
            found = float(count(*args, **kwargs, out_val=out))
    except (TypeError, ValueError, AssertionError, IndexError):
        return 0.0  # a form that torch's formula doesn't know; its bytes count
    return found if math.isfinite(found) else 0.0


def _hollow(value: Any) -> Any:
    """A tensor without data, of the sizes that are planned for."""
    value = _form(value)
    return (
        torch.empty_strided(value.shape, value.stride, dtype=value.dtype, device="meta")
        if isinstance(value, Form)
        else value
    )
