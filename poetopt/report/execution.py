"""What an execution showed, for people; and whether it passed."""

from __future__ import annotations

from collections.abc import Mapping

from poetopt.errors import ExecutionError
from poetopt.plan.instructions import Plan
from poetopt.units import show_bytes, show_seconds


def execution_lines(plan: Plan, document: Mapping[str, object]) -> list[str]:
    """The summary of `poetopt run`, from the plan and the object of `run --json`."""
    rows = [
        ("gradients", f"{document['gradients']}, {_sameness(document)}"),
        (
            "memory",
            f"arena {_bytes(document, 'arena_bytes')} + kernels' own {_bytes(document, 'kernel_workspace_bytes')} = "
            f"{_bytes(document, 'measured_peak_bytes')} measured, budget {_bytes(document, 'budget_bytes')}; "
            f"store-all {_bytes(document, 'store_all_peak_bytes')}",
        ),
        (
            "time",
            f"{_seconds(document, 'step_s')} a step on this machine; "
            f"unscheduled {_seconds(document, 'store_all_step_s')}, "
            f"as one session {_seconds(document, 'fused_step_s')}",
        ),
        ("paged", f"{_bytes(document, 'bytes_paged')} to and from storage"),
    ]
    width = max(len(label) for label, _ in rows)
    return [
        f"{plan.problem.name}: {len(plan.instructions)} instructions executed on onnxruntime",
        *(f"  {label:<{width}}  {text}" for label, text in rows),
    ]


def verdict(document: Mapping[str, object]) -> ExecutionError | None:
    """The error that the execution ends in, if its check failed."""
    if not document["bit_identical"]:
        return ExecutionError(
            f"the scheduled step and ordinary training differ (largest difference {document['max_abs_diff']}); "
            "please report it with the plan file"
        )
    measured, budget = document["measured_peak_bytes"], document["budget_bytes"]
    if isinstance(measured, int) and isinstance(budget, int) and measured > budget:
        return ExecutionError(
            f"the step was measured to take {measured:,} B, more than the budget of {budget:,} B: "
            "onnxruntime's kernels allocate more on this machine than was planned for; solve with a larger --ram"
        )
    return None


def _sameness(document: Mapping[str, object]) -> str:
    if document["bit_identical"]:
        return "bit for bit those of ordinary training, as are the loss and all statistics"
    return f"NOT those of ordinary training: largest difference {document['max_abs_diff']}"


def _bytes(document: Mapping[str, object], key: str) -> str:
    value = document.get(key)
    return show_bytes(value) if isinstance(value, int) else "not measured"


def _seconds(document: Mapping[str, object], key: str) -> str:
    value = document.get(key)
    return show_seconds(value) if isinstance(value, int | float) else "not measured"
