"""A relaxation of the problem: its smallest tensors take no room, so that a model has far fewer decisions.

What takes no room is always there. BatchNormalization's statistics are a third of a network's tensors and half a
percent of the bytes that a tight budget holds, and recomputes bring most of them back for nothing. Each schedule of the
whole problem is one of the relaxed problem for no more joules in no more room: so a bound there, in a scope, is one of
the whole problem in that scope. A schedule that is found there counts by the whole problem's simulator alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from poetopt.graph.problem import Problem
from poetopt.plan.schedule import Schedule
from poetopt.search.incumbent import Incumbent, Refusal
from poetopt.search.run import Run
from poetopt.search.solution import Options
from poetopt.search.tuning import FEWER, LIGHT


def lighten(problem: Problem, most_bytes: float) -> Problem:
    """`problem` with its smallest tensors of 0 bytes; before, they took `most_bytes` at most, all of one size together.

    Graph inputs stay as they are: they can't be recomputed. So do outputs that take over an input: both have one size.
    """
    over = {i for operator in problem.operators for i in operator.takes}
    able = [tensor.computed and i not in over for i, tensor in enumerate(problem.tensors)]
    sizes = np.array([tensor.nbytes if own else 0 for tensor, own in zip(problem.tensors, able, strict=True)])
    different, counts = np.unique(sizes, return_counts=True)
    small = different[np.cumsum(different * counts) <= most_bytes]
    largest = int(small[-1]) if len(small) else 0
    tensors = tuple(
        replace(tensor, nbytes=0) if own and tensor.nbytes <= largest else tensor
        for tensor, own in zip(problem.tensors, able, strict=True)
    )
    return replace(problem, tensors=tensors, graph=None)


class JudgedWhole(Incumbent):
    """Judges schedules of the relaxed problem as those of the whole one, whose incumbent they may become."""

    def __init__(self, whole: Run, relaxed: Problem, options: Options) -> None:
        super().__init__(relaxed, options, best=whole.incumbent.best, lock=whole.lock)
        self._whole = whole

    @property
    def value(self) -> float | None:
        """The whole problem's."""
        return self._whole.incumbent.value

    def offer(self, schedule: Schedule, *, quick: bool = False) -> bool:
        """Whether it is the whole problem's best now."""
        kept = self._whole.offer(schedule, "relaxed", quick=quick)
        excess = 0 if kept else self._whole.incumbent.excess_bytes(schedule)
        with self.lock:
            self.best = self._whole.incumbent.best
            if excess and not quick:
                self.refuse(schedule, Refusal(arena_excess=excess))
        return kept

    def weigh(self, schedule: Schedule) -> float:
        """What the whole problem's schedule is worth."""
        return self._whole.incumbent.weigh(schedule)

    def refused(self, schedule: Schedule) -> Refusal | None:
        """Why the whole problem's schedule was refused, or None."""
        return super().refused(schedule) or self._whole.incumbent.refused(schedule)


@dataclass
class RelaxedRun(Run):
    """A run over the relaxed problem: what it finds is the `whole` run's.

    bounds
        Whether what it proves is, too.
    """

    whole: Run = field(kw_only=True)
    bounds: bool = field(kw_only=True, default=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.incumbent = JudgedWhole(self.whole, self.problem, self.options)

    @classmethod
    def of(cls, run: Run, *, aside: bool = False) -> RelaxedRun | None:
        """None where few tensors are small, with a deadline, storage that is woken, or blocks of others.

        aside
            Whether the room of all small tensors together is set aside: what keeps the rest is a schedule of the whole
            problem, mostly with room to spare for the layout, but what is proven says nothing of that.
        """
        options, chosen = run.options, run.chosen
        if not (chosen.lean and chosen.plain and chosen.plans_count):
            return None
        if options.deadline_s is not None or run.problem.wake_j:
            return None
        problem = lighten(run.problem, LIGHT * options.gap * (options.ram_bytes - run.problem.reserve_bytes))
        sized = [sum(tensor.nbytes > 0 for tensor in one.tensors) for one in (problem, run.problem)]
        if sized[0] > FEWER * sized[1]:
            return None
        if aside:
            pairs = zip(run.problem.tensors, problem.tensors, strict=True)
            small = sum(whole.nbytes - light.nbytes for whole, light in pairs)
            options = replace(options, ram_bytes=options.ram_bytes - small)
        return cls(
            problem,
            options,
            None,
            begin=run.begin,
            timing=run.timing,
            work=run.work,
            plain=None if aside else run.plain,
            lock=run.lock,
            whole=run,
            bounds=not aside,
        )

    def raise_bound(self, bound: float, phase: str) -> None:
        super().raise_bound(bound, phase)
        if self.bounds:
            self.whole.raise_bound(bound, phase)
