"""What steps in C, one after another, showed beside onnxruntime's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from poetopt.backends.c.checks import TOLERANCE, DeviceChecks, far_shown
from poetopt.backends.ort.checks import plain

if TYPE_CHECKING:
    from poetopt.graph import Array


@dataclass(frozen=True, kw_only=True)
class DeviceTraining(DeviceChecks):
    """Scheduled steps in C, as many that compute everything once on the same kernels, and onnxruntime's.

    on, compiler
        Where they ran, and what compiled them.
    steps, optimizer, hyperparameters
        How many, and how the parameters were updated.
    losses, reference_losses
        Of each step, scheduled and on onnxruntime.
    bit_identical, different, first_difference
        Whether scheduled and unscheduled steps gave the same losses, parameters, statistics; which tensors differ, and
        the first step (from 1) whose losses do, or 0.
    distance
        Of all parameters' way in all steps from onnxruntime's, relative, in the norm.
    sensitivity
        How far one ulp of what forward and backward read moves onnxruntime's, likewise; of the losses, if these are
        moved further.
    far
        The parameters whose own way is further away than one ulp and rounding take it, by name.
    loss_distance
        Of the losses from onnxruntime's, likewise.
    budget_bytes, arena_bytes, resident_bytes, measured_peak_bytes, linked_ram_bytes, code_bytes
        As in `DeviceExecution`.
    stack_bytes, instructions
        As there, of all steps; None on this machine.
    bytes_paged, bytes_streamed
        In one step, as in `DeviceExecution`.
    values, statistics
        Parameters and running statistics after the last step, by name.
    """

    on: str
    compiler: str
    steps: int
    optimizer: str
    hyperparameters: Mapping[str, float]
    losses: tuple[float, ...]
    reference_losses: tuple[float, ...]
    bit_identical: bool
    different: tuple[str, ...]
    first_difference: int
    distance: float
    sensitivity: float
    far: tuple[str, ...]
    loss_distance: float
    budget_bytes: int
    arena_bytes: int
    resident_bytes: int
    measured_peak_bytes: int
    linked_ram_bytes: int | None
    code_bytes: int | None
    stack_bytes: int | None
    instructions: int | None
    bytes_paged: int
    bytes_streamed: int
    values: Mapping[str, Array] = field(repr=False, compare=False)
    statistics: Mapping[str, Array] = field(default_factory=dict, repr=False, compare=False)

    @property
    def max_loss_diff(self) -> float:
        """The largest difference between a step's loss and onnxruntime's."""
        return max(abs(mine - theirs) for mine, theirs in zip(self.losses, self.reference_losses, strict=True))

    @property
    def finite(self) -> bool:
        """Whether all losses and, after the last step, all values are numbers."""
        kept = (*self.values.values(), *self.statistics.values())
        return all(map(math.isfinite, self.losses)) and all(
            np.isfinite(value).all() for value in kept if value.dtype.kind == "f"
        )

    @property
    def close(self) -> bool:
        """Whether losses and parameters are numbers, and onnxruntime's to rounding."""
        return self.finite and not self.far and max(self.distance, self.loss_distance) <= TOLERANCE * self.sensitivity

    @property
    def message(self) -> str:
        """What failed, in one sentence; empty where nothing did."""
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

    def to_dict(self) -> dict[str, object]:
        """The object of `run --on --steps --json`: plain values only; a number that JSON has no word for is null."""
        names = [name for name in self.__dataclass_fields__ if name not in ("values", "statistics")]
        document = {name: plain(getattr(self, name)) for name in (*names, "max_loss_diff")}
        return {**document, "planned_ram_bytes": self.planned_ram_bytes}
