"""Prices of joules, and the larger share of battery and flash: blocks whose weights aren't the simulator's joules."""

from __future__ import annotations

import random

import pytest
from poetopt_wakeups.endurance import endurance
from poetopt_wakeups.tariff import tariff

import poetopt as po
from poetopt.formulations.block import Block
from poetopt.formulations.energy_budget import energy_budget
from poetopt.formulations.static_power import static_power
from poetopt.graph.problem import Problem
from poetopt.testing import check_block
from poetopt.testing.problems import tight


@pytest.mark.parametrize("steps", [((1.0, 2.0), (2.0, 0.25)), ((-2.0, 3.0), (1.0, 0.0))])
def test_a_tariff_on_what_stands_before_it(steps: tuple[tuple[float, float], ...]) -> None:
    """Rising and falling prices, of computes and transfers, and of idle power too."""
    together = po.formulations.formulation("retention").with_block(static_power(0.5))

    def made(problem: Problem) -> Block:
        base = problem.baseline_energy_j + 0.5 * problem.baseline_time_s
        return tariff(*((base + above, factor) for above, factor in steps))

    assert check_block(made, formulation=together, problems=3).priced >= 2


def test_the_larger_share_of_battery_and_flash() -> None:
    def made(problem: Problem) -> Block:
        return endurance(20 * problem.baseline_energy_j, 60)

    check_block(made, problems=4, seed=2)


def test_prices_see_those_before_them_in_both_orders() -> None:
    problem, ram_bytes = tight(random.Random(3), forward=3)
    base = po.formulations.formulation("retention")
    power, prices = static_power(1.0), tariff((0.0, 2.0))
    found = []
    for blocks in ((power, prices), (prices, power)):
        together = base.with_block(energy_budget(1e6), *blocks)  # a limit stands behind prices wherever it is given
        assert [block.name for block in together.blocks[-3:]] == [*(block.name for block in blocks), "energy_budget"]
        together = base.with_block(*blocks)
        assert together.baseline_j(problem) == together.build(problem, ram_bytes=ram_bytes).baseline_j
        report = po.solve(problem, ram=ram_bytes, formulation=together, scope="forward", gap=1e-9)
        objective, simulation = report.solution.objective, report.solution.simulation
        assert objective is not None
        assert simulation is not None
        assert objective.value is not None
        whole = objective.baseline + objective.value
        first = together.blocks[-2].name
        doubled = 2 * simulation.energy_j + simulation.makespan_s * (2 if first == "static_power" else 1)
        assert whole == pytest.approx(doubled)
        assert objective.bound == pytest.approx(objective.value, abs=1e-6)
        found.append(whole)
    assert found[0] > found[1]
