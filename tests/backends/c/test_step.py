"""A step in C: the same bits scheduled and not, onnxruntime's gradients, and what must fail does."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from poetopt.backends.c.build import build, write
from poetopt.backends.c.execute import execute_on, measured_reference, moved
from poetopt.backends.c.execution import TOLERANCE
from poetopt.backends.c.linking import board
from poetopt.backends.c.program import device_program
from poetopt.backends.c.run import run
from poetopt.backends.c.sensitivity import distance
from poetopt.backends.onnxruntime.batch import Batch
from poetopt.plan.assemble import store_all
from poetopt.plan.instructions import Action
from poetopt.plan.layout import lay_out
from poetopt.util.errors import ExecutionError
from tests.support.c import (
    HOST,
    M4,
    batch,
    built,
    graph,
    needs_emulator,
    needs_host,
    on_qemu,
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


def is_far(mine: Batch) -> bool:
    """Whether gradients are further from onnxruntime's than rounding takes them."""
    reference, went = measured_reference(graph(), batch()), moved(graph(), mine)
    return not distance(went, reference.exact, graph().trained) <= TOLERANCE * reference.together


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
