"""A batch in parts: the network is read as one part of it, where the parts together give what the whole batch does.

That is so where no operator looks at several samples at once, and the loss is a mean over them: then the mean of the
parts' gradients is the gradient of the whole batch's mean. Which axis of a tensor has the samples is known by reading
the network twice, with the whole batch and with a part: it is the one whose size follows.
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

STATISTICS = "--with micro-batch-statistics"


def in_parts(read: Callable[[ReadOptions], Graph | ProblemFile], options: ReadOptions) -> Graph:
    """The network as a part of a batch: `options.micro_batches` of them are the batch in `options.batch`.

    read
        Reads the network with other options.

    Raises OptionError where the batch can't be cut into so many parts, ModelError where the parts don't give what the
    batch does.
    """
    parts = options.micro_batches
    whole = read(replace(options, micro_batches=1))
    if not isinstance(whole, Graph):
        raise OptionError(f"--micro-batch {parts}: a problem file has a fixed batch; leave it out")
    batch = batch_of(whole, options)
    if batch % parts:
        raise OptionError(
            f"--micro-batch {parts}: a batch of {batch} has no {parts} parts of one size; take one of "
            f"{', '.join(map(str, divisors(batch)))}"
        )
    part = read(replace(options, micro_batches=1, batch=batch // parts))
    assert isinstance(part, Graph)
    _Comparison(whole, part, parts, statistics=options.micro_batch_statistics).check()
    split = tuple(name for name in whole.inputs if whole.tensors[name].shape != part.tensors[name].shape)
    structure = hashlib.sha256(f"{part.structure_hash} in {parts} parts".encode()).hexdigest()
    note = f"a batch of {batch} in {parts} parts of {batch // parts}: their gradients are summed"
    return replace(part, parts=parts, split=split, structure_hash=structure, notes=(*part.notes, note))


def batch_of(whole: Graph, options: ReadOptions) -> int:
    """Samples of the batch: as asked for, or the first axis of the first input. Raises OptionError without one."""
    if options.batch is not None:
        return options.batch
    shape = next((whole.tensors[name].shape for name in whole.inputs if whole.tensors[name].shape), ())
    if not shape:
        raise OptionError("--micro-batch: the network has no batch to cut into parts; say how large it is with --batch")
    return shape[0]


def divisors(batch: int) -> tuple[int, ...]:
    """Into how many parts of one size a batch can be cut, ascending."""
    small = [k for k in range(1, math.isqrt(batch) + 1) if batch % k == 0]
    return tuple(sorted({*small, *(batch // k for k in small)}))


class _Comparison:
    """The network with the whole batch and with a part, tensor by tensor."""

    def __init__(self, whole: Graph, part: Graph, parts: int, *, statistics: bool) -> None:
        self.whole, self.part, self.parts, self.statistics = whole, part, parts, statistics
        self.means: set[str] = set()
        self.axes: dict[str, int] = {}

    def check(self) -> None:
        """Raise ModelError where the mean of what the parts give isn't what the whole batch gives."""
        whole, part = self.whole, self.part
        if [_said(operator) for operator in whole.operators] != [_said(operator) for operator in part.operators]:
            self._refuse("its operators are others at the size of a part")
        for name in whole.inputs:
            axis = self._axis(name)
            if axis is not None and axis != 0:
                self._refuse(f"its input {name!r} has the samples along axis {axis}; they must come first")
            if axis is not None:
                self.axes[name] = axis
        if not self.axes:
            self._refuse("none of its inputs follows the batch")
        for operator in whole.operators:
            self._operator(operator)
        for name in whole.outputs:
            if name not in self.means and self.axes.get(name) != 0:
                self._refuse(f"its output {name!r} hasn't the samples along its first axis, nor is it a mean over them")

    def _operator(self, operator: Operator) -> None:
        followed = {name: self.axes[name] for name in operator.inputs if name in self.axes}
        averaged = [name for name in operator.inputs if name in self.means]
        node = operator.nodes[0]
        at = f"node {operator.name!r} ({operator.kind})"
        if averaged:
            self._of_means(operator, node, averaged, followed, at)
            return
        if not followed:
            return
        if node.op_type == "BatchNormalization" and node.attributes.get("training_mode", 0) and not self.statistics:
            self._refuse(
                f"{at} normalizes with statistics of the whole batch; {STATISTICS} lets each part have its own"
            )
        for name, axis in followed.items():
            if looks_along(node, axis, len(self.whole.tensors[name].shape)):
                self._refuse(f"{at} looks along axis {axis} of {name!r}, which has the samples")
        for name in operator.outputs:
            along = self._axis(name)
            if along is None:
                if not self._is_mean(node, followed, name):
                    if self.whole.tensors[name].size and self._kept_beside(node, name):
                        continue
                    self._refuse(f"{at} makes {name!r} of all samples together, and that is no plain mean over them")
                self.means.add(name)
            else:
                self._ordered(node, followed, name, along, at)
                self.axes[name] = along

    def _of_means(
        self, operator: Operator, node: Node, averaged: list[str], followed: Mapping[str, int], at: str
    ) -> None:
        alone = node.op_type not in ("Mul", "Div") or (len(averaged) == 1 and node.inputs[0] == averaged[0]) or (
            node.op_type == "Mul" and len(averaged) == 1
        )  # fmt: skip
        rest = [name for name in operator.inputs if name not in averaged and name not in self.whole.values]
        if followed or rest or not alone or not op_of(node.op_type).is_linear:
            self._refuse(f"{at} makes something of a mean over all samples, {averaged[0]!r}, that is none itself")
        self.means.update(operator.outputs)

    def _is_mean(self, node: Node, followed: Mapping[str, int], name: str) -> bool:
        """Says whether an output without samples is a mean in which each sample counts alike."""
        if node.domain or not op_of(node.op_type).is_mean:
            return False
        weighted = len(node.inputs) > 2 and bool(node.inputs[2])
        reduction = node.attributes.get("reduction", "mean")
        return not weighted and "ignore_index" not in node.attributes and reduction in ("mean", b"mean")

    def _kept_beside(self, node: Node, name: str) -> bool:
        """Says whether it is a statistic that is updated beside, or a shape, of which nothing else is made."""
        statistic = node.op_type == "BatchNormalization" and name in node.outputs[1:]
        return statistic or (name not in self.whole.readers and name not in self.whole.outputs)

    def _ordered(self, node: Node, followed: Mapping[str, int], name: str, axis: int, at: str) -> None:
        """Samples must stay apart where axes are merged or cut: what comes before them stays before them."""
        if node.op_type not in VIEW_OPS or node.inputs[0] not in followed:
            return
        before = math.prod(self.whole.tensors[node.inputs[0]].shape[: followed[node.inputs[0]]])
        if before != math.prod(self.whole.tensors[name].shape[:axis]):
            self._refuse(f"{at} merges the samples with axes before them")

    def _axis(self, name: str) -> int | None:
        """The axis of a tensor that follows the batch; None where none does."""
        large, small = self.whole.tensors[name].shape, self.part.tensors[name].shape
        if len(large) != len(small):
            self._refuse(f"{name!r} has another number of axes at the size of a part")
        differing = [k for k, (a, b) in enumerate(zip(large, small, strict=True)) if a != b]
        if len(differing) > 1 or any(large[k] != self.parts * small[k] for k in differing):
            self._refuse(f"{name!r} has shape {list(large)} for the batch and {list(small)} for a part of it")
        return differing[0] if differing else None

    def _refuse(self, why: str) -> None:
        raise ModelError(
            f"{self.whole.source or self.whole.name}: --micro-batch {self.parts}: the parts of a batch don't give what "
            f"the batch does: {why}. Leave --micro-batch out"
        )


def _said(operator: Operator) -> tuple[str, ...]:
    """The words of an operator, without the constant that holds a view's shape: a part has one of its own."""
    read = operator.inputs[:1] if operator.nodes[0].op_type in VIEW_OPS else operator.inputs
    return (operator.name, operator.kind, *read, "", *operator.outputs)


def looks_along(node: Node, axis: int, rank: int) -> bool:
    """Says whether an op that keeps the samples' axis makes each sample's result of others' too."""
    if node.domain:
        return True
    at = _number(node, "axis", -1)
    match op_of(node.op_type).looks:
        case "axis":
            return at % rank == axis
        case "from axis":
            return axis >= at % rank
        case "axes":
            return axis in _numbers(node, "axes", (0, 2, 3))
        case "past first":
            return axis != 0
        case looks:
            return looks == "anywhere"


def _number(node: Node, name: str, default: int) -> int:
    found = node.attributes.get(name, default)
    return found if isinstance(found, int) else default


def _numbers(node: Node, name: str, default: tuple[int, ...]) -> Iterator[int]:
    found = node.attributes.get(name, default)
    return (int(value) for value in found) if isinstance(found, (list, tuple)) else iter(default)
