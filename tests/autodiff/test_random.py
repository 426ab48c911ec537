"""Random configurations of what has many: convolutions, pools, broadcasting; in float32, against torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from poetopt.autodiff.emit import GraphBuilder, finish
from poetopt.graph import Graph, Role, Tensor
from poetopt.ops.convolution import vjp, vjp_weight
from poetopt.ops.convolution.windows import Window
from tests.seeds import examples
from tests.support.autodiff.oracle import run
from tests.support.autodiff.specs import normal
from tests.support.later import ALL_USE_TORCH, later

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
