"""Three blocks that care in which stage a tensor is moved, and a brute force over all such schedules.

The blocks are written as a user would, one text for every formulation. The brute force knows no formulation: it goes
through recomputes, page-ins and page-outs in every stage, as far as they cost less than what is claimed.
"""

from __future__ import annotations

import functools
import itertools

import pyomo.environ as pyo
import pytest

from poetopt.formulations.block import Block, PyomoBlock
from poetopt.formulations.decisions import page_ins, page_outs, recomputes
from poetopt.formulations.goal import Trial
from poetopt.formulations.language import Formulation
from poetopt.formulations.rows import Terms
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import plan_of
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.testing.exhaustive import keeps_stage_rules, thrifty
from poetopt.util.errors import PlanError

TOLERANCE = 1e-9


# A cap on page-outs while the forward pass runs.


def _few_outs(block: PyomoBlock, *, most: int) -> None:
    """sum of the page-outs in forward stages <= N."""
    model = block.model()
    last = model.space.problem.last_forward
    early = [out.variable for out in page_outs(model) if out.stage <= last]
    block.within = pyo.Constraint(expr=sum(early) <= most if early else pyo.Constraint.Feasible)


def _many_outs(trial: Trial, *, most: int) -> str | None:
    early = sum(stage <= trial.plan.problem.last_forward for stage, _ in trial.page_outs)
    return f"{early} page-outs while the forward pass runs" if early > most else None


def forward_outs(most: int = 0) -> Block:
    """At most so many tensors are written out before the last forward operator is done."""
    build, refuses = functools.partial(_few_outs, most=most), functools.partial(_many_outs, most=most)
    return Block("forward_outs", build, requires=("paging",), refuses=refuses)


# Joules have two prices: dearer before a stage, or from it on.


def _dear(stage: int, since: int, early: bool) -> bool:
    return (stage < since) == early


def _priced(block: PyomoBlock, *, since: int, early: bool, more: float) -> None:
    """E = more * the joules of what is decided in dear stages."""
    model = block.model()
    operators, tensors = model.space.problem.operators, model.space.problem.tensors
    parts = [(one, operators[one.target].energy_j) for one in recomputes(model)]
    parts += [(one, tensors[one.target].page_in_j) for one in page_ins(model)]
    parts += [(one, tensors[one.target].page_out_j) for one in page_outs(model)]
    dear = [(one.variable, more * joules) for one, joules in parts if _dear(one.stage, since, early)]
    block.energy_j = Terms([variable for variable, _ in dear], [joules for _, joules in dear])


def _pays(trial: Trial, *, since: int, early: bool, more: float) -> float:
    operators, tensors = trial.plan.problem.operators, trial.plan.problem.tensors
    parts = [(stage, operators[j].energy_j) for stage, j in trial.recomputes]
    parts += [(stage, tensors[i].page_in_j) for stage, i in trial.page_ins]
    parts += [(stage, tensors[i].page_out_j) for stage, i in trial.page_outs]
    return more * sum(joules for stage, joules in parts if _dear(stage, since, early))


def _pass_pays(problem: Problem, before_j: float, *, since: int, early: bool, more: float) -> float:
    return more * sum(one.energy_j for t, one in enumerate(problem.operators) if _dear(t, since, early))


def two_tariffs(since: int, *, early: bool = True, more: float = 3.0) -> Block:
    """Joules of the stages before `since` (`early`), or of it and all after it, cost 1 + `more` times as much."""
    bound = {"since": since, "early": early, "more": more}
    return Block(
        "two_tariffs",
        functools.partial(_priced, **bound),  # type: ignore[arg-type]
        restricts=False,
        adds_j=functools.partial(_pays, **bound),  # type: ignore[arg-type]
        base_j=functools.partial(_pass_pays, **bound),  # type: ignore[arg-type]
        transfer_times=True,
    )


# The loss is known by a time.


def _by(block: PyomoBlock, *, limit_s: float) -> None:
    """Seconds of all that comes before the last forward operator, and its own, are at most mu (one after another)."""
    model = block.model()
    problem = model.space.problem
    last, tensors = problem.last_forward, problem.tensors
    parts = [(one, problem.operators[one.target].time_s) for one in recomputes(model)]
    if not problem.dma:
        parts += [(one, tensors[one.target].page_in_s) for one in page_ins(model)]
        parts += [(one, tensors[one.target].page_out_s) for one in page_outs(model)]
    room = limit_s - sum(one.time_s for one in problem.operators[: last + 1])
    before = [seconds * one.variable for one, seconds in parts if one.stage <= last and seconds]
    block.within = pyo.Constraint(expr=sum(before) <= room + TOLERANCE if before else pyo.Constraint.Feasible)


def _known_s(trial: Trial) -> float:
    last = trial.plan.problem.last_forward
    steps = zip(trial.plan.instructions, trial.simulation.end_s, strict=True)
    return next((end for step, end in steps if step.action == "compute" and step.target == last), 0.0)


def _later(trial: Trial, *, limit_s: float) -> str | None:
    known = _known_s(trial)
    return f"the loss is known after {known:g} s" if known > limit_s + TOLERANCE else None


def loss_by(limit_s: float) -> Block:
    """The last forward operator is done for the first time by `limit_s`."""
    build, refuses = functools.partial(_by, limit_s=limit_s), functools.partial(_later, limit_s=limit_s)
    return Block("loss_by", build, requires=("paging",), refuses=refuses)


# All schedules.


def cheaper(problem: Problem, ram_bytes: int, judge: Formulation, below: float) -> tuple[float, Schedule] | None:
    """The cheapest schedule of all with a value under `below`, by going through them; None: there is none.

    A strict formulation's are those of Algorithm 1.
    """
    least = [below]
    found: Schedule | None = None
    stages = range(len(problem.operators))
    again = [(t, j) for t in stages for j in range(t) if problem.operators[j].recomputable]
    back = itertools.product(stages, range(len(problem.tensors)))
    for joules, schedule in thrifty(problem, again, back if problem.paging else (), lambda: least[0]):
        plan = plan_of(problem, schedule)
        try:
            trial = judge.trial(plan, simulate(plan, ram_bytes=ram_bytes))
        except PlanError:
            continue
        assert trial.simulation.overhead_j == pytest.approx(joules)
        value = judge.goal.value(trial)
        if value >= least[0] or judge.refusal(trial) is not None:
            continue
        if not judge.strict or keeps_stage_rules(problem, schedule, ram_bytes):
            least[0], found = value, schedule
    return None if found is None else (least[0], found)
