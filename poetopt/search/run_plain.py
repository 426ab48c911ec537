"""The plain problem: only those operators stream that don't fit the budget plain.

It is smaller than the whole one, and its relaxation tighter. Its plans are plans of the whole problem, for as many
joules; and what is proven of it need not be searched again where operators may stream: only what streams is left.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from poetopt.graph.problem import Feature, Problem
from poetopt.plan.schedule import Schedule
from poetopt.search.deepening import Deepening
from poetopt.search.run import Proof, Run
from poetopt.search.scope_search import relax_scope
from poetopt.search.tuning import LEAST_S, RELAX_SHARE, RUN_PLAIN


def run_plain(problem: Problem, ram_bytes: int) -> Problem:
    """The problem without the variants of operators that fit a budget plain."""
    operators = tuple(
        replace(operator, variants=()) if problem.fits_plain(k, ram_bytes) else operator
        for k, operator in enumerate(problem.operators)
    )
    return problem if operators == problem.operators else replace(problem, operators=operators)


@dataclass
class PlainRun(Run):
    """A run over the plain problem, in a part of the effort of the `whole` one, with whose incumbent it begins.

    It ends where nothing plain is better than that, so that a streamed plan spares most of it.
    """

    whole: Run = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.incumbent = self.whole.incumbent

    @classmethod
    def of(cls, run: Run, plain: Problem) -> PlainRun:
        """A run over `run`'s plain problem, in a part of the effort that is left now."""
        share = run.budget.part(RUN_PLAIN[Feature.STREAMED in plain.features])
        return cls(
            plain,
            run.options,
            None,
            begin=run.begin,
            work=run.work,
            starts=run.starts,
            lock=run.lock,
            whole=run,
            given=share,
        )

    def offer(self, schedule: Schedule, phase: str, *, quick: bool = False) -> bool:
        """Whether it is the whole problem's best now."""
        return self.whole.offer(schedule, phase, quick=quick)

    def say(self, phase: str) -> None:
        """Nothing: its bounds are not the whole problem's."""


def plain_first(run: Run, scope: str) -> Proof | None:
    """Search the plain problem, whose plans are the run's; what is proven of it, where that is settled.

    First come plans that a relaxation of `scope` with streamed runs leads to: the plain problem is searched no further
    than it may be better. An interrupt of it is one of the run. None where all problems are plain, or none is.
    """
    problem = run_plain(run.problem, run.options.ram_bytes)
    if not run.options.paging or problem is run.problem:
        return None
    if run.work.clock_s > 2 * LEAST_S:
        relax_scope(run, scope, run.budget.part(RELAX_SHARE))
    plain = PlainRun.of(run, problem)
    deepening = Deepening(plain)
    plain.enter(deepening.first)
    with run.timed("plain schedules"):
        proof = deepening.deepen()
    if plain.interrupted:
        raise KeyboardInterrupt
    return proof if proof.settled else None
