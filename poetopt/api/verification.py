"""`verify`: a plan file checked again, and its bound proven again, without trusting whoever wrote either.

The problem of a plan file, computed again from its model, its device and its profile, and held against the file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from poetopt import devices
from poetopt.api.plans import again, beside, model_place
from poetopt.api.training import DEVICE, PROFILE, bytes_alone, parameters_of, stream_of
from poetopt.formulations.scope import ALL, scope_option
from poetopt.graph.problem import Problem, Transfers
from poetopt.plan import codec
from poetopt.plan.simulate import RELATIVE_TOLERANCE, simulate
from poetopt.report.verification import (
    CERTIFIED,
    SCOPE,
    SLACK,
    RecomputedProblem,
    Taken,
    Verification,
    compared,
    uncertified,
)
from poetopt.search.diagnosis.certificate import Certificate, certify
from poetopt.search.solution import DeadlineModel, Options
from poetopt.util import notes
from poetopt.util.errors import FormulationError, PlanError, TimeUpError
from poetopt.util.text import shown
from poetopt.util.text import shown as printable
from poetopt.util.units import finite

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from poetopt.api.training import Training, TrainingFile
    from poetopt.devices import Device
    from poetopt.devices.profile import Profile
    from poetopt.graph.problem import Problem

MEASURED = "measured"
"""So begins the note of a problem whose costs a profile measured."""

OF_MODEL = "operators, tensors and their bytes, workspaces, alignment"
OF_KERNELS = "reserve for kernels"
OF_DEVICE = "seconds and joules of operators and transfers, storage, RAM and flash of the device, resident region"
OF_NOTES = "notes"
FIELDS = {
    **dict.fromkeys(("time_s", "energy_j", *(entry.name for entry in fields(Transfers))), OF_DEVICE),
    **dict.fromkeys(("device", "paging", "dma", "wake_j", "storage_bytes", "storage_block_bytes"), OF_DEVICE),
    "storage_erase_bytes": OF_DEVICE,
    **dict.fromkeys(("device_ram_bytes", "flash_bytes", "stack_bytes", "resident_bytes"), OF_DEVICE),
    "reserve_bytes": OF_KERNELS,
}
"""Owners of the fields of a problem, its operators and its tensors; all others are the model's."""
APART = ("operators", "tensors", "graph", "model_ref", "model_hash", "structure_hash", "recipe", "notes")
"""Fields of a problem that are compared otherwise, or say where it comes from."""


def recomputed(
    plan: str,
    found: codec.PlanFile,
    *,
    model: str | os.PathLike[str] | None = None,
    device: Device | str | os.PathLike[str] | None = None,
    profile: Profile | str | os.PathLike[str] | None = None,
    compare_model: bool = True,
    allow_symlinks: bool = False,
) -> RecomputedProblem:
    """Compute the problem in a plan file again, and refuse a file that has another one.

    plan, found
        The file, as messages call it, and what it holds.
    model, device, profile
        Where they are now. By default model and device are where the file says, or beside it; a profile must be given.
    compare_model
        False: the file's problem is taken as it is.
    allow_symlinks
        As in `po.load`.

    Raises PlanError where the file has another problem, ModelError and DeviceError for what can't be read.
    """
    problem = found.plan.problem
    place, missing = _model(plan, problem, model) if compare_model else (None, "no model was asked for")
    if place is None:
        return RecomputedProblem(
            file=found, taken=tuple(Taken(what, missing) for what in (OF_MODEL, OF_KERNELS, OF_DEVICE))
        )
    network = bool(problem.recipe)
    used = _device(plan, problem, device) if network else None
    measured = network and (PROFILE in problem.recipe or any(note.startswith(MEASURED) for note in problem.notes))
    taken: list[Taken] = []
    if measured and profile is None:
        taken = [Taken(what, "a profile measured them: give it with --profile") for what in (OF_DEVICE, OF_KERNELS)]
    elif network and used is None:
        taken = [Taken(OF_DEVICE, f"the device {_named(problem)} is not there: give its file with --device")]
    if network and profile is not None and not measured:
        raise PlanError(f"{plan}: it was made without a profile; leave out --profile")
    unknown = {entry.what for entry in taken}
    nowhere = unknown or used is None
    costed: Device | str = problem.device if not network else bytes_alone(problem.recipe) if nowhere else used  # type: ignore[assignment]
    measures = None if unknown else profile

    def made_with(step: Training | TrainingFile) -> Problem:
        named = (problem.runtime or None) if network else None
        where = parameters_of(problem.recipe)
        streams = stream_of(problem.recipe)
        made = step.cost(costed, profile=measures, runtime=named, parameters=where, stream=streams)
        made = made if problem.closing_ram_bytes is None else made.within(problem.closing_ram_bytes)
        return made.keeping(problem.lasting)

    made = again(plan, problem, place, made_with, allow_symlinks=allow_symlinks)
    if not problem.runtime:  # files of older versions don't say it
        made = replace(made, runtime="", runtime_version="")
    whole = codec.with_problem(found, made, plan)
    for key, where, here, there in _differences(problem, made):
        if FIELDS.get(key, OF_MODEL) not in unknown:
            raise PlanError(
                f"{plan}: {where}{key} = {_word(here)}, and {_sources(key, problem, network, measured)} {_word(there)}"
                ": the file was edited, or another version or device made it; solve it again"
            )
    if not unknown and network and not _same_notes(whole, made):
        taken.append(Taken(OF_NOTES, "this version of poetopt writes other ones"))
    done = tuple(what for what in (OF_MODEL, OF_KERNELS, OF_DEVICE) if what not in unknown)
    device_used = problem.device if OF_DEVICE in done else None
    same = None if not problem.structure_hash else made.structure_hash == problem.structure_hash
    return RecomputedProblem(
        file=whole, model=place, device=device_used, recomputed=done, taken=tuple(taken),
        weights=made.model_hash == problem.model_hash, structure=same,
    )  # fmt: skip


def _model(plan: str, problem: Problem, given: str | os.PathLike[str] | None) -> tuple[str | None, str]:
    """The place of the model, and the reason where it isn't there."""
    if not problem.model_hash:
        return None, "the file records no hash of its model"
    missing = f"{shown(problem.called)} is not there: say where it is with --model"
    return model_place(plan, problem, given), missing


def _device(plan: str, problem: Problem, given: Device | str | os.PathLike[str] | None) -> Device | None:
    """The device: as given, the file that the plan names, or the catalogue's; None where it isn't there."""
    if given is not None:
        return devices.device(given) if isinstance(given, (str, os.PathLike)) else given
    file = problem.recipe.get(DEVICE)
    if isinstance(file, str):
        place = beside(plan, file, DEVICE)
        return devices.device(os.path.abspath(place)) if place is not None and os.path.isfile(place) else None
    return devices.device(problem.device) if problem.device in devices.names() else None


def _named(problem: Problem) -> str:
    file = problem.recipe.get(DEVICE)
    return shown(f"{problem.device} ({file})" if isinstance(file, str) else problem.device)


def _differences(found: Problem, made: Problem) -> Iterator[tuple[str, str, object, object]]:
    """Each field that isn't the same: its name, whose it is, its value in the file, and the one that was computed.

    Operators and tensors are the same in name, number and wiring.
    """
    for kind in ("operators", "tensors"):
        for index, (here, there) in enumerate(zip(getattr(found, kind), getattr(made, kind), strict=True)):
            if here != there:
                for key, mine, theirs in _unlike(here, there):
                    yield key, f"{kind}[{index}] ({shown(here.name)}) has ", mine, theirs
    moved = _named_by_file(found) and _named_by_file(made)
    for key, mine, theirs in _unlike(found, made):
        if not (key == "name" and moved):
            yield key, "it has ", mine, theirs


def _named_by_file(problem: Problem) -> bool:
    """Tell whether its name is its file's, as of networks that an exporter named: it moves with the file."""
    return problem.name == PurePath(problem.model_ref).stem


def _unlike(here: DataclassInstance, there: DataclassInstance) -> Iterator[tuple[str, object, object]]:
    for entry in fields(here):
        if entry.name in APART:
            continue
        mine, theirs = getattr(here, entry.name), getattr(there, entry.name)
        if isinstance(theirs, Transfers) and isinstance(mine, Transfers):
            yield from _unlike(mine, theirs)
            continue
        if isinstance(theirs, float) and isinstance(mine, float):
            same = math.isclose(mine, theirs, rel_tol=RELATIVE_TOLERANCE)
        else:
            same = mine == theirs
        if not same:
            yield entry.name, mine, theirs


def _word(value: object) -> str:
    return shown(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))


def _sources(key: str, problem: Problem, network: bool, measured: bool) -> str:
    """The sources of a field, as the subject of a sentence with its verb."""
    of = FIELDS.get(key, OF_MODEL)
    if not network:
        return "its problem file gives"
    if measured and of is not OF_MODEL:
        return "model, device and profile give"
    return f"its model on {shown(problem.device)} gives" if of is OF_DEVICE else "its model gives"


def _same_notes(file: codec.PlanFile, made: Problem) -> bool:
    of_graph = made.graph.notes if made.graph is not None else ()
    told, important = file.report.get("notes"), file.report.get("important")
    return (
        file.plan.problem.notes == made.notes
        and (told is None or told == [*made.notes, *of_graph])
        and (important is None or important == notes.document(of_graph))
    )


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
        **{**vars(again), "taken": (*again.taken, *taken)},
        simulation=simulation,
        certificate=certificate,
        differs=differs,
        told=told,
        uncertified=uncertified(report, overhead_j, certificate, of_scope, none),
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
