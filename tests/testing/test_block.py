"""`check_block` passes what keeps the contract and catches what doesn't."""

from __future__ import annotations

import functools
import random
from dataclasses import replace

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
from poetopt.testing.problems import crowded, tight
from poetopt.util.errors import FormulationError
from tests.seeds import some


def battery(problem: Problem) -> Block:
    return energy_budget(problem.baseline_energy_j + 2.0)


@pytest.mark.parametrize("seed", some((2, 1), 1))
def test_the_blocks_of_the_house(seed: int) -> None:
    power = check_block(static_power(0.7), seed=seed, problems=3)
    assert (power.binding, power.priced) == (0, 3)
    assert check_block(flash_wear(3), seed=seed, problems=6).binding > 0
    assert check_block(battery, seed=seed, problems=6).infeasible > 0


def test_blocks_together() -> None:
    together = po.formulations.formulation("retention").with_block(static_power(0.3))
    check_block(flash_wear(2), formulation=together, problems=6, seed=3)
    check_block(
        lambda problem: energy_budget(1.3 * problem.baseline_energy_j + 0.3 * problem.baseline_time_s + 3),
        formulation=together, problems=4, seed=4,
    )  # fmt: skip


@pytest.mark.parametrize("goal", some((TIME, WRITTEN, ENERGY), 2))
def test_a_bound_on_a_goal(goal: Goal) -> None:
    assert check_block(within(goal, 3.0), problems=3, seed=11).binding > 0


def _written(block: PyomoBlock) -> None:
    """Least written bytes: nothing else costs anything, page-ins and recomputes included."""


def test_a_goal_in_which_most_decisions_cost_nothing() -> None:
    check_block(Block("least_written", _written, restricts=False, collects=True, goal=WRITTEN), problems=8)


def _no_recomputing(block: PyomoBlock) -> None:
    """Cuts off what no rule of plans forbids: a step without recomputation."""
    r = list(block.model().recompute.r.values())
    block.within = pyo.Constraint(expr=sum(r) <= 0) if r else pyo.Constraint(expr=pyo.Constraint.Feasible)


def _nothing(block: PyomoBlock) -> None:
    """Adds no row at all."""


def _refuses_paging(trial: Trial) -> str | None:
    return "it pages" if trial.simulation.page_outs else None


def _too_dear(block: PyomoBlock) -> None:
    """Prices each recomputation at a joule that no plan pays."""
    r = list(block.model().recompute.r.values())
    block.energy_j = Terms(r, [1.0] * len(r))


def _not_terms(block: PyomoBlock) -> None:
    """Contributes a bare number."""
    block.energy_j = 3.0


def _foreign(block: PyomoBlock) -> None:
    """Contributes a variable that is in no model."""
    lost = pyo.Var(bounds=(0, 1))
    lost.construct()
    block.energy_j = Terms([lost], [1.0])


def _mute(block: PyomoBlock) -> None:
    pass


_mute.__module__ = "nowhere"


def _table(block: PyomoBlock) -> None:
    """A table that promises what isn't there.

    | symbol | attribute | unit | meaning    |
    |--------|-----------|------|------------|
    | $x$    | `missing` | -    | not there  |
    """


def _nothing_more(trial: Trial) -> float:
    return 0.0


def _no_joules(problem: Problem, baseline_j: float) -> float:
    return 0.0


def _a_joule(trial: Trial) -> float:
    return 1.0


def _seconds(block: PyomoBlock) -> None:
    """Makes recomputing longer for the model alone: a deadline would cut off plans that keep it."""
    r = list(block.model().recompute.r.values())
    block.compute_s = Terms(r, [1.0] * len(r))


def _toll(block: PyomoBlock) -> None:
    """A joule whatever is done: it decides nothing."""
    block.toll = pyo.Var(bounds=(1, 1))
    block.energy_j = Terms([block.toll], [1.0])


def _for_each(trial: Trial) -> float:
    return float(trial.simulation.recomputes)


BROKEN = {
    "cuts off the optimum": (Block("cutting", _no_recomputing, requires=("recompute",), restricts=False), "cut"),
    "dearer than its plans": (
        Block("dear", _too_dear, requires=("recompute",), restricts=False, adds_j=_nothing_more, base_j=_no_joules),
        "prices the schedule",
    ),
    "a price that is never paid": (
        Block("free", _nothing, restricts=False, adds_j=_nothing_more, base_j=_no_joules),
        "in none of 8 problems do two schedules pay different prices",
    ),
    "a price that is always the same": (
        Block("toll", _toll, restricts=False, adds_j=_a_joule, base_j=_no_joules),
        "in none of 8 problems do two schedules pay different prices",
    ),
    "a price that the model doesn't know": (
        Block("secret", _nothing, restricts=False, adds_j=_for_each, base_j=_no_joules),
        "disagree",
    ),
    "seconds that no plan takes": (
        Block("slow", _seconds, requires=("recompute",), restricts=False),
        "the model counts its compute_s, and no judgement of a plan does",
    ),
    "no terms": (Block("bare", _not_terms, restricts=False), "must be made by `terms`"),
    "judged by nobody": (
        Block("unjudged", _too_dear, requires=("recompute",), restricts=False),
        "adds energy_j to the model.*give it adds_j",
    ),
    "another's variable": (
        Block("foreign", _foreign, restricts=False, adds_j=_nothing_more, base_j=_no_joules),
        "not one of the model's",
    ),
    "no judgement": (Block("silent", _nothing), "give it `refuses`"),
    "no docstring": (Block("mute", _mute, restricts=False), "docstring"),
    "a false table": (Block("table", _table, restricts=False), "doesn't set"),
    "a lambda": (Block("local", _nothing, refuses=lambda trial: None), "pickle"),
    "no identifier": (Block("two words", _nothing, restricts=False), "identifier"),
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


def test_some_problems_need_several_decisions() -> None:
    done = check_block(few(rule=1, rows=1), problems=6)
    assert done.binding > 0
    assert min(done.recomputes, done.page_ins) >= 2
    # rows that ask for less than the rule: what it refuses is left out plan by plan, and the optimum is still proven
    assert check_block(few(rule=1, rows=2), problems=6).binding > 0
    assert check_block(Block("weak", _nothing, refuses=_refuses_paging), problems=3).binding > 0  # no rows at all


def test_problems_of_ones_own() -> None:
    problem, ram_bytes = crowded(random.Random(0), again=True)
    done = check_block(few(rule=1, rows=1), problems=[(problem, ram_bytes)])
    assert (done.problems, done.binding) == (1, 1)
    larger, room = tight(random.Random(1), forward=6)
    with pytest.raises(ContractError, match="give a smaller problem"):
        check_block(few(rule=1, rows=1), problems=[(larger, room)])
    with pytest.raises(ContractError, match="a problem at least"):
        check_block(few(rule=1, rows=1), problems=[])


@pytest.mark.parametrize("case", BROKEN)
def test_broken_blocks_are_caught(case: str) -> None:
    block, complaint = BROKEN[case]
    with pytest.raises(ContractError, match=complaint):
        check_block(block, problems=8)


def test_a_block_that_never_has_a_schedule_shows_nothing() -> None:
    with pytest.raises(ContractError, match="nothing was compared"):
        check_block(energy_budget(1e-3), problems=3)


def test_a_block_that_can_not_stand_there() -> None:
    with pytest.raises(FormulationError, match="requires thermal"):
        check_block(Block("hot", _nothing, requires=("thermal",), restricts=False), problems=1)


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


def test_memory_that_a_block_takes_is_left_free() -> None:
    base = po.formulations.formulation("retention")
    buffer = Block("buffer", _nothing, restricts=False, reserve_bytes=_two_bytes)
    draw = random.Random(6)
    for _ in range(6):
        problem, ram_bytes = tight(draw, forward=3)
        formulation = base.with_block(buffer)
        with_buffer = po.solve(problem, ram=ram_bytes + 2, formulation=formulation, scope="forward", gap=1e-9)
        without = po.solve(problem, ram=ram_bytes, scope="forward", gap=1e-9)
        assert with_buffer.solution.simulation is not None
        assert without.solution.simulation is not None
        assert with_buffer.solution.simulation.overhead_j == pytest.approx(without.solution.simulation.overhead_j)
        assert with_buffer.solution.simulation.peak_bytes <= ram_bytes


def _two_bytes(problem: Problem) -> int:
    return 2


def test_a_formulation_with_a_block_describes_itself() -> None:
    base = po.formulations.formulation("retention")
    made = base.with_block(flash_wear(1000))
    assert made.doc.startswith("retention with the block flash_wear")
    assert flash_wear(1000).says in made.doc
    assert base.with_block(flash_wear(1000), doc="Spares the card.").doc == "Spares the card."


def test_collecting_blocks_stand_last() -> None:
    base = po.formulations.formulation("retention")
    names = [block.name for block in base.with_block(flash_wear(1), Block("early", _nothing)).blocks]
    assert names.index("early") < names.index("deadline") < names.index("flash_wear")
    with pytest.raises(FormulationError, match="has a block 'flash_wear' already"):
        base.with_block(flash_wear(1), flash_wear(2))
    second = replace(energy_budget(3.0), name="another")
    with pytest.raises(FormulationError, match="each say what to minimise"):
        base.with_block(energy_budget(3.0), second)
