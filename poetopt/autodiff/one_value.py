"""BatchNormalization that trains on one value a channel: its variance is 0, and no gradient passes it.

What it writes is its bias, whatever it reads; so the gradients of its scale and of all that only leads to it are
exactly 0. torch refuses such a batch.
"""

from __future__ import annotations

from collections.abc import Collection

from poetopt.graph import Graph, Operator
from poetopt.util.notes import About, Note, listed


def note(graph: Graph, parameters: Collection[str]) -> list[str]:
    """What to say of such layers: one line, or nothing.

    graph
        The forward graph, its nodes as the file has them.
    parameters
        Those that get a gradient.
    """
    layers = [operator for operator in graph.operators if _one_value(graph, operator)]
    if not layers:
        return []
    alone = {operator.name for operator in layers}
    wanted = set(graph.outputs)
    for operator in reversed(graph.operators):
        if wanted.intersection(operator.outputs):
            wanted.update(operator.nodes[0].inputs[2:3] if operator.name in alone else operator.inputs)
    zero = sum(name not in wanted for name in parameters)
    text = (
        f"BatchNormalization trains on one value a channel ({listed([operator.name for operator in layers], 3)}), "
        f"which torch refuses: at least {zero} of {len(parameters)} gradients are exactly 0; give a larger --batch"
    )
    return [Note(text, About.GRADIENTS)]


def _one_value(graph: Graph, operator: Operator) -> bool:
    node = operator.nodes[0]
    if node.op_type != "BatchNormalization" or not node.attributes.get("training_mode", 0):
        return False
    shape = graph.tensors[node.inputs[0]].shape
    return len(shape) > 1 and graph.tensors[node.inputs[0]].size == shape[1]
