"""`check_backend` holds a solver to its contract, `poetopt.backends.solvers.solver`, on problems with known answers."""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from poetopt.backends.solvers.solver import Backend, Capability
from poetopt.backends.solvers.solver import backend as backend_of
from poetopt.search.diagnosis.whole import solve_whole
from poetopt.search.solution import Options, Status
from poetopt.testing import milp
from poetopt.testing.contract import ContractError, require
from poetopt.testing.problems import tight
from poetopt.testing.programs import Programs
from poetopt.testing.stops import Stops
from poetopt.testing.subject import ENOUGH_S, Subject, close
from poetopt.util.errors import OptionError


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
