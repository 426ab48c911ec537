"""`check_runtime`: whether what a runtime says of RAM can be planned with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from poetopt.autodiff import differentiate
from poetopt.autodiff.passes.blocks import blocks
from poetopt.autodiff.passes.in_place import in_place
from poetopt.devices import device
from poetopt.devices.cost import cost
from poetopt.frontends import load
from poetopt.graph import Graph, Node, Operator, Role, Tensor, TrainingGraph
from poetopt.ops.nodes import is_inner_view
from poetopt.ops.runtimes import runtime as runtime_of
from poetopt.ops.runtimes.contract import InnerLayout, Runtime
from poetopt.plan.assemble import store_all
from poetopt.plan.layout import lay_out
from poetopt.plan.simulate import simulate
from poetopt.testing.contract import ContractError, require
from poetopt.util.errors import DeviceError, ModelError, PoetError

NETWORKS = ("mlp", "lenet", "bert-tiny")
MOST_ALIGNMENT = 1 << 20
KERNELS = (0, 1, 4_095, 4_096, 65_536, 1_000_000)
"""Bytes that the largest kernel allocates."""


@dataclass(frozen=True)
class RuntimeCheck:
    """What `check_runtime` did.

    operators, in_place
        Operators whose workspaces were looked at, and nodes in them that write over an operand.
    """

    name: str
    version: str
    networks: tuple[str, ...]
    operators: int
    in_place: int


def check_runtime(given: str | Runtime) -> RuntimeCheck:
    """Hold a runtime against its contract (`poetopt.ops.runtimes.contract.Runtime`), on training steps of small
    networks.

    given
        Its name, or the object.

    Checked are: name, version and alignment; that answers are the same when asked again; that what a workspace holds at
    one time doesn't overlap, is aligned, and isn't written over before it is read; that inputs of an operator stay as
    they are; that only operands that `in_place` names are written over; that the first variant is plain; that the
    reserve is at least what kernels allocate, and doesn't fall; that what works in place and blocks can be scheduled,
    laid out and simulated.

    Only running them tells whether kernels give the same bits in place, and allocate no more than is said.
    Raises ContractError for what is broken.
    """
    try:
        runtime = runtime_of(given) if isinstance(given, str) else given
    except DeviceError as error:
        raise ContractError(str(error)) from error
    where = f"runtime '{runtime.name}'"
    require(str(runtime.name).strip() and str(runtime.version).strip(), f"{where}: it needs a name and a version")
    alignment = runtime.alignment
    require(
        1 <= alignment <= MOST_ALIGNMENT and alignment & (alignment - 1) == 0,
        f"{where}: an alignment of {alignment} is no power of two up to {MOST_ALIGNMENT}",
    )
    _reserve(runtime, where)
    _unknown_nodes(runtime, where)
    operators = written_over = 0
    for network in NETWORKS:
        graph = load(network)
        assert isinstance(graph, Graph)
        step = differentiate(graph)
        try:
            joined = in_place(step, runtime)
            scheduled = (step, joined, blocks(joined, runtime))
        except PoetError as error:
            raise ContractError(f"{where}: {network} can't be scheduled: {error}") from error
        for one in scheduled:
            _notes(runtime, one, where)
            for operator in one.operators:
                written_over += _operator(runtime, operator, one.tensors, f"{where}: {network}, '{operator.name}'")
            operators += len(one.operators)
            _planned(runtime, one, f"{where}: {network}")
    return RuntimeCheck(runtime.name, runtime.version, NETWORKS, operators, written_over)


def _reserve(runtime: Runtime, where: str) -> None:
    found = [runtime.reserve_bytes(kernels) for kernels in KERNELS]
    require(
        all(reserve >= kernels for reserve, kernels in zip(found, KERNELS, strict=True)),
        f"{where}: for kernels of {KERNELS} bytes it reserves {found}; must be at least as many",
    )
    require(found == sorted(found), f"{where}: the reserve falls as kernels take more: {found} for {KERNELS}")


def _unknown_nodes(runtime: Runtime, where: str) -> None:
    """What it says where it knows nothing: a node of somebody's domain, a tensor that isn't there."""
    foreign = Node("Relu", ("x",), ("y",), domain="somebody.else")
    require(not runtime.in_place(foreign), f"{where}: {foreign.domain}.Relu isn't ONNX's, and nothing is known of it")
    tensor = Tensor("x", (4,), "float32", Role.ACTIVATION)
    nodes = (Node("Neg", ("x",), ("a",)), Node("Neg", ("a",), ("y",)))
    operator = Operator("o", "Neg", nodes, ("x",), ("y",))
    try:
        runtime.workspace(operator, {"x": tensor, "y": replace(tensor, name="y")})
    except ModelError:
        return
    raise ContractError(f"{where}: the workspace of an operator that reads a tensor unknown to the graph is an error")


def _notes(runtime: Runtime, graph: TrainingGraph, where: str) -> None:
    require(all(isinstance(note, str) and note for note in runtime.notes(graph)), f"{where}: its notes are no texts")


def _operator(runtime: Runtime, operator: Operator, tensors: Mapping[str, Tensor], where: str) -> int:
    """Hold what is said of one operator against the contract; how many of its nodes write over an operand."""
    layout = runtime.workspace(operator, tensors)
    require(layout == runtime.workspace(operator, tensors), f"{where}: asked again, it has another workspace")
    variants = tuple(runtime.variants(operator, tensors))
    require(variants, f"{where}: there is no variant of it")
    streamed = (*variants[0].streamed_in, *variants[0].streamed_out)
    require(not streamed, f"{where}: the first variant streams {', '.join(streamed)}")
    require(variants[0].workspace == layout, f"{where}: the first variant has another workspace than the operator")
    require(len({variant.name for variant in variants}) == len(variants), f"{where}: two variants have one name")
    for variant in variants:
        strange = {*variant.streamed_in} - {*operator.inputs} | {*variant.streamed_out} - {*operator.outputs}
        require(not strange, f"{where}: the variant {variant.name} streams {', '.join(strange)}, which isn't its own")
        _fits(operator, tensors, variant.workspace, runtime.alignment, where)
    wide = 2 * runtime.alignment
    _fits(operator, tensors, runtime.workspace(operator, tensors, wide), wide, where)
    return _written_over(runtime, operator, layout, where)


def _fits(operator: Operator, tensors: Mapping[str, Tensor], layout: InnerLayout, alignment: int, where: str) -> None:
    """What a workspace holds at one time lies apart, at multiples of the alignment, and within its size."""
    require(len(layout.kernel_bytes) == len(operator.nodes), f"{where}: not one figure of kernels' bytes for each node")
    require(all(nbytes >= 0 for nbytes in layout.kernel_bytes), f"{where}: kernels take {layout.kernel_bytes} bytes")
    users: dict[str, list[int]] = {}
    for k, node in enumerate(operator.nodes):
        for name in filter(None, (*node.inputs, *node.outputs)):
            root = layout.storage.get(name, name)
            require(root not in layout.storage, f"{where}: '{name}' lies in '{root}', which lies in another again")
            require(tensors[name].nbytes <= tensors[root].nbytes, f"{where}: '{name}' is larger than '{root}'")
            users.setdefault(root, []).append(k)
    spans = [
        (offset, offset + tensors[name].nbytes, users[name], name)
        for name, offset in layout.offsets.items()
        if name in users and tensors[name].nbytes
    ]
    for start, end, _, name in spans:
        require(
            start >= 0 and start % alignment == 0 and end <= layout.temporaries_bytes,
            f"{where}: '{name}' at {start} to {end} of {layout.temporaries_bytes}; must start at a multiple of "
            f"{alignment} and end within",
        )
    spans.sort()
    for k, (_, end, times, name) in enumerate(spans):
        for other, _, theirs, overlapping in spans[k + 1 :]:
            if other >= end:
                break
            require(
                times[-1] < theirs[0] or theirs[-1] < times[0],
                f"{where}: '{name}' and '{overlapping}' are needed at one time, and share bytes",
            )


def _written_over(runtime: Runtime, operator: Operator, layout: InnerLayout, where: str) -> int:
    """Walk the nodes with memory that remembers whose value it holds."""
    memory = {name: name for name in operator.inputs}
    value = dict(memory)
    count = 0

    def root(name: str) -> str:
        return layout.storage.get(name, name)

    for k, node in enumerate(operator.nodes):
        over = runtime.in_place(node)
        require(
            all(0 <= place < max(len(node.inputs), 2) for place in over),
            f"{where}: node {k} ({node.op_type}) has no inputs {over} to write over",
        )
        for name in filter(None, node.inputs):
            held = memory.setdefault(root(name), name)
            require(
                held == value.setdefault(name, name),
                f"{where}: node {k} ({node.op_type}) reads '{name}' where '{held}' lies by then",
            )
        if operator.view or is_inner_view(node, layout.storage):
            for name in filter(None, node.outputs):
                value[name] = value[node.inputs[0]]
                memory.setdefault(root(name), value[name])
            continue
        allowed = {node.inputs[place] for place in over if place < len(node.inputs)}
        for written in filter(None, node.outputs):
            shared = [name for name in filter(None, node.inputs) if root(name) == root(written)]
            wrong = [name for name in shared if name not in allowed]
            require(
                not wrong,
                f"{where}: node {k} ({node.op_type}) writes over {', '.join(wrong)}, which `in_place` doesn't name",
            )
            count += bool(shared)
            value[written] = memory[root(written)] = written
    for name in (*operator.inputs, *operator.outputs):
        require(memory.get(root(name)) == value.get(name), f"{where}: '{name}' is written over in the end")
    return count


def _planned(runtime: Runtime, graph: TrainingGraph, where: str) -> None:
    """Its answers make a problem whose plainest plan is sound."""
    try:
        problem = cost(graph, device("a72"), runtime)
        simulate(lay_out(store_all(problem)))
    except PoetError as error:
        raise ContractError(f"{where}: no step can be planned: {error}") from error
    require(problem.alignment == runtime.alignment, f"{where}: the plan's alignment is {problem.alignment}")
