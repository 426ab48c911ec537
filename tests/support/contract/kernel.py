"""`check_kernel` holds a kernel of the runtime `c` to what onnxruntime computes, and to its memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.frontends.proto import node_proto, value_info
from poetopt.graph import Node, Operator, Role, Tensor
from poetopt.ops.runtimes.c.kernel import Kernel
from poetopt.ops.runtimes.c.steps import KernelStep, call_of
from poetopt.testing.contract import ContractError, require
from poetopt.util.errors import PoetError
from tests.support.contract.kernel_program import KernelOutputs, KernelTrial, run

if TYPE_CHECKING:
    import onnx

    from poetopt.graph import Array

OPSET = 21

TOLERANCE = 2e-5
"""Of the largest element of an output, and of `LEAST` where all are smaller."""
LEAST = 0.05


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


@dataclass(frozen=True)
class KernelCheck:
    """What `check_kernel` did.

    cases, in_place
        Calls that were run, and those of them that were run again with the output on an input.
    deviation
        The largest difference from onnxruntime's result, relative to the largest element of an output.
    sanitized
        Whether it was compiled with the address and undefined behaviour sanitizers.
    """

    op: str
    cases: int
    in_place: int
    deviation: float
    sanitized: bool


def check_kernel(
    kernel: Kernel, cases: Iterable[Case], *, tolerance: float = TOLERANCE, optimize: str = "-O1"
) -> KernelCheck:
    """Hold a kernel against onnxruntime's own of the same node, or of the nodes that its op stands for.

    cases
        Calls of its op: `node_case` makes one.
    optimize
        The compiler's level.

    Everything is one C program for the machine's compiler, with all warnings, and with its sanitizers where it has
    them. Each call is run twice with every byte of outputs and scratch poisoned another way: the results must be the
    same bits, so nothing is read that wasn't written. It is run again on each input that `in_place` names: the same
    bits. Inputs must stay as they are.

    Raises ContractError for what is broken, BackendUnavailableError where there is no compiler.
    """
    return check_kernels({kernel: cases}, tolerance=tolerance, optimize=optimize)[0]


def check_kernels(
    cases: Mapping[Kernel, Iterable[Case]], *, tolerance: float = TOLERANCE, optimize: str = "-O1"
) -> tuple[KernelCheck, ...]:
    """`check_kernel` of several, in one program."""
    trials: list[KernelTrial] = []
    spans: list[tuple[int, int]] = []
    for kernel, own in cases.items():
        given, op = list(own), _name(kernel)
        require(given, f"kernel {op}: there are no cases to check it with; give some")
        spans.append((len(trials), len(trials) + len(given)))
        trials += [_trial(kernel, case, op) for case in given]
    with tempfile.TemporaryDirectory(prefix="poetopt-") as folder:
        try:
            ran, sanitized = run(trials, Path(folder), optimize)
        except PoetError as error:
            if isinstance(error, ContractError) or error.exit_code == 6:
                raise
            raise ContractError(f"kernel {', '.join(map(_name, cases))}: {error}") from error
    found = []
    for kernel, (first, end) in zip(cases, spans, strict=True):
        deviation = max(_compared(trials[k], ran[k], tolerance) for k in range(first, end))
        again = sum(len(ran[k].over) for k in range(first, end))
        found.append(KernelCheck(_name(kernel), end - first, again, deviation, sanitized))
    return tuple(found)


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


def _name(kernel: Kernel) -> str:
    return f"{kernel.domain}.{kernel.op_type}".lstrip(".")


def _trial(kernel: Kernel, case: Case, op: str) -> KernelTrial:
    """The call of `kernel` in a case. Raises ContractError where it refuses it."""
    node = case.node
    call = replace(call_of(case.operator, node, case.tensors), values=case.values)
    where = f"kernel {op}: {_described(case)}"
    why = kernel.refuses(replace(call, values={}))
    require(why is None, f"{where}: it refuses that: {why}")
    scratch = kernel.scratch_bytes(replace(call, values={}))
    require(scratch >= 0, f"{where}: it asks for {scratch} bytes of scratch")
    missing = kernel.missing(call)
    require(missing is None, f"{where}: {missing}")
    return KernelTrial(KernelStep(call, kernel, 0, scratch), case.given, case.expected, where)


def _described(case: Case) -> str:
    shapes = ", ".join(str(case.tensors[name].shape) if name else "none" for name in case.node.inputs)
    attributes = ", ".join(f"{name}={value}" for name, value in case.node.attributes.items())
    return f"of {shapes}{' with ' + attributes if attributes else ''}"


def _compared(trial: KernelTrial, ran: KernelOutputs, tolerance: float) -> float:
    """The deviation of a call's outputs from what onnxruntime computed. Raises ContractError beyond the tolerance."""
    worst = 0.0
    for name, found in ran.first.items():
        where = f"{trial.where}: output '{name}'"
        require(
            found.tobytes() == ran.second[name].tobytes(),
            f"{where}: its bytes depend on what lay in outputs or scratch before; it reads what it has not written, or "
            "leaves elements unwritten",
        )
        for way, over in ran.over.items():
            require(found.tobytes() == over[name].tobytes(), f"{where}: other bits where {way}, which is allowed")
        want = trial.expected.get(name)
        if want is None:
            continue
        require(found.shape == want.shape, f"{where}: onnxruntime's has shape {want.shape}")
        if not found.size:
            continue
        if found.dtype.kind != "f":
            require(np.array_equal(found, want), f"{where}: onnxruntime's is another")
            continue
        finite = np.isfinite(want)
        require(np.array_equal(found[~finite], want[~finite], equal_nan=True), f"{where}: other infinities")
        scale = max(float(np.abs(want[finite]).max(initial=0.0)), LEAST)
        off = float(np.abs(np.subtract(found[finite], want[finite], dtype=np.float64)).max(initial=0.0)) / scale
        require(
            off <= tolerance, f"{where}: {off:.2g} of its largest element from onnxruntime's, more than {tolerance:g}"
        )
        worst = max(worst, off)
    return worst


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
    return dict(zip(wanted, session_of(model).run(list(wanted), dict(given)), strict=True))


def session_of(model: onnx.ModelProto) -> Any:
    """One that leaves the graph as it is, on one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
