"""What people ask for, read and checked: the engine's `Options` from texts such as `40%`, `1.5x` and `60s`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from poetopt.graph.problem import check_problem
from poetopt.util.errors import OptionError
from poetopt.util.suggest import near
from poetopt.util.units import Factor, Share, parse_deadline, parse_fraction, parse_ram, parse_time

if TYPE_CHECKING:
    from poetopt.backends.solvers.solver import Backend
    from poetopt.formulations.block import Block
    from poetopt.formulations.language import Formulation
    from poetopt.graph.problem import Problem
    from poetopt.search.solution import Options

MOST_THREADS = 512
"""A solver that is told to use a hundred thousand threads tries, and stops the machine."""


SCOPES = ("auto", "needed", "forward", "full")
"""Beside `depth:D`."""


def asked(
    problem: Problem,
    *,
    ram: str | float | Share | None = None,
    total: int | None = None,
    deadline: str | float | Factor | None = None,
    steps: int = 1,
    counted: bool = False,
    deadline_model: str = "makespan",
    formulation: str | Formulation | ModuleType = "retention",
    blocks: Sequence[str | Block] = (),
    backend: str | Backend = "highs",
    scope: str = "auto",
    paging: bool = True,
    remat: bool = True,
    time_limit: str | float = 60.0,
    gap: str | float = 1e-3,
    threads: int = 0,
    solver_options: Mapping[str, str] | None = None,
    log: str | os.PathLike[str] | None = None,
) -> Options:
    """The engine's `Options` of what `solve` takes: every text is read and checked. Raises OptionError, TypeError.

    counted
        Whether the steps are there for more than what they divide.
    """
    from poetopt.util import optional_deps as lacking

    lacking.check_solving()
    from poetopt.formulations import formulation as formulation_of
    from poetopt.formulations.options import with_options
    from poetopt.search.solution import DeadlineModel, Options

    check_problem(problem)
    if deadline_model not in tuple(DeadlineModel):
        raise OptionError(f"--deadline-model {deadline_model}: must be {' or '.join(DeadlineModel)}")
    if not 0 <= threads <= MOST_THREADS:
        raise OptionError(f"--threads {threads}: must be 1 to {MOST_THREADS}, or 0 to let the solver choose")
    chosen = formulation if isinstance(formulation, str) else formulation_of(formulation)
    if blocks:
        chosen = with_options(formulation_of(chosen), blocks, problem, steps)
    return Options(
        ram_bytes=_ram_bytes(problem, ram, total),
        deadline_s=_deadline_s(
            problem, None if deadline is None else parse_deadline(deadline), steps, bool(blocks) or counted
        ),
        deadline_model=DeadlineModel(deadline_model),
        formulation=chosen,
        backend=backend,
        scope=checked_scope(scope),
        paging=paging,
        remat=remat,
        time_limit_s=parse_time(time_limit, option="--time-limit"),
        gap=parse_fraction(gap, option="--gap"),
        threads=threads,
        solver_options=dict(solver_options or {}),
        log=None if log is None else os.fspath(log),
    )


def store_all_peak_bytes(problem: Problem) -> int:
    """The least budget, in bytes, of ordinary training, which keeps each tensor until its last use.

    A share such as `"40%"` of RAM is of this figure.
    """
    from poetopt.plan.storeall import store_all_bytes

    check_problem(problem)
    return store_all_bytes(problem)


def _ram_bytes(problem: Problem, ram: str | float | Share | None, total: int | None) -> int:
    """The budget in bytes; not positive where the resident region alone fills the device, or the `total`."""
    if total is not None:
        return total - problem.beside_bytes
    if ram is not None:
        found = parse_ram(ram)
        return int(found.fraction * store_all_peak_bytes(problem)) if isinstance(found, Share) else found
    if problem.device_ram_bytes is None:
        raise OptionError(f"{problem.name}: the RAM of {problem.device} is not known here; say how much with --ram")
    return problem.device_ram_bytes - problem.beside_bytes


def _deadline_s(problem: Problem, deadline: float | Factor | None, steps: int, totals: bool = False) -> float | None:
    """Seconds of a step. `totals`: whether the steps divide something else as well."""
    if steps < 1:
        raise OptionError(f"--steps {steps}: must be at least 1")
    if isinstance(deadline, Factor):
        return deadline.times * problem.baseline_time_s
    if deadline is None:
        if steps > 1 and not totals:
            raise OptionError(f"--steps {steps} divides a total deadline: give one with --deadline, as in 3h")
        return None
    return deadline / steps


def checked_scope(scope: str) -> str:
    """A scope as options spell it. Raises OptionError."""
    kind, _, depth = scope.partition(":")
    if scope in SCOPES or (kind == "depth" and re.fullmatch("0*[1-9][0-9]{0,8}", depth)):
        return scope
    digits = re.search(r"\d+", scope)
    meant = [f"depth:{digits[0]}"] if digits else near(scope, SCOPES)
    hint = f"; did you mean {' or '.join(meant)}?" if meant else ""
    raise OptionError(f"--scope {scope}: must be auto, depth:D (D >= 1, as in depth:4), needed, forward or full{hint}")
