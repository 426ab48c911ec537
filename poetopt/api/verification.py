"""`verify`: a plan file checked again, and its bound proven again, without trusting whoever wrote either."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from poetopt.api.recomputed import recomputed
from poetopt.backends.solver import names as backends
from poetopt.diagnosis.certificate import Certificate, certify
from poetopt.engine.solution import IMPORTED, DeadlineModel, Options
from poetopt.errors import FormulationError, PlanError, TimeUpError
from poetopt.formulations import names as formulations
from poetopt.formulations.scope import ALL, scope_option
from poetopt.plan import codec
from poetopt.plan.simulate import simulate
from poetopt.printable import shown as printable
from poetopt.report.certainty import SLACK, claimed_bound_j, uncertified
from poetopt.report.claims import SCOPE, TOLD, check_claims
from poetopt.report.told import foreign, missing, unknown
from poetopt.report.verification import Taken, Verification

if TYPE_CHECKING:
    from poetopt.devices import Device
    from poetopt.devices.profile import Profile
    from poetopt.problem import Problem

CERTIFIED = "retention"
"""The formulation whose relaxation is certified."""


def verify(
    path: str | os.PathLike[str],
    *,
    bound: bool = False,
    strict: bool = False,
    time_limit_s: float = 60.0,
    model: str | os.PathLike[str] | None = None,
    device: Device | str | os.PathLike[str] | None = None,
    profile: Profile | str | os.PathLike[str] | None = None,
    compare_model: bool = True,
    allow_symlinks: bool = False,
) -> Verification:
    """Check a plan file: simulate it, compute its problem again, and hold its layout and its report against both.

    Costs, workspaces, reserve, alignment and all else of the problem are computed again from model, device and profile.
    What isn't there is listed in `taken`, what is said to be proven and isn't in `uncertified`; `whole` is for both.

    bound
        Whether to certify the bound as well, in the scope that the report names, by branching as far as it takes.
    strict
        Certify it where anything that is claimed needs that, and leave it uncertified where there are no certificates.
    time_limit_s
        For the bound, in seconds.
    model, device
        Where they are now; by default where the plan says, or beside the plan.
    profile
        The one that it was solved with.
    compare_model
        False: the problem is taken from the file. Reading a large model takes seconds.
    allow_symlinks
        As in `po.load`; a plan can't say it for its model.

    Raises PlanError for a plan that is damaged, breaks a rule or is late, for a report that the plan contradicts, for
    a problem that isn't that of model, device and profile, and where there is no bound to certify; ModelError and
    DeviceError for what can't be read.
    """
    shown = os.fspath(path)
    loaded = codec.load(shown)
    again = recomputed(
        shown,
        loaded,
        model=model,
        device=device,
        profile=profile,
        compare_model=compare_model,
        allow_symlinks=allow_symlinks,
    )
    loaded = again.file
    try:
        simulation = simulate(loaded.plan, ram_bytes=loaded.ram_bytes, deadline_s=loaded.deadline_s)
        check_claims(loaded, simulation)
    except PlanError as error:
        raise PlanError(f"{shown}: {error}") from error
    report, certificate, of_scope, none = loaded.report, None, None, ""
    if bound or (strict and report and uncertified(report, simulation, None)):
        try:
            certificate, of_scope = _certificates(shown, loaded, time_limit_s, simulation.overhead_j)
        except (FormulationError, PlanError, TimeUpError) as error:
            if bound:
                raise
            none = str(error).removeprefix(f"{shown}: ")
    return Verification(
        loaded,
        simulation,
        certificate,
        again.model,
        again.device,
        again.done,
        (*again.taken, *_of_report(loaded)),
        tuple(key for key in TOLD if key in report),
        uncertified(report, simulation, certificate, none, of_scope) if report else (),
        again.weights,
        again.structure,
        of_scope,
    )


def _of_report(file: codec.PlanFile) -> Iterator[Taken]:
    """What of a report neither the plan nor its problem gives again."""
    if not file.report:
        return
    yield from (Taken(printable(key), "not known to this version") for key in unknown(file.report))
    yield from (Taken(key, "the report lacks what this version writes") for key in missing(file.report))
    if foreign(file.report):
        yield Taken("reason", "a text that this version doesn't write")
    formulation, backend = str(file.report.get("formulation", CERTIFIED)).partition("+")[0], file.report.get("backend")
    if formulation not in formulations():
        yield Taken(f"formulation ({printable(formulation)})", "none of that name is installed")
    if backend is not None and backend not in (IMPORTED, *backends()):
        yield Taken(f"backend ({printable(str(backend))})", "none of that name is known")
    if "arena_bytes" in file.report and not file.plan.offsets:
        yield Taken("arena_bytes", "the file has no layout")
    blocks = str(file.report.get("formulation", "")).split("+")[1:]
    asks = file.report.get("asks")
    if blocks or asks:
        words = ", ".join(map(str, asks)) if isinstance(asks, list) and asks else " and ".join(blocks)
        yield Taken(f"what blocks ask for ({printable(words)})", "the file has the words of that alone")


def _certificates(
    shown: str, loaded: codec.PlanFile, time_limit_s: float, overhead_j: float
) -> tuple[Certificate | None, Certificate | None]:
    """Certificates of what is said of all schedules, and of those of the scope where that is more."""
    report, problem = loaded.report, loaded.plan.problem.asked
    said, more = report.get("overhead_bound_j"), report.get("scope_bound_j")
    of_all = None
    if "scope_bound_j" in report and (said or not more):
        enough = claimed_bound_j(report, overhead_j)
        of_all = _certificate(shown, loaded, time_limit_s, problem, enough, ALL)
        if not isinstance(more, int | float) or more <= of_all.bound_j + SLACK * overhead_j:
            return of_all, None
    enough = claimed_bound_j(report, overhead_j, "scope_bound_j" if "scope_bound_j" in report else "overhead_bound_j")
    return of_all, _certificate(shown, loaded, time_limit_s, problem, enough)


def _certificate(
    shown: str, loaded: codec.PlanFile, time_limit_s: float, problem: Problem, claimed_j: float, scope: str = ""
) -> Certificate:
    claimed = loaded.report
    if loaded.ram_bytes is None:
        raise PlanError(f"{shown}: it names no RAM budget, so there is no bound to prove")
    formulation = str(claimed.get("formulation", CERTIFIED)).partition("+")[0]
    deadline_s = claimed.get("deadline_s", loaded.deadline_s)
    options = Options(
        ram_bytes=loaded.ram_bytes,
        deadline_s=float(deadline_s) if isinstance(deadline_s, int | float) else None,
        deadline_model=DeadlineModel(str(claimed.get("deadline_model", DeadlineModel.MAKESPAN))),
        formulation=formulation,
        paging=claimed.get("paging") is not False,
        remat=claimed.get("remat") is not False,
        time_limit_s=time_limit_s,
    )
    said = str(claimed.get("scope") or "full")
    for named in (said, scope):
        if named and named != ALL and not SCOPE.fullmatch(named):
            raise PlanError(f"{shown}: there is no bound to certify in a scope {printable(repr(named))}")
    scope = scope_option(scope or said)
    try:
        return certify(problem, options, "full" if scope == "store-all" else scope, claimed_j=claimed_j)
    except FormulationError as error:
        raise PlanError(f"{shown}: {error}") from error
