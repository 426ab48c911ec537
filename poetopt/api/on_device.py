"""Plans in C: write one as a folder, or compile and run it on this machine or on an emulated board."""

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
"""Homes of the initial values of parameters and constants."""


@dataclass(frozen=True, slots=True)
class Emitted(Figures):
    """Files that `emit` wrote, and the needs of the program.

    Attributes
    ----------
    folder
        Path of the folder.
    target
        Target that they are for.
    files
        Bytes of each file, by name.
    arena_bytes, resident_bytes
        RAM of a step besides the stack.
    operators
        Number of operators.
    instructions
        Number of instructions of the plan.
    storage_bytes, save_bytes
        Bytes on the storage in all, and bytes that each `po_save` writes; only `po_save` makes a step durable.
    sectors
        Number of erase blocks that it writes, each once; 0 if the device file doesn't define them.
    prediction_bytes
        Bytes of the arena for po_predict; None if the program lacks it.
    not_predicted
        Outputs of the network's file that po_predict lacks, because no operator computes them.
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

    If an error is raised, nothing is written.

    Parameters
    ----------
    plan
        As for `execute`, for the runtime `c`.
    folder
        Folder to write; one that was emitted before is replaced.
    target
        `linux`, `cortex-m0plus`, `cortex-m4` or `cortex-m7`.
    weights
        Home of the initial values of parameters and constants: `flash`, or `storage`.
    prefix
        Prefix of the names of files, functions and macros; each step in an image needs its own.
    form
        `plain`: sources with an example; or a package of `cmake`, `zephyr`, `arduino`, `platformio` or `esp-idf`, with
        constants as arrays.
    selftest
        Whether to add a `po_selftest()`; onnxruntime runs a step for it.

    Raises
    ------
    UnsupportedOpError
        If an operator has no kernel; the message names the node.
    PlanError
        For a plan of another network, runtime or version of the kernels, or if the storage is too small for the copies
        of `po_save`.
    OutputError
        If the folder can't be written.
    """
    c_target = target_of(target)
    if weights not in WEIGHTS:
        raise OptionError(f"--weights {weights}: must be {' or '.join(WEIGHTS)}")
    check_folder_free(folder)
    c_plan = plan_in(read_plan(plan))
    graph = graph_of(c_plan, None)
    prediction = prediction_of(c_plan, graph)
    program = device_program(c_plan, graph, weights_on_storage=weights == "storage", prediction=prediction)
    check_room(program)
    if selftest:
        program = replace(program, golden=golden_of(program))
    erase_blocks = erased_blocks(c_plan.problem)
    predicted = {graph.root(name) for name in (graph.loss, *(row.name for row in program.outputs))}
    files = packaged(named(emitted(program, c_target, form), prefix), form, prefix)
    write_folder(files, folder)
    return Emitted(
        os.fspath(folder),
        c_target.name,
        {name: len(content) for name, content in sorted(files.items())},
        program.arena_bytes,
        program.resident.nbytes,
        len(program.codes),
        program.instructions,
        blocks(program) * program.storage.block_bytes,
        saved_blocks(program) * program.storage.block_bytes,
        -(-saved_blocks(program) // erase_blocks) if erase_blocks > 1 else 0,
        None if prediction is None else arena_bytes(prediction),
        tuple(name for name in graph.outputs if graph.root(name) not in predicted),
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
    """Write the network that a device has learned, from a copy of its storage; return the generation's number.

    Parameters
    ----------
    plan
        Plan that the device's program was emitted from.
    storage
        Content of the storage as a regular file, from its first block on.
    out
        Path of the network's file.
    model, training_form, allow_symlinks
        As for `fit_on`.

    Raises
    ------
    ModelError
        If the storage can't be read or has no complete generation of this plan.
    PlanError
        For a plan of another runtime.
    OutputError
        If `out` can't be written.
    """
    c_plan = plan_in(read_plan(plan))
    graph = graph_of(c_plan)
    prediction, errors = prediction_of(c_plan, graph), list[ModelError]()
    for home in WEIGHTS:
        program = device_program(c_plan, graph, weights_on_storage=home != WEIGHTS[0], prediction=prediction)
        try:
            # A copy of a whole card has more blocks, which aren't the program's.
            content = read_start(storage, blocks(program) * program.storage.block_bytes)
        except OSError as error:
            raise ModelError(f"can't read {os.fspath(storage)}: {error.strerror or error}") from error
        try:
            number, values = newest(program, content)
        except ModelError as error:
            errors.append(error)
            continue
        roots = {name: graph.joint.root(name) for name in graph.learned}
        learned_values = {name: values[root] for name, root in roots.items() if root in values}
        shaped = {name: value.reshape(graph.tensors[name].shape) for name, value in learned_values.items()}
        Exporting(graph, c_plan.problem.recipe, model, training_form, allow_symlinks).write(shaped, out)
        return number
    raise errors[0]


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
    """Emit a plan, compile it, run it, and compare it with the unscheduled step on the same kernels and on onnxruntime.

    The result has the outcome of the checks (`ok`, `message`).

    Parameters
    ----------
    on
        `host`, with the machine's C compiler; or `cortex-m0plus`, `cortex-m4`, `cortex-m7` in an emulator with exactly
        the RAM of the step.
    data, dump, seed, told, progress
        As for `execute`.

    Raises
    ------
    BackendUnavailableError
        If there is no compiler or emulator.
    ExecutionError
        If the step fails; the message has the operator and the address.
    PoetError
        Other errors are those of `emit`.
    """
    loaded = read_plan(plan)
    execution = execute.execute_on(
        plan_in(loaded),
        on,
        ram_bytes=budget_of(loaded),
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
    """Run training steps of a plan in C, by the emitted example, and the same steps on onnxruntime.

    Losses and parameters must be those of the unscheduled steps on the same kernels, bit for bit. They may differ from
    onnxruntime's by at most 5 times the effect of one ulp.

    Parameters
    ----------
    on
        As for `execute_on`.
    lr, momentum, data
        As for `train`; the plan's step must have an optimizer.
    dump
        File for `losses` (`losses.2` if a parameter has that name), and parameters after the last step, as `.npz`.
    seed, told, progress
        As for `execute`.

    Raises
    ------
    OptionError
        For a step without an optimizer.
    PoetError
        Other errors are those of `execute_on`.
    """
    loaded = read_plan(plan)
    training = execute.train_on(
        plan_in(loaded),
        on,
        steps,
        lr,
        momentum=momentum,
        ram_bytes=budget_of(loaded),
        data=data,
        seed=seed,
        predict=prediction_of,
        told=told or telling(progress),
    )
    if dump is not None:
        save_training(training.losses, training.values, dump)
    return training


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
    """Train epochs with a plan in C, as `train_on` does for steps, and write the trained network.

    Parameters
    ----------
    on
        As for `execute_on`.
    data, epochs, lr_schedule, batch_order, seed
        As for `Trainer` and its `fit`: the same rows at the same rates, all of them in memory at once.
    hyperparameters
        Hyperparameters of the plan's optimizer, by name (`lr`, `momentum`, ...); others have their defaults.
    validate
        Rows that the device predicts after the last step, as arrays or their file; the accuracy is the device's.
    out
        Path of the network's file with the parameters from the device, which is written only if all checks passed.
    training_form
        As for `Trainer.export`.
    model, allow_symlinks
        As for `Trainer`.

    Raises
    ------
    ModelError
        For data that don't fit, or if the network's file is missing.
    OutputError
        If `out` can't be written.
    PoetError
        Other errors are those of `train_on`.
    """
    loaded = read_plan(plan)
    c_plan = plan_in(loaded)
    graph = graph_of(c_plan)
    exporting = Exporting(graph, c_plan.problem.recipe, model, training_form, allow_symlinks)
    if out is not None:
        exporting.check(out)
        exporting.write({name: graph.values[name] for name in graph.learned}, None)
    result = in_c.fit_on(
        c_plan,
        on,
        data,
        epochs=epochs,
        hyperparameters=hyperparameters,
        lr_schedule=lr_schedule,
        batch_order=batch_order,
        seed=seed,
        validate=validate,
        predict=prediction_of,
        ram_bytes=budget_of(loaded),
        told=told or telling(progress),
    )
    if out is not None and result.steps.ok:
        exporting.write(in_c.learned(graph, result.steps), out)
    return result
