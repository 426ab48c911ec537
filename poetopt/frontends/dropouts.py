"""Masks that a file draws by hand become Dropout: what evaluation takes for Dropout is then one operator.

A mask is 1 where a number drawn evenly is on one side of a constant (a comparison, or `Floor` of a sum), or where
`Bernoulli` of a constant says so, and 0 elsewhere; casts, `Not`, and products with constants may follow. A tensor's
product with such a mask, or its `Where` beside zeros, is the Dropout of that tensor times the mask's mean. A mask that
is smaller than what it is multiplied with (of whole channels or samples), or that is read in several places, is the
Dropout of its mean. In evaluation either is what it is on average.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import NodeProto, helper

from poetopt.frontends.draft import Draft
from poetopt.frontends.proto import dtype_name, unique

_LARGER_FIRST = {"Less": False, "LessOrEqual": False, "Greater": True, "GreaterOrEqual": True}
_EVEN = frozenset({"RandomUniform", "RandomUniformLike"})


@dataclass(frozen=True)
class _Mask:
    """A tensor that is `value` with probability `kept`, and else 0, each element for itself."""

    kept: float
    value: float = 1.0

    @property
    def mean(self) -> float:
        return self.kept * self.value


def draw_by_dropout(draft: Draft, outputs: Iterable[str]) -> int:
    """Rewrite the draft's nodes so that Dropout draws each such mask; the number of masks.

    Nodes that nothing reads any more stay, for whoever assembles the graph to leave out.
    """
    # the opset from which on Dropout says by an input that it trains
    if draft.opset < 12 or not any(node.op_type in {*_EVEN, "Bernoulli"} for node in draft.nodes):
        return 0
    rewriting = _Rewriting(draft, outputs)
    draft.nodes[:] = [new for node in draft.nodes for new in rewriting.of(node)]
    return rewriting.count


class _Rewriting:
    """One pass over the nodes.

    masks
        What is known to be a mask, and still drawn by hand.
    count
        Masks that Dropout draws by now.
    """

    def __init__(self, draft: Draft, outputs: Iterable[str]) -> None:
        self.draft, self.count = draft, 0
        self.masks: dict[str, _Mask] = {}
        self._makers = {name: node for node in draft.nodes for name in node.output}
        self._readers: dict[str, list[NodeProto | None]] = {name: [None] for name in outputs}
        for node in draft.nodes:
            for name in filter(None, node.input):
                self._readers.setdefault(name, []).append(node)

    def of(self, node: NodeProto) -> Sequence[NodeProto]:
        """Gives what stands in the place of `node`."""
        mask = self._mask(node)
        if mask is None:
            return self._product(node) or [node]
        name = node.output[0]
        if self._absorbed(name, mask):
            self.masks[name] = mask
            return [node]
        return [node] if self._type(name) == "bool" else self._drawn(name, mask)

    def _mask(self, node: NodeProto) -> _Mask | None:
        """The mask that a node writes, or None."""
        found = self._begun(node) or self._continued(node)
        return found if found is not None and 0 < found.kept < 1 and found.value else None

    def _begun(self, node: NodeProto) -> _Mask | None:
        if node.op_type == "Bernoulli":
            kept = self._constant(node.input[0])
            return None if kept is None else _Mask(kept)
        if node.op_type == "Floor":
            node = self._makers.get(node.input[0], node)
            added = self._beside_draw(node) if node.op_type == "Add" else None
            return None if added is None else _Mask(added[1])
        if node.op_type not in _LARGER_FIRST:
            return None
        found = self._beside_draw(node)
        if found is None:
            return None
        first, below = found
        return _Mask(1 - below if first == _LARGER_FIRST[node.op_type] else below)

    def _beside_draw(self, node: NodeProto) -> tuple[bool, float] | None:
        """Of an operator on a draw and a constant: whether the draw comes first, and its share below the constant."""
        for k, name in enumerate(node.input[:2]):
            draw, constant = self._makers.get(name), self._constant(node.input[1 - k])
            if draw is None or draw.op_type not in _EVEN or constant is None:
                continue
            own = {one.name: helper.get_attribute_value(one) for one in draw.attribute}
            low, high = own.get("low", 0.0), own.get("high", 1.0)
            if high > low and (node.op_type != "Add" or (low, high) == (0.0, 1.0)):
                return k == 0, (constant - low) / (high - low)
        return None

    def _continued(self, node: NodeProto) -> _Mask | None:
        before = [name for name in node.input if name in self.masks]
        if len(before) != 1 or len(node.output) != 1:
            return None
        mask = self.masks[before[0]]
        if node.op_type in ("Cast", "Identity"):
            return mask if self._type(node.output[0]) in ("bool", "float16", "float32", "float64") else None
        if node.op_type == "Not":
            return _Mask(1 - mask.kept)
        if node.op_type not in ("Mul", "Div") or len(node.input) != 2:
            return None
        first = node.input[0] == before[0]
        factor = self._constant(node.input[1 if first else 0])
        same = self._shape(node.output[0]) == self._shape(before[0])
        if not factor or not same or (node.op_type == "Div" and not first):
            return None
        return replace(mask, value=mask.value * factor if node.op_type == "Mul" else mask.value / factor)

    def _absorbed(self, name: str, mask: _Mask) -> bool:
        """Say whether the only reader of a mask goes on with it, or takes its product."""
        readers = self._readers.get(name, [])
        if len(readers) != 1 or readers[0] is None:
            return False
        self.masks[name] = mask
        goes_on = self._continued(readers[0]) is not None or self._multiplied(readers[0]) is not None
        del self.masks[name]
        return goes_on

    def _multiplied(self, node: NodeProto) -> tuple[str, str, bool] | None:
        """Of a product with a mask: what is multiplied, the mask, and whether it is zero where the mask is 1."""
        out = self._shape(node.output[0])
        if node.op_type == "Mul" and len(node.input) == 2:
            for k, name in enumerate(node.input):
                other = node.input[1 - k]
                if name in self.masks and other not in self.draft.constants and self._fits(name, other, out):
                    return other, name, False
        if node.op_type == "Where" and node.input[0] in self.masks:
            for k, turned in ((1, True), (2, False)):
                if self._constant(node.input[k]) == 0 and self._shape(node.input[3 - k]) == out:
                    return node.input[3 - k], node.input[0], turned
        return None

    def _fits(self, mask: str, other: str, out: tuple[int, ...]) -> bool:
        return self._shape(mask) == self._shape(other) == out

    def _product(self, node: NodeProto) -> list[NodeProto] | None:
        """The Dropout that a product with a mask is, if it is one."""
        found = self._multiplied(node)
        if found is None:
            return None
        data, name, turned = found
        mask, out = self.masks[name], node.output[0]
        mask = _Mask(1 - mask.kept) if turned else mask
        if self._shape(name) != self._shape(out):
            drawn = self._beside(f"{out}.drawn", self._elem(out), self._shape(name))
            product = helper.make_node("Mul", [data, drawn], [out], name=node.name)
            return [*self._drawn(drawn, mask), product]
        if abs(mask.mean - 1) < 1e-6:
            return [self._dropout(data, out, mask, node.name)]
        dropped = self._beside(f"{out}.dropped", self._elem(out), self._shape(out))
        mean = self.draft.put_beside(f"{out}.mean", np.array(mask.mean, self._type(out)))
        product = helper.make_node("Mul", [dropped, mean], [out], name=f"{node.name}.mean" if node.name else "")
        return [self._dropout(data, dropped, mask, node.name), product]

    def _drawn(self, name: str, mask: _Mask) -> list[NodeProto]:
        """The Dropout that draws a mask itself."""
        mean = self.draft.put_beside(f"{name}.mean", np.full(self._shape(name), mask.mean, self._type(name)))
        return [self._dropout(mean, name, mask, "")]

    def _dropout(self, data: str, out: str, mask: _Mask, name: str) -> NodeProto:
        self.count += 1
        ratio = self.draft.put_beside(f"{out}.ratio", np.array(1 - mask.kept, np.float32))
        training = self.draft.put_beside(f"{out}.training", np.array(True))
        return helper.make_node("Dropout", [data, ratio, training], [out], name=name)

    def _beside(self, name: str, elem: int, shape: tuple[int, ...]) -> str:
        name = unique(name, self.draft.types)
        self.draft.types[name] = (elem, shape)
        return name

    def _constant(self, name: str) -> float | None:
        """The one value of a constant, or None."""
        array = self.draft.constants.get(name)
        if array is None or not array.size or array.dtype.kind not in "fiu" or array.min() != array.max():
            return None
        return float(array.reshape(-1)[0])

    def _shape(self, name: str) -> tuple[int, ...]:
        return self.draft.types[name][1]

    def _elem(self, name: str) -> int:
        return self.draft.types[name][0]

    def _type(self, name: str) -> str:
        return dtype_name(self._elem(name))
