"""A plan as text: for terminals without a display, logs and tickets."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from poetopt.formulations.goal import ENERGY
from poetopt.plan.instructions import Action
from poetopt.plan.transfers import overlap
from poetopt.report.layout import WIDTH, table
from poetopt.report.proof import Claim, during_words, minimised
from poetopt.report.view import Kind, Lane, Slice, View, paged, recomputed, timeline
from poetopt.search.solution import share_open
from poetopt.util.printable import shown
from poetopt.util.units import finite, show_bytes, show_joules, show_seconds, show_share

_SAME = 1e-9
"""Two sums of the same joules agree within this fraction."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A figure: what it is of, the figure itself, and what to make of it."""

    label: str
    value: str
    remark: str = ""


def title(view: View) -> str:
    """One line: what was scheduled, and on what."""
    return f"{view.name} on {view.device}"


def facts(view: View) -> tuple[Fact, ...]:
    """The figures of a plan."""
    problem, simulation = view.problem, view.simulation
    baseline = problem.baseline_energy_j
    found = []
    if view.ram_bytes is not None:
        store_all = number(view, "store_all_peak_bytes")
        remark = f"{view.ram_bytes:,} B"
        if store_all and store_all > view.ram_bytes:
            remark = f"{show_share(view.ram_bytes / store_all)} of the {show_bytes(int(store_all))} of store-all"
        found.append(Fact("RAM budget", show_bytes(view.ram_bytes), remark))
    found.append(Fact("Peak", show_bytes(simulation.peak_bytes), _peak_remark(view)))
    share = f" ({show_share(simulation.overhead_j / baseline)})" if baseline and simulation.overhead_j else ""
    more = f"{show_joules(simulation.overhead_j)}{share} more than one pass" if simulation.overhead_j else "as one pass"
    found.append(Fact("Energy", show_joules(simulation.energy_j), more))
    found.append(Fact("Time", show_seconds(simulation.makespan_s), _time_remark(view)))
    found.append(Fact("Recomputes", f"{simulation.recomputes:,}", _recompute_remark(view)))
    moved = f"{show_bytes(simulation.bytes_paged)} moved" if simulation.bytes_paged else "nothing moved"
    pages = f"{simulation.page_outs:,} out, {simulation.page_ins:,} in"
    found.append(Fact("Pages", pages, moved if problem.paging else "the device has no storage"))
    if simulation.streamed_runs:
        found.append(
            Fact("Streamed", f"{simulation.streamed_runs:,} runs", f"{show_bytes(simulation.bytes_streamed)} in chunks")
        )
    if problem.dma and simulation.transfer_s:
        hidden = overlap(view.plan, simulation)
        found.append(Fact("Transfers", show_seconds(hidden.transfer_s), during_words(hidden)))
    if problem.resident_bytes:
        beside = "parameters, gradients, state: beside the budget"
        found.append(Fact("Resident", show_bytes(problem.resident_bytes), beside))
    return tuple(found)


def proof(view: View) -> str:
    """What is proven of the plan, in plain sentences; 'optimal' is said only of a proof."""
    claim = _claim(view)
    return claim if isinstance(claim, str) else " ".join(map(_sentence, claim.plain()))


def proof_exact(view: View) -> str:
    """What is proven of the scope, as the formulation has that space; empty where nothing is proven."""
    claim = _claim(view)
    return "" if isinstance(claim, str) else _sentence(claim.exact())


def _sentence(words: str) -> str:
    return f"{shown(words[:1].upper() + words[1:])}."


def _claim(view: View) -> Claim | str:
    """What the report claims of this plan, or why that is nothing."""
    report, overhead = view.report, view.simulation.overhead_j
    if not report:
        return "Nothing is proven: the file holds a valid schedule and no report of a solver."
    said = number(view, "overhead_j")
    if said is not None and not math.isclose(said, overhead, rel_tol=_SAME, abs_tol=_SAME * view.simulation.energy_j):
        return (
            f"Nothing is proven: the file's report is of a schedule of {show_joules(said)} overhead, and this one has "
            f"{show_joules(overhead)}."
        )
    swapped = minimised(report)
    if swapped is not None:
        wrong = swapped.contradiction(view.simulation, view.problem)
        if wrong is not None:
            return wrong
        value, bound, of_scope, goal = swapped.value, swapped.bound, swapped.scope_bound, swapped.name
    else:
        value, goal = overhead, ENERGY.name
        bound, of_scope = number(view, "overhead_bound_j"), number(view, "scope_bound_j")
        if "scope_bound_j" not in report and bound is not None:  # of an older version, which knew that of the scope
            bound, of_scope = bound if report.get("scope") == "store-all" else 0.0, bound
    return Claim(
        scope=str(report.get("scope") or ""),
        gap=None if bound is None else share_open(value, bound),
        scope_gap=None if of_scope is None else share_open(value, of_scope),
        outdone=report.get("beyond_scope") is True,
        goal=goal,
        asked=number(view, "gap_tolerance"),
        formulation=str(report.get("formulation") or ""),
        paging=report.get("paging") is not False,
        remat=report.get("remat") is not False,
        storage=view.problem.paging,
    )


def made_by(view: View) -> str:
    """Formulation, backend and seconds, where the report says them; else an empty text."""
    formulation, backend = view.report.get("formulation"), view.report.get("backend")
    if not (isinstance(formulation, str) and isinstance(backend, str)):
        return ""
    if view.report.get("scope") == "store-all":
        return "Found without a solver."
    seconds = number(view, "total_s")
    return f"{shown(formulation)} on {shown(backend)}" + (f", in {show_seconds(seconds)}." if seconds else ".")


def notes(view: View) -> tuple[str, ...]:
    """What the frontend, the cost model and the solve loop had to say."""
    said = view.report.get("notes")
    lines = said if isinstance(said, list) else view.problem.notes
    reason = view.report.get("reason")
    return tuple(shown(str(line)) for line in [*([reason] if isinstance(reason, str) else []), *lines])


def number(view: View, key: str) -> float | None:
    """A finite figure of the report, or None."""
    return finite(view.report.get(key))


def _peak_remark(view: View) -> str:
    parts = []
    if view.ram_bytes:
        parts.append(f"{show_share(view.simulation.peak_bytes / view.ram_bytes)} of the budget")
    if view.arena_bytes is not None:
        parts.append(f"arena {show_bytes(view.arena_bytes)}")
    if view.problem.reserve_bytes:
        parts.append(f"kernels {show_bytes(view.problem.reserve_bytes)}")
    return ", ".join(parts)


def _time_remark(view: View) -> str:
    problem, simulation = view.problem, view.simulation
    parts = []
    if problem.baseline_time_s:
        parts.append(f"{simulation.makespan_s / problem.baseline_time_s:.3g}x one pass")
    if view.deadline_s is not None:
        parts.append(f"deadline {show_seconds(view.deadline_s)}")
    if simulation.waits_s:
        parts.append(f"{show_seconds(simulation.waits_s)} of waits")
    return ", ".join(parts)


def _recompute_remark(view: View) -> str:
    operators = view.problem.operators
    steps = [step.target for step, again in zip(view.plan.instructions, view.again, strict=True) if again]
    if not steps:
        return "nothing runs twice"
    joules = sum(operators[k].energy_j for k in steps)
    return f"of {len(set(steps)):,} operators, {show_joules(joules)}"


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
    Kind.FORWARD: "f",
    Kind.BACKWARD: "b",
    Kind.RECOMPUTE: "R",
    Kind.PAGE_OUT: "o",
    Kind.PAGE_IN: "i",
    Kind.WAIT: "w",
}


def text_form(view: View, width: int = WIDTH, glyphs: Glyphs = UNICODE) -> str:
    """The plan in lines of at most `width` characters (names of tensors may be longer). Raises PlanError."""
    width = max(width, 60)
    rows = [(fact.label, fact.value + (f" ({fact.remark})" if fact.remark else "")) for fact in facts(view)]
    rows.append(("Proof", proof(view)))
    rows += [("Solved", made_by(view))] if made_by(view) else []
    rows += [("Note", note) for note in notes(view)]
    parts = [table(title(view), rows, width)]
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
    shares: list[dict[Kind, float]] = [{} for _ in range(columns)]
    for piece in pieces:
        for column in _span(view, piece.start_s, piece.end_s, columns):
            covered = min(piece.end_s, (column + 1) * width) - max(piece.start_s, column * width)
            shares[column][piece.kind] = shares[column].get(piece.kind, 0.0) + max(covered, 0.0)
    order = list(Kind)
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
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["  " + "  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    more = [f"  and {total - LISTED} more"] if total > LISTED else []
    return "\n".join([heading, *lines, *more])


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
