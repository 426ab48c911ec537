"""What this package promises: its block keeps the contract of blocks, its backend that of backends."""

from __future__ import annotations

import pytest
from poetopt_wakeups.single import backend
from poetopt_wakeups.wakeups import calm, wakeups

import poetopt as po
from poetopt.problem import Problem


def test_the_block_keeps_its_contract() -> None:
    assert po.testing.check_block(wakeups(2), problems=6).binding > 0


def test_a_block_of_another_reading_does_not() -> None:
    """A bound that counts page-ins alone is weaker than what plans are judged by."""
    from dataclasses import replace

    from poetopt_wakeups.wakeups import _build

    loose = replace(wakeups(1), build=lambda block: _build(block, transfers=9))
    with pytest.raises(po.testing.ContractError):
        po.testing.check_block(loose, problems=6)


def test_the_backend_keeps_its_contract() -> None:
    po.testing.check_backend(backend)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return po.load("resnet18-cifar", batch=1).differentiate().cost("a72")


def test_it_is_found_by_name_and_has_an_effect(problem: Problem) -> None:
    free = po.solve(problem, ram="60%", scope="depth:2", gap="5%")
    few = po.solve(problem, ram="60%", scope="depth:2", gap="5%", blocks=["wakeups=2"], backend="highs-single")
    named = po.solve(problem, ram="60%", scope="depth:2", gap="5%", formulation="calm")
    for report, most in ((few, 2), (named, 4)):
        found = report.solution.simulation
        assert found is not None
        assert found.page_ins + found.page_outs <= most
    assert free.solution.simulation is not None
    assert few.solution.simulation is not None
    assert few.solution.simulation.overhead_j >= free.solution.simulation.overhead_j * 0.95
    assert po.formulations.formulation("calm").name == calm.name
