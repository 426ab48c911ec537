"""What a step in C showed, on this machine or on an emulated board."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from poetopt.backends.c.checks import TOLERANCE, DeviceChecks, far_shown
from poetopt.backends.ort.checks import plain

if TYPE_CHECKING:
    from poetopt.graph import Array

LEFT_OUT = ("results", "batch", "different", "executed")


@dataclass(frozen=True, kw_only=True)
class DeviceExecution(DeviceChecks):
    """A scheduled step in C, the step that computes everything once on the same kernels, and onnxruntime's.

    on, compiler
        Where it ran, and what compiled it.
    bit_identical, different, gradients, statistics, max_abs_diff
        As in `Execution`: the scheduled step against the unscheduled one, with the same kernels.
    distance
        Relative distance of all gradients from onnxruntime's, in the norm.
    sensitivity
        How far one ulp of what forward and backward read moves onnxruntime's, likewise.
    far
        The parameters whose own gradient is further away than one ulp and rounding take it, by name.
    budget_bytes, arena_bytes, kernel_workspace_bytes, measured_peak_bytes
        As in `Execution`; kernels in C allocate nothing.
    resident_bytes
        Parameters, gradients, constants, statistics and the loss.
    linked_ram_bytes
        All RAM that the linked program has beside the stack; None where nothing is installed that tells it.
    stack_bytes
        The most that the step took of the stack, measured by painting it.
    code_bytes
        Instructions and constants of the code, without the weights; None likewise.
    instructions
        How many were executed; None where it was no emulator that ran it.
    store_all_peak_bytes
        As in `Execution`.
    step_s, store_all_step_s, fused_step_s
        Median seconds in C on this machine, scheduled and not, and of onnxruntime's one session; None on an emulator.
    bytes_paged, bytes_streamed
        Bytes of whole tensors that move to and from storage in one step, and of chunks inside operators.
    loss
        Its value.
    by_operator
        Instructions of each operator, by name; empty where it was no emulator.
    """

    on: str
    compiler: str
    bit_identical: bool
    different: tuple[str, ...]
    gradients: int
    statistics: int
    max_abs_diff: float
    distance: float
    sensitivity: float
    far: tuple[str, ...]
    budget_bytes: int
    arena_bytes: int
    resident_bytes: int
    kernel_workspace_bytes: int
    measured_peak_bytes: int
    linked_ram_bytes: int | None
    stack_bytes: int
    code_bytes: int | None
    instructions: int | None
    store_all_peak_bytes: int
    step_s: float | None
    store_all_step_s: float | None
    fused_step_s: float | None
    bytes_paged: int
    bytes_streamed: int
    loss: float
    by_operator: Mapping[str, int] = field(default_factory=dict)
    results: Mapping[str, Array] = field(repr=False, compare=False)
    batch: Mapping[str, Array] = field(repr=False, compare=False)

    @property
    def close(self) -> bool:
        """Whether the gradients are onnxruntime's, to rounding."""
        return self.distance <= TOLERANCE * self.sensitivity and not self.far

    @property
    def message(self) -> str:
        """What failed, in one sentence; empty where nothing did."""
        if not self.bit_identical:
            shown = ", ".join(map(repr, self.different[:5])) + (", ..." if len(self.different) > 5 else "")
            return (
                f"on {self.on}, the scheduled step and the unscheduled one differ in {len(self.different)} of "
                f"{1 + self.gradients + self.statistics} tensors ({shown}), by up to {self.max_abs_diff:.3g}; please "
                "report it with the plan file"
            )
        if not self.close:
            return (
                f"on {self.on}, the gradients are {self.distance:.3g} away from onnxruntime's (relative), where "
                f"{TOLERANCE:g} times the {self.sensitivity:.3g} by which one ulp moves them is allowed"
                f"{far_shown(self.far)}; please report it with the plan file"
            )
        return self.memory_message

    def to_dict(self) -> dict[str, object]:
        """The object of `run --on --json`: plain values only; a number that JSON has no word for is null."""
        names = [name for name in self.__dataclass_fields__ if name not in LEFT_OUT]
        document = {name: plain(getattr(self, name)) for name in names}
        return {
            **document,
            "different": list(self.different),
            "planned_ram_bytes": self.planned_ram_bytes,
            "by_operator": dict(self.by_operator),
        }
