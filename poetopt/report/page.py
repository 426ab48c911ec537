"""A plan as one HTML page that needs nothing else (no network, no other file, no server), or as one picture.

The page holds the plan's tables as JSON, and scripts that draw them; every figure in it is the simulator's. Names come
from models of any origin. So the markup is escaped, the scripts set text and never markup, and a content security
policy forbids the page to load anything.

The picture has schedule, memory and timeline, for papers and slides. It needs matplotlib (the extra `plot`). It is
drawn without pyplot: no global state, no window system, the same bytes every time.
"""

from __future__ import annotations

import html
import io
import json
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from poetopt.plan.instructions import Action
from poetopt.report import summary
from poetopt.report.layout import Exact
from poetopt.report.view import Lane, SliceKind, View, paged, recomputed, streamed, timeline
from poetopt.util.errors import BackendUnavailableError
from poetopt.util.text import shown
from poetopt.util.units import show_bytes, show_joules, show_seconds, show_share

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("png", "svg")
COLOURS = {
    SliceKind.FORWARD: "#2f6fb7",
    SliceKind.BACKWARD: "#6fa8dc",
    SliceKind.RECOMPUTE: "#e8770f",
    SliceKind.PAGE_OUT: "#a2359b",
    SliceKind.PAGE_IN: "#12936b",
    SliceKind.WAIT: "#b9c0c7",
}
RESIDENT, STORED, BUDGET, AREA = "#d5e3f1", "#c9a4c8", "#c62f2a", "#9dbde0"
LABELS = {
    SliceKind.FORWARD: "compute",
    SliceKind.BACKWARD: "backward",
    SliceKind.RECOMPUTE: "recompute",
    SliceKind.PAGE_OUT: "page out",
    SliceKind.PAGE_IN: "page in",
    SliceKind.WAIT: "wait",
}
_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "poetopt",
    "svg.fonttype": "path",
    "font.size": 8.0,
    "font.family": "DejaVu Sans",
}


def figure_bytes(view: View, form: str) -> bytes:
    """Return the picture as a file of the given format (`FORMATS`).

    Raises
    ------
    BackendUnavailableError
        matplotlib is not installed.
    PlanError
        The plan is not valid.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise BackendUnavailableError(
            f"a picture as {form} needs matplotlib. Install it with: pip install 'poetopt[plot]'. "
            "The formats html and txt need nothing."
        ) from error
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(8.0, 9.2), layout="constrained")
        matrix, memory, lanes = figure.subplots(3, 1, height_ratios=(5.6, 2.2, 1.0))
        memory.sharex(lanes)
        figure.suptitle(
            f"{view.title}: {_summary(view)}\n{summary.proof(view.document)}", fontsize=8.5, parse_math=False, wrap=True
        )
        _matrix(matrix, view)
        _memory(memory, view)
        _lanes(lanes, view)
        written = io.BytesIO()
        # No date and no version, so that the same plan gives the same file.
        metadata = {"Date": None, "Creator": "poetopt"} if form == "svg" else {"Software": "poetopt"}
        figure.savefig(written, format=form, dpi=180, metadata=metadata)
    return written.getvalue()


def _summary(view: View) -> str:
    simulation, baseline = view.simulation, view.problem.baseline_energy_j
    budget = f"{show_bytes(view.ram_bytes)} of RAM, " if view.ram_bytes is not None else ""
    share = f" ({show_share(simulation.overhead_j / baseline)} over one pass)" if baseline else ""
    return f"{budget}{show_joules(simulation.energy_j)}{share}, {show_seconds(simulation.makespan_s)}"


def _matrix(axes: Axes, view: View) -> None:
    problem, stages = view.problem, view.stages
    operators = len(problem.operators)
    # A tensor stands in the column of the operator that writes it, graph inputs left of all of them.
    inputs = {i: column for column, i in enumerate(problem.given, -len(problem.given))}
    producer = [inputs.get(i, tensor.producer) for i, tensor in enumerate(problem.tensors)]
    resident = []
    for buffer in view.buffers:
        if not buffer.workspace:
            first, last = stages[max(buffer.first, 0)], stages[buffer.last]
            resident.append((producer[buffer.index], first, last - first + 1))
    _rectangles(axes, [(column, stage, 1, height) for column, stage, height in resident], RESIDENT, "in RAM")
    marks: dict[SliceKind, list[tuple[int, int]]] = {kind: [] for kind in SliceKind}
    written: dict[int, int] = {}
    thin = max(0.3, operators / 900)
    stored = []
    for step, stage, again in zip(view.plan.instructions, stages, view.again, strict=True):
        if step.action is Action.COMPUTE:
            backward = problem.operators[step.target].backward
            kind = SliceKind.RECOMPUTE if again else SliceKind.BACKWARD if backward else SliceKind.FORWARD
            marks[kind].append((step.target, stage))
        elif step.action is not Action.FREE:
            column = producer[step.target]
            if step.action is Action.PAGE_IN and step.target in written:
                stored.append((column + 0.5 - thin / 2, written[step.target] + 0.5, thin, stage - written[step.target]))
            written[step.target] = stage
            marks[SliceKind.PAGE_IN if step.action is Action.PAGE_IN else SliceKind.PAGE_OUT].append((column, stage))
    _rectangles(axes, stored, STORED, "on storage")
    # With many operators, cells would be too small to be seen: recomputes and transfers get a least size.
    least = max(operators / 190, 1.0)
    for kind, cells in marks.items():
        size = least if kind in (SliceKind.RECOMPUTE, SliceKind.PAGE_OUT, SliceKind.PAGE_IN) else max(least / 2, 1.0)
        shift = (size - 1) / 2
        _rectangles(axes, [(x - shift, y - shift, size, size) for x, y in cells], COLOURS[kind], LABELS[kind])
    if 0 <= problem.last_forward < operators - 1:
        axes.axvline(problem.last_forward + 1, color="#5c6670", linewidth=0.6, linestyle=(0, (5, 4)))
    if inputs:
        axes.axvline(0, color="#5c6670", linewidth=0.6)
    axes.set(xlim=(-len(inputs), max(operators, 1)), ylim=(max(operators, 1), 0), xlabel="operator", ylabel="stage")
    axes.xaxis.set_ticks_position("top")
    axes.xaxis.set_label_position("top")
    if operators:
        axes.legend(loc="upper right", ncols=2, frameon=False)


def _memory(axes: Axes, view: View) -> None:
    moments: list[float] = []
    live: list[float] = []
    for reached, left, nbytes in zip(view.reached_s, view.left_s, view.simulation.live_bytes, strict=True):
        moments += [reached, left]
        live += [nbytes / 1e6, nbytes / 1e6]
    axes.fill_between(moments, live, color=AREA, linewidth=0)
    axes.plot(moments, live, color=COLOURS[SliceKind.FORWARD], linewidth=0.6)
    if view.ram_bytes is not None:
        axes.axhline(view.ram_bytes / 1e6, color=BUDGET, linewidth=1)
        axes.annotate(
            f"budget {show_bytes(view.ram_bytes)}", (0, view.ram_bytes / 1e6), xytext=(3, 3),
            textcoords="offset points", color=BUDGET,
        )  # fmt: skip
    top = max(view.ram_bytes or 0, view.simulation.peak_bytes, 1) / 1e6
    axes.set(ylim=(0, top * 1.18), ylabel="MB in RAM")
    axes.tick_params(labelbottom=False)


def _lanes(axes: Axes, view: View) -> None:
    place = {Lane.CPU: 1.0, Lane.CHANNEL: 0.0}
    pieces = timeline(view)
    for kind in SliceKind:
        stretches = [(p.start_s, place[p.lane] - 0.38, p.end_s - p.start_s, 0.76) for p in pieces if p.kind is kind]
        _rectangles(axes, stretches, COLOURS[kind], LABELS[kind])
    end = 1.02 * view.simulation.makespan_s or 1.0
    if view.deadline_s is not None:
        words = f"deadline {show_seconds(view.deadline_s)}"
        # a deadline of more than this many times the step is named beside the axis
        if view.deadline_s <= 1.2 * end:
            end = max(end, 1.02 * view.deadline_s)
            axes.axvline(view.deadline_s, color=BUDGET, linewidth=1)
            axes.annotate(words, (view.deadline_s, 0.5), xytext=(-3, 0), textcoords="offset points", color=BUDGET,
                          ha="right", va="center")  # fmt: skip
        else:  # on the axis it would squeeze the step to the left
            axes.annotate(f"{words} →", (1, 0.5), xycoords="axes fraction", xytext=(-3, 0), textcoords="offset points",
                          color=BUDGET, ha="right", va="center")  # fmt: skip
    axes.set(xlim=(0, end), ylim=(-0.5, 1.5), xlabel="seconds")
    axes.set_yticks([1, 0], ["CPU", "transfers"])


def _rectangles(axes: Axes, boxes: Sequence[tuple[float, float, float, float]], colour: str, label: str) -> None:
    """Draw boxes of x, y, width and height as one collection with one entry in the legend."""
    from matplotlib.collections import PolyCollection

    if boxes:
        corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y, w, h in boxes]
        axes.add_collection(PolyCollection(corners, facecolors=colour, linewidths=0, label=label))


_PARTS = ("base", "axis", "inspector", "matrix", "ram", "memory", "lanes", "energy", "tables", "main")
"""The scripts; each needs those before it."""
_ACTIONS = (Action.COMPUTE, Action.PAGE_OUT, Action.PAGE_IN, Action.FREE)


def page(view: View) -> str:
    """Return the page. Raises PlanError if the plan is not valid."""
    holes = {
        "TITLE": html.escape(view.title),
        "SUBTITLE": html.escape(_subtitle(view)),
        "FACTS": _facts(view),
        "PROOF": html.escape(summary.proof(view.document)),
        "MADE_BY": html.escape(_made_by(view)),
        "NOTES": _notes(view),
        "STYLE": _asset("page.css"),
        "DATA": _embedded(page_data(view)),
        "SCRIPT": "\n".join(_asset(f"{part}.js") for part in _PARTS),
    }
    # In one pass, so that no inserted text can contain a placeholder.
    return re.sub(r"\{\{([A-Z_]+)\}\}", lambda match: holes[match[1]], _asset("page.html"))


def frame(view: View, height: int = 900) -> str:
    """Return the page inside a frame of `height` pixels, for notebooks: its styles and keys stay its own."""
    attributes = f'style="width:100%;height:{height}px;border:0" title="{html.escape(view.title)}"'
    return f'<iframe sandbox="allow-scripts" {attributes} srcdoc="{html.escape(page(view))}"></iframe>'


def page_data(view: View) -> dict[str, object]:
    """Return the data that the page draws: tables by column, in bytes, seconds and joules, indexed as in the plan.

    `steps` has an entry for each instruction, `buffers` for each allocation, `slices` for each stretch of time on a
    lane,
    `store_all_live_bytes` for each operator. `streamed` has an entry for each compute that streams, by its instruction;
    `more_j` is its energy above a compute that doesn't. `action` counts compute, page_out, page_in, free; `kind` and
    `lane`
    are in the order of `SliceKind` and `Lane`.
    """
    problem, simulation = view.problem, view.simulation
    instructions = view.plan.instructions
    slices = timeline(view)
    kinds, lanes = list(SliceKind), list(Lane)
    return {
        "title": view.title,
        "budget_bytes": view.ram_bytes,
        "deadline_s": view.deadline_s,
        "store_all_bytes": view.document["store_all_peak_bytes"],
        "store_all_live_bytes": view.store_all_live_bytes,
        "resident_bytes": problem.resident_bytes,
        "device": view.device,
        "device_ram_bytes": problem.device_ram_bytes,
        "reserve_bytes": problem.reserve_bytes,
        "peak_bytes": simulation.peak_bytes,
        "arena_bytes": view.arena_bytes,
        "makespan_s": simulation.makespan_s,
        "baseline_energy_j": problem.baseline_energy_j,
        "energy_j": simulation.energy_j,
        "dma": problem.dma,
        "last_forward": problem.last_forward,
        "operators": {
            "name": view.operator_names,
            "kind": [shown(operator.kind) for operator in problem.operators],
            "time_s": [operator.time_s for operator in problem.operators],
            "energy_j": [operator.energy_j for operator in problem.operators],
            "workspace_bytes": [operator.workspace_bytes for operator in problem.operators],
            "backward": [int(operator.backward) for operator in problem.operators],
            "inputs": [operator.inputs for operator in problem.operators],
            "outputs": [operator.outputs for operator in problem.operators],
        },
        "tensors": {
            "name": view.tensor_names,
            "bytes": [tensor.nbytes for tensor in problem.tensors],
            "producer": [tensor.producer for tensor in problem.tensors],
            "page_in_j": [tensor.page_in_j for tensor in problem.tensors],
            "page_out_j": [tensor.page_out_j for tensor in problem.tensors],
        },
        "steps": {
            "action": [_ACTIONS.index(step.action) for step in instructions],
            "target": [step.target for step in instructions],
            "again": [int(again) for again in view.again],
            "stage": view.stages,
            "live_bytes": simulation.live_bytes,
            "start_s": simulation.start_s,
            "end_s": simulation.end_s,
            "reached_s": view.reached_s,
        },
        "buffers": {
            "index": [buffer.index for buffer in view.buffers],
            "workspace": [int(buffer.workspace) for buffer in view.buffers],
            "offset": [buffer.offset for buffer in view.buffers],
            "bytes": [buffer.nbytes for buffer in view.buffers],
            "first": [buffer.first for buffer in view.buffers],
            "last": [buffer.last for buffer in view.buffers],
        },
        "slices": {
            "lane": [lanes.index(piece.lane) for piece in slices],
            "kind": [kinds.index(piece.kind) for piece in slices],
            "step": [piece.step for piece in slices],
            "cause": [piece.cause for piece in slices],
            "start_s": [piece.start_s for piece in slices],
            "end_s": [piece.end_s for piece in slices],
        },
        "streamed": {
            str(k): {
                "in": way.streamed_in,
                "out": way.streamed_out,
                "read_bytes": way.read_bytes,
                "written_bytes": way.written_bytes,
                "more_j": way.energy_j - problem.operators[instructions[k].target].energy_j,
            }
            for k, way in streamed(view).items()
        },
        "recomputed": [{"operator": r.operator, "steps": r.steps, "energy_j": r.energy_j} for r in recomputed(view)],
        "paged": [{"tensor": p.tensor, "outs": p.outs, "ins": p.ins, "energy_j": p.energy_j} for p in paged(view)],
    }


def _embedded(data: dict[str, object]) -> str:
    """Return JSON for a script element: nothing in it can end the element or open a comment."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _subtitle(view: View) -> str:
    problem = view.problem
    backward = sum(operator.backward for operator in problem.operators)
    forward = len(problem.operators) - backward
    return (
        f"One training step: {forward:,} forward and {backward:,} backward operators, {len(problem.tensors):,} "
        f"tensors, {len(view.plan.instructions):,} instructions"
    )


CLAUSE = re.compile(r"((?:\([^)]*\)|[^(,;:]|[,;:](?! ))+)(?:[,;:] )?(.*)", flags=re.DOTALL)
"""A first clause, which may contain brackets, and the rest."""


def _facts(view: View) -> str:
    """Return the blocks of figures below the title: the answer's, and what is moved."""
    return "".join(
        f"<div class=fact><dt>{html.escape(label)}</dt><dd class=value>{html.escape(parts[1])}</dd>"
        f"<dd class=remark>{html.escape(parts[2])}</dd></div>"
        for label, text in summary.rows(view.document)
        if label in summary.FACTS and (parts := CLAUSE.match(text))
    )


def _made_by(view: View) -> str:
    """Return the claim on the schedules that were searched, and what made the plan."""
    claim, maker = summary.proof_exact(view.document), summary.made_by(view.document)
    return " ".join(part for part in (f"Searched: {claim}" if claim else "", f"{maker}." if maker else "") if part)


def _notes(view: View) -> str:
    """Return the list of the notes, and of the rows that summaries have with `--verbose`."""
    rows = [row for row in summary.rows(view.document) if row[0] == "note" or isinstance(row, Exact)]
    texts = (text if label == "note" else f"{label}: {text}" for label, text in rows)
    return "".join(f"<li>{html.escape(text)}</li>" for text in texts)


def _asset(name: str) -> str:
    return (files("poetopt.report") / "assets" / name).read_text(encoding="utf-8")
