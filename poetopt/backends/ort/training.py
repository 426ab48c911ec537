"""Training for many steps with a schedule, and the same training without one beside it.

Both keep parameters, momentum and BatchNormalization statistics of their own and update them alike, so that a single
wrong bit in any gradient shows in every later loss. A step with an optimizer of its own does so itself; behind one that
ends with gradients, the update happens in place in the resident region, in slices, so that nothing of a parameter's
size is allocated for it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from poetopt.backends.ort.batch import Batch, check_batch, load_batch, random_batch
from poetopt.backends.ort.checks import Checks
from poetopt.backends.ort.clock import Clock
from poetopt.backends.ort.compare import compare
from poetopt.backends.ort.execution import save_arrays
from poetopt.backends.ort.executor import taken_bytes
from poetopt.backends.ort.measure import held_bytes, high_water_bytes, peak_beside_bytes
from poetopt.backends.ort.reference import NodeByNode
from poetopt.backends.ort.sessions import Sessions
from poetopt.errors import ModelError, OptionError
from poetopt.graph import TrainingGraph
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, check_layout
from poetopt.plan.simulate import simulate
from poetopt.step.belongs import check_belongs, graph_of
from poetopt.step.carried import slots
from poetopt.step.descent import Momentum
from poetopt.step.memory import Block, writable_copy
from poetopt.step.program import Program
from poetopt.step.region import Region
from poetopt.step.storage import PageFile
from poetopt.telling import Told, paced, silent

if TYPE_CHECKING:
    from poetopt.graph import Array


@dataclass(frozen=True, kw_only=True)
class TrainingRun(Checks):
    """What so many steps with a schedule showed.

    steps, lr, momentum
        As asked for.
    optimizer, hyperparameters
        Of the step, where it updates the parameters itself; `none` otherwise.
    losses, reference_losses
        Of each step, with the schedule and without.
    bit_identical
        Whether every loss, and at the end every parameter and statistic, is bit for bit the unscheduled one's.
    first_difference
        The first step (from 1) whose loss differs, or 0.
    different
        Parameters and statistics that differ at the end.
    budget_bytes, arena_bytes, kernel_workspace_bytes, measured_peak_bytes, high_water_bytes
        As in `Execution`.
    optimizer_bytes
        The momentum, or the optimizer's states, in the resident region.
    step_s, reference_step_s
        Median seconds of a step without the update: with the schedule, and node by node in memory of the runtime's.
    waited_share
        As in `Execution`.
    bytes_paged
        In one step.
    values
        Parameters and statistics after the last step, by name.
    """

    steps: int
    lr: float
    momentum: float
    optimizer: str
    hyperparameters: Mapping[str, float]
    losses: tuple[float, ...]
    reference_losses: tuple[float, ...]
    bit_identical: bool
    first_difference: int
    different: tuple[str, ...]
    budget_bytes: int
    arena_bytes: int
    kernel_workspace_bytes: int | None
    measured_peak_bytes: int | None
    high_water_bytes: int | None
    optimizer_bytes: int
    step_s: float
    reference_step_s: float
    waited_share: float
    bytes_paged: int
    values: Mapping[str, Array] = field(repr=False, compare=False)

    @property
    def losses_name(self) -> str:
        """What the losses are called in a file, beside `values`."""
        return losses_beside(self.values)

    @property
    def message(self) -> str:
        """What failed, in one sentence; empty where nothing did."""
        if not self.bit_identical:
            where = f"the loss of step {self.first_difference}" if self.first_difference else ", ".join(self.different)
            return f"training with the schedule and without it differ: {where}; please report it with the plan file"
        if not self.within_budget:
            return (
                f"training was measured to take {self.measured_peak_bytes:,} B beside the resident region, more than "
                f"the budget of {self.budget_bytes:,} B; solve with a larger --ram"
            )
        return ""

    @property
    def diverged_step(self) -> int:
        """The first step (from 1) whose loss is no finite number, or 0."""
        return next((step for step, loss in enumerate(self.losses, 1) if not math.isfinite(loss)), 0)

    @property
    def last_finite_loss(self) -> float | None:
        """The loss before that one, or the last of all; None where the first is none already."""
        before = self.losses[: self.diverged_step - 1] if self.diverged_step else self.losses
        return before[-1] if before else None

    def to_dict(self) -> dict[str, object]:
        """The object of `run --steps --json`: plain values only; a loss that is no number is null."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "values"}
        for name in ("losses", "reference_losses"):
            found[name] = [value if math.isfinite(value) else None for value in found[name]]
        extra = {"diverged_step": self.diverged_step, "last_finite_loss": self.last_finite_loss}
        found["hyperparameters"] = dict(self.hyperparameters)
        return {**found, **extra, "different": list(self.different)}


class Batches:
    """Batches one after another from a data set, in its order and round again.

    data
        Arrays by input name. One of exactly an input's shape is fed in every step; one that is longer along the first
        axis is a data set, of which each step takes the next so many rows. All data sets have as many rows, and where
        there is one, no array has the rows of one batch alone.

    Raises ModelError for arrays that fit no input, or data sets of different lengths.
    """

    def __init__(self, graph: TrainingGraph, data: Mapping[str, object]) -> None:
        self.graph = graph
        self._fixed: dict[str, object] = {}
        self._sets: dict[str, Array] = {}
        for name in graph.inputs:
            if name not in data:
                continue
            array, shape = np.asarray(data[name]), graph.tensors[name].shape
            longer = array.ndim == len(shape) > 0 and array.shape[1:] == shape[1:] and array.shape[0] > shape[0]
            if longer:
                self._sets[name] = array
            else:
                self._fixed[name] = array
        self.rows = min((len(array) for array in self._sets.values()), default=0)
        if uneven := [name for name, array in self._sets.items() if len(array) != self.rows]:
            lengths = ", ".join(f"{name!r} {len(array)}" for name, array in self._sets.items())
            raise ModelError(f"the data sets have different numbers of rows ({lengths}); cut {uneven[0]!r}")
        for name in self._sets:
            self._check_partners(name)
        self.get(0)

    def _check_partners(self, name: str) -> None:
        """Raise ModelError where an array has the rows of one batch, and would be paired with all rows of `name`."""
        count = self.graph.tensors[name].shape[0]
        for other, value in self._fixed.items():
            # with batches of one row any constant looks like a batch
            if np.asarray(value).shape[:1] == (count,) and (count > 1 or other in self.graph.added_inputs):
                raise ModelError(
                    f"the data set {name!r} has {self.rows} rows, and {other!r} only the {count} of one batch, which "
                    f"would be paired with each batch of the other; give {other!r} {self.rows} rows too"
                )

    def get(self, step: int) -> Batch:
        """The batch of a step, from 0. Raises ModelError for values that the model can't take."""
        found = dict(self._fixed)
        for name, array in self._sets.items():
            count = self.graph.tensors[name].shape[0]
            found[name] = array[np.arange(step * count, (step + 1) * count) % self.rows]
        return check_batch(self.graph, found)


class _Learner:
    """Parameters and statistics that change from step to step; what else is given is shared."""

    def __init__(self, graph: TrainingGraph, given: Mapping[str, Array], lr: float, momentum: float) -> None:
        self.graph = graph
        self.changing = {name: writable_copy(given[name]) for name in (*graph.gradients, *graph.carried)}
        self.said = {name: writable_copy(given[tensor]) for name, tensor in graph.hyperparameters.items()}
        for name, value in (("lr", lr), ("momentum", momentum)):
            if name in self.said:
                self.said[name][...] = value
        told = {tensor: self.said[name] for name, tensor in graph.hyperparameters.items()}
        self.given = {**given, **self.changing, **told}
        self.tables = {name: writable_copy(table.values) for name, table in graph.rows.items()}
        self.used: Mapping[str, Sequence[int]] = {}
        self.optimizer = Momentum({name: self.changing[name] for name in graph.gradients}, lr, momentum)

    @property
    def state_bytes(self) -> int:
        """Bytes of what the optimizer remembers."""
        return self.optimizer.nbytes + sum(self.changing[name].nbytes for name in self.graph.optimizer_states)

    def take(self, used: Mapping[str, Sequence[int]]) -> None:
        """Let tables by rows have those that a batch uses, and zeros behind them."""
        self.used = used
        for name, rows in used.items():
            self.changing[name].fill(0)
            self.changing[name][: len(rows)] = self.tables[name][list(rows)]

    def begin(self, step: int) -> None:
        """Say which step it is, from 0, where the optimizer counts them."""
        if "step" in self.said:
            self.said["step"][...] = step + 1

    def learn(self, results: Mapping[str, Array]) -> None:
        """Take over what a step left: gradients by their parameters, and what is carried."""
        self.optimizer.step({name: results[made] for name, made in self.graph.gradients.items()})
        for old, new in self.graph.carried.items():
            np.copyto(self.changing[old], results[new])
        for name, rows in self.used.items():
            self.tables[name][list(rows)] = results[self.graph.carried[name]][: len(rows)]


def train(
    plan: Plan,
    steps: int,
    lr: float,
    *,
    momentum: float | None = None,
    graph: TrainingGraph | None = None,
    ram_bytes: int | None = None,
    data: Mapping[str, object] | str | os.PathLike[str] | None = None,
    seed: int = 0,
    workdir: str | os.PathLike[str] | None = None,
    told: Told = silent,
) -> TrainingRun:
    """Take `steps` steps of gradient descent with `plan`, and without it beside, and compare every loss bit by bit.

    plan
        A plan with offsets, of a problem that was made of a training graph.
    lr, momentum
        Of the update v = momentum v + g, p = p - lr v; of the step's own optimizer, where it has one. By default no
        momentum, or the optimizer's own.
    data
        Arrays by input name, or an `.npz` file of them: one batch for all steps, or longer along the first axis, in
        batches (see `Batches`). By default one random batch, drawn with `seed`.
    graph, ram_bytes, workdir, told
        As for `execute`.

    Random nodes go on drawing from step to step. Raises OptionError for numbers that make no sense, PlanError for a
    plan that can't be executed, ModelError for data that don't fit, ExecutionError where a kernel or the
    storage fails.
    """
    chosen = graph_of(plan, graph)
    momentum = momentum_of(chosen, momentum)
    check_options(steps, lr, momentum)
    check_belongs(chosen, plan.problem, Sessions.runtime, plan.problem.name)
    simulation = simulate(plan, ram_bytes=ram_bytes)
    check_layout(plan, None if ram_bytes is None else ram_bytes - plan.problem.reserve_bytes)
    batches = batches_of(chosen, data, seed)
    names = chosen.results
    times: list[float] = []
    reference_times: list[float] = []
    losses: list[Array] = []
    reference_losses: list[Array] = []
    with ExitStack() as stack:
        clock = stack.enter_context(Clock())
        pages = stack.enter_context(PageFile(slots(plan), None if workdir is None else Path(workdir)))
        arena = Block(arena_bytes(plan))
        region = Region.of(chosen)
        mine = _Learner(chosen, region.given, lr, momentum)
        theirs = _Learner(chosen, region.given, lr, momentum)
        sessions = Sessions(chosen)
        pace = paced(told)
        program = Program(plan, chosen, arena, replace(region, given=mine.given, first={}), sessions, pages, pace)
        reference = NodeByNode(chosen, sessions, theirs.given, names)
        for step in range(steps):
            batch = program.carried.take(batches.get(step))
            theirs.take(program.carried.used)
            mine.begin(step)
            theirs.begin(step)
            program.load(batch, anew=step == 0)
            times.append(clock.time(program.run))
            found, taken_s = clock.call(partial(reference.run, batch))
            reference_times.append(taken_s)
            losses.append(program.result(chosen.loss).copy())
            reference_losses.append(found[chosen.loss].copy())
            mine.learn({name: program.result(name) for name in names})
            theirs.learn(found)
            pace(f"step {step + 1:,} of {steps:,}, loss {float(losses[-1].reshape(-1)[0]):.6g}")
        values = {name: array.copy() if chosen.updaters else array for name, array in mine.changing.items()}
        values |= {name: program.carried.table(name) for name in chosen.rows}
        first = program.carried.take(batches.get(0))
        high_water = high_water_bytes(program.acts, lambda: program.load(first))
        told("measuring what kernels allocate")
        reserve = plan.problem.reserve_bytes
        kernels = peak_beside_bytes(program.acts, lambda: program.load(first), expected=reserve)
    differing = [
        k for k, (a, b) in enumerate(zip(losses, reference_losses, strict=True), 1) if a.tobytes() != b.tobytes()
    ]
    whole = {**theirs.changing, **theirs.tables}
    different = compare(values, whole, tuple(values)).different
    arena_size = arena_bytes(plan)
    return TrainingRun(
        steps=steps,
        lr=lr,
        momentum=momentum,
        optimizer=chosen.optimizer,
        hyperparameters={name: array.item() for name, array in mine.said.items() if name != "step"},
        losses=tuple(float(loss.reshape(-1)[0]) for loss in losses),
        reference_losses=tuple(float(loss.reshape(-1)[0]) for loss in reference_losses),
        bit_identical=not differing and not different,
        first_difference=differing[0] if differing else 0,
        different=different,
        budget_bytes=taken_bytes(plan, simulation.peak_bytes) if ram_bytes is None else ram_bytes,
        arena_bytes=arena_size,
        kernel_workspace_bytes=kernels,
        measured_peak_bytes=None if kernels is None else arena_size + kernels,
        high_water_bytes=held_bytes(arena_size, high_water, kernels),
        optimizer_bytes=mine.state_bytes,
        step_s=median(times),
        reference_step_s=median(reference_times),
        waited_share=clock.share,
        bytes_paged=simulation.bytes_paged,
        values=values,
    )


def losses_beside(values: Mapping[str, Array]) -> str:
    """What losses are called in a file beside `values`: `losses`, or `losses.2`, ... where a weight is called so."""
    names = ("losses", *(f"losses.{number}" for number in range(2, len(values) + 3)))
    return next(name for name in names if name not in values)


def save_training(losses: Sequence[float], values: Mapping[str, Array], path: str | os.PathLike[str]) -> None:
    """Write the losses, and every parameter and statistic by its name, as an `.npz` file, whole or not at all.

    The losses are called `losses_beside(values)`. Raises `OutputError` where that can't be done.
    """
    save_arrays({losses_beside(values): np.array(losses), **values}, path)


def momentum_of(graph: TrainingGraph, momentum: float | None) -> float:
    """The momentum to train with. Raises OptionError where the step's own optimizer has none."""
    if "momentum" in graph.hyperparameters:
        return graph.values[graph.hyperparameters["momentum"]].item() if momentum is None else momentum
    if momentum and graph.optimizer != "none":
        raise OptionError(f"--momentum {momentum:g}: the plan's optimizer is {graph.optimizer}, which has none")
    return momentum or 0.0


def check_options(steps: int, lr: float, momentum: float) -> None:
    """Raise OptionError for numbers that make no sense."""
    if steps < 1:
        raise OptionError(f"--steps {steps}: must be at least 1")
    if not 0 < lr < math.inf:
        raise OptionError(f"--lr {lr:g}: must be more than 0, as in 0.01")
    if not 0 <= momentum < 1:
        raise OptionError(f"--momentum {momentum:g}: must be at least 0 and less than 1, as in 0.9")


def batches_of(graph: TrainingGraph, data: Mapping[str, object] | str | os.PathLike[str] | None, seed: int) -> Batches:
    """What `data` gives for each step; where it is None, the same random batch."""
    if data is None:
        return Batches(graph, random_batch(graph, seed))
    return Batches(graph, data if isinstance(data, Mapping) else load_batch(data, graph, sets=True))
