"""Facts of nodes and tensors: constants, views, what may be on storage and what is resident.

The resident region of a training step: parameters, their gradients, constants, statistics, the loss.

A tensor of the region is never paged or recomputed. A storage is resident as soon as one of the tensors that share it
is: the gradient of a weight that is reshaped last is written straight into the region.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from poetopt.graph import VIEW_OPS, Graph, Node, Operator, Role, Tensor, TrainingGraph, residence
from poetopt.graph.problem import Home
from poetopt.util.errors import ModelError

if TYPE_CHECKING:
    from poetopt.graph import Array


class OfNode:
    """Attributes of a `node`, by name, with what holds where one is absent or of another type."""

    __slots__ = ()
    node: Node

    def integer(self, name: str, default: int) -> int:
        """A whole number."""
        value = self.node.attributes.get(name, default)
        return int(value) if isinstance(value, (int, float)) else default

    def number(self, name: str, default: float) -> float:
        """A number."""
        value = self.node.attributes.get(name, default)
        return float(value) if isinstance(value, (int, float)) else default

    def text(self, name: str, default: str) -> str:
        """A text."""
        value = self.node.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def integers(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """A list of whole numbers."""
        value = self.node.attributes.get(name)
        return tuple(int(v) for v in value) if isinstance(value, (list, tuple)) else tuple(default)


@dataclass(frozen=True, slots=True)
class Call(OfNode):
    """One op to be run: what runtimes and kernels are asked about.

    node
        The ONNX node, or the op that a run of nodes amounts to.
    inputs, outputs
        Its tensors in order, None for an absent one: shapes and types.
    values
        Constants of the graph by name, as far as they are known; none are while the planner asks.
    """

    node: Node
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]
    values: Mapping[str, Array] = field(default_factory=dict)

    def has(self, index: int) -> bool:
        """Says whether there is an input `index`."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int) -> Tensor:
        """Input `index`, which must be there."""
        tensor = self.inputs[index]
        assert tensor is not None
        return tensor

    def output(self, index: int = 0) -> Tensor:
        """Output `index`, which must be there."""
        tensor = self.outputs[index]
        assert tensor is not None
        return tensor

    def value(self, index: int) -> Array | None:
        """The value of input `index` where that is a known constant."""
        tensor = self.inputs[index] if index < len(self.inputs) else None
        return None if tensor is None else self.values.get(tensor.name)

    def shape(self, index: int) -> tuple[int, ...]:
        """Of an input; of an absent one that of a scalar."""
        return self.input(index).shape if self.has(index) else ()

    def nbytes(self, index: int) -> int:
        """Of an input; 0 of an absent one."""
        return self.input(index).nbytes if self.has(index) else 0


def around(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """Elements before, along and behind `axis`."""
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])


def find(operator: Operator, node: Node, name: str, tensors: Mapping[str, Tensor]) -> Tensor:
    """The tensor that a node names, or a `ModelError` that says which node of which operator does."""
    try:
        return tensors[name]
    except KeyError:
        raise ModelError(
            f"operator {operator.name!r}, node {node.name or node.op_type!r} ({node.op_type}): the tensor {name!r} is "
            "not in the graph; its shape must be known before it can be costed"
        ) from None


def is_inner_view(node: Node, group: Mapping[str, str]) -> bool:
    """Says whether a node inside an operator moves no bytes, by the groups of `inner_storage`.

    Either what it writes is in a group, or what it writes names the group that what it reads is in.
    """
    if node.op_type not in VIEW_OPS or node.domain:
        return False
    written, source = node.outputs[0], node.inputs[0]
    return group.get(written, written) == group.get(source, source)


def movable(operator: Operator, graph: TrainingGraph, scheduled: Container[str]) -> list[str]:
    """Inputs and outputs whose storage (root) is one of `scheduled`, and no other operand's; tables by rows are none.

    What is updated is there once, under its old name.
    """
    return [name for name in _once(operator, graph, scheduled) if graph.root(name) not in graph.rows]


def listed(operator: Operator, graph: TrainingGraph, scheduled: Container[str]) -> list[str]:
    """The same of tables by rows alone."""
    return [name for name in _once(operator, graph, scheduled) if graph.root(name) in graph.rows]


def streamable(
    operator: Operator,
    graph: TrainingGraph,
    scheduled: Container[str],
    constants: Mapping[str, Array],
    block_bytes: int,
) -> dict[str, Any]:
    """Arguments of `Runtime.variants` for an operator that may stream. It hears of `listed` where there are such."""
    rows = listed(operator, graph, scheduled)
    given: dict[str, Any] = {"movable": movable(operator, graph, scheduled), "values": constants}
    given["block_bytes"] = block_bytes
    return given | ({"listed": rows} if rows else {})


def _once(operator: Operator, graph: TrainingGraph, scheduled: Container[str]) -> list[str]:
    new = {new for _, new in operator.updates}
    names = [name for name in (*operator.inputs, *operator.outputs) if name not in new]
    operands = Counter(map(graph.root, names))
    return [name for name in names if operands[graph.root(name)] == 1 and graph.root(name) in scheduled]


PARTS: Mapping[Role, str] = {
    Role.PARAMETER: "parameters",
    Role.PARAMETER_GRADIENT: "gradients",
    Role.GRADIENT_SUM: "gradients",
    Role.CONSTANT: "constants",
    Role.STATE: "states",
    Role.LOSS: "loss",
    Role.OPTIMIZER_STATE: "optimizer",
    Role.HYPERPARAMETER: "optimizer",
}
"""What the resident region consists of, by the role of the tensors."""


def resident_storages(graph: TrainingGraph) -> Mapping[str, Role]:
    """The storages (root tensors) of the resident region, each with the role that makes it resident.

    In the order of `graph.tensors`. What only lives inside an operator is not here, whatever its role.
    """
    found: dict[str, Role] = {}
    for name, tensor in graph.tensors.items():
        given = residence(tensor.role).home is not Home.NOWHERE
        if tensor.resident and (given or name in graph.producers):
            root = graph.tensors[graph.root(name)]
            # a constant whose view is somebody's gradient stays a constant
            found.setdefault(root.name, root.role if root.resident else tensor.role)
    return found


def resident_breakdown(graph: TrainingGraph, storages: Mapping[str, Role] | None = None) -> Mapping[str, int]:
    """Bytes of the resident region by what they are: the values of `PARTS`, each storage counted once.

    storages
        Those of the region, where some of `resident_storages` lie elsewhere.

    `optimizer` is only there where the step has one.
    """
    sums = {part: 0 for part in PARTS.values() if part != "optimizer" or graph.optimizer != "none"}
    for root, role in (resident_storages(graph) if storages is None else storages).items():
        sums[PARTS[role]] += graph.tensors[root].nbytes
    return sums


def signature(operator: Operator, graph: Graph) -> str:
    """The signature of an operator of `graph`; the same for operators that a kernel can't tell apart."""
    tensors = graph.tensors
    numbers: dict[str, int] = {}
    lines = [operator.kind]
    for node in operator.nodes:
        words = [f"{node.domain}.{node.op_type}"]
        words += [f"{key}={_value(node.attributes[key])}" for key in sorted(node.attributes)]
        for name in (*node.inputs, "->", *node.outputs):
            if name in ("", "->"):
                words.append(name or "-")
                continue
            number = numbers.setdefault(name, len(numbers))
            words.append(f"%{number}:{_shown(tensors[name])}{_small(name, graph)}")
        lines.append(" ".join(words))
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
    return f"{operator.kind}({_listed(operator.inputs, tensors)}) -> {_listed(operator.outputs, tensors)} #{digest}"


def signatures(graph: Graph) -> Mapping[str, str]:
    """The signature of each operator that is scheduled (views are not), by the operator's name, in order."""
    return {operator.name: signature(operator, graph) for operator in graph.operators if not operator.view}


def _listed(names: Iterable[str], tensors: Mapping[str, Tensor]) -> str:
    return ", ".join(_shown(tensors[name]) for name in names)


def _shown(tensor: Tensor) -> str:
    return f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"


def _small(name: str, graph: Graph) -> str:
    """The values of a small integer constant."""
    tensor = graph.tensors[name]
    if tensor.role is not Role.CONSTANT or name not in graph.values or tensor.dtype not in ("int64", "int32"):
        return ""
    # integer constants of at most this many elements say what is computed; larger ones are data
    return f"={graph.values[name].tolist()}" if tensor.size <= 64 else ""


def _value(value: object) -> str:
    """An attribute's value, exactly; an array by its type, shape and bytes."""
    tobytes = getattr(value, "tobytes", None)
    if tobytes is not None and hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}{value.shape}{hashlib.sha256(tobytes()).hexdigest()}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_value, value))}]"
    return repr(value)
