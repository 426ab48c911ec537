"""Operands that no runtime could follow end in one message, whatever their shapes are."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

import poetopt as po
from poetopt.frontends.onnx_file import load_onnx
from poetopt.util.errors import ModelError, PoetError
from tests.autodiff.specs import Spec
from tests.autodiff.table import ROWS
from tests.each import each
from tests.frontends.support import floats, model_of
from tests.seeds import some

Array = NDArray[np.generic]


def model(op: str, *operands: Array, **attributes: Any) -> onnx.ModelProto:
    """`op` on x times a weight of the first operand's shape, and on the other operands."""
    names = [f"i{k}" for k in range(1, len(operands))]
    nodes = [helper.make_node("Mul", ["x", "w"], ["i0"], "product")]
    nodes.append(helper.make_node(op, ["i0", *names], ["y"], "n", **attributes))
    shape = operands[0].shape
    weights = {"w": floats(*shape), **dict(zip(names, operands[1:], strict=True))}
    return model_of(nodes, {"x": list(shape)}, ["y"], weights)


def whole(*shape: int) -> Array:
    return np.zeros(shape, np.int64)


def at(*values: int) -> Array:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("op", "operands", "attributes", "said"),
    [
        ("SoftmaxCrossEntropyLoss", (floats(5), whole(4)), {}, "its labels have shape [4]"),
        ("SoftmaxCrossEntropyLoss", (floats(4, 5), whole(4, 1)), {}, "its labels have shape [4, 1]"),
        ("SoftmaxCrossEntropyLoss", (floats(4, 5), floats(4, 5)), {}, "have the module compute the loss as"),
        ("SoftmaxCrossEntropyLoss", (floats(4, 5), whole(4), floats(3)), {}, "there are 5 classes"),
        ("SoftmaxCrossEntropyLoss", (floats(4, 5), whole(4), floats(1, 5)), {}, "its weights have shape [1, 5]"),
        ("NegativeLogLikelihoodLoss", (floats(4, 5), whole(4), floats(3)), {}, "there are 5 classes"),
        ("InstanceNormalization", (floats(2, 3, 4), floats(0), floats(3)), {}, "its scale has shape [0]"),
        ("InstanceNormalization", (floats(2, 3, 4), floats(3), floats(1, 3)), {}, "its bias has shape [1, 3]"),
        ("ScatterElements", (floats(), whole(9), floats(9)), {"reduction": "mul"}, "lie within its data []"),
        ("ScatterElements", (floats(3, 4), whole(2, 2), floats(2)), {}, "its updates have shape [2]"),
        ("ScatterElements", (floats(3, 4), whole(2, 5), floats(2, 5)), {}, "its indices have shape [2, 5]"),
        ("GatherElements", (floats(4, 3), at(1)), {}, "its indices have shape [1]"),
        ("GatherElements", (floats(3), at(1, 3)), {}, "index 3 of an axis of 3 elements"),
        ("Gather", (floats(3, 2), at(0, -4)), {}, "index -4 of an axis of 3 elements"),
        ("ScatterND", (floats(4, 3), whole(2, 1), floats(1, 2, 3)), {}, "its updates have shape [1, 2, 3]"),
        ("Einsum", (floats(3, 5), floats(4, 2)), {"equation": "ij,jk->ik"}, "axis 'j' (ij,jk->ik) is of 5 and of 4"),
        ("Einsum", (floats(3, 1),), {"equation": "ii->i"}, "of 3 and of 1 elements in one operand"),
        ("Slice", (floats(5, 6), at(1)[None], at(3)), {}, "its operand 'i1' has shape [1, 1]"),
        ("ReduceSum", (floats(5, 6), at(1)[None]), {}, "its operand 'i1' has shape [1, 1]"),
        ("Clip", (floats(5, 6), floats(1, 1)), {}, "its operand 'i1' has shape [1, 1]"),
    ],
)
def test_what_does_not_fit(op: str, operands: tuple[Array, ...], attributes: dict[str, object], said: str) -> None:
    with pytest.raises(ModelError) as caught:
        load_onnx(model(op, *operands, **attributes))
    assert f"node 'n' ({op}, opset 18): " in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("op", "operands", "attributes"),
    [
        ("Einsum", (floats(3, 1), floats(4, 2)), {"equation": "ij,jk->ik"}),
        ("Einsum", (floats(1), floats(3, 3)), {"equation": "i,ii->i"}),
        ("Einsum", (floats(2, 5, 3), floats(3, 4)), {"equation": "... j, jk"}),
        ("ScatterElements", (floats(3, 4), whole(2, 2), floats(2, 2)), {"axis": -1}),
        ("GatherElements", (floats(4, 3), whole(9, 2)), {}),
        ("Gather", (floats(3, 2), at(0, -2)), {"axis": 1}),
        ("SoftmaxCrossEntropyLoss", (floats(2, 3, 2), whole(2, 2), floats(4)), {}),
    ],
)
def test_what_does(op: str, operands: tuple[Array, ...], attributes: dict[str, object]) -> None:
    assert load_onnx(model(op, *operands, **attributes)).outputs == ("y",)


def _others(array: Array) -> Iterator[Array]:
    yield array[None]
    yield array.reshape(-1)
    yield array[:0] if array.ndim else array[None, None]
    if array.size:
        yield np.asarray(array.reshape(-1)[0])


def _of_each_op(few: int) -> list[Spec]:
    """Rows of the table: a few of each op, or all."""
    rows = sorted((row for row in ROWS if row.opset <= 18), key=lambda row: row.op)
    return [row for _, alike in itertools.groupby(rows, lambda row: row.op) for row in some(list(alike), few)]


@each("spec", _of_each_op(1))
def test_any_shape_of_any_operand_is_refused_or_planned(spec: Spec) -> None:
    """No rule divides by nothing, or indexes what isn't there."""
    for place, given in enumerate(spec.inputs):
        for other in () if given is None else _others(given):
            operands = [other if k == place else array for k, array in enumerate(spec.inputs)]
            if operands[0] is None or operands[0].dtype.kind != "f":
                continue
            floating = [None if o is None else o.astype(np.float32) if o.dtype.kind == "f" else o for o in operands]
            try:
                read = _network(spec, floating)
                po.load(read).differentiate(loss="mse").cost(po.device("a72"))
            except PoetError:
                continue


def _network(spec: Spec, operands: list[Array | None]) -> onnx.ModelProto:
    first = operands[0]
    assert first is not None
    names = ["" if array is None else f"i{k}" for k, array in enumerate(operands)]
    outputs = [f"y{k}" for k in range(spec.outputs)]
    nodes = [helper.make_node("Mul", ["x", "w"], ["i0"], "product")]
    attributes: dict[str, Any] = dict(spec.attributes)
    nodes.append(helper.make_node(spec.op, names, outputs, "n", **attributes))
    weights = {name: array for name, array in zip(names[1:], operands[1:], strict=True) if array is not None}
    return model_of(nodes, {"x": list(first.shape)}, ["y0"], {"w": floats(*first.shape), **weights})
