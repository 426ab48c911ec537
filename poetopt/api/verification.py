"""`verify`: a plan file checked again, and its bound proven again, without trusting whoever wrote either."""

from __future__ import annotations

import os

from poetopt.api.plans import check_model, model_place
from poetopt.engine.certificate import Certificate, certify
from poetopt.engine.solution import DeadlineModel, Options
from poetopt.errors import FormulationError, PlanError
from poetopt.formulations.scope import scope_option
from poetopt.plan import codec
from poetopt.plan.simulate import simulate
from poetopt.printable import shown as printable
from poetopt.report.claims import SCOPE, check_claims
from poetopt.report.verification import Verification

CERTIFIED = "retention"
"""The formulation whose relaxation is certified."""


def verify(
    path: str | os.PathLike[str],
    *,
    bound: bool = False,
    time_limit_s: float = 60.0,
    model: str | os.PathLike[str] | None = None,
    compare_model: bool = True,
    allow_symlinks: bool = False,
) -> Verification:
    """Check a plan file: simulate it under its budget and deadline, and hold its layout, report and model against that.

    bound
        Whether to certify a bound as well, in the scope that the report names.
    time_limit_s
        For the bound, in seconds.
    model
        Where the model is now; by default where the plan says, or beside the plan. It is left out where it isn't there.
    compare_model
        Whether the problem in the file is compared with it; reading a large one takes seconds.
    allow_symlinks
        As in `po.load`; a plan can't say it for its model.

    Raises PlanError for a plan that is damaged, breaks a rule or is late, for a report that the plan contradicts, for
    a problem that isn't its model's, and where there is no bound to certify; ModelError for a model that can't be read.
    """
    shown = os.fspath(path)
    loaded = codec.load(shown)
    try:
        simulation = simulate(loaded.plan, ram_bytes=loaded.ram_bytes, deadline_s=loaded.deadline_s)
        check_claims(loaded, simulation)
    except PlanError as error:
        raise PlanError(f"{shown}: {error}") from error
    problem, place, missing = loaded.plan.problem, None, ""
    if not compare_model:
        missing = "it was not asked for"
    elif not problem.model_hash:
        missing = "the file records no hash of it"
    else:
        place = model_place(shown, problem, model)
        missing = "" if place is not None else f"{printable(problem.model_ref or problem.name)} is not there"
    if place is not None:
        check_model(shown, loaded, place, allow_symlinks=allow_symlinks)
    certificate = _certificate(shown, loaded, time_limit_s) if bound else None
    return Verification(loaded, simulation, certificate, place, missing)


def _certificate(shown: str, loaded: codec.PlanFile, time_limit_s: float) -> Certificate:
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
    scope = str(claimed.get("scope") or "full")
    if not SCOPE.fullmatch(scope):
        raise PlanError(f"{shown}: there is no bound to certify in a scope {printable(repr(scope))}")
    scope = scope_option(scope)
    try:
        return certify(loaded.plan.problem, options, "full" if scope == "store-all" else scope)
    except FormulationError as error:
        raise PlanError(f"{shown}: {error}") from error
