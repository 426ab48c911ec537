"""Summary, hash and checks of a finished graph.

The summary is plain data for `poetopt inspect` and its JSON. The structure hash covers operators, shapes and types, but
no weights: a plan belongs to a structure, so that a network that was trained further still runs by it. The hash
includes integers that a graph reads (axes, shapes, pads) and untrained scalars, because they decide what operators do;
all other stored values are data.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from poetopt.graph import Graph, Node, Role, Tensor
from poetopt.util.notes import document


def gap(graph: Graph) -> str | None:
    """Return the first inconsistency of a graph, in words, or None."""
    declared = set(graph.tensors)
    for kind, names in (("input", graph.inputs), ("initializer", graph.values)):
        for name in names:
            if name not in declared:
                return f"its {kind} '{name}' isn't one of its tensors"
    available = {*graph.inputs, *graph.values}
    seen: set[str] = set()
    for operator in graph.operators:
        if operator.name in seen:
            return f"two operators are called '{operator.name}'"
        seen.add(operator.name)
        for name in filter(None, operator.inputs):
            if name not in available:
                return f"operator '{operator.name}' reads '{name}': no input, no initializer, and not written before"
        for name in filter(None, operator.outputs):
            if name not in declared:
                return f"operator '{operator.name}' writes '{name}', which isn't one of its tensors"
            if name in available:
                return f"operator '{operator.name}' writes '{name}', which already exists"
            available.add(name)
    for name in graph.outputs:
        if name not in available:
            return f"its output '{name}' is written by no operator"
    for name in graph.trained:
        if name not in graph.values:
            return f"it trains '{name}', which is no initializer"
    return None


def structure_hash(graph: Graph) -> str:
    """SHA-256 of the structure of a network, names included."""
    digest = hashlib.sha256()
    for part in _hashed_parts(graph):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _hashed_parts(graph: Graph) -> Iterator[bytes]:
    yield repr((graph.opset, graph.inputs, graph.outputs, graph.trained)).encode()
    for name in sorted(graph.tensors):
        tensor = graph.tensors[name]
        yield repr((name, tensor.shape, tensor.dtype, str(tensor.role))).encode()
    for operator in graph.operators:
        for node in operator.nodes:
            yield repr((operator.name, node.op_type, node.domain, node.inputs, node.outputs)).encode()
            yield from _node_attributes(node)
    for name in sorted(graph.values.keys() - set(graph.trained)):
        array = graph.values[name]
        # small integer constants and scalars decide what operators do
        if array.size <= 64 if array.dtype.kind in "iub" else array.ndim == 0:
            yield name.encode()
            yield array.tobytes()


def _node_attributes(node: Node) -> Iterator[bytes]:
    attributes: Mapping[str, object] = node.attributes
    for name in sorted(attributes):
        yield name.encode()
        yield _attribute_bytes(attributes[name])


def _attribute_bytes(value: object) -> bytes:
    if isinstance(value, np.ndarray):
        return repr((value.shape, str(value.dtype))).encode() + value.tobytes()
    if isinstance(value, (list, tuple)):
        return b"".join(_attribute_bytes(item) for item in value)
    serialize = getattr(value, "SerializeToString", None)  # a graph, as a protobuf
    return bytes(serialize(deterministic=True)) if serialize is not None else repr(value).encode()


def summary(graph: Graph) -> dict[str, object]:
    """Return counts, sizes and names, ready for JSON.

    Keys: `name`, `source`, `content_hash`, `structure_hash`, `opset`; `operators` (their number, views included),
    `operators_by_type`; `inputs` and `outputs` (lists of name, shape, dtype, bytes); `trained`, `frozen` (untrained
    floats, running statistics included) and `constants` (other stored tensors), each with `tensors`, `elements` and
    `bytes`; `parameters` (each trained parameter with shape, dtype, bytes); `activation_bytes` (all forward
    activations together, views not counted twice); `notes`; `important`, the notes that the answer depends on
    (about, text).
    """
    stored = [graph.tensors[name] for name in graph.values]
    trained = [graph.tensors[name] for name in graph.trained]
    untrained = [tensor for tensor in stored if tensor.role is not Role.PARAMETER]
    frozen = [tensor for tensor in untrained if "float" in tensor.dtype]
    others = [tensor for tensor in untrained if "float" not in tensor.dtype]
    counts = Counter(operator.kind for operator in graph.operators)
    activations = (
        graph.tensors[name] for operator in graph.operators if not operator.view for name in operator.outputs
    )
    return {
        "name": graph.name,
        "source": graph.source,
        "content_hash": graph.content_hash,
        "structure_hash": graph.structure_hash,
        "opset": graph.opset,
        "operators": len(graph.operators),
        "operators_by_type": dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))),
        "inputs": [_tensor_entry(graph.tensors[name]) for name in graph.inputs],
        "outputs": [_tensor_entry(graph.tensors[name]) for name in graph.outputs],
        "trained": _total(trained),
        "frozen": _total(frozen),
        "constants": _total(others),
        "parameters": [_tensor_entry(tensor) for tensor in trained],
        "activation_bytes": sum(tensor.nbytes for tensor in activations if not tensor.resident),
        "notes": list(graph.notes),
        "important": document(graph.notes),
    }


def _tensor_entry(tensor: Tensor) -> dict[str, object]:
    return {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype, "bytes": tensor.nbytes}


def _total(tensors: Iterable[Tensor]) -> dict[str, int]:
    listed = list(tensors)
    return {
        "tensors": len(listed),
        "elements": sum(tensor.size for tensor in listed),
        "bytes": sum(tensor.nbytes for tensor in listed),
    }
