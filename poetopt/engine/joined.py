"""A problem with chains of forward operators joined: shorter, to find schedules in that the whole problem hides.

Where all that an operator writes is read by the next one alone, to keep the one's outputs is seldom better than to keep
the other's: so the two become one operator, which reads and writes what both do. What they pass on is taken to lie
where they write, as it would if the next one worked in place: a relaxation, and replays of it, then see what is kept,
and not the room that passing it on takes for a moment. So a schedule of the joined problem may not fit, and its bounds
are none of the whole problem's; the whole problem's simulator judges each.

Joined are neighbours of the fixed order, which is kept. Small side outputs (a batch's statistics) may leave. Not joined
is what would make the largest working set larger, so that the least RAM is no more. (`devices.blocks` joins operators
of a training graph for good; this is of any problem, to look at.)
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from poetopt.engine.incumbent import Incumbent, Refusal
from poetopt.engine.run import Run
from poetopt.problem import Problem, ProblemOperator
from poetopt.schedule import Schedule

SIDE = 8
"""A side output has at most one such part of the bytes of the largest tensor that its operator reads or writes."""
SHORTER = 0.9
"""It is worth a look where it has at most this share of the operators."""


@dataclass(frozen=True)
class Joined:
    """The joined problem, and what its indices mean.

    operators
        For each of its operators, those that it is made of: the first one's place, and the end.
    tensors
        For each of its tensors, the index in the whole problem.
    """

    problem: Problem
    operators: tuple[tuple[int, int], ...]
    tensors: tuple[int, ...]

    def whole(self, schedule: Schedule) -> Schedule:
        """A schedule of the joined problem as one of the whole problem."""
        begins = [begin for begin, _ in self.operators]
        return Schedule(
            frozenset((begins[t], j) for t, x in schedule.recomputes for j in range(*self.operators[x])),
            frozenset((begins[t], self.tensors[i]) for t, i in schedule.page_ins),
        )


def join(problem: Problem) -> Joined:
    """`problem` with its chains joined."""
    runs = _runs(problem)
    members = [_together(problem, begin, end) for begin, end in runs]
    used = {i for operator in members for i in operator.outputs} | set(problem.inputs)
    tensors = tuple(sorted(used))
    place = {i: x for x, i in enumerate(tensors)}
    owner = {i: x for x, operator in enumerate(members) for i in operator.outputs}
    joined = replace(
        problem,
        operators=tuple(
            replace(
                operator,
                inputs=tuple(place[i] for i in operator.inputs),
                outputs=tuple(place[i] for i in operator.outputs),
            )
            for operator in members
        ),
        tensors=tuple(replace(problem.tensors[i], producer=owner.get(i, -1)) for i in tensors),
        graph=None,
    )
    return Joined(joined, runs, tensors)


def _runs(problem: Problem) -> tuple[tuple[int, int], ...]:
    """Begin and end of each run of operators that become one."""
    most = max(map(problem.working_set_bytes, range(len(problem.operators))), default=0)
    runs: list[tuple[int, int]] = []
    end = len(problem.operators)
    for j in reversed(range(len(problem.operators))):
        if not (j and _joins(problem, j - 1, end, most)):
            runs.append((j, end))
            end = j
    return tuple(reversed(runs))


def _joins(problem: Problem, j: int, end: int, most: int) -> bool:
    """Whether those up to `end` alone read what operator j writes, and all leave no more behind than that.

    most
        What is joined has at most this working set, in bytes.
    """
    operator, after = problem.operators[j], problem.operators[j + 1]
    if operator.backward or after.backward or operator.recomputable != after.recomputable:
        return False
    together = _together(problem, j, end)
    small = max((problem.tensors[i].nbytes for i in (*operator.inputs, *operator.outputs)), default=0) / SIDE
    large = {i for i in operator.outputs if problem.tensors[i].nbytes > small}
    left = [i for i in together.outputs if problem.tensors[i].nbytes > small]
    if not large or not large.isdisjoint(left) or problem.nbytes(left) > problem.nbytes([*large]):
        return False
    return problem.nbytes(together.inputs) + problem.nbytes(together.outputs) + together.workspace_bytes <= most


def _together(problem: Problem, begin: int, end: int) -> ProblemOperator:
    """Operators begin..end-1 as one, which writes what they don't pass on to one another alone."""
    members = problem.operators[begin:end]
    written = {i for operator in members for i in operator.outputs}
    read = {i for operator in members for i in operator.inputs} - written
    passed = {i for i in written if problem.readers[i] and problem.readers[i][-1] < end}
    return replace(
        members[-1],
        inputs=tuple(sorted(read)),
        outputs=tuple(sorted(written - passed)),
        time_s=sum(operator.time_s for operator in members),
        energy_j=sum(operator.energy_j for operator in members),
        workspace_bytes=max(operator.workspace_bytes for operator in members),
    )


class Through(Incumbent):
    """Judges schedules of a joined problem as those of the whole, and hands them on."""

    def __init__(self, run: Run, joined: Joined) -> None:
        super().__init__(joined.problem, run.options, best=run.incumbent.best)
        self._run, self._joined = run, joined

    @property
    def value(self) -> float | None:
        """The whole problem's."""
        return self._run.incumbent.value

    def offer(self, schedule: Schedule, *, quick: bool = False) -> bool:
        """Whether it is the whole problem's best now."""
        kept = self._run.offer(self._joined.whole(schedule), "joined", quick=quick)
        self.best = self._run.incumbent.best
        return kept

    def weigh(self, schedule: Schedule) -> float:
        """What the whole problem's schedule is worth."""
        return self._run.incumbent.weigh(self._joined.whole(schedule))

    def refused(self, schedule: Schedule) -> Refusal | None:
        """Why the whole problem's schedule was refused, or None."""
        return self._run.incumbent.refused(self._joined.whole(schedule))


def joined_run(run: Run) -> Run | None:
    """A run over the joined problem that hands on what it finds; None where that is hardly shorter."""
    joined = join(run.problem)
    if len(joined.problem.operators) > SHORTER * len(run.problem.operators):
        return None
    found = Run(joined.problem, run.options, None, begin=run.begin, timing=run.timing, scope=run.scope)
    found.incumbent, found.until = Through(run, joined), run.until
    return found
