"""Fronts as text for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from poetopt.compare.deadlines import DeadlineFront
from poetopt.compare.pareto import Front
from poetopt.compare.refine import Point
from poetopt.compare.rows import proof_words
from poetopt.formulations.scope import kind_words
from poetopt.graph.problem import Problem
from poetopt.report.comparison import columns, kinds_legend, share
from poetopt.search.solution import OPTIMAL_GAP
from poetopt.util.units import show_bytes, show_joules, show_seconds, show_share

HEADER = ("overhead", "of baseline", "at least", "gap", "makespan", "moves", "took", "proof")
MOST_DIGITS = 17
"""Beyond them floats don't differ."""
LEGEND = "moves: recomputes + page-ins; at least: no schedule of the kind searched has less overhead"


def front_lines(front: Front) -> list[str]:
    """The front as a table."""
    problem = front.problem
    known = "feasible" if front.least_is_proven else "known feasible"
    least = f"smallest {known} RAM {front.least_ram_bytes:,} B ({show_bytes(front.least_ram_bytes)})"
    proof = "proven" if front.least_is_proven else f"no schedule has less than {front.ram_bound_bytes:,} B"
    table: list[tuple[str, ...]] = [("RAM", "of store-all", *HEADER)]
    for point in front.points:
        of_all = show_share(point.ram_budget_bytes / front.store_all_peak_bytes)
        table.append((f"{point.ram_budget_bytes:,} B", of_all, *_cells(point, problem)))
    return [
        f"{problem.name} on {problem.device}: {len(front.points)} points in {show_seconds(front.total_s)}; "
        f"{least}, {proof}",
        *columns(table),
        LEGEND,
        *kinds_legend(point.scope for point in front.points)[1:],
    ]


def deadline_lines(front: DeadlineFront) -> list[str]:
    """The front against the deadline as a table."""
    problem = front.problem
    budget = front.ram_budget_bytes
    least = (
        f"shortest {'' if front.least_is_proven else 'known '}feasible deadline {show_seconds(front.least_deadline_s)}"
    )
    if front.deadline_bound_s <= problem.baseline_time_s:
        known = f"one pass takes {show_seconds(front.deadline_bound_s)}"
    else:
        known = f"no schedule with {kind_words(front.bound_scope)} keeps {show_seconds(front.deadline_bound_s)}"
    table: list[tuple[str, ...]] = [("deadline", "of a pass", *HEADER)]
    deadlines = [point.deadline_s or 0.0 for point in front.points]
    one_pass = problem.baseline_time_s
    passes = told_apart([time / one_pass if one_pass else 0.0 for time in deadlines], "{:.{}g}x".format, 5)
    for point, time, times in zip(front.points, told_apart(deadlines, _seconds, 3), passes, strict=True):
        table.append((time, times if one_pass else "-", *_cells(point, problem)))
    return [
        f"{problem.name} on {problem.device} with {budget:,} B ({show_share(budget / front.store_all_peak_bytes)} of "
        f"store-all): {len(front.points)} points in {show_seconds(front.total_s)}",
        f"  {least}, {'proven: ' if front.least_is_proven else ''}{known}; more than "
        f"{show_seconds(front.points[-1].deadline_s or 0.0)} saves nothing",
        *columns(table),
        LEGEND,
        *kinds_legend(point.scope for point in front.points)[1:],
    ]


def told_apart(values: Sequence[float], show: Callable[[float, int], str], digits: int) -> list[str]:
    """Each value with so many digits, or with as many more as tell different ones apart."""
    while True:
        shown = [show(value, digits) for value in values]
        if len(set(shown)) == len(set(values)) or digits >= MOST_DIGITS:
            return shown
        digits += 1


def _seconds(time: float, digits: int) -> str:
    if digits <= 3:
        return show_seconds(time)
    return f"{time:.{digits}g} s" if time >= 1 else f"{1e3 * time:.{digits}g} ms"


def _cells(point: Point, problem: Problem) -> tuple[str, ...]:
    return (
        show_joules(point.overhead_j),
        share(point.overhead_j, problem.baseline_energy_j),
        show_joules(point.overhead_bound_j),
        show_share(point.overhead_gap if point.overhead_gap > OPTIMAL_GAP else 0.0),
        show_seconds(point.makespan_s),
        f"{point.recomputes} + {point.page_ins}",
        show_seconds(point.solve_s),
        proof_words(point, gap=False),
    )
