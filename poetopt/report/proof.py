"""What is proven of a plan: in a plain sentence for people, and exactly."""

from __future__ import annotations

from dataclasses import dataclass

from poetopt.formulations.goal import ENERGY, TIME
from poetopt.formulations.scope import kind_words
from poetopt.search.solution import OPTIMAL_GAP, RAM, Solution
from poetopt.util.units import show_share


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What is proven of a plan.

    scope
        As results call it.
    gap, scope_gap
        The part of what was minimised that any schedule could save at most, above one pass, and that one of the scope
        could; None: not known.
    outdone
        Whether the plan is better than all that the scope holds.
    goal
        Name of what was minimised.
    asked
        The gap that was asked for, or None where that isn't known.
    formulation
        Whose scope it is: `full` is Algorithm 1's own rules in `poet`, and more than those in `retention`.
    paging, remat
        Whether schedules may page, and recompute.
    storage
        Whether there is a storage to page to.
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
    def of(cls, solution: Solution) -> Claim:
        """What is proven of the plan in a solution."""
        options, objective = solution.options, solution.objective
        return cls(
            scope=solution.scope,
            gap=solution.overhead_gap,
            scope_gap=solution.scope_gap,
            outdone=solution.outdone,
            goal=ENERGY.name if objective is None else objective.name,
            asked=options.gap,
            formulation=options.formulation_name,
            paging=options.paging,
            remat=options.remat,
            storage=solution.plan is None or solution.plan.problem.paging,
        )

    def plain(self) -> tuple[str, ...]:
        """What any schedule could save at most, in a line; and what is proven of the scope, where that is more.

        `no schedule saves more than 1.2 % of the overhead (asked: 0.1 %)`, and `of the kind searched none costs less;
        kind: ...`.
        """
        if self.scope == "store-all":
            return (f"optimal: keeping everything fits, and nothing can {self._less('cost', 'take', 'have')}",)
        if self.gap is None:
            return ("a valid schedule; nothing is proven of better ones",)
        if self.gap <= OPTIMAL_GAP:
            return (f"optimal: no schedule {self._less('costs', 'takes', 'has')}",)
        asked = "" if self.asked is None else f" (asked: {show_share(self.asked)})"
        saves = f"no schedule saves more than {show_share(self.gap)} of the {self._above()}{asked}"
        scope_gap = self.scope_gap
        if scope_gap is None or scope_gap >= self.gap * (1 - OPTIMAL_GAP):
            return (saves,)
        if self.outdone:
            of_kind = "better than every schedule of the kind searched can be"
        elif scope_gap <= OPTIMAL_GAP:
            of_kind = f"of the kind searched none {self._less('costs', 'takes', 'has')}"
        else:
            of_kind = f"of the kind searched none saves more than {show_share(scope_gap)}"
        return saves, f"{of_kind}; kind: {self._kind()}"

    def exact(self) -> str:
        """What is proven of the scope, as the formulation has that space; docs/limits.md says what that leaves out."""
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
        """The space of schedules, as it reads after 'among'."""
        return scope_words(
            self.scope, formulation=self.formulation, paging=self.paging, remat=self.remat, storage=self.storage
        )

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
    """The kind of schedules that was searched, in plain words. The arguments are those of `Claim`."""
    if not remat:
        kind = "nothing recomputed"
    elif scope == "full" and formulation.partition("+")[0] == "poet":
        kind = "all that the paper's Algorithm 1 has"
    else:
        kind = kind_words(scope)
    return kind if paging else f"{kind}, nothing paged"


def scope_words(
    scope: str, *, formulation: str = "retention", paging: bool = True, remat: bool = True, storage: bool = True
) -> str:
    """The space of schedules that `scope` names, as it reads after 'among'. The arguments are those of `Claim`."""
    if not remat:
        return f"all schedules without recomputation{'' if paging else ' and paging'}"
    papers = scope == "full" and formulation.partition("+")[0] == "poet"
    space = "all schedules of the paper's Algorithm 1" if papers else _scope_words(scope)
    if not paging:
        return space + ", without paging"
    # What is recomputed within a stage finds what is paged in for the stage in RAM already.
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
        "needed": "schedules that recompute what a backward stage needs itself, where that is better than paging",
        "forward": "schedules whose backward stages recompute what their own operator needs, by chains of any length",
        "full": "schedules that recompute any operator in any stage",
        "store-all": "all schedules",
    }.get(scope, f"schedules of scope {scope}")


def proof_words(solution: Solution) -> str:
    """What is proven of the plan: first of all schedules, then of those of the scope, in a line each."""
    return "there is no schedule" if solution.simulation is None else "\n".join(Claim.of(solution).plain())


def exact_words(solution: Solution) -> str | None:
    """What is proven of the scope exactly, or None where there is no plan."""
    return None if solution.simulation is None else Claim.of(solution).exact()
