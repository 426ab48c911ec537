"""A step whose runs stream, from `po.solve` to a file and the page; and lenet's least RAM."""

from __future__ import annotations

import pytest

import poetopt as po
from poetopt.report.inspection import needs
from poetopt.util.errors import InfeasibleError


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
