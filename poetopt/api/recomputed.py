"""The problem of a plan file, computed again from its model, its device and its profile, and held against the file."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from poetopt.api.plans import again, beside, model_place
from poetopt.api.training import DEVICE, PROFILE, bytes_alone, parameters_of, stream_of
from poetopt.graph.problem import Problem, Transfers
from poetopt.plan import codec
from poetopt.plan.simulate import RELATIVE_TOLERANCE
from poetopt.report.verification import Taken
from poetopt.util import notes
from poetopt.util.errors import PlanError
from poetopt.util.printable import shown

if TYPE_CHECKING:
    from poetopt.api.training import Training, TrainingFile
    from poetopt.devices import Device
    from poetopt.devices.profile import Profile

MEASURED = "measured"
"""So begins the note of a problem whose costs a profile measured."""

OF_MODEL = "operators, tensors and their bytes, workspaces, alignment"
OF_KERNELS = "reserve for kernels"
OF_DEVICE = "seconds and joules of operators and transfers, storage, RAM and flash of the device, resident region"
OF_NOTES = "notes"
FIELDS = {
    **dict.fromkeys(("time_s", "energy_j", *(entry.name for entry in fields(Transfers))), OF_DEVICE),
    **dict.fromkeys(("device", "paging", "dma", "wake_j", "storage_bytes", "storage_block_bytes"), OF_DEVICE),
    **dict.fromkeys(("device_ram_bytes", "flash_bytes", "stack_bytes", "resident_bytes"), OF_DEVICE),
    "reserve_bytes": OF_KERNELS,
}
"""What the fields of a problem, its operators and its tensors belong to; all others are the model's."""
APART = ("operators", "tensors", "graph", "model_ref", "model_hash", "structure_hash", "recipe", "notes")
"""Fields of a problem that are compared otherwise, or say where it comes from."""


@dataclass(frozen=True)
class Recomputed:
    """A plan file, with the graph of its problem where the model is there.

    model, device
        What the problem was computed from: where the model is, and the device's name or file. None: not there.
    done
        What was computed again, and is the same.
    taken
        What was not.
    weights, structure
        Whether the model has the content, and the structure, that the file records; None where that isn't known.
    """

    file: codec.PlanFile
    model: str | None
    device: str | None
    done: tuple[str, ...]
    taken: tuple[Taken, ...]
    weights: bool | None = None
    structure: bool | None = None


def recomputed(
    plan: str,
    found: codec.PlanFile,
    *,
    model: str | os.PathLike[str] | None = None,
    device: Device | str | os.PathLike[str] | None = None,
    profile: Profile | str | os.PathLike[str] | None = None,
    compare_model: bool = True,
    allow_symlinks: bool = False,
) -> Recomputed:
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
        return Recomputed(found, None, None, (), tuple(Taken(w, missing) for w in (OF_MODEL, OF_KERNELS, OF_DEVICE)))
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
    return Recomputed(whole, place, device_used, done, tuple(taken), made.model_hash == problem.model_hash, same)


def _model(plan: str, problem: Problem, given: str | os.PathLike[str] | None) -> tuple[str | None, str]:
    """Where the model is, and why it isn't there."""
    if not problem.model_hash:
        return None, "the file records no hash of its model"
    missing = f"{shown(problem.model_ref or problem.name)} is not there: say where it is with --model"
    return model_place(plan, problem, given), missing


def _device(plan: str, problem: Problem, given: Device | str | os.PathLike[str] | None) -> Device | None:
    """The device: as given, the file that the plan names, or the catalogue's; None where it isn't there."""
    from poetopt import devices

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
    """Whether its name is its file's, as of networks that an exporter named: it changes where the file is moved."""
    return problem.name == PurePath(problem.model_ref).stem


def _unlike(here: Any, there: Any) -> Iterator[tuple[str, object, object]]:
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
    """What a field was computed from, as the subject of a sentence with its verb."""
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
