"""Backends whose searches call a formulation's separators: SCIP by a constraint handler, Gurobi by callbacks.

They are an experiment (see `benchmarks/solver_callbacks.py`), and stand on names that the sessions of poetopt's own
backends keep to themselves: `_scip`, `_optimize`, `_columns` and `_matrix`. Neither has `Capability.NODES`, so that the
engine grows no tree beside them; neighbourhoods are searched as ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from poetopt.backends.solvers.solver import Capability, Floats, Point
from poetopt.formulations.language import Formulation
from poetopt.formulations.rows import Row

LAST = -2_000_000
"""SCIP's priority of the handler: below integrality's (0) and that of linear constraints (-1,000,000)."""
Arrays = tuple[Row, list[int], list[float]]
"""A row, its columns, its coefficients."""


@dataclass
class Separation:
    """The rows of one model's formulation, whoever searches it.

    integer
        (n,) which columns are integers.
    told
        How many rows came (`cuts`, `lazy`), how many solutions broke a lazy constraint (`refused`), and `nodes`.
    follow
        Told each point of a relaxation, as in our own tree: heuristics.
    judge
        Told each solution that breaks nothing; the rows that leave it out, where its plan has no layout.
    failed
        What a separator raised: solvers print it and go on, so that it is kept until they have stopped.
    """

    chosen: Formulation
    model: Any
    columns: Any
    integer: Any
    told: dict[str, int]
    follow: Callable[[Point], object] = lambda _: None
    judge: Callable[[Point], list[Row]] = lambda _: []
    failed: BaseException | None = None
    _known: set[tuple[float, ...]] = field(default_factory=set)

    def broken(self, values: Floats) -> list[Row]:
        """The lazy constraints that a solution breaks; (n,) values, whole within a tolerance."""
        point = Point(np.where(self.integer, np.rint(values), values), self.columns.of, True)
        lazy = [row for row in self.chosen.separate(self.model, point) if row.core] or self.judge(point)
        self.told["refused"] += bool(lazy)
        return lazy

    def violated(self, values: Floats) -> tuple[list[Row], list[Row]]:
        """The lazy constraints and the cuts that a relaxation's point breaks."""
        point = Point(values, self.columns.of, False)
        self.follow(point)
        rows = self.chosen.separate(self.model, point)
        return [row for row in rows if row.core], [row for row in rows if not row.core]

    def arrays(self, rows: Sequence[Row]) -> list[Arrays]:
        """The rows by column; they are counted."""
        if not rows:
            return []
        for row in rows:
            self.told["lazy" if row.core else "cuts"] += 1
        starts, columns, values = self.columns.compress(rows)
        spans = zip(rows, starts.tolist(), [*starts[1:].tolist(), len(columns)], strict=True)
        return [(row, columns[a:b].tolist(), values[a:b].tolist()) for row, a, b in spans]

    def new(self, rows: Sequence[Row]) -> list[Row]:
        """Those that didn't come before."""
        found = []
        for row in rows:
            key = (row.lower, row.upper, *map(id, row.variables), *row.coefficients)
            if key not in self._known:
                self._known.add(key)
                found.append(row)
        return found


def scip_backend(chosen: Formulation, told: dict[str, int], *, handler: bool = True) -> Any:
    """A backend that searches whole models in SCIP; relaxations and neighbourhoods are HiGHS's, as in backend `scip`.

    told
        See `Separation`.
    handler
        False: without it, so that solutions may break lazy constraints.

    Raises ImportError without pyscipopt.
    """
    from pyscipopt import Conshdlr, quicksum
    from pyscipopt.scip import PY_SCIP_RESULT as SCIP_RESULT

    from poetopt.backends.solvers.highs import HighsSession
    from poetopt.backends.solvers.scip import ScipBackend, ScipSession

    class Handler(Conshdlr):  # type: ignore[misc, unused-ignore]
        def __init__(self, separation: Separation, variables: Sequence[Any]) -> None:
            self.separation, self.variables = separation, variables
            self.pending: list[Row] = []
            """Lazy constraints that heuristics' solutions broke: none may be added where these are checked."""

        def conslock(self, constraint: Any, locktype: Any, nlockspos: int, nlocksneg: int) -> None:
            for variable in self.variables:  # rows to come may bound each in either direction
                self.model.addVarLocksType(variable, locktype, nlockspos + nlocksneg, nlockspos + nlocksneg)

        def conscheck(self, constraints: Any, solution: Any, *rest: Any) -> dict[str, Any]:
            return self._kept(lambda: self._check(solution), SCIP_RESULT.INFEASIBLE)

        def consenfolp(self, *rest: Any) -> dict[str, Any]:
            return self._kept(self._enforce, SCIP_RESULT.INFEASIBLE)

        def consenfops(self, *rest: Any) -> dict[str, Any]:
            return self._kept(self._enforce, SCIP_RESULT.INFEASIBLE)

        def conssepalp(self, *rest: Any) -> dict[str, Any]:
            return self._kept(self._separate, SCIP_RESULT.DIDNOTRUN)

        def _kept(self, work: Callable[[], Any], otherwise: Any) -> dict[str, Any]:
            try:
                if self.separation.failed is None:
                    return {"result": work()}
            except BaseException as error:  # noqa: BLE001 - it is raised again when SCIP has stopped
                self.separation.failed = error
                self.model.interruptSolve()
            return {"result": otherwise}

        def _values(self, solution: Any = None) -> Floats:
            return np.array([self.model.getSolVal(solution, variable) for variable in self.variables])

        def _check(self, solution: Any) -> Any:
            rows = self.separation.broken(self._values(solution))
            self.pending += rows
            return SCIP_RESULT.INFEASIBLE if rows else SCIP_RESULT.FEASIBLE

        def _enforce(self) -> Any:
            rows = self.separation.broken(self._values())
            if not rows:
                return SCIP_RESULT.FEASIBLE
            return SCIP_RESULT.CONSADDED if self._add(rows) else SCIP_RESULT.INFEASIBLE

        def _separate(self) -> Any:
            lazy, cuts = self.separation.violated(self._values())
            added = self._add(lazy)
            if any([self._cut(*cut) for cut in self.separation.arrays(cuts)]):  # noqa: C419 - all are added
                return SCIP_RESULT.CUTOFF
            if cuts:
                return SCIP_RESULT.SEPARATED
            return SCIP_RESULT.CONSADDED if added else SCIP_RESULT.DIDNOTFIND

        def _add(self, rows: Sequence[Row]) -> bool:
            """Add lazy constraints for all nodes; whether any is new."""
            new = self.separation.new([*self.pending, *rows])
            self.pending = []
            for row, columns, coefficients in self.separation.arrays(new):
                body = quicksum(c * self.variables[x] for x, c in zip(columns, coefficients, strict=True))
                self.model.addCons(body <= row.upper if math.isinf(row.lower) else body >= row.lower)
            return bool(new)

        def _cut(self, row: Row, columns: list[int], coefficients: list[float]) -> bool:
            """Add a cut for all nodes; whether it leaves nothing at this one."""
            lower, upper = (None if math.isinf(side) else side for side in (row.lower, row.upper))
            made = self.model.createEmptyRowUnspec(lhs=lower, rhs=upper, local=False)
            self.model.cacheRowExtensions(made)
            for x, c in zip(columns, coefficients, strict=True):
                self.model.addVarToRow(made, self.variables[x], c)
            self.model.flushRowExtensions(made)
            nothing = bool(self.model.addCut(made, forcecut=True))  # of those that it may choose from it takes a sixth
            self.model.releaseRow(made)
            return nothing

    class Session(ScipSession):
        capabilities = ScipSession.capabilities - {Capability.NODES}
        separation: Separation
        scip: Any = None

        def search(self, **asked: Any) -> Any:
            if asked.get("frozen"):
                return HighsSession.search(self, **asked)
            try:
                return super().search(**asked)
            finally:
                told["nodes"] += 0 if self.scip is None else int(self.scip.getNTotalNodes())
                if self.separation.failed is not None:
                    raise self.separation.failed

        def _scip(self, frozen: Any) -> tuple[Any, list[Any]]:
            self.scip, variables = super()._scip(frozen)
            if handler:
                ours = Handler(self.separation, variables)
                self.scip.includeConshdlr(
                    ours, "separators", "rows of blocks", enfopriority=LAST, chckpriority=LAST, sepafreq=1
                )
                self.scip.addPyCons(self.scip.createCons(ours, "separators", propagate=False))
                self.scip.setParam("misc/usesymmetry", 0)  # rows to come may break a symmetry
            return self.scip, variables

    class Callbacks(ScipBackend):
        capabilities = Session.capabilities

        def open(self, model: Any, *, threads: int, scale: float, options: Any = None, log: Any = None) -> Session:
            session = Session(model, scale=scale, options=options or {}, log=log)
            session.separation = _separation(chosen, model, session, told)
            return session

    return Callbacks()


def gurobi_backend(chosen: Formulation, told: dict[str, int]) -> Any:
    """The same with Gurobi. Raises ImportError without gurobipy."""
    import gurobipy as gp
    from gurobipy import GRB

    from poetopt.backends.solvers.gurobi import GurobiBackend, GurobiSession

    class Session(GurobiSession):
        separation: Separation
        whole = True

        def search(self, **asked: Any) -> Any:
            self.whole = not asked.get("frozen")
            try:
                return super().search(**asked)
            finally:
                if self.separation.failed is not None:
                    raise self.separation.failed

        def _optimize(self, model: Any, watch: Any = None, deadline: float | None = None) -> bool:
            if watch is None or not self.whole:
                return super()._optimize(model, watch, deadline)
            model.Params.LazyConstraints = model.Params.PreCrush = 1
            variables, separation = model.getVars(), self.separation

            def add(into: Callable[..., None], rows: Sequence[Row]) -> None:
                for row, columns, coefficients in separation.arrays(rows):
                    body = gp.LinExpr(coefficients, [variables[x] for x in columns])
                    below = math.isinf(row.lower)
                    into(body, GRB.LESS_EQUAL if below else GRB.GREATER_EQUAL, row.upper if below else row.lower)

            def separated(at: Any, where: int) -> None:
                try:
                    if where == GRB.Callback.MIPSOL:
                        add(at.cbLazy, separation.broken(np.array(at.cbGetSolution(variables))))
                    elif where == GRB.Callback.MIPNODE and at.cbGet(GRB.Callback.MIPNODE_STATUS) == GRB.OPTIMAL:
                        lazy, cuts = separation.violated(np.array(at.cbGetNodeRel(variables)))
                        add(at.cbLazy, lazy)
                        add(at.cbCut, cuts)
                except BaseException as error:  # noqa: BLE001 - it is raised again when Gurobi has stopped
                    separation.failed = error
                    at.terminate()
                watch(at, where)

            try:
                return super()._optimize(model, separated, deadline)
            finally:
                told["nodes"] += int(model.NodeCount)

    class Callbacks(GurobiBackend):
        def open(self, model: Any, *, threads: int, scale: float, options: Any = None, log: Any = None) -> Session:
            session = Session(model, gp.Env(params={"OutputFlag": 0}), threads=threads, scale=scale)
            session.separation = _separation(chosen, model, session, told)
            return session

    return Callbacks()


def _separation(chosen: Formulation, model: Any, session: Any, told: dict[str, int]) -> Separation:
    return Separation(chosen, model, session._columns, session._matrix.integer, told)
