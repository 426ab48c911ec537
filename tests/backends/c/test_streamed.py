"""A step that keeps nothing in RAM between operators, each of which streams what it can."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import poetopt as po
from poetopt.backends.c.build import build, write
from poetopt.backends.c.execute import execute_on, train_on
from poetopt.backends.c.program import device_program
from poetopt.backends.c.run import run
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.backends.step.places import graph_of
from poetopt.graph import TrainingGraph
from poetopt.graph.problem import Home, Problem
from poetopt.plan.assemble import store_all
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, lay_out
from poetopt.report.on_device import device_text, device_training_text
from poetopt.util.errors import PlanError
from poetopt.util.units import show_bytes
from poetopt.zoo.network import Network
from tests.backends.c.support import HOST, WARNINGS, blocks_of, needs_host, other_board, same
from tests.keeping_nothing import keeping_nothing as nothing_kept


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
def fed() -> Problem:
    """A step of sgd on one image that is larger than what any operator needs in RAM."""
    net = Network("fed", 5)
    x = net.relu(net.conv(net.input("input", (1, 3, 48, 48)), "conv1", (3, 4), 3, stride=4, pad=1, bias=True), "relu1")
    found = po.load(net.model(net.linear(net.add("Flatten", [x], "flatten", axis=1), "fc", 576, 5), (1, 5)))
    assert isinstance(found, po.Model)
    return found.differentiate(optimizer="sgd").cost("m4", runtime="c", parameters="paged", stream="auto")


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


@other_board
def test_an_input_that_would_take_the_most_ram_is_fed_on_storage() -> None:
    """In po_measure.c on this machine, and in the example on the board, for two steps."""
    image = next(tensor for tensor in fed().tensors if tensor.name == "input")
    assert (image.home, image.of_batch) == (Home.STORAGE, True)
    assert image.nbytes > arena_bytes(keeping_nothing(fed()))
    assert any("the input 'input' of 27,648 B begins on storage" in note for note in fed().notes)
    here = execute_on(keeping_nothing(fed()), "host")
    assert here.ok, here.message
    there = train_on(keeping_nothing(fed()), "cortex-m4", 2, 0.01)
    assert there.ok, there.message
    for ended in (device_text(keeping_nothing(fed()), here), device_training_text(keeping_nothing(fed()), there)):
        assert f"{show_bytes(here.bytes_streamed)} in chunks inside operators" in ended
    assert here.bytes_streamed == there.bytes_streamed > here.bytes_paged


@needs_host
@pytest.mark.parametrize("nbytes", [264, 4096])
def test_blocks_are_the_devices(nbytes: int) -> None:
    """Pages of DataFlash, of which two are 528 B, and sectors of 4 KB."""
    model = po.load("lenet", batch=1)
    assert isinstance(model, po.Model)
    board = blocks_of(nbytes)
    plan = nothing_kept(model.differentiate(optimizer="momentum").cost(board, parameters="paged", stream="auto"))
    ended = execute_on(plan, "host")
    assert ended.ok, ended.message
    assert ended.bytes_streamed > 0
    assert device_program(plan, graph_of(plan)).storage.block_bytes == (528 if nbytes == 264 else 4096)


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


def test_a_variant_that_the_runtime_lacks_is_refused() -> None:
    at, step = next((k, s) for k, s in enumerate(keeping_nothing().instructions) if s.variant)
    operator = problem().operators[step.target]
    ways = list(operator.variants)
    ways[step.variant - 1] = replace(ways[step.variant - 1], workspace_bytes=1 << 20)
    operators = list(problem().operators)
    operators[step.target] = replace(operator, variants=tuple(ways))
    other = replace(problem(), operators=tuple(operators))
    plan = lay_out(replace(keeping_nothing(), problem=other))
    assert plan.instructions[at] == step
    with pytest.raises(PlanError, match=r"'.+' by its variant \d+ with 1048576 B of workspace.*solve the model again"):
        device_program(plan, graph())
