"""What is known of a plan in a few lines: for people, with figures from the simulation and the proof in words.

Energy, time and memory come from the simulator, never from the report in the plan's file; only what a simulation can't
know (the bound, its scope, the store-all peak) is the report's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from poetopt.formulations.goal import ENERGY
from poetopt.plan.transfers import overlap
from poetopt.report.objective import minimised
from poetopt.report.proof import Claim
from poetopt.report.view import View
from poetopt.report.words import during_words
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
