"""All that is emitted runs in the opset that it is emitted in, whatever opset the file has."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import defs, helper

from poetopt.autodiff import differentiate
from poetopt.backends.onnxruntime.sessions import runtime_errors
from poetopt.frontends.convert import NEWEST_OPSET, WORKING_OPSET
from poetopt.frontends.onnx_file import load_onnx
from poetopt.frontends.proto import elem_type, model_proto, node_proto
from poetopt.graph import Node, Tensor, TrainingGraph
from poetopt.ops.op import op_of
from poetopt.util.errors import PoetError, UnsupportedOpError
from tests.support.autodiff.specs import graph_of
from tests.support.autodiff.table import ROWS
from tests.support.frontends import run, text_model

NET = """g (float[2, 1, 8, 8] x) => (float[2, 3] y)
    <float[2, 1, 3, 3] w, float[2] s = {1, 1}, float[2] b = {0, 0}, float[2, 3] f = {1, 2, 3, 4, 5, 6}, float r = {0.5},
     bool t = {1}> {
        c = Conv (x, w)
        n = InstanceNormalization (c, s, b)
        d = Dropout (n, r, t)
        p = GlobalMaxPool (d)
        q = Flatten (p)
        y = MatMul (q, f)
    }"""


@pytest.mark.parametrize("opset", range(WORKING_OPSET, defs.onnx_opset_version() + 1))
def test_a_network_that_draws_masks_trains(opset: int) -> None:
    weights = ", ".join(map(str, np.linspace(-1, 1, 18)))
    step = differentiate(load_onnx(text_model(NET.replace("w,", f"w = {{{weights}}},", 1), opset=opset)), loss="mse")
    feeds = {n: np.random.default_rng(0).random(step.tensors[n].shape, np.float32) for n in step.inputs}
    results = run(model_proto(step), feeds)
    assert len(step.gradients) == 4
    assert all(np.isfinite(value).all() and value.any() for value in results[2:])


def test_what_can_not_be_converted_is_refused_by_name() -> None:
    model = text_model(
        """g (float[1, 2, 3, 4] x) => (float[1, 2, 3, 4] y) <float r = {0.5}, bool t = {1}, float[4] s = {1, 1, 1, 1}> {
            n = RMSNormalization (x, s)
            y = Dropout (n, r, t)
        }""",
        opset=23,
    )
    with pytest.raises(UnsupportedOpError, match="Dropout, opset 23"):
        load_onnx(model)


def _steps() -> list[TrainingGraph]:
    found = []
    for spec in ROWS:
        try:
            if spec.opset >= WORKING_OPSET:
                found.append(differentiate(graph_of(spec, "float32"), loss="none"))
        except PoetError:
            continue
    return found


def _loads(node: Node, tensors: Mapping[str, Tensor], opset: int) -> str:
    def info(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, elem_type(tensors[name].dtype), list(tensors[name].shape))

    read, written = ([info(name) for name in dict.fromkeys(names) if name] for names in (node.inputs, node.outputs))
    graph = helper.make_graph([node_proto(node)], "node", read, written)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    except runtime_errors() as error:
        return f"{node.op_type} of opset {opset}: {str(error)[:160]}"
    return ""


def test_all_that_rules_read_and_emit_loads_in_each_opset() -> None:
    kinds: dict[object, tuple[Node, TrainingGraph]] = {}
    for step in _steps():
        for node in (node for operator in step.operators for node in operator.nodes):
            types = tuple(step.tensors[name].dtype for name in node.inputs if name)
            if (node.op_type, types) not in kinds and not _loads(node, step.tensors, step.opset):
                kinds[node.op_type, types] = node, step
    assert len({node.op_type for node, _ in kinds.values()}) > 100
    lost = []
    for node, step in kinds.values():
        since = {defs.get_schema(node.op_type, k).since_version for k in range(step.opset + 1, NEWEST_OPSET + 1)}
        why = (_loads(node, step.tensors, opset) for opset in sorted(since) if opset > step.opset)
        lost += [(node.op_type, text) for text in why if text]
    assert all(op_of(op).newest_opset for op, _ in lost), lost
