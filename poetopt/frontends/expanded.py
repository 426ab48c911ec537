"""A parameter that a file stores once for each element of the batch, as PyTorch's newer exporter does.

Where the batch is fixed, `cls.expand(batch, -1, -1)` is constant, and folded: the class token of a Vision Transformer
is stored as [batch, 1, width]. Trained, each element of the batch has a token of its own, which is another model after
one step. The file doesn't say that the rows were one parameter, so nothing is changed: the user gets to know. Rows must
be equal, and lie where the activations beside them have the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from poetopt.frontends.draft import Draft
from poetopt.frontends.exporters import UNFOLDED
from poetopt.util.notes import Note

if TYPE_CHECKING:
    from poetopt.graph import Array


def note(draft: Draft, trained: Mapping[str, Array], batches: Collection[int]) -> list[str]:
    """What to say of such parameters: one line, or nothing.

    batches
        The sizes of the inputs' first axes.
    """
    found: dict[str, None] = {}
    for node in draft.nodes:
        if node.op_type not in ("Add", "Concat", "Sum"):
            continue
        computed = [draft.types[name][1] for name in node.input if name not in trained and name not in draft.constants]
        for name in node.input:
            array = trained.get(name)
            if array is None or array.ndim < 2 or array.shape[0] < 2 or array.shape[0] not in batches:
                continue
            beside = any(len(shape) == array.ndim and shape[0] == array.shape[0] for shape in computed)
            if beside and _repeats(array):
                found[name] = None
    if not found:
        return []
    shown = ", ".join(f"{name} {list(trained[name].shape)}" for name in list(found)[:3])
    shown += ", ..." if len(found) > 3 else ""
    text = f"parameters with the same rows for each element of the batch ({shown}): where the module has one that is "
    text += "expanded (a class token), the rows are trained apart"
    advice = f"export the model with a dynamic batch, and fix it here with --batch, or with {UNFOLDED}"
    return [Note(f"{text}; {advice}", short=text)]


def _repeats(array: Array) -> bool:
    """Whether all rows are the first one, and that has different values, which fresh biases and scales have not."""
    return bool((array[1:] == array[:1]).all()) and bool((array[0] != array.reshape(-1)[0]).any())
