"""A joint graph of AOTAutograd as a Problem: its storages are the tensors, its kernels the operators; views are free.

Imports torch: only `po.torch.compile` and `po.torch.plan` import it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Any

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.torch.timing import seconds_of, size_of
from poetopt.util.errors import ModelError

FORWARD, BACKWARD = "must_be_in_forward", "must_be_in_backward"
"""torch's partitioner's names of nodes that it may not move."""
ONCE = "poetopt_once"
"""In a node's meta: a second run would give something else."""
TANGENTS, END = "tangents", "end"
"""Operators of the problem alone: whoever calls backward hands over the outputs' gradients, and reads all others."""


@dataclass
class JointStep:
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
    lasting
        Which of forward's outputs stay: not what is written into inputs as forward ends.
    steps
        Operators in the problem's order; the tangents at `boundary`.
    made_by
        The operator of each node that is an output of one.
    held
        The storage of each node with one that the step allocates; inputs of the module have none.
    sizes
        Bytes of each storage.
    """

    module: fx.GraphModule
    forward_outputs: list[fx.Node | None]
    backward_outputs: list[fx.Node | None]
    lasting: list[int]
    steps: list[JointStep] = field(default_factory=list)
    boundary: int = -1
    made_by: dict[fx.Node, int] = field(default_factory=dict)
    held: dict[fx.Node, int] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)

    def problem(self, name: str, transfers: Sequence[Transfers] = ()) -> Problem:
        """The problem: seconds stand for joules, and each kernel of backward runs once.

        transfers
            Of each storage; nothing is paged where none are given.

        The outputs, their gradients and those of parameters are there to the end. What forward writes into its inputs
        is there when forward ends.
        """
        kept = {self.held[node] for node in self.kept if node in self.held}
        moved = transfers or repeat(Transfers(), len(self.sizes))
        tensors = [
            ProblemTensor(f"{t}", size, self.producer[t], move)
            for t, (size, move) in enumerate(zip(self.sizes, moved, strict=True))
        ]
        operators = [
            ProblemOperator(
                TANGENTS if step.node is None else step.node.name,
                tuple(sorted(step.reads)),
                tuple(sorted(step.writes)),
                step.time_s,
                step.time_s,
                recomputable=step.recomputable and not step.backward and kept.isdisjoint(step.writes),
                backward=step.backward,
                kind=TANGENTS if step.node is None else str(step.node.target),
            )
            for step in self.steps
        ]
        operators.append(ProblemOperator(END, tuple(sorted(kept)), (), 0.0, 0.0, recomputable=False, backward=True))
        return Problem(name, "torch", tuple(operators), tuple(tensors), paging=bool(transfers), placed=False)

    @cached_property
    def producer(self) -> dict[int, int]:
        """The operator that writes each storage."""
        return {t: k for k, step in enumerate(self.steps) for t in step.writes}

    @property
    def kept(self) -> list[fx.Node]:
        """Nodes whose storages are there to the end, once they are."""
        own = (self.forward_outputs[k] for k in self.lasting)
        tangents = self.steps[self.boundary].outputs
        return [node for node in (*own, *tangents, *self.backward_outputs) if node is not None]


def read(module: fx.GraphModule, forward_outputs: int, measure: bool) -> Joint:
    """The joint graph's operators and storages, in its own order. Raises ModelError for what can't be planned.

    Storages are those of its fake tensors, so that a view, an expanded or a detached tensor is its base. An operator
    that draws random numbers, changes what it reads, or calls another graph is run once. So is the copy that is put in
    front of an input that forward changes: backward would read the new value.
    """
    module.graph.eliminate_dead_code()
    lasting = _copy_changed(module.graph, forward_outputs)
    _draw_apart(module.graph)
    outputs = tree_leaves(next(iter(module.graph.find_nodes(op="output"))).args)
    joint = Joint(module, outputs[:forward_outputs], outputs[forward_outputs:], lasting)
    storages: dict[StorageWeakRef, int] = {}  # of the step's own
    given: set[StorageWeakRef] = set()
    tangents = JointStep(None, backward=True, recomputable=False)
    forward, backward = _halves(joint)
    for place, node in enumerate([*forward, *backward]):
        if node.op in ("placeholder", "get_attr"):
            if is_tangent(node):
                _write(joint, tangents, node, storages)
            else:
                given.update(storages_of(node))
            continue
        if node.target is operator.getitem and node.args[0] in joint.made_by:
            _pick(joint, node, storages)
            continue
        if is_number(node):
            continue
        found = list(storages_of(node))
        read_here = {joint.held[n] for n in node.all_input_nodes if n in joint.held}
        new = [s for s in found if s not in storages and s not in given]
        if found and not new and not _changes(node):
            if found[0] in storages:
                joint.held[node] = storages[found[0]]
            continue
        if new and len(new) < len(set(found)):
            raise ModelError(f"{node.target}: some of its outputs are views and some are not; that can't be planned")
        step = JointStep(node, reads=read_here, recomputable=_recomputable(node), time_s=seconds_of(node, measure))
        step.backward = place >= len(forward)
        for n in node.all_input_nodes:  # what isn't picked out of a tuple
            if n in joint.made_by and n not in joint.held:
                step.reads.update(joint.steps[joint.made_by[n]].writes)
        if step.backward and joint.boundary < 0:
            joint.boundary = len(joint.steps)
            joint.steps.append(tangents)
        joint.made_by[node] = len(joint.steps)
        joint.steps.append(step)
        if not isinstance(node.meta.get("val"), (tuple, list)):
            _write(joint, step, node, storages)
        else:
            for value, storage in zip(tensors_of(node), found, strict=True):
                joint.sizes[_new(joint, step, storage, storages)] = bytes_of(value)
    if joint.boundary < 0:
        raise ModelError("no gradient depends on what is trained; nothing is to be planned")
    tangents.reads = {joint.held[node] for node in joint.forward_outputs if node in joint.held}
    return joint


def _halves(joint: Joint) -> tuple[list[fx.Node], list[fx.Node]]:
    """The nodes of forward and of backward: what the module gives or changes is forward's, however torch marks it.

    A pass that merges equal nodes, as inductor's do, may keep backward's, which forward then reads.
    """
    nodes = [node for node in joint.module.graph.nodes if node.op != "output"]
    tagged = [node.meta.get("partitioner_tag") in ("is_backward", BACKWARD) for node in nodes]
    needed = [node for node in joint.forward_outputs if isinstance(node, fx.Node)]
    needed += [node for node, late in zip(nodes, tagged, strict=True) if not late and _mutable(node)]
    found = set(needed)
    while needed:
        new = [n for n in needed.pop().all_input_nodes if n not in found]
        found.update(new)
        needed += new
    calls = [k for k, node in enumerate(nodes) if node.op == "call_function" and tagged[k] and node not in found]
    first = min(calls, default=len(nodes))
    early, rest = list[fx.Node](), list[fx.Node]()
    for k, node in enumerate(nodes):
        own = node in found or node.op != "call_function" or (k < first and not tagged[k])
        (early if own else rest).append(node)
    return early, rest


def is_tangent(node: fx.Node) -> bool:
    """Says whether a placeholder is an output's gradient."""
    return node.op == "placeholder" and "tangents" in str(node.target)


def is_number(node: fx.Node) -> bool:
    """Says whether a node's value is a size, which takes no room: it is worked out once."""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float))


def bytes_of(tensor: Any) -> int:
    """Bytes of a fake tensor's storage. Raises ModelError where they depend on the data."""
    size = tensor.untyped_storage().nbytes()
    found = size_of(size)
    if found is None:
        raise ModelError(f"a tensor of {size} bytes: sizes that depend on the data can't be planned for")
    return found


def tensors_of(node: fx.Node) -> list[Any]:
    """The fake tensors of a node's value."""
    return [value for value in tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor)]


def storages_of(node: fx.Node) -> Iterator[StorageWeakRef]:
    """The storages of `tensors_of`, one each. Raises ModelError where a tensor is no strided one."""
    for value in tensors_of(node):
        if value.layout is not torch.strided:
            raise ModelError(f"{node.name}: {value.layout} tensors can't be planned for")
        yield StorageWeakRef(value.untyped_storage())


def _new(joint: Joint, step: JointStep, storage: StorageWeakRef, storages: dict[StorageWeakRef, int]) -> int:
    if storage not in storages:
        storages[storage] = len(joint.sizes)
        step.writes.append(storages[storage])
        joint.sizes.append(0)
    return storages[storage]


def _write(joint: Joint, step: JointStep, node: fx.Node, storages: dict[StorageWeakRef, int]) -> None:
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


def _arguments(node: fx.Node) -> dict[str, Any]:
    """The arguments of an operator, in its own order, by name."""
    schema = _schema(node)
    given = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False)) | node.kwargs
    return {argument.name: given.get(argument.name, argument.default_value) for argument in schema.arguments}


def _mutable(node: fx.Node) -> bool:
    schema = _schema(node)
    return schema is not None and bool(schema.is_mutable)


def _changes(node: fx.Node) -> bool:
    """Says whether it changes something that is there, or does something besides computing."""
    return _mutable(node) or node.is_impure()


def _recomputable(node: fx.Node) -> bool:
    """Says whether a second run gives the same, and nothing else."""
    if _schema(node) is None:
        return False
    if torch.Tag.nondeterministic_seeded in node.target.tags:
        return _arguments(node).get("dropout_p") == 0.0
    return not _changes(node) and not node.meta.get(ONCE, False)


def _copy_changed(graph: fx.Graph, forward_outputs: int) -> list[int]:
    """Put a copy in front of each input that forward changes, for all who read its value; gives `Joint.lasting`."""
    descriptions = tree_leaves(next(iter(graph.find_nodes(op="output"))).meta.get("desc", []))
    written = [hasattr(description, "mutated_input") for description in descriptions[:forward_outputs]]
    changed = [entry.mutated_input for entry in descriptions if hasattr(entry, "mutated_input")]
    for node in list(graph.find_nodes(op="placeholder")):
        copies = [user for user in node.users if _mutable(user) and user.args[0] is node]
        if node.meta.get("desc") not in changed and not copies:
            continue
        readers = [user for user in node.users if user not in copies and user.op != "output"]
        if not readers:
            continue
        with graph.inserting_before(min(readers)):
            copy = call(graph, node, torch.ops.aten.clone.default, node)
        copy.meta |= {ONCE: True, "partitioner_tag": "is_forward"}
        for user in readers:
            user.replace_input_with(node, copy)
    return [k for k in range(forward_outputs) if not (k < len(written) and written[k])]


def call(graph: fx.Graph, like: fx.Node, target: Any, *given: Any, **named: Any) -> fx.Node:
    """A call in the place of another, with its own fake value."""
    made = graph.call_function(target, given, named)
    made.meta = {key: value for key, value in like.meta.items() if key != "val"}
    values = fx.map_arg(given, lambda n: n.meta["val"])
    with next(value for value in tree_leaves(values) if isinstance(value, torch.Tensor)).fake_mode:
        made.meta["val"] = target(*values, **named)
    return made


def _draw_apart(graph: fx.Graph) -> None:
    """Write Dropout on a CPU as its draw and two products, which can run again; the bits are those of torch's own."""
    aten = torch.ops.aten
    for node in graph.find_nodes(op="call_function", target=aten.native_dropout.default):
        x, p, train = node.args
        like = x.meta["val"]
        if like.device.type != "cpu" or like.dtype not in (torch.float32, torch.float64) or not train or not 0 < p < 1:
            continue  # another device draws inside of its kernel; half precision is rounded otherwise
        picks = {user.args[1]: user for user in node.users}
        with graph.inserting_before(node):
            empty = call(graph, node, aten.empty_like.default, x, dtype=torch.bool)
            mask = call(graph, node, aten.bernoulli.p, empty, 1 - p)
            masked = call(graph, node, aten.mul.Tensor, x, mask)
            scaled = call(graph, node, aten.mul.Tensor, masked, 1 / (1 - p))
        for index, made in ((0, scaled), (1, mask)):
            if index in picks:
                picks[index].replace_all_uses_with(made)
                graph.erase_node(picks[index])
        graph.erase_node(node)  # else it would draw, too


def reduce_apart(graph: fx.Graph) -> None:
    """Write losses whose result would hold storage for all their elements as these and their reduction, bit for bit."""
    aten = torch.ops.aten
    losses = aten.mse_loss, aten.smooth_l1_loss, aten.binary_cross_entropy, aten.soft_margin_loss
    for node in [node for loss in losses for node in graph.find_nodes(op="call_function", target=loss.default)]:
        given = _arguments(node)
        reduction = {1: aten.mean.default, 2: aten.sum.default}.get(given["reduction"])
        if reduction is None:
            continue
        with graph.inserting_before(node):
            each = call(graph, node, node.target, *(given | {"reduction": 0}).values())
            node.replace_all_uses_with(call(graph, node, reduction, each))
        graph.erase_node(node)
