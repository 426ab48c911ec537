"""Random calls of reductions, of products of matrices with their gradients, and of updates."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from poetopt.graph import OWN_DOMAIN
from poetopt.ops.losses import LINEAR
from tests.support.contract.kernel import Case, node_case
from tests.support.draws.pieces import (
    Draw,
    Random,
    broadcastable,
    integers,
    network,
    normal,
    onnx_node,
    random_length,
    random_shape,
)
from tests.support.draws.steps import step_cases


def reduction(op_type: str, random: Random) -> list[Case]:
    """A reduction over some axes, now and then a long one."""
    shape = list(random_shape(random, 1))
    if random.random() < 0.3:
        shape[int(random.integers(0, len(shape)))] = int(random.integers(60, 200)) if op_type != "ReduceProd" else 3
    axes = [int(a) for a in random.permutation(len(shape))[: int(random.integers(1, len(shape) + 1))]]
    x = normal(random, shape)
    return [node_case(op_type, x, integers(axes), constants=(1,), attributes={"keepdims": int(random.random() < 0.5)})]


EQUATIONS = (
    "ij,jk->ik", "bij,bjk->bik", "bhid,bhjd->bhij", "...ij,...jk->...ik", "bi,bj->bij", "i,i->", "ij->j", "ij->ji",
    "ii->i", "iji->j", "ij,jk", "ab,bc,cd->ad", "bij,jk,k->bi",
)  # fmt: skip


def _einsum(random: Random) -> list[Case]:
    """Now and then with a long axis, which is summed up in parts, or one of length one for a longer one."""
    equation = str(random.choice(EQUATIONS))
    sizes = {c: random_length(random, 6) for c in "abcdhijk"}
    dots = random_shape(random, 1, 2, 3)
    shapes = []
    for term in equation.partition("->")[0].split(","):
        axes = [dots if c == "." else (sizes[c],) for c in term.replace("...", ".")]
        shapes.append([n for axis in axes for n in axis])
    if "..." in equation and random.random() < 0.3:
        shapes[0][0] = 1
    return [node_case("Einsum", *(normal(random, shape) for shape in shapes), attributes={"equation": equation})]


def _integer_sum(random: Random) -> list[Case]:
    x = random.integers(-99, 99, random_shape(random, 1)).astype(str(random.choice(["int64", "int32"])))
    axes = integers([int(random.integers(0, x.ndim))])
    return [node_case("ReduceSum", x, axes, outputs=(x.dtype.name,), constants=(1,), attributes={"keepdims": 0})]


def _sum(random: Random) -> list[Case]:
    return _integer_sum(random) if random.random() < 0.2 else reduction("ReduceSum", random)


def _gemm(random: Random) -> list[Case]:
    rows, columns, depth = (random_length(random) for _ in range(3))
    turned = [int(random.random() < 0.5) for _ in range(2)]
    a = normal(random, (depth, rows) if turned[0] else (rows, depth))
    b = normal(random, (columns, depth) if turned[1] else (depth, columns))
    chosen: dict[str, Any] = {"transA": turned[0], "transB": turned[1]}
    if random.random() < 0.5:
        chosen |= {"alpha": 0.5, "beta": -1.5}
    c = () if random.random() < 0.4 else (normal(random, broadcastable(random, (rows, columns))),)
    return [node_case("Gemm", a, b, *c, attributes=chosen)]


def _matmul(random: Random) -> list[Case]:
    rows, columns, depth = (random_length(random) for _ in range(3))
    batch = random_shape(random, 0, 2, 3)
    left = (*broadcastable(random, batch), rows, depth) if random.random() < 0.9 else (depth,)
    right = (*broadcastable(random, batch), depth, columns) if random.random() < 0.9 else (depth,)
    return [node_case("MatMul", normal(random, left), normal(random, right))]


def matmul_gradient(op_type: str, random: Random) -> list[Case]:
    """A gradient of a batched product."""
    rows, columns, depth = (random_length(random) for _ in range(3))
    batch = random_shape(random, 1, 2, 3)
    w = normal(random, (*batch, depth, columns))
    return step_cases(
        network(random, (*batch, rows, depth), [onnx_node("MatMul", ["h", "w"])], {"w": w}), op_type, random
    )


def update(op_type: str, optimizer: str, random: Random, *, clips: float = 0.0) -> list[Case]:
    """An optimizer's update, or one with the gradient of a matrix that it is of; so often in a step that clips."""
    rows, columns, depth = (random_length(random) for _ in range(3))
    w = normal(random, (columns, depth))
    node = onnx_node("Gemm", ["h", "w"], attributes={"transB": 1})
    model = network(random, (rows, depth), [node], {"w": w})
    return step_cases(model, op_type, random, optimizer=optimizer, clip=random.random() < clips)


def head(op_type: str, random: Random, *, trained: str = "", optimizer: str = "none") -> list[Case]:
    """A layer under cross-entropy, with more classes than a chunk; of its weight and bias is trained what is named."""
    rows, features, classes = (int(random.integers(*of)) for of in ((6, 11), (2, 5), (4100, 5000)))
    weights = {"w": normal(random, (classes, features)), "b": normal(random, (classes,))}
    biased = trained == "b" or random.random() < 0.5
    node = onnx_node("Gemm", ["h", "w", *(["b"] if biased else [])], attributes={"transB": 1})
    model = network(random, (rows, features), [node], {n: weights[n] for n in node.input[1:]})
    train = f"p,{trained}" if trained else "p"
    return step_cases(model, op_type, random, loss="cross-entropy", train=train, optimizer=optimizer)


OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
DRAWS: Mapping[tuple[str, str], Draw] = {
    **{
        ("", f"Reduce{op}"): partial(reduction, f"Reduce{op}")
        for op in ("Sum", "Mean", "SumSquare", "L1", "L2", "Prod")
    },
    **{("", f"Reduce{op}"): partial(reduction, f"Reduce{op}") for op in ("Max", "Min")},
    ("", "ReduceSum"): _sum,
    ("", "Einsum"): _einsum,
    ("", "Gemm"): _gemm,
    (OWN_DOMAIN, LINEAR): partial(head, LINEAR),
    **{
        (OWN_DOMAIN, kind): partial(head, kind, trained=of[5], optimizer=optimizer)
        for of in ("grad_weight", "grad_bias")
        for kind, optimizer in ((f"{LINEAR}.{of}", "none"), *((f"{LINEAR}.{of}+{o}.update", o) for o in OPTIMIZERS))
    },
    ("", "MatMul"): _matmul,
    **{(OWN_DOMAIN, f"MatMul.{k}"): partial(matmul_gradient, f"MatMul.{k}") for k in ("grad_input", "grad_weight")},
    **{(OWN_DOMAIN, f"{o}.update"): partial(update, f"{o}.update", o, clips=0.5) for o in OPTIMIZERS},
    (OWN_DOMAIN, "Gradient.squares"): partial(update, "Gradient.squares", "sgd", clips=1.0),
    **{(OWN_DOMAIN, f"Gemm+{o}.update"): partial(update, f"Gemm+{o}.update", o) for o in OPTIMIZERS},
}
