"""Where an operator's temporaries and its kernels' memory lie."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import poetopt as po
from poetopt.graph import Node, Operator, Role, Tensor
from poetopt.ops.nodes import is_inner_view
from poetopt.ops.runtimes import workspace
from poetopt.ops.runtimes.onnxruntime import runtime
from poetopt.ops.runtimes.onnxruntime.kernels import kernel_bytes
from poetopt.util.errors import ModelError


def tensors(**shapes: Sequence[int]) -> dict[str, Tensor]:
    return {name: Tensor(name, tuple(shape), "float32", Role.GRADIENT) for name, shape in shapes.items()}


def operator(nodes: Sequence[Node], inputs: str, outputs: str) -> Operator:
    return Operator("o", "Test", tuple(nodes), tuple(inputs.split()), tuple(outputs.split()))


def node(op: str, inputs: str, outputs: str, **attributes: object) -> Node:
    return Node(op, tuple(inputs.split()), tuple(outputs.split()), attributes)


def test_one_plain_node_needs_nothing() -> None:
    relu = operator([node("Relu", "x", "y")], "x", "y")
    layout = runtime.workspace(relu, tensors(x=(100,), y=(100,)))
    assert (layout.offsets, layout.kernel_bytes, layout.total_bytes) == ({}, (0,), 0)


def test_temporaries_live_from_writer_to_last_reader() -> None:
    """a and c never live together, so they share bytes; b lives with both. None fits into the output."""
    chain = operator(
        [node("Gelu", "x", "a"), node("Gelu", "a", "b"), node("Sign", "b", "c"), node("Mod", "b c", "y")], "x", "y"
    )
    layout = runtime.workspace(chain, tensors(x=(64,), a=(64,), b=(64,), c=(64,), y=(32,)))
    assert layout.total_bytes == layout.temporaries_bytes == 2 * 256
    assert layout.offsets["a"] == layout.offsets["c"] != layout.offsets["b"]


def test_temporaries_lie_in_an_output_until_it_is_written() -> None:
    """a is read before y is written, and lies in it; c is smaller, and too early for a; b is read as y is written."""
    chain = operator(
        [
            node("Gelu", "x", "c"), node("Gelu", "c", "a"), node("Gelu", "a", "b"), node("Mod", "b x", "y"),
            node("Gelu", "y", "z"),
        ],
        "x", "y z",
    )  # fmt: skip
    found = tensors(x=(64,), a=(64,), b=(64,), c=(32,), y=(64,), z=(16,))
    layout = runtime.workspace(chain, found)
    assert dict(layout.storage) == {"a": "y"}
    assert layout.offsets["b"] == layout.offsets["c"] == 0
    assert layout.temporaries_bytes == 256


def test_no_temporary_lies_in_an_output_whose_bytes_somebody_needs() -> None:
    """Not in what is written over an old value, nor in the resident region, nor where a view's source is."""
    chain = operator([node("Gelu", "x", "a"), node("ReduceSum", "a", "s"), node("Mod", "x s", "y")], "x", "y")
    found = tensors(x=(64,), a=(64,), s=(1,), y=(64,))
    assert runtime.workspace(chain, found).temporaries_bytes == 4
    assert runtime.workspace(replace(chain, updates=(("x", "y"),)), found).temporaries_bytes == 256 + 4
    assert runtime.workspace(replace(chain, over="x"), found).temporaries_bytes == 256 + 4
    kept = {**found, "y": replace(found["y"], role=Role.PARAMETER_GRADIENT)}
    assert runtime.workspace(chain, kept).temporaries_bytes == 256 + 4


def test_views_share_their_temporary() -> None:
    found = tensors(x=(8, 8), a=(8, 8), b=(64,), c=(64,), y=(4, 16))
    views = operator(
        [node("Relu", "x", "a"), node("Reshape", "a", "b"), node("Sign", "b", "c"), node("Reshape", "c", "y")], "x", "y"
    )
    layout = runtime.workspace(views, found)
    # c is the output's storage, so only a (and b with it) is in the workspace
    assert set(layout.offsets) == {"a", "b"}
    assert layout.offsets["a"] == layout.offsets["b"]
    assert layout.total_bytes == layout.temporaries_bytes == 256


def test_elementwise_nodes_write_over_what_nobody_reads_again() -> None:
    """b is read twice, so c has a place of its own; then everything happens in the output."""
    chain = operator(
        [node("Relu", "x", "a"), node("Exp", "a", "b"), node("Neg", "b", "c"), node("Mul", "b c", "y")], "x", "y"
    )
    layout = runtime.workspace(chain, tensors(x=(64,), a=(64,), b=(64,), c=(64,), y=(64,)))
    assert (layout.storage["a"], layout.storage["b"]) == ("y", "y")
    assert set(layout.offsets) == {"c"}
    assert layout.temporaries_bytes == 256


def test_what_is_not_written_over() -> None:
    """An input; an operand that is broadcast; one of several outputs; an op that reads ahead."""
    found = tensors(x=(8, 8), a=(1, 8), b=(8, 8), c=(8, 8), y=(8, 8), z=(8, 8))
    assert runtime.workspace(operator([node("Relu", "x", "y")], "x", "y"), found).storage == {}
    row = operator([node("Neg", "a", "a2"), node("Add", "a2 x", "y")], "a x", "y")
    assert runtime.workspace(row, {**found, **tensors(a2=(1, 8))}).storage == {}
    both = operator([node("Relu", "x", "y"), node("Exp", "y", "z")], "x", "y z")
    assert runtime.workspace(both, found).storage == {}
    ahead = operator([node("Relu", "x", "b"), node("CumSum", "b a", "y")], "x a", "y")
    assert runtime.workspace(ahead, found).storage == {}


def test_an_output_that_nobody_wants_is_a_temporary() -> None:
    split = operator([node("Split", "x", "y junk")], "x", "y")
    layout = runtime.workspace(split, tensors(x=(32,), y=(16,), junk=(16,)))
    assert set(layout.offsets) == {"junk"}
    assert layout.total_bytes == 64


def test_a_kernel_s_memory_lies_beside_what_lives_with_it() -> None:
    """The softmax over the first axis transposes twice while its temporary input lives."""
    soft = operator([node("Relu", "x", "a"), node("Softmax", "a", "y", axis=0)], "x", "y")
    layout = runtime.workspace(soft, tensors(x=(8, 16), a=(8, 16), y=(8, 16)))
    assert layout.kernel_bytes == (0, 2 * 512)
    assert (layout.temporaries_bytes, layout.total_bytes) == (512, 3 * 512)
    start = layout.kernel_offsets[1]
    assert layout.offsets["a"] + 512 <= start or start + 1024 <= layout.offsets["a"]


def test_an_absent_input_is_no_tensor() -> None:
    clip = operator([Node("Clip", ("x", "", "hi"), ("y",))], "x hi", "y")
    assert runtime.workspace(clip, tensors(x=(4,), hi=(), y=(4,))).temporaries_bytes == 0


def test_a_missing_temporary_is_named() -> None:
    chain = operator([node("Relu", "x", "a"), node("Relu", "a", "y")], "x", "y")
    with pytest.raises(ModelError, match=r"operator 'o', node 'Relu' .*: the tensor 'a' is not in the graph"):
        runtime.workspace(chain, tensors(x=(4,), y=(4,)))


@st.composite
def operators(draw: st.DrawFn) -> tuple[Operator, dict[str, Tensor]]:
    """Random operators of several nodes; the last tensor and perhaps others are outputs."""
    found = tensors(x0=(draw(st.integers(1, 40)),))
    nodes: list[Node] = []
    names = ["x0"]
    for k in range(draw(st.integers(1, 7))):
        reads = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
        name = f"t{k}"
        if draw(st.booleans()):
            nodes.append(Node("Reshape", (reads[0],), (name,)))
            found[name] = Tensor(name, found[reads[0]].shape, "float32", Role.GRADIENT)
        else:
            kind = draw(st.sampled_from(["Add", "Mul", "Where", "Dropout"]))
            nodes.append(Node(kind, tuple((reads * 3)[:3]) if kind == "Where" else tuple(reads), (name,)))
            size = draw(st.sampled_from([found[reads[0]].size, draw(st.integers(1, 40))]))
            found[name] = Tensor(name, (size,), "float32", Role.GRADIENT)
        names.append(name)
    extra = draw(st.sets(st.sampled_from(names[1:])))
    outputs = tuple(name for name in names[1:] if name in extra or name == names[-1])
    return Operator("o", "Test", tuple(nodes), ("x0",), outputs), found


@given(case=operators(), alignment=st.sampled_from([1, 16, 64]))
def test_what_lives_together_never_overlaps(case: tuple[Operator, dict[str, Tensor]], alignment: int) -> None:
    found, known = case
    layout = runtime.workspace(found, known, alignment)
    group = layout.storage
    outside = {*found.inputs, *found.outputs}
    inside = {n for part in found.nodes for n in part.outputs if group.get(n, n) not in outside}
    assert set(layout.offsets) == inside
    for k, part in enumerate(found.nodes):
        alive: dict[str, tuple[int, int]] = {}
        for name in inside:
            root = group.get(name, name)
            users = [
                i
                for i, other in enumerate(found.nodes)
                if any(group.get(used, used) == root for used in (*other.inputs, *other.outputs))
            ]
            if users[0] <= k <= users[-1]:
                alive[root] = (layout.offsets[name], layout.offsets[name] + known[root].nbytes)
        need = layout.kernel_bytes[k]
        if is_inner_view(part, group):
            assert need == 0
        else:
            assert need == kernel_bytes(part, [known[n] for n in part.inputs], [known[n] for n in part.outputs])
        start = layout.kernel_offsets[k]
        spans = sorted([*alive.values(), *([(start, start + need)] if need else [])])
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert all(start % alignment == 0 and end <= layout.total_bytes for start, end in spans)
        assert all(end <= layout.temporaries_bytes for _, end in alive.values())
    assert runtime.workspace(found, known, alignment).temporaries_bytes == layout.temporaries_bytes


@given(case=operators())
def test_nothing_is_written_over_before_it_is_read(case: tuple[Operator, dict[str, Tensor]]) -> None:
    """Walk the nodes with memory that remembers whose value it holds."""
    found, known = case
    group = runtime.workspace(found, known).storage
    memory = {name: name for name in found.inputs}
    value = dict(memory)
    for part in found.nodes:
        for name in part.inputs:
            assert memory[group.get(name, name)] == value[name]
        (written,) = part.outputs
        value[written] = value[part.inputs[0]] if is_inner_view(part, group) else written
        memory[group.get(written, written)] = value[written]
    for name in (*found.inputs, *found.outputs):
        assert memory[group.get(name, name)] == value[name]


@given(case=operators(), alignment=st.sampled_from([1, 16, 64]))
def test_a_kernel_lies_as_low_as_it_can(case: tuple[Operator, dict[str, Tensor]], alignment: int) -> None:
    found, known = case
    layout = runtime.workspace(found, known, alignment)
    users: dict[str, list[int]] = {}
    for k, part in enumerate(found.nodes):
        for name in (*part.inputs, *part.outputs):
            users.setdefault(layout.storage.get(name, name), []).append(k)
    for k, need in enumerate(layout.kernel_bytes):
        alive = [
            (layout.offsets[name], layout.offsets[name] + known[name].nbytes)
            for name, times in users.items()
            if name in layout.offsets and min(times) <= k <= max(times)
        ]
        free = [
            place
            for place in range(0, max([0, *(end for _, end in alive)]) + alignment, alignment)
            if all(place + need <= start or end <= place for start, end in alive)
        ]
        assert layout.kernel_offsets[k] == (min(free) if need else 0)


def test_a_long_chain_has_one_buffer() -> None:
    count = 3000
    found = tensors(x=(16,), **{f"t{k}": (16,) for k in range(count)}, y=(8,))
    nodes = [node("Neg", f"t{k - 1}" if k else "x", f"t{k}") for k in range(count)]
    chain = operator([*nodes, node("Slice", f"t{count - 1}", "y")], "x", "y")
    layout = runtime.workspace(chain, found)
    assert set(layout.storage.values()) == {f"t{count - 1}"}
    assert len(layout.storage) == count - 1
    assert set(layout.offsets.values()) == {0}
    assert layout.temporaries_bytes == 64


TAPS = """<ir_version: 8, opset_import: ["" : 17]>
cnn (float[8, 4, 32, 32] x) => (float[8, 8, 16, 16] y) {
  c = Conv <strides = [2, 2], pads = [1, 1, 1, 1]> (x, w)
  y = Relu(c)
}"""


def test_temporaries_of_a_convolution_tap_by_tap_are_packed_in_little_work() -> None:
    """Every reading of a plan packs them anew: 105 of them took four million calls, half a million each second."""
    model = onnx.parser.parse_model(TAPS)
    weight = np.random.default_rng(0).standard_normal((8, 4, 3, 3)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    graph = po.load(model).differentiate(loss="mse")
    graph.cost(po.device("a72"))  # what is imported and found once
    workspace._packed.cache_clear()
    calls = 0

    def counted(frame: object, event: str, called: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        graph.cost(po.device("a72"))
    finally:
        sys.setprofile(before)
    assert 0 < calls < 500_000
