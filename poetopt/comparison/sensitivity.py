"""The loss of a plan when the device's figures are off: its energy against the optimum of the changed device.

Three figures are changed, each for itself, by the factors of `FACTORS`: the storage's throughput (its latency stays),
its power (with what waking it takes), and the CPU's rate (with that of its memory) at the same power. A deadline that
was given in passes stays the same multiple of one pass, any other stays what it is.
The plan's decisions stay as they are, and its instructions too
unless they come late: then its transfers are timed anew before it counts as late.
The optimum is solved anew, from all plans found before; of the plans and the bounds found for any device the best that
holds on each counts. Where one of two plain plans, made for the unchanged
device by paging alone or by recomputing alone, costs no more than the plan under some change, the plan's advantage is
smaller than what is uncertain, and `Sensitivity.sentence` says so. A plan that only recomputes is held against paging
alone, and one that only pages against recomputing alone.

All of it is in the joules that the simulator counts: what was solved for anything else is refused (`check_goal`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from poetopt.comparison.changed import PARAMETERS, Bound, Latencies, changed, labels
from poetopt.formulations import formulation
from poetopt.formulations.goal import ENERGY, WRITTEN
from poetopt.formulations.language import Formulation
from poetopt.formulations.options import HOMES, asked_by
from poetopt.formulations.scope import scope_option
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import schedule_of
from poetopt.plan.instructions import Plan
from poetopt.plan.simulate import RELATIVE_TOLERANCE, Simulation, simulate
from poetopt.search.diagnosis.whole import solve_whole
from poetopt.search.incumbent import Incumbent
from poetopt.search.solution import Options, Solution
from poetopt.util.errors import OptionError, PlanError
from poetopt.util.figures import Figures

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
ALTERNATIVES = {"paging alone": (True, False), "recomputing alone": (False, True)}
"""Plain plans: whether they may page, and whether they may recompute."""
GAP = 1e-2
"""The gap that the bound of a changed device is asked to close."""

Told = Callable[[str], None]


@dataclass(frozen=True)
class Change(Figures):
    """The plan on a changed device.

    baseline_j
        Energy of one pass there.
    energy_j, makespan_s, in_time
        What it takes there, and whether it keeps the deadline.
    optimum_j, bound_j
        Energy of the best plan found for the changed device (None: none was found), and what no plan goes below.
    loss
        (energy - optimum) / optimum.
    least_alternative_j
        Energy there of the cheaper plain plan that is in time, where there is one.
    deadline_s
        The deadline there, where there is one.
    retimed
        Whether the plan keeps it only with its transfers timed anew.
    """

    parameter: str
    factor: float
    baseline_j: float
    energy_j: float
    makespan_s: float
    in_time: bool
    optimum_j: float | None
    bound_j: float | None
    loss: float | None
    least_alternative_j: float | None
    alternative: str = ""
    deadline_s: float | None = None
    retimed: bool = False
    derived = ("overtaken", "most_loss", "open_share")

    @property
    def most_loss(self) -> float | None:
        """The most that the loss can be: against the bound, as the best plan there may be better than the one found."""
        return None if not self.bound_j else max(self.loss or 0.0, self.energy_j / self.bound_j - 1.0)

    @property
    def open_share(self) -> float | None:
        """The part of the overhead of the best plan found there that a better one could save; None: not known."""
        if self.optimum_j is None or self.bound_j is None:
            return None
        overhead_j = self.optimum_j - self.baseline_j
        return min(max(0.0, (self.optimum_j - self.bound_j) / overhead_j), 1.0) if overhead_j > 0 else 0.0

    @property
    def overtaken(self) -> bool:
        """Tell whether a plain plan costs no more than this one there, though it costs more here."""
        other = self.least_alternative_j
        return other is not None and other <= self.energy_j * (1 + RELATIVE_TOLERANCE)


@dataclass(frozen=True)
class Sensitivity(Figures):
    """All changes of a plan, by parameter and factor; `advantage_j` is the plan's over the cheaper plain one here."""

    changes: tuple[Change, ...]
    advantage_j: float | None
    derived = ("sentence",)

    @property
    def worst(self) -> Change | None:
        """The change under which the plan loses most, or None where no optimum is known."""
        known = [change for change in self.changes if change.loss is not None]
        return max(known, key=lambda change: change.loss or 0.0, default=None)

    @property
    def most_open(self) -> Change | None:
        """The change whose best plan is proven least, or None where no bound is known."""
        known = [change for change in self.changes if change.open_share is not None]
        return max(known, key=lambda change: change.open_share or 0.0, default=None)

    @property
    def late(self) -> tuple[Change, ...]:
        """The changes under which the plan misses its deadline."""
        return tuple(change for change in self.changes if not change.in_time)

    @property
    def sentence(self) -> str:
        """The conclusion for people, in one sentence."""
        late = self.late
        misses = f"misses its deadline with {', '.join(f'{change.parameter} x{change.factor:g}' for change in late)}"
        if self.advantage_j is not None and self.advantage_j > 0:
            overtaken = [change for change in self.changes if change.overtaken]
            if overtaken:
                nearest = min(overtaken, key=lambda change: max(change.factor, 1 / change.factor))
                return (
                    f"The plan's advantage vanishes inside the uncertainty: with {nearest.parameter} "
                    f"x{nearest.factor:g}, {nearest.alternative} costs no more than it"
                    f"{f', and the plan {misses}' if late else ''}."
                )
        if late:
            return f"The plan {misses}."
        worst = self.worst
        if worst is None or not worst.loss:
            return "The plan stays the best one known under every change."
        return (
            f"At worst, with {worst.parameter} x{worst.factor:g}, the plan takes {100 * worst.loss:.3g} % more energy "
            "than the best one known there."
        )


def check_goal(chosen: Formulation) -> None:
    """Refuse a formulation that minimises anything but the energy that the simulator counts.

    Plans, optima and bounds are compared in those joules: the quickest plan within a limit, say, loses against plans
    that nobody asked for, and joules that a block adds would be in no column.

    Raises OptionError, which names the options to leave out.
    """
    swapping = [b for b in chosen.blocks if b.adds_j is not None or b.goal not in (None, ENERGY)]
    if not swapping:
        return
    options = {home.rpartition(".")[2]: asked_by(name) for name, home in HOMES.items()}
    asked = " and ".join(f"{block.name}{f' ({block.says})' if block.says else ''}" for block in swapping)
    leave = " and ".join(options.get(block.name, f"the block {block.name}") for block in swapping)
    raise OptionError(
        "--with sensitivity: it compares plans by the energy that the simulator counts, which is not what is minimised "
        f"with {asked}; leave out {leave}, or --with sensitivity"
    )


def sensitivity(
    problem: Problem,
    solution: Solution,
    *,
    time_limit_s: float = 10.0,
    storage_share: float = 1.0,
    latencies_s: Latencies | None = None,
    by_time: bool = True,
    relative_deadline: bool = False,
    told: Told | None = None,
) -> Sensitivity:
    """Every change of `PARAMETERS` by `FACTORS`, with an optimum solved for each.

    problem, solution
        A solved problem; the solution has a plan.
    time_limit_s
        For each optimum.
    storage_share, latencies_s, by_time
        See `changed`.
    relative_deadline
        Whether the deadline was given in passes.
    told
        Called with a line before each solve.

    Raises OptionError as `check_goal`, before anything is solved, and PlanError for a solution without a plan.
    """
    plan, options = solution.plan, solution.options
    check_goal(formulation(options.formulation))
    if plan is None:
        raise PlanError(f"{problem.name}: there is no plan whose sensitivity could be told (status {solution.status})")
    say = told or (lambda _text: None)
    scope = scope_option(solution.scope) if solution.scope != "store-all" else options.scope
    short = replace(options, scope=scope, time_limit_s=time_limit_s, gap=max(options.gap, GAP))
    here = _energy(problem, simulate(plan))
    others: dict[str, Plan] = {}
    for name in _alternatives(plan, options):
        say(name)
        paging, remat = ALTERNATIVES[name]
        found = solve_whole(problem, replace(short, paging=paging, remat=remat)).plan
        if found is not None:
            others[name] = found
    least = min((simulate(other).energy_j for other in others.values()), default=None)
    changes: list[Change] = []
    pool = [plan, *others.values()]  # every plan found: what is best on one device may be good on the next
    devices: list[Problem] = []
    for parameter, factor in _changes(problem):
        label = labels(problem).get(parameter, parameter)
        same = next((change for change in changes if change.factor == factor == 1.0), None)
        if same is not None:  # the device as it is, whatever is changed by nothing
            changes.append(replace(same, parameter=label))
            devices.append(problem)
            continue
        say(f"{label} x{factor:g}")
        moved = changed(
            problem, parameter, factor, storage_share=storage_share, latencies_s=latencies_s, by_time=by_time
        )
        deadline_s = _deadline_s(options, problem, moved) if relative_deadline else options.deadline_s
        there = simulate(replace(plan, problem=moved))
        in_time = _in_time(there, options, deadline_s)
        again = None if in_time else _retimed(moved, replace(short, deadline_s=deadline_s), plan)
        if again is not None:
            there, in_time = again, True
        optimum, bound = _optimum(moved, replace(short, deadline_s=deadline_s), pool, again)
        devices.append(moved)
        plain = {name: replace(other, problem=moved) for name, other in others.items()}
        runs = {name: simulate(other) for name, other in plain.items()}
        energies = {name: run.energy_j for name, run in runs.items() if _counts(plain[name], run, options, deadline_s)}
        cheapest = min(energies, key=lambda name: energies[name], default="")
        changes.append(
            Change(
                label,
                factor,
                moved.baseline_energy_j,
                there.energy_j,
                there.makespan_s,
                in_time,
                optimum,
                bound,
                _loss(there.energy_j, optimum),
                energies.get(cheapest),
                cheapest,
                deadline_s,
                again is not None,
            )
        )
    best = [_best(change, moved, pool, options) for change, moved in zip(changes, devices, strict=True)]
    known = Bound(problem, options.deadline_s, solution.overhead_bound_j)
    if _rules_stay(formulation(options.formulation)):
        best = list(_bounded(best, devices, known))
    return Sensitivity(tuple(best), None if least is None else least - here)


def _bounded(changes: Sequence[Change], devices: Sequence[Problem], known: Bound) -> Iterator[Change]:
    """The changes with the best bound that is proven for each, by its own search or by those for other devices."""
    bounds = [known]
    for change, moved in zip(changes, devices, strict=True):
        if change.bound_j is not None:
            bounds.append(Bound(moved, change.deadline_s, change.bound_j - moved.baseline_energy_j))
    for change, moved in zip(changes, devices, strict=True):
        most_j = moved.baseline_energy_j + max(bound.there(moved, change.deadline_s) for bound in bounds)
        if change.optimum_j is None or (change.bound_j is not None and change.bound_j >= most_j):
            yield change
        else:
            yield replace(change, bound_j=min(most_j, change.optimum_j))


def _best(change: Change, problem: Problem, pool: Sequence[Plan], options: Options) -> Change:
    """`change` with the best of all plans found, where that is in time and better than the one found for it."""
    optimum = change.optimum_j
    for plan in pool:
        there = replace(plan, problem=problem)
        found = simulate(there)
        if _counts(there, found, options, change.deadline_s) and (optimum is None or found.energy_j < optimum):
            optimum = found.energy_j
    if optimum == change.optimum_j:
        return change
    return replace(change, optimum_j=optimum, loss=_loss(change.energy_j, optimum))


def _in_time(run: Simulation, options: Options, deadline_s: float | None) -> bool:
    taken_s = options.deadline_model.seconds(run)
    return deadline_s is None or taken_s <= deadline_s * (1 + RELATIVE_TOLERANCE)


def _counts(plan: Plan, run: Simulation, options: Options, deadline_s: float | None) -> bool:
    """Tell whether a plan is a candidate on its problem's device: in time, and within what blocks ask."""
    chosen = formulation(options.formulation)
    return _in_time(run, options, deadline_s) and chosen.refusal(chosen.trial(plan, run)) is None


def _rules_stay(chosen: Formulation) -> bool:
    """Tell whether what blocks forbid is the same on all devices, so that a bound may hold on another: bytes are."""
    return all(block.limits is WRITTEN for block in chosen.blocks if block.refuses is not None)


def _loss(energy_j: float, optimum_j: float | None) -> float | None:
    return None if not optimum_j else max(0.0, energy_j / optimum_j - 1.0)


def _retimed(problem: Problem, options: Options, plan: Plan) -> Simulation | None:
    """The plan's decisions on the changed device, with transfers timed for it; None where they come late even so."""
    trial = Incumbent(problem, options)
    return trial.best.simulation if trial.offer(schedule_of(plan)) and trial.best is not None else None


def _changes(problem: Problem) -> Iterator[tuple[str, float]]:
    for parameter in PARAMETERS:
        if problem.paging or parameter == "CPU rate":
            for factor in FACTORS:
                yield parameter, factor


def _optimum(
    problem: Problem, options: Options, pool: list[Plan], known: Simulation | None
) -> tuple[float | None, float | None]:
    """Energy of the best plan found on the changed device, which may be the plan itself, and the bound there.

    The search begins with the plans in `pool`, and what it finds is added there.
    """
    found = solve_whole(problem, options, starts=list(dict.fromkeys(map(schedule_of, pool))))
    energies = [] if known is None else [known.energy_j]
    if found.simulation is not None:
        energies.append(found.simulation.energy_j)
    if found.plan is not None:
        pool.append(found.plan)
    bound = found.overhead_bound_j
    return min(energies, default=None), None if bound is None else problem.baseline_energy_j + bound


def _alternatives(plan: Plan, options: Options) -> Iterator[str]:
    """The plain plans that the plan isn't one of itself, among those that the options allow."""
    found = simulate(plan)
    if options.paging and plan.problem.paging and found.recomputes:
        yield "paging alone"
    if options.remat and found.page_ins:
        yield "recomputing alone"


def _energy(problem: Problem, simulation: Simulation) -> float:
    return problem.baseline_energy_j + simulation.overhead_j


def _deadline_s(options: Options, problem: Problem, moved: Problem) -> float | None:
    if options.deadline_s is None or not problem.baseline_time_s:
        return options.deadline_s
    return options.deadline_s * moved.baseline_time_s / problem.baseline_time_s
