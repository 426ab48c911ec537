"""Emission: operators are written node by node, and every tensor gets its exact shape and type at once.

`GraphBuilder` owns the growing graph. `OperatorBuilder` writes one operator, by the methods of `Vocabulary`.
All nodes are valid from `OLDEST_OPSET` to the newest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from poetopt.autodiff.vocabulary import Vocabulary
from poetopt.graph import OWN_DOMAIN, LabelRule, Node, Operator, Role, Tensor, Whole

if TYPE_CHECKING:
    from poetopt.autodiff.alternatives import Choice
    from poetopt.graph import Array

OLDEST_OPSET = 16
"""The oldest opset of emitted nodes: since then ScatterElements can add."""


@dataclass(frozen=True)
class Spread:
    """The gradient of a pool's input, described by the gradient of the maxima.

    Attributes
    ----------
    maxima, gradient
        The maxima, and their gradient.
    kind
        Kind of the operator that scatters the gradient.
    put
        Scatters a tensor of that shape to the positions of the maxima, adds up where several meet, and writes 0
        elsewhere.
    """

    maxima: Tensor
    gradient: Tensor
    kind: str
    put: Callable[[OperatorBuilder, Tensor], Tensor]


class GraphBuilder:
    """Tensors, values and operators of a graph that is being extended.

    Constants are shared by content: two rules that need the same shape vector read one tensor.

    Attributes
    ----------
    floor_bytes
        RAM that the step needs whichever construction a rule chooses. A construction below it may be as fast as it
        can. The default is four tensors of the largest size.
    needed
        Storages that backward operators read whatever the rules choose, known from a first pass, and those that
        were chosen since. `is_queried` is set once any rule queries it.
    roots
        The tensor whose bytes a forward view shares.
    adders
        For gradients that are mostly zeros, by name: a function that adds one to another tensor without its zeros.
    spreads
        Gradients that are a smaller gradient scattered to the positions of maxima, by name.
    maxima
        Whether rules may use `spreads`.
    over
        Whether gradients may overwrite the operands that they are computed from; rules then keep operands' layouts.
    label_rule
        The label rule of an attached cross-entropy.
    choices
        The choices between constructions that rules have made.
    infinite
        Gradients, by name, whose elements may be infinite: they passed an operator whose derivative has a pole.
    flowing
        Whether one of those flows back into the current rule.
    distinct
        Distinct numbers, for nodes that optimizers must not merge.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], values: Mapping[str, Array], opset: int,
        roots: Mapping[str, str] | None = None, needed: Set[str] = frozenset(), floor_bytes: int | None = None, *,
        maxima: bool = True, over: bool = True, label_rule: LabelRule = LabelRule(),  # noqa: B008
    ) -> None:  # fmt: skip
        self.tensors: dict[str, Tensor] = dict(tensors)
        self.values: dict[str, Array] = dict(values)
        self.opset = opset
        self.drafts: list[OperatorBuilder] = []
        self.roots = roots or {}
        self.needed = set(needed)
        self.is_queried = False
        largest = max((t.nbytes for t in tensors.values() if not t.resident), default=0)
        self.floor_bytes = 4 * largest if floor_bytes is None else floor_bytes
        self._constants: dict[tuple[np.dtype[np.generic], tuple[int, ...], bytes], Tensor] = {}
        self._vectors: dict[tuple[int, ...], Tensor] = {}
        self._constant_names: set[str] = set()
        self._names = set(tensors)
        self._numbers: dict[str, int] = {}
        self._writers: dict[str, OperatorBuilder] = {}
        self.adders: dict[str, Callable[[OperatorBuilder, Tensor], Tensor]] = {}
        self.spreads: dict[str, Spread] = {}
        self.maxima = maxima
        self.over = over
        self.label_rule = label_rule
        self.choices: list[Choice] = []
        self.infinite: set[str] = set()
        self.flowing = False
        self.distinct = itertools.count()

    def unique(self, wanted: str) -> str:
        """Return `wanted`, or the first of `wanted.2`, `wanted.3`, ... that no tensor has."""
        name, number = wanted, self._numbers.get(wanted, 1)
        while name in self._names:
            number += 1
            name = f"{wanted}.{number}"
        self._names.add(name)
        if number > 1:
            self._numbers[wanted] = number  # smaller numbers are used
        return name

    def add_tensor(self, name: str, shape: Sequence[int], dtype: str, role: Role) -> Tensor:
        """Add a tensor, whose `name` must come from `unique`."""
        self.tensors[name] = tensor = Tensor(name, tuple(map(int, shape)), dtype, role)
        return tensor

    def valued(self, name: str, value: Array, role: Role) -> Tensor:
        """Add a tensor that has a value before the first step."""
        value.flags.writeable = False
        self.values[name] = value
        return self.add_tensor(name, value.shape, value.dtype.name, role)

    def constant(self, value: Array) -> Tensor:
        """Return the constant with this value, which is added if it is new."""
        array = np.array(value, order="C")
        key = (array.dtype, array.shape, array.tobytes())
        if key not in self._constants:
            name = self.unique(f"const.{len(self._constants)}")
            self._constant_names.add(name)
            self._constants[key] = self.valued(name, array, Role.CONSTANT)
        return self._constants[key]

    def ints(self, values: Iterable[int]) -> Tensor:
        """Return the constant int64 vector of these values."""
        vector = tuple(values)
        if vector not in self._vectors:
            self._vectors[vector] = self.constant(np.array(vector, np.int64))
        return self._vectors[vector]

    def scalar(self, value: float, dtype: str) -> Tensor:
        """Return the constant of rank 0 with this value."""
        return self.constant(np.array(value, dtype))

    def is_constant(self, tensor: Tensor, value: float) -> bool:
        """Return whether `tensor` is a constant that this builder added, all of whose elements equal `value`."""
        array = self.constant_value(tensor)
        return array is not None and array.size <= 4096 and bool(np.all(np.asarray(array) == value))

    def constant_value(self, tensor: Tensor) -> Array | None:
        """Return the value of a constant that this builder added; None for others, which a user may replace."""
        return self.values[tensor.name] if tensor.name in self._constant_names else None

    def operator(
        self, name: str, kind: str, *, view: bool = False, recomputable: bool = True, backward: bool = True,
        role: Role = Role.GRADIENT,
    ) -> OperatorBuilder:  # fmt: skip
        """Start an operator, whose outputs have `role` until the graph is finished."""
        draft = OperatorBuilder(self, self.unique(name), kind, view, recomputable, backward, role)
        self.drafts.append(draft)
        return draft

    def kept(self, tensor: Tensor) -> bool:
        """Return whether the backward pass keeps `tensor` anyway: it is resident, or a backward operator reads it."""
        self.is_queried = True
        return tensor.resident or self.roots.get(tensor.name, tensor.name) in self.needed

    def required(self) -> frozenset[str]:
        """Return the storages that backward operators without a choice read."""
        drafts = (draft for draft in self.drafts if draft.backward and not draft.chooses)
        names = {name for draft in drafts for node in draft.nodes for name in node.inputs}
        return frozenset(self.roots.get(name, name) for name in names)

    def writer(self, tensor: Tensor) -> OperatorBuilder | None:
        """Return the operator under construction that writes `tensor`, or None."""
        return self._writers.get(tensor.name)

    def wrote(self, tensor: Tensor, draft: OperatorBuilder) -> None:
        """Record that `draft` writes `tensor`."""
        self._writers[tensor.name] = draft


@dataclass
class OperatorBuilder(Vocabulary):
    """One operator under construction; tensors are handles."""

    graph: GraphBuilder
    name: str
    kind: str
    view: bool
    recomputable: bool
    backward: bool
    role: Role

    def __post_init__(self) -> None:
        self.nodes: list[Node] = []
        self.over = ""
        self.chooses = False
        self.whole: list[Whole] = []

    def out(self, shape: Sequence[int], dtype: str, name: str | None = None, role: Role | None = None) -> Tensor:
        """Add a tensor for a node of this operator to write."""
        unique_name = self.graph.unique(name if name is not None else f"{self.name}/{len(self.nodes)}")
        tensor = self.graph.add_tensor(unique_name, shape, dtype, self.role if role is None else role)
        self.graph.wrote(tensor, self)
        return tensor

    def write(
        self, op_type: str, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None], **attributes: object
    ) -> None:
        """Append one node; `None` is an absent optional input or output."""
        read = tuple(["" if t is None else t.name for t in inputs])
        written = tuple(["" if t is None else t.name for t in outputs])
        self.nodes.append(Node(op_type, read, written, attributes))

    def node(
        self, op_type: str, inputs: Sequence[Tensor | None], shape: Sequence[int], dtype: str, **attributes: object
    ) -> Tensor:
        """Append a node with one output of this shape and type."""
        output = self.out(shape, dtype)
        self.write(op_type, inputs, [output], **attributes)
        return output

    def amounts_to(
        self, op_type: str, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None], **attributes: object
    ) -> None:
        """Declare that the nodes since the last declaration are together one fused op of `OWN_DOMAIN`.

        Inputs must be tensors that those nodes read; outputs, all tensors of theirs that other nodes read.
        """
        first = self.whole[-1].first + self.whole[-1].count if self.whole else 0
        read = tuple(["" if t is None else t.name for t in inputs])
        written = tuple(["" if t is None else t.name for t in outputs])
        node = Node(op_type, read, written, attributes, OWN_DOMAIN)
        self.whole.append(Whole(first, len(self.nodes) - first, node))


def finish(draft: OperatorBuilder, outputs: Sequence[str], rename: Mapping[str, str]) -> Operator:
    """Return the operator that `draft` describes, with tensors renamed."""
    written = {name for node in draft.nodes for name in node.outputs if name}
    read = dict.fromkeys(name for node in draft.nodes for name in node.inputs if name and name not in written)
    nodes = tuple(
        Node(
            node.op_type,
            tuple([rename.get(n, n) for n in node.inputs]),
            tuple([rename.get(n, n) for n in node.outputs]),
            node.attributes,
            node.domain,
            draft.name if len(draft.nodes) == 1 else f"{draft.name}/{index}",
        )
        for index, node in enumerate(draft.nodes)
    )
    return Operator(
        name=draft.name,
        kind=draft.kind,
        nodes=nodes,
        inputs=tuple(rename.get(n, n) for n in read),
        outputs=tuple(rename.get(n, n) for n in outputs),
        view=draft.view,
        recomputable=draft.recomputable,
        backward=draft.backward,
        over=rename.get(draft.over, draft.over),
        whole=tuple(replace(whole, node=_renamed(whole.node, draft.name, rename)) for whole in draft.whole),
    )


def _renamed(node: Node, name: str, rename: Mapping[str, str]) -> Node:
    """Return `node` under another name, with its tensors renamed."""
    inputs, outputs = (tuple([rename.get(n, n) for n in names]) for names in (node.inputs, node.outputs))
    return replace(node, inputs=inputs, outputs=outputs, name=name)
