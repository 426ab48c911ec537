"""A problem whose smallest tensors take no room: a relaxation of it, half as large where operators have side outputs.

What takes no room is always there, so that models need no decision for it. BatchNormalization's statistics are a third
of a network's tensors and half a percent of the bytes that a tight budget holds, and recomputes bring most of them
back for nothing. Each schedule of the whole problem is one of the lightened problem for no more joules in no more room:
so a bound there, in a scope, is one of the whole problem in that scope. What is found there counts by the whole
problem's simulator alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from poetopt.engine.incumbent import Incumbent, Refusal
from poetopt.engine.run import Run
from poetopt.engine.solution import Options, Progress
from poetopt.heuristics.guided import guided, leaning_of
from poetopt.problem import Problem
from poetopt.schedule import Schedule

LIGHT = 0.3
"""What takes no room any more takes this share of the asked gap of the budget at most: bytes are worth what they cost,
or some times that."""
FEWER = 0.9
"""It is worth it where at most this share of the tensors still takes room."""


def lighten(problem: Problem, most_bytes: float) -> Problem:
    """`problem` with its smallest tensors of 0 bytes; before, they took `most_bytes` at most, all of one size together.

    Graph inputs stay as they are: they can't be recomputed.
    """
    sizes = np.array([tensor.nbytes if tensor.computed else 0 for tensor in problem.tensors])
    different, counts = np.unique(sizes, return_counts=True)
    small = different[np.cumsum(different * counts) <= most_bytes]
    largest = int(small[-1]) if len(small) else 0
    tensors = tuple(
        replace(tensor, nbytes=0) if tensor.computed and tensor.nbytes <= largest else tensor
        for tensor in problem.tensors
    )
    return replace(problem, tensors=tensors, graph=None)


class Through(Incumbent):
    """Judges schedules of a lightened problem as those of the whole, and hands them on."""

    def __init__(self, run: Run, lightened: Problem, options: Options) -> None:
        super().__init__(lightened, options, best=run.incumbent.best)
        self._run = run

    @property
    def value(self) -> float | None:
        """The whole problem's."""
        return self._run.incumbent.value

    def offer(self, schedule: Schedule, *, quick: bool = False) -> bool:
        """Whether it, or what is left of it within the budget, is the whole problem's best now."""
        kept = self._run.offer(schedule, "lightened", quick=quick)
        excess = 0 if kept else self._run.incumbent.excess_bytes(schedule)
        if excess:
            kept = self._within(schedule, quick=quick)
        self.best = self._run.incumbent.best
        if excess and not quick:
            self._refuse(schedule, Refusal(arena_excess=excess))
        return kept

    def _within(self, schedule: Schedule, *, quick: bool) -> bool:
        """Offer what a replay makes of a schedule that small tensors take beyond the budget."""
        run, options = self._run, self._run.options
        leaning = leaning_of(run.problem, schedule)
        fits = guided(run.problem, run.incumbent.room_bytes, leaning, paging=options.paging, remat=options.remat)
        return fits is not None and run.offer(fits, "lightened", quick=quick)

    def weigh(self, schedule: Schedule) -> float:
        """What the whole problem's schedule is worth."""
        return self._run.incumbent.weigh(schedule)

    def refused(self, schedule: Schedule) -> Refusal | None:
        """Why the whole problem's schedule was refused, or None."""
        return super().refused(schedule) or self._run.incumbent.refused(schedule)


@dataclass(frozen=True)
class Lightened:
    """Two runs over the lightened problem, both of which hand on what they find.

    relaxed
        In all of the room: what is proven of it holds of the whole problem.
    aside
        In what small tensors leave of the room if all of them are there at once: what keeps it is a schedule of the
        whole problem, mostly with room to spare for the layout, but nothing that is proven says anything of that.
    """

    relaxed: Run
    aside: Run

    @classmethod
    def of(cls, run: Run) -> Lightened | None:
        """None where hardly anything is small."""
        options = run.options
        room = options.ram_bytes - run.problem.reserve_bytes
        problem = lighten(run.problem, LIGHT * options.gap * room)
        sized = [sum(tensor.nbytes > 0 for tensor in one.tensors) for one in (problem, run.problem)]
        if sized[0] > FEWER * sized[1]:
            return None
        small = sum(tensor.nbytes for tensor in run.problem.tensors) - sum(tensor.nbytes for tensor in problem.tensors)
        less = replace(options, ram_bytes=options.ram_bytes - small)

        def told(progress: Progress) -> None:
            run.say(progress.phase)  # with what is proven of the whole problem

        relaxed = Run(problem, options, run.listener, begin=run.begin, timing=run.timing, trace=run.trace)
        aside = Run(problem, less, told, begin=run.begin, timing=run.timing)
        for one in (relaxed, aside):
            one.incumbent = Through(run, problem, one.options)
        return cls(relaxed, aside)
