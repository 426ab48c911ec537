"""A joint graph of AOTAutograd as a Problem: its storages are the tensors, its kernels the operators, views cost nothing.

Imports torch: only `po.torch.compile` and `po.torch.plan` import it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor
from poetopt.util.errors import ModelError

FLOP_PER_S = 5e10
"""Of a kernel that multiplies; with the bytes below, about what one core does. Only their ratio decides."""
BYTES_PER_S = 1e10
"""Of memory that a kernel reads and writes."""
CALL_S = 2e-6
"""Of calling a kernel, however small."""
FORWARD, BACKWARD = "must_be_in_forward", "must_be_in_backward"
"""torch's partitioner's names of nodes that it may not move."""
TANGENTS = "tangents"
"""The operator between forward and backward: whoever calls backward hands over the outputs' gradients."""


@dataclass
class Step:
    """An operator of the problem in the joint graph.

    node
        The call; None for the tangents.
    outputs
        Nodes that stand for its outputs: itself, or what picks from its tuple.
    reads, writes
        Storages, as indices of tensors.
    """

    node: fx.Node | None
    outputs: list[fx.Node] = field(default_factory=list)
    reads: set[int] = field(default_factory=set)
    writes: list[int] = field(default_factory=list)
    backward: bool = False
    recomputable: bool = True
    time_s: float = 0.0


@dataclass
class Joint:
    """A joint graph, read.

    module
        The graph itself, with a copy in front of each input that forward changes.
    forward_outputs, backward_outputs
        Nodes, or None where there is nothing, in order.
    steps
        Operators in the problem's order; the tangents at `boundary`.
    made_by
        The operator of each node that is an output of one.
    held
        The storage of each node with one that the step allocates; inputs of the module have none.
    sizes
        Bytes of each storage.
    dynamic
        Whether sizes vary from call to call: then all is said of the first call's.
    """

    module: fx.GraphModule
    forward_outputs: list[fx.Node | None]
    backward_outputs: list[fx.Node | None]
    steps: list[Step] = field(default_factory=list)
    boundary: int = -1
    made_by: dict[fx.Node, int] = field(default_factory=dict)
    held: dict[fx.Node, int] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    dynamic: bool = False

    def problem(self, name: str) -> Problem:
        """The problem: seconds stand for joules, outputs and gradients are there at the end, nothing is paged."""
        producer = {t: k for k, step in enumerate(self.steps) for t in step.writes}
        results = {self.held[n] for n in (*self.forward_outputs, *self.backward_outputs) if n in self.held}
        tensors = tuple(
            ProblemTensor(f"{t}", size, producer[t], result=t in results) for t, size in enumerate(self.sizes)
        )
        operators = tuple(
            ProblemOperator(
                TANGENTS if step.node is None else step.node.name,
                tuple(sorted(step.reads)),
                tuple(sorted(step.writes)),
                step.time_s,
                step.time_s,
                recomputable=step.recomputable,
                backward=step.backward,
                kind=TANGENTS if step.node is None else str(step.node.target),
            )
            for step in self.steps
        )
        return Problem(name, "torch", operators, tensors, paging=False)


def read(module: fx.GraphModule, forward_outputs: int) -> Joint:
    """The joint graph's operators and storages, in its own order. Raises ModelError for what can't be planned.

    Storages are those of its fake tensors, so that a view, an expanded or a detached tensor is its base. An operator
    that draws random numbers, changes what it reads, or calls another graph is run once. So is the copy that is put in
    front of an input that forward changes: backward would read the new value.
    """
    module.graph.eliminate_dead_code()
    outputs = tree_leaves(next(iter(module.graph.find_nodes(op="output"))).args)
    joint = Joint(module, outputs[:forward_outputs], outputs[forward_outputs:])
    _copy_changed(joint)
    storages: dict[StorageWeakRef, int] = {}  # of the step's own
    given: set[StorageWeakRef] = set()
    tangents = Step(None, backward=True, recomputable=False)
    late = False
    for node in module.graph.nodes:
        if node.op == "output":
            break
        joint.dynamic |= any(isinstance(value, torch.SymInt) for value in tree_leaves(node.meta.get("val")))
        if node.op in ("placeholder", "get_attr"):
            if is_tangent(node):
                _write(joint, tangents, node, storages)
            else:
                given.update(storages_of(node))
            continue
        if node.target is operator.getitem and node.args[0] in joint.made_by:
            _pick(joint, node, storages)
            continue
        found = list(storages_of(node))
        read_here = {joint.held[n] for n in node.all_input_nodes if n in joint.held}
        new = [s for s in found if s not in storages and s not in given]
        if not new and not _changes(node) and (found or is_symbolic(node)):
            if found and found[0] in storages:
                joint.held[node] = storages[found[0]]
            continue
        if new and len(new) < len(set(found)):
            raise ModelError(f"{node.target}: some of its outputs are views and some are not; that can't be planned")
        step = Step(node, reads=read_here, recomputable=_recomputable(node), time_s=_seconds(node))
        step.backward = node.meta.get("partitioner_tag") in ("is_backward", BACKWARD) or any(
            joint.steps[joint.made_by[base]].backward for base in _made(joint, node)
        )
        for n in node.all_input_nodes:  # what isn't picked out of a tuple
            if n in joint.made_by and n not in joint.held:
                step.reads.update(joint.steps[joint.made_by[n]].writes)
        if step.backward and not late:
            joint.boundary, late = len(joint.steps), True
            joint.steps.append(tangents)
        elif late and not step.backward:
            step.backward = True  # of no tangent, and yet only backward wants it there
        joint.made_by[node] = len(joint.steps)
        joint.steps.append(step)
        if not isinstance(node.meta.get("val"), (tuple, list)):
            _write(joint, step, node, storages)
        else:
            for s in found:
                _new(joint, step, s, storages)
    if not late:
        raise ModelError("no gradient depends on what is trained; nothing is to be planned")
    return joint


def _made(joint: Joint, node: fx.Node) -> Iterator[fx.Node]:
    """The operators' outputs that a node reads, through views."""
    for n in node.all_input_nodes:
        if n in joint.made_by:
            yield n


def is_tangent(node: fx.Node) -> bool:
    """Says whether a placeholder is an output's gradient."""
    return node.op == "placeholder" and "tangents" in str(node.target)


def is_symbolic(node: fx.Node) -> bool:
    """Says whether a node's value is a size and no tensor."""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def bytes_of(tensor: Any) -> int:
    """Bytes of a fake tensor's storage; of the first call, where sizes vary."""
    size = tensor.untyped_storage().nbytes()
    return size if isinstance(size, int) else int(size.node.hint or 0)


def tensors_of(node: fx.Node) -> list[Any]:
    """The fake tensors of a node's value."""
    return [value for value in tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor)]


def storages_of(node: fx.Node) -> Iterator[StorageWeakRef]:
    """The storages of `tensors_of`, one each. Raises ModelError where a tensor is no strided one."""
    for value in tensors_of(node):
        if value.layout is not torch.strided:
            raise ModelError(f"{node.name}: {value.layout} tensors can't be planned for")
        yield StorageWeakRef(value.untyped_storage())


def _new(joint: Joint, step: Step, storage: StorageWeakRef, storages: dict[StorageWeakRef, int]) -> int:
    if storage not in storages:
        storages[storage] = len(joint.sizes)
        step.writes.append(storages[storage])
        joint.sizes.append(0)
    return storages[storage]


def _write(joint: Joint, step: Step, node: fx.Node, storages: dict[StorageWeakRef, int]) -> None:
    """Note that a node is an output of a step, with its storage."""
    step.outputs.append(node)
    for value, storage in zip(tensors_of(node), storages_of(node), strict=True):
        joint.held[node] = _new(joint, step, storage, storages)
        joint.sizes[joint.held[node]] = bytes_of(value)


def _pick(joint: Joint, node: fx.Node, storages: dict[StorageWeakRef, int]) -> None:
    """Note what picks from an operator's tuple."""
    made = joint.made_by[node.args[0]]
    joint.made_by[node] = made
    _write(joint, joint.steps[made], node, storages)


def _schema(node: fx.Node) -> Any:
    return node.target._schema if isinstance(node.target, torch._ops.OpOverload) else None


def _changes(node: fx.Node) -> bool:
    """Says whether it changes something that is there, or does something besides computing."""
    schema = _schema(node)
    return (schema is not None and schema.is_mutable) or node.is_impure()


def _recomputable(node: fx.Node) -> bool:
    """Says whether a second run gives the same, and nothing else."""
    if _schema(node) is None:
        return False
    if torch.Tag.nondeterministic_seeded in node.target.tags:
        named = [argument.name for argument in node.target._schema.arguments]
        given = {**dict(zip(named, node.args, strict=False)), **node.kwargs}
        return "dropout_p" in named and given.get("dropout_p", 0.0) == 0.0
    return not _changes(node) and not node.meta.get("poetopt_once", False)


def _copy_changed(joint: Joint) -> None:
    """Put a copy in front of each input that forward changes, for all who read its value."""
    graph = joint.module.graph
    descriptions = tree_leaves(next(iter(graph.find_nodes(op="output"))).meta.get("desc", []))
    changed = {
        str(getattr(description.mutated_input, "idx", ""))
        for description in descriptions
        if hasattr(description, "mutated_input")
    }
    for node in list(graph.find_nodes(op="placeholder")):
        own = str(getattr(node.meta.get("desc"), "idx", None))
        copies = [u for u in node.users if _schema(u) is not None and u.target._schema.is_mutable and u.args[0] is node]
        if own not in changed and not copies:
            continue
        readers = [user for user in node.users if user not in copies and user.op != "output"]
        if not readers:
            continue
        with graph.inserting_before(min(readers)):
            copy = graph.call_function(torch.ops.aten.clone.default, (node,))
        value = node.meta["val"]
        copy.meta = {**node.meta, "poetopt_once": True, "partitioner_tag": "is_forward"}
        with value.fake_mode:
            copy.meta["val"] = value.clone()
        for user in readers:
            user.replace_input_with(node, copy)


def _seconds(node: fx.Node) -> float:
    """Time of a kernel by its FLOPs and the bytes that it reads and writes."""
    moved = sum(_dense(value) for value in tensors_of(node))
    moved += sum(_dense(value) for n in node.all_input_nodes for value in tensors_of(n))
    return CALL_S + moved / BYTES_PER_S + _flops(node) / FLOP_PER_S


def _dense(value: Any) -> int:
    return _number(value.numel()) * int(value.element_size())


def _number(size: Any) -> int:
    return int(size) if isinstance(size, int) else int(size.node.hint or 0)


def _flops(node: fx.Node) -> float:
    """Multiplications and additions, where torch counts them; an element's few otherwise."""
    count = flop_registry.get(getattr(node.target, "_overloadpacket", None))
    if count is None:
        return 0.0
    values = fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    try:
        found = float(count(*values[0], **values[1], out_val=node.meta.get("val")))
    except (TypeError, ValueError, AssertionError, IndexError):
        return 0.0  # a form that torch's formula doesn't know; its bytes count
    return found if math.isfinite(found) else 0.0
