"""Gradients at quantizers: they stop there, or pass straight through pairs of QuantizeLinear and DequantizeLinear.

A quantizer that no trained parameter precedes needs no gradient. A note names each parameter before a quantizer: it
gets no gradient, or its gradient lacks the part through the quantizer.

With the straight-through option, the gradient of `DequantizeLinear(QuantizeLinear(x))` passes where x isn't clipped.
The integers in between carry it as if they were floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from poetopt.autodiff.registry import STRAIGHT, flows, principal
from poetopt.graph import Graph, Operator
from poetopt.ops.op import op_of
from poetopt.util.notes import About, Note


def straight_through(graph: Graph) -> Graph:
    """Return `graph` with pairs of QuantizeLinear and DequantizeLinear that pass gradients."""
    paired = frozenset(_paired(graph))
    if not paired:
        return graph
    operators = tuple(
        replace(o, meaning=replace(o.nodes[0], domain=STRAIGHT)) if o.name in paired else o for o in graph.operators
    )
    return replace(graph, operators=operators)


def _paired(graph: Graph) -> Iterator[str]:
    """Yield the names of QuantizeLinear operators whose readers are all their inverses, and of these readers."""
    for operator in graph.operators:
        if _op_type(operator) != "QuantizeLinear" or operator.outputs[0] in graph.outputs:
            continue
        readers = graph.readers.get(operator.outputs[0], ())
        if readers and all(_is_inverse(graph, reader, operator) for reader in readers):
            yield operator.name
            yield from (reader.name for reader in readers)


def _is_inverse(graph: Graph, second: Operator, first: Operator) -> bool:
    quantize, dequantize = first.nodes[0], second.nodes[0]
    if _op_type(second) != "DequantizeLinear" or dequantize.inputs[0] != quantize.outputs[0]:
        return False
    settings = [
        (node.attributes.get("axis", 1), node.attributes.get("block_size", 0)) for node in (quantize, dequantize)
    ]
    return settings[0] == settings[1] and all(
        _are_equal(graph, (*quantize.inputs, "")[position], (*dequantize.inputs, "")[position]) for position in (1, 2)
    )


def _are_equal(graph: Graph, one: str, other: str) -> bool:
    """Return whether two scales or zero points are equal; an absent zero point is zero."""
    if one == other:
        return True
    values = [graph.values.get(name) if name else np.zeros(1) for name in (one, other)]
    first, second = values
    if first is None or second is None:
        return False
    if not one or not other:
        return not np.any(first) and not np.any(second)
    return np.array_equal(np.asarray(first), np.asarray(second))


def _op_type(operator: Operator) -> str:
    return operator.nodes[0].op_type if len(operator.nodes) == 1 and not operator.nodes[0].domain else ""


@dataclass(frozen=True)
class Stopped:
    """Trained parameters with a quantizer between them and the loss.

    Attributes
    ----------
    untrained
        The quantizer of each parameter that gets no gradient.
    partial
        The quantizer of each parameter that also reaches the loss otherwise, so that its gradient lacks a part.
    """

    untrained: Mapping[str, Operator]
    partial: Mapping[str, Operator]

    def notes(self, *, asked: bool) -> list[Note]:
        """Return the notes on these parameters; `asked` is whether gradients pass straight through."""
        remedy = "" if asked else "; --straight-through lets gradients pass where nothing is clipped"
        notes = []
        if self.untrained:
            verb = "is" if len(self.untrained) == 1 else "are"
            text = f"{_count_text(self.untrained)} before a quantizer and {verb} not trained, as no gradient "
            notes.append(Note(f"{text}passes it ({_names_text(self.untrained)}){remedy}", About.TRAINED))
        if self.partial:
            text = (
                f"{_count_text(self.partial)} before a quantizer and also beside it, and the gradient lacks the part "
            )
            notes.append(Note(f"{text}through it ({_names_text(self.partial)}){remedy}", About.GRADIENTS))
        return notes


def _count_text(parameters: Mapping[str, Operator]) -> str:
    return "1 parameter stands" if len(parameters) == 1 else f"{len(parameters)} parameters stand"


def _names_text(parameters: Mapping[str, Operator]) -> str:
    """Return the first names, each with its first quantizer."""
    named = [f"{name} before {quantizer.name!r}" for name, quantizer in list(parameters.items())[:3]]
    return ", ".join(named) + (", ..." if len(parameters) > 3 else "")


def stopped(graph: Graph, read: Iterable[str], gradients: Mapping[str, object]) -> Stopped:
    """Return the trained parameters with a quantizer between them and the loss.

    Parameters
    ----------
    read
        The tensors that the loss reads.
    gradients
        The gradients by parameter.
    """
    quantizers = [o for o in graph.operators if _is_quantizer(o)]
    by_gradient: dict[bool, dict[str, Operator]] = {True: {}, False: {}}
    if not quantizers:
        return Stopped({}, {})
    # all tensors on which the loss depends, integers included
    reaching = set(read)
    for operator in reversed(graph.operators):
        if reaching.intersection(operator.outputs):
            reaching.update(operator.inputs)
    reached_quantizers = [o for o in quantizers if reaching.intersection(o.outputs)]
    first = _first_met(graph, reached_quantizers)
    for name in graph.trained:
        if name in first:
            by_gradient[name in gradients][name] = reached_quantizers[first[name]]
    return Stopped(by_gradient[False], by_gradient[True])


def _first_met(graph: Graph, ends: Sequence[Operator]) -> dict[str, int]:
    """Return the tensors whose gradient would pass one of `ends`, with the position of the first of these."""
    positions: dict[str, int] = {}
    for position, operator in enumerate(ends):
        for name in principal(operator).inputs[:1]:
            positions.setdefault(name, position)
    for read, written in reversed(list(flows(graph.tensors, graph.operators))):
        successors = [positions[name] for name in written if name in positions]
        for name in read if successors else ():
            positions[name] = min(*successors, positions.get(name, successors[0]))
    return positions


def _is_quantizer(operator: Operator) -> bool:
    node = principal(operator)
    # ops that turn floats into integers
    return not node.domain and node.op_type in {"QuantizeLinear", "DynamicQuantizeLinear"}


def refusal(graph: Graph, name: str, quantizer: Operator, *, asked: bool) -> str:
    """Return why a parameter gets no gradient, and what to do.

    Parameters
    ----------
    asked
        Whether gradients pass straight through where they can.
    """
    op = quantizer.nodes[0].op_type
    reads = [reader for output in quantizer.outputs for reader in graph.readers.get(output, ())]
    integer = next((o for o in reads if op_of(_op_type(o)).is_integer), None)
    where = f"parameter {name!r} reaches the loss through quantizer {quantizer.name!r} ({op}) only"
    if integer is not None or op != "QuantizeLinear" or asked:
        inside = (
            f", and {integer.name!r} ({_op_type(integer)}) computes with its integers" if integer is not None else ""
        )
        return (
            f"{where}{inside}: no gradient passes; train parameters after it (--train PATTERN), or export the model "
            "with QuantizeLinear and DequantizeLinear around float operators and use --straight-through"
        )
    return (
        f"{where}: no gradient passes it; train parameters after it (--train PATTERN), or let gradients pass where "
        "nothing is clipped: --straight-through"
    )
