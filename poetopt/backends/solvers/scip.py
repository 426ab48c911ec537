"""SCIP, through pyscipopt: the integer search. Relaxations, cuts and multipliers are HiGHS's, which is always there.

It is here for the formulation `poet`, where its search was faster than HiGHS's (docs/decisions, 0708).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyscipopt
from pyscipopt import Eventhdlr
from pyscipopt.scip import PY_SCIP_EVENTTYPE as SCIP_EVENTTYPE

from poetopt.backends.solvers.attend import Attendant
from poetopt.backends.solvers.highs import HighsSession
from poetopt.backends.solvers.session import refuse_reserved, unbounded
from poetopt.backends.solvers.solver import NO_OPTIONS, Capability, Floats, Frozen, Outcome, Point, Search
from poetopt.util.errors import OptionError
from poetopt.util.scratch import scratch_folder
from poetopt.util.suggest import closest

RESERVED = {
    "limits/time": "--time-limit",
    "limits/gap": "--gap",
    "limits/absgap": "--gap",
    "parallel/maxnthreads": "--threads",
    "display/verblevel": "--with log",
}

_attendant = Attendant("scip")


class ScipSession(HighsSession):
    """One Pyomo model, open in HiGHS for its relaxation and in SCIP for the search."""

    capabilities = HighsSession.capabilities - {Capability.THREADS, Capability.WORK}

    def __init__(self, model: Any, *, scale: float, options: Mapping[str, str], log: str | None) -> None:
        super().__init__(model, threads=1, scale=scale, log=log)
        self._scip_options = options

    def search(
        self,
        *,
        time_limit_s: float,
        gap: float,
        start: Sequence[tuple[Any, Floats]] | None,
        on_point: Callable[[Point], None],
        on_bound: Callable[[float], None],
        frozen: Sequence[Frozen] = (),
        cutoff: float | None = None,
        enough: Callable[[], bool] | None = None,
    ) -> Search:
        """Solve to integrality within the relative `gap`; see the contract."""
        trivial = self._nothing_to_search()
        if trivial is not None:
            return trivial
        begin = time.monotonic()
        model, variables = self._scip(frozen)
        if cutoff is not None:
            model.setObjlimit((cutoff - self._matrix.constant) * self._scale)
        if start is not None:
            self._give_scip(model, variables, start)

        def rise(scaled: float) -> None:
            bound = self._objective(scaled)
            if not frozen and not model.isInfinity(abs(scaled)) and bound > self._bound:
                self._bound = bound
                on_bound(bound)

        def improving() -> None:
            best = model.getBestSol()
            on_point(self._point(np.array([model.getSolVal(best, v) for v in variables]), True))

        watch = _Watch(improving, lambda: rise(model.getDualbound()))
        model.includeEventhdlr(watch, "poetopt", "tells solutions and bounds")
        left_s = max(0.1, time_limit_s - (time.monotonic() - begin))
        for key, value in {"limits/time": left_s, "limits/gap": gap, "timing/clocktype": 2}.items():
            model.setParam(key, value)
        interrupted = _attendant.run(model.optimizeNogil, model.interruptSolve, time.monotonic() + left_s + 1.0)
        if self._log is not None:
            _append_statistics(model, self._log)
        if watch.failed is not None:
            raise watch.failed
        status = model.getStatus()
        if status == "inforunbd" and not interrupted:
            return self._undecided(on_point, time_limit_s)
        if status == "unbounded":
            raise unbounded()
        if status == "infeasible" and not interrupted:
            return Search(Outcome.INFEASIBLE, None, math.inf, math.inf)
        rise(model.getDualbound())
        found, objective = None, math.inf
        if model.getNSols():
            best = model.getBestSol()
            found = self._point(np.array([model.getSolVal(best, v) for v in variables]), True)
            objective = self._objective(model.getSolObjVal(best))
            on_point(found)
        if interrupted or (status == "userinterrupt" and time.monotonic() < begin + time_limit_s):
            raise KeyboardInterrupt
        finished = found is not None and status in ("optimal", "gaplimit")
        return Search(Outcome.OPTIMAL if finished else Outcome.STOPPED, found, objective, self._bound)

    def _undecided(self, on_point: Callable[[Point], None], time_limit_s: float) -> Search:
        """Infeasible or unbounded: HiGHS's simplex method says which."""
        return super().search(
            time_limit_s=time_limit_s, gap=0.0, start=None, on_point=on_point, on_bound=lambda _: None
        )

    def _scip(self, frozen: Sequence[Frozen]) -> tuple[Any, list[Any]]:
        """The model as it stands, in SCIP, with its variables by column."""
        whole = self._matrix.extended(self._added)
        lower, upper = self._lower.copy(), self._upper.copy()
        held, values = self._columns.frozen(frozen)
        lower[held] = upper[held] = values
        costs = (whole.costs * self._scale).tolist()
        model: Any = pyscipopt.Model("poetopt")
        model.hideOutput()
        for key, value in self._scip_options.items():
            _set(model, key, value)
        variables = [
            model.addVar(
                vtype="I" if whole_number else "C",
                lb=None if low == -math.inf else low,
                ub=None if high == math.inf else high,
                obj=cost,
            )
            for whole_number, low, high, cost in zip(
                whole.integer.tolist(),
                lower.tolist(),
                upper.tolist(),
                costs,
                strict=True,
            )
        ]
        starts, columns, data = whole.rows.indptr.tolist(), whole.rows.indices.tolist(), whole.rows.data.tolist()
        for x, (low, high) in enumerate(zip(whole.row_lower.tolist(), whole.row_upper.tolist(), strict=True)):
            begin, end = starts[x], starts[x + 1]
            row = pyscipopt.quicksum(data[k] * variables[columns[k]] for k in range(begin, end))
            if low == high:
                model.addCons(row == low)
            elif math.isinf(low):
                model.addCons(row <= high)
            elif math.isinf(high):
                model.addCons(row >= low)
            else:
                model.addCons(low <= (row <= high))
        return model, variables

    def _give_scip(self, model: Any, variables: Sequence[Any], start: Sequence[tuple[Any, Floats]]) -> None:
        values = self._columns.spread(start)
        known = np.flatnonzero(~np.isnan(values))
        given = model.createSol() if len(known) == len(values) else model.createPartialSol()
        for x in known.tolist():
            model.setSolVal(given, variables[x], values[x])
        model.addSol(given, free=True)


class _Watch(Eventhdlr):  # type: ignore[misc, unused-ignore]
    """Tells of better solutions and bounds. What a listener raises is kept, since SCIP would only print it."""

    def __init__(self, improving: Callable[[], None], rising: Callable[[], None]) -> None:
        self._improving, self._rising = improving, rising
        self.failed: BaseException | None = None

    def eventinit(self) -> None:
        for kind in (SCIP_EVENTTYPE.BESTSOLFOUND, SCIP_EVENTTYPE.NODESOLVED):
            self.model.catchEvent(kind, self)

    def eventexit(self) -> None:
        for kind in (SCIP_EVENTTYPE.BESTSOLFOUND, SCIP_EVENTTYPE.NODESOLVED):
            self.model.dropEvent(kind, self)

    def eventexec(self, event: Any) -> None:
        try:
            if event.getType() == SCIP_EVENTTYPE.BESTSOLFOUND:
                self._improving()
            self._rising()
        except Exception as error:  # noqa: BLE001 - it is raised again when SCIP has stopped
            self.failed = error
            self.model.interruptSolve()


def _append_statistics(model: Any, log: str) -> None:
    """SCIP's own account of the search. Its running output can't be had: it would be written without Python's lock."""
    with scratch_folder("scip") as folder:
        path = Path(folder, "statistics.txt")
        model.writeStatistics(str(path))
        with open(log, "a", encoding="utf-8") as file:
            file.write(path.read_text(encoding="utf-8", errors="replace"))


def _set(model: Any, key: str, value: str) -> None:
    """Set a parameter by its text. Raises OptionError where there is none of that name, or it can't have that value."""
    known = model.getParams()
    if key not in known:
        hint = closest(key, known) or "; see the list of SCIP's parameters"
        raise OptionError(f"--with solver-option={key}={value}: SCIP has no such option{hint}")
    try:
        kind = type(known[key])
        model.setParam(key, value.lower() in ("true", "1") if kind is bool else kind(value))
    except (ValueError, TypeError, KeyError, LookupError) as error:
        raise OptionError(f"--with solver-option={key}={value}: not a value of SCIP's {key} ({error})") from error


class ScipBackend:
    """SCIP (Zuse Institute Berlin)."""

    name = "scip"
    capabilities = ScipSession.capabilities

    def open(
        self,
        model: Any,
        *,
        threads: int,
        scale: float,
        options: Mapping[str, str] = NO_OPTIONS,
        log: str | None = None,
    ) -> ScipSession:
        """Compile `model` for HiGHS and SCIP."""
        refuse_reserved("SCIP", options, RESERVED)
        if options:
            probe = pyscipopt.Model()
            for key, value in options.items():
                _set(probe, key, value)
        return ScipSession(model, scale=scale, options=options, log=log)


backend = ScipBackend()
