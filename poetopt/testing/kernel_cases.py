"""Calls to check a kernel with: random ones of each op, with what onnxruntime computes of them.

`node_case` makes one of an ONNX node, `step_cases` those that the training step of a small network holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.autodiff import differentiate
from poetopt.autodiff.optimizers import with_updates
from poetopt.frontends import load
from poetopt.frontends.proto import model_proto, node_proto, value_info
from poetopt.graph import OWN_DOMAIN, TOGETHER, Graph, Node, Operator, Role, Tensor, TrainingGraph
from poetopt.ops.runtimes.c.kernel import Kernel
from poetopt.ops.runtimes.c.steps import as_run, call_of

if TYPE_CHECKING:
    import onnx

    from poetopt.graph import Array

OPSET = 21

Draw = Callable[[np.random.Generator], "list[Case]"]
"""One or more random cases of an op."""


@dataclass(frozen=True)
class Case:
    """One call of a kernel.

    operator, node
        What it is part of, and the op to be run: a node of it, or one that a run of its nodes amounts to.
    tensors, values
        Shapes of all that the operator names, and constants.
    given, expected
        The inputs of `node`, and outputs that are known, by name.
    """

    operator: Operator
    node: Node
    tensors: Mapping[str, Tensor]
    values: Mapping[str, Array]
    given: Mapping[str, Array]
    expected: Mapping[str, Array]


def cases_of(kernel: Kernel, count: int, seed: int = 0) -> Iterator[Case]:
    """`count` random cases of a kernel's op; none where nobody has said how to draw them.

    Calls that the kernel refuses are drawn again.
    """
    from poetopt.testing.draws import DRAWS

    draw = DRAWS.get((kernel.domain, kernel.op_type))
    random = np.random.default_rng(seed)
    made = tried = 0
    while draw is not None and made < count and tried < 20 * count:
        tried += 1
        for case in draw(random):
            call = call_of(case.operator, case.node, case.tensors)
            if made < count and kernel.refuses(call) is None:
                made += 1
                yield case


def node_case(
    op_type: str,
    *inputs: Array | None,
    outputs: Sequence[str] = ("float32",),
    constants: Sequence[int] = (),
    attributes: Mapping[str, Any] | None = None,
) -> Case:
    """A case of one ONNX node.

    inputs
        Its inputs by position, None for an absent one.
    outputs
        The element types of its outputs, "" for an absent one.
    constants
        Inputs that are known when the code is written, by position.
    """
    read = tuple("" if array is None else f"x{k}" for k, array in enumerate(inputs))
    wrote = tuple(f"y{k}" if dtype else "" for k, dtype in enumerate(outputs))
    node = Node(op_type, read, wrote, attributes or {})
    given = {name: np.asarray(array) for name, array in zip(read, inputs, strict=True) if array is not None}
    wanted = {name: dtype for name, dtype in zip(wrote, outputs, strict=True) if dtype}
    expected = _computed(node, given, wanted)
    known = {name for k, name in enumerate(read) if k in constants}
    tensors = {
        name: Tensor(name, array.shape, array.dtype.name, Role.CONSTANT if name in known else Role.ACTIVATION)
        for name, array in (*given.items(), *expected.items())
    }
    operator = Operator("checked", op_type, (node,), tuple(given), tuple(wanted))
    return Case(operator, node, tensors, {name: given[name] for name in known}, given, expected)


def step_cases(
    model: onnx.ModelProto,
    op_type: str,
    random: np.random.Generator,
    *,
    loss: str = "mse",
    optimizer: str = "none",
    clip: bool = False,
) -> list[Case]:
    """The runs of nodes in a network's training step that amount to `op_type`, on a random batch.

    optimizer, clip
        Whose updates the step has: as one with the gradients where `op_type` is of both; and whether it clips them.
    """
    graph = load(model, train="*")
    assert isinstance(graph, Graph)
    step = with_updates(differentiate(graph, loss=loss), optimizer, fuse=TOGETHER in op_type, clip=clip)
    step = replace(step, values={**step.values, **_settings(step, random)})
    batch = {name: _drawn(step.tensors[name], random) for name in step.inputs}
    found = [
        (operator, node)
        for operator in step.operators
        for node in (*(whole.node for whole in operator.whole), *as_run(operator, step.tensors).nodes)
        if node.domain == OWN_DOMAIN and node.op_type == op_type
    ]
    found = [pair for k, pair in enumerate(found) if pair not in found[:k]]
    if not found:
        return []
    values = {**step.values, **batch}
    # what other operators read or write can be an output of the model; what lies inside of one can't be compared
    seen = {name for operator in step.operators for name in (*operator.inputs, *operator.outputs)}
    wanted = [n for _, node in found for n in (*node.inputs, *node.outputs) if n and n in seen and n not in values]
    proto = model_proto(step, tuple(dict.fromkeys(wanted)))
    session = _session(proto)
    feeds = {given.name: batch[given.name] for given in session.get_inputs()}
    names = [output.name for output in session.get_outputs()]
    values.update(zip(names, session.run(names, feeds), strict=True))
    known = {n: v for n, v in step.values.items() if step.tensors[n].role is Role.CONSTANT}
    return [
        Case(
            operator,
            node,
            step.tensors,
            known,
            {n: values[n] for n in node.inputs if n},
            {n: values[n] for n in node.outputs if n in values},
        )
        for operator, node in found
        if all(n in values for n in node.inputs if n)
    ]


def _settings(step: TrainingGraph, random: np.random.Generator) -> dict[str, Array]:
    """Hyperparameters that make a difference, and states as they are in the middle of training."""
    found = {name: np.abs(_drawn(step.tensors[name], random)) for name in step.optimizer_states}
    for name, tensor in step.hyperparameters.items():
        value = random.integers(1, 1000) if name == "step" else 1e-4 if name == "eps" else random.uniform(0.1, 0.9)
        found[tensor] = np.array(value, step.tensors[tensor].dtype)
    return found


def _drawn(tensor: Tensor, random: np.random.Generator) -> Array:
    if tensor.dtype == "int64":
        return random.integers(0, 2, tensor.shape)
    return random.standard_normal(tensor.shape).astype(tensor.dtype)


def _computed(node: Node, given: Mapping[str, Array], wanted: Mapping[str, str]) -> dict[str, Array]:
    import onnx

    inputs = [value_info(Tensor(n, a.shape, a.dtype.name, Role.INPUT)) for n, a in given.items()]
    outputs = []
    for name, dtype in wanted.items():
        info = value_info(Tensor(name, (), dtype, Role.ACTIVATION))
        info.type.tensor_type.ClearField("shape")
        outputs.append(info)
    graph = onnx.helper.make_graph([node_proto(node)], "checked", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=10)
    return dict(zip(wanted, _session(model).run(list(wanted), dict(given)), strict=True))


def _session(model: onnx.ModelProto) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
