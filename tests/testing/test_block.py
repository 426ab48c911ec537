"""`check_block` passes what keeps the contract and catches what doesn't."""

from __future__ import annotations

import functools
import random

import pyomo.environ as pyo
import pytest

import poetopt as po
from poetopt.formulations.energy_budget import energy_budget
from poetopt.formulations.flash_wear import flash_wear
from poetopt.formulations.goal import ENERGY, TIME, WRITTEN, Goal, Trial
from poetopt.formulations.language import Block, PyomoBlock
from poetopt.formulations.rows import Terms
from poetopt.formulations.static_power import static_power
from poetopt.formulations.within import within
from poetopt.graph.problem import Problem
from poetopt.testing import ContractError, check_block
from poetopt.testing.problems import tight
from tests.seeds import some


def battery(problem: Problem) -> Block:
    return energy_budget(problem.baseline_energy_j + 2.0)


@pytest.mark.parametrize("seed", some((2, 1), 1))
def test_the_blocks_of_the_house(seed: int) -> None:
    power = check_block(static_power(0.7), seed=seed, problems=3)
    assert (power.binding, power.priced) == (0, 3)
    assert check_block(flash_wear(3), seed=seed, problems=6).binding > 0
    assert check_block(battery, seed=seed, problems=6).infeasible > 0


@pytest.mark.parametrize("goal", some((TIME, WRITTEN, ENERGY), 2))
def test_a_bound_on_a_goal(goal: Goal) -> None:
    assert check_block(within(goal, 3.0), problems=3, seed=11).binding > 0


def _no_recomputing(block: PyomoBlock) -> None:
    """Cuts off what no rule of plans forbids: a step without recomputation."""
    r = list(block.model().recompute.r.values())
    block.within = pyo.Constraint(expr=sum(r) <= 0) if r else pyo.Constraint(expr=pyo.Constraint.Feasible)


def _nothing(block: PyomoBlock) -> None:
    """Adds no row at all."""


def _too_dear(block: PyomoBlock) -> None:
    """Prices each recomputation at a joule that no plan pays."""
    r = list(block.model().recompute.r.values())
    block.energy_j = Terms(r, [1.0] * len(r))


def _mute(block: PyomoBlock) -> None:
    pass


_mute.__module__ = "nowhere"


def _nothing_more(trial: Trial) -> float:
    return 0.0


def _no_joules(problem: Problem, baseline_j: float) -> float:
    return 0.0


def _for_each(trial: Trial) -> float:
    return float(trial.simulation.recomputes)


BROKEN = {
    "cuts off the optimum": (Block("cutting", _no_recomputing, requires=("recompute",), restricts=False), "cut"),
    "dearer than its plans": (
        Block("dear", _too_dear, requires=("recompute",), restricts=False, adds_j=_nothing_more, base_j=_no_joules),
        "prices the schedule",
    ),
    "a price that the model doesn't know": (
        Block("secret", _nothing, restricts=False, adds_j=_for_each, base_j=_no_joules),
        "disagree",
    ),
    "judged by nobody": (
        Block("unjudged", _too_dear, requires=("recompute",), restricts=False),
        "adds energy_j to the model.*Give the block adds_j",
    ),
    "no judgement": (Block("silent", _nothing), "give it `refuses`"),
    "a lambda": (Block("local", _nothing, refuses=lambda trial: None), "pickle"),
}


def _at_most(block: PyomoBlock, *, most: int) -> None:
    """sum r <= N."""
    r = list(block.model().recompute.r.values())
    block.within = pyo.Constraint(expr=sum(r) <= most) if r else pyo.Constraint(expr=pyo.Constraint.Feasible)


def _more_than(trial: Trial, *, most: int) -> str | None:
    return f"it recomputes more than {most} times" if trial.simulation.recomputes > most else None


def few(rule: int, rows: int) -> Block:
    """At most `rule` recomputes, and rows that ask for at most `rows`."""
    build, judge = functools.partial(_at_most, most=rows), functools.partial(_more_than, most=rule)
    return Block("few", build, requires=("recompute",), refuses=judge)


def test_a_block_that_never_binds_is_not_passed_in_silence() -> None:
    with pytest.raises(ContractError, match=r"in none of 3 problems .* up to \d recomputes .* limit that binds"):
        check_block(few(rule=99, rows=99), problems=3)
    assert check_block(static_power(1.0), problems=1).binding == 0  # it restricts nothing


@pytest.mark.parametrize("case", BROKEN)
def test_broken_blocks_are_caught(case: str) -> None:
    block, complaint = BROKEN[case]
    with pytest.raises(ContractError, match=complaint):
        check_block(block, problems=8)


def test_an_undeclared_rule_still_holds_in_a_solve() -> None:
    """A block that says not which plans it forbids makes the formulation strict: no heuristic's plan slips through."""
    base = po.formulations.formulation("retention")
    never = Block("never", _no_recomputing, requires=("recompute",))
    draw = random.Random(5)
    seen = 0
    for _ in range(12):
        problem, ram_bytes = tight(draw, forward=3)
        try:
            report = po.solve(problem, ram=ram_bytes, formulation=base.with_block(never), scope="forward")
        except po.PoetError:
            continue
        assert report.solution.simulation is not None
        assert report.solution.simulation.recomputes == 0
        seen += 1
    assert seen
