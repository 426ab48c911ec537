"""Where an operator's temporaries and its kernels' memory lie."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from poetopt.graph import Node, Operator, Role, Tensor
from poetopt.ops.nodes import is_inner_view
from poetopt.ops.runtimes.onnxruntime import runtime
from poetopt.ops.runtimes.onnxruntime.kernels import kernel_bytes


def tensors(**shapes: Sequence[int]) -> dict[str, Tensor]:
    return {name: Tensor(name, tuple(shape), "float32", Role.GRADIENT) for name, shape in shapes.items()}


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
