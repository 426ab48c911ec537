"""Operands and settings of nodes that no runtime could follow end in one message, whatever is in them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import AttributeProto, helper, numpy_helper

import poetopt as po
from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import node_proto
from poetopt.graph import Node
from poetopt.util.errors import PoetError
from tests.seeds import some
from tests.support.autodiff.specs import Spec
from tests.support.autodiff.table import ROWS
from tests.support.each import each
from tests.support.frontends import floats, model_of

if TYPE_CHECKING:
    from poetopt.graph import Array


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


VALUES = (0, -1, 10**12, -(10**12))


def _model(spec: Spec) -> onnx.ModelProto:
    """The row as a file: every input stored, in float32."""
    names = tuple("" if array is None else f"i{k}" for k, array in enumerate(spec.inputs))
    node = node_proto(Node(spec.op, names, tuple(f"y{k}" for k in range(spec.outputs)), spec.attributes, name="n"))
    stored = [
        numpy_helper.from_array(array.astype(np.float32) if array.dtype == np.float64 else array, f"i{k}")
        for k, array in enumerate(spec.inputs)
        if array is not None
    ]
    graph = helper.make_graph([node], "g", [], [onnx.ValueInfoProto(name=name) for name in node.output], stored)
    imports = [helper.make_opsetid("", spec.opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8 if spec.opset < 21 else 11)


def _mutants(spec: Spec) -> Iterator[onnx.ModelProto]:
    """The row's file with one integer setting, or the first number of one integer input, replaced."""
    model = _model(spec)
    schema = onnx.defs.get_schema(spec.op, spec.opset, "")
    own = {attribute.name: attribute for attribute in model.graph.node[0].attribute}
    for value in VALUES:
        for name, declared in sorted(schema.attributes.items()):
            found: list[int] | int
            if declared.type == onnx.defs.OpSchema.AttrType.INT:
                found = value
            elif declared.type == onnx.defs.OpSchema.AttrType.INTS and name in own:
                found = [value, *own[name].ints[1:]]
            else:
                continue
            mutant = onnx.ModelProto()
            mutant.CopyFrom(model)
            node = mutant.graph.node[0]
            del node.attribute[:]
            node.attribute.extend(attribute for key, attribute in own.items() if key != name)
            kind = AttributeProto.INTS if isinstance(found, list) else AttributeProto.INT
            node.attribute.append(helper.make_attribute(name, found, attr_type=kind))
            yield mutant
        for k, array in enumerate(spec.inputs):
            if array is not None and array.dtype == np.int64 and array.size:
                mutant = onnx.ModelProto()
                mutant.CopyFrom(model)
                changed = array.copy()
                changed.reshape(-1)[0] = value
                stored = next(proto for proto in mutant.graph.initializer if proto.name == f"i{k}")
                stored.CopyFrom(numpy_helper.from_array(changed, f"i{k}"))
                yield mutant


@each("op", sorted({spec.op for spec in ROWS}))
def test_mutated_settings(op: str) -> None:
    """Refused with one message, or a file that onnxruntime loads: nothing else comes of any of them."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for spec in some([spec for spec in ROWS if spec.op == op], 2):
        for mutant in _mutants(spec):
            try:
                graph = load_onnx(mutant, train=[f"i{k}" for k in spec.trained])
                differentiate(graph, output=graph.outputs[0])
            except PoetError:
                continue
            ort.InferenceSession(mutant.SerializeToString(), options, providers=["CPUExecutionProvider"])
