"""Every rule against float64 finite differences, and in float32 on onnxruntime."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx.reference
import pytest
from numpy.typing import NDArray

from poetopt.autodiff import differentiate
from poetopt.autodiff.registry import blocked_inputs, missing_inputs, registered
from poetopt.graph import Graph, Node, Operator, Role
from poetopt.ops.losses.vjp import ATTACHED
from poetopt.util.errors import MissingVjpError, ModelError
from tests.support.autodiff.errors import TOLERANCE, evaluator, finite_difference_error, gradients
from tests.support.autodiff.oracle import run
from tests.support.autodiff.specs import Spec, graph_of, ints
from tests.support.autodiff.table import ROWS
from tests.support.each import each

Array = NDArray[Any]
NOT_A_NODE = ATTACHED
"""Made by `--loss mse` alone; checked in test_losses."""


def close(got: Array, want: Array) -> bool:
    """Within the tolerance, relative to the larger of the norm and one."""
    return bool(np.linalg.norm(got - want) <= TOLERANCE * max(1.0, float(np.linalg.norm(want))))


@each("spec", ROWS)
def test_finite_differences(spec: Spec) -> None:
    assert finite_difference_error(spec) <= TOLERANCE


UNTRAINED = [
    (spec, k) for spec in ROWS for k, a in enumerate(spec.inputs)
    if a is not None and a.dtype.kind == "f" and k not in spec.trained
]  # fmt: skip


@each(("spec", "k"), UNTRAINED)
def test_every_input_that_counts_has_a_gradient_or_is_said_to_have_none(spec: Spec, k: int) -> None:
    """The inputs that the rows don't train: their gradient, or a refusal where they are computed, or nothing moves."""
    graph = graph_of(replace(spec, trained=(k,)))
    missing = missing_inputs(graph.operators[0])
    if k in missing:
        with pytest.raises(MissingVjpError, match=f"no gradient rule for its input {k}"):
            differentiate(_computed(graph, f"i{k}"), loss="none")
        return
    value = np.asarray(graph.values[f"i{k}"], np.float64)
    blocked = blocked_inputs(graph.operators[0])
    if (spec.op, k) in {("Dropout", 1), ("Resize", 2)}:  # which decide by thresholds
        assert blocked is not None
        assert k in blocked
        return
    rate = evaluator(graph, graph.outputs)
    direction = np.asarray(np.random.default_rng(3).standard_normal(value.shape))
    up, down = (float(rate({f"i{k}": np.asarray(value + side * direction)})[0]) for side in (1e-4, -1e-4))
    slope = (up - down) / 2e-4
    if spec.op == "Pow" and np.isnan(slope):
        return  # powers of negative numbers are defined for whole exponents alone
    try:
        found = gradients(differentiate(graph, loss="none"))[f"i{k}"]
    except ModelError:
        found = np.zeros(value.shape)
    assert float(np.sum(found * direction)) == pytest.approx(slope, rel=1e-4, abs=1e-4)


REFUSED = {("Attention", 4), ("Attention", 5), ("LSTM", 7), ("Resize", 1)}
"""Past keys and values, peepholes, regions: refused by their rules, or as computed inputs."""


def test_every_float_input_of_every_rule_stands_in_a_row() -> None:
    covered = {(spec.op, k) for spec in ROWS for k, a in enumerate(spec.inputs) if a is not None}
    for op in {op for domain, op in registered() if not domain} - NOT_A_NODE:
        schema = onnx.defs.get_schema(op)
        kinds = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
        for k, operand in enumerate(schema.inputs):
            if any("tensor(float" in kind for kind in kinds.get(operand.type_str, [operand.type_str])):
                assert (op, k) in covered | REFUSED, (op, k)


def _computed(graph: Graph, name: str) -> Graph:
    """The same graph, in which an operator computes what was the parameter `name`."""
    tensor, made = graph.tensors[name], replace(graph.tensors[name], name="made", role=Role.ACTIVATION)
    first = graph.operators[0]
    (node,) = first.nodes
    read = tuple("made" if n == name else n for n in node.inputs)
    reader = replace(first, nodes=(replace(node, inputs=read),), inputs=tuple(dict.fromkeys(filter(None, read))))
    writer = Operator("making", "Neg", (Node("Neg", (name,), ("made",)),), (name,), ("made",))
    tensors = {**graph.tensors, "made": made, name: tensor}
    return replace(graph, tensors=tensors, operators=(writer, reader, *graph.operators[1:]))


FLAT: dict[str, tuple[tuple[Array, ...], dict[str, object]]] = {
    "Relu": ((np.array([-1.0, 0.0, 4.0]),), {}),
    "LeakyRelu": ((np.array([-1.0, 0.0, 4.0]),), {"alpha": 0.0}),
    "Clip": ((np.array([-1.0, -2.0, 4.0]), np.array(0.0), np.array(9.0)), {}),
    "ThresholdedRelu": ((np.array([-1.0, 0.5, 4.0]),), {"alpha": 1.0}),
    "HardSigmoid": ((np.array([-9.0, -8.0, 0.1]),), {}),
    "HardSwish": ((np.array([-9.0, -8.0, 4.0]),), {}),
    "Max": ((np.array([-1.0, -2.0, 4.0]), np.zeros(1)), {}),
    "Where": ((np.array([False, False, True]), np.array([1.0, 2.0, 4.0]), np.zeros(1)), {}),
    "GlobalMaxPool": ((np.array([[[-1.0, 0.0, -2.0]]]),), {}),
    "Abs": ((np.array([0.0, 0.0, 4.0]),), {}),
    "ReduceL1": ((np.array([[0.0], [0.0], [4.0]]), ints(1)), {"keepdims": 0}),
    "ReduceL2": ((np.array([[0.0], [0.0], [4.0]]), ints(1)), {"keepdims": 0}),
    "LpPool": ((np.array([[[0.0, 0.0, 4.0]]]),), {"kernel_shape": [1], "p": 1}),
    "ScatterElements": ((np.array([-1.0, -2.0, 4.0]), ints(0, 1, 2), np.zeros(3)), {"reduction": "max"}),
    "RNN": (
        (np.array([-1.0, -2.0, 4.0]).reshape(3, 1, 1), np.ones((1, 1, 1)), np.zeros((1, 1, 1))),
        {"activations": ["Relu"], "hidden_size": 1},
    ),
}


@each("op", FLAT)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_nothing_flows_back_where_the_derivative_is_zero_though_what_comes_is_infinite(op: str, dtype: str) -> None:
    """The square root behind it has an infinite derivative at 0; torch gives 0 in front of these, too."""
    arrays, attributes = FLAT[op]
    trained = 1 if op == "Where" else 0
    graph = graph_of(Spec(op, arrays, (trained,), attributes=attributes), dtype)
    root = Operator("root", "Sqrt", (Node("Sqrt", ("y0",), ("root",)),), ("y0",), ("root",))
    first, *rest = graph.operators
    rest[0] = replace(rest[0], inputs=("root", "r0"), nodes=(replace(rest[0].nodes[0], inputs=("root", "r0")),))
    tensors = {**graph.tensors, "root": replace(graph.tensors["y0"], name="root")}
    step = differentiate(replace(graph, tensors=tensors, operators=(first, root, *rest)), loss="none")
    (found,) = gradients(step).values()
    flat = [k for k, x in enumerate(np.ravel(arrays[trained])) if k < 2 and (op != "GlobalMaxPool" or x < 0)]
    assert np.all(np.ravel(found)[flat] == 0)
    assert not np.isnan(found).any()


@each("spec", [s for s in ROWS if s.op != "Cast"])  # which casts to float64
def test_float32_on_onnxruntime(spec: Spec) -> None:
    exact = gradients(differentiate(graph_of(spec), loss="none"))
    graph = differentiate(graph_of(spec, "float32"), loss="none")
    found = run(graph, {}, tuple(graph.gradients.values()))
    for name, gradient in exact.items():
        got = found[graph.gradients[name]]
        assert got.dtype == np.float32
        if spec.op != "Dropout":
            assert close(got.astype(np.float64), gradient), name


def test_every_rule_has_a_row() -> None:
    rules = {op for domain, op in registered() if not domain}
    assert rules - {spec.op for spec in ROWS} - NOT_A_NODE == set()
