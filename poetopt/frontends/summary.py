"""A summary of a graph, as plain data for `poetopt inspect` and its JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from poetopt.graph import Graph, Role, Tensor
from poetopt.util.notes import document


def summary(graph: Graph) -> dict[str, object]:
    """Counts, sizes and names, ready for JSON.

    Keys: `name`, `source`, `content_hash`, `structure_hash`, `opset`; `operators` (how many, views included),
    `operators_by_type`; `inputs` and `outputs` (lists of name, shape, dtype, bytes); `trained`, `frozen` (untrained
    floats, running statistics included) and `constants` (everything else that is stored), each with `tensors`,
    `elements` and `bytes`; `parameters` (each trained parameter with shape, dtype, bytes); `activation_bytes`
    (all forward activations together, views not counted twice); `notes`;
    `important`, those of them that the answer depends on (about, text).
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
        "inputs": [_tensor(graph.tensors[name]) for name in graph.inputs],
        "outputs": [_tensor(graph.tensors[name]) for name in graph.outputs],
        "trained": _total(trained),
        "frozen": _total(frozen),
        "constants": _total(others),
        "parameters": [_tensor(tensor) for tensor in trained],
        "activation_bytes": sum(tensor.nbytes for tensor in activations if not tensor.resident),
        "notes": list(graph.notes),
        "important": document(graph.notes),
    }


def _tensor(tensor: Tensor) -> dict[str, object]:
    return {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype, "bytes": tensor.nbytes}


def _total(tensors: Iterable[Tensor]) -> dict[str, int]:
    found = list(tensors)
    return {
        "tensors": len(found),
        "elements": sum(tensor.size for tensor in found),
        "bytes": sum(tensor.nbytes for tensor in found),
    }
