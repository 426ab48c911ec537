"""Tensors, operators and graphs: computations without their costs.

A `Graph` is a forward network as the frontends read it, with one operator per ONNX node. A `TrainingGraph` adds the
loss and the backward operators that autodiff derives. Names identify tensors (ONNX is in single-assignment form), and
every sequence has a fixed order. This module imports no ONNX: a `Node` is plain data, and becomes a protobuf only
where one is needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

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
"""Bytes of a single element, by numpy's name of the type."""

PACKED: Mapping[str, int] = {"int4": 2, "uint4": 2}
"""Elements per byte of packed types, the first element in the lowest bits. The array of such a tensor is a flat uint8
array, without the tensor's shape."""


def bytes_of_elements(count: int, dtype: str) -> int:
    """Return the bytes of `count` contiguous elements."""
    return -(-count // PACKED[dtype]) if dtype in PACKED else count * DTYPE_BYTES[dtype]


FORWARD_ONLY = "forward-only"
"""Loss of a network that is only run forward."""


class Role(StrEnum):
    """Purpose of a tensor, which decides whether it belongs to the resident region."""

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
    """Sum of a parameter's gradient over the parts of a batch so far. Resident."""
    STATE = "state"
    """A BatchNormalization statistic after the step. Resident."""
    OPTIMIZER_STATE = "optimizer_state"
    """State of an optimizer for a parameter from step to step: momentum, moments. Resident."""
    HYPERPARAMETER = "hyperparameter"
    """A scalar of the update rule, which each step gets anew, or one that is computed from such scalars. Resident."""
    LOSS = "loss"
    """The scalar loss, or the outputs of a network without one. Resident, so that it outlives the step."""


@dataclass(frozen=True, slots=True)
class Residence:
    """Places of a role's tensors at the start and the end of a step; see `poetopt.graph.problem.ProblemTensor`."""

    home: Home
    carried: bool = False
    result: bool = False

    @property
    def outlives(self) -> bool:
        """Return whether the tensor must exist when the step ends. It is in the resident region then."""
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
    """Return where tensors of `role` are at the beginning and the end of a step."""
    return _RESIDENCES[role]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named value of fixed shape.

    Attributes
    ----------
    dtype
        Element type by numpy's name (`float32`, `int64`, `bool`, ...).
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
        """Shape of its array: `shape`, but one run of bytes for `PACKED` types."""
        return (self.nbytes,) if self.dtype in PACKED else self.shape

    @property
    def resident(self) -> bool:
        """Return whether the tensor is in the resident region, which schedules leave alone."""
        return residence(self.role).outlives


@dataclass(frozen=True, slots=True)
class Node:
    """One ONNX node as plain data.

    An absent optional input or output is the empty string. Attribute values are ints, floats, str, lists of these, or
    numpy arrays (for tensors).
    """

    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=dict)
    domain: str = ""
    name: str = ""


OWN_DOMAIN = "poetopt"
"""Domain of ops that ONNX lacks, for `Whole.node`: `Conv.grad_weight`, `Relu.grad_input`, ..."""


@dataclass(frozen=True, slots=True)
class Whole:
    """A run of an operator's nodes that is equivalent to one fused op, for runtimes with a kernel for that op.

    Attributes
    ----------
    first, count
        The run is `nodes[first : first + count]`.
    node
        The fused op, in `OWN_DOMAIN`. It reads only inputs of its run, and writes all results of the run that are read
        elsewhere.
    """

    first: int
    count: int
    node: Node


TOGETHER = "+"
"""Separator of the kinds of operators that are scheduled as one because they work in place."""


@dataclass(frozen=True, slots=True)
class Operator:
    """Unit of scheduling: one or more ONNX nodes that run as one.

    Attributes
    ----------
    name
        Unique in its graph; for a forward operator the name of the ONNX node.
    kind
        Kind for people and cost models: `Conv`, `Conv.grad_input`, `Conv.grad_weight`, `Add.accumulate`, ... The part
        before the dot is the ONNX op of the forward operator that it was derived from.
    nodes
        ONNX nodes in execution order. Tensors that they write and that aren't in `outputs` are temporary.
    inputs, outputs
        Tensors that are read from outside, and tensors that are written for others (or for the resident region), in
        order and without repetition. Constants of its nodes are inputs too.
    view
        Whether its single output has the bytes of its first input (Reshape and similar ops). A view costs nothing and
        is never scheduled.
    recomputable
        False if running it twice would be wrong or pointless (Dropout's mask).
    backward
        Whether autodiff derived it.
    over
        For an operator that works in place: the input whose bytes its single output overwrites, and which no other
        operator reads. Both are resident, so schedules don't contain them, and the operator runs once.
    updates
        Pairs (old, new) of the tensors that it updates. `old` is carried from step to step, and one of `inputs`. `new`
        is one of `outputs`, and is written over the bytes of `old` after all of its nodes have read that. The operator
        runs once, and nothing reads `old` afterwards.
    meaning
        Fused op that is equivalent to all of its nodes, as a node; differentiation reads it instead of the nodes.
    members
        Names, in order, of the operators that are scheduled as this one (`poetopt.autodiff.passes.in_place`,
        `poetopt.autodiff.passes.blocks`). `kind` then has the members' kinds with `TOGETHER` between, or a block's.
    whole
        Disjoint runs of its nodes that are equivalent to one fused op each, in order.
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
    """A table of which a step reads and writes only the rows of its batch: its tensor has room for that many rows.

    Attributes
    ----------
    values
        All rows of the table before the first step. Read-only.
    ids
        Input with the row numbers of a batch. The graph reads their positions among the batch's rows instead.
    fixed
        Rows that each batch uses, if a constant names them; `ids` is empty then.
    of
        For a state of an optimizer: the parameter whose table it follows, row by row.
    """

    values: Array
    ids: str = ""
    fixed: tuple[int, ...] = ()
    of: str = ""


@dataclass(frozen=True, kw_only=True)
class Graph:
    """A forward network.

    Attributes
    ----------
    tensors
        Every tensor by name: inputs, initializers, outputs of operators, and temporaries inside operators.
    operators
        Operators in topological order, including views.
    inputs, outputs
        Names of the graph's inputs (without initializers) and outputs, as in the file.
    values
        Initializers, that is parameters and constants, by name. Arrays are read-only.
    trained
        Names of the parameters that get gradients, in the order of the file.
    opset
        Version of the default ONNX domain of all nodes.
    content_hash, structure_hash
        SHA-256 of the data that was read, including weights, and SHA-256 of its operators, shapes and types only.
    notes
        Inferences and changes of the frontend, one line each, for `poetopt inspect`.
    unread
        Outputs of the file that can't be imported, with the reason; they aren't in `outputs`.
    rows
        Tables that it has only the rows of a batch of, by parameter (`poetopt.autodiff.passes.rows`).
    named
        Whether the user named the trained parameters, so that a parameter without a gradient is an error.
    parts
        Number of parts of a batch: the graph is that of one part (`poetopt.frontends.parts`).
    split
        Inputs that are cut along their first axis into parts; the others are the same for all parts.
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
        size = f"{len(self.operators)} operators, {len(self.trained)} trained tensors"
        return f"<{type(self).__name__} {shown(self.name)}: {size}, opset {self.opset}>"

    @cached_property
    def memo(self) -> dict[object, Any]:
        """Results of functions of this graph alone, each under that function's own key."""
        return {}

    @cached_property
    def storage(self) -> Mapping[str, str]:
        """Root of each tensor that a view or an in-place operator writes: the tensor whose bytes it shares."""
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
        """Operator that writes each tensor, by the tensor's name."""
        return {name: operator for operator in self.operators for name in operator.outputs}

    @cached_property
    def readers(self) -> Mapping[str, tuple[Operator, ...]]:
        """Operators that read each tensor, in order; a tensor that none reads is absent."""
        by_tensor: dict[str, list[Operator]] = {}
        for operator in self.operators:
            for name in operator.inputs:
                by_tensor.setdefault(name, []).append(operator)
        return {name: tuple(operators) for name, operators in by_tensor.items()}

    def root(self, name: str) -> str:
        """Return the tensor whose storage `name` uses: itself, unless it is a view."""
        return self.storage.get(name, name)


@dataclass(frozen=True)
class LabelRule:
    """Treatment of labels and classes by a cross-entropy, as in `torch.nn.CrossEntropyLoss`.

    Attributes
    ----------
    ignore_index
        Label of the rows that the mean leaves out; None if all rows count.
    class_weights
        Weight of each class; empty if all are equal.
    smoothing
        Share of each label that is spread evenly over all classes.
    """

    ignore_index: int | None = None
    class_weights: tuple[float, ...] = ()
    smoothing: float = 0.0

    @property
    def plain(self) -> bool:
        """Return whether all rows have the same weight."""
        return self.ignore_index is None and not self.class_weights

    def weights_of(self, labels: Array) -> Array:
        """Return the weight of each label in the mean, in the shape of `labels`: of its class, or 0 if ignored."""
        kept = np.ones(labels.shape, bool) if self.ignore_index is None else labels != self.ignore_index
        if not self.class_weights:
            return kept.astype(np.float64)
        weights: Array = np.array(self.class_weights)[np.where(kept, labels, 0).astype(np.int64)] * kept
        return weights


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainingGraph(Graph):
    """A forward network with its loss and backward operators: one training step, with updates if requested.

    Attributes
    ----------
    loss
        Name of the scalar loss.
    loss_kind
        `cross-entropy`, `bce`, `mse`, `none` (the model's own scalar output is the loss), or `forward-only`: then there
        is no loss, `loss` is the first of the outputs, and all outputs are results.
    gradients
        For each trained parameter, in order, the name of its gradient (`<parameter>.grad`), if gradients are results of
        the step. Empty if the step updates parameters and keeps no gradients.
    states
        For each running statistic that the step updates: old name -> name of the updated tensor.
    added_inputs
        Inputs that the loss added (`labels`, `target`).
    compared
        Tensors that an attached loss compares: scores and labels, or output and target.
    aside
        Forward operators that no step runs: only predictions need them, because their loss does without the scores.
    label_rule
        Treatment of labels by the attached cross-entropy.
    label_weight
        Input by which a part of a batch divides its loss if labels have different weights: the part's share of the
        total weight of the labels. "" otherwise; data don't have it.
    optimizer
        Optimizer whose updates the step contains (`poetopt.autodiff.optimizers`), or `none`.
    optimizer_states
        States of the optimizer, in the order of the parameters; `values` has them before the first step (zeros).
    hyperparameters
        For each hyperparameter (`lr`, ...): the name of its scalar, which each step gets; `values` has a default.
    rates
        Factor of the learning rate of some parameters, by their names.
    sums
        For each trained parameter, the name of the sum of its gradient over the parts, if a batch has several parts.
    closing
        Updates that follow the last part, as a graph of the same tensors. None if nothing follows.
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
        """Graph with the inputs of the whole batch, as data have them. Itself if the batch has one part."""
        if self.parts == 1:
            return self
        split_inputs = {name: self.tensors[name] for name in self.split}
        whole_inputs = {n: replace(t, shape=(t.shape[0] * self.parts, *t.shape[1:])) for n, t in split_inputs.items()}
        return replace(self.of_data, tensors={**self.tensors, **whole_inputs})

    @cached_property
    def of_data(self) -> TrainingGraph:
        """Graph with the inputs that data have, without `label_weight`."""
        if not self.label_weight:
            return self
        return replace(self, inputs=tuple(name for name in self.inputs if name != self.label_weight))

    @cached_property
    def joint(self) -> TrainingGraph:
        """All tensors and operators of a step: those of a part and the updates. Itself if nothing follows."""
        updates = self.closing
        if updates is None:
            return self
        return replace(
            self,
            tensors={**updates.tensors, **self.tensors},
            values={**updates.values, **self.values},
            rows={**updates.rows, **self.rows},
            operators=(*self.operators, *updates.operators),
            closing=None,
        )

    @property
    def forward_only(self) -> bool:
        """Return whether it is a network without loss and backward operators."""
        return self.loss_kind == FORWARD_ONLY

    @property
    def targets(self) -> tuple[str, ...]:
        """Results of the forward pass: the loss, or the outputs if there is none."""
        return self.outputs if self.forward_only else (self.loss,)

    @cached_property
    def constants(self) -> Mapping[str, Array]:
        """Constants by name; kernels may contain them in their code."""
        return {
            name: value
            for name, value in self.values.items()
            if self.tensors[name].role is Role.CONSTANT and name not in self.lasting
        }

    @cached_property
    def updaters(self) -> Mapping[str, Operator]:
        """Operator that updates each tensor in place, by the tensor's old name."""
        return {old: operator for operator in self.operators for old, _ in operator.updates}

    @cached_property
    def carried(self) -> Mapping[str, str]:
        """Tensors with another value after the step: old name -> new name. The next step begins with the new values."""
        updates = {old: new for operator in self.operators for old, new in operator.updates}
        return {**updates, **{old: new for old, new in self.states.items() if old not in updates}}

    @cached_property
    def lasting(self) -> Mapping[str, str]:
        """Tensors that last from step to step: old name -> tensor that replaces it after the whole step.

        These are parameters, running statistics, optimizer states and, for a batch in parts, sums of gradients. A
        parameter that the step doesn't update maps to its own name; the owner of its gradient updates it.
        """
        return {**{name: name for name in self.trained}, **self.joint.carried}

    @cached_property
    def saved(self) -> Mapping[str, str]:
        """Tensors of `lasting` that the next batch begins with: all but the sums, which are zero then."""
        sums = {*self.sums.values()}
        return {old: new for old, new in self.lasting.items() if old not in sums}

    @cached_property
    def learned(self) -> tuple[str, ...]:
        """Tensors of `lasting` that the network's file contains: parameters and running statistics."""
        return (*self.trained, *self.states)

    @cached_property
    def beside(self) -> Mapping[str, str]:
        """Tensors of `carried` whose new value has its own bytes, and replaces the old one between steps."""
        return {old: new for old, new in self.carried.items() if self.root(new) != self.root(old)}

    @cached_property
    def shown_results(self) -> Mapping[str, str]:
        """Results that an execution returns, by the name that it gives them: `<parameter>.grad`, ..."""
        results = {name: name for name in self.targets} | {
            f"{name}.grad": gradient for name, gradient in self.gradients.items()
        }
        return results | ({new: new for old, new in self.saved.items() if new != old} if self.updaters else {})

    @cached_property
    def results(self) -> tuple[str, ...]:
        """Tensors that the step leaves: the loss, gradients if kept, and the new values of carried tensors."""
        return tuple(dict.fromkeys((*self.targets, *self.gradients.values(), *self.carried.values())))


def inner_storage(operator: Operator) -> Mapping[str, str]:
    """Return the tensors inside an operator of several nodes that share the bytes of another: tensor -> root.

    View nodes (`VIEW_OPS`) inside an operator move no bytes either: their output shares the storage of their input. The
    root is an output of the operator if the group has one, else an input, else the first temporary. A view node that
    would tie an output to an input or to another output has to copy, so it has no entry.
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
