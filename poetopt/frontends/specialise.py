"""One pass over the nodes in order: rewrite, check and fold each, or infer the static shapes of its outputs.

Shapes of intermediate tensors that the file declares are used only where inference can't tell: they
may be stale (another batch), and inference from the inputs catches what does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from onnx import NodeProto

from poetopt.frontends.attributes import check_attributes, check_window
from poetopt.frontends.budget import Budget, readers, released
from poetopt.frontends.draft import Draft, Rebatch, Type
from poetopt.frontends.fold import fold
from poetopt.frontends.infer import check_view, infer
from poetopt.frontends.operand_shapes import check_operands
from poetopt.frontends.rewrites import rewritten
from poetopt.util.errors import UnsupportedOpError

if TYPE_CHECKING:
    from poetopt.graph import Array


def specialise(
    where: str,
    opset: int,
    nodes: Sequence[NodeProto],
    types: Mapping[str, Type],
    constants: Mapping[str, Array],
    declared: Mapping[str, Type],
    rebatch: Rebatch | None = None,
    outputs: Iterable[str] = (),
    budget: Budget | None = None,
    kept: Iterable[str] | None = None,
) -> Draft:
    """Infer and fold `nodes` (in topological order, opset `opset`).

    types
        Of inputs and of all weights.
    constants
        Weights that are not trained.
    declared
        What the file says of other tensors, where it is static.
    outputs
        Where one of these can be imported, others needn't be: the nodes that only those need are left out.
    budget
        What folding may cost.
    kept
        What is read besides by the nodes. Folded constants that are not, and that no operator reads, are dropped as
        soon as they have been folded into others; by default none is.

    Raises `ModelError` where shapes don't fit each other, `UnsupportedOpError` where they are unknown, naming node and
    tensor.
    """
    draft = Draft(where, opset, types=dict(types), constants=dict(constants), budget=budget or Budget())
    wanted = list(outputs)
    left, stay = readers(nodes), None if kept is None else {*constants, *kept}
    lost: dict[str, UnsupportedOpError] = {}
    for original in nodes:
        error = next((lost[name] for name in original.input if name in lost), None)
        if error is None:
            try:
                folded = _add(draft, original, declared, rebatch)
                if stay is not None:
                    if not folded:
                        stay.update(original.input)
                    _drop(draft, released(left, original, stay))
                continue
            except UnsupportedOpError as found:
                error = found
        lost.update((name, error) for name in original.output if name)
        if len(wanted) < 2 or all(name in lost for name in wanted):
            raise error
    draft.unread.update((name, str(lost[name])) for name in wanted if name in lost)
    return draft


def _drop(draft: Draft, names: Iterable[str]) -> None:
    for name in names:
        array = draft.constants.pop(name, None)
        if array is not None:
            draft.gone.add(name)
            draft.budget.give_back(array.nbytes)


def _add(draft: Draft, original: NodeProto, declared: Mapping[str, Type], rebatch: Rebatch | None) -> bool:
    """Fold a node, or put it behind the draft's with the types of its outputs; whether it was folded."""
    node = rewritten(draft, original, rebatch)
    shapes = [draft.types[name][1] if name else None for name in node.input]
    at = draft.at(node)
    check_attributes(at, node, shapes, draft.constants, draft.opset)
    check_operands(at, node, shapes, draft.constants)
    if fold(draft, node, declared):
        draft.folded += 1
        return True
    found = infer(draft, node, declared)
    check_window(at, node, shapes, [shape for _, shape in found.values()])
    draft.types.update(found)
    check_view(draft, node)
    draft.nodes.append(node)
    return False
