"""What shapes alone decide, asked before the file is put in order: an If's condition, the length of a chunked tensor.

Shapes are inferred and integers computed for the nodes behind one tensor, with the batch put in. Stored floats stay
unknown: training changes those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import onnx
from onnx import NodeProto

from poetopt.frontends.batch import fix_inputs, rebatched
from poetopt.frontends.budget import Budget
from poetopt.frontends.draft import Type
from poetopt.frontends.operands import FLOATS
from poetopt.frontends.read import LIBRARY_ERRORS, Document, array_of
from poetopt.frontends.reading import ReadOptions
from poetopt.frontends.specialise import specialise
from poetopt.frontends.structure import CONTROL_FLOW
from poetopt.util.errors import ModelError

if TYPE_CHECKING:
    from poetopt.graph import Array


@dataclass
class Ahead:
    """What is known for one batch: types of all tensors that were asked for, and constants."""

    types: dict[str, Type]
    constants: dict[str, Array] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    budget: Budget = field(default_factory=Budget)

    def reach(self, document: Document, producers: Mapping[str, NodeProto], name: str) -> bool:
        """Find out about `name`, which a node of `producers` writes; whether that went well."""
        nodes = self._behind(document, producers, name)
        if nodes is None:
            return False
        for node in nodes:
            for weight in node.input:
                if weight in document.weights and weight not in self.types:
                    proto = document.weights[weight]
                    self.types[weight] = (int(proto.data_type), tuple(map(int, proto.dims)))
                    if proto.data_type not in FLOATS or weight in document.given:
                        self.constants[weight] = array_of(document, weight)
        try:
            draft = specialise(
                document.where, document.opset, nodes, self.types, self.constants, {}, budget=self.budget
            )
        except (ModelError, *LIBRARY_ERRORS):
            return False
        self.types, self.constants = draft.types, draft.constants
        self.done.update(output for node in nodes for output in node.output)
        return True

    def _behind(self, document: Document, producers: Mapping[str, NodeProto], name: str) -> list[NodeProto] | None:
        """The nodes that `name` needs and that weren't asked for before, in an order that can be run."""
        order: list[NodeProto] = []
        seen: set[str] = set()
        todo = [(name, False)]
        while todo:
            wanted, ready = todo.pop()
            node = producers.get(wanted)
            if node is None or wanted in self.done:
                continue
            if ready:
                order.append(node)
                continue
            first = next(filter(None, node.output))
            if first in seen:
                continue
            if node.op_type in CONTROL_FLOW or not onnx.defs.has(node.op_type, document.opset, node.domain):
                return None
            seen.add(first)
            todo.append((first, True))
            todo.extend((read, False) for read in reversed(node.input) if read)
        return order


def ahead(document: Document, options: ReadOptions) -> list[Ahead]:
    """Nothing known yet, for the file's batch, and for another one that is asked for.

    Raises `ModelError` where a size stays open.
    """
    fixed = fix_inputs(document, options)
    known = [Ahead(dict(fixed.types))]
    if fixed.changed is not None:
        known.append(Ahead(dict(rebatched(fixed))))
    return known
