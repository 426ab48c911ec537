"""The proof of a plan, in plain sentences for people and exactly; and remedies for a solve without a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from poetopt.formulations.goal import ENERGY, TIME
from poetopt.formulations.scope import ALL, proven_words, scope_option
from poetopt.graph.problem import Problem
from poetopt.report.goals import batch_of
from poetopt.search.limits import kind
from poetopt.search.solution import OPTIMAL_GAP, RAM, Objective, Solution, Status
from poetopt.util.units import finite, show_bytes, show_limit, show_seconds, show_share


def objective_document(solution: Solution) -> dict[str, object]:
    """Return the minimised quantity for JSON.

    It has name, unit, value, one pass, what is above one pass, and the bounds on that of all schedules and of the
    scope.
    """
    objective, simulation = solution.objective, solution.simulation
    if objective is None:
        value = None if simulation is None else simulation.overhead_j
        baseline = None if simulation is None else simulation.energy_j - simulation.overhead_j
        objective = Objective(ENERGY.name, "J", baseline or 0.0, value, solution.overhead_bound_j)
    return {
        "name": objective.name,
        "unit": objective.unit,
        "value": None if objective.value is None else objective.baseline + objective.value,
        "baseline": objective.baseline if solution.objective or simulation else None,
        "overhead": objective.value,
        "bound": objective.bound,
        "scope_bound": solution.scope_bound,
    }


def failure_words(problem: Problem, solution: Solution, *, whole: bool = False, steps: int = 1) -> str:
    """Return the reason why a solve has no plan, and remedies: the message of exit codes 3 and 4.

    Parameters
    ----------
    whole
        Whether the budget is of the whole step, so that figures are those of `--total-ram`.
    steps
        Number of steps that `--deadline` is for.
    """
    reason = solution.reason.rstrip(".") or f"no schedule with {solution.options.ram_bytes:,} bytes of RAM"
    paged = problem.parameters == "paged"
    first = (
        f"{problem.called} on {problem.device}: {_with_paged(problem) if paged else ''}{_each(solution, steps)}{reason}"
    )
    remedies = [*solution.why, *_remedies(problem, solution, " ".join([reason, *solution.why]), whole, steps)]
    return " ".join([f"{first}.", *(f"{text[:1].upper()}{text[1:].rstrip('.')}." for text in remedies)])


def _each(solution: Solution, steps: int) -> str:
    """Return the deadline of each step, for a deadline of many."""
    deadline = solution.options.deadline_s
    if deadline is None or steps == 1:
        return ""
    return f"{steps:,} steps in {show_seconds(steps * deadline)} have {show_seconds(deadline)} each: "


def _with_paged(problem: Problem) -> str:
    """Return a clause on a step whose parameters didn't fit beside a schedule."""
    optimizer = problem.recipe.get("optimizer", "none")
    beside = f"{problem.beside_bytes:,} bytes beside the budget"
    return f"with parameters on storage and updated by {optimizer}, {beside}, "


def _remedies(problem: Problem, solution: Solution, said: str, whole: bool, steps: int) -> list[str]:
    """Return the smallest RAM and deadline known to be feasible, or the best bounds on them.

    What the message `said` already is left out.
    """
    option_of_ram, beside = ("--total-ram", problem.beside_bytes) if whole else ("--ram", 0)
    least, bound, deadline = solution.least_ram_bytes, solution.ram_bound_bytes, solution.least_deadline_s
    # with more RAM the parameters may be resident, and nothing is known of such plans
    asking = f"--parameters paged {option_of_ram}" if whole and problem.parameters == "paged" else option_of_ram
    remedies = []
    if solution.interrupted:
        remedies.append("the search for a remedy was interrupted")
    if least is not None and least == bound and f"{bound:,}" in said:
        remedies.append(f"a schedule with just that is known ({asking} {least + beside})")
    elif least is not None and f"{least:,}" not in said:
        remedies.append(f"a schedule is known with {least:,} bytes ({show_bytes(least)}, {asking} {least + beside})")
    if bound is not None and bound != least and "shorter than one pass" not in said and f"{bound:,}" not in said:
        remedies.append(f"no {kind(problem)} has less than {bound:,} bytes")
    if deadline is not None:
        shortest = show_limit(deadline, "s")
        all_steps = f", for {steps:,} steps" if steps > 1 else ""
        option = f"(--deadline {show_limit(steps * deadline, 's').replace(' ', '')}{all_steps})"
        words = (
            "that long is enough" if shortest in said else f"the shortest deadline known to be feasible is {shortest}"
        )
        remedies.append(f"{words} {option}")
    if solution.status is Status.INFEASIBLE and (batch_of(problem) or 1) > 1:
        remedies.append("a smaller --batch may fit: `poetopt fit` shows which batches fit")
    if solution.status is Status.UNKNOWN:
        options = [option_of_ram] if solution.exhausted else ["--time-limit", option_of_ram]
        options += ["a longer --deadline"] if solution.options.deadline_s is not None else []
        remedies.append(
            f"give more {' or '.join([', '.join(options[:-1]), options[-1]] if len(options) > 1 else options)}"
        )
    elif least is None and deadline is None and "--" not in said and not solution.why:
        remedies.append(f"give more {option_of_ram}, a longer --deadline or a smaller --batch")
    return remedies


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The proof of a plan.

    Attributes
    ----------
    scope
        Scope, as results call it.
    gap, scope_gap
        Share of the minimised quantity, above one pass, that any schedule, and any of the scope, could save at most;
        None: unknown.
    outdone
        Whether the plan is better than all schedules of the scope.
    goal
        Name of the minimised quantity.
    asked
        Requested gap, or None if unknown.
    formulation
        Formulation of the scope: `full` is Algorithm 1's own rules in `poet`, and more than those in `retention`.
    paging, remat
        Whether schedules may page, and recompute.
    storage
        Whether the device has a storage.
    """

    scope: str
    gap: float | None
    scope_gap: float | None
    outdone: bool = False
    goal: str = ENERGY.name
    asked: float | None = None
    formulation: str = "retention"
    paging: bool = True
    remat: bool = True
    storage: bool = True

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Claim:
        """Return the proof that the figures of an answer state."""
        return cls(
            scope=str(document.get("scope") or ""),
            gap=finite(document.get("overhead_gap")),
            scope_gap=finite(document.get("scope_gap")),
            outdone=document.get("beyond_scope") is True,
            goal=str((document.get("objective") or {}).get("name", ENERGY.name)),
            asked=finite(document.get("gap_tolerance")),
            formulation=str(document.get("formulation")),
            paging=document.get("paging") is not False,
            remat=document.get("remat") is not False,
            storage=document.get("paging") is not False,
        )

    def plain(self) -> tuple[str, ...]:
        """Return what any schedule could save at most, in a line; and the proof of the scope, if that proves more.

        `no schedule saves more than 1.2 % of the overhead (asked: 0.1 %)`, and `no schedule with ... costs less`.
        """
        if self.gap is None:
            return ("a valid schedule; nothing is proven of better ones",)
        if self.scope == "store-all" and self.gap <= OPTIMAL_GAP:
            return (f"optimal: keeping everything fits, and nothing can {self._less('cost', 'take', 'have')}",)
        if self.gap <= OPTIMAL_GAP:
            return (f"optimal: no schedule{self._asked_for()} {self._less('costs', 'takes', 'has')}",)
        asked = "" if self.asked is None else f" (asked: {show_share(self.asked)})"
        saves = f"no schedule{self._asked_for()} saves more than {show_share(self.gap)} of the {self._above()}{asked}"
        if not self._says_more_of_scope:
            return (saves,)
        scope_gap, kind = self.scope_gap or 0.0, self._kind()
        if self.outdone:
            return saves, f"better than every schedule {kind} can be"
        if scope_gap <= OPTIMAL_GAP:
            return saves, f"no schedule {kind} {self._less('costs', 'takes', 'has')}"
        return saves, f"no schedule {kind} saves more than {show_share(scope_gap)}"

    def headline(self) -> str:
        """Return what is proven of all schedules: `optimal: ...`, `within 1.2 %: ...` or `feasible: ...`."""
        first = self.plain()[0]
        if self.gap is None or self.gap <= OPTIMAL_GAP:
            return first
        if self.gap < 1.0:
            return f"within {show_share(self.gap)}: {first}"
        asked = "" if self.asked is None else f" (asked: {show_share(self.asked)})"
        return f"feasible: other schedules{self._asked_for()} may save up to all of the {self._above()}{asked}"

    def in_table(self, status: str, *, gap: bool = True) -> str:
        """Return a few words: `feasible (20.7 % open), optimal in depth:4`, where more is proven of the scope.

        Parameters
        ----------
        gap
            Whether they have the gap of all schedules.
        """
        if self.gap is None:
            return status
        words = f"{status} ({show_share(self.gap)} open)" if gap and self.gap > OPTIMAL_GAP else status
        if not self._says_more_of_scope:
            return words
        if self.outdone:
            return f"{words}, beats all of {scope_option(self.scope)}"
        open_ = "optimal" if (self.scope_gap or 0.0) <= OPTIMAL_GAP else f"{show_share(self.scope_gap or 0.0)} open"
        return f"{words}, {open_} in {scope_option(self.scope)}"

    @property
    def _says_more_of_scope(self) -> bool:
        """Return whether more is proven of the scope than of all schedules."""
        if self.gap is None or self.scope_gap is None or self.gap <= OPTIMAL_GAP:
            return False
        return self.scope_gap < self.gap * (1 - OPTIMAL_GAP)

    def exact(self) -> str:
        """Return the proof of the scope alone, as the formulation defines it (docs/limits.md)."""
        if self.scope == "store-all":
            return self.plain()[0]
        space = self.space()
        gap = self.scope_gap
        if gap is None:
            return f"no bound on what {space} could save"
        if self.outdone:
            return f"better than all {space.removeprefix('all ')}, by proof"
        if gap <= OPTIMAL_GAP:
            return f"optimal{'' if self.goal == ENERGY.name else f' in {self.goal}'} among {space}"
        if gap >= 1.0:
            return f"a valid schedule; no bound above 0 was found on the {self._above()} among {space}"
        return f"at most {show_share(gap)} of the {self._above()} can be saved among {space}"

    def space(self) -> str:
        """Return the space of schedules, worded to follow "among"."""
        return scope_words(
            self.scope, formulation=self.formulation, paging=self.paging, remat=self.remat, storage=self.storage
        )

    def _asked_for(self) -> str:
        """Return the moves that schedules had to do without, in words."""
        without = [move for move, may in (("recomputing", self.remat), ("paging", self.paging)) if not may]
        return f" without {' and '.join(without)}" if without else ""

    def _above(self) -> str:
        above = {ENERGY.name: "overhead", RAM: RAM}
        return above.get(self.goal, f"{self.goal} above one pass")

    def _less(self, costs: str, takes: str, has: str) -> str:
        if self.goal == ENERGY.name:
            return f"{costs} less"
        return f"{takes} less time" if self.goal == TIME.name else f"{has} less {self.goal}"

    def _kind(self) -> str:
        return kind_searched(self.scope, formulation=self.formulation, paging=self.paging, remat=self.remat)


def kind_searched(scope: str, *, formulation: str = "retention", paging: bool = True, remat: bool = True) -> str:
    """Return the searched schedules, worded to follow "schedule"; the arguments are those of `Claim`."""
    if not remat:
        kind = "with nothing recomputed"
    elif scope == ALL:
        return "whatever" if paging else "with nothing paged"
    elif scope == "full" and formulation.partition("+")[0] == "poet":
        kind = "of the paper's Algorithm 1"
    else:
        kind = f"with {proven_words(scope)}"
        if paging and scope not in ("depth<=0", "store-all"):
            return f"{kind}, nothing paged in between,"
    return kind if paging else f"{kind} and nothing paged"


def scope_words(
    scope: str, *, formulation: str = "retention", paging: bool = True, remat: bool = True, storage: bool = True
) -> str:
    """Return the schedules of a scope, worded to follow "among"; the arguments are those of `Claim`."""
    if not remat:
        return f"all schedules without recomputation{'' if paging else ' and paging'}"
    papers = scope == "full" and formulation.partition("+")[0] == "poet"
    space = "all schedules of the paper's Algorithm 1" if papers else _scope_words(scope)
    if not paging:
        return space + ", without paging"
    # a recompute within a stage finds the tensors that were paged in for the stage in RAM
    between = storage and not papers and scope not in ("depth<=0", "store-all")
    return space + (", with transfers between stages" if between else "")


def _scope_words(scope: str) -> str:
    if scope.startswith("depth<="):
        depth = scope.removeprefix("depth<=")
        if depth == "0":
            return "schedules without recomputation"
        operators = "1 operator" if depth == "1" else f"{depth} operators"
        return f"schedules whose recomputation chains have at most {operators}"
    return {
        "forward": "schedules whose backward stages recompute what their own operator needs, by chains of any length",
        "full": "schedules that recompute any operator in any stage",
        "store-all": "all schedules",
    }.get(scope, f"schedules of scope {scope}")


def proof_words(document: Mapping[str, Any]) -> str:
    """Return the proof of a plan: a line on all schedules, and one on those of the scope."""
    return "there is no schedule" if document["peak_bytes"] is None else "\n".join(Claim.of(document).plain())


def headline(document: Mapping[str, Any]) -> str:
    """Return what is proven of all schedules, in a line."""
    return "there is no schedule" if document["peak_bytes"] is None else Claim.of(document).headline()


def exact_words(document: Mapping[str, Any]) -> str | None:
    """Return the exact proof of the scope, or None without a plan."""
    return None if document["peak_bytes"] is None else Claim.of(document).exact()
