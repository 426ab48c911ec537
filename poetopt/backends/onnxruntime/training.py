"""Training for many steps with a schedule, compared with ordinary training on request.

A step with an optimizer updates the parameters itself. After a step that ends with gradients, the update happens in
place in the resident region. Ordinary training updates them alike, so that a single wrong bit in any gradient shows in
every later value.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.backends.onnxruntime.batch import Batch, batch_of, batches_of
from poetopt.backends.onnxruntime.execution import Checks, save_arrays
from poetopt.backends.onnxruntime.measure import Stopwatch, memory_beside
from poetopt.backends.onnxruntime.prepared import Mapped, Prepared
from poetopt.backends.onnxruntime.reference import Verdict, Witness, digests, verify
from poetopt.backends.onnxruntime.stepping import STEP, ScheduledStep, hyperparameters_of
from poetopt.backends.step.memory import descend
from poetopt.backends.step.places import graph_of
from poetopt.devices.meters import Meter, Metered, metering
from poetopt.graph import TrainingGraph
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, taken_bytes
from poetopt.util import process
from poetopt.util.errors import OptionError
from poetopt.util.files import scratch_folder
from poetopt.util.process import peak_bytes, resident_bytes
from poetopt.util.progress import Told, paced, silent

if TYPE_CHECKING:
    from poetopt.graph import Array


@dataclass(frozen=True, kw_only=True)
class TrainingRun(Checks):
    """Result of a training with a schedule.

    Attributes
    ----------
    steps, lr, momentum
        As requested.
    optimizer, hyperparameters
        Of the step, where it updates the parameters itself; `none` otherwise.
    losses
        Loss of each step.
    checked, reference_losses
        Number of steps compared with ordinary training, and their losses there.
    bit_identical
        Whether the loss of each of them, and every parameter, statistic and state after it, is bit for bit that of
        ordinary training; None where none was compared.
    first_difference
        First step (from 1) that differs, or 0.
    different
        Names that differ there: `loss`, and values that go on to the next step.
    budget_bytes, arena_bytes, kernel_workspace_bytes, measured_peak_bytes, high_water_bytes
        As in `Execution`. Figures that need a separate measurement are None where no step was compared.
    total_ram_bytes
        All the RAM of the plan: the schedule with the reserve of kernels, and resident tensors.
    process_base_bytes, process_peak_bytes
        Resident memory of this process before the step was prepared (the interpreter and onnxruntime, where it does
        nothing else), and its peak up to the last step; None where the system doesn't report it.
    optimizer_bytes
        Bytes of the optimizer's states.
    step_s, reference_step_s
        Median seconds of a step with the schedule, and in ordinary training, node by node in memory of the runtime's;
        None where no step was compared. An update after a step that ends with gradients is not included.
    waited_share
        As in `Execution`.
    bytes_paged, bytes_streamed
        In one step, as in `Execution`.
    energy
        Measured and planned joules, where a meter was given.
    names
        Names of values that change from step to step: parameters, statistics, optimizer states.
    values
        Those values after the last step, by name; empty for a prepared step, whose process must hold nothing twice.
    """

    steps: int
    lr: float
    momentum: float
    optimizer: str
    hyperparameters: Mapping[str, float]
    losses: tuple[float, ...]
    reference_losses: tuple[float, ...]
    checked: int
    bit_identical: bool | None
    first_difference: int
    different: tuple[str, ...]
    budget_bytes: int
    arena_bytes: int
    kernel_workspace_bytes: int | None
    measured_peak_bytes: int | None
    high_water_bytes: int | None
    total_ram_bytes: int
    process_base_bytes: int | None
    process_peak_bytes: int | None
    optimizer_bytes: int
    step_s: float
    reference_step_s: float | None
    waited_share: float
    bytes_paged: int
    bytes_streamed: int
    energy: Metered | None
    names: tuple[str, ...] = field(repr=False)
    values: Mapping[str, Array] = field(repr=False, compare=False)
    omitted = ("names", "values")
    derived = ("diverged_step", "last_finite_loss")

    @property
    def losses_name(self) -> str:
        """Name of the losses in a file with the values."""
        return losses_beside(self.names)

    @property
    def message(self) -> str:
        """Failure in one sentence; empty where nothing failed."""
        if self.bit_identical is False:
            shown = ", ".join(map(repr, self.different[:5])) + (", ..." if len(self.different) > 5 else "")
            return (
                f"training with the schedule and without it differ in step {self.first_difference} ({shown}); "
                "please report it with the plan file"
            )
        if not self.within_budget:
            return (
                f"training took {self.measured_peak_bytes:,} B by measurement, without the resident region, more than "
                f"the budget of {self.budget_bytes:,} B; solve with a larger --ram"
            )
        return ""

    @property
    def diverged_step(self) -> int:
        """First step (from 1) whose loss is no finite number, or 0."""
        return next((step for step, loss in enumerate(self.losses, 1) if not math.isfinite(loss)), 0)

    @property
    def last_finite_loss(self) -> float | None:
        """Loss before that step, or the last of all; None where the first is none already."""
        finite_losses = self.losses[: self.diverged_step - 1] if self.diverged_step else self.losses
        return finite_losses[-1] if finite_losses else None


def train(
    plan: Plan | Prepared,
    steps: int,
    lr: float | None,
    *,
    momentum: float | None = None,
    graph: TrainingGraph | None = None,
    ram_bytes: int | None = None,
    data: Mapping[str, object] | str | os.PathLike[str] | None = None,
    dump: str | os.PathLike[str] | None = None,
    seed: int = 0,
    workdir: str | os.PathLike[str] | None = None,
    check: int | None = None,
    meter: Meter | None = None,
    after_first: Callable[[ScheduledStep], object] | None = None,
    told: Told = silent,
) -> TrainingRun:
    """Take `steps` steps of gradient descent with `plan`; compare them with ordinary training on request.

    Parameters
    ----------
    plan
        Plan with offsets, of a problem that was made from a training graph; or a prepared step.
    lr, momentum
        Of the step's own optimizer, by default with its own momentum. A step that ends with gradients uses plain
        descent, p = p - lr g. Without `lr`, the optimizer keeps its own, and gradients aren't applied.
    data
        Arrays by input name, or an `.npz` file of them: one batch for all steps, or longer along the first axis, in
        batches (see `Batches`). By default one random batch, drawn with `seed`.
    dump
        Path for losses and values (see `save_training`).
    check
        Compare every `check`-th step, from the first on, with ordinary training, bit by bit. This happens after the
        training; for a prepared step, in another process. It measures the memory of kernels outside the arena, too.
    meter
        Meter of the steps' energy, which includes checks between them.
    after_first
        Called with the step after the first one.
    graph, ram_bytes, workdir, told
        As for `execute`.

    Notes
    -----
    Random nodes go on drawing from step to step.

    Raises
    ------
    OptionError
        A number is out of range.
    PlanError
        The plan can't be executed.
    ModelError
        The data don't fit the network's inputs.
    ExecutionError
        A kernel or the storage fails.
    """
    prepared = plan if isinstance(plan, Prepared) else Prepared.of(plan, graph_of(plan, graph))
    if steps < 1:
        raise OptionError(f"--steps {steps}: must be at least 1")
    if check is not None and check < 1:
        raise OptionError(f"--check {check}: must be at least 1")
    hyperparameters = {} if lr is None else hyperparameters_of(prepared.graph, lr, momentum)
    batches = _batches(prepared, data=data, seed=seed)
    arena = arena_bytes(prepared.plan)
    base_bytes = resident_bytes()
    times: list[float] = []
    losses: list[float] = []
    witnesses: list[Witness] = []
    pace = paced(told)
    with ExitStack() as stack:
        clock = stack.enter_context(Stopwatch())
        step = stack.enter_context(ScheduledStep(prepared, ram_bytes=ram_bytes, workdir=workdir, told=told))
        optimizer_values = {
            name: value for name, value in hyperparameters.items() if name in prepared.graph.hyperparameters
        }
        values, simulation = step.values(), step.simulation
        folder = Path(stack.enter_context(scratch_folder("check"))) if check is not None and check > 1 else None
        metered = stack.enter_context(ExitStack())
        metered.enter_context(metering(meter))
        for number in range(steps):
            batch = batches(number)
            checked = check is not None and number % check == 0
            before = None
            if checked and number and folder is not None:
                before = Mapped.write(folder / f"{number}.bin", values)
            loss, seconds = clock.call(partial(step.run, batch, optimizer_values))
            times.append(seconds)
            losses.append(loss)
            if after_first is not None and not number:
                after_first(step)
            if lr is not None:
                descend(step.parameters, step.gradients, lr)
            if checked:
                witnesses.append(Witness(number, loss, digests(values), before))
            pace(f"step {number + 1:,} of {steps:,}, loss {loss:.6g}")
        metered.close()
        process_peak = peak_bytes()
        if dump is not None:
            save_training(losses, step.values(), dump)
        names = step.names
        final_values = (
            {} if prepared.folder is not None else {name: array.copy() for name, array in step.values().items()}
        )
        used_hyperparameters = step.hyperparameters
        memory: Mapping[str, Any] = dict.fromkeys(("kernel_workspace_bytes", "measured_peak_bytes", "high_water_bytes"))
        if check is not None:
            told("measuring the memory of kernels")
            reload = partial(step.program.load, step.program.carried.take(batches(0)), anew=False)
            memory = memory_beside(step.program.acts, reload, arena, prepared.plan.problem.reserve_bytes)
        step.close()
        verdict = Verdict()
        if witnesses:
            told("running ordinary training for comparison")
            make_batches = partial(_batches, data=data, seed=seed)
            if prepared.folder is None:
                verdict = verify(prepared, make_batches, hyperparameters, witnesses, told)
            else:
                verify_arguments = (prepared.folder, make_batches, hyperparameters, witnesses)
                verdict = process.call("ordinary training", verify, *verify_arguments, told=told)
    budget = taken_bytes(prepared.plan, simulation.peak_bytes)
    states = sum(prepared.graph.joint.tensors[name].nbytes for name in prepared.graph.optimizer_states)
    return TrainingRun(
        steps=steps,
        lr=lr or 0.0,
        momentum=used_hyperparameters.get("momentum", 0.0),
        optimizer=prepared.graph.optimizer,
        hyperparameters={name: value for name, value in used_hyperparameters.items() if name != STEP},
        losses=tuple(losses),
        **vars(verdict),
        **memory,
        checked=len(witnesses),
        budget_bytes=budget if ram_bytes is None else ram_bytes,
        arena_bytes=arena,
        total_ram_bytes=prepared.plan.problem.beside_bytes + budget,
        process_base_bytes=base_bytes,
        process_peak_bytes=process_peak,
        optimizer_bytes=states,
        step_s=median(times),
        waited_share=clock.share,
        bytes_paged=simulation.bytes_paged,
        bytes_streamed=simulation.bytes_streamed,
        energy=None if meter is None else Metered.of(meter, steps, simulation.energy_j),
        names=names,
        values=final_values,
    )


@dataclass(frozen=True)
class Alone:
    """Result of a few steps of a plan without any comparison.

    Attributes
    ----------
    figures
        Figures by their keys in JSON: `loss` of the first step; `alone_step_s`, median seconds of a step, from a batch
        to its loss; the others as in `TrainingRun`.
    digests
        Digests of the first step's results, by the names of `Execution.results`.
    """

    figures: Mapping[str, Any]
    digests: Mapping[str, bytes]


def run_alone(prepared: Prepared, *, workdir: str | os.PathLike[str] | None = None, told: Told = silent) -> Alone:
    """Take a few steps on the prepared batch. Raise as `execute` does."""
    first_digests: dict[str, bytes] = {}
    training = train(
        prepared,
        3,
        None,
        ram_bytes=prepared.ram_bytes,
        data=batch_of(prepared.graph.whole, prepared.fed),
        workdir=workdir,
        after_first=lambda step: first_digests.update(step.digests()),
        told=told,
    )
    figures = {
        "loss": None if prepared.graph.forward_only else training.losses[0],
        "arena_bytes": training.arena_bytes,
        "bytes_paged": training.bytes_paged,
        "bytes_streamed": training.bytes_streamed,
        "alone_step_s": training.step_s,
        "total_ram_bytes": training.total_ram_bytes,
        "process_base_bytes": training.process_base_bytes,
        "process_peak_bytes": training.process_peak_bytes,
    }
    return Alone(figures, first_digests)


def _batches(
    prepared: Prepared, data: Mapping[str, object] | str | os.PathLike[str] | None, seed: int
) -> Callable[[int], Batch]:
    return batches_of(prepared.graph.whole, prepared.fed if data is None else data, seed).get


def losses_beside(values: Collection[str]) -> str:
    """Return the name of the losses in a file with `values`: `losses`, or `losses.2`, ... where that name is taken."""
    names = ("losses", *(f"losses.{number}" for number in range(2, len(values) + 3)))
    return next(name for name in names if name not in values)


def save_training(losses: Sequence[float], values: Mapping[str, Array], path: str | os.PathLike[str]) -> None:
    """Write the losses, and every parameter and statistic by its name, as an `.npz` file, atomically.

    The losses are called `losses_beside(values)`. Raise `OutputError` where that fails.
    """
    save_arrays({losses_beside(values): np.array(losses), **values}, path)
