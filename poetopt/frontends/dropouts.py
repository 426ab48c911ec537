"""Replace random masks that a file computes from primitives by Dropout, which evaluation mode can switch off.

A mask is 1 where a uniform random number is on one side of a constant (a comparison, or `Floor` of a sum), and 0
elsewhere; or it is `Bernoulli` of a constant. Casts, `Not`, and products with constants may follow. A tensor's product
with such a mask is the Dropout of the tensor times the mask's mean. So is `Where` with the mask, the tensor and zeros.
A mask that is smaller than the tensor it multiplies (it drops whole channels or samples), or that several nodes read,
is the Dropout of its mean. In evaluation mode both equal their expected value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from onnx import NodeProto, helper

from poetopt.frontends.draft import Draft
from poetopt.frontends.proto import dtype_name, unique

_IS_ONE_ABOVE = {"Less": False, "LessOrEqual": False, "Greater": True, "GreaterOrEqual": True}
_UNIFORM = frozenset({"RandomUniform", "RandomUniformLike"})


@dataclass(frozen=True)
class _Mask:
    """A random tensor: each element is independently `value` with probability `kept`, else 0."""

    kept: float
    value: float = 1.0

    @property
    def mean(self) -> float:
        return self.kept * self.value


def draw_by_dropout(draft: Draft, outputs: Iterable[str]) -> int:
    """Replace each random mask in the draft's nodes by Dropout, and return the number of masks.

    Nodes whose outputs are no longer read stay: `assemble` removes them.
    """
    # since opset 12, an input of Dropout sets its training mode
    if draft.opset < 12 or not any(node.op_type in {*_UNIFORM, "Bernoulli"} for node in draft.nodes):
        return 0
    rewriting = _Rewriting(draft, outputs)
    draft.nodes[:] = [new for node in draft.nodes for new in rewriting.rewrite(node)]
    return rewriting.count


class _Rewriting:
    """One pass over the nodes.

    Attributes
    ----------
    masks
        Tensors known to be masks that Dropout doesn't draw yet.
    count
        Number of masks that Dropout draws.
    """

    def __init__(self, draft: Draft, outputs: Iterable[str]) -> None:
        self.draft, self.count = draft, 0
        self.masks: dict[str, _Mask] = {}
        self._producers = {name: node for node in draft.nodes for name in node.output}
        self._readers: dict[str, list[NodeProto | None]] = {name: [None] for name in outputs}
        for node in draft.nodes:
            for name in filter(None, node.input):
                self._readers.setdefault(name, []).append(node)

    def rewrite(self, node: NodeProto) -> Sequence[NodeProto]:
        """Return the nodes that replace `node`."""
        mask = self._mask(node)
        if mask is None:
            return self._replace_product(node) or [node]
        name = node.output[0]
        if self._is_absorbed(name, mask):
            self.masks[name] = mask
            return [node]
        return [node] if self._type(name) == "bool" else self._draw_mask(name, mask)

    def _mask(self, node: NodeProto) -> _Mask | None:
        """Return the mask that a node writes, or None."""
        mask = self._source_mask(node) or self._derived_mask(node)
        return mask if mask is not None and 0 < mask.kept < 1 and mask.value else None

    def _source_mask(self, node: NodeProto) -> _Mask | None:
        if node.op_type == "Bernoulli":
            kept = self._constant(node.input[0])
            return None if kept is None else _Mask(kept)
        if node.op_type == "Floor":
            node = self._producers.get(node.input[0], node)
            sum_ = self._compare_draw(node) if node.op_type == "Add" else None
            return None if sum_ is None else _Mask(sum_[1])
        if node.op_type not in _IS_ONE_ABOVE:
            return None
        compared = self._compare_draw(node)
        if compared is None:
            return None
        first, below = compared
        return _Mask(1 - below if first == _IS_ONE_ABOVE[node.op_type] else below)

    def _compare_draw(self, node: NodeProto) -> tuple[bool, float] | None:
        """Return whether a random operand precedes the constant one, and the probability that it is below it."""
        for k, name in enumerate(node.input[:2]):
            draw, constant = self._producers.get(name), self._constant(node.input[1 - k])
            if draw is None or draw.op_type not in _UNIFORM or constant is None:
                continue
            attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in draw.attribute}
            low, high = attributes.get("low", 0.0), attributes.get("high", 1.0)
            if high > low and (node.op_type != "Add" or (low, high) == (0.0, 1.0)):
                return k == 0, (constant - low) / (high - low)
        return None

    def _derived_mask(self, node: NodeProto) -> _Mask | None:
        mask_inputs = [name for name in node.input if name in self.masks]
        if len(mask_inputs) != 1 or len(node.output) != 1:
            return None
        mask = self.masks[mask_inputs[0]]
        if node.op_type in ("Cast", "Identity"):
            return mask if self._type(node.output[0]) in ("bool", "float16", "float32", "float64") else None
        if node.op_type == "Not":
            return _Mask(1 - mask.kept)
        if node.op_type not in ("Mul", "Div") or len(node.input) != 2:
            return None
        first = node.input[0] == mask_inputs[0]
        factor = self._constant(node.input[1 if first else 0])
        same = self._shape(node.output[0]) == self._shape(mask_inputs[0])
        if not factor or not same or (node.op_type == "Div" and not first):
            return None
        return replace(mask, value=mask.value * factor if node.op_type == "Mul" else mask.value / factor)

    def _is_absorbed(self, name: str, mask: _Mask) -> bool:
        """Return whether the only reader of a mask derives another mask from it or multiplies it."""
        readers = self._readers.get(name, [])
        if len(readers) != 1 or readers[0] is None:
            return False
        self.masks[name] = mask
        goes_on = self._derived_mask(readers[0]) is not None or self._match_product(readers[0]) is not None
        del self.masks[name]
        return goes_on

    def _match_product(self, node: NodeProto) -> tuple[str, str, bool] | None:
        """Return the other factor of a product with a mask, the mask, and whether a mask of 1 gives 0."""
        out = self._shape(node.output[0])
        if node.op_type == "Mul" and len(node.input) == 2:
            for k, name in enumerate(node.input):
                other = node.input[1 - k]
                if name in self.masks and other not in self.draft.constants and self._same_shape(name, other, out):
                    return other, name, False
        if node.op_type == "Where" and node.input[0] in self.masks:
            for k, is_inverted in ((1, True), (2, False)):
                if self._constant(node.input[k]) == 0 and self._shape(node.input[3 - k]) == out:
                    return node.input[3 - k], node.input[0], is_inverted
        return None

    def _same_shape(self, mask: str, other: str, out: tuple[int, ...]) -> bool:
        return self._shape(mask) == self._shape(other) == out

    def _replace_product(self, node: NodeProto) -> list[NodeProto] | None:
        """Return the Dropout that replaces a product with a mask; None for another node."""
        match = self._match_product(node)
        if match is None:
            return None
        data, name, is_inverted = match
        mask, out = self.masks[name], node.output[0]
        mask = _Mask(1 - mask.kept) if is_inverted else mask
        if self._shape(name) != self._shape(out):
            drawn = self._new_tensor(f"{out}.drawn", self._elem(out), self._shape(name))
            product = helper.make_node("Mul", [data, drawn], [out], name=node.name)
            return [*self._draw_mask(drawn, mask), product]
        if abs(mask.mean - 1) < 1e-6:
            return [self._dropout(data, out, mask, node.name)]
        dropped = self._new_tensor(f"{out}.dropped", self._elem(out), self._shape(out))
        mean = self.draft.put_beside(f"{out}.mean", np.array(mask.mean, self._type(out)))
        product = helper.make_node("Mul", [dropped, mean], [out], name=f"{node.name}.mean" if node.name else "")
        return [self._dropout(data, dropped, mask, node.name), product]

    def _draw_mask(self, name: str, mask: _Mask) -> list[NodeProto]:
        """Return the Dropout that draws a mask."""
        mean = self.draft.put_beside(f"{name}.mean", np.full(self._shape(name), mask.mean, self._type(name)))
        return [self._dropout(mean, name, mask, "")]

    def _dropout(self, data: str, out: str, mask: _Mask, name: str) -> NodeProto:
        self.count += 1
        ratio = self.draft.put_beside(f"{out}.ratio", np.array(1 - mask.kept, np.float32))
        training = self.draft.put_beside(f"{out}.training", np.array(True))
        return helper.make_node("Dropout", [data, ratio, training], [out], name=name)

    def _new_tensor(self, name: str, elem: int, shape: tuple[int, ...]) -> str:
        name = unique(name, self.draft.types)
        self.draft.types[name] = (elem, shape)
        return name

    def _constant(self, name: str) -> float | None:
        """Return the value that all elements of a constant have, or None."""
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
