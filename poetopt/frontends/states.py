"""First states of recurrent layers that a file holds for another batch than the one that is planned.

States whose rows are all alike (zeros, nearly always) are repeated for the batch; a trained one of a single row is
expanded, so that its gradient is the sum over the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from onnx import NodeProto, helper

from poetopt.frontends.operands import FIRST_STATES
from poetopt.util.errors import ModelError

if TYPE_CHECKING:
    from poetopt.graph import Array

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Fitted:
    """A first state in place of another: its name, its value where it is constant, else the node that makes it."""

    place: int
    old: str
    name: str
    shape: Shape
    value: Array | None
    target: Array | None

    def expansion(self, target: str) -> NodeProto:
        """The node that makes it, of the shape in `target`."""
        return helper.make_node("Expand", [self.old, target], [self.name], name=self.name)


def fitted(at: str, node: NodeProto, shapes: Mapping[str, Shape], constants: Mapping[str, Array]) -> list[Fitted]:
    """The first states of `node` that have to change.

    Raises `ModelError` where one is for another batch and its rows differ, or are computed.
    """
    places = [p for p in FIRST_STATES.get(node.op_type, ()) if p < len(node.input) and node.input[p]]
    x = shapes.get(node.input[0], ()) if places else ()
    found: list[Fitted] = []
    for place in sorted(places):
        name = node.input[place]
        state = shapes[name]
        if len(x) != 3 or len(state) != 3 or state[1] == x[1]:
            continue
        shape = (state[0], x[1], state[2])
        value = constants.get(name)
        fresh = f"{name}.{x[1]}_rows"
        if value is not None and state[1] and bool(np.all(value == value[:, :1])):
            found.append(Fitted(place, name, fresh, shape, np.repeat(value[:, :1], x[1], axis=1), None))
        elif value is None and state[1] == 1:
            found.append(Fitted(place, name, fresh, shape, None, np.array(shape, np.int64)))
        else:
            what = "its rows differ" if value is not None else "it is trained or computed"
            raise ModelError(
                f"{at}: its first state {name!r} is for a batch of {state[1]} and the batch is {x[1]}, and {what}; "
                f"use --batch {state[1]}, or export the model with a first state of zeros (or of one row) that follows "
                "the batch"
            )
    return found
