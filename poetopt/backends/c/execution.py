"""Describes what a step in C showed, or a training, on this machine or on an emulated board."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from poetopt.backends.onnxruntime.execution import Checks
from poetopt.util.figures import Figures

if TYPE_CHECKING:
    from poetopt.graph import Array


TOLERANCE = 5.0
"""How many times as far from onnxruntime's gradients may be as one ulp moves them (`Sensitivity`)."""


def far_shown(names: tuple[str, ...]) -> str:
    """Says which tensors are further away than that, in a message."""
    shown = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
    return f", and that of {shown} is too far away for itself" if names else ""


@dataclass(frozen=True)
class Predicted(Figures):
    """Outputs of the network in C, as it is used, with the values that the steps left.

    arena_bytes
        What its plan takes of the step's arena.
    bit_identical
        Whether the plan and one that has all the room give the same bits.
    distance, sensitivity
        Of all outputs from onnxruntime's, relative, in the norm; how far one ulp of what they are made of moves those.
    outputs
        By name, those of all batches in one. [batches, *shape]
    """

    arena_bytes: int
    bit_identical: bool
    distance: float
    sensitivity: float
    outputs: Mapping[str, Array] = field(repr=False, compare=False)
    omitted = ("outputs",)

    @property
    def ok(self) -> bool:
        """Says whether these are the network's outputs."""
        return self.bit_identical and self.distance <= TOLERANCE * self.sensitivity

    def message(self, on: str) -> str:
        """Gives what is wrong, in one sentence; empty where nothing is."""
        if self.ok:
            return ""
        what = (
            f"are {self.distance:.3g} away from onnxruntime's (relative), where {TOLERANCE:g} times the "
            f"{self.sensitivity:.3g} by which one ulp moves them is allowed"
            if self.bit_identical
            else "differ from those of the plan that has all the room"
        )
        return f"on {on}, the outputs of po_predict {what}; please report it with the plan file"


@dataclass(frozen=True, kw_only=True)
class DeviceChecks(Checks):
    """A run in C, and the verdicts on it.

    on, compiler
        Where it ran, and what compiled it.
    bit_identical, different
        Whether what the schedule computed is bit for bit what the unscheduled step did, on the same kernels; which
        tensors differ.
    distance
        Relative distance of all gradients from onnxruntime's, in the norm; of a training, of the parameters' way.
    sensitivity
        How far one ulp of what forward and backward read moves onnxruntime's, likewise.
    far
        The parameters whose own gradient or way is further away than one ulp and rounding take it, by name.
    budget_bytes, arena_bytes, measured_peak_bytes
        As in `Execution`; kernels in C allocate nothing.
    resident_bytes
        Parameters, gradients, constants, statistics and the loss.
    linked_ram_bytes
        All RAM that the linked program has beside the stack; None where nothing is installed that tells it.
    stack_bytes
        The most that was taken of the stack, measured by painting it; None of a training on this machine.
    stack_bound_bytes, stack_reserved_bytes
        What the program takes of the stack at most, by its machine code, with `po_save` and `po_restore`; what the
        device sets aside for it. None on this machine, and where the code doesn't tell.
    code_bytes
        Instructions and constants of the code, without the weights; None as `linked_ram_bytes`.
    instructions
        How many were executed; None where it was no emulator that ran it.
    bytes_paged, bytes_streamed
        Bytes of whole tensors that move to and from storage in one step, and of chunks inside operators.
    predicted
        What po_predict gave after the last step; None where there is none.
    """

    on: str
    compiler: str
    bit_identical: bool
    different: tuple[str, ...]
    distance: float
    sensitivity: float
    far: tuple[str, ...]
    budget_bytes: int
    arena_bytes: int
    measured_peak_bytes: int
    resident_bytes: int
    linked_ram_bytes: int | None
    stack_bytes: int | None
    stack_bound_bytes: int | None
    stack_reserved_bytes: int | None
    code_bytes: int | None
    instructions: int | None
    bytes_paged: int
    bytes_streamed: int
    predicted: Predicted | None = None

    @property
    def planned_ram_bytes(self) -> int:
        """Arena and resident region, as the plan has them."""
        return self.arena_bytes + self.resident_bytes

    @property
    def close(self) -> bool:
        """Says whether what was computed is onnxruntime's, to rounding."""
        raise NotImplementedError

    @property
    def linked_as_planned(self) -> bool:
        """Says whether the linker gave the program just the plan's bytes; true where that can't be told."""
        return self.linked_ram_bytes in (None, self.planned_ram_bytes)

    @property
    def ok(self) -> bool:
        """Says whether the run passed all checks."""
        well = self.predicted is None or self.predicted.ok
        return super().ok and self.close and self.linked_as_planned and well

    @property
    def memory_message(self) -> str:
        """Gives what is wrong with its RAM, in one sentence; empty where nothing is."""
        if not self.linked_as_planned:
            return (
                f"on {self.on}, the linked program has {self.linked_ram_bytes:,} B of RAM, and the plan "
                f"{self.planned_ram_bytes:,}; please report it with the plan file"
            )
        if not self.within_budget:
            return (
                f"the arena takes {self.arena_bytes:,} B, more than the budget of {self.budget_bytes:,} B; solve with "
                "a larger --ram"
            )
        return "" if self.predicted is None else self.predicted.message(self.on)


@dataclass(frozen=True, kw_only=True)
class DeviceExecution(DeviceChecks):
    """A scheduled step in C, the step that computes everything once on the same kernels, and onnxruntime's.

    gradients, statistics, max_abs_diff, kernel_workspace_bytes, store_all_peak_bytes
        As in `Execution`.
    step_s, store_all_step_s, fused_step_s
        Median seconds in C on this machine, scheduled and not, and of onnxruntime's one session; None on an emulator.
    outputs, loss
        As in `Execution`.
    by_operator
        Instructions of each operator, by name; empty where it was no emulator.
    """

    gradients: int
    statistics: int
    max_abs_diff: float
    kernel_workspace_bytes: int
    stack_bytes: int
    store_all_peak_bytes: int
    step_s: float | None
    store_all_step_s: float | None
    fused_step_s: float | None
    outputs: int
    loss: float | None
    by_operator: Mapping[str, int] = field(default_factory=dict)
    results: Mapping[str, Array] = field(repr=False, compare=False)
    batch: Mapping[str, Array] = field(repr=False, compare=False)
    omitted = ("results", "batch")
    derived = ("planned_ram_bytes",)

    @property
    def close(self) -> bool:
        """Says whether the gradients are onnxruntime's, to rounding."""
        return self.distance <= TOLERANCE * self.sensitivity and not self.far

    @property
    def message(self) -> str:
        """Gives what failed, in one sentence; empty where nothing did."""
        count, what = (self.outputs, "outputs") if self.outputs else (1 + self.gradients + self.statistics, "gradients")
        if not self.bit_identical:
            shown = ", ".join(map(repr, self.different[:5])) + (", ..." if len(self.different) > 5 else "")
            return (
                f"on {self.on}, the scheduled step and the unscheduled one differ in {len(self.different)} of "
                f"{count} tensors ({shown}), by up to {self.max_abs_diff:.3g}; please "
                "report it with the plan file"
            )
        if not self.close:
            return (
                f"on {self.on}, the {what} are {self.distance:.3g} away from onnxruntime's (relative), where "
                f"{TOLERANCE:g} times the {self.sensitivity:.3g} by which one ulp moves them is allowed"
                f"{far_shown(self.far)}; please report it with the plan file"
            )
        return self.memory_message


@dataclass(frozen=True, kw_only=True)
class DeviceTraining(DeviceChecks):
    """Scheduled steps in C, as many that compute everything once on the same kernels, and onnxruntime's.

    steps, optimizer, hyperparameters
        How many, and how the parameters were updated.
    losses, reference_losses
        Of each step, scheduled and on onnxruntime.
    first_difference
        The first step (from 1) whose losses differ from the unscheduled one's, or 0.
    loss_distance
        Of the losses from onnxruntime's, as `distance`; `sensitivity` is theirs, if they are moved further.
    values, statistics
        Parameters and running statistics after the last step, by name.
    """

    steps: int
    optimizer: str
    hyperparameters: Mapping[str, float]
    losses: tuple[float, ...]
    reference_losses: tuple[float, ...]
    first_difference: int
    loss_distance: float
    values: Mapping[str, Array] = field(repr=False, compare=False)
    statistics: Mapping[str, Array] = field(default_factory=dict, repr=False, compare=False)
    omitted = ("values", "statistics")
    derived = ("max_loss_diff", "planned_ram_bytes")

    @property
    def max_loss_diff(self) -> float:
        """The largest difference between a step's loss and onnxruntime's."""
        return max(abs(mine - theirs) for mine, theirs in zip(self.losses, self.reference_losses, strict=True))

    @property
    def finite(self) -> bool:
        """Says whether all losses and, after the last step, all values are numbers."""
        kept = (*self.values.values(), *self.statistics.values())
        return all(map(math.isfinite, self.losses)) and all(
            np.isfinite(value).all() for value in kept if value.dtype.kind == "f"
        )

    @property
    def close(self) -> bool:
        """Says whether losses and parameters are numbers, and onnxruntime's to rounding."""
        return self.finite and not self.far and max(self.distance, self.loss_distance) <= TOLERANCE * self.sensitivity

    @property
    def message(self) -> str:
        """Gives what failed, in one sentence; empty where nothing did."""
        if not self.bit_identical:
            where = f"the loss of step {self.first_difference}" if self.first_difference else ", ".join(self.different)
            return f"on {self.on}, training with the schedule and without it differ: {where}; please report it"
        if not self.finite:
            return (
                f"on {self.on}, losses or parameters are no finite numbers any more: the training has diverged; take a "
                "smaller --lr, or look at the data"
            )
        if not self.close:
            return (
                f"on {self.on}, after {self.steps:,} steps the parameters' way is {self.distance:.3g} away from "
                f"onnxruntime's (relative) and the losses {self.loss_distance:.3g}, where {TOLERANCE:g} times the "
                f"{self.sensitivity:.3g} by which one ulp moves them is allowed{far_shown(self.far)}; please report it "
                "with the plan file"
            )
        return self.memory_message
