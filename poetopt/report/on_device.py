"""What a step in C showed, and what was emitted, for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from poetopt.backends.c.execution import TOLERANCE, DeviceExecution, DeviceTraining
from poetopt.plan.instructions import Plan
from poetopt.report.layout import table
from poetopt.training.in_c import DeviceFit
from poetopt.util import notes
from poetopt.util.units import show_bytes, show_seconds

if TYPE_CHECKING:
    from poetopt.api.on_device import Emitted

DEAREST = 5
"""Operators that are named with their instructions."""


def device_document(plan: Plan, execution: DeviceExecution) -> dict[str, object]:
    """The object of `run --on --json`."""
    graph = plan.problem.graph
    return {**execution.to_dict(), "important": notes.document(graph.notes if graph else ())}


def device_text(plan: Plan, execution: DeviceExecution) -> str:
    """The summary of `poetopt run --on`."""
    rows = [("gradients", _sameness(execution)), ("memory", _memory(execution))]
    if execution.code_bytes is not None:
        rows.append(("code", f"{execution.code_bytes:,} B beside the weights, by {execution.compiler}"))
    if execution.instructions is not None:
        rows.append(("time", f"{execution.instructions:,} instructions{_dearest(execution)}"))
    elif execution.step_s is not None and execution.store_all_step_s is not None:
        rows.append(
            (
                "time",
                f"{show_seconds(execution.step_s)} a step here; store-all {show_seconds(execution.store_all_step_s)}",
            )
        )
    rows += _moved(execution)
    graph = plan.problem.graph
    rows += notes.rows(graph.notes if graph else ())
    name = plan.problem.model_ref or plan.problem.name
    return table(f"{name}: {len(plan.instructions)} instructions executed in C on {execution.on}", rows)


def device_training_document(plan: Plan, ended: DeviceTraining) -> dict[str, object]:
    """The object of `run --on --steps --json`."""
    graph = plan.problem.graph
    return {**ended.to_dict(), "important": notes.document(graph.notes if graph else ())}


def device_fit_document(plan: Plan, ended: DeviceFit, out: str) -> dict[str, object]:
    """The object of `train --on --json`."""
    graph = plan.problem.graph
    trained = out if ended.steps.ok else None
    return {**ended.to_dict(), "trained": trained, "important": notes.document(graph.notes if graph else ())}


def device_fit_text(plan: Plan, ended: DeviceFit, out: str) -> str:
    """The summary of `poetopt train --on`."""
    pairs = zip(ended.epoch_losses, ended.reference_epoch_losses, strict=True)
    rows = [
        (f"epoch {epoch}", f"loss {mine:.6g} (mean), on onnxruntime {theirs:.6g}")
        for epoch, (mine, theirs) in enumerate(pairs, 1)
    ]
    if ended.left_out:
        rows.append(
            ("note", f"the last {ended.left_out} rows of each epoch fill no batch of {ended.batch}, and were left out")
        )
    rows.append(("written", out if ended.steps.ok else "nothing"))
    return device_training_text(plan, ended.steps, rows)


def device_training_text(plan: Plan, ended: DeviceTraining, more: Sequence[tuple[str, str]] = ()) -> str:
    """The summary of `poetopt run --on --steps`, with `more` rows."""
    same = (
        "bit for bit those of the unscheduled steps on the same kernels"
        if ended.bit_identical
        else "they differ from the unscheduled steps'"
    )
    rows = [
        (
            "loss",
            f"{ended.losses[0]:.6g} in the first step, {ended.losses[-1]:.6g} in the last; no step's is more than "
            f"{ended.max_loss_diff:.2g} from onnxruntime's",
        ),
        (
            "check",
            f"losses and {len(ended.values)} parameters: {same}; from onnxruntime's (relative) the parameters' way is "
            f"{ended.distance:.2g} and the losses are {ended.loss_distance:.2g}, where {TOLERANCE:g} times "
            f"{ended.sensitivity:.2g} is allowed, by which one ulp moves them",
        ),
        ("memory", _memory(ended)),
    ]
    if ended.instructions is not None:
        each = ended.instructions // ended.steps
        rows.append(("time", f"{ended.instructions:,} instructions, {each:,} a step"))
    rows += _moved(ended)
    rows += more
    graph = plan.problem.graph
    rows += notes.rows(graph.notes if graph else ())
    name = plan.problem.model_ref or plan.problem.name
    how = ", ".join([ended.optimizer, *(f"{word} {value:g}" for word, value in ended.hyperparameters.items())])
    return table(f"{name}: {ended.steps} steps of training in C on {ended.on}, {how}", rows)


def emitted_text(plan: Plan, emitted: Emitted) -> str:
    """The summary of `poetopt emit`."""
    total = emitted.arena_bytes + emitted.resident_bytes
    rows = [
        ("step", f"{emitted.instructions:,} instructions, {emitted.operators:,} operators, for {emitted.target}"),
        (
            "memory",
            f"{total:,} B beside the stack: arena {emitted.arena_bytes:,} B, resident {emitted.resident_bytes:,} B",
        ),
        ("files", ", ".join(emitted.files)),
    ]
    name = plan.problem.model_ref or plan.problem.name
    return table(f"{name} in C: {emitted.folder}/README.md says how it is built and called", rows)


def _moved(ended: DeviceExecution | DeviceTraining) -> list[tuple[str, str]]:
    """What goes to and from storage in a step; no row where nothing does."""
    parts = [f"{show_bytes(ended.bytes_paged)} in whole tensors"] if ended.bytes_paged else []
    parts += [f"{show_bytes(ended.bytes_streamed)} in chunks inside operators"] if ended.bytes_streamed else []
    return [("paged", f"{' and '.join(parts)} to and from a file in each step")] if parts else []


def _sameness(execution: DeviceExecution) -> str:
    compared = f"{execution.gradients} gradients, the loss ({execution.loss:.6g})"
    if execution.statistics:
        compared += f" and {execution.statistics} statistics"
    same = (
        "bit for bit those of the unscheduled step on the same kernels"
        if execution.bit_identical
        else f"{len(execution.different)} differ from the unscheduled step's, by up to {execution.max_abs_diff:.3g}"
    )
    return (
        f"{compared}: {same}; {execution.distance:.2g} from onnxruntime's (relative), where {TOLERANCE:g} times "
        f"{execution.sensitivity:.2g} is allowed, by which one ulp moves them"
    )


def _memory(execution: DeviceExecution | DeviceTraining) -> str:
    text = f"arena {execution.arena_bytes:,} B + resident {execution.resident_bytes:,} B"
    if execution.linked_ram_bytes is not None:
        text += f"; the linker has {execution.linked_ram_bytes:,} B"
    if execution.stack_bytes is not None:
        text += f"; stack {execution.stack_bytes:,} B"
    return f"{text}; budget of the arena {execution.budget_bytes:,} B"


def _dearest(execution: DeviceExecution) -> str:
    most = sorted(execution.by_operator.items(), key=lambda pair: -pair[1])[:DEAREST]
    shown = ", ".join(f"{name} {count:,}" for name, count in most)
    return f"; most by {shown}" if shown else ""
