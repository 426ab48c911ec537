"""A plan as one HTML page that needs nothing else: no network, no other file, no server.

The page holds the plan's tables as JSON, and scripts that draw them; every figure in it is the simulator's.
Names come from models that anybody may have written, so the markup is escaped, the scripts set text and never
markup, and a content security policy forbids the page to load anything.
"""

from __future__ import annotations

import html
import json
import re
from importlib.resources import files

from poetopt.plan.instructions import Action
from poetopt.report.facts import facts, made_by, notes, number, proof, proof_exact, title
from poetopt.report.ledger import paged, recomputed, streamed
from poetopt.report.timeline import Kind, Lane, timeline
from poetopt.report.view import View
from poetopt.util.printable import shown

_PARTS = ("base", "axis", "inspector", "matrix", "ram", "memory", "lanes", "energy", "tables", "main")
"""The scripts, in the order in which they need each other."""
_ACTIONS = (Action.COMPUTE, Action.PAGE_OUT, Action.PAGE_IN, Action.FREE)


def page(view: View) -> str:
    """The page. Raises PlanError where the plan is not valid."""
    holes = {
        "TITLE": html.escape(title(view)),
        "SUBTITLE": html.escape(_subtitle(view)),
        "FACTS": _facts(view),
        "PROOF": html.escape(proof(view)),
        "MADE_BY": html.escape(_exactly(view)),
        "NOTES": _notes(view),
        "STYLE": _asset("page.css"),
        "DATA": _embedded(page_data(view)),
        "SCRIPT": "\n".join(_asset(f"{part}.js") for part in _PARTS),
    }
    # In one pass, so that nothing that is filled in can hold a hole of its own.
    return re.sub(r"\{\{([A-Z_]+)\}\}", lambda match: holes[match[1]], _asset("page.html"))


def frame(view: View, height: int = 900) -> str:
    """The page inside a frame of `height` pixels, for notebooks: its styles and keys stay its own."""
    attributes = f'style="width:100%;height:{height}px;border:0" title="{html.escape(title(view))}"'
    return f'<iframe sandbox="allow-scripts" {attributes} srcdoc="{html.escape(page(view))}"></iframe>'


def page_data(view: View) -> dict[str, object]:
    """What the page draws: tables by column, in bytes, seconds and joules, indexed as in the plan.

    `steps` has an entry an instruction, `buffers` one an allocation, `slices` one a stretch of time on a lane,
    `store_all_live_bytes` one an operator.
    `streamed` has an entry a compute that streams, by its instruction; `more_j` is what it takes above a plain one.
    `action` counts compute, page_out, page_in, free; `kind` and `lane` are in the order of `Kind` and `Lane`.
    """
    problem, simulation = view.problem, view.simulation
    instructions = view.plan.instructions
    slices = timeline(view)
    kinds, lanes = list(Kind), list(Lane)
    return {
        "title": title(view),
        "budget_bytes": view.ram_bytes,
        "deadline_s": view.deadline_s,
        "store_all_bytes": number(view, "store_all_peak_bytes"),
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
    """JSON that can stand in a script element: nothing in it can end the element or open a comment."""
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


def _facts(view: View) -> str:
    return "".join(
        f"<div class=fact><dt>{html.escape(fact.label)}</dt><dd class=value>{html.escape(fact.value)}</dd>"
        f"<dd class=remark>{html.escape(fact.remark)}</dd></div>"
        for fact in facts(view)
    )


def _exactly(view: View) -> str:
    """The exact statement of what is proven, and what made the plan."""
    exact = proof_exact(view)
    return " ".join(part for part in (f"Exactly: {exact}" if exact else "", made_by(view)) if part)


def _notes(view: View) -> str:
    return "".join(f"<li>{html.escape(note)}</li>" for note in notes(view))


def _asset(name: str) -> str:
    return (files("poetopt.report") / "assets" / name).read_text(encoding="utf-8")
