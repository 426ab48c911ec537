"""Nothing that a rule emits grows with the square of a size: constants, memory and FLOPs, at one size and at twice it.

The rows of the table are made longer along one axis after another, with all operands that have an axis of that length.
Where the operator itself grows faster (a product of matrices, the scores of attention), its gradient may as well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poetopt.autodiff import differentiate
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, register_vjp, registered, trial_rules
from poetopt.frontends.fold import computed
from poetopt.frontends.proto import node_proto
from poetopt.graph import Node
from poetopt.ops.flops import flops
from poetopt.ops.losses.vjp import ATTACHED
from poetopt.ops.runtimes.onnxruntime import runtime
from poetopt.util.errors import PoetError
from tests.seeds import some
from tests.support.autodiff.specs import Spec, graph_of
from tests.support.autodiff.table import ROWS
from tests.support.each import each

Array = NDArray[Any]

TIMES, SHORT = (90, 180), (6, 12)
"""Beyond all sizes up to which a dense product is taken; recurrent layers are written out step by step."""

INSIDE = {"Attention": "its kernel has the scores too, queries times keys"}
"""Whose temporaries aren't compared, and why."""

MANY_NODES = {"LSTM", "GRU", "RNN"}
INDEXED = {"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"}

ROWS_EACH = len(some(range(6), 2))
"""Of each op."""

MOST = 1.25
"""Of twice the size's share: 2.5 times as much, where the operator itself grows twofold."""

BESIDE = 6_000
"""Bytes and FLOPs that may come and go: shapes, alignment, a node more."""

FIXED = {
    "Conv": "the construction changes with the sizes; see below",
    "Cast": "as the gradient of any element-wise op",
    "Reshape": "a view; the file holds its sizes",
    **dict.fromkeys(ATTACHED, "made by `--loss` alone"),
}


@dataclass(frozen=True)
class Emitted:
    """What the gradient of one operator costs, and the operator itself."""

    constants: int
    temporaries: int
    flops: int
    forward_bytes: int
    forward_flops: int


def emitted(spec: Spec) -> Emitted:
    """Of the operators that the row's rule emits."""
    graph = graph_of(spec, "float32")
    step = differentiate(graph, loss="none")
    backward = [o for o in step.operators if o.backward and o.name.startswith("op.")]
    forward = next(o for o in step.operators if o.name == "op")
    read = {name for o in backward for name in o.inputs}
    return Emitted(
        sum(v.nbytes for name, v in step.values.items() if name in read and name not in graph.values),
        sum(runtime.workspace(o, step.tensors).temporaries_bytes for o in backward if not o.view),
        sum(flops(o, step.tensors) for o in backward),
        sum(step.tensors[name].nbytes for name in {*forward.inputs, *forward.outputs}),
        flops(forward, step.tensors),
    )


def longer(spec: Spec, lead: int, axis: int, times: int) -> list[Spec]:
    """The row with input `lead` so many times as long along `axis`: alone, and with what else may have to follow.

    These are operands that have an axis of that length, floats alone or integers too; with indices all operands,
    along their first axis.
    """
    x = spec.inputs[lead]
    assert x is not None
    length = x.shape[axis]

    def changed(follow: Callable[[Array], Array]) -> Spec:
        others = [a if a is None or not a.ndim else follow(a) for a in spec.inputs]
        return replace(spec, inputs=tuple(_repeated(x, axis, times) if k == lead else a for k, a in enumerate(others)))

    def along(kinds: str, array: Array) -> Array:
        if array.dtype.kind not in kinds or length not in array.shape or length == 1:
            return array
        return _repeated(array, array.shape.index(length), times)

    made = [changed(lambda a: a), changed(lambda a: along("f", a)), changed(lambda a: along("fib", a))]
    if spec.op in INDEXED:
        made.append(changed(lambda a: _repeated(a, 0, times)))
    return made


def _repeated(array: Array, axis: int, times: int) -> Array:
    return np.concatenate([array] * times, axis) if array.ndim else array


def _computes(spec: Spec) -> bool:
    names = [f"i{k}" if a is not None else "" for k, a in enumerate(spec.inputs)]
    feeds = {f"i{k}": a.astype(np.float32) if a.dtype == np.float64 else a
             for k, a in enumerate(spec.inputs) if a is not None}  # fmt: skip
    node = Node(spec.op, tuple(names), tuple(f"y{k}" for k in range(spec.outputs)), spec.attributes)
    found = computed(node_proto(node), feeds, spec.opset)
    return found is not None and all(math.prod(y.shape) for y in found.values())


def growth(spec: Spec, lead: int, axis: int) -> list[dict[str, tuple[int, int, float]]]:
    """What grows too fast: before, after, and what it may be multiplied by; for each way of making the row longer."""
    found = []
    times = SHORT if spec.op in MANY_NODES else TIMES
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for pair in zip(*(longer(spec, lead, axis, n) for n in times), strict=True):
        shapes = tuple(() if a is None else a.shape for a in pair[1].inputs)
        if shapes in seen or not all(map(_computes, pair)):
            continue
        seen.add(shapes)
        try:
            small, large = map(emitted, pair)
        except PoetError:
            continue
        excess = _excess(small, large)
        found.append({name: bad for name, bad in excess.items() if name != "temporaries" or spec.op not in INSIDE})
    return found


def _excess(small: Emitted, large: Emitted) -> dict[str, tuple[int, int, float]]:
    bytes_ratio = large.forward_bytes / max(small.forward_bytes, 1)
    flops_ratio = max(bytes_ratio, large.forward_flops / max(small.forward_flops, 1))
    found = {}
    for name, ratio in (("constants", bytes_ratio), ("temporaries", bytes_ratio), ("flops", flops_ratio)):
        before, after, most = getattr(small, name), getattr(large, name), MOST * max(2.0, ratio)
        if after > most * before + BESIDE:
            found[name] = (before, after, most)
    return found


def chosen(op: str) -> list[Spec]:
    """A few rows of an op, no two with the same settings."""
    found: dict[str, Spec] = {}
    for spec in ROWS:
        if spec.op == op:
            found.setdefault(str((dict(spec.attributes), spec.opset)), spec)
    return list(found.values())[:ROWS_EACH]


def leads(spec: Spec) -> Iterator[tuple[int, int]]:
    """Inputs with a gradient, and their axes."""
    for lead in spec.trained:
        array = spec.inputs[lead]
        if array is not None:
            yield from ((lead, axis) for axis in range(array.ndim))


OPS = sorted({spec.op for spec in ROWS} - FIXED.keys())


@each("op", OPS)
def test_work_and_memory_grow_as_the_operator_does(op: str) -> None:
    found = [(spec.name, place, growth(spec, *place)) for spec in chosen(op) for place in leads(spec)]
    assert any(grown for _, _, grown in found), "no row can be made longer"
    assert not [(name, place, bad) for name, place, grown in found for bad in grown if bad]


def test_every_rule_is_looked_at() -> None:
    assert {op for domain, op in registered() if not domain} == set(OPS) | FIXED.keys()


def test_a_dense_rule_is_found() -> None:
    """A matrix of an axis's length squared: as constants, and as the work of a product with it."""
    row = next(spec for spec in ROWS if spec.op == "Neg")
    assert all(not bad for bad in growth(row, 0, 1))
    with trial_rules():

        @register_vjp("Neg", since=6)
        def dense(op: Primal, cotangents: Cotangents) -> Gradients:
            k, dy = op.emit("grad_input"), op.only(cotangents)
            return (k.gemm(dy, k.graph.constant(-np.eye(dy.shape[1], dtype=dy.dtype))),)

        (found,) = growth(row, 0, 1)
    assert found.keys() == {"constants", "flops"}
