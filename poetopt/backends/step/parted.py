"""A step whose batch comes in parts: the plan's program for each of them, and then the program of what follows.

Both share arena, resident region and storage. The sums of gradients are zero as the first part begins: those in RAM are
filled, and what the part reads of the others is zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.backends.step.memory import POISON, MappedBlock, bytes_of, numpy_dtype
from poetopt.backends.step.program import Act, Kernels, Program
from poetopt.backends.step.region import Carried, ResidentRegion, slots
from poetopt.backends.step.storage import PageFile
from poetopt.graph import TrainingGraph
from poetopt.graph.problem import Problem
from poetopt.plan.closing import closing_plan
from poetopt.plan.instructions import Plan
from poetopt.util.progress import Told, silent

if TYPE_CHECKING:
    from poetopt.graph import Array

    Batch = Mapping[str, Array]


def cut(graph: TrainingGraph, batch: Batch) -> Iterator[Batch]:
    """The parts of a batch, in order; without parts, the batch itself."""
    if graph.parts == 1:
        yield batch
        return
    if graph.label_weight:
        weight = graph.label_rule.weights_of(batch[graph.added_inputs[0]]).sum() / graph.parts
        batch = {**batch, graph.label_weight: np.asarray(weight, numpy_dtype(graph.tensors[graph.label_weight].dtype))}
    for k in range(graph.parts):
        size = {name: graph.tensors[name].shape[0] for name in graph.split}
        yield {n: a[k * size[n] : (k + 1) * size[n]] if n in size else a for n, a in batch.items()}


def mean_loss(losses: Sequence[Array]) -> Array:
    """The loss of a batch of those of its parts."""
    total: Any = sum(losses[1:], losses[0])
    return np.asarray(total / total.dtype.type(len(losses)), total.dtype)


def program_of(
    plan: Plan,
    graph: TrainingGraph,
    arena: MappedBlock,
    region: ResidentRegion,
    kernels: Callable[[TrainingGraph], Kernels],
    pages: PageFile,
    told: Told = silent,
    watched: Collection[str] = (),
) -> Program | Parted:
    """The program of a plan, whose batch may have parts.

    kernels
        Gives those of a graph.
    """
    part = Program(plan, graph, arena, region, kernels(graph), pages, told, watched)
    if graph.parts == 1:
        return part
    after = closing_plan(plan)
    if after is None or graph.closing is None:
        return Parted(part, None)
    return Parted(part, Program(after, graph.closing, arena, region, kernels(graph.closing), pages, told))


def scheduled_names(problem: Problem) -> frozenset[str]:
    """The tensors that plans of `problem` schedule, and those of what follows the last part."""
    return frozenset(t.name for p in (problem, problem.closing) if p is not None for t in p.tensors)


def all_slots(plan: Plan, graph: TrainingGraph) -> Mapping[str, int]:
    """Bytes of each tensor that needs a slot on storage, in the parts or behind them, by name."""
    after = closing_plan(plan)
    more = {} if after is None or graph.closing is None else slots(after, graph.closing)
    return {**more, **slots(plan, graph)}


class Parted:
    """The whole step, as a `Program` is one of a batch without parts."""

    def __init__(self, part: Program, closing: Program | None) -> None:
        self.part, self.closing = part, closing
        self.plan, self.graph, self.arena, self.region = part.plan, part.graph, part.arena, part.region
        self.pages, self.kernels, self.watched = part.pages, part.kernels, part.watched
        self._batches: list[Batch] = []
        self._losses: list[Array] = []
        self._between: Callable[[int], object] = lambda run: None

    @property
    def carried(self) -> Carried:
        """Of the parts."""
        return self.part.carried

    def load(self, batch: Batch, *, anew: bool = True) -> None:
        """See `Program.load`; the other parts of the batch are put in place as the step comes to them."""
        self._batches = list(cut(self.graph, batch))
        self._losses.clear()
        self.part.load(self._batches[0], anew=anew)
        if self.closing is not None:
            if anew:
                self.closing.carried.begin()
            self.closing.carried.follow(self.part.carried.used)

    def each(self, between: Callable[[int], object]) -> None:
        """Call `between` with the number of each part before it runs."""
        self._between = between

    def redraw(self, steps: int = 0) -> None:
        """See `Program.redraw`; for between steps, of which each has so many runs as parts."""
        self.part.redraw(steps * self.graph.parts)

    @property
    def acts(self) -> list[Act]:
        """The step, act by act."""
        found: list[Act] = []
        for k in range(self.graph.parts):
            found += [partial(self._begin, k), *self.part.acts, self._end]
        return found + (self.closing.acts if self.closing is not None else [])

    @property
    def transfers(self) -> frozenset[int]:
        """See `Program.transfers`."""
        count = len(self.part.calls) + 2
        found = {k * count + 1 + place for k in range(self.graph.parts) for place in self.part.transfers}
        after = self.closing.transfers if self.closing is not None else ()
        return frozenset(found.union(self.graph.parts * count + place for place in after))

    def run(self) -> None:
        """One step. Raises `ExecutionError` where a kernel or the storage fails."""
        self._through(Program.run)

    def run_checked(self, batch: Batch) -> None:
        """See `Program.run_checked`."""
        self.arena.bytes.fill(POISON)
        self.region.block.bytes.fill(POISON)
        self.load(batch)
        self._through(Program.poisoning)

    def _through(self, run: Callable[[Program], object]) -> None:
        for k in range(self.graph.parts):
            self._begin(k)
            run(self.part)
            self._end()
        if self.closing is not None:
            run(self.closing)

    def _begin(self, k: int) -> None:
        self._between(k)
        if k:
            self.part.load(self._batches[k], anew=False)
        sums = () if k else self.graph.sums.values()
        self.pages.zeros(sums)
        for name in sums:
            for there in (self.region.given, self.part.carried.in_ram):
                if name in there:
                    there[name].fill(0)

    def _end(self) -> None:
        self._losses.append(np.array(self.part.result(self.graph.loss)))

    def result(self, name: str) -> Array:
        """See `Program.result`; the loss is that of the whole batch."""
        return mean_loss(self._losses) if name == self.graph.loss else self._of(name).result(name)

    def digest(self, name: str) -> bytes:
        """See `Program.digest`."""
        if name == self.graph.loss:
            return sha256(bytes_of(self.result(name)).data).digest()
        return self._of(name).digest(name)

    def _of(self, name: str) -> Program:
        """The program that a result is of."""
        last = self.closing
        return self.part if last is None or name in self.part.graph.tensors else last

    @property
    def begun(self) -> Mapping[str, Array]:
        """See `Program.begun`."""
        more = self.closing.begun if self.closing is not None else {}
        return {**more, **self.part.begun}
