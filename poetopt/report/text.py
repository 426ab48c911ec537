"""A plan as text, for terminals without a display, logs and tickets: its summary, what runs again and what is paged."""

from __future__ import annotations

from collections.abc import Sequence

from poetopt.report import summary
from poetopt.report.layout import WIDTH, aligned, table
from poetopt.report.view import View, paged, recomputed
from poetopt.util.units import show_bytes, show_joules

LISTED = 40


def text_form(view: View, width: int = WIDTH) -> str:
    """The plan in lines of at most `width` characters (names of tensors may be longer). Raises PlanError."""
    problem, again, moved = view.problem, recomputed(view), paged(view)
    runs = [
        (
            view.operator_names[entry.operator],
            show_bytes(problem.nbytes(problem.operators[entry.operator].outputs)),
            str(len(entry.steps)),
            show_joules(entry.energy_j),
            _stages(view, entry.steps),
        )
        for entry in again
    ]
    moves = [
        (
            view.tensor_names[entry.tensor],
            show_bytes(problem.tensors[entry.tensor].nbytes),
            show_joules(entry.energy_j),
            _stages(view, entry.outs),
            _stages(view, entry.ins),
        )
        for entry in moved
    ]
    parts = [table(summary.title(view.document), summary.rows(view.document), max(width, 60))]
    parts.append(_listing("Recomputed", "operators", ("operator", "size", "times", "energy", "in stages"), runs))
    parts.append(_listing("Paged", "tensors", ("tensor", "size", "energy", "out in stages", "in in stages"), moves))
    return "\n\n".join(parts)


def _listing(what: str, unit: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return f"{what}: nothing"
    more = [f"  and {len(rows) - LISTED} more"] if len(rows) > LISTED else []
    return "\n".join([f"{what}: {len(rows)} {unit}", *aligned([head, *rows[:LISTED]]), *more])


def _stages(view: View, steps: Sequence[int]) -> str:
    stages = [str(view.stages[step]) for step in steps]
    return " ".join(stages[:6]) + (f" and {len(stages) - 6} more" if len(stages) > 6 else "")
