"""The counter-examples of docs/retention.md: each inequality between the spaces is strict somewhere."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from poetopt.formulations import formulation as formulation_of
from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import Options, Status
from tests.support.bruteforce import stage_optimum
from tests.support.closed import closed
from tests.support.every_plan import least_overhead_j

CHEAP = Transfers(page_in_j=1.0, page_out_j=1.0)
DEAR = Transfers(page_in_j=10.0, page_out_j=10.0)
NEVER = Transfers(page_in_j=50.0, page_out_j=50.0)


def operator(
    name: str,
    reads: tuple[int, ...],
    writes: tuple[int, ...],
    energy_j: float,
    workspace: int,
    *,
    backward: bool = False,
) -> ProblemOperator:
    return ProblemOperator(name, reads, writes, 1.0, energy_j, workspace_bytes=workspace, backward=backward)


def write_at_once() -> tuple[Problem, int]:
    """b fills the RAM right after a is made."""
    tensors = (ProblemTensor("a", 4, 0, CHEAP), ProblemTensor("b", 1, 1, NEVER))
    operators = (
        operator("a", (), (0,), 5.0, 0),
        operator("b", (), (1,), 50.0, 4),
        operator("c", (0, 1), (), 1.0, 0, backward=True),
    )
    return Problem("write at once", "toy", operators, tensors), 5


def early_recompute() -> tuple[Problem, int]:
    """s comes of A, which stays until stage 3; s is needed in stage 5, and has no room in stage 2."""
    tensors = (ProblemTensor("A", 6, 0, NEVER), ProblemTensor("s", 1, 1, DEAR), ProblemTensor("b", 1, 3, NEVER))
    operators = (
        operator("A", (), (0,), 100.0, 0), operator("s", (0,), (1,), 1.0, 0), operator("crowd", (0,), (), 1.0, 2),
        operator("b", (0,), (2,), 100.0, 0), operator("crowd again", (), (), 1.0, 6),
        operator("last", (1, 2), (), 1.0, 0, backward=True),
    )  # fmt: skip
    return Problem("early recompute", "toy", operators, tensors), 8


def away_between_two_uses() -> tuple[Problem, int]:
    """x is read by stages 1 and 2, and has no room beside operator y, which runs again in between."""
    tensors = (ProblemTensor("x", 4, -1, CHEAP), ProblemTensor("y", 2, 0, DEAR), ProblemTensor("z", 1, 1, NEVER))
    operators = (
        operator("y", (), (1,), 1.0, 4),
        operator("z", (0,), (2,), 100.0, 2),
        operator("last", (0, 1, 2), (), 1.0, 0, backward=True),
    )
    return Problem("away between two uses", "toy", operators, tensors), 7


def least(problem: Problem, ram_bytes: int, formulation: str, scope: str) -> float:
    """The optimum of a formulation's own space, infinite where it has no schedule."""
    strict = replace(formulation_of(formulation), strict=True)  # heuristics find plans outside
    asked = Options(ram_bytes=ram_bytes, formulation=strict, scope=scope, gap=1e-9)
    found = solve(problem, asked)
    if found.status is Status.INFEASIBLE:
        return math.inf
    assert closed(found)
    assert found.scope_bound_j is not None
    return found.scope_bound_j


def written() -> dict[str, list[float]]:
    """The figures of the page's table, by step; what isn't given is a nan."""
    page = Path(__file__).resolve().parents[2] / "docs" / "retention.md"
    rows = re.findall(r"^\| \*([\w ]+)\*: [^|]*\|(.*)\|$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    other = {"-": math.nan, "none": math.inf}
    return {name: [other.get(cell.strip()) or float(cell) for cell in cells.split("|")] for name, cells in rows}


@pytest.mark.parametrize("step", [write_at_once, early_recompute, away_between_two_uses])
def test_spaces_differ_as_the_page_says(step) -> None:  # type: ignore[no-untyped-def]
    problem, ram_bytes = step()
    plans, full, forward, poet = written()[problem.name]
    stages = stage_optimum(problem, ram_bytes)
    assert least_overhead_j(problem, ram_bytes) == plans
    assert least(problem, ram_bytes, "retention", "full") == pytest.approx(full)
    assert math.isnan(forward) or least(problem, ram_bytes, "retention", "forward") == pytest.approx(forward)
    assert least(problem, ram_bytes, "poet", "full") == pytest.approx(poet)
    assert (math.inf if stages is None else stages.overhead_j) == poet


@pytest.mark.parametrize("step", [write_at_once, early_recompute, away_between_two_uses])
def test_no_price_leaves_a_recompute_out(step) -> None:  # type: ignore[no-untyped-def]
    """The page's reductions are all that a space leaves out: of free transfers, too."""
    problem, ram_bytes = step()
    free = replace(problem, tensors=tuple(replace(tensor, transfers=Transfers()) for tensor in problem.tensors))
    counts = [
        len(formulation_of("retention").build(one, ram_bytes=ram_bytes).space.recompute_stage)
        for one in (problem, free)
    ]
    assert counts[0] == counts[1] > 0
