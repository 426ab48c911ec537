"""`verify`: check a plan file again, and prove its bound again, without trusting the writer of either.

The problem of a plan file is computed again from its model, its device and its profile, and compared with the file.
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
"""Prefix of the note of a problem whose costs a profile measured."""

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
"""Sources of the fields of a problem, its operators and its tensors; others come from the model."""
APART = ("operators", "tensors", "graph", "model_ref", "model_hash", "structure_hash", "recipe", "notes")
"""Fields of a problem that are compared separately, or describe its origin."""


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
    """Compute the problem in a plan file again, and reject a file with another one.

    Parameters
    ----------
    plan, found
        Name of the file in messages, and its content.
    model, device, profile
        Current paths. By default model and device are those in the file, or files beside it; a profile must be given.
    compare_model
        False: the file's problem is not compared.
    allow_symlinks
        As in `po.load`.

    Raises
    ------
    PlanError
        If the file has another problem.
    ModelError, DeviceError
        For a model or a device that can't be read.
    """
    problem = found.plan.problem
    place, missing = (
        _find_model(plan, problem, model) if compare_model else (None, "the comparison with the model is off")
    )
    if place is None:
        return RecomputedProblem(
            file=found, taken=tuple(Taken(what, missing) for what in (OF_MODEL, OF_KERNELS, OF_DEVICE))
        )
    is_network = bool(problem.recipe)
    found_device = _find_device(plan, problem, device) if is_network else None
    is_measured = is_network and (PROFILE in problem.recipe or any(note.startswith(MEASURED) for note in problem.notes))
    taken: list[Taken] = []
    if is_measured and profile is None:
        taken = [Taken(what, "a profile measured them. Give it with --profile") for what in (OF_DEVICE, OF_KERNELS)]
    elif is_network and found_device is None:
        taken = [Taken(OF_DEVICE, f"the device {_describe_device(problem)} is missing. Give its file with --device")]
    if is_network and profile is not None and not is_measured:
        raise PlanError(f"{plan}: it was made without a profile. Leave out --profile")
    unverified = {entry.what for entry in taken}
    has_any_device = unverified or found_device is None
    costed_device: Device | str = (
        problem.device if not is_network else bytes_alone(problem.recipe) if has_any_device else found_device  # type: ignore[assignment]
    )
    used_profile = None if unverified else profile

    def made_with(step: Training | TrainingFile) -> Problem:
        runtime = (problem.runtime or None) if is_network else None
        place = parameters_of(problem.recipe)
        streams = stream_of(problem.recipe)
        result = step.cost(costed_device, profile=used_profile, runtime=runtime, parameters=place, stream=streams)
        result = result if problem.closing_ram_bytes is None else result.within(problem.closing_ram_bytes)
        return result.keeping(problem.lasting)

    made = again(plan, problem, place, made_with, allow_symlinks=allow_symlinks)
    if not problem.runtime:  # files of older versions lack it
        made = replace(made, runtime="", runtime_version="")
    file = codec.with_problem(found, made, plan)
    for key, where, in_file, computed in _differences(problem, made):
        if FIELDS.get(key, OF_MODEL) not in unverified:
            raise PlanError(
                f"{plan}: {where}{key} = {_format_value(in_file)}, but "
                f"{_describe_source(key, problem, is_network, is_measured)} {_format_value(computed)}. "
                "The file was edited, or another version or device made it. Solve it again"
            )
    if not unverified and is_network and not _has_same_notes(file, made):
        taken.append(Taken(OF_NOTES, "this version of poetopt writes different ones"))
    verified = tuple(what for what in (OF_MODEL, OF_KERNELS, OF_DEVICE) if what not in unverified)
    device_used = problem.device if OF_DEVICE in verified else None
    same_structure = None if not problem.structure_hash else made.structure_hash == problem.structure_hash
    return RecomputedProblem(
        file=file, model=place, device=device_used, recomputed=verified, taken=tuple(taken),
        weights=made.model_hash == problem.model_hash, structure=same_structure,
    )  # fmt: skip


def _find_model(plan: str, problem: Problem, given: str | os.PathLike[str] | None) -> tuple[str | None, str]:
    """Return the path of the model, and the reason if it is missing."""
    if not problem.model_hash:
        return None, "the file has no hash of its model"
    missing = f"{shown(problem.called)} is missing. Give its path with --model"
    return model_place(plan, problem, given), missing


def _find_device(plan: str, problem: Problem, given: Device | str | os.PathLike[str] | None) -> Device | None:
    """Return `given`, the file in the plan, or the catalogue's device; None if it is missing."""
    if given is not None:
        return devices.device(given) if isinstance(given, (str, os.PathLike)) else given
    file = problem.recipe.get(DEVICE)
    if isinstance(file, str):
        place = beside(plan, file, DEVICE)
        return devices.device(os.path.abspath(place)) if place is not None and os.path.isfile(place) else None
    return devices.device(problem.device) if problem.device in devices.names() else None


def _describe_device(problem: Problem) -> str:
    file = problem.recipe.get(DEVICE)
    return shown(f"{problem.device} ({file})" if isinstance(file, str) else problem.device)


def _differences(found: Problem, made: Problem) -> Iterator[tuple[str, str, object, object]]:
    """Yield each field that differs: its name, its owner, its value in the file, and the computed value.

    Operators and tensors agree in name, number and wiring.
    """
    for kind in ("operators", "tensors"):
        for index, (in_file, computed) in enumerate(zip(getattr(found, kind), getattr(made, kind), strict=True)):
            if in_file != computed:
                for key, file_value, computed_value in _differing_fields(in_file, computed):
                    yield key, f"{kind}[{index}] ({shown(in_file.name)}) has ", file_value, computed_value
    has_file_name = _named_by_file(found) and _named_by_file(made)
    for key, file_value, computed_value in _differing_fields(found, made):
        if not (key == "name" and has_file_name):
            yield key, "it has ", file_value, computed_value


def _named_by_file(problem: Problem) -> bool:
    """Return whether its name is that of its file, as for networks with an exporter's name: it moves with the file."""
    return problem.name == PurePath(problem.model_ref).stem


def _differing_fields(in_file: DataclassInstance, computed: DataclassInstance) -> Iterator[tuple[str, object, object]]:
    for entry in fields(in_file):
        if entry.name in APART:
            continue
        file_value, computed_value = getattr(in_file, entry.name), getattr(computed, entry.name)
        if isinstance(computed_value, Transfers) and isinstance(file_value, Transfers):
            yield from _differing_fields(file_value, computed_value)
            continue
        if isinstance(computed_value, float) and isinstance(file_value, float):
            is_equal = math.isclose(file_value, computed_value, rel_tol=RELATIVE_TOLERANCE)
        else:
            is_equal = file_value == computed_value
        if not is_equal:
            yield entry.name, file_value, computed_value


def _format_value(value: object) -> str:
    return shown(f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value))


def _describe_source(key: str, problem: Problem, network: bool, measured: bool) -> str:
    """Return the sources of a field, as the subject of a sentence with its verb."""
    source = FIELDS.get(key, OF_MODEL)
    if not network:
        return "its problem file gives"
    if measured and source is not OF_MODEL:
        return "model, device and profile give"
    return f"its model on {shown(problem.device)} gives" if source is OF_DEVICE else "its model gives"


def _has_same_notes(file: codec.PlanFile, made: Problem) -> bool:
    graph_notes = made.graph.notes if made.graph is not None else ()
    notes_in_report, important = file.report.get("notes"), file.report.get("important")
    return (
        file.plan.problem.notes == made.notes
        and (notes_in_report is None or notes_in_report == [*made.notes, *graph_notes])
        and (important is None or important == notes.document(graph_notes))
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
    """Check a plan file: simulate it, compute its problem again, and compare its layout and its report with both.

    Costs, workspaces, reserve, alignment and all other figures of the problem are computed again from model, device and
    profile, and each figure of the report from the plan. Differing figures are in `differs`. `taken` lists parts that
    couldn't be recomputed, `uncertified` claims of proofs without a certificate. `whole` is True if there are none of
    these.

    Parameters
    ----------
    bound
        Whether to certify the bound too, in the scope that the report names, by branching as far as needed. A report
        that differs isn't certified.
    strict
        Whether to certify the bound if a claim needs it, and to leave it uncertified if there are no certificates.
    time_limit_s
        Seconds for the bound.
    model, device
        Current paths; by default those in the plan, or files beside the plan.
    profile
        Profile that it was solved with.
    compare_model
        False: the problem is taken from the file. Reading a large model takes seconds.
    allow_symlinks
        As in `po.load`; a plan can't allow it for its model.

    Raises
    ------
    PlanError
        For a plan that is damaged, invalid or late, for a problem that isn't that of model, device and profile, and if
        there is no bound to certify.
    ModelError, DeviceError
        For a model or a device that can't be read.
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
    """Return certificates of the claims for all schedules, and for those of the scope if that claims more."""
    report, problem, slack_j = loaded.report, loaded.plan.problem.asked, SLACK * overhead_j
    bound_j_of_all, bound_j_of_scope = finite(report.get("overhead_bound_j")), finite(report.get("scope_bound_j"))

    def certified(bound_j: float | None, scope: str = "") -> Certificate:
        sufficient_j = (overhead_j if bound_j is None else bound_j) - slack_j / 2
        return _certificate(shown, loaded, time_limit_s, problem, sufficient_j, scope)

    if "scope_bound_j" not in report:  # older versions report the bound of the scope
        return None, certified(bound_j_of_all)
    all_certificate = certified(bound_j_of_all, ALL) if bound_j_of_all or not bound_j_of_scope else None
    if all_certificate is not None and (
        bound_j_of_scope is None or bound_j_of_scope <= all_certificate.bound_j + slack_j
    ):
        return all_certificate, None
    return all_certificate, certified(bound_j_of_scope)


def _certificate(
    shown: str, loaded: codec.PlanFile, time_limit_s: float, problem: Problem, claimed_j: float, scope: str = ""
) -> Certificate:
    claimed = loaded.report
    if loaded.ram_bytes is None:
        raise PlanError(f"{shown}: it has no RAM budget, so there is no bound to prove")
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
    report_scope = str(claimed.get("scope") or "full")
    for name in (report_scope, scope):
        if name and name != ALL and not SCOPE.fullmatch(name):
            raise PlanError(f"{shown}: there is no bound to certify in a scope {printable(repr(name))}")
    scope = scope_option(scope or report_scope)
    try:
        return certify(problem, options, "full" if scope == "store-all" else scope, claimed_j=claimed_j)
    except FormulationError as error:
        raise PlanError(f"{shown}: {error}") from error
