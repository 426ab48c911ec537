"""`check_vjp`: comparison of a gradient rule with finite differences in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poetopt.autodiff import differentiate
from poetopt.autodiff.registry import find_rule
from poetopt.graph import Graph, Node, Operator, Role, Tensor
from poetopt.testing.contract import ContractError, require
from poetopt.util.errors import PoetError

Array = NDArray[Any]

STEP = 1e-4
TOLERANCE = 1e-5


@dataclass(frozen=True)
class VjpCheck:
    """Result of `check_vjp`: the largest deviation by input, relative to the norms of gradient and direction."""

    op: str
    deviation: Mapping[str, float]


def check_vjp(
    op: str,
    *inputs: Array | None,
    attributes: Mapping[str, object] | None = None,
    trained: Sequence[int] | None = None,
    outputs: int = 1,
    opset: int = 18,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> VjpCheck:
    """Compare the registered gradient rule of an ONNX operator with finite differences.

    Parameters
    ----------
    op, attributes, opset
        The operator, in ONNX's default domain.
    inputs
        Arrays by position; None is an absent optional input. Floats are converted to float64. Keep inputs away from
        kinks.
    trained
        Positions that get gradients; by default all floating-point inputs.
    outputs
        Number of outputs of the node; the loss is a random combination of the floating-point ones.
    tolerance
        Largest deviation of the slope along random directions, relative to the product of the norms of gradient and
        direction, or to 1 if that is larger.

    Raises
    ------
    ContractError
        There is no rule, it fails, or a gradient has a wrong shape or a wrong value.
    """
    arrays = tuple(a if a is None else _double(np.asarray(a)) for a in inputs)
    floats = [k for k, a in enumerate(arrays) if a is not None and a.dtype == np.float64]
    positions = tuple(floats if trained is None else trained)
    require(
        positions, f"{op}: none of its inputs is a float, so there is no gradient to check; pass an array of floats"
    )
    graph = _graph(op, arrays, positions, attributes or {}, outputs, opset, seed)
    require(
        find_rule(graph.operators[0], opset) is not None,
        f"{op}: no rule is registered for opset {opset}; import the module that registers it",
    )
    try:
        training = differentiate(graph, loss="none")
    except (PoetError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise ContractError(f"{op}: the rule fails: {type(error).__name__}: {error}") from error
    missing = [f"i{k}" for k in positions if f"i{k}" not in training.gradients]
    require(not missing, f"{op}: the rule gives no gradient for input {', '.join(missing).replace('i', '')}")
    values: dict[str, Array] = {name: training.values[name] for name in training.trained}
    try:
        gradients = dict(
            zip(training.gradients, _run(training, tuple(training.gradients.values()), values), strict=True)
        )
    except _evaluation_errors() as error:
        raise ContractError(f"{op}: the rule's nodes don't run in float64: {error}") from error
    draw = np.random.default_rng(seed)
    deviation = {}
    for name, gradient in gradients.items():
        k = int(name[1:])
        expected_shape = graph.tensors[name].shape
        require(
            gradient.shape == expected_shape,
            f"{op}: the gradient of input {k} has shape {gradient.shape}, the input {expected_shape}",
        )
        require(np.isfinite(gradient).all(), f"{op}: the gradient of input {k} is not finite everywhere")
        deviation[f"input {k}"] = _deviation(training, values, name, gradient, draw, f"{op}: input {k}", tolerance)
    return VjpCheck(op, deviation)


def _deviation(
    graph: Graph,
    values: Mapping[str, Array],
    name: str,
    gradient: Array,
    draw: np.random.Generator,
    where: str,
    tolerance: float,
) -> float:
    """Return the largest deviation over three directions; raise ContractError beyond the tolerance."""
    largest = 0.0
    (at_point,) = _run(graph, graph.outputs, values)
    for _ in range(3):
        direction = draw.standard_normal(gradient.shape)
        sides = [
            float(_run(graph, graph.outputs, {**values, name: values[name] + sign * STEP * direction})[0])
            for sign in (1, -1)
        ]
        slope = (sides[0] - sides[1]) / (2 * STEP)
        one_sided = abs(sides[0] + sides[1] - 2 * float(at_point)) / STEP
        scale = max(1.0, float(np.linalg.norm(gradient) * np.linalg.norm(direction)))
        deviation = abs(slope - float(np.sum(gradient * direction))) / scale
        largest = max(largest, deviation)
        # one-sided derivatives that differ by more than 0.2 % indicate a kink
        kink = " (the point seems to lie on a kink: pass other inputs)" if one_sided > 2e-3 * scale else ""
        require(
            deviation <= tolerance,
            f"{where}: along a random direction the slope of the loss is {slope:.9g}, and the rule's gradient says "
            f"{float(np.sum(gradient * direction)):.9g}: they differ by {deviation:.2g}, more than {tolerance:g}{kink}",
        )
    return largest


def _graph(
    op: str,
    inputs: tuple[Array | None, ...],
    trained: tuple[int, ...],
    attributes: Mapping[str, object],
    outputs: int,
    opset: int,
    seed: int,
) -> Graph:
    """Return a graph of the operator, and of a loss that is a random combination of its floating-point outputs."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Array] = {}
    operators: list[Operator] = []

    def add_value(name: str, array: Array, role: Role) -> str:
        values[name] = array
        tensors[name] = Tensor(name, array.shape, array.dtype.name, role)
        return name

    def add_operator(name: str, node: Node, output_types: list[tuple[str, tuple[int, ...], str]]) -> None:
        for output, shape, kind in output_types:
            tensors[output] = Tensor(output, shape, kind, Role.ACTIVATION)
        read = tuple(dict.fromkeys(n for n in node.inputs if n))
        operators.append(Operator(name, node.op_type, (node,), read, tuple(o for o, _, _ in output_types)))

    names = tuple(
        "" if array is None else add_value(f"i{k}", array, Role.PARAMETER if k in trained else Role.CONSTANT)
        for k, array in enumerate(inputs)
    )
    node = Node(op, names, tuple(f"y{k}" for k in range(outputs)), attributes)
    results = _forward(node, values, opset)
    add_operator(op, node, [(f"y{k}", y.shape, y.dtype.name) for k, y in enumerate(results)])
    total = ""
    for k, y in enumerate(results):
        if y.dtype.kind != "f":
            continue
        weight = add_value(f"r{k}", np.random.default_rng([seed, 7, k]).standard_normal(y.shape), Role.CONSTANT)
        add_operator(f"weigh{k}", Node("Mul", (f"y{k}", weight), (f"m{k}",)), [(f"m{k}", y.shape, "float64")])
        add_operator(f"sum{k}", Node("ReduceSum", (f"m{k}",), (f"s{k}",), {"keepdims": 0}), [(f"s{k}", (), "float64")])
        if total:
            add_operator(f"add{k}", Node("Add", (total, f"s{k}"), (f"t{k}",)), [(f"t{k}", (), "float64")])
        total = f"t{k}" if total else f"s{k}"
    require(total, f"{op}: none of its outputs is a float, so there is no loss to differentiate")
    return Graph(
        name=f"check of {op}", tensors=tensors, operators=tuple(operators), inputs=(), outputs=(total,), values=values,
        trained=tuple(f"i{k}" for k in trained), opset=opset,
    )  # fmt: skip


def _forward(node: Node, values: Mapping[str, Array], opset: int) -> list[Array]:
    """Return the outputs of the operator alone."""
    import onnx

    from poetopt.frontends.proto import node_proto

    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [node_proto(node)], "one", [], [onnx.ValueInfoProto(name=n) for n in node.outputs],
            [onnx.numpy_helper.from_array(v, n) for n, v in values.items()],
        ),
        opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8,
    )  # fmt: skip
    try:
        return _evaluate(model, list(node.outputs), {})
    except _evaluation_errors() as error:
        raise ContractError(f"{node.op_type}: the operator itself doesn't run on these inputs: {error}") from error


def _run(graph: Graph, outputs: tuple[str, ...], values: Mapping[str, Array]) -> list[Array]:
    """Return outputs of the graph for other values of its trained inputs."""
    import onnx

    from poetopt.frontends.proto import model_proto

    model = model_proto(graph, outputs)
    for name in graph.trained:
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, values[name].shape))
    return _evaluate(model, list(outputs), values)


def _evaluate(model: Any, outputs: list[str], feeds: Mapping[str, Array]) -> list[Array]:
    """Run a model on onnxruntime, or on onnx's reference evaluator where onnxruntime has no float64 kernel."""
    import onnxruntime as ort
    from onnx.reference import ReferenceEvaluator

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model.SerializeToString(), options)
    except ort.capi.onnxruntime_pybind11_state.NotImplemented:
        return [np.asarray(y) for y in ReferenceEvaluator(model).run(outputs, dict(feeds))]
    return [np.asarray(y) for y in session.run(outputs, dict(feeds))]


def _evaluation_errors() -> tuple[type[Exception], ...]:
    import onnxruntime as ort

    state = ort.capi.onnxruntime_pybind11_state
    return (
        state.Fail, state.InvalidArgument, state.InvalidGraph, state.NotImplemented, state.RuntimeException,
        TypeError, ValueError, RuntimeError,
    )  # fmt: skip


def _double(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype.kind == "f" else array
