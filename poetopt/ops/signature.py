"""What makes two operators the same to a stopwatch: kind, ops, attributes, wiring, shapes and types, but no names.

A signature is readable, and unique by its end:

    Conv(float32[16,3,32,32], float32[64,3,3,3]) -> float32[16,64,32,32] #0f3a5c1d2e4b

The hash is of all nodes: op types, domains, attributes, shapes and types of everything they read and write (temporaries
included), how they are connected, and the values of small integer constants (axes, shapes, pads).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from poetopt.graph import Graph, Operator, Role, Tensor

HASH_DIGITS = 12
SMALL_CONSTANT = 64
"""Integer constants of at most this many elements say what is computed; larger ones are data."""


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
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:HASH_DIGITS]
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
    return f"={graph.values[name].tolist()}" if tensor.size <= SMALL_CONSTANT else ""


def _value(value: object) -> str:
    """An attribute's value, exactly; an array by its type, shape and bytes."""
    tobytes = getattr(value, "tobytes", None)
    if tobytes is not None and hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{value.dtype}{value.shape}{hashlib.sha256(tobytes()).hexdigest()}"
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_value, value))}]"
    return repr(value)
