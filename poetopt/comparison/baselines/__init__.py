"""The schedulers that poetopt is compared with, and what each one declares.

Every method has the contract `schedule(problem, ram_bytes, settings) -> Plan`: the plan has been simulated and
laid out within the budget. Where a method has none it raises NoScheduleError (the heuristic found none) or
InfeasibleError (there is none in its space), saying why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, cast

from poetopt.graph.problem import COMPUTES, Feature
from poetopt.util.errors import OptionError, ProblemError
from poetopt.util.text import near

if TYPE_CHECKING:
    from poetopt.comparison.baselines.acceptance import Settings
    from poetopt.graph.problem import Problem
    from poetopt.plan.instructions import Plan
    from poetopt.plan.schedule import Schedule
    from poetopt.search.solution import Solution

    Solve = Callable[[Problem, int, Settings, tuple[Schedule, ...]], Solution]


@dataclass(frozen=True, slots=True)
class Features:
    """The facts that a method takes into account: a row of Table 1 of the paper, and paging.

    general_graphs
        Defined for graphs, not only for chains.
    compute_aware, memory_aware, power_aware
        Whether its choices look at the cost of computing, at sizes in bytes, at joules, as implemented here. Among the
        plans that any method leaves to choose from, the cheapest in joules that fits is its answer: that doesn't count.
    paging
        Whether it moves tensors to storage.
    proof
        Whether its answer comes with a bound.
    remat
        Whether it recomputes.
    """

    general_graphs: bool = False
    compute_aware: bool = False
    memory_aware: bool = False
    power_aware: bool = False
    paging: bool = False
    proof: bool = False
    remat: bool = True


@dataclass(frozen=True, slots=True)
class Baseline:
    """One method.

    module, function
        Where it is, under `comparison.baselines`, or anywhere where the module's name has a dot; imported when it
        is first used.
    source
        Who it is by.
    supports
        What a problem may hold beside plain tensors, computed or in RAM. No method streams operands: their operators
        run plain.
    """

    name: str
    about: str
    source: str
    features: Features
    module: str
    function: str = "schedule"
    supports: frozenset[Feature] = frozenset()

    def schedule(self, problem: Problem, ram_bytes: int, settings: Settings | None = None) -> Plan:
        """The method's plan. Raises NoScheduleError or InfeasibleError where it has none at this budget."""
        from poetopt.comparison.baselines.acceptance import DEFAULTS
        from poetopt.graph.problem import PLAINLY, check_supported

        if unable := self.unable(problem):
            raise ProblemError(f"{unable}; leave out parameters='paged'")
        check_supported(problem, f"baseline '{self.name}'", self.supports | PLAINLY)
        if self.solve is not None:
            from poetopt.comparison.baselines.poet import plan_in

            return plan_in(self.solve(problem, ram_bytes, settings or DEFAULTS, ()))
        function = cast("Callable[[Problem, int, Settings], Plan]", self._load(self.function))
        return function(problem, ram_bytes, settings or DEFAULTS)

    def unable(self, problem: Problem) -> str | None:
        """That the method can't page parameters, in words, where the problem's are paged."""
        if Feature.STORED in self.supports or Feature.STORED not in problem.features:
            return None
        return f"baseline '{self.name}' can't page parameters, and {problem.features[Feature.STORED]} {Feature.STORED}"

    @property
    def solve(self) -> Solve | None:
        """For a method with a proof: (problem, ram_bytes, settings, starts) -> Solution; else None."""
        if not self.features.proof:
            return None
        return cast("Solve", self._load(self.function.replace("schedule", "solve")))

    def _load(self, function: str) -> object:
        module = self.module if "." in self.module else f"poetopt.comparison.baselines.{self.module}"
        return getattr(import_module(module), function)


_CHEN = "Chen et al. 2016"
_CHECKMATE = "Jain et al. 2020"
_POET = "Patil et al. 2022"
_PAGED = frozenset({Feature.STORED, Feature.UPDATED, *COMPUTES})
"""Of methods that schedule parameters with their home on storage."""
_GRAPH = Features(general_graphs=True)
_SIZES = replace(_GRAPH, memory_aware=True)
_ONLINE = replace(_SIZES, compute_aware=True)
_SWAPS = replace(_ONLINE, paging=True)
_CHAIN = Features(compute_aware=True, memory_aware=True, power_aware=True)
"""Their recurrences weigh segments in joules, and states in bytes as well as in slots."""
_OPTIMAL = replace(_ONLINE, power_aware=True, proof=True)
_PAGING = replace(_OPTIMAL, paging=True)

_ALL = (
    Baseline("checkpoint-all", "keep everything", "PyTorch's default", _GRAPH, "nntrainer", "schedule_all"),
    Baseline("chen-sqrtn", "every sqrt(n)-th operator", _CHEN, _GRAPH, "keeping", "schedule_sqrtn"),
    Baseline("chen-greedy", "operators, b bytes apart", _CHEN, _SIZES, "keeping", "schedule_greedy"),
    Baseline("revolve", "binomial checkpointing of a chain", "Griewank & Walther 2000", _CHAIN, "revolve"),
    Baseline(
        "checkmate", "optimal rematerialization, least time", _CHECKMATE, replace(_OPTIMAL, power_aware=False),
        "checkmate", "solve",
    ),
    Baseline("checkmate-lp-rounding", "its relaxation, rounded", _CHECKMATE, _ONLINE, "checkmate", "schedule_lp"),
    Baseline("dtr", "online, by evicted neighbourhood", "Kirisame et al. 2021", _ONLINE, "dtr"),
    Baseline(
        "capuchin", "swap what is hidden, then the cheaper of swap and recompute", "Peng et al. 2020", _SWAPS,
        "capuchin",
    ),
    Baseline(
        "capuchin-paging-first", "page until that is no longer possible, then recompute",
        "Peng et al. 2020, as read by Patil et al. 2022", _SWAPS, "capuchin", "schedule_paging_first",
    ),
    Baseline(
        "nntrainer", "swap everything, back a fixed number of operators ahead", "Moon et al. 2024",
        replace(_GRAPH, paging=True, remat=False), "nntrainer", supports=_PAGED,
    ),
    Baseline(
        "pofo", "rematerialization and offloading of a chain", "Beaumont et al. 2021", replace(_CHAIN, paging=True),
        "pofo",
    ),
    Baseline(
        "poet-paging-only", "optimal paging", _POET, replace(_PAGING, remat=False), "poet", "solve_paging_only", _PAGED,
    ),
    Baseline("poet-remat-only", "optimal rematerialization", _POET, _OPTIMAL, "poet", "solve_remat_only", _PAGED),
    Baseline("poet", "optimal rematerialization and paging", _POET, _PAGING, "poet", "solve", _PAGED),
)  # fmt: skip
METHODS: dict[str, Baseline] = {method.name: method for method in _ALL}
"""All methods by name, in the order of tables."""


def names() -> tuple[str, ...]:
    """The names of all methods of our own."""
    return tuple(METHODS)


def method(name: str | Baseline) -> Baseline:
    """The method of that name; a Baseline is itself. Raises OptionError, naming the closest ones."""
    if isinstance(name, Baseline):
        return name
    if not isinstance(name, str):
        raise OptionError(f"--methods: a method is a name or a Baseline, not a {type(name).__name__}")
    if name not in METHODS:
        close = near(name, METHODS)
        hint = f"did you mean {', '.join(close)}?" if close else f"there are {', '.join(METHODS)}"
        raise OptionError(f"--methods: no method is called '{name}'; {hint}")
    return METHODS[name]
