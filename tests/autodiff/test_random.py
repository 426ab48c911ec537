"""Random configurations of what has many: convolutions, pools, broadcasting; in float32, against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from poetopt.autodiff import differentiate
from poetopt.autodiff.emit import GraphBuilder, finish
from poetopt.graph import Graph, Role, Tensor
from poetopt.ops.convolution import vjp, vjp_weight
from poetopt.ops.convolution.windows import Window
from tests.autodiff.oracle import run
from tests.autodiff.specs import Spec, distinct, graph_of, normal, weights_of
from tests.later import ALL_USE_TORCH, later
from tests.seeds import examples

torch = later("torch")
pytestmark = ALL_USE_TORCH
Array = NDArray[Any]


def near(got: Array, want: Array) -> bool:
    """To float32's rounding of a sum."""
    return bool(np.linalg.norm(got.astype(float) - want) <= 1e-5 * max(1.0, float(np.linalg.norm(want))))


@st.composite
def windows(draw: st.DrawFn, rank: int, *, pool: bool = False) -> tuple[Window, bool]:
    """A window with at least one position; pads below the kernel for pools."""
    kernel = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    strides = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    dilations = (1,) * rank if pool else tuple(draw(st.integers(1, 2)) for _ in range(rank))
    reach = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    before = tuple(draw(st.integers(0, k // 2 if pool else r + 1)) for k, r in zip(kernel, reach, strict=True))
    after = before if pool else tuple(draw(st.integers(0, r + 1)) for r in reach)
    size = tuple(draw(st.integers(max(1, r + 1 - b - a), 7)) for r, b, a in zip(reach, before, after, strict=True))
    out = tuple((n + b + a - r - 1) // s + 1 for n, b, a, r, s in zip(size, before, after, reach, strides, strict=True))
    return Window(kernel, strides, dilations, before, after, size, out), draw(st.booleans())


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[Window, int, int, int, int]:
    """A window, images, groups, channels in and out of one group."""
    window, _ = draw(windows(draw(st.integers(1, 3))))
    batch, group, inputs, outputs = (draw(st.integers(1, high)) for high in (3, 3, 4, 3))
    return window, batch, group, inputs, outputs


def convolve(x: Any, w: Any, window: Window, group: int) -> Any:
    """torch's convolution with pads that differ at the two ends."""
    import torch.nn.functional as f

    sides = [p for pair in zip(reversed(window.before), reversed(window.declared_after), strict=True) for p in pair]
    function = {1: f.conv1d, 2: f.conv2d, 3: f.conv3d}[window.rank]
    return function(f.pad(x, sides), w, stride=window.strides, dilation=window.dilations, groups=group)


@settings(max_examples=examples(60), deadline=None)
@given(convolutions())
def test_every_construction_of_a_convolutions_gradients(case: tuple[Window, int, int, int, int]) -> None:
    window, batch, group, inputs, outputs = case
    values = {
        "x": normal(batch, group * inputs, *window.size).astype(np.float32),
        "w": normal(group * outputs, inputs, *window.kernel).astype(np.float32),
        "dy": normal(batch, group * outputs, *window.out).astype(np.float32),
    }
    x, w = (torch.tensor(values[name], dtype=torch.float64, requires_grad=True) for name in ("x", "w"))
    convolve(x, w, window, group).backward(torch.tensor(values["dy"], dtype=torch.float64))
    tensors = {name: Tensor(name, value.shape, "float32", Role.INPUT) for name, value in values.items()}
    problem = vjp_weight.WeightProblem(tensors["x"], tensors["dy"], tensors["w"], window, group)
    found = [(c, "w") for c in vjp_weight.candidates(problem)]
    found += [(c, "x") for c in vjp.candidates(tensors["dy"], tensors["w"], window, group, 18)]
    for candidate, name in found:
        builder = GraphBuilder(tensors, {}, 18)
        draft = builder.operator("op", "Conv.grad")
        result = candidate.build(draft)
        graph = Graph(
            name="one", tensors=builder.tensors, operators=(finish(draft, [result.name], {}),), opset=18, trained=(),
            inputs=("x", "w", "dy"), outputs=(result.name,), values=builder.values,
        )  # fmt: skip
        (got,) = run(graph, values).values()
        want = (w if name == "w" else x).grad.numpy()
        assert got.shape == want.shape
        assert near(got, want), candidate.name


def test_the_fastest_input_gradient_goes_by_the_plane() -> None:
    def fastest(channels: int, side: int, opset: int) -> str:
        frame = Window((3, 3), (1, 1), (1, 1), (1, 1), (1, 1), (side, side), (side, side))
        dy = Tensor("dy", (32, channels, side, side), "float32", Role.INPUT)
        w = Tensor("w", (channels, channels, 3, 3), "float32", Role.INPUT)
        return min(vjp.candidates(dy, w, frame, 1, opset), key=lambda c: c.time_ns).name.split("/")[0]

    assert [fastest(512, side, 18) for side in (2, 4)] == ["folded", "folded"]
    assert fastest(64, 32, 18) != "folded"
    assert all(fastest(512, side, 17) != "folded" for side in (2, 4)), "Col2Im is newer"


def agree(spec: Spec) -> None:
    """The gradients of a row, in float32, equal torch's in float64."""
    graph = differentiate(graph_of(spec, "float32"), loss="none")
    found = run(graph, {}, tuple(graph.gradients.values()))
    leaves = [torch.tensor(a, requires_grad=True) for a in spec.inputs]
    assert spec.torch is not None
    result = spec.torch(*leaves)
    ((_, weight),) = weights_of([result.detach().numpy()], spec)
    (result * torch.tensor(weight)).sum().backward()
    for k in spec.trained:
        assert near(found[f"i{k}.grad"], leaves[k].grad.numpy())


@settings(max_examples=examples(60), deadline=None)
@given(windows(2, pool=True), st.booleans(), st.booleans())
def test_pools(case: tuple[Window, bool], ceil: bool, average: bool) -> None:
    import torch.nn.functional as f

    window, padded = case
    attributes: dict[str, object] = {
        "kernel_shape": list(window.kernel), "strides": list(window.strides), "ceil_mode": int(ceil),
        "pads": [*window.before, *window.declared_after],
    }  # fmt: skip
    x = distinct(2, 2, *window.size)
    geometry = (window.kernel, window.strides, window.before)
    if average:
        agree(Spec("AveragePool", (x,), torch=lambda x: f.avg_pool2d(x, *geometry, ceil, padded),
                   attributes={**attributes, "count_include_pad": int(padded)}, opset=19))  # fmt: skip
    else:
        agree(Spec("MaxPool", (x,), torch=lambda x: f.max_pool2d(x, *geometry, ceil_mode=ceil), attributes=attributes))


def test_max_pool_gives_a_tie_to_one_place() -> None:
    x = np.zeros((1, 2, 5, 5))
    x[0, 1, ::2] = 1.0
    spec = Spec("MaxPool", (x,), attributes={"kernel_shape": [3, 3], "strides": [1, 1]})
    import torch.nn.functional as f

    agree(Spec(spec.op, spec.inputs, torch=lambda x: f.max_pool2d(x, 3, 1), attributes=spec.attributes))


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from(["both", "left", "right"])), max_size=4),
    st.integers(0, 2), st.booleans(), st.sampled_from(["Add", "Sub", "Mul", "Div"]),
)  # fmt: skip
def test_broadcasting(axes: list[tuple[int, str]], shorter: int, swap: bool, op: str) -> None:
    left = tuple(n if who != "right" else 1 for n, who in axes)
    right = tuple(n if who != "left" else 1 for n, who in axes)[min(shorter, len(axes)) :]
    a, b = normal(*left, away=0.5), normal(*right, seed=1, away=0.5)
    functions: dict[str, Any] = {
        "Add": torch.add, "Sub": torch.sub, "Mul": torch.mul, "Div": torch.div,
    }  # fmt: skip
    agree(Spec(op, (b, a) if swap else (a, b), (0, 1), functions[op]))
