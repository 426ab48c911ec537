"""A problem with chains of forward operators joined: shorter, to find schedules in that the whole problem hides.

Where all that an operator writes is read by the next one alone, to keep the one's outputs is seldom better than to keep
the other's: so the two become one operator, which reads and writes what both do. What they pass on is taken to lie
where they write, as it would if the next one worked in place: a relaxation, and replays of it, then see what is kept,
and not the room that passing it on takes for a moment. So a schedule of the joined problem may not fit, and its bounds
are none of the whole problem's; the whole problem's simulator judges each.

Joined are neighbours of the fixed order, which is kept. Small side outputs (a batch's statistics) may leave. Not joined
is what would make the largest working set larger, so that the least RAM is no more.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    passed = {i for begin, end in runs for i in _passed(problem, begin, end)}
    tensors = tuple(i for i in range(len(problem.tensors)) if i not in passed)
    place = {i: x for x, i in enumerate(tensors)}
    owner = {j: x for x, run in enumerate(runs) for j in range(*run)}
    joined = replace(
        problem,
        operators=tuple(_operator(problem, begin, end, place) for begin, end in runs),
        tensors=tuple(
            replace(problem.tensors[i], producer=owner.get(problem.tensors[i].producer, -1)) for i in tensors
        ),
        graph=None,
    )
    return Joined(joined, runs, tensors)


def _runs(problem: Problem) -> tuple[tuple[int, int], ...]:
    """Begin and end of each run of operators that become one."""
    most = max((problem.working_set_bytes(j) for j in range(len(problem.operators))), default=0)
    runs: list[tuple[int, int]] = []
    end = len(problem.operators)
    for j in reversed(range(len(problem.operators))):
        if not (j and _joins(problem, j - 1, end) and _working_set(problem, j - 1, end) <= most):
            runs.append((j, end))
            end = j
    return tuple(reversed(runs))


def _joins(problem: Problem, j: int, end: int) -> bool:
    """Whether those up to `end` alone read what operator j writes, and leave no more behind than that."""
    operator, after = problem.operators[j], problem.operators[j + 1]
    if operator.backward or after.backward or operator.recomputable != after.recomputable:
        return False
    size = [tensor.nbytes for tensor in problem.tensors]
    small = max((size[i] for i in (*operator.inputs, *operator.outputs)), default=0) / SIDE
    large = {i for i in operator.outputs if size[i] > small}
    left = [i for i in _written(problem, j, end) if size[i] > small]
    return bool(large) and not large & set(left) and sum(size[i] for i in left) <= sum(size[i] for i in large)


def _inside(problem: Problem, i: int, end: int) -> bool:
    """Whether all that reads a tensor does so before `end`."""
    readers = problem.readers[i]
    return bool(readers) and readers[-1] < end


def _passed(problem: Problem, begin: int, end: int) -> list[int]:
    """What operators begin..end-1 pass on to one another alone."""
    return [i for j in range(begin, end - 1) for i in problem.operators[j].outputs if _inside(problem, i, end)]


def _written(problem: Problem, begin: int, end: int) -> list[int]:
    """What they write for others, or for nobody."""
    passed = set(_passed(problem, begin, end))
    return [i for j in range(begin, end) for i in problem.operators[j].outputs if i not in passed]


def _read(problem: Problem, begin: int, end: int) -> set[int]:
    """What they read of others."""
    members = problem.operators[begin:end]
    return {i for o in members for i in o.inputs} - {i for o in members for i in o.outputs}


def _working_set(problem: Problem, begin: int, end: int) -> int:
    workspace = max(operator.workspace_bytes for operator in problem.operators[begin:end])
    return problem.nbytes([*_read(problem, begin, end), *_written(problem, begin, end)]) + workspace


def _operator(problem: Problem, begin: int, end: int, place: Mapping[int, int]) -> ProblemOperator:
    members = problem.operators[begin:end]
    return replace(
        members[-1],
        inputs=tuple(sorted(place[i] for i in _read(problem, begin, end))),
        outputs=tuple(sorted(place[i] for i in _written(problem, begin, end))),
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
