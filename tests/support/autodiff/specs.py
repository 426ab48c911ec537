"""The table of gradient checks: at least one row for each rule.

A row is one operator on concrete inputs. `trained` inputs get gradients; the loss is a fixed random
combination of all floating-point outputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from poetopt.graph import Graph, Node, Operator, Role, Tensor

Array = NDArray[Any]


@dataclass(frozen=True)
class Spec:
    """One operator to check.

    inputs
        Arrays by position; `None` is an absent optional input. Floats are float64 (float32 stays so: settings).
    trained
        Positions that get gradients.
    outputs
        How many outputs the node has.
    ignored
        Outputs that the loss leaves out.
    """

    op: str
    inputs: tuple[Array | None, ...]
    trained: tuple[int, ...] = (0,)
    attributes: Mapping[str, object] = field(default_factory=dict)
    outputs: int = 1
    ignored: tuple[int, ...] = ()
    label: str = ""
    opset: int = 18

    @property
    def name(self) -> str:
        """For test ids."""
        return f"{self.op}-{self.label}" if self.label else self.op


def normal(*shape: int, seed: int = 0, away: float = 0.05) -> Array:
    """Normal numbers at least `away` from zero, where many functions have a kink."""
    x = np.random.default_rng([seed, *shape]).standard_normal(shape)
    return np.asarray(np.where(np.abs(x) < away, np.where(x < 0, -1, 1) * (np.abs(x) + away), x))


def positive(*shape: int, seed: int = 0) -> Array:
    """Numbers between 0.5 and 2."""
    return np.asarray(np.random.default_rng([seed, *shape]).uniform(0.5, 2.0, shape))


def distinct(*shape: int, seed: int = 0) -> Array:
    """Numbers all at least 0.01 apart: a small step changes no maximum."""
    size = int(np.prod(shape))
    return np.asarray(np.random.default_rng([seed, *shape]).permutation(size).reshape(shape) * 0.013 - size * 0.006)


def whole(*shape: int, seed: int = 0) -> Array:
    """Integers and 0.3: divided by 1, 2 or 4 they are far from an integer, where a remainder jumps."""
    return np.asarray(np.random.default_rng([seed, *shape]).integers(-9, 10, shape) + 0.3)


def ints(*values: int) -> Array:
    """An int64 vector."""
    return np.array(values, np.int64)


def graph_of(spec: Spec, dtype: str = "float64") -> Graph:
    """A graph whose only output is the scalar loss of the row's outputs."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Array] = {}
    operators: list[Operator] = []

    def value(name: str, array: Array, role: Role) -> str:
        typed = array.astype(dtype) if array.dtype == np.float64 else array
        values[name] = typed
        tensors[name] = Tensor(name, typed.shape, typed.dtype.name, role)
        return name

    def operate(name: str, node: Node, outputs: list[tuple[str, tuple[int, ...], str]]) -> None:
        for output, shape, kind in outputs:
            tensors[output] = Tensor(output, shape, kind, Role.ACTIVATION)
        read = tuple(dict.fromkeys(n for n in node.inputs if n))
        view = node.op_type in {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"}
        operators.append(Operator(name, node.op_type, (node,), read, tuple(o for o, _, _ in outputs), view=view))

    names = tuple(
        "" if array is None else value(f"i{k}", array, Role.PARAMETER if k in spec.trained else Role.CONSTANT)
        for k, array in enumerate(spec.inputs)
    )
    node = Node(spec.op, names, tuple(f"y{k}" for k in range(spec.outputs)), spec.attributes)
    results = evaluate(node, values, spec.opset)
    operate("op", node, [(f"y{k}", y.shape, y.dtype.name) for k, y in enumerate(results)])
    total = ""
    for k, y in enumerate(results):
        if y.dtype.kind != "f" or k in spec.ignored:
            continue
        weight = value(f"r{k}", normal(*y.shape, seed=7 + k), Role.CONSTANT)
        operate(f"weigh{k}", Node("Mul", (f"y{k}", weight), (f"m{k}",)), [(f"m{k}", y.shape, dtype)])
        operate(f"sum{k}", Node("ReduceSum", (f"m{k}",), (f"s{k}",), {"keepdims": 0}), [(f"s{k}", (), dtype)])
        if total:
            operate(f"add{k}", Node("Add", (total, f"s{k}"), (f"t{k}",)), [(f"t{k}", (), dtype)])
        total = f"t{k}" if total else f"s{k}"
    return Graph(
        name=spec.name, tensors=tensors, operators=tuple(operators), inputs=(), outputs=(total,), values=values,
        trained=tuple(f"i{k}" for k in spec.trained), opset=spec.opset,
    )  # fmt: skip


def evaluate(node: Node, values: Mapping[str, Array], opset: int) -> list[Array]:
    """The outputs of one node, by onnxruntime; where it has no float64 kernel, of the right type but less exact."""
    import onnx
    import onnxruntime as ort

    from poetopt.frontends.proto import node_proto

    outputs = [onnx.ValueInfoProto(name=n) for n in node.outputs]
    weights = [onnx.numpy_helper.from_array(v, n) for n, v in values.items()]
    model = onnx.helper.make_model(
        onnx.helper.make_graph([node_proto(node)], "one", [], outputs, weights),
        opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=8,
    )  # fmt: skip
    options = ort.SessionOptions()
    options.log_severity_level = 4
    errors = ort.capi.onnxruntime_pybind11_state
    try:
        return [np.asarray(y) for y in ort.InferenceSession(model.SerializeToString(), options).run(None, {})]
    except (errors.Fail, errors.NotImplemented, errors.InvalidGraph, errors.RuntimeException):
        if not any(v.dtype == np.float64 for v in values.values()):
            raise
        single = {name: v.astype(np.float32) if v.dtype == np.float64 else v for name, v in values.items()}
        results = evaluate(node, single, opset)
        return [y.astype(np.float64) if y.dtype == np.float32 else y for y in results]
