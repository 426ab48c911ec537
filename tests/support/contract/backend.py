"""`check_backend` holds a solver to its contract, `poetopt.backends.solvers.solver`, on problems with known answers."""

from __future__ import annotations

import math
import random
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from poetopt.backends.solvers.solver import Backend, Capability, Frozen, Outcome, Point, Session
from poetopt.backends.solvers.solver import backend as backend_of
from poetopt.formulations.rows import Row
from poetopt.search.diagnosis.certified_nodes import exact_bound
from poetopt.search.diagnosis.whole import solve_whole
from poetopt.search.solution import Options, Status
from poetopt.testing.contract import ContractError, require
from poetopt.testing.problems import tight
from poetopt.util.errors import OptionError, PoetError
from tests.support.contract import milp
from tests.support.contract.nodes import check_nodes
from tests.support.contract.stops import Stops
from tests.support.contract.subject import ENOUGH_S, TOLERANCE, Subject, close

SCALES = (1.0, 250.0)


class Programs(Subject):
    """Relaxations, optima, points and bounds of small programs, compared with what is known of them."""

    def relaxations(self) -> None:
        for scale in SCALES:
            session = self.open(milp.every_kind(), scale)
            found = session.relax(ENOUGH_S)
            self.need(found.outcome is Outcome.OPTIMAL, f"a linear program ended as {found.outcome}, not optimal")
            self.need(
                close(found.objective, 4.5), f"a linear program's optimum is 4.5, not {found.objective} (scale {scale})"
            )
            whole = self.search(session)
            self.need(
                whole.outcome is Outcome.OPTIMAL and close(whole.objective, 4.5),
                f"`search` on a linear program gave {whole.outcome}, {whole.objective}; its optimum is 4.5",
            )
            self.need(close(session.incumbent_bound, 4.5), f"and the bound {session.incumbent_bound}")

    def hopeless(self) -> None:
        for relaxed in (True, False):
            session = self.open(milp.infeasible(relaxed=relaxed))
            found = session.relax(ENOUGH_S)
            wanted = Outcome.INFEASIBLE if relaxed else Outcome.OPTIMAL
            self.need(
                found.outcome is wanted, f"the relaxation of an infeasible model is {found.outcome}, not {wanted}"
            )
            self.need((found.point is None) == relaxed, "a relaxation has a point where, and only where, it is optimal")
            whole = self.search(session)
            self.need(
                whole.outcome is Outcome.INFEASIBLE and whole.point is None and whole.objective == math.inf,
                f"`search` on an infeasible model gave {whole.outcome}, the objective {whole.objective}",
            )
        for ask in ("relax", "search"):
            session = self.open(milp.unbounded())
            try:
                found_all = session.relax(ENOUGH_S) if ask == "relax" else self.search(session)
            except PoetError:
                continue
            raise ContractError(
                f"backend '{self.backend.name}': `{ask}` on an unbounded model gave {found_all.outcome}, not PoetError"
            )

    def program(self) -> None:
        """One covering problem: relaxation, multipliers, optimum, frozen parts, tightening."""
        problem = milp.covering(self.rng)
        best = problem.best()
        assert best is not None
        session = self.open(problem.model, self.rng.choice(SCALES))
        relaxed = session.relax(ENOUGH_S)
        self.need(relaxed.point is not None, "the relaxation of a small problem has no point")
        self.need(relaxed.objective <= best + TOLERANCE, f"the relaxation, {relaxed.objective}, is above {best}")
        self._duals(session, relaxed.objective)
        if self.can(Capability.NODES):
            check_nodes(session, problem, self.rng, self.need)
        self._frozen(session, problem)
        told: list[float] = []

        def tell(point: Point) -> None:
            told.append(self._worth(problem, point))

        found = self.search(session, on_point=tell)
        self.need(
            found.outcome is Outcome.OPTIMAL and close(found.objective, best),
            f"`search` gave {found.outcome} with {found.objective}; trying everything gives {best}",
        )
        self.need(found.point is not None, "`search` is optimal, and has no point")
        assert found.point is not None
        self.need(close(self._worth(problem, found.point), best), "the point isn't worth the objective that is told")
        self.need(close(min(told, default=math.inf), best), f"`on_point` was told {told}, never the best, {best}")
        self.need(not found.point[problem.model.unused].any(), "a variable that nothing mentions has the value 0")
        for bound in (found.bound, session.incumbent_bound):
            self.need(close(bound, best), f"a finished search proves its optimum {best}, and not the bound {bound}")
        self._cutoff(problem.model, best)
        session.tighten(best + 0.5)
        again = self.search(session)
        self.need(close(again.objective, best), f"after `tighten` to a worse value the optimum {best} is gone")

    def _cutoff(self, model: Any, best: float) -> None:
        if not self.can(Capability.CUTOFF):
            return
        found = self.search(self.open(model), cutoff=best + 0.5)
        self.need(close(found.objective, best), f"under a cutoff above the optimum {best} it found {found.objective}")
        found = self.search(self.open(model), cutoff=best - 1e-3)
        nothing = found.outcome is Outcome.INFEASIBLE or (
            found.objective >= best - TOLERANCE and found.bound >= best - 2e-3
        )
        self.need(
            nothing,
            f"under a cutoff below the optimum {best} a search ends infeasible, or with that proven: this one is "
            f"{found.outcome}, {found.objective}, bound {found.bound}",
        )

    def _worth(self, problem: milp.Covering, point: Point) -> float:
        x = point[problem.model.x]
        self.need(bool(np.all(np.abs(x - np.round(x)) < 1e-5)), f"a point of `search` isn't whole: {x}")
        kept = bool(np.all(problem.rows @ np.round(x) >= problem.sides - TOLERANCE))
        self.need(kept, f"a point of `search` breaks a row: {x}")
        return float(problem.costs @ np.round(x)) + problem.constant

    def _duals(self, session: Session, relaxed: float) -> None:
        proven = float(exact_bound(session.dual_proof()))
        self.need(
            relaxed - 1e-4 * max(1.0, abs(relaxed)) <= proven <= relaxed + TOLERANCE * max(1.0, abs(relaxed)),
            f"the multipliers prove {proven}, and the relaxation is {relaxed}",
        )

    def _frozen(self, session: Session, problem: milp.Covering) -> None:
        n = len(problem.costs)
        mask = np.array([self.rng.random() < 0.4 for _ in range(n)])
        values = np.array([float(self.rng.random() < 0.6) for _ in range(n)])
        best = problem.best({x: values[x] for x in np.flatnonzero(mask).tolist()})
        before = session.incumbent_bound
        found = self.search(session, frozen=(Frozen(problem.model.x, mask, values),))
        if best is None:
            self.need(found.outcome is Outcome.INFEASIBLE, f"with frozen parts: {found.outcome}, it is infeasible")
        else:
            self.need(close(found.objective, best), f"with frozen parts: {found.objective}, it is {best}")
            assert found.point is not None
            kept = bool(np.all(np.abs(found.point[problem.model.x] - values)[mask] < 1e-5))
            self.need(kept, "a search with frozen parts moved one of them")
        self.need(session.incumbent_bound == before, "a search with frozen parts changed the session's bound")

    def late_rows(self) -> None:
        problem = milp.covering(self.rng)
        model, n = problem.model, len(problem.costs)
        session = self.open(model)
        first = session.relax(ENOUGH_S)
        variables = list(model.x.values())
        ones = np.ones(n)
        core = Row(variables, ones.tolist(), float(n - 2), math.inf, 1.0, "most", core=True)
        slack = Row(variables, ones.tolist(), 1.0, math.inf, 1.0, "slack")
        idle = Row(variables, ones.tolist(), 0.0, math.inf, 1.0, "idle", core=True)
        session.add([core, slack, idle])
        self.need(len(session.added) == 3, "`added` holds the rows that were added")
        second = session.relax(ENOUGH_S)
        self.need(second.objective >= first.objective - TOLERANCE, "a row was added, and the relaxation fell")
        resting = [row.kind for row in session.binding]
        self.need(not {"slack", "idle"} & set(resting), "`binding` holds a row that is slack")
        moved = second.objective > first.objective + TOLERANCE
        self.need("most" in resting or not moved, "`binding` lacks the row that moved the relaxation")
        self.need(session.purge() == 1, "`purge` drops the rows that are slack and not core: here one")
        self.need(
            [row.kind for row in session.added] == ["most", "idle"], "`purge` dropped a row that is core or tight"
        )
        third = session.relax(ENOUGH_S)
        self.need(close(second.objective, third.objective), "purging a slack row changed the relaxation")
        best = problem.best(extra=(ones, float(n - 2)))
        found = self.search(session)
        self.need(best is not None and close(found.objective, best), f"with a late row: {found.objective}, not {best}")
        other = milp.covering(self.rng).model
        try:
            session.add([Row(list(other.x.values()), ones.tolist(), 1.0, math.inf, 1.0, "foreign")])
        except PoetError:
            return
        raise ContractError(f"backend '{self.backend.name}': a row over another model's variables must raise PoetError")


@dataclass(frozen=True)
class BackendCheck:
    """What `check_backend` did.

    programs, schedules
        Small integer programs compared with trying everything, and scheduling problems with the reference.
    interrupted
        Whether an interrupt was tried; only Python's main thread can.
    """

    name: str
    capabilities: tuple[Capability, ...]
    programs: int
    schedules: int
    interrupted: bool


def check_backend(
    backend: str | Backend, *, problems: int = 20, schedules: int = 3, seed: int = 0, reference: str = "highs"
) -> BackendCheck:
    """Hold a backend against its contract.

    backend
        Its name, or the object.
    problems, seed
        How many random integer programs.
    schedules, reference
        How many random scheduling problems are solved through the engine, on it and on the reference.

    Checked are: relaxations, of every kind of row and variable, at several scales; infeasible and unbounded models;
    optima, points, bounds; rows that come late, and purging; frozen parts and warm starts; the time limit, which leaves
    an incumbent and a bound (a search that goes on for long after it is given up, and goes on in a thread of its own);
    an interrupt (the process sends itself one SIGINT), after which the session goes on;
    multipliers; nodes of a tree; options and the log.

    Raises ContractError for what is broken, BackendUnavailableError where the solver isn't there.
    """
    chosen = backend_of(backend)
    rng = random.Random(seed)
    subject, programs, stops = Subject(chosen, rng), Programs(chosen, rng), Stops(chosen, rng)
    _declarations(subject)
    programs.relaxations()
    programs.hopeless()
    for _ in range(problems):
        programs.program()
    programs.late_rows()
    stops.time_limit()
    interrupted = stops.interrupt()
    _options(subject)
    _schedules(subject, schedules, reference)
    return BackendCheck(chosen.name, tuple(sorted(chosen.capabilities)), problems, schedules, interrupted)


def _declarations(subject: Subject) -> None:
    name, capabilities = subject.backend.name, subject.backend.capabilities
    require(isinstance(name, str) and name, f"the backend {subject.backend!r} has no name")
    known = isinstance(capabilities, frozenset) and all(isinstance(c, Capability) for c in capabilities)
    subject.need(known, f"its capabilities are a frozenset of Capability, not {capabilities!r}")
    opened = subject.open(milp.covering(subject.rng).model).capabilities
    subject.need(opened == capabilities, f"its sessions' capabilities are {set(opened)}, its own {set(capabilities)}")


def _options(subject: Subject) -> None:
    model = milp.covering(subject.rng).model
    unknown = {"no_such_option_of_any_solver": "1"}
    try:
        subject.search(subject.backend.open(model, threads=1, scale=1.0, options=unknown))
    except OptionError:
        pass
    else:
        raise ContractError(f"backend '{subject.backend.name}': an option that it doesn't know must raise OptionError")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "solver.log")
        log.write_text("before\n", encoding="utf-8")
        subject.search(subject.backend.open(model, threads=1, scale=1.0, log=str(log)))
        text = log.read_text(encoding="utf-8", errors="replace")
        subject.need(text.startswith("before\n"), "the log is appended to, not begun anew")
        subject.need(len(text) > len("before\n"), "a search left nothing in the log")


def _schedules(subject: Subject, count: int, reference: str) -> None:
    for number in range(count):
        problem, ram_bytes = tight(subject.rng, forward=4)
        asked = Options(ram_bytes=ram_bytes, scope="full", gap=0.0, time_limit_s=ENOUGH_S, threads=1)
        ours, theirs = (
            solve_whole(problem, replace(asked, backend=b)) for b in (subject.backend, backend_of(reference))
        )
        subject.need(
            ours.status == theirs.status,
            f"scheduling problem {number} is {ours.status}, and {theirs.status} on {reference}",
        )
        if theirs.status is Status.OPTIMAL and ours.simulation is not None and theirs.simulation is not None:
            subject.need(
                close(ours.simulation.overhead_j, theirs.simulation.overhead_j),
                f"scheduling problem {number} costs {ours.simulation.overhead_j} J, and "
                f"{theirs.simulation.overhead_j} J on {reference}",
            )
