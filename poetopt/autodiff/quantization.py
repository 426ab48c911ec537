"""Quantizers: no gradient passes them; where it is asked for, straight through those that a DequantizeLinear undoes.

A quantized part that no trained parameter stands in front of is computed, and that is all. What a parameter in front of
one misses is said: it gets no gradient, or its gradient lacks what flows through the quantizer.

Straight through, the gradient of `DequantizeLinear(QuantizeLinear(x))` is passed on where x isn't clipped, and the
integers between carry it, as if they were the numbers that they stand for.
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
    """`graph` whose pairs of QuantizeLinear and DequantizeLinear pass gradients on."""
    paired = frozenset(_paired(graph))
    if not paired:
        return graph
    operators = tuple(
        replace(o, meaning=replace(o.nodes[0], domain=STRAIGHT)) if o.name in paired else o for o in graph.operators
    )
    return replace(graph, operators=operators)


def _paired(graph: Graph) -> Iterator[str]:
    """Names of QuantizeLinear operators whose readers all undo them, and of these readers."""
    for operator in graph.operators:
        if _op(operator) != "QuantizeLinear" or operator.outputs[0] in graph.outputs:
            continue
        readers = graph.readers.get(operator.outputs[0], ())
        if readers and all(_undoes(graph, reader, operator) for reader in readers):
            yield operator.name
            yield from (reader.name for reader in readers)


def _undoes(graph: Graph, second: Operator, first: Operator) -> bool:
    a, b = first.nodes[0], second.nodes[0]
    if _op(second) != "DequantizeLinear" or b.inputs[0] != a.outputs[0]:
        return False
    settings = [(node.attributes.get("axis", 1), node.attributes.get("block_size", 0)) for node in (a, b)]
    return settings[0] == settings[1] and all(
        _same(graph, (*a.inputs, "")[place], (*b.inputs, "")[place]) for place in (1, 2)
    )


def _same(graph: Graph, one: str, other: str) -> bool:
    """Says whether two scales or zero points are equal; an absent zero point is zero."""
    if one == other:
        return True
    values = [graph.values.get(name) if name else np.zeros(1) for name in (one, other)]
    first, second = values
    if first is None or second is None:
        return False
    if not one or not other:
        return not np.any(first) and not np.any(second)
    return np.array_equal(np.asarray(first), np.asarray(second))


def _op(operator: Operator) -> str:
    return operator.nodes[0].op_type if len(operator.nodes) == 1 and not operator.nodes[0].domain else ""


@dataclass(frozen=True)
class Stopped:
    """Trained parameters of which something meets a quantizer on its way to the loss.

    behind
        Of each parameter that gets no gradient therefore: the quantizer.
    beside
        Of each whose gradient lacks what flows through one.
    """

    behind: Mapping[str, Operator]
    beside: Mapping[str, Operator]

    def notes(self, *, asked: bool) -> list[Note]:
        """Says what holds where nobody named these parameters."""
        remedy = "" if asked else "; --with straight-through lets gradients pass where nothing is clipped"
        found = []
        if self.behind:
            are = "is" if len(self.behind) == 1 else "are"
            text = f"{_counted(self.behind)} before a quantizer and {are} not trained, as no gradient "
            found.append(Note(f"{text}passes it ({_shown(self.behind)}){remedy}", About.TRAINED))
        if self.beside:
            text = f"{_counted(self.beside)} before a quantizer and also beside it, and the gradient is of what goes "
            found.append(Note(f"{text}beside it alone ({_shown(self.beside)}){remedy}", About.GRADIENTS))
        return found


def _counted(parameters: Mapping[str, Operator]) -> str:
    return "1 parameter stands" if len(parameters) == 1 else f"{len(parameters)} parameters stand"


def _shown(parameters: Mapping[str, Operator]) -> str:
    """Names, and the quantizer that each meets first."""
    named = [f"{name} before {quantizer.name!r}" for name, quantizer in list(parameters.items())[:3]]
    return ", ".join(named) + (", ..." if len(parameters) > 3 else "")


def stopped(graph: Graph, read: Iterable[str], gradients: Mapping[str, object]) -> Stopped:
    """See `Stopped`.

    read
        The tensors that the loss reads.
    gradients
        By parameter that gets one.
    """
    quantizers = [o for o in graph.operators if _stops(o)]
    found: dict[bool, dict[str, Operator]] = {True: {}, False: {}}
    if not quantizers:
        return Stopped({}, {})
    # what leads to the loss by any way, integers included
    leading = set(read)
    for operator in reversed(graph.operators):
        if leading.intersection(operator.outputs):
            leading.update(operator.inputs)
    ends = [o for o in quantizers if leading.intersection(o.outputs)]
    first = _first_met(graph, ends)
    for name in graph.trained:
        if name in first:
            found[name in gradients][name] = ends[first[name]]
    return Stopped(found[False], found[True])


def _first_met(graph: Graph, ends: Sequence[Operator]) -> dict[str, int]:
    """Tensors whose gradient would come through one of `ends`, and the place of the first of these."""
    found: dict[str, int] = {}
    for place, operator in enumerate(ends):
        for name in principal(operator).inputs[:1]:
            found.setdefault(name, place)
    for read, written in reversed(list(flows(graph.tensors, graph.operators))):
        met = [found[name] for name in written if name in found]
        for name in read if met else ():
            found[name] = min(*met, found.get(name, met[0]))
    return found


def _stops(operator: Operator) -> bool:
    node = principal(operator)
    # ops that turn floats into integers to compute with
    return not node.domain and node.op_type in {"QuantizeLinear", "DynamicQuantizeLinear"}


def refusal(graph: Graph, name: str, quantizer: Operator, *, asked: bool) -> str:
    """Says why a parameter that was to be trained gets no gradient, and what to do.

    asked
        Whether gradients are to pass straight through already.
    """
    op = quantizer.nodes[0].op_type
    reads = [reader for output in quantizer.outputs for reader in graph.readers.get(output, ())]
    integer = next((o for o in reads if op_of(_op(o)).is_integer), None)
    where = f"parameter {name!r} reaches the loss through quantizer {quantizer.name!r} ({op}) only"
    if integer is not None or op != "QuantizeLinear" or asked:
        inside = f", and {integer.name!r} ({_op(integer)}) computes with its integers" if integer is not None else ""
        return (
            f"{where}{inside}: no gradient passes; train what stands behind (--train PATTERN), or export the model "
            "with QuantizeLinear and DequantizeLinear around float operators and use --with straight-through"
        )
    return (
        f"{where}: no gradient passes it; train what stands behind (--train PATTERN), or let gradients pass where "
        "nothing is clipped: --with straight-through"
    )
