"""Two or more goals: one after the other, and the front of two by epsilon constraints, each point with its proof.

A *lexicographic* solve minimises the first goal, then the second among schedules whose first is least, and so on. The
*front* of two goals is a lexicographic solve for each of a row of bounds on the second goal. What is proven of a point
is what its solves prove: within the bound on the second goal, no schedule of the scope has less of the first than
`bounds[0]`; and with no more of the first than the point, none has less of the second than `bounds[1]`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from poetopt.comparison.rows import in_bytes
from poetopt.formulations import formulation as formulation_of
from poetopt.formulations.goal import ENERGY, TIME, WRITTEN, Goal
from poetopt.formulations.language import Formulation
from poetopt.formulations.within import least, within
from poetopt.graph.problem import Problem, check_problem
from poetopt.plan.assemble import schedule_of
from poetopt.plan.instructions import Plan
from poetopt.plan.schedule import Schedule
from poetopt.plan.storeall import store_all_bytes
from poetopt.search.diagnosis.whole import solve_whole
from poetopt.search.solution import Options, Solution
from poetopt.util.errors import InfeasibleError, NoScheduleError, OptionError
from poetopt.util.figures import Figures, figures
from poetopt.util.progress import telling
from poetopt.util.units import Share, parse_fraction, parse_ram, parse_time, show_amount

GOALS = {"energy": ENERGY, "time": TIME, "written": WRITTEN}
"""By the names that `front` and `lexicographic` take."""
ROUNDING = 1e-9
"""A later goal's solve may exceed an earlier goal's value by this fraction, as sums of floats depend on their order."""


@dataclass(frozen=True, kw_only=True)
class GoalPoint(Figures):
    """A plan, and what it takes of each goal above one compute of each operator.

    values, bounds
        By goal: the plan's, and what no schedule of the scope is below (see the module); None where nothing is proven.
    statuses, scopes
        Of each goal's solve.
    most
        The bound on the second goal that the point was searched within; None: there was none.
    """

    goals: tuple[Goal, ...]
    values: tuple[float, ...]
    bounds: tuple[float | None, ...]
    statuses: tuple[str, ...]
    scopes: tuple[str, ...]
    plan: Plan = field(repr=False)
    most: float | None = None

    def __str__(self) -> str:
        return ", ".join(
            f"{goal.name} {show_amount(value, goal.unit)} ({status}, {scope})"
            for goal, value, status, scope in zip(self.goals, self.values, self.statuses, self.scopes, strict=True)
        )

    def to_dict(self) -> dict[str, object]:
        """As JSON has it."""
        keys = ("name", "unit", "value", "bound", "status", "scope")
        names, units = ([getattr(goal, key) for goal in self.goals] for key in keys[:2])
        rows = zip(names, units, self.values, self.bounds, self.statuses, self.scopes, strict=True)
        return {"most": self.most, "goals": [dict(zip(keys, row, strict=True)) for row in rows]}


@dataclass(frozen=True, kw_only=True)
class GoalFront:
    """Points of two goals, the first descending as the second ascends; none of them is better in both than another."""

    problem: Problem
    ram_budget_bytes: int
    points: tuple[GoalPoint, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.points))

    def to_dict(self) -> dict[str, object]:
        """As JSON has it."""
        about = {"model": self.problem.name, "device": self.problem.device}
        return {**about, **figures(self, ("ram_budget_bytes", "points"))}


def lexicographic(
    problem: Problem,
    *,
    goals: Sequence[str | Goal] = ("energy", "written"),
    ram: str | int | Share,
    formulation: str | Formulation = "retention",
    scope: str = "auto",
    time_limit: str | float = 20.0,
    gap: str | float = 1e-6,
    threads: int = 0,
    progress: bool = False,
) -> GoalPoint:
    """The least of the first goal, then of the second among schedules with that much of the first, and so on.

    goals
        `energy`, `time`, `written`, or a `Goal` each, to which blocks of the formulation contribute.
    ram
        Bytes, a size or a share of the store-all peak.
    formulation
        Its name or the object; one without a goal of its own.
    scope, threads
        As in `solve`.
    time_limit, gap
        Of each goal's solve. Where one isn't proven, the next goal's is of schedules no worse than what was found.
    progress
        Write a line to stderr for each solve.

    Raises InfeasibleError where there is no schedule, NoScheduleError where none was found, OptionError for a goal.
    """
    asked = _asked(problem, goals, ram, formulation, scope, time_limit, gap, threads, progress)
    return _in_turn(asked, asked.goals, None)


def front(
    problem: Problem,
    *,
    goals: Sequence[str | Goal] = ("energy", "written"),
    ram: str | int | Share,
    points: int = 5,
    formulation: str | Formulation = "retention",
    scope: str = "auto",
    time_limit: str | float = 20.0,
    gap: str | float = 1e-6,
    threads: int = 0,
    progress: bool = False,
) -> GoalFront:
    """The front of two goals: from the least of the first to the least of the second, with a proof for each point.

    goals
        Two of them, as in `lexicographic`, which also has the other parameters.
    points
        At most so many: both ends, and bounds on the second goal evenly between them. Bounds that a point keeps
        already give no new one.

    Raises InfeasibleError, NoScheduleError and OptionError as `lexicographic` does.
    """
    if points < 2:
        raise OptionError(f"points={points}: a front has at least its two ends")
    asked = _asked(problem, goals, ram, formulation, scope, time_limit, gap, threads, progress)
    if len(asked.goals) != 2:
        raise OptionError(f"a front has two goals; {len(asked.goals)} were given")
    first, second = asked.goals
    found = [_in_turn(asked, (first, second), None)]
    other = _in_turn(asked, (second, first), None)
    low, high = other.values[0], found[0].values[1]
    for k in range(points - 2, -1, -1):
        most = low + (high - low) * k / (points - 1)
        if most < found[-1].values[1]:
            starts = [schedule_of(point.plan) for point in (*found, other)]
            found.append(_in_turn(asked, (first, second), most, starts))
    kept = [point for point in found if not any(_dominates(rival, point) for rival in found)]
    return GoalFront(problem=problem, ram_budget_bytes=asked.options.ram_bytes, points=tuple(kept))


@dataclass(frozen=True)
class _Asked:
    problem: Problem
    goals: tuple[Goal, ...]
    base: Formulation
    options: Options
    progress: bool


def _asked(
    problem: Problem,
    goals: Sequence[str | Goal],
    ram: str | int | Share,
    formulation: str | Formulation,
    scope: str,
    time_limit: str | float,
    gap: str | float,
    threads: int,
    progress: bool,
) -> _Asked:
    check_problem(problem)
    base = formulation_of(formulation)
    if base.goal is not ENERGY:
        raise OptionError(f"formulation '{base.name}' minimises {base.goal.name}; give one without a goal of its own")
    (ram_bytes,) = in_bytes((parse_ram(ram),), store_all_bytes(problem))
    options = Options(
        ram_bytes=ram_bytes,
        scope=scope,
        time_limit_s=parse_time(time_limit, option="time_limit"),
        gap=parse_fraction(gap, option="gap"),
        threads=threads,
    )
    return _Asked(problem, _goals(goals), base, options, progress)


def _goals(given: Sequence[str | Goal]) -> tuple[Goal, ...]:
    if isinstance(given, str) or len(given) < 2:
        raise OptionError(f"goals must be a list of at least two of them; got {given!r}")
    unknown = [goal for goal in given if not isinstance(goal, Goal) and goal not in GOALS]
    if unknown:
        raise OptionError(f"unknown goal {unknown[0]!r}: there are {', '.join(GOALS)}, or a Goal")
    found = tuple(goal if isinstance(goal, Goal) else GOALS[goal] for goal in given)
    if len({goal.name for goal in found}) < len(found):
        raise OptionError("a goal is given twice; give each once")
    return found


def _in_turn(asked: _Asked, goals: Sequence[Goal], most: float | None, starts: Sequence[Schedule] = ()) -> GoalPoint:
    """Each goal's least with no more of those before it than was found, and of the second no more than `most`."""
    say = telling(asked.progress)
    kept: dict[str, tuple[Goal, float]] = {} if most is None else {goals[1].name: (goals[1], most)}
    solutions: list[Solution] = []
    for goal in goals:
        bounds = [replace(within(g, value), name=f"within_{k}") for k, (g, value) in enumerate(kept.values())]
        blocks = [*bounds, *([] if goal is ENERGY else [least(goal)])]
        together = asked.base.with_block(*blocks) if blocks else asked.base
        say(together.doc)
        solution = solve_whole(asked.problem, replace(asked.options, formulation=together), starts=starts)
        if solution.plan is None or solution.simulation is None:
            raise _none(asked, solution, most)
        solutions.append(solution)
        starts = [schedule_of(solution.plan)]
        value = _value(asked, solution, goal)
        kept[goal.name] = (goal, value * (1 + ROUNDING))
    return GoalPoint(
        goals=tuple(goals),
        values=tuple(_value(asked, solutions[-1], goal) for goal in goals),
        bounds=tuple(s.overhead_bound_j if s.objective is None else s.objective.bound for s in solutions),
        statuses=tuple(str(s.status) for s in solutions),
        scopes=tuple(s.scope for s in solutions),
        plan=solutions[-1].plan,  # type: ignore[arg-type]
        most=most,
    )


def _value(asked: _Asked, solution: Solution, goal: Goal) -> float:
    assert solution.plan is not None
    assert solution.simulation is not None
    return goal.value(asked.base.trial(solution.plan, solution.simulation))


def _none(asked: _Asked, solution: Solution, most: float | None) -> InfeasibleError | NoScheduleError:
    infeasible = str(solution.status) == "infeasible"
    where = f"{asked.problem.name} with {asked.options.ram_bytes:,} bytes"
    within_it = "" if most is None else f" and at most {most:.6g} {asked.goals[1].unit} of {asked.goals[1].name}"
    told = f"{where}{within_it}: {'no schedule' if infeasible else 'none found in time'}; {solution.reason}"
    return (InfeasibleError if infeasible else NoScheduleError)(told.rstrip("; "))


def _dominates(rival: GoalPoint, point: GoalPoint) -> bool:
    """Tell whether the rival is no worse in both, and better in one by more than rounding."""
    pairs = list(zip(rival.values, point.values, strict=True))
    slack = [ROUNDING * 10 * max(1.0, math.fabs(b)) for _, b in pairs]
    return all(a <= b + s for (a, b), s in zip(pairs, slack, strict=True)) and any(
        a < b - s for (a, b), s in zip(pairs, slack, strict=True)
    )
