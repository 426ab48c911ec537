"""A step that keeps nothing in RAM between operators, each of which streams what it can."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import poetopt as po
from poetopt.backends.c.build import build, write
from poetopt.backends.c.execute import execute_on
from poetopt.backends.c.program import device_program
from poetopt.backends.c.run import run
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.graph import TrainingGraph
from poetopt.graph.problem import Home, Problem
from poetopt.plan.assemble import store_all
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, lay_out
from tests.support.c import HOST, WARNINGS, needs_host, other_board, same
from tests.support.keeping_nothing import keeping_nothing as nothing_kept


@cache
def problem() -> Problem:
    """A step of momentum on LeNet, with parameters on storage."""
    model = po.load("lenet", batch=1)
    assert isinstance(model, po.Model)
    return model.differentiate(optimizer="momentum").cost("m4", runtime="c", parameters="paged", stream="auto")


def graph() -> TrainingGraph:
    """What it is made of."""
    found = problem().graph
    assert found is not None
    return found


@cache
def keeping_nothing(of: Problem | None = None) -> Plan:
    """Each operator in the way that takes the least RAM; what it has in RAM comes from storage and goes there."""
    return nothing_kept(problem() if of is None else of)


@other_board
def test_an_emulated_board_of_8_kb_takes_a_step_of_lenet_bit_for_bit() -> None:
    """Its parameters and their momentum take half a megabyte."""
    assert sum(tensor.nbytes for tensor in problem().tensors if tensor.home is Home.STORAGE) > 490_000
    assert arena_bytes(keeping_nothing()) < 8_000
    found = execute_on(keeping_nothing(), "cortex-m4")
    assert found.ok, found.message
    assert found.linked_ram_bytes == found.planned_ram_bytes < 8_500


@needs_host
def test_a_schedule_streams_without_warnings_and_with_the_unscheduled_bits(tmp_path: Path) -> None:
    batch = random_batch(graph(), 1)
    found = []
    for plan, folder in ((keeping_nothing(), tmp_path / "mine"), (lay_out(store_all(problem())), tmp_path / "whole")):
        program = device_program(plan, graph())
        write(program, HOST, folder)
        found.append(run(build(program, HOST, folder, warnings=("-Werror", *WARNINGS)), batch))
    mine, whole = found
    assert same(mine.results, whole.results)
    assert same(mine.again, whole.results)
