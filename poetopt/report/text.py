"""A plan as text: for terminals without a display, logs and tickets."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from poetopt.plan.instructions import Action
from poetopt.report import summary
from poetopt.report.layout import WIDTH, aligned, table
from poetopt.report.view import Lane, Slice, SliceKind, View, paged, recomputed, timeline
from poetopt.util.units import show_bytes, show_joules, show_seconds

MARGIN = 10
LEVELS = 10
ROWS = 36
LISTED = 40


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters that charts are made of.

    shades
        From nothing to a full cell, for the top of a column.
    """

    shades: str
    line: str
    resident: str
    compute: str
    stored: str


UNICODE = Glyphs(" ▁▂▃▄▅▆▇█", "─", "·", "■", "│")
ASCII = Glyphs(" #", "-", ".", "#", "|")
_LETTERS = {
    SliceKind.FORWARD: "f",
    SliceKind.BACKWARD: "b",
    SliceKind.RECOMPUTE: "R",
    SliceKind.PAGE_OUT: "o",
    SliceKind.PAGE_IN: "i",
    SliceKind.WAIT: "w",
}


def text_form(view: View, width: int = WIDTH, glyphs: Glyphs = UNICODE) -> str:
    """The plan in lines of at most `width` characters (names of tensors may be longer). Raises PlanError."""
    width = max(width, 60)
    parts = [table(summary.title(view.document), summary.rows(view.document), width)]
    if view.plan.instructions:
        columns = width - MARGIN - 1
        parts += [_memory(view, columns, glyphs), _lanes(view, columns, glyphs), _matrix(view, columns, glyphs)]
    parts += [_recomputed(view), _paged(view)]
    return "\n\n".join(part for part in parts if part)


def _memory(view: View, columns: int, glyphs: Glyphs) -> str:
    """Live bytes over time: in each column the most of its stretch of time."""
    most = _column_peaks(view, columns)
    top = max(view.ram_bytes or 0, view.simulation.peak_bytes, 1)
    fine = len(glyphs.shades) - 1
    lines = [f"Memory over time, up to {show_bytes(top)}{' (the budget)' if view.ram_bytes else ''}"]
    for level in reversed(range(LEVELS)):
        label = show_bytes(round(top * (level + 1) / LEVELS)) if level % 3 == 0 else ""
        filled = (min(max(peak / top * LEVELS - level, 0), 1) for peak in most)
        lines.append(
            f"{label:>{MARGIN - 1}} " + "".join(glyphs.shades[_ceil(share * fine)] for share in filled).rstrip()
        )
    return "\n".join([*lines, _time_axis(view, columns, glyphs)])


def _column_peaks(view: View, columns: int) -> list[int]:
    most = [0] * columns
    for reached, left, live in zip(view.reached_s, view.left_s, view.simulation.live_bytes, strict=True):
        for column in _span(view, reached, left, columns):
            most[column] = max(most[column], live)
    return most


def _lanes(view: View, columns: int, glyphs: Glyphs) -> str:
    """The CPU and the channel: in each column the letter of what takes most of it."""
    pieces = timeline(view)
    lines = _legend("f forward, b backward, R recompute, w wait, o page out, i page in", columns)
    for lane, label in ((Lane.CPU, "CPU"), (Lane.CHANNEL, "transfers")):
        lines.append(f"{label:>{MARGIN - 1}} " + _lane(view, [p for p in pieces if p.lane is lane], columns).rstrip())
    return "\n".join([*lines, _time_axis(view, columns, glyphs)])


def _lane(view: View, pieces: Sequence[Slice], columns: int) -> str:
    width = view.simulation.makespan_s / columns
    shares: list[dict[SliceKind, float]] = [{} for _ in range(columns)]
    for piece in pieces:
        for column in _span(view, piece.start_s, piece.end_s, columns):
            covered = min(piece.end_s, (column + 1) * width) - max(piece.start_s, column * width)
            shares[column][piece.kind] = shares[column].get(piece.kind, 0.0) + max(covered, 0.0)
    order = list(SliceKind)
    return "".join(
        _LETTERS[max(share, key=lambda kind: (share[kind], -order.index(kind)))] if share else " " for share in shares
    )


def _matrix(view: View, columns: int, glyphs: Glyphs) -> str:
    """The schedule: operators across, stages down, several of them in a character where there are many."""
    operators = len(view.problem.operators)
    width, columns, rows = columns, min(columns, operators), min(ROWS, operators)
    cells = [[" "] * columns for _ in range(rows)]
    strength = {" ": 0, glyphs.resident: 1, glyphs.stored: 2, glyphs.compute: 3, "i": 4, "o": 5, "R": 6}

    def put(stage: int, operator: int, glyph: str) -> None:
        row, column = stage * rows // operators, operator * columns // operators
        if strength[glyph] > strength[cells[row][column]]:
            cells[row][column] = glyph

    producer = [tensor.producer for tensor in view.problem.tensors]
    for buffer in view.buffers:
        if buffer.workspace or producer[buffer.index] < 0:
            continue
        for stage in range(view.stages[buffer.first], view.stages[buffer.last] + 1):
            put(stage, producer[buffer.index], glyphs.resident)
    written: dict[int, int] = {}
    for step, stage, again in zip(view.plan.instructions, view.stages, view.again, strict=True):
        if step.action is Action.COMPUTE:
            put(stage, step.target, "R" if again else glyphs.compute)
        elif step.action in (Action.PAGE_OUT, Action.PAGE_IN) and producer[step.target] >= 0:
            coming_back = step.action is Action.PAGE_IN
            if coming_back:
                for between in range(written.get(step.target, stage), stage):
                    put(between, producer[step.target], glyphs.stored)
            written[step.target] = stage
            put(stage, producer[step.target], "i" if coming_back else "o")
    legend = (
        f"{glyphs.compute} compute, R recompute, o page out, i page in, {glyphs.resident} in RAM, "
        f"{glyphs.stored} on storage"
    )
    heading = _legend(f"Schedule, operators across, stages down: {legend}", width)
    lines = [f"{row * operators // rows:>{MARGIN - 1}} " + "".join(cells[row]).rstrip() for row in range(rows)]
    return "\n".join([*heading, *lines])


def _recomputed(view: View) -> str:
    problem, found = view.problem, recomputed(view)
    if not found:
        return "Recomputed: nothing"
    rows = [("operator", "size", "times", "energy", "in stages")]
    for entry in found[:LISTED]:
        size = show_bytes(problem.nbytes(problem.operators[entry.operator].outputs))
        rows.append((
            view.operator_names[entry.operator], size, str(len(entry.steps)), show_joules(entry.energy_j),
            _stages(view, entry.steps),
        ))  # fmt: skip
    return _listing(f"Recomputed: {len(found)} operators", rows, len(found))


def _paged(view: View) -> str:
    found = paged(view)
    if not found:
        return "Paged: nothing"
    rows = [("tensor", "size", "energy", "out in stages", "in in stages")]
    for entry in found[:LISTED]:
        size = show_bytes(view.problem.tensors[entry.tensor].nbytes)
        rows.append((
            view.tensor_names[entry.tensor], size, show_joules(entry.energy_j),
            _stages(view, entry.outs), _stages(view, entry.ins),
        ))  # fmt: skip
    return _listing(f"Paged: {len(found)} tensors", rows, len(found))


def _listing(heading: str, rows: Sequence[tuple[str, ...]], total: int) -> str:
    more = [f"  and {total - LISTED} more"] if total > LISTED else []
    return "\n".join([heading, *aligned(rows), *more])


def _stages(view: View, steps: Sequence[int]) -> str:
    stages = [str(view.stages[step]) for step in steps]
    return " ".join(stages[:6]) + (f" and {len(stages) - 6} more" if len(stages) > 6 else "")


def _legend(text: str, columns: int) -> list[str]:
    return textwrap.wrap(text, columns + MARGIN, break_on_hyphens=False)


def _time_axis(view: View, columns: int, glyphs: Glyphs) -> str:
    end = show_seconds(view.simulation.makespan_s)
    return " " * MARGIN + f"0 {glyphs.line * max(columns - len(end) - 3, 1)} {end}"


def _span(view: View, start: float, end: float, columns: int) -> range:
    """The columns that a stretch of time touches: at least one."""
    makespan = view.simulation.makespan_s
    if makespan <= 0:
        return range(1)
    first = min(int(start / makespan * columns), columns - 1)
    return range(first, max(min(_ceil(end / makespan * columns), columns), first + 1))


def _ceil(value: float) -> int:
    whole = int(value)
    return whole + (value - whole > 1e-9)
