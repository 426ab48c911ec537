"""Schedulers that poetopt is compared with, and their declared features.

Every method has the signature `schedule(problem, ram_bytes, settings) -> Plan`. The plan has been simulated, and laid
out within the budget. A method without a plan raises NoScheduleError (the heuristic found none) or InfeasibleError (its
space has none), with the reason.
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
    """Facts that a method takes into account: a row of Table 1 of the paper, and paging.

    Attributes
    ----------
    general_graphs
        Defined for graphs, not only for chains.
    compute_aware, memory_aware, power_aware
        Whether its choices depend on the cost of computing, on sizes in bytes, on joules, as implemented here. The
        final choice of the plan with the least energy doesn't count, because every method has it.
    paging
        Whether it moves tensors to storage.
    proof
        Whether its result has a bound.
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
    """Method that can be compared.

    Attributes
    ----------
    module, function
        Location of its function: a module of `comparison.baselines`, or any module whose name has a dot. It is imported
        at its first use.
    source
        Its authors.
    supports
        Features of a problem that it handles, beyond plain tensors that are computed or in RAM. No method streams
        operands: such operators run without streaming.
    """

    name: str
    about: str
    source: str
    features: Features
    module: str
    function: str = "schedule"
    supports: frozenset[Feature] = frozenset()

    def schedule(self, problem: Problem, ram_bytes: int, settings: Settings | None = None) -> Plan:
        """Return the method's plan.

        Raises
        ------
        NoScheduleError, InfeasibleError
            If the method has none at this budget.
        ProblemError
            If the problem has features that the method doesn't support.
        """
        from poetopt.comparison.baselines.acceptance import DEFAULTS
        from poetopt.graph.problem import PLAINLY, check_supported

        if unable := self.unable(problem):
            raise ProblemError(f"{unable}. Leave out parameters='paged'.")
        check_supported(problem, f"baseline '{self.name}'", self.supports | PLAINLY)
        if self.solve is not None:
            from poetopt.comparison.baselines.poet import plan_in

            return plan_in(self.solve(problem, ram_bytes, settings or DEFAULTS, ()))
        function = cast("Callable[[Problem, int, Settings], Plan]", self._load(self.function))
        return function(problem, ram_bytes, settings or DEFAULTS)

    def unable(self, problem: Problem) -> str | None:
        """Return a message if the problem pages parameters and the method can't, else None."""
        if Feature.STORED in self.supports or Feature.STORED not in problem.features:
            return None
        return f"baseline '{self.name}' can't page parameters, and {problem.features[Feature.STORED]} {Feature.STORED}"

    @property
    def solve(self) -> Solve | None:
        """Function (problem, ram_bytes, settings, starts) -> Solution of a method with a proof; else None."""
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
"""Features of methods that schedule parameters stored outside of RAM."""
_GRAPH = Features(general_graphs=True)
_SIZES = replace(_GRAPH, memory_aware=True)
_ONLINE = replace(_SIZES, compute_aware=True)
_SWAPS = replace(_ONLINE, paging=True)
_CHAIN = Features(compute_aware=True, memory_aware=True, power_aware=True)
"""Chain methods: their recurrences weigh segments in joules, and states in bytes as well as in slots."""
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
    """Return the names of the built-in methods."""
    return tuple(METHODS)


def method(name: str | Baseline) -> Baseline:
    """Return the method with that name; a Baseline is returned unchanged. Raises OptionError with similar names."""
    if isinstance(name, Baseline):
        return name
    if not isinstance(name, str):
        raise OptionError(f"--methods: a method must be a name or a Baseline, not a {type(name).__name__}")
    if name not in METHODS:
        close = near(name, METHODS)
        hint = f"Did you mean {', '.join(close)}?" if close else f"There are {', '.join(METHODS)}."
        raise OptionError(f"--methods: there is no method '{name}'. {hint}")
    return METHODS[name]
