"""Views of random plans, and names that nobody should be able to do harm with."""

from __future__ import annotations

import random
from dataclasses import replace

from poetopt.plan.assemble import store_all_bytes
from poetopt.plan.layout import lay_out
from poetopt.plan.simulate import simulate
from poetopt.report.view import View
from tests.support.problems import random_plan, random_problem

HOSTILE = (
    "</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "<!--", "{{DATA}}", "\x1b[31mred\x07",
    "\u202eevil\u2066", "$\\frac{1}{", "\ud800", "&amp;\"'", "two\nlines\tand a tab\u2028", "", "twice", "twice",
    "long/" * 120, "ünï/コード 😀",
)  # fmt: skip


def random_view(seed: int, *, dma: bool | None = None, laid_out: bool = True, operators: int | None = None) -> View:
    """A random valid plan with a budget that it just keeps, and a report as the solve loop writes it."""
    rng = random.Random(seed)
    with_dma = rng.random() < 0.5 if dma is None else dma
    problem = random_problem(rng, operators=operators or rng.randint(1, 9), dma=with_dma)
    problem = replace(problem, reserve_bytes=rng.choice((0, 7)), resident_bytes=rng.choice((0, 9)))
    plan = random_plan(rng, problem)
    simulation = simulate(plan)
    report = {
        "status": "feasible", "scope": "depth<=2", "overhead_j": simulation.overhead_j,
        "overhead_bound_j": simulation.overhead_j / 2, "store_all_peak_bytes": store_all_bytes(problem),
        "formulation": "retention", "backend": "highs", "total_s": 1.5,
    }  # fmt: skip
    return View(lay_out(plan) if laid_out else plan, simulation.peak_bytes, simulation.makespan_s * 1.5, report)


def hostile_view(seed: int = 3) -> View:
    """A random plan whose model, device, operators, tensors and report have hostile names."""
    view = random_view(seed, operators=2 * len(HOSTILE))
    problem = view.problem
    named = replace(
        problem,
        name=HOSTILE[0],
        device=HOSTILE[1],
        operators=tuple(
            replace(o, name=HOSTILE[k % len(HOSTILE)], kind=HOSTILE[-1 - k % 9])
            for k, o in enumerate(problem.operators)
        ),
        tensors=tuple(replace(t, name=HOSTILE[k % len(HOSTILE)]) for k, t in enumerate(problem.tensors)),
    )
    report = {
        **view.report,
        "scope": HOSTILE[0],
        "formulation": HOSTILE[1],
        "backend": HOSTILE[4],
        "notes": list(HOSTILE),
    }
    return replace(view, plan=replace(view.plan, problem=named), report=report)
