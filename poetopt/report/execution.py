"""What an execution showed, for people."""

from __future__ import annotations

from poetopt.backends.ort import Execution
from poetopt.plan.instructions import Plan
from poetopt.report.layout import table
from poetopt.units import show_bytes, show_seconds


def execution_text(plan: Plan, execution: Execution) -> str:
    """The summary of `poetopt run`."""
    rows = [("gradients", _sameness(execution)), ("memory", _memory(execution)), ("time", _time(execution))]
    if execution.bytes_paged:
        rows.append(("paged", f"{show_bytes(execution.bytes_paged)} to and from a file"))
    name = plan.problem.model_ref or plan.problem.name
    return table(f"{name}: {len(plan.instructions)} instructions executed on onnxruntime", rows)


def _sameness(execution: Execution) -> str:
    compared = f"{execution.gradients} gradients, the loss ({execution.loss:.6g})"
    if execution.statistics:
        compared += f" and {execution.statistics} statistics"
    if execution.bit_identical:
        return f"{compared}: bit for bit those of ordinary training"
    return (
        f"{compared}: {len(execution.different)} differ from ordinary training, by up to {execution.max_abs_diff:.3g}"
    )


def _memory(execution: Execution) -> str:
    text = f"arena {execution.arena_bytes:,} B"
    if execution.measured_peak_bytes is not None and execution.kernel_workspace_bytes is not None:
        text += f" + {execution.kernel_workspace_bytes:,} B that kernels took = {execution.measured_peak_bytes:,} B"
    return f"{text}; budget {execution.budget_bytes:,} B; store-all {execution.store_all_peak_bytes:,} B"


def _time(execution: Execution) -> str:
    text = f"{show_seconds(execution.step_s)} a step here; store-all {show_seconds(execution.store_all_step_s)}"
    if execution.fused_step_s is not None:
        text += f", as one onnxruntime session {show_seconds(execution.fused_step_s)}"
    return text
