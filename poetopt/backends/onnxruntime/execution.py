"""Results of an execution: whether two runs agree bit by bit, memory and time."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from poetopt.util.figures import Figures
from poetopt.util.files import replacing

if TYPE_CHECKING:
    from poetopt.graph import Array


class Checks(Figures):
    """Verdicts on a run compared with ordinary training; subclasses are dataclasses with the figures.

    Attributes
    ----------
    bit_identical
        Whether all results are bit for bit those of ordinary training; None where none was compared.
    budget_bytes
        Budget of the plan.
    measured_peak_bytes
        Measured peak; None where the platform can't measure it.
    """

    bit_identical: bool | None
    budget_bytes: int
    measured_peak_bytes: int | None

    @property
    def within_budget(self) -> bool:
        """Return whether the measured peak keeps the budget; True where it could not be measured."""
        return self.measured_peak_bytes is None or self.measured_peak_bytes <= self.budget_bytes

    @property
    def ok(self) -> bool:
        """Return whether the run passed all checks."""
        return self.bit_identical is not False and self.within_budget


@dataclass(frozen=True)
class BitComparison:
    """Comparison of the tensors of two runs.

    Attributes
    ----------
    different
        Names of the tensors that differ in at least one bit, in the requested order.
    max_abs_diff
        Largest difference of two numbers; infinite where one of them is infinite or NaN, and the other isn't.
    """

    different: tuple[str, ...]
    max_abs_diff: float

    @property
    def identical(self) -> bool:
        """Return whether all bits agree."""
        return not self.different

    def joined(self, other: BitComparison) -> BitComparison:
        """Return the comparison of both together."""
        names = dict.fromkeys((*self.different, *other.different))
        return BitComparison(tuple(names), max(self.max_abs_diff, other.max_abs_diff))


def compare(ours: Mapping[str, Array], reference: Mapping[str, Array], names: Sequence[str]) -> BitComparison:
    """Compare the tensors `names` of two runs by their bytes, so that a NaN equals the same NaN."""
    different: list[str] = []
    largest = 0.0
    for name in names:
        a, b = ours[name], reference[name]
        if a.shape == b.shape and a.dtype == b.dtype and np.array_equal(_bytes(a), _bytes(b)):
            continue
        different.append(name)
        largest = max(largest, _difference(a, b))
    return BitComparison(tuple(different), largest)


def _bytes(array: Array) -> Array:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _difference(a: Array, b: Array) -> float:
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    left, right = a.astype(np.float64), b.astype(np.float64)
    is_equal = (left == right) | (np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore"):
        gaps = np.where(is_equal, 0.0, np.abs(left - right))
    return float(np.nan_to_num(gaps, nan=np.inf, posinf=np.inf).max(initial=0.0))


@dataclass(frozen=True, kw_only=True)
class Execution(Checks):
    """A scheduled step compared with ordinary training on the same batch.

    Attributes
    ----------
    bit_identical
        Whether loss, gradients and statistics of the scheduled step are bit for bit those of the unscheduled one.
    different
        Names of those that are not.
    gradients, statistics, updated
        Number of compared parameter gradients, of BatchNormalization statistics, and of updated parameters and
        optimizer states.
    max_abs_diff
        Largest difference of two numbers.
    budget_bytes
        Budget of the plan.
    arena_bytes
        Size of the one buffer that has every tensor of the step but the resident ones.
    kernel_workspace_bytes
        Most bytes that kernels held at once outside the arena, measured; None where the platform can't.
    measured_peak_bytes
        Sum of both; None likewise.
    high_water_bytes
        Arena, and the most other memory of the process that is resident in a step: live memory, and freed memory that
        the allocator keeps. The operating system counts it, page by page; None likewise.
    store_all_peak_bytes
        Peak of the same order without recomputation or paging.
    step_s, store_all_step_s, fused_step_s
        Median seconds of the scheduled step, of the unscheduled one in its own arena, and of the graph as one session.
    waited_share
        Share of the measuring time for which other processes had the processors; those seconds don't count it.
    bytes_paged
        Bytes of whole tensors moved to and from storage in one step.
    bytes_streamed
        Bytes that operators stream to and from storage, slice by slice.
    transfer_s
        Median seconds that all of this takes in a step, checksums included.
    fused_bit_identical
        Whether the graph as one session is bit-identical.
    outputs, loss
        Number of compared outputs of a network without loss; else 0, and the value of the loss.
    threads, sessions, versions
        Threads of each session, number of distinct sessions, and versions of the libraries.
    results
        Loss and each `<parameter>.grad`, or each `<parameter>.new` where the step updates parameters, as the scheduled
        step computed them. The loss is called `loss`, or as in the training graph (`loss.2`) where the model has a
        tensor of that name.
    batch
        Batch from which they were computed.
    """

    bit_identical: bool
    different: tuple[str, ...]
    gradients: int
    statistics: int
    updated: int
    max_abs_diff: float
    budget_bytes: int
    arena_bytes: int
    kernel_workspace_bytes: int | None
    measured_peak_bytes: int | None
    high_water_bytes: int | None
    store_all_peak_bytes: int
    step_s: float
    store_all_step_s: float
    fused_step_s: float
    waited_share: float
    bytes_paged: int
    bytes_streamed: int
    transfer_s: float
    fused_bit_identical: bool
    outputs: int
    loss: float | None
    threads: int
    sessions: int
    versions: Mapping[str, str]
    results: Mapping[str, Array] = field(repr=False, compare=False)
    batch: Mapping[str, Array] = field(repr=False, compare=False)
    omitted = ("results", "batch")

    @property
    def message(self) -> str:
        """Failure in one sentence; empty where nothing failed."""
        if not self.bit_identical:
            count = max(1, self.outputs) + self.gradients + self.statistics + self.updated
            shown = ", ".join(map(repr, self.different[:5])) + (", ..." if len(self.different) > 5 else "")
            return (
                f"the scheduled step and ordinary training differ in {len(self.different)} of {count} tensors "
                f"({shown}), by up to {self.max_abs_diff:.3g}; "
                "please report it with the plan file"
            )
        if not self.within_budget:
            return (
                f"the step took {self.measured_peak_bytes:,} B by measurement ({self.arena_bytes:,} B arena and "
                f"{self.kernel_workspace_bytes:,} B allocated by kernels), more than the budget of "
                f"{self.budget_bytes:,} B; solve with a larger --ram"
            )
        return ""


def save_results(execution: Execution, path: str | os.PathLike[str]) -> None:
    """Write batch, loss and gradients as an `.npz` file, atomically. Raise `OutputError` where that fails."""
    save_arrays({**execution.batch, **execution.results}, path)


def save_arrays(arrays: Mapping[str, Array], path: str | os.PathLike[str]) -> None:
    """Write arrays by name as an `.npz` file, atomically. Raise `OutputError` where that fails."""
    # numpy.savez would mistake some names for its own arguments ("file")
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                contiguous = np.asanyarray(array)
                if not contiguous.flags.c_contiguous or contiguous.dtype.hasobject:
                    np.lib.format.write_array(entry, contiguous, allow_pickle=False)
                    continue
                # not by write_array, which copies up to 16 MiB at a time
                np.lib.format.write_array_header_1_0(entry, np.lib.format.header_data_from_array_1_0(contiguous))
                entry.write(contiguous.reshape(-1).view(np.uint8).data)
