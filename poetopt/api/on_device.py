"""A plan in C: write it as a folder, or compile and run it on this machine or on an emulated board."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from poetopt.api.plans import budget_of, plan_in, read_plan
from poetopt.backends.c import execute
from poetopt.backends.c.build import check_folder_free, emitted, named, packaged, write_folder
from poetopt.backends.c.generations import blocks, check_room, newest, saved_blocks
from poetopt.backends.c.golden import golden_of
from poetopt.backends.c.program import device_program
from poetopt.backends.c.storage import erased_blocks
from poetopt.backends.c.targets import target as target_of
from poetopt.backends.onnxruntime.execution import save_arrays
from poetopt.backends.onnxruntime.training import save_training
from poetopt.backends.step.places import graph_of
from poetopt.plan.layout import arena_bytes
from poetopt.search.predicting import prediction_of
from poetopt.training import in_c
from poetopt.training.export import Exporting
from poetopt.util.errors import ModelError, OptionError
from poetopt.util.figures import Figures
from poetopt.util.files import read_start
from poetopt.util.progress import telling

if TYPE_CHECKING:
    import onnx

    from poetopt.backends.c.execution import DeviceExecution, DeviceTraining
    from poetopt.plan.codec import PlanFile
    from poetopt.plan.instructions import Plan
    from poetopt.report.report import Report
    from poetopt.training.source import Data
    from poetopt.util.progress import Told

WEIGHTS = ("flash", "storage")
"""Homes of the first values of parameters and constants."""


@dataclass(frozen=True, slots=True)
class Emitted(Figures):
    """The files that were written.

    folder
        Where.
    target
        For what.
    files
        Their bytes, by name.
    arena_bytes, resident_bytes
        All RAM that a step takes beside the stack.
    operators
        How many there are.
    instructions
        How many the plan has.
    storage_bytes, save_bytes
        What the storage holds in all, and what `po_save` writes of it each time: nothing else makes a step last.
    sectors
        Erase blocks that it writes, each once; 0 where the device file says nothing of them.
    prediction_bytes
        What po_predict takes of the arena; None where the program hasn't it.
    not_predicted
        Outputs of the network's file that po_predict doesn't give, as nothing computes them.
    """

    folder: str
    target: str
    files: Mapping[str, int]
    arena_bytes: int
    resident_bytes: int
    operators: int
    instructions: int
    storage_bytes: int
    save_bytes: int
    sectors: int
    prediction_bytes: int | None
    not_predicted: tuple[str, ...] = ()


def emit(
    plan: Plan | PlanFile | Report | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    target: str = "linux",
    weights: str = "flash",
    prefix: str = "po",
    form: str = "plain",
    selftest: bool = False,
) -> Emitted:
    """Write a plan as C99 without malloc: `po_step()`, `po_predict()`, kernels and tables, an example, and a README.

    plan
        As for `execute`, of the runtime `c`.
    folder
        Where to; a folder that was emitted before is replaced.
    target
        `linux`, `cortex-m0plus`, `cortex-m4` or `cortex-m7`.
    weights
        Where the first values of parameters and constants are: `flash`, or `storage`.
    prefix
        What names of files, functions and macros begin with: another one for each step in an image.
    form
        `plain`: sources with an example; or a package of `cmake`, `zephyr`, `arduino`, `platformio` or `esp-idf`, with
        constants as arrays.
    selftest
        Whether there is a `po_selftest()`, for which onnxruntime takes a step here.

    Raises `UnsupportedOpError` where an operator has no kernel, with its node; `PlanError` for a plan of another
    network, runtime or version of the kernels, or of more storage than there is with the copies of `po_save`;
    `OutputError` where the folder can't be written. Then nothing is written.
    """
    chosen = target_of(target)
    if weights not in WEIGHTS:
        raise OptionError(f"--weights {weights}: must be {' or '.join(WEIGHTS)}")
    check_folder_free(folder)
    found = plan_in(read_plan(plan))
    graph = graph_of(found, None)
    prediction = prediction_of(found, graph)
    program = device_program(found, graph, weights_on_storage=weights == "storage", prediction=prediction)
    check_room(program)
    if selftest:
        program = replace(program, golden=golden_of(program))
    unit = erased_blocks(found.problem)
    known = {graph.root(name) for name in (graph.loss, *(row.name for row in program.outputs))}
    made = packaged(named(emitted(program, chosen, form), prefix), form, prefix)
    write_folder(made, folder)
    return Emitted(
        os.fspath(folder),
        chosen.name,
        {name: len(content) for name, content in sorted(made.items())},
        program.arena_bytes,
        program.resident.nbytes,
        len(program.codes),
        program.instructions,
        blocks(program) * program.storage.block_bytes,
        saved_blocks(program) * program.storage.block_bytes,
        -(-saved_blocks(program) // unit) if unit > 1 else 0,
        None if prediction is None else arena_bytes(prediction),
        tuple(name for name in graph.outputs if graph.root(name) not in known),
    )


def restore(
    plan: Plan | PlanFile | Report | str | os.PathLike[str],
    storage: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    model: str | os.PathLike[str] | onnx.ModelProto | None = None,
    training_form: bool = False,
    allow_symlinks: bool = False,
) -> int:
    """Write the network that a device has learned: of a copy of its storage, the newest whole generation's; its number.

    plan
        The one that the device's program was emitted of.
    storage
        The storage's content as a regular file, from its first block on.
    out
        Where the network's file goes.
    model, training_form, allow_symlinks
        As for `fit_on`.

    Raises ModelError where the storage can't be read or holds no whole generation of this plan's, PlanError for a plan
    of another runtime, OutputError where `out` can't be written.
    """
    found = plan_in(read_plan(plan))
    graph = graph_of(found)
    prediction, wrong = prediction_of(found, graph), list[ModelError]()
    for home in WEIGHTS:
        program = device_program(found, graph, weights_on_storage=home != WEIGHTS[0], prediction=prediction)
        try:
            # what is behind it, as on a whole card, is not the program's
            content = read_start(storage, blocks(program) * program.storage.block_bytes)
        except OSError as error:
            raise ModelError(f"can't read {os.fspath(storage)}: {error.strerror or error}") from error
        try:
            number, values = newest(program, content)
        except ModelError as error:
            wrong.append(error)
            continue
        roots = {name: graph.joint.root(name) for name in graph.learned}
        learned = {name: values[root] for name, root in roots.items() if root in values}
        shaped = {name: value.reshape(graph.tensors[name].shape) for name, value in learned.items()}
        Exporting(graph, found.problem.recipe, model, training_form, allow_symlinks).write(shaped, out)
        return number
    raise wrong[0]


def execute_on(
    plan: Plan | PlanFile | Report | str | os.PathLike[str],
    on: str,
    *,
    data: str | os.PathLike[str] | Mapping[str, object] | None = None,
    dump: str | os.PathLike[str] | None = None,
    seed: int = 0,
    told: Told | None = None,
    progress: bool = False,
) -> DeviceExecution:
    """Emit a plan, compile it, run it, and compare it with the unscheduled step on the same kernels and onnxruntime.

    on
        `host`, by the machine's C compiler; or `cortex-m0plus`, `cortex-m4`, `cortex-m7` in an emulator that has just
        the RAM that the step takes.
    data, dump, seed, told, progress
        As for `execute`.

    What the checks found is in the result (`ok`, `message`). Raises what `emit` does, `BackendUnavailableError` where
    there is no compiler or emulator, `ExecutionError` where the step fails, with the operator and the address.
    """
    found = read_plan(plan)
    execution = execute.execute_on(
        plan_in(found),
        on,
        ram_bytes=budget_of(found),
        data=data,
        seed=seed,
        predict=prediction_of,
        told=told or telling(progress),
    )
    if dump is not None:
        save_arrays({**execution.batch, **execution.results}, dump)
    return execution


def train_on(
    plan: Plan | PlanFile | Report | str | os.PathLike[str],
    on: str,
    steps: int,
    lr: float,
    *,
    momentum: float | None = None,
    data: str | os.PathLike[str] | Mapping[str, object] | None = None,
    dump: str | os.PathLike[str] | None = None,
    seed: int = 0,
    told: Told | None = None,
    progress: bool = False,
) -> DeviceTraining:
    """Take steps with a plan in C, one after another, by the emitted example, and the same on onnxruntime.

    Losses and parameters are those of the unscheduled steps on the same kernels, bit for bit, and no further from
    onnxruntime's than 5 times what one ulp moves them by.

    on
        As for `execute_on`.
    lr, momentum, data
        As for `train`; the plan's step must have an optimizer.
    dump
        Where to write `losses` (`losses.2` where a parameter is called so), and parameters after the last step, as
        `.npz`.
    seed, told, progress
        As for `execute`.

    Raises OptionError for a step without an optimizer; else as `execute_on`.
    """
    found = read_plan(plan)
    ended = execute.train_on(
        plan_in(found),
        on,
        steps,
        lr,
        momentum=momentum,
        ram_bytes=budget_of(found),
        data=data,
        seed=seed,
        predict=prediction_of,
        told=told or telling(progress),
    )
    if dump is not None:
        save_training(ended.losses, ended.values, dump)
    return ended


def fit_on(
    plan: Plan | PlanFile | Report | str | os.PathLike[str],
    on: str,
    data: Data,
    *,
    epochs: int = 1,
    hyperparameters: Mapping[str, float] | None = None,
    lr_schedule: str = "constant",
    batch_order: str = "shuffle",
    seed: int = 0,
    validate: Data | None = None,
    out: str | os.PathLike[str] | None = None,
    model: str | os.PathLike[str] | onnx.ModelProto | None = None,
    training_form: bool = False,
    allow_symlinks: bool = False,
    told: Told | None = None,
    progress: bool = False,
) -> in_c.DeviceFit:
    """Train with a plan in C for epochs, as `train_on` does for steps, and write the trained network.

    on
        As for `execute_on`.
    data, epochs, lr_schedule, batch_order, seed
        As for `Trainer` and its `fit`: the same rows at the same rates, all of them in memory at once.
    hyperparameters
        Of the plan's optimizer, by name (`lr`, `momentum`, ...); what isn't given has its default.
    validate
        Rows that the device predicts after the last step, as arrays or their file: their accuracy is the device's.
    out
        Where the network's file goes with the parameters that came out of the device; only where all checks passed.
    training_form
        As for `Trainer.export`.
    model, allow_symlinks
        As for `Trainer`.

    Raises as `train_on`, ModelError for data that don't fit or a network's file that isn't there, and OutputError where
    `out` can't be written.
    """
    found = read_plan(plan)
    made = plan_in(found)
    graph = graph_of(made)
    exporting = Exporting(graph, made.problem.recipe, model, training_form, allow_symlinks)
    if out is not None:
        exporting.check(out)
        exporting.write({name: graph.values[name] for name in graph.learned}, None)
    ended = in_c.fit_on(
        made,
        on,
        data,
        epochs=epochs,
        hyperparameters=hyperparameters,
        lr_schedule=lr_schedule,
        batch_order=batch_order,
        seed=seed,
        validate=validate,
        predict=prediction_of,
        ram_bytes=budget_of(found),
        told=told or telling(progress),
    )
    if out is not None and ended.steps.ok:
        exporting.write(in_c.learned(graph, ended.steps), out)
    return ended
