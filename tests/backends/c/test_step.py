"""A step in C: the same bits scheduled and not, onnxruntime's gradients, and what must fail does."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import poetopt as po
from poetopt.backends.c.build import build, write
from poetopt.backends.c.execute import execute_on, measured_reference, moved
from poetopt.backends.c.execution import TOLERANCE
from poetopt.backends.c.linking import board
from poetopt.backends.c.program import device_program
from poetopt.backends.c.run import run
from poetopt.backends.c.sensitivity import distance
from poetopt.backends.onnxruntime.batch import Batch, random_batch
from poetopt.devices.cost import homes
from poetopt.graph.problem import Problem
from poetopt.plan.assemble import store_all
from poetopt.plan.instructions import Action
from poetopt.plan.layout import lay_out
from poetopt.util.errors import ExecutionError, PlanError
from tests.backends.c.support import (
    HOST,
    M4,
    batch,
    built,
    dropping,
    dropping_model,
    graph,
    needs_emulator,
    needs_host,
    on_qemu,
    other_board,
    paged,
    paged_parameters,
    same,
    unscheduled,
    updating,
    written,
)


@needs_host
def test_a_paged_step_gives_the_bits_of_the_unscheduled_one_and_onnxruntimes_gradients() -> None:
    """The emitted code has no warnings, and the linker has the plan's RAM, to the byte."""
    assert {step.action for step in paged().instructions} >= {Action.PAGE_OUT, Action.PAGE_IN}
    found = execute_on(paged(), "host", data=batch())
    assert found.ok, found.message
    assert found.bit_identical
    assert 0 < found.distance <= TOLERANCE * found.sensitivity < 1e-5
    assert found.bytes_paged > 0
    assert 0 < found.stack_bytes < 4096
    assert found.linked_ram_bytes in (None, found.arena_bytes + found.resident_bytes)
    assert found.resident_bytes == paged().problem.resident_bytes


@needs_host
def test_a_step_that_updates_its_parameters_moves_them_as_onnxruntime_does() -> None:
    problem = updating()
    found = execute_on(lay_out(store_all(problem)), "host", data=batch())
    assert found.ok, found.message
    assert found.resident_bytes == problem.resident_bytes
    graph = problem.graph
    assert graph is not None
    assert all(np.any(found.results[name] != graph.values[name]) for name in graph.trained)


@needs_host
def test_what_random_kernels_keep_is_resident_and_begins_anew() -> None:
    """A word for each Dropout, which the plan counts; the second step on the host draws what the first one drew."""
    problem = dropping()
    assert problem.graph is not None
    assert problem.resident_bytes == sum(homes_bytes(problem)) + 2 * 4
    found = execute_on(lay_out(store_all(problem)), "host", data=random_batch(problem.graph, 2))
    assert found.ok, found.message
    assert found.resident_bytes == problem.resident_bytes
    assert found.linked_ram_bytes in (None, found.planned_ram_bytes)


def test_inspect_counts_what_random_kernels_keep() -> None:
    """Two masks' words, beside parameters, states and constants."""
    found = po.inspect(dropping_model(), device="m4", loss="cross-entropy")
    assert found.resident["kernels' states"] == 2 * 4
    assert found.needs is not None
    assert sum(found.resident.values()) == found.needs.problem.resident_bytes


@other_board
def test_what_random_kernels_keep_is_where_the_linker_has_it() -> None:
    found = execute_on(lay_out(store_all(dropping())), "cortex-m4")
    assert found.ok, found.message
    assert found.linked_ram_bytes == found.planned_ram_bytes


@needs_host
def test_parameters_on_storage_are_updated_there(tmp_path: Path) -> None:
    """As onnxruntime moves them; a write-back that is left out shows, in what isn't moved."""
    plan = paged_parameters()
    kept = {plan.problem.tensors[i].name for i in plan.problem.lasting}
    away = {tensor.name for tensor in plan.problem.tensors if tensor.updated} - kept
    assert kept
    assert away
    found = execute_on(plan, "host", data=batch())
    assert found.ok, found.message
    assert found.resident_bytes == plan.problem.resident_bytes < 200
    assert found.arena_bytes + found.resident_bytes == found.linked_ram_bytes or found.linked_ram_bytes is None

    graph = plan.problem.graph
    assert graph is not None
    program = device_program(plan, graph)
    write(program, HOST, tmp_path)
    step = (tmp_path / "po_step.c").read_text()
    (tmp_path / "po_step.c").write_text(re.sub(r"PO_TRY\(po_write\(.*;", ";", step))
    lost = run(build(program, HOST, tmp_path), batch()).results
    unmoved = {name for name in graph.trained if np.array_equal(lost[name], graph.values[name])}
    assert unmoved >= away & set(graph.trained)


@other_board
def test_parameters_on_storage_give_the_same_bits_on_a_cortex_m4() -> None:
    plan = paged_parameters()
    found = execute_on(plan, "cortex-m4", data=batch())
    assert found.ok, found.message
    assert found.linked_ram_bytes == found.arena_bytes + found.resident_bytes
    assert 0 < found.stack_bytes <= plan.problem.stack_bytes


def homes_bytes(problem: Problem) -> list[int]:
    """The storages of the resident region."""
    graph = problem.graph
    assert graph is not None
    return [graph.tensors[name].nbytes for name in homes(graph, po.devices.device("m4")).ram]


def is_far(mine: Batch) -> bool:
    """Whether gradients are further from onnxruntime's than rounding takes them."""
    reference, went = measured_reference(graph(), batch()), moved(graph(), mine)
    return not distance(went, reference.exact, graph().trained) <= TOLERANCE * reference.together


@needs_host
def test_a_dropped_page_in_shows_in_the_gradients(tmp_path: Path) -> None:
    written(paged(), tmp_path)
    step = tmp_path / "po_step.c"
    text = step.read_text()
    step.write_text(re.sub(r"PO_TRY\(po_read.*", "", text))
    assert step.read_text() != text
    found = run(build(device_program(paged(), graph()), HOST, tmp_path), batch())
    assert is_far(found.results)


@needs_host
def test_shifted_offsets_show_in_the_gradients(tmp_path: Path) -> None:
    """One operator writes eight bytes further on than the next one reads."""
    written(unscheduled(), tmp_path)
    step = tmp_path / "po_step.c"
    text = step.read_text()
    call = re.search(r" po_op_1_relu2\(PO_ARENA\(\d+u\), PO_ARENA\((\d+)u\)", text)
    assert call
    step.write_text(text.replace(call[0], call[0].replace(f"{call[1]}u", f"{int(call[1]) + 8}u")))
    found = run(build(device_program(unscheduled(), graph()), HOST, tmp_path), batch())
    assert is_far(found.results)


def test_plans_of_other_networks_runtimes_and_kernels_are_refused() -> None:
    plan = unscheduled()
    other = po.load("mlp", batch=1).differentiate().cost("m4", runtime="c").graph
    assert other is not None
    with pytest.raises(PlanError, match="are not the"):
        device_program(plan, other)
    for problem, told in (
        (replace(plan.problem, runtime="onnxruntime"), "the plan is for the runtime onnxruntime"),
        (replace(plan.problem, runtime_version="0"), "version 0 of the kernels"),
    ):
        with pytest.raises(PlanError, match=told):
            device_program(replace(plan, problem=problem), graph())


@needs_emulator
def test_small_code_gives_the_same_bits(tmp_path: Path) -> None:
    """Loops as they are: fewer bytes, more instructions."""
    found = []
    for name, flags in (("fast", ()), ("small", ("-DPO_SMALL",))):
        program = written(unscheduled(), tmp_path / name, "cortex-m4")
        made = build(program, M4, tmp_path / name, warnings=flags)
        assert made.sizes is not None
        found.append((run(made, batch()), made.sizes.code_bytes))
    (fast, more), (small, less) = found
    assert same(fast.results, small.results)
    assert less < more
    assert (fast.instructions or 0) < (small.instructions or 0)


@needs_emulator
def test_a_cortex_m4_gives_the_same_bits_with_exactly_the_ram(tmp_path: Path) -> None:
    """With less RAM the linker refuses; with less mapped, or a smaller stack, an access faults and is told."""
    scheduled = built(paged(), tmp_path / "paged", "cortex-m4")
    program = scheduled.program
    assert scheduled.sizes is not None
    assert scheduled.sizes.ram_bytes == program.ram_bytes
    mine = run(scheduled, batch())
    assert not is_far(mine.results)
    assert mine.instructions is not None
    assert mine.instructions > 10_000
    assert mine.stack_bytes is not None
    assert 0 < mine.stack_bytes < 4096
    theirs = run(built(unscheduled(), tmp_path / "whole", "cortex-m4"), batch())
    assert same(mine.results, theirs.results)
    if shutil.which("qemu-system-arm"):
        rows = (*program.results, *program.parameters)
        assert on_qemu(scheduled) == b"".join(mine.results[row.name].tobytes() for row in rows)

    assert scheduled.board is not None
    less = replace(scheduled.board, nbytes=scheduled.board.nbytes - 1024)
    with pytest.raises(ExecutionError, match=r"operator '.*' \w+ the address 0x200"):
        run(scheduled, batch(), ram=less)
    with pytest.raises(ExecutionError, match=r"(?s)refuses the emitted code.*RAM"):
        build(program, M4, tmp_path / "paged", ram=less)


@needs_emulator
def test_an_overflowing_stack_faults(tmp_path: Path) -> None:
    """The stack is at the bottom of the RAM."""
    program = written(unscheduled(), tmp_path, "cortex-m4")
    small = build(program, M4, tmp_path, ram=board(program, 64, at_end_of_page=True))
    with pytest.raises(ExecutionError, match=r"writes the address 0x(2000|1fff)"):
        run(small, batch())
