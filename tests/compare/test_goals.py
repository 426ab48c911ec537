"""Several goals against all schedules of small problems: each point is the least that there is, and proven."""

from __future__ import annotations

import random

import pytest

import poetopt as po
from poetopt.formulations.block import Limits
from poetopt.formulations.goal import ENERGY, TIME, WRITTEN, Goal, Trial
from poetopt.formulations.language import Formulation
from poetopt.formulations.retention.enumeration import retention_space
from poetopt.formulations.static_power import static_power
from poetopt.graph.problem import Problem
from poetopt.testing.exhaustive import FEW_DECISIONS, accepted, decisions, valid
from poetopt.testing.problems import tight
from poetopt.util.errors import InfeasibleError, OptionError
from tests.seeds import some

RETENTION = po.formulations.formulation("retention")


def trials(seed: int, formulation: Formulation) -> tuple[Problem, int, list[Trial]]:
    """A problem, its budget, and all schedules of `forward`, of which some write and some don't."""
    rng = random.Random(500 + seed)
    while True:
        problem, ram_bytes = tight(rng, forward=3)
        space = retention_space(problem, Limits(ram_bytes=ram_bytes), "forward", True, True, False)
        if not 4 <= sum(map(len, decisions(space))) <= FEW_DECISIONS:
            continue
        found = [trial for _, trial in accepted(formulation, valid(space, ram_bytes), ram_bytes)]
        least = min(found, key=ENERGY.value)
        if len(found) > 1 and WRITTEN.value(least) > min(map(WRITTEN.value, found)):
            return problem, ram_bytes, found


def least(found: list[Trial], goal: Goal, *bounds: tuple[Goal, float]) -> float:
    """Of the schedules within the bounds."""
    return min(goal.value(trial) for trial in found if all(other.value(trial) <= most + 1e-9 for other, most in bounds))


@pytest.mark.parametrize("seed", some(range(6), 2))
def test_a_front_is_the_least_for_each_bound(seed: int) -> None:
    problem, ram_bytes, found = trials(seed, RETENTION)
    front = po.front(problem, ram=ram_bytes, points=4, scope="forward", gap=1e-9)
    for point in front.points:
        energy, written = point.values
        bounds = [] if point.most is None else [(WRITTEN, point.most)]
        assert energy == pytest.approx(least(found, ENERGY, *bounds))
        assert written == pytest.approx(least(found, WRITTEN, (ENERGY, energy)))
        assert point.bounds == pytest.approx(point.values, abs=1e-6)
        assert set(point.statuses) == {"optimal"}
    assert front.points[0].values[0] == pytest.approx(least(found, ENERGY))
    assert front.points[-1].values[1] == pytest.approx(least(found, WRITTEN))
    energies = [point.values[0] for point in front.points]
    assert energies == sorted(energies)
    assert len(front.points) > 1
    assert "bytes written" in str(front)
    assert len(front.to_dict()["points"]) == len(front.points)  # type: ignore[arg-type]


def test_goals_in_turn_with_a_price_among_them() -> None:
    together = RETENTION.with_block(static_power(0.4))
    problem, ram_bytes, found = trials(3, together)
    point = po.lexicographic(
        problem, goals=("written", "time", "energy"), ram=ram_bytes, formulation=together, scope="forward", gap=1e-9
    )
    written = least(found, WRITTEN)
    late = least(found, TIME, (WRITTEN, written))
    assert point.values == pytest.approx((written, late, least(found, ENERGY, (WRITTEN, written), (TIME, late))))


def test_what_can_not_be_asked() -> None:
    problem, ram_bytes = tight(random.Random(1), forward=3)
    for goals in (("energy",), ("energy", "energy"), ("energy", "wear"), "energy"):
        with pytest.raises(OptionError, match=r"goal"):
            po.lexicographic(problem, goals=goals, ram=ram_bytes)
    with pytest.raises(OptionError, match="two ends"):
        po.front(problem, ram=ram_bytes, points=1)
    quickest = RETENTION.with_block(po.formulations.energy_budget.quickest())
    with pytest.raises(OptionError, match="without a goal of its own"):
        po.front(problem, ram=ram_bytes, formulation=quickest)
    with pytest.raises(InfeasibleError, match="no schedule"):
        po.front(problem, ram=f"{problem.least_ram_bytes - 1}B")
