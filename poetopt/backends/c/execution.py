"""Results of a step in C, or of a training, on this machine or on an emulated board."""

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
"""Allowed distance from onnxruntime's gradients, in multiples of the distance by which one ulp moves them
(`UlpSensitivity`).
"""


def far_shown(names: tuple[str, ...]) -> str:
    """Return the part of a message about tensors that are further away than that."""
    shown = ", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")
    return f", and that of {shown} is too far away for itself" if names else ""


@dataclass(frozen=True)
class Predicted(Figures):
    """Outputs of the inference network in C, from the values after the steps.

    Attributes
    ----------
    arena_bytes
        Bytes of its plan in the step's arena.
    bit_identical
        Whether the plan and one without a memory limit give the same bits.
    distance, sensitivity
        Relative distance of all outputs from onnxruntime's, in the norm; how far one ulp of their inputs moves those.
    outputs
        Outputs by name, all batches stacked. [batches, *shape]
    """

    arena_bytes: int
    bit_identical: bool
    distance: float
    sensitivity: float
    outputs: Mapping[str, Array] = field(repr=False, compare=False)
    omitted = ("outputs",)

    @property
    def ok(self) -> bool:
        """Return whether these are the network's outputs."""
        return self.bit_identical and self.distance <= TOLERANCE * self.sensitivity

    def message(self, on: str) -> str:
        """Return the failure in one sentence; empty where nothing failed."""
        if self.ok:
            return ""
        difference = (
            f"are {self.distance:.3g} away from onnxruntime's (relative); allowed are {TOLERANCE:g} times the "
            f"{self.sensitivity:.3g} by which one ulp moves them"
            if self.bit_identical
            else "differ from those of the plan without a memory limit"
        )
        return f"on {on}, the outputs of po_predict {difference}; please report it with the plan file"


@dataclass(frozen=True, kw_only=True)
class DeviceChecks(Checks):
    """Run in C, and the verdicts on it.

    Attributes
    ----------
    on, compiler
        Target of the run, and compiler.
    bit_identical, different
        Whether the results of the schedule are bit for bit those of the unscheduled step, on the same kernels; names of
        tensors that differ.
    distance
        Relative distance of all gradients from onnxruntime's, in the norm; of a training, of the parameters' changes.
    sensitivity
        How far one ulp of what forward and backward read moves onnxruntime's, likewise.
    far
        Names of parameters whose own gradient or change is further away than one ulp and rounding move it.
    budget_bytes, arena_bytes, measured_peak_bytes
        As in `Execution`; kernels in C allocate nothing.
    resident_bytes
        Parameters, gradients, constants, statistics and the loss.
    linked_ram_bytes
        All RAM of the linked program without the stack; None where no tool is installed that reads it.
    stack_bytes
        Most bytes of stack used, measured by painting it; None for a training on this machine.
    stack_bound_bytes, stack_reserved_bytes
        Most stack that the program can use, by its machine code, with `po_save` and `po_restore`; the device's reserve
        for it. None on this machine, and where the code doesn't tell.
    code_bytes
        Instructions and constants of the code, without the weights; None as `linked_ram_bytes`.
    instructions
        Number of executed instructions; None without an emulator.
    bytes_paged, bytes_streamed
        Bytes of whole tensors that move to and from storage in one step, and of chunks inside operators.
    predicted
        Outputs of po_predict after the last step; None where there is none.
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
        """Arena and resident region of the plan."""
        return self.arena_bytes + self.resident_bytes

    @property
    def close(self) -> bool:
        """Return whether the results are onnxruntime's, to rounding."""
        raise NotImplementedError

    @property
    def linked_as_planned(self) -> bool:
        """Return whether the linked program has exactly the plan's bytes; True where that is unknown."""
        return self.linked_ram_bytes in (None, self.planned_ram_bytes)

    @property
    def ok(self) -> bool:
        """Return whether the run passed all checks."""
        predictions_ok = self.predicted is None or self.predicted.ok
        return super().ok and self.close and self.linked_as_planned and predictions_ok

    @property
    def memory_message(self) -> str:
        """Failure of its RAM in one sentence; empty where nothing failed."""
        if not self.linked_as_planned:
            return (
                f"on {self.on}, the linked program has {self.linked_ram_bytes:,} B of RAM, but the plan has "
                f"{self.planned_ram_bytes:,} B; please report it with the plan file"
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

    Attributes
    ----------
    gradients, statistics, max_abs_diff, kernel_workspace_bytes, store_all_peak_bytes
        As in `Execution`.
    step_s, store_all_step_s, fused_step_s
        Median seconds in C on this machine, scheduled and not, and of onnxruntime's one session; None on an emulator.
    outputs, loss
        As in `Execution`.
    by_operator
        Instructions of each operator, by name; empty without an emulator.
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
        """Return whether the gradients are onnxruntime's, to rounding."""
        return self.distance <= TOLERANCE * self.sensitivity and not self.far

    @property
    def message(self) -> str:
        """Failure in one sentence; empty where nothing failed."""
        count, kind = (self.outputs, "outputs") if self.outputs else (1 + self.gradients + self.statistics, "gradients")
        if not self.bit_identical:
            shown = ", ".join(map(repr, self.different[:5])) + (", ..." if len(self.different) > 5 else "")
            return (
                f"on {self.on}, the scheduled step and the unscheduled one differ in {len(self.different)} of "
                f"{count} tensors ({shown}), by up to {self.max_abs_diff:.3g}; please "
                "report it with the plan file"
            )
        if not self.close:
            return (
                f"on {self.on}, the {kind} are {self.distance:.3g} away from onnxruntime's (relative); allowed are "
                f"{TOLERANCE:g} times the {self.sensitivity:.3g} by which one ulp moves them"
                f"{far_shown(self.far)}; please report it with the plan file"
            )
        return self.memory_message


@dataclass(frozen=True, kw_only=True)
class DeviceTraining(DeviceChecks):
    """Scheduled steps in C, as many that compute everything once on the same kernels, and onnxruntime's.

    Attributes
    ----------
    steps, optimizer, hyperparameters
        Number of steps, and how the parameters were updated.
    losses, reference_losses
        Losses of each step, scheduled and on onnxruntime.
    first_difference
        First step (from 1) whose loss differs from the unscheduled one's, or 0.
    loss_distance
        Distance of the losses from onnxruntime's, as `distance`; `sensitivity` is theirs, if they move further.
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
        """Largest difference between a step's loss and onnxruntime's."""
        return max(abs(loss - reference) for loss, reference in zip(self.losses, self.reference_losses, strict=True))

    @property
    def finite(self) -> bool:
        """Return whether all losses and, after the last step, all values are finite."""
        arrays = (*self.values.values(), *self.statistics.values())
        return all(map(math.isfinite, self.losses)) and all(
            np.isfinite(value).all() for value in arrays if value.dtype.kind == "f"
        )

    @property
    def close(self) -> bool:
        """Return whether losses and parameters are finite, and onnxruntime's to rounding."""
        return self.finite and not self.far and max(self.distance, self.loss_distance) <= TOLERANCE * self.sensitivity

    @property
    def message(self) -> str:
        """Failure in one sentence; empty where nothing failed."""
        if not self.bit_identical:
            where = f"the loss of step {self.first_difference}" if self.first_difference else ", ".join(self.different)
            return f"on {self.on}, training with the schedule and without it differ: {where}; please report it"
        if not self.finite:
            return (
                f"on {self.on}, losses or parameters are no longer finite: the training has diverged; use a smaller "
                "--lr, or check the data"
            )
        if not self.close:
            return (
                f"on {self.on}, after {self.steps:,} steps the change of the parameters is {self.distance:.3g} away "
                f"from onnxruntime's (relative) and the losses {self.loss_distance:.3g}; allowed are {TOLERANCE:g} "
                f"times the {self.sensitivity:.3g} by which one ulp moves them{far_shown(self.far)}; please report it "
                "with the plan file"
            )
        return self.memory_message
