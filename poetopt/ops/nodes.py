"""Facts of nodes and tensors: constants, views, tensors that may lie on storage, and the resident region.

The resident region of a training step has parameters, their gradients, constants, statistics and the loss.

A tensor of the region is never paged or recomputed. A storage is resident if one of the tensors that share it is. So
the gradient of a weight that is reshaped last is written straight into the region.
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
    """Attributes of a `node` by name, with a default for one that is absent or of another type."""

    __slots__ = ()
    node: Node

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        value = self.node.attributes.get(name, default)
        return int(value) if isinstance(value, (int, float)) else default

    def number(self, name: str, default: float) -> float:
        """Return a numeric attribute as a float."""
        value = self.node.attributes.get(name, default)
        return float(value) if isinstance(value, (int, float)) else default

    def text(self, name: str, default: str) -> str:
        """Return a text attribute."""
        value = self.node.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def integers(self, name: str, default: Sequence[int] = ()) -> tuple[int, ...]:
        """Return an attribute that is a list of integers."""
        value = self.node.attributes.get(name)
        return tuple(int(v) for v in value) if isinstance(value, (list, tuple)) else tuple(default)


@dataclass(frozen=True, slots=True)
class Call(OfNode):
    """One call of an op: the question to runtimes and kernels.

    Attributes
    ----------
    node
        The ONNX node, or the fused op of several nodes in a row.
    inputs, outputs
        Its tensors in order, with shapes and types; None for an absent one.
    values
        Known constants of the graph by name; none while the planner asks.
    """

    node: Node
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]
    values: Mapping[str, Array] = field(default_factory=dict)

    def has(self, index: int) -> bool:
        """Return whether there is an input `index`."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def input(self, index: int) -> Tensor:
        """Return input `index`, which must be present."""
        tensor = self.inputs[index]
        assert tensor is not None
        return tensor

    def output(self, index: int = 0) -> Tensor:
        """Return output `index`, which must be present."""
        tensor = self.outputs[index]
        assert tensor is not None
        return tensor

    def value(self, index: int) -> Array | None:
        """Return the value of input `index`; None unless it is a known constant."""
        tensor = self.inputs[index] if index < len(self.inputs) else None
        return None if tensor is None else self.values.get(tensor.name)

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of an input; that of a scalar if the input is absent."""
        return self.input(index).shape if self.has(index) else ()

    def nbytes(self, index: int) -> int:
        """Return the bytes of an input; 0 if the input is absent."""
        return self.input(index).nbytes if self.has(index) else 0


def around(shape: Sequence[int], axis: int) -> tuple[int, int, int]:
    """Return the numbers of elements before, along and behind `axis`."""
    return prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :])


def find(operator: Operator, node: Node, name: str, tensors: Mapping[str, Tensor]) -> Tensor:
    """Return the tensor that a node names.

    Raises
    ------
    ModelError
        The graph lacks the tensor; the message names the operator and the node.
    """
    try:
        return tensors[name]
    except KeyError:
        raise ModelError(
            f"operator {operator.name!r}, node {node.name or node.op_type!r} ({node.op_type}): the tensor {name!r} is "
            "not in the graph, so that its cost is unknown; give the tensor a shape"
        ) from None


def is_inner_view(node: Node, group: Mapping[str, str]) -> bool:
    """Return whether a node inside an operator moves no bytes, by the groups of `inner_storage`.

    Then its output is in the group of its input, or names that group.
    """
    if node.op_type not in VIEW_OPS or node.domain:
        return False
    written, source = node.outputs[0], node.inputs[0]
    return group.get(written, written) == group.get(source, source)


def movable(operator: Operator, graph: TrainingGraph, scheduled: Container[str]) -> list[str]:
    """Return the inputs and outputs whose storage (root) is in `scheduled` and isn't another operand's.

    Tables that are kept by rows are left out (`listed`). An updated tensor is named once, by its old name.
    """
    return [name for name in _distinct_operands(operator, graph, scheduled) if graph.root(name) not in graph.rows]


def listed(operator: Operator, graph: TrainingGraph, scheduled: Container[str]) -> list[str]:
    """Return the operands like those of `movable` that are tables kept by rows."""
    return [name for name in _distinct_operands(operator, graph, scheduled) if graph.root(name) in graph.rows]


def streamable(
    operator: Operator,
    graph: TrainingGraph,
    scheduled: Container[str],
    constants: Mapping[str, Array],
    block_bytes: int,
) -> dict[str, Any]:
    """Return the arguments of `Runtime.variants` for an operator that may stream; `listed` only if there are any."""
    rows = listed(operator, graph, scheduled)
    arguments: dict[str, Any] = {"movable": movable(operator, graph, scheduled), "values": constants}
    arguments["block_bytes"] = block_bytes
    return arguments | ({"listed": rows} if rows else {})


def _distinct_operands(operator: Operator, graph: TrainingGraph, scheduled: Container[str]) -> list[str]:
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
"""The part of the resident region that the tensors of a role belong to."""


def resident_storages(graph: TrainingGraph) -> Mapping[str, Role]:
    """Return the storages (root tensors) of the resident region, each with the role that makes it resident.

    They are in the order of `graph.tensors`. A tensor that lives only inside an operator is left out, whatever its
    role.
    """
    roles: dict[str, Role] = {}
    for name, tensor in graph.tensors.items():
        has_value = residence(tensor.role).home is not Home.NOWHERE
        if tensor.resident and (has_value or name in graph.producers):
            root = graph.tensors[graph.root(name)]
            # a constant whose view is a gradient stays a constant
            roles.setdefault(root.name, root.role if root.resident else tensor.role)
    return roles


def resident_breakdown(graph: TrainingGraph, storages: Mapping[str, Role] | None = None) -> Mapping[str, int]:
    """Return the bytes of each part of the resident region (values of `PARTS`); each storage counts once.

    The key `optimizer` exists only if the step has an optimizer.

    Parameters
    ----------
    storages
        The storages of the region, where some of `resident_storages` lie elsewhere.
    """
    sums = {part: 0 for part in PARTS.values() if part != "optimizer" or graph.optimizer != "none"}
    for root, role in (resident_storages(graph) if storages is None else storages).items():
        sums[PARTS[role]] += graph.tensors[root].nbytes
    return sums


def signature(operator: Operator, graph: Graph) -> str:
    """Return the signature of an operator of `graph`; operators that a kernel can't tell apart have the same."""
    tensors = graph.tensors
    numbers: dict[str, int] = {}
    lines = [operator.kind]
    for node in operator.nodes:
        words = [f"{node.domain}.{node.op_type}"]
        words += [f"{key}={_attribute_text(node.attributes[key])}" for key in sorted(node.attributes)]
        for name in (*node.inputs, "->", *node.outputs):
            if name in ("", "->"):
                words.append(name or "-")
                continue
            number = numbers.setdefault(name, len(numbers))
            words.append(f"%{number}:{_tensor_text(tensors[name])}{_constant_text(name, graph)}")
        lines.append(" ".join(words))
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
    inputs, outputs = (_tensors_text(names, tensors) for names in (operator.inputs, operator.outputs))
    return f"{operator.kind}({inputs}) -> {outputs} #{digest}"


def signatures(graph: Graph) -> Mapping[str, str]:
    """Return the signature of each scheduled operator (all but views) by the operator's name, in order."""
    return {operator.name: signature(operator, graph) for operator in graph.operators if not operator.view}


def _tensors_text(names: Iterable[str], tensors: Mapping[str, Tensor]) -> str:
    return ", ".join(_tensor_text(tensors[name]) for name in names)


def _tensor_text(tensor: Tensor) -> str:
    return f"{tensor.dtype}[{','.join(map(str, tensor.shape))}]"


def _constant_text(name: str, graph: Graph) -> str:
    """Return the values of a small integer constant as text."""
    tensor = graph.tensors[name]
    if tensor.role is not Role.CONSTANT or name not in graph.values or tensor.dtype not in ("int64", "int32"):
        return ""
    # small integer constants determine the computation; larger ones are data
    return f"={graph.values[name].tolist()}" if tensor.size <= 64 else ""


def _attribute_text(value: object) -> str:
    """Return an attribute's exact value as text; an array by its type, shape and bytes."""
    tobytes = getattr(value, "tobytes", None)
    if tobytes is not None and hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}{value.shape}{hashlib.sha256(tobytes()).hexdigest()}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_attribute_text, value))}]"
    return repr(value)
