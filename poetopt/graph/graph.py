"""Tensors, operators and graphs: what is computed, before anyone asks what it costs.

A `Graph` is a forward network as the frontends read it: one operator an ONNX node. A
`TrainingGraph` adds the loss and the backward operators that autodiff derives. Names are the
identity of tensors (ONNX is in single-assignment form), and every sequence has a fixed order.
Nothing here imports ONNX: a `Node` is plain data, turned into a protobuf only where one is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from poetopt.graph.problem.tensors import Home
from poetopt.util.text import shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.generic]
    Attribute = object

VIEW_OPS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
"""ONNX ops whose first output has the bytes of their first input, in the same order."""

DTYPE_BYTES: Mapping[str, int] = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2,
    "int32": 4, "uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8,
    "complex64": 8, "complex128": 16, "int4": 1, "uint4": 1,
}  # fmt: skip
"""Bytes of one element on its own, by numpy's name of the type."""

PACKED: Mapping[str, int] = {"int4": 2, "uint4": 2}
"""Types of which a byte holds so many elements, the first in its lowest bits. The array of such a tensor is a run of
bytes (uint8), without the tensor's shape."""


def bytes_of_elements(count: int, dtype: str) -> int:
    """Bytes that `count` elements take, side by side."""
    return -(-count // PACKED[dtype]) if dtype in PACKED else count * DTYPE_BYTES[dtype]


FORWARD_ONLY = "forward-only"
"""In place of a loss: the network as it is used."""


class Role(StrEnum):
    """Holds what a tensor is for; it decides whether the tensor lies in the resident region."""

    INPUT = "input"
    """Data, labels or target: in RAM at the start, pageable, never recomputed."""
    PARAMETER = "parameter"
    """A trained weight. Resident."""
    CONSTANT = "constant"
    """A weight that is not trained, a folded constant, or a running statistic before the step. Resident."""
    ACTIVATION = "activation"
    """Written by a forward operator (the loss included)."""
    GRADIENT = "gradient"
    """Written by a backward operator, and read by another."""
    PARAMETER_GRADIENT = "parameter_gradient"
    """The gradient of a parameter. Resident."""
    GRADIENT_SUM = "gradient_sum"
    """What the parts of a batch have given of a parameter's gradient so far. Resident."""
    STATE = "state"
    """A BatchNormalization statistic after the step. Resident."""
    OPTIMIZER_STATE = "optimizer_state"
    """What an optimizer remembers of a parameter from step to step: momentum, moments. Resident."""
    HYPERPARAMETER = "hyperparameter"
    """A scalar that says how parameters are updated, given with each step, or one that follows from such. Resident."""
    LOSS = "loss"
    """The scalar loss, or the outputs of a network without one. Resident, so that it outlives the step."""


@dataclass(frozen=True, slots=True)
class Residence:
    """Says where a tensor of a role begins and ends, in the words of `poetopt.graph.problem.ProblemTensor`."""

    home: Home
    carried: bool = False
    result: bool = False

    @property
    def outlives(self) -> bool:
        """Says whether the step may not end without it. Then it lies in the resident region."""
        return self.carried or self.result


_RESIDENCES: Mapping[Role, Residence] = {
    Role.INPUT: Residence(Home.RAM),
    Role.PARAMETER: Residence(Home.RAM, carried=True),
    Role.CONSTANT: Residence(Home.RAM, carried=True),
    Role.ACTIVATION: Residence(Home.NOWHERE),
    Role.GRADIENT: Residence(Home.NOWHERE),
    Role.PARAMETER_GRADIENT: Residence(Home.NOWHERE, result=True),
    Role.GRADIENT_SUM: Residence(Home.RAM, carried=True),
    Role.STATE: Residence(Home.NOWHERE, result=True),
    Role.OPTIMIZER_STATE: Residence(Home.RAM, carried=True),
    Role.HYPERPARAMETER: Residence(Home.RAM, carried=True),
    Role.LOSS: Residence(Home.NOWHERE, result=True),
}


def residence(role: Role) -> Residence:
    """Says where tensors of `role` begin and end."""
    return _RESIDENCES[role]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named value of fixed shape.

    `dtype` is numpy's name of the element type (`float32`, `int64`, `bool`, ...).
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return bytes_of_elements(self.size, self.dtype)

    @property
    def array_shape(self) -> tuple[int, ...]:
        """Shape of the array that holds it: its own, but of `PACKED` types, bytes in one run."""
        return (self.nbytes,) if self.dtype in PACKED else self.shape

    @property
    def resident(self) -> bool:
        """Says whether the tensor lies in the resident region, which no schedule touches."""
        return residence(self.role).outlives


@dataclass(frozen=True, slots=True)
class Node:
    """One ONNX node as plain data. An absent optional input or output is the empty string.

    Attribute values are ints, floats, str, lists of these, or numpy arrays (for tensors).
    """

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    domain: str = ""
    name: str = ""


OWN_DOMAIN = "poetopt"
"""The domain of ops that ONNX doesn't have, as `Whole.node` names them: `Conv.grad_weight`, `Relu.grad_input`, ..."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A run of an operator's nodes that together amount to one op, for runtimes with a kernel for that.

    first, count
        Which nodes: `nodes[first : first + count]`.
    node
        The op, in `OWN_DOMAIN`. It reads only what its run reads, and writes all that is read of its run elsewhere.
    """

    first: int
    count: int
    node: Node


TOGETHER = "+"
"""What stands between the kinds of operators that are scheduled as one because they work in place."""


@dataclass(frozen=True, slots=True)
class Operator:
    """The unit of scheduling: one or more ONNX nodes that run as one.

    name
        Unique in its graph; for a forward operator the ONNX node's name.
    kind
        What it computes, for people and cost models: `Conv`, `Conv.grad_input`, `Conv.grad_weight`,
        `Add.accumulate`, ... The part before the dot is the ONNX op of the forward operator that it stems from.
    nodes
        The ONNX nodes in execution order. What they write beyond `outputs` is temporary.
    inputs, outputs
        Tensors read from outside and tensors written for others (or for the resident region), in
        order and without repetition. Constants that its nodes read are inputs too.
    view
        Its single output is the same bytes as its first input (Reshape and its kin): it costs
        nothing and is never scheduled.
    recomputable
        False where running it twice is wrong or pointless (Dropout's mask).
    backward
        Whether autodiff derived it.
    over
        Where it works in place: the input whose bytes its single output takes over, and which nobody else reads.
        Both are resident, so that no schedule sees them, and it runs once.
    updates
        Pairs (old, new) of what it updates: `old` is carried from step to step, and one of `inputs`; `new` is one of
        `outputs`, and is written over the bytes of `old` once all of its nodes have read that. It runs once, and
        nothing reads `old` after it.
    meaning
        Where its nodes together amount to one op: that op as a node, which differentiation reads in their stead.
    members
        Where several operators are scheduled as one (`poetopt.autodiff.passes.in_place`,
        `poetopt.autodiff.passes.blocks`): their names, in order. `kind` is then the members' kinds with `TOGETHER`
        between, or a block's.
    whole
        Runs of its nodes that amount to one op each, in order and apart.
    """

    name: str
    kind: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    view: bool = False
    recomputable: bool = True
    backward: bool = False
    over: str = ""
    updates: tuple[tuple[str, str], ...] = ()
    meaning: Node | None = None
    members: tuple[str, ...] = ()
    whole: tuple[Whole, ...] = ()


@dataclass(frozen=True, slots=True)
class TableRows:
    """A table of which a step reads and writes the rows of its batch alone: its tensor has room for so many.

    values
        All rows of the table, before the first step. Read-only.
    ids
        The input that says which rows a batch uses. The graph reads their places among those rows instead.
    fixed
        The rows that each batch uses, where a constant says which; `ids` is empty then.
    of
        For an optimizer's state: the parameter whose table it goes with, row by row.
    """

    values: Array
    ids: str = ""
    fixed: tuple[int, ...] = ()
    of: str = ""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A forward network.

    tensors
        Every tensor by name: inputs, initializers, operator outputs, and the temporaries inside operators.
    operators
        In topological order, views included.
    inputs, outputs
        Names of the graph's inputs (without initializers) and outputs, as in the file.
    values
        The initializers: parameters and constants, by name. Arrays are read-only.
    trained
        Names of the parameters that get gradients, in the order of the file.
    opset
        Version of the default ONNX domain that all nodes are in.
    content_hash, structure_hash
        SHA-256 of what was read, weights included, and of its operators, shapes and types alone.
    notes
        What the frontend inferred or changed, one line each, for `poetopt inspect`.
    unread
        Outputs of the file that can't be imported, and why; they are none of `outputs`.
    rows
        The tables of which it has the rows of a batch alone, by their parameter (`poetopt.autodiff.passes.rows`).
    named
        Whether somebody named what is trained, so that a parameter without a gradient is an error.
    parts
        Of how many such parts a batch is: the graph is of one of them (`poetopt.frontends.parts`).
    split
        The inputs that are cut along their first axis for that; the others are the same for all parts.
    """

    name: str
    tensors: Mapping[str, Tensor]
    operators: tuple[Operator, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: Mapping[str, Array]
    trained: tuple[str, ...]
    opset: int
    source: str = ""
    content_hash: str = ""
    structure_hash: str = ""
    notes: tuple[str, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    named: bool = False
    rows: Mapping[str, TableRows] = field(default_factory=dict)
    parts: int = 1
    split: tuple[str, ...] = ()

    def __repr__(self) -> str:
        what = f"{len(self.operators)} operators, {len(self.trained)} trained tensors"
        return f"<{type(self).__name__} {shown(self.name)}: {what}, opset {self.opset}>"

    @cached_property
    def storage(self) -> Mapping[str, str]:
        """For each tensor that a view operator writes, or one in place: whose bytes it shares, followed to the root."""
        roots: dict[str, str] = {}
        for operator in self.operators:
            if operator.view or operator.over:
                source = operator.over or operator.inputs[0]
                roots[operator.outputs[0]] = roots.get(source, source)
            for old, new in operator.updates:
                roots[new] = roots.get(old, old)
        return roots

    @cached_property
    def producers(self) -> Mapping[str, Operator]:
        """The operator that writes each tensor, by the tensor's name."""
        return {name: operator for operator in self.operators for name in operator.outputs}

    @cached_property
    def readers(self) -> Mapping[str, tuple[Operator, ...]]:
        """The operators that read each tensor, in order; a tensor that none reads is absent."""
        found: dict[str, list[Operator]] = {}
        for operator in self.operators:
            for name in operator.inputs:
                found.setdefault(name, []).append(operator)
        return {name: tuple(operators) for name, operators in found.items()}

    def root(self, name: str) -> str:
        """The tensor whose storage `name` uses: itself, unless it is a view."""
        return self.storage.get(name, name)


@dataclass(frozen=True)
class LabelRule:
    """Says how a cross-entropy takes labels and classes, as `torch.nn.CrossEntropyLoss` does.

    ignore_index
        The label of what is left out of the mean; None where all count.
    class_weights
        A weight for each class; empty where all are alike.
    smoothing
        The share of each label that all classes have in equal parts.
    """

    ignore_index: int | None = None
    class_weights: tuple[float, ...] = ()
    smoothing: float = 0.0

    @property
    def plain(self) -> bool:
        """Says whether each row counts alike."""
        return self.ignore_index is None and not self.class_weights

    def weights_of(self, labels: Array) -> Array:
        """The weight of each label in the mean, in their shape: its class's, or 0 where it is left out."""
        kept = np.ones(labels.shape, bool) if self.ignore_index is None else labels != self.ignore_index
        if not self.class_weights:
            return kept.astype(np.float64)
        found: Array = np.array(self.class_weights)[np.where(kept, labels, 0).astype(np.int64)] * kept
        return found


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingGraph(Graph):
    """A forward network with its loss and backward operators: one training step, with updates where asked for.

    loss
        Name of the scalar loss.
    loss_kind
        `cross-entropy`, `bce`, `mse`, `none` (the model's own scalar output is the loss), or `forward-only`: there is
        none, `loss` is the first of the outputs, and all of them are results.
    gradients
        For each trained parameter, in order, the name of its gradient (`<parameter>.grad`), where gradients are results
        of the step. Empty where the step updates parameters and keeps no gradients.
    states
        For each running statistic that the step updates: old name -> name of the updated tensor.
    added_inputs
        Inputs that the loss brought with it (`labels`, `target`).
    compared
        What a loss that was attached compares: scores and labels, or output and target.
    aside
        Forward operators that no step runs: predictions alone need them, as their loss does without the scores.
    label_rule
        How the cross-entropy that was attached takes labels.
    label_weight
        The input by which a part of a batch divides its loss where labels don't all count alike: a part's share of what
        those of the whole batch weigh. "" elsewhere; data don't have it.
    optimizer
        Whose update operators the step has (`poetopt.autodiff.optimizers`), or `none`.
    optimizer_states
        What the optimizer remembers, in the order of the parameters; `values` has them before the first step (zeros).
    hyperparameters
        For each hyperparameter (`lr`, ...): the name of its scalar, which is given with each step; `values` has a
        default.
    rates
        What the learning rate is multiplied with for some parameters, by their names.
    sums
        Where a batch has several parts: for each trained parameter, the name of its gradient's sum over them.
    closing
        The operators that follow the last part, as a graph of the same tensors: updates by those sums. None where
        nothing follows.
    """

    loss: str
    loss_kind: str
    gradients: Mapping[str, str]
    states: Mapping[str, str]
    added_inputs: tuple[str, ...] = ()
    compared: tuple[str, ...] = ()
    aside: tuple[Operator, ...] = ()
    label_rule: LabelRule = LabelRule()
    label_weight: str = ""
    optimizer: str = "none"
    optimizer_states: tuple[str, ...] = ()
    hyperparameters: Mapping[str, str] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    sums: Mapping[str, str] = field(default_factory=dict)
    closing: TrainingGraph | None = None

    @cached_property
    def whole(self) -> TrainingGraph:
        """The graph with inputs of the whole batch: as what data is read and looked at. Itself without parts."""
        if self.parts == 1:
            return self
        cut = {name: self.tensors[name] for name in self.split}
        whole = {n: replace(t, shape=(t.shape[0] * self.parts, *t.shape[1:])) for n, t in cut.items()}
        return replace(self.of_data, tensors={**self.tensors, **whole})

    @cached_property
    def of_data(self) -> TrainingGraph:
        """The graph with those inputs that data have: not what labels weigh."""
        if not self.label_weight:
            return self
        return replace(self, inputs=tuple(name for name in self.inputs if name != self.label_weight))

    @cached_property
    def joint(self) -> TrainingGraph:
        """All of a step's tensors and operators: a part's, and those that follow the last one. Itself without parts."""
        last = self.closing
        if last is None:
            return self
        return replace(
            self,
            tensors={**last.tensors, **self.tensors},
            values={**last.values, **self.values},
            rows={**last.rows, **self.rows},
            operators=(*self.operators, *last.operators),
            closing=None,
        )

    @property
    def forward_only(self) -> bool:
        """Says whether it is a network alone, without loss and backward operators."""
        return self.loss_kind == FORWARD_ONLY

    @property
    def targets(self) -> tuple[str, ...]:
        """Gives what the forward pass is for: the loss, or without one the outputs."""
        return self.outputs if self.forward_only else (self.loss,)

    @cached_property
    def constants(self) -> Mapping[str, Array]:
        """Constants by name: what kernels may have written into their code."""
        return {
            name: value
            for name, value in self.values.items()
            if self.tensors[name].role is Role.CONSTANT and name not in self.lasting
        }

    @cached_property
    def updaters(self) -> Mapping[str, Operator]:
        """For each tensor that an operator writes anew over itself, that operator: by the tensor's old name."""
        return {old: operator for operator in self.operators for old, _ in operator.updates}

    @cached_property
    def carried(self) -> Mapping[str, str]:
        """All that is another value after the step: old name -> new name. The next step begins with the new ones."""
        updates = {old: new for operator in self.operators for old, new in operator.updates}
        return {**updates, **{old: new for old, new in self.states.items() if old not in updates}}

    @cached_property
    def lasting(self) -> Mapping[str, str]:
        """All that lasts from step to step: old name -> what the whole step leaves in its place.

        Parameters, running statistics, optimizer states and, of a batch in parts, sums of gradients. Whoever has its
        gradient updates a parameter that is left by its own name.
        """
        return {**{name: name for name in self.trained}, **self.joint.carried}

    @cached_property
    def saved(self) -> Mapping[str, str]:
        """Those of `lasting` that the next batch begins with: not the sums, which are zero then."""
        sums = {*self.sums.values()}
        return {old: new for old, new in self.lasting.items() if old not in sums}

    @cached_property
    def learned(self) -> tuple[str, ...]:
        """Those of `lasting` that the network's file has: parameters and running statistics."""
        return (*self.trained, *self.states)

    @cached_property
    def beside(self) -> Mapping[str, str]:
        """Those of `carried` whose new value lies beside the old one, whose place it takes between two steps."""
        return {old: new for old, new in self.carried.items() if self.root(new) != self.root(old)}

    @cached_property
    def shown_results(self) -> Mapping[str, str]:
        """Gives what an execution hands out of the results, by what it is called there: `<parameter>.grad`, ..."""
        shown = {name: name for name in self.targets} | {f"{name}.grad": made for name, made in self.gradients.items()}
        return shown | ({new: new for old, new in self.saved.items() if new != old} if self.updaters else {})

    @cached_property
    def results(self) -> tuple[str, ...]:
        """Gives what the step leaves behind: the loss, gradients where they are kept, and what is carried, updated."""
        return tuple(dict.fromkeys((*self.targets, *self.gradients.values(), *self.carried.values())))


def inner_storage(operator: Operator) -> Mapping[str, str]:
    """Says who shares whose bytes inside an operator of several nodes.

    View nodes (`VIEW_OPS`) inside an operator move no bytes either: what they write shares the storage
    of what they read. The result maps a tensor to the one that names its storage: an output of the
    operator where the group has one, else an input, else the first temporary. A view node that would
    tie an output to an input or to another output has to copy, and so has no entry.
    """
    outside = set(operator.inputs)
    outputs = set(operator.outputs)
    group: dict[str, str] = {}
    for node in operator.nodes:
        if node.op_type not in VIEW_OPS or node.domain:
            continue
        written = node.outputs[0]
        source = group.get(node.inputs[0], node.inputs[0])
        if written not in outputs:
            group[written] = source
        elif source not in outside and source not in outputs:
            for member, root in list(group.items()):
                if root == source:
                    group[member] = written
            group[source] = written
    return group
