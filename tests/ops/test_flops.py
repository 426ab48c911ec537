"""FLOPs against loops that do the arithmetic one operation at a time, and bytes against what is read and written."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poetopt.frontends import load
from poetopt.graph import Graph, Node, Operator, Role, Tensor
from poetopt.ops.flops import flops, node_flops, work
from poetopt.ops.op import EXP


def tensors(**shapes: Sequence[int]) -> dict[str, Tensor]:
    return {name: Tensor(name, tuple(shape), "float32", Role.ACTIVATION) for name, shape in shapes.items()}


def node(op: str, inputs: str, outputs: str, **attributes: object) -> Node:
    return Node(op, tuple(inputs.split()), tuple(outputs.split()), attributes)


def operator(*nodes: Node, inputs: str, outputs: str, view: bool = False) -> Operator:
    return Operator("o", nodes[0].op_type, nodes, tuple(inputs.split()), tuple(outputs.split()), view=view)


def indices(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    return product(*(range(size) for size in shape))


shapes = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


@given(
    batch=st.integers(1, 2),
    groups=st.integers(1, 3),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    plane=st.lists(st.tuples(st.integers(3, 5), st.integers(1, 3)), min_size=1, max_size=2),
    bias=st.booleans(),
)
def test_conv_counts_every_tap(
    batch: int, groups: int, channels: tuple[int, int], plane: list[tuple[int, int]], bias: bool
) -> None:
    c_in, c_out = (groups * c for c in channels)
    size, kernel = [s for s, _ in plane], [k for _, k in plane]
    out = (batch, c_out, *(s - k + 1 for s, k in plane))
    counted = 0
    for _ in indices(out):
        for _ in product(range(c_in // groups), *map(range, kernel)):
            counted += 2
        counted += bias
    conv = node("Conv", "x w b" if bias else "x w", "y", group=groups)
    given_shapes = [(batch, c_in, *size), (c_out, c_in // groups, *kernel), (c_out,)][: 2 + bias]
    assert node_flops(conv, given_shapes, [out]) == counted


@given(
    batch=st.integers(1, 2),
    groups=st.integers(1, 3),
    channels=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    plane=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=2),
)
def test_conv_transpose_scatters_every_input(
    batch: int, groups: int, channels: tuple[int, int], plane: list[tuple[int, int]]
) -> None:
    c_in, c_out = (groups * c for c in channels)
    x = (batch, c_in, *(s for s, _ in plane))
    y = (batch, c_out, *(s + k - 1 for s, k in plane))
    counted = 0
    for _ in indices(x):
        for _ in product(range(c_out // groups), *(range(k) for _, k in plane)):
            counted += 2
    w = (c_in, c_out // groups, *(k for _, k in plane))
    assert node_flops(node("ConvTranspose", "x w", "y", group=groups), [x, w], [y]) == counted


@given(m=st.integers(1, 4), n=st.integers(1, 4), k=st.integers(1, 4), a=st.booleans(), b=st.booleans(), c=st.booleans())
def test_gemm_counts_every_product(m: int, n: int, k: int, a: bool, b: bool, c: bool) -> None:
    counted = 0
    for _ in range(m * n):
        for _ in range(k):
            counted += 2
        counted += c
    gemm = node("Gemm", "a b c" if c else "a b", "y", transA=int(a), transB=int(b))
    given_shapes = [(k, m) if a else (m, k), (n, k) if b else (k, n), (n,)][: 2 + c]
    assert node_flops(gemm, given_shapes, [(m, n)]) == counted


@given(batch=st.lists(st.integers(1, 3), max_size=2), m=st.integers(1, 4), k=st.integers(1, 4), n=st.integers(1, 4))
def test_matmul_and_einsum_agree(batch: list[int], m: int, k: int, n: int) -> None:
    a, b, y = (*batch, m, k), (*batch, k, n), (*batch, m, n)
    counted = node_flops(node("MatMul", "a b", "y"), [a, b], [y])
    assert counted == sum(2 for _ in indices((*y, k)))
    labels = "uv"[: len(batch)]
    for equation in (f"{labels}mk, {labels}kn -> {labels}mn", "...mk,...kn->...mn"):
        assert node_flops(node("Einsum", "a b", "y", equation=equation), [a, b], [y]) == counted


@given(shape=shapes, kept=st.sets(st.integers(0, 3)))
def test_reductions_touch_every_element(shape: tuple[int, ...], kept: set[int]) -> None:
    out = tuple(size if i in kept else 1 for i, size in enumerate(shape))
    groups = {tuple(i if a in kept else 0 for a, i in enumerate(index)) for index in indices(shape)}
    assert node_flops(node("ReduceSum", "x", "y"), [shape], [out]) == sum(1 for _ in indices(shape))
    assert node_flops(node("ReduceMean", "x", "y"), [shape], [out]) == math.prod(shape) + len(groups)


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "expected"),
    [("MaxPool", [(2, 3, 4, 4)], {"kernel_shape": (2, 2)}, 24 * 4),
     ("AveragePool", [(2, 3, 4, 4)], {"kernel_shape": [2, 2]}, 24 * 5),
     ("GlobalAveragePool", [(2, 3, 4, 4)], {}, 96 + 24),
     ("BatchNormalization", [(2, 3, 4, 4), (3,)], {}, 2 * 96 + 5 * 3),
     ("BatchNormalization", [(2, 3, 4, 4), (3,)], {"training_mode": 1}, 6 * 96 + 13 * 3),
     ("LayerNormalization", [(2, 3, 4), (4,)], {"axis": -1}, 7 * 24 + 5 * 6),
     ("LayerNormalization", [(2, 3, 4), (12,)], {"axis": 1}, 7 * 24 + 5 * 2),
     ("Softmax", [(2, 5)], {"axis": 1}, 10 * (4 + EXP)),
     ("LogSoftmax", [(2, 5)], {"axis": 1}, 10 * (4 + EXP) + 2 * EXP),
     ("SoftmaxCrossEntropyLoss", [(2, 5), (2,)], {}, 10 * (4 + EXP) + 2 * (EXP + 2)),
     ("ScatterElements", [(9, 4), (2, 4), (2, 4)], {"reduction": "add"}, 8),
     ("ScatterElements", [(9, 4), (2, 4), (2, 4)], {}, 0), ("Col2Im", [(2, 27, 16), (2,), (2,)], {}, 2 * 27 * 16),
     ("Resize", [(1, 1, 4, 6)], {"mode": "linear"}, 24 * 8), ("GridSample", [(1, 1, 4, 6), (1, 3, 4, 2)], {}, 24 * 8),
     ("GridSample", [(1, 1, 4, 6), (1, 3, 4, 2)], {"mode": "bicubic"}, 24 * 32), ("DFT", [(3, 4, 2)], {}, 5 * 12 * 2),
     ("ConvInteger", [(2, 5, 6), (3, 5, 3)], {}, 24 * 2 * 15),
     ("QLinearConv", [(2, 5, 6), (), (), (3, 5, 3)], {}, 24 * 2 * 15),
     ("QLinearMatMul", [(2, 3, 7), (), (), (7, 4)], {}, 24 * 2 * 7),
     ("MatMulInteger", [(2, 3, 7), (7, 4)], {}, 24 * 2 * 7), ("SomethingNew", [(7,)], {}, 24)],
)  # fmt: skip
def test_the_table(op: str, inputs: list[tuple[int, ...]], attributes: Mapping[str, object], expected: int) -> None:
    some = Node(op, tuple("abcd"[: len(inputs)]), ("y",), attributes)
    assert node_flops(some, inputs, [(2, 3, 4)]) == expected


def test_bytes_are_what_is_read_and_written() -> None:
    found = tensors(x=(4, 8), w=(8, 2), y=(4, 2), s=(2,))
    gemm = operator(node("Gemm", "x w", "y"), inputs="x w", outputs="y")
    assert [part.nbytes for part in work(gemm, found)] == [4 * (32 + 16 + 8)]
    found["i"] = Tensor("i", (1,), "int64", Role.CONSTANT)
    pick = operator(node("Gather", "x i", "s"), inputs="x i", outputs="s")
    assert [part.nbytes for part in work(pick, found)] == [4 * 2 + 8 + 4 * 2]


@pytest.mark.parametrize(("network", "giga_macs"), [("resnet18-cifar", 0.56), ("vgg16-cifar", 0.31)])
def test_published_multiply_adds_of_whole_networks(network: str, giga_macs: float) -> None:
    """The convolutions and matrices of an image's forward pass, as the literature counts them."""
    model = load(network, batch=1)
    assert isinstance(model, Graph)
    products = sum(flops(o, model.tensors) for o in model.operators if o.kind in ("Conv", "Gemm", "MatMul"))
    assert products / 2e9 == pytest.approx(giga_macs, rel=0.02)
