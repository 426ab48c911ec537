"""`verify`: a plan file checked again, and its bound proven again, without trusting whoever wrote either."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from poetopt.api.recomputed import recomputed
from poetopt.formulations.scope import ALL, scope_option
from poetopt.plan import codec
from poetopt.plan.simulate import simulate
from poetopt.report.verification import CERTIFIED, SCOPE, SLACK, Verification, compared, uncertified
from poetopt.search.diagnosis.certificate import Certificate, certify
from poetopt.search.solution import DeadlineModel, Options
from poetopt.util.errors import FormulationError, PlanError, TimeUpError
from poetopt.util.printable import shown as printable
from poetopt.util.units import finite

if TYPE_CHECKING:
    from poetopt.devices import Device
    from poetopt.devices.profile import Profile
    from poetopt.graph.problem import Problem


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

    Costs, workspaces, reserve, alignment and all else of the problem are computed again from model, device and profile,
    and each figure of the report from the plan: those that aren't the file's are in `differs`. What isn't there is
    listed in `taken`, what is said to be proven and isn't in `uncertified`; `whole` is that there is none of these.

    bound
        Whether to certify the bound as well, in the scope that the report names, by branching as far as it takes.
        A report that differs isn't worth it.
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

    Raises PlanError for a plan that is damaged, breaks a rule or is late, for a problem that isn't that of model,
    device and profile, and where there is no bound to certify; ModelError and DeviceError for what can't be read.
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
    except PlanError as error:
        raise PlanError(f"{shown}: {error}") from error
    report, certificate, of_scope, none = loaded.report, None, None, ""
    differs, taken, told = compared(loaded, simulation)
    overhead_j = simulation.overhead_j
    if not differs and (bound or (strict and uncertified(report, overhead_j, None))):
        try:
            certificate, of_scope = _certificates(shown, loaded, time_limit_s, overhead_j)
        except (FormulationError, PlanError, TimeUpError) as error:
            if bound:
                raise
            none = str(error).removeprefix(f"{shown}: ")
    return Verification(
        file=loaded,
        simulation=simulation,
        certificate=certificate,
        model=again.model,
        device=again.device,
        recomputed=again.done,
        taken=(*again.taken, *taken),
        differs=differs,
        told=told,
        uncertified=uncertified(report, overhead_j, certificate, of_scope, none),
        weights=again.weights,
        structure=again.structure,
        of_scope=of_scope,
    )


def _certificates(
    shown: str, loaded: codec.PlanFile, time_limit_s: float, overhead_j: float
) -> tuple[Certificate | None, Certificate | None]:
    """Certificates of what is said of all schedules, and of those of the scope where that is more."""
    report, problem, slack_j = loaded.report, loaded.plan.problem.asked, SLACK * overhead_j
    said, more = finite(report.get("overhead_bound_j")), finite(report.get("scope_bound_j"))

    def certified(bound_j: float | None, scope: str = "") -> Certificate:
        enough = (overhead_j if bound_j is None else bound_j) - slack_j / 2
        return _certificate(shown, loaded, time_limit_s, problem, enough, scope)

    if "scope_bound_j" not in report:  # of an older version, which knew that of the scope
        return None, certified(said)
    of_all = certified(said, ALL) if said or not more else None
    if of_all is not None and (more is None or more <= of_all.bound_j + slack_j):
        return of_all, None
    return of_all, certified(more)


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
