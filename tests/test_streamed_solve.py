"""A step whose runs stream, from `po.solve` to a file, the page and the compact form; and lenet's least RAM."""

from __future__ import annotations

from pathlib import Path

import pytest

import poetopt as po
from poetopt.plan.codec import load
from poetopt.plan.compact import decode_compact, encode_compact
from poetopt.report.inspection import needs
from poetopt.util.errors import InfeasibleError
from tests.plan.test_streamed import network
from tests.plan.three_steps import run_thrice


def test_a_hand_made_problem_goes_all_the_way(tmp_path: Path) -> None:
    problem = network()
    report = po.solve(problem, ram=problem.least_ram_bytes)
    said = report.to_dict()
    assert (said["status"], said["streamed_runs"], said["bytes_streamed"]) == ("optimal", 3, 90)
    assert said["bytes_written"] == 50
    assert "3 runs streamed" in str(report)
    assert report.plan is not None
    run_thrice(report.plan, problem.least_ram_bytes)
    file = tmp_path / "plan.json"
    report.save(file)
    assert load(file).plan == report.plan
    assert decode_compact(problem, encode_compact(report.plan)).instructions == report.plan.instructions
    po.show(file, out=tmp_path / "page.html")
    assert ", streaming" in (tmp_path / "page.html").read_text()


def test_lenet_trains_in_a_tenth_of_what_its_largest_operator_takes() -> None:
    problem = po.load("lenet", batch=1).differentiate(optimizer="sgd").cost("m4", parameters="paged")
    largest = max(map(problem.working_set_bytes, range(len(problem.operators))))
    found = needs(problem)
    assert found.least_ram_bytes == found.ram_bound_bytes
    assert found.ram_bound_bytes + problem.beside_bytes <= 24_000 < largest / 8
    plain = po.load("lenet", batch=1).differentiate(optimizer="sgd").cost("m4", parameters="paged", stream="never")
    assert not any(operator.variants for operator in plain.operators)
    assert plain.least_ram_bytes == largest
    with pytest.raises(InfeasibleError, match="bytes that any schedule of plain runs needs"):
        po.solve(plain, ram=largest - 1, time_limit=1)
