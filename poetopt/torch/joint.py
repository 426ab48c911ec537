"""Conversion of AOTAutograd's joint graph into a Problem: storages become tensors, kernels operators; views are free.

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
"""Tags of torch's partitioner for nodes that it must not move."""
ONCE = "poetopt_once"
"""Key in a node's meta: a second run would have another result."""
TANGENTS, END = "tangents", "end"
"""Operators of the problem alone: the caller of backward provides the outputs' gradients, and reads all others."""


@dataclass
class JointStep:
    """Operator of the problem, in the joint graph.

    Attributes
    ----------
    node
        The call; None for the tangents.
    outputs
        Nodes that stand for its outputs: the call itself, or those that select from its tuple.
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
    """Joint graph with its operators and storages.

    Attributes
    ----------
    module
        The graph, with a copy in front of each input that forward changes.
    forward_outputs, backward_outputs
        Output nodes in order; None for an absent one.
    lasting
        Indices of forward's outputs that stay; outputs that are written into inputs don't.
    steps
        Operators in the problem's order; the tangents are at `boundary`.
    made_by
        Operator of each output node.
    held
        Storage of each node whose storage the step allocates; inputs of the module have none.
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
        """Return the problem: seconds stand for joules, and each backward kernel runs once.

        The outputs, their gradients and those of parameters stay to the end. Values that forward writes into its inputs
        stay until forward ends.

        Parameters
        ----------
        transfers
            Costs of moving each storage; without them nothing is paged.
        """
        kept_storages = {self.held[node] for node in self.kept if node in self.held}
        costs = transfers or repeat(Transfers(), len(self.sizes))
        tensors = [
            ProblemTensor(f"{t}", size, self.producer[t], move)
            for t, (size, move) in enumerate(zip(self.sizes, costs, strict=True))
        ]
        operators = [
            ProblemOperator(
                TANGENTS if step.node is None else step.node.name,
                tuple(sorted(step.reads)),
                tuple(sorted(step.writes)),
                step.time_s,
                step.time_s,
                recomputable=step.recomputable and not step.backward and kept_storages.isdisjoint(step.writes),
                backward=step.backward,
                kind=TANGENTS if step.node is None else str(step.node.target),
            )
            for step in self.steps
        ]
        operators.append(
            ProblemOperator(END, tuple(sorted(kept_storages)), (), 0.0, 0.0, recomputable=False, backward=True)
        )
        return Problem(name, "torch", tuple(operators), tuple(tensors), paging=bool(transfers), placed=False)

    @cached_property
    def producer(self) -> dict[int, int]:
        """Operator that writes each storage."""
        return {t: k for k, step in enumerate(self.steps) for t in step.writes}

    @property
    def kept(self) -> list[fx.Node]:
        """Nodes whose storages stay to the end, once they exist."""
        lasting_outputs = (self.forward_outputs[k] for k in self.lasting)
        tangents = self.steps[self.boundary].outputs
        return [node for node in (*lasting_outputs, *tangents, *self.backward_outputs) if node is not None]


def read(module: fx.GraphModule, forward_outputs: int, measure: bool) -> Joint:
    """Read operators and storages of a joint graph, in its order. Raises ModelError if it can't be planned.

    Storages are those of fake tensors, so that a view, an expanded or a detached tensor counts as its base. An operator
    runs once if it draws random numbers, changes its input, or calls another graph. So does the copy in front of an
    input that forward changes: in backward it would read the new value.
    """
    module.graph.eliminate_dead_code()
    lasting = _copy_changed_inputs(module.graph, forward_outputs)
    _split_dropout(module.graph)
    outputs = tree_leaves(next(iter(module.graph.find_nodes(op="output"))).args)
    joint = Joint(module, outputs[:forward_outputs], outputs[forward_outputs:], lasting)
    storages: dict[StorageWeakRef, int] = {}  # storages that the step allocates
    input_storages: set[StorageWeakRef] = set()
    tangents = JointStep(None, backward=True, recomputable=False)
    forward, backward = _split_halves(joint)
    for position, node in enumerate([*forward, *backward]):
        if node.op in ("placeholder", "get_attr"):
            if is_tangent(node):
                _add_output(joint, tangents, node, storages)
            else:
                input_storages.update(storages_of(node))
            continue
        if node.target is operator.getitem and node.args[0] in joint.made_by:
            _add_selection(joint, node, storages)
            continue
        if is_number(node):
            continue
        node_storages = list(storages_of(node))
        read_storages = {joint.held[n] for n in node.all_input_nodes if n in joint.held}
        new = [s for s in node_storages if s not in storages and s not in input_storages]
        if node_storages and not new and not _has_side_effects(node):
            if node_storages[0] in storages:
                joint.held[node] = storages[node_storages[0]]
            continue
        if new and len(new) < len(set(node_storages)):
            raise ModelError(f"{node.target}: some of its outputs are views and some are not, which can't be planned")
        step = JointStep(
            node, reads=read_storages, recomputable=_is_recomputable(node), time_s=seconds_of(node, measure)
        )
        step.backward = position >= len(forward)
        for n in node.all_input_nodes:  # tuples that are passed on as a whole
            if n in joint.made_by and n not in joint.held:
                step.reads.update(joint.steps[joint.made_by[n]].writes)
        if step.backward and joint.boundary < 0:
            joint.boundary = len(joint.steps)
            joint.steps.append(tangents)
        joint.made_by[node] = len(joint.steps)
        joint.steps.append(step)
        if not isinstance(node.meta.get("val"), (tuple, list)):
            _add_output(joint, step, node, storages)
        else:
            for value, storage in zip(tensors_of(node), node_storages, strict=True):
                joint.sizes[_storage_index(joint, step, storage, storages)] = bytes_of(value)
    if joint.boundary < 0:
        raise ModelError("no gradient depends on trained parameters, so there is nothing to plan")
    tangents.reads = {joint.held[node] for node in joint.forward_outputs if node in joint.held}
    return joint


def _split_halves(joint: Joint) -> tuple[list[fx.Node], list[fx.Node]]:
    """Return the nodes of forward and of backward; the module's outputs and changes belong to forward.

    A pass that merges equal nodes, as inductor's do, may keep the node of backward, which forward then reads.
    """
    nodes = [node for node in joint.module.graph.nodes if node.op != "output"]
    is_tagged = [node.meta.get("partitioner_tag") in ("is_backward", BACKWARD) for node in nodes]
    pending = [node for node in joint.forward_outputs if isinstance(node, fx.Node)]
    pending += [node for node, tagged in zip(nodes, is_tagged, strict=True) if not tagged and _is_mutable(node)]
    forward_nodes = set(pending)
    while pending:
        new = [n for n in pending.pop().all_input_nodes if n not in forward_nodes]
        forward_nodes.update(new)
        pending += new
    calls = [
        k for k, node in enumerate(nodes) if node.op == "call_function" and is_tagged[k] and node not in forward_nodes
    ]
    first = min(calls, default=len(nodes))
    forward, backward = list[fx.Node](), list[fx.Node]()
    for k, node in enumerate(nodes):
        is_forward = node in forward_nodes or node.op != "call_function" or (k < first and not is_tagged[k])
        (forward if is_forward else backward).append(node)
    return forward, backward


def is_tangent(node: fx.Node) -> bool:
    """Return whether a placeholder is the gradient of an output."""
    return node.op == "placeholder" and "tangents" in str(node.target)


def is_number(node: fx.Node) -> bool:
    """Return whether a node's value is a size, which takes no memory and is computed once."""
    return isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool, int, float))


def bytes_of(tensor: Any) -> int:
    """Return the bytes of a fake tensor's storage. Raises ModelError if they depend on the data."""
    size = tensor.untyped_storage().nbytes()
    nbytes = size_of(size)
    if nbytes is None:
        raise ModelError(f"a tensor has {size} bytes: sizes that depend on the data can't be planned for")
    return nbytes


def tensors_of(node: fx.Node) -> list[Any]:
    """Return the fake tensors of a node's value."""
    return [value for value in tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor)]


def storages_of(node: fx.Node) -> Iterator[StorageWeakRef]:
    """Yield the storage of each tensor of `tensors_of`. Raises ModelError for a tensor that isn't strided."""
    for value in tensors_of(node):
        if value.layout is not torch.strided:
            raise ModelError(f"{node.name}: {value.layout} tensors can't be planned for")
        yield StorageWeakRef(value.untyped_storage())


def _storage_index(joint: Joint, step: JointStep, storage: StorageWeakRef, storages: dict[StorageWeakRef, int]) -> int:
    if storage not in storages:
        storages[storage] = len(joint.sizes)
        step.writes.append(storages[storage])
        joint.sizes.append(0)
    return storages[storage]


def _add_output(joint: Joint, step: JointStep, node: fx.Node, storages: dict[StorageWeakRef, int]) -> None:
    """Register a node as an output of a step, with its storage."""
    step.outputs.append(node)
    for value, storage in zip(tensors_of(node), storages_of(node), strict=True):
        joint.held[node] = _storage_index(joint, step, storage, storages)
        joint.sizes[joint.held[node]] = bytes_of(value)


def _add_selection(joint: Joint, node: fx.Node, storages: dict[StorageWeakRef, int]) -> None:
    """Register a node that selects from an operator's tuple."""
    producer = joint.made_by[node.args[0]]
    joint.made_by[node] = producer
    _add_output(joint, joint.steps[producer], node, storages)


def _schema(node: fx.Node) -> Any:
    return node.target._schema if isinstance(node.target, torch._ops.OpOverload) else None


def _arguments(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of an operator by name, in its own order."""
    schema = _schema(node)
    values = dict(zip((argument.name for argument in schema.arguments), node.args, strict=False)) | node.kwargs
    return {argument.name: values.get(argument.name, argument.default_value) for argument in schema.arguments}


def _is_mutable(node: fx.Node) -> bool:
    schema = _schema(node)
    return schema is not None and bool(schema.is_mutable)


def _has_side_effects(node: fx.Node) -> bool:
    """Return whether a node changes existing data, or has another side effect."""
    return _is_mutable(node) or node.is_impure()


def _is_recomputable(node: fx.Node) -> bool:
    """Return whether a second run has the same result, and no other effect."""
    if _schema(node) is None:
        return False
    if torch.Tag.nondeterministic_seeded in node.target.tags:
        return _arguments(node).get("dropout_p") == 0.0
    return not _has_side_effects(node) and not node.meta.get(ONCE, False)


def _copy_changed_inputs(graph: fx.Graph, forward_outputs: int) -> list[int]:
    """Insert a copy for the readers of each input that forward changes; return `Joint.lasting`."""
    descriptions = tree_leaves(next(iter(graph.find_nodes(op="output"))).meta.get("desc", []))
    written = [hasattr(description, "mutated_input") for description in descriptions[:forward_outputs]]
    changed = [entry.mutated_input for entry in descriptions if hasattr(entry, "mutated_input")]
    for node in list(graph.find_nodes(op="placeholder")):
        copies = [user for user in node.users if _is_mutable(user) and user.args[0] is node]
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


def call(graph: fx.Graph, like: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """Insert a call in place of `like`, with its own fake value."""
    node = graph.call_function(target, args, kwargs)
    node.meta = {key: value for key, value in like.meta.items() if key != "val"}
    values = fx.map_arg(args, lambda n: n.meta["val"])
    with next(value for value in tree_leaves(values) if isinstance(value, torch.Tensor)).fake_mode:
        node.meta["val"] = target(*values, **kwargs)
    return node


def _split_dropout(graph: fx.Graph) -> None:
    """Split Dropout on a CPU into its draw and two products, which can run again; the bits are torch's own."""
    aten = torch.ops.aten
    for node in graph.find_nodes(op="call_function", target=aten.native_dropout.default):
        x, p, train = node.args
        fake = x.meta["val"]
        if fake.device.type != "cpu" or fake.dtype not in (torch.float32, torch.float64) or not train or not 0 < p < 1:
            continue  # other devices draw within the kernel; half precision rounds differently
        picks = {user.args[1]: user for user in node.users}
        with graph.inserting_before(node):
            empty = call(graph, node, aten.empty_like.default, x, dtype=torch.bool)
            mask = call(graph, node, aten.bernoulli.p, empty, 1 - p)
            masked = call(graph, node, aten.mul.Tensor, x, mask)
            scaled = call(graph, node, aten.mul.Tensor, masked, 1 / (1 - p))
        for index, replacement in ((0, scaled), (1, mask)):
            if index in picks:
                picks[index].replace_all_uses_with(replacement)
                graph.erase_node(picks[index])
        graph.erase_node(node)  # its draw would change the random state


def reduce_apart(graph: fx.Graph) -> None:
    """Split losses whose result keeps storage for all elements into loss and reduction, bit for bit."""
    aten = torch.ops.aten
    losses = aten.mse_loss, aten.smooth_l1_loss, aten.binary_cross_entropy, aten.soft_margin_loss
    for node in [node for loss in losses for node in graph.find_nodes(op="call_function", target=loss.default)]:
        arguments = _arguments(node)
        reduction = {1: aten.mean.default, 2: aten.sum.default}.get(arguments["reduction"])
        if reduction is None:
            continue
        with graph.inserting_before(node):
            each = call(graph, node, node.target, *(arguments | {"reduction": 0}).values())
            node.replace_all_uses_with(call(graph, node, reduction, each))
        graph.erase_node(node)
