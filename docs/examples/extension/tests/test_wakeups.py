"""What this package promises: its block keeps the contract of blocks, its backend finds the optimum."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from poetopt_wakeups.dearest import dearest
from poetopt_wakeups.single import backend
from poetopt_wakeups.wakeups import calm, wakeups

import poetopt as po
from poetopt.graph.problem import Problem
from poetopt.testing.problems import tight


def test_the_block_keeps_its_contract() -> None:
    assert po.testing.check_block(wakeups(2), problems=6).binding > 0


def test_a_block_of_another_reading_does_not() -> None:
    """A bound that counts page-ins alone is weaker than what plans are judged by."""
    from dataclasses import replace

    from poetopt_wakeups.wakeups import _build

    loose = replace(wakeups(1), build=lambda block: _build(block, transfers=9))
    with pytest.raises(po.testing.ContractError):
        po.testing.check_block(loose, problems=6)


def test_the_backend_finds_what_highs_finds() -> None:
    problem, ram_bytes = tight(random.Random(0), forward=4)
    ours, theirs = (po.solve(problem, ram=ram_bytes, gap=0, backend=name) for name in (backend, "highs"))
    assert ours.status == theirs.status == "optimal"
    assert ours.to_dict()["overhead_j"] == pytest.approx(theirs.to_dict()["overhead_j"])


def test_the_gradient_rule_is_right() -> None:
    x = np.random.default_rng(0).standard_normal((3, 5))
    x[np.abs(np.abs(x) - 0.3) < 0.02] += 0.1  # away from the kinks
    # the runtime's kernel rounds to float32 inside
    po.testing.check_vjp("Shrink", x, attributes={"lambd": 0.3, "bias": 0.1}, tolerance=1e-3)


def test_a_network_of_its_own_format(tmp_path: Path) -> None:
    """From file to execution, through the frontend and the gradient rule; and what it says of a bad file."""
    path = tmp_path / "net.layers"
    path.write_text("input 64\nlinear 32\nshrink 0.3\nlinear 10\n", encoding="utf-8")
    problem = po.load(path, batch=4).differentiate().cost("a72")
    assert problem.model_ref == str(path)
    report = po.solve(problem, ram="100%")
    report.save(tmp_path / "plan.json")
    assert po.execute(po.load_plan(tmp_path / "plan.json")).bit_identical
    path.write_text("input 64\nconv 3\n", encoding="utf-8")
    with pytest.raises(po.PoetError, match=r"net\.layers: line 2: no layer is called 'conv'"):
        po.load(path)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return po.load("resnet18-cifar", batch=1).differentiate().cost("a72")


def test_it_is_found_by_name_and_has_an_effect(problem: Problem) -> None:
    free = po.solve(problem, ram="60%", scope="forward", gap="5%")  # plans of other scopes lie in this one
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


def test_the_method_beside_the_optimum(problem: Problem) -> None:
    found = po.compare(problem, ram=["80%"], methods=["poet", dearest], time_limit="10s")
    rows = {row.method: row for row in found.rows}
    assert set(rows) == {"poet", "dearest"}
    assert rows["dearest"].peak_bytes is not None
    assert rows["dearest"].peak_bytes <= found.budgets[0]
    least, theirs = rows["poet"].energy_j, rows["dearest"].energy_j
    assert least is not None
    assert theirs is not None
    assert least <= theirs
