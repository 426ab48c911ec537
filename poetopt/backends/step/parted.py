"""A step whose batch is split into micro-batches.

The plan's program runs for each part, and the update phase's program runs after the last one. Both share arena,
resident region and storage. The sums of gradients are zero as the first part begins: those in RAM are filled with
zeros, and the first part reads zeros in place of the others.
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
    """Yield the parts of a batch in order; the batch itself where it isn't split."""
    if graph.parts == 1:
        yield batch
        return
    if graph.label_weight:
        weight = graph.label_rule.weights_of(batch[graph.added_inputs[0]]).sum() / graph.parts
        batch = {**batch, graph.label_weight: np.asarray(weight, numpy_dtype(graph.tensors[graph.label_weight].dtype))}
    for part in range(graph.parts):
        size = {name: graph.tensors[name].shape[0] for name in graph.split}
        yield {n: a[part * size[n] : (part + 1) * size[n]] if n in size else a for n, a in batch.items()}


def mean_loss(losses: Sequence[Array]) -> Array:
    """Return the loss of a batch from the losses of its parts."""
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
    """Return the program of a plan, whose batch may be split into parts.

    Parameters
    ----------
    kernels
        Returns the kernels of a graph.
    """
    program = Program(plan, graph, arena, region, kernels(graph), pages, told, watched)
    if graph.parts == 1:
        return program
    update_plan = closing_plan(plan)
    if update_plan is None or graph.closing is None:
        return Parted(program, None)
    return Parted(program, Program(update_plan, graph.closing, arena, region, kernels(graph.closing), pages, told))


def scheduled_names(problem: Problem) -> frozenset[str]:
    """Return the names of the tensors that plans of `problem` schedule, the update phase included."""
    return frozenset(t.name for p in (problem, problem.closing) if p is not None for t in p.tensors)


def all_slots(plan: Plan, graph: TrainingGraph) -> Mapping[str, int]:
    """Return the bytes of each tensor that needs a slot on storage, by name, the update phase included."""
    update_plan = closing_plan(plan)
    update_slots = {} if update_plan is None or graph.closing is None else slots(update_plan, graph.closing)
    return {**update_slots, **slots(plan, graph)}


class Parted:
    """Program of a whole step of a split batch, with the interface of `Program`."""

    def __init__(self, part: Program, closing: Program | None) -> None:
        self.part, self.closing = part, closing
        self.plan, self.graph, self.arena, self.region = part.plan, part.graph, part.arena, part.region
        self.pages, self.kernels, self.watched = part.pages, part.kernels, part.watched
        self._batches: list[Batch] = []
        self._losses: list[Array] = []
        self._between: Callable[[int], object] = lambda run: None

    @property
    def carried(self) -> Carried:
        """Carried tensors of the parts."""
        return self.part.carried

    def load(self, batch: Batch, *, anew: bool = True) -> None:
        """Load the first part of a batch, as `Program.load` does. The step itself loads the other parts."""
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
        """Advance random nodes as `Program.redraw` does, by `steps` whole steps. Call it between steps."""
        self.part.redraw(steps * self.graph.parts)

    @property
    def acts(self) -> list[Act]:
        """Actions of the step, in order."""
        actions: list[Act] = []
        for part in range(self.graph.parts):
            actions += [partial(self._begin, part), *self.part.acts, self._end]
        return actions + (self.closing.acts if self.closing is not None else [])

    @property
    def transfers(self) -> frozenset[int]:
        """Indices of the actions that move data, as `Program.transfers`."""
        n_actions = len(self.part.calls) + 2
        indices = {part * n_actions + 1 + index for part in range(self.graph.parts) for index in self.part.transfers}
        update_transfers = self.closing.transfers if self.closing is not None else ()
        return frozenset(indices.union(self.graph.parts * n_actions + index for index in update_transfers))

    def run(self) -> None:
        """Run one step. Raise `ExecutionError` where a kernel or the storage fails."""
        self._run_all_parts(Program.run)

    def run_checked(self, batch: Batch) -> None:
        """Load `batch` and run one step with freed bytes poisoned, as `Program.run_checked` does."""
        self.arena.bytes.fill(POISON)
        self.region.block.bytes.fill(POISON)
        self.load(batch)
        self._run_all_parts(Program.poisoning)

    def _run_all_parts(self, run: Callable[[Program], object]) -> None:
        for k in range(self.graph.parts):
            self._begin(k)
            run(self.part)
            self._end()
        if self.closing is not None:
            run(self.closing)

    def _begin(self, part: int) -> None:
        self._between(part)
        if part:
            self.part.load(self._batches[part], anew=False)
        sums = () if part else self.graph.sums.values()
        self.pages.zeros(sums)
        for name in sums:
            for arrays in (self.region.given, self.part.carried.in_ram):
                if name in arrays:
                    arrays[name].fill(0)

    def _end(self) -> None:
        self._losses.append(np.array(self.part.result(self.graph.loss)))

    def result(self, name: str) -> Array:
        """Return a result of the last step, as `Program.result` does; the loss is that of the whole batch."""
        return mean_loss(self._losses) if name == self.graph.loss else self._program_with(name).result(name)

    def digest(self, name: str) -> bytes:
        """Return the SHA-256 of `result(name)`."""
        if name == self.graph.loss:
            return sha256(bytes_of(self.result(name)).data).digest()
        return self._program_with(name).digest(name)

    def _program_with(self, name: str) -> Program:
        """Return the program that computes the result `name`."""
        closing = self.closing
        return self.part if closing is None or name in self.part.graph.tensors else closing

    @property
    def begun(self) -> Mapping[str, Array]:
        """Values that the first step reads, as `Program.begun`."""
        of_updates = self.closing.begun if self.closing is not None else {}
        return {**of_updates, **self.part.begun}
