"""Split a batch into micro-batches, if their results together equal those of the whole batch.

They do if no operator combines several samples and the loss is a mean over them: then the mean of the micro-batches'
gradients is the gradient of the whole batch's mean. The network is read twice, with the whole batch and with a
micro-batch: the samples' axis of a tensor is the one whose size differs.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from poetopt.frontends.reading import ReadOptions
from poetopt.graph import VIEW_OPS, Graph, Node, Operator
from poetopt.ops.op import op_of
from poetopt.util.errors import ModelError, OptionError

if TYPE_CHECKING:
    from poetopt.frontends.problem_file import ProblemFile

STATISTICS = "--micro-batch-statistics"


def in_parts(read: Callable[[ReadOptions], Graph | ProblemFile], options: ReadOptions) -> Graph:
    """Return the network for one of `options.micro_batches` parts of the batch in `options.batch`.

    Parameters
    ----------
    read
        Reads the network with given options.

    Raises
    ------
    OptionError
        If the batch isn't divisible by the number of parts.
    ModelError
        If the parts' results don't equal those of the batch.
    """
    parts = options.micro_batches
    whole = read(replace(options, micro_batches=1))
    if not isinstance(whole, Graph):
        raise OptionError(f"--micro-batch {parts}: a problem file has a fixed batch. Leave the option out")
    batch = batch_of(whole, options)
    if batch % parts:
        raise OptionError(
            f"--micro-batch {parts}: a batch of {batch} can't be split into {parts} equal parts. Give one of "
            f"{', '.join(map(str, divisors(batch)))}"
        )
    part = read(replace(options, micro_batches=1, batch=batch // parts))
    assert isinstance(part, Graph)
    _Comparison(whole, part, parts, statistics=options.micro_batch_statistics).check()
    split = tuple(name for name in whole.inputs if whole.tensors[name].shape != part.tensors[name].shape)
    structure = hashlib.sha256(f"{part.structure_hash} in {parts} parts".encode()).hexdigest()
    note = f"a batch of {batch} in {parts} parts of {batch // parts}, whose gradients are summed"
    return replace(part, parts=parts, split=split, structure_hash=structure, notes=(*part.notes, note))


def batch_of(whole: Graph, options: ReadOptions) -> int:
    """Return the batch that the user gave, or the first axis of the first input. Raise OptionError without one."""
    if options.batch is not None:
        return options.batch
    shape = next((whole.tensors[name].shape for name in whole.inputs if whole.tensors[name].shape), ())
    if not shape:
        raise OptionError("--micro-batch: the network has no batch to split. Give its size with --batch")
    return shape[0]


def divisors(batch: int) -> tuple[int, ...]:
    """Return the divisors of a batch in ascending order."""
    small = [k for k in range(1, math.isqrt(batch) + 1) if batch % k == 0]
    return tuple(sorted({*small, *(batch // k for k in small)}))


class _Comparison:
    """Comparison of the network with the whole batch and with a part, tensor by tensor."""

    def __init__(self, whole: Graph, part: Graph, parts: int, *, statistics: bool) -> None:
        self.whole, self.part, self.parts, self.statistics = whole, part, parts, statistics
        self.means: set[str] = set()
        self.axes: dict[str, int] = {}

    def check(self) -> None:
        """Raise ModelError if the mean of the parts' results doesn't equal the result of the whole batch."""
        whole, part = self.whole, self.part
        if [_key(operator) for operator in whole.operators] != [_key(operator) for operator in part.operators]:
            self._refuse("its operators differ at the size of a part")
        for name in whole.inputs:
            axis = self._batch_axis(name)
            if axis is not None and axis != 0:
                self._refuse(f"its input {name!r} has the samples along axis {axis}, and they must be along the first")
            if axis is not None:
                self.axes[name] = axis
        if not self.axes:
            self._refuse("none of its inputs follows the batch")
        for operator in whole.operators:
            self._follow_operator(operator)
        for name in whole.outputs:
            if name not in self.means and self.axes.get(name) != 0:
                self._refuse(f"its output {name!r} isn't a mean over the samples, nor are they along its first axis")

    def _follow_operator(self, operator: Operator) -> None:
        followed = {name: self.axes[name] for name in operator.inputs if name in self.axes}
        averaged = [name for name in operator.inputs if name in self.means]
        node = operator.nodes[0]
        at = f"node {operator.name!r} ({operator.kind})"
        if averaged:
            self._follow_means(operator, node, averaged, followed, at)
            return
        if not followed:
            return
        if node.op_type == "BatchNormalization" and node.attributes.get("training_mode", 0) and not self.statistics:
            self._refuse(f"{at} normalizes with statistics of the whole batch; {STATISTICS} gives each part its own")
        for name, axis in followed.items():
            if looks_along(node, axis, len(self.whole.tensors[name].shape)):
                self._refuse(f"{at} combines elements along axis {axis} of {name!r}, which has the samples")
        for name in operator.outputs:
            axis_after = self._batch_axis(name)
            if axis_after is None:
                if not self._is_mean(node, followed, name):
                    if self.whole.tensors[name].size and self._is_side_output(node, name):
                        continue
                    self._refuse(f"{at} computes {name!r} from all samples, and not as a plain mean over them")
                self.means.add(name)
            else:
                self._check_order(node, followed, name, axis_after, at)
                self.axes[name] = axis_after

    def _follow_means(
        self, operator: Operator, node: Node, averaged: list[str], followed: Mapping[str, int], at: str
    ) -> None:
        is_factor = node.op_type not in ("Mul", "Div") or (len(averaged) == 1 and node.inputs[0] == averaged[0]) or (
            node.op_type == "Mul" and len(averaged) == 1
        )  # fmt: skip
        others = [name for name in operator.inputs if name not in averaged and name not in self.whole.values]
        if followed or others or not is_factor or not op_of(node.op_type).is_linear:
            self._refuse(f"{at} computes from a mean over all samples, {averaged[0]!r}, what is not such a mean")
        self.means.update(operator.outputs)

    def _is_mean(self, node: Node, followed: Mapping[str, int], name: str) -> bool:
        """Return whether an output without samples is a mean with equal weights."""
        if node.domain or not op_of(node.op_type).is_mean:
            return False
        weighted = len(node.inputs) > 2 and bool(node.inputs[2])
        reduction = node.attributes.get("reduction", "mean")
        return not weighted and "ignore_index" not in node.attributes and reduction in ("mean", b"mean")

    def _is_side_output(self, node: Node, name: str) -> bool:
        """Return whether an output is an updated statistic, or neither read nor an output of the graph."""
        statistic = node.op_type == "BatchNormalization" and name in node.outputs[1:]
        return statistic or (name not in self.whole.readers and name not in self.whole.outputs)

    def _check_order(self, node: Node, followed: Mapping[str, int], name: str, axis: int, at: str) -> None:
        """Refuse a view that merges the samples with axes before them."""
        if node.op_type not in VIEW_OPS or node.inputs[0] not in followed:
            return
        elements_before = math.prod(self.whole.tensors[node.inputs[0]].shape[: followed[node.inputs[0]]])
        if elements_before != math.prod(self.whole.tensors[name].shape[:axis]):
            self._refuse(f"{at} merges the samples with axes before them")

    def _batch_axis(self, name: str) -> int | None:
        """Return the axis of a tensor that follows the batch, or None."""
        large, small = self.whole.tensors[name].shape, self.part.tensors[name].shape
        if len(large) != len(small):
            self._refuse(f"{name!r} has another number of axes at the size of a part")
        differing = [k for k, (a, b) in enumerate(zip(large, small, strict=True)) if a != b]
        if len(differing) > 1 or any(large[k] != self.parts * small[k] for k in differing):
            self._refuse(f"{name!r} has shape {list(large)} for the batch and {list(small)} for a part of it")
        return differing[0] if differing else None

    def _refuse(self, why: str) -> None:
        raise ModelError(
            f"{self.whole.source or self.whole.name}: --micro-batch {self.parts}: the parts of a batch don't give the "
            f"result of the batch: {why}. Leave --micro-batch out"
        )


def _key(operator: Operator) -> tuple[str, ...]:
    """Return name, kind and tensors of an operator, without a view's shape, which differs for a part."""
    read = operator.inputs[:1] if operator.nodes[0].op_type in VIEW_OPS else operator.inputs
    return (operator.name, operator.kind, *read, "", *operator.outputs)


def looks_along(node: Node, axis: int, rank: int) -> bool:
    """Return whether an op's result for one sample depends on others, for samples along `axis`."""
    if node.domain:
        return True
    at = _int_attribute(node, "axis", -1)
    match op_of(node.op_type).looks:
        case "axis":
            return at % rank == axis
        case "from axis":
            return axis >= at % rank
        case "axes":
            return axis in _int_attributes(node, "axes", (0, 2, 3))
        case "past first":
            return axis != 0
        case looks:
            return looks == "anywhere"


def _int_attribute(node: Node, name: str, default: int) -> int:
    value = node.attributes.get(name, default)
    return value if isinstance(value, int) else default


def _int_attributes(node: Node, name: str, default: tuple[int, ...]) -> Iterator[int]:
    values = node.attributes.get(name, default)
    return (int(number) for number in values) if isinstance(values, (list, tuple)) else iter(default)
