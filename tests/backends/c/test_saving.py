"""What a program has learned survives the end of its power at any write; labels out of range change nothing."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

import poetopt as po
from benchmarks import cuts
from poetopt.backends.c.build import FLAGS, STEP, write
from poetopt.backends.c.generations import blocks, head_at, newest
from poetopt.backends.c.program import DeviceProgram, device_program
from poetopt.backends.c.targets import compiler
from poetopt.backends.step.places import graph_of
from poetopt.ops.runtimes.c.windows import BLOCK_BYTES
from poetopt.plan.assemble import store_all
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import lay_out
from poetopt.search.predicting import prediction_of
from poetopt.util.errors import ModelError, PlanError
from tests.seeds import everything
from tests.support.c import (
    HOST,
    M4,
    WARNINGS,
    blocks_of,
    dropping_model,
    needs_emulator,
    needs_host,
    network,
    normalized_file,
)
from tests.support.keeping_nothing import keeping_nothing

SECTOR = 2048
MANY = 10**9
"""More writes than any program has."""


@cache
def plan_of(kind: str) -> Plan:
    """Of steps whose state lies in the three places where it can: in RAM for good, in the arena, on storage."""
    if kind == "resident":
        return lay_out(store_all(dropping_model().differentiate(optimizer="adam").cost("m4", runtime="c")))
    board = blocks_of(4096 if kind == "sectors" else 512)
    problem = network().differentiate(optimizer="adam").cost(board, runtime="c", parameters="paged")
    if kind == "erased":
        problem = replace(problem, storage_erase_bytes=SECTOR)
    report = po.solve(problem, ram=problem.least_ram_bytes + 2400, threads=1, time_limit="20s")
    assert report.plan is not None
    return report.plan


@dataclass
class Survivor:
    """The compiled program of `survivor.c`, and its storage."""

    folder: Path
    program: DeviceProgram

    @classmethod
    def made(cls, plan: Plan, folder: Path, *flags: str, prediction: Plan | None = None) -> Survivor:
        graph = plan.problem.graph
        assert graph is not None
        program = device_program(plan, graph, prediction=prediction)
        write(program, HOST, folder)
        (folder / "survivor.c").write_text((Path(__file__).parent / "survivor.c").read_text())
        made = ("-Werror", *WARNINGS, *flags, *STEP, "survivor.c", "-lm", "-o", "survivor")
        compiler(HOST).run((*FLAGS, *made), folder)
        found = cls(folder, program)
        found.erase()
        return found

    def erase(self) -> None:
        first = (self.folder / "po_storage.bin").read_bytes()
        size = blocks(self.program) * self.program.storage.block_bytes
        (self.folder / "pages.bin").write_bytes(first.ljust(size, b"\xff"))

    def run(self, writes: int, steps: int) -> tuple[int, list[str]]:
        ended = subprocess.run(
            [self.folder / "survivor", str(writes), str(steps)], cwd=self.folder, capture_output=True, text=True
        )
        return ended.returncode, ended.stdout.split("\n")[:-1]


@needs_host
@pytest.mark.parametrize("kind", ["resident", "paged", "erased", "sectors"])
def test_the_power_ends_at_any_write(kind: str, tmp_path: Path) -> None:
    steps = 3
    flags = {"resident": ("-DRESTORE",), "erased": (f"-DSECTOR={SECTOR}",)}.get(kind, ())
    found = Survivor.made(plan_of(kind), tmp_path, *flags)
    assert (kind != "resident") == any(row.block >= 0 for row in found.program.parameters)
    code, said = found.run(MANY, steps)
    generations, writes = said[:-1], MANY - int(said[-1].split()[1])
    assert (code, len({*generations})) == (0, steps + 1)
    assert found.run(MANY, 0)[1][0] == generations[-1]
    every: Sequence[int] = range(writes)
    if writes > 100 and not everything():
        every = sorted(random.Random(0).sample(every, 100))
    for cut in every:
        found.erase()
        code, said = found.run(cut, steps)
        assert code == 9
        again = found.run(MANY, 0)
        done = len(said) - 1  # generations that were whole before the cut
        assert again[0] == 0, (cut, again)
        assert again[1][0] in generations[done : done + 2], cut


@needs_emulator
@pytest.mark.parametrize("kind", ["erased", "sectors"])
def test_the_power_of_a_board_ends(kind: str, tmp_path: Path) -> None:
    """With just the plan's RAM, which is painted then; `python -m benchmarks.cuts` has networks, and every write."""
    row, worn = cuts.measured("tiny", cuts.compiled(plan_of(kind), tmp_path), every=11)
    assert int(row[5]) > 3
    assert row[8] == "0"
    assert worn


@needs_host
def test_of_another_plan_or_damaged(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    one = Survivor.made(plan_of("paged"), tmp_path / "one")
    one.run(MANY, 2)
    pages = bytearray((one.folder / "pages.bin").read_bytes())
    other = Survivor.made(plan_of("resident"), tmp_path / "other", "-DRESTORE")
    mine, theirs = (head_at(found.program, 0) * BLOCK_BYTES for found in (other, one))
    strange = bytearray((other.folder / "pages.bin").read_bytes())
    strange[mine : mine + BLOCK_BYTES] = pages[theirs : theirs + BLOCK_BYTES]
    (other.folder / "pages.bin").write_bytes(strange)
    assert other.run(MANY, 0) == (6, ["code 4"])
    rng = np.random.default_rng(0)
    for _ in range(20):  # a bit of the newer copy: the older one is there
        hurt = bytearray(pages)
        size = head_at(one.program, 1) * BLOCK_BYTES - theirs
        hurt[theirs + int(rng.integers(0, 8 * 4))] ^= 1 << int(rng.integers(0, 8))
        (one.folder / "pages.bin").write_bytes(hurt)
        assert one.run(MANY, 0)[0] == 0
        hurt[theirs + size + int(rng.integers(0, 8 * 4))] ^= 1 << int(rng.integers(0, 8))
        (one.folder / "pages.bin").write_bytes(hurt)
        assert one.run(MANY, 0)[1][0] in ("code 4", "code 5")


def test_storage_without_room_for_two_copies_is_refused(tmp_path: Path) -> None:
    plan = plan_of("paged")
    graph = graph_of(plan)
    program = device_program(plan, graph, prediction=prediction_of(plan, graph))
    least = blocks(program) * BLOCK_BYTES
    for room, fits in ((least - 1, False), (least, True)):
        narrow = replace(plan, problem=replace(plan.problem, storage_bytes=room))
        if fits:
            po.emit(narrow, tmp_path / "c")
            continue
        with pytest.raises(PlanError, match="with the two copies of po_save, the step needs"):
            po.emit(narrow, tmp_path / "c")
        assert not (tmp_path / "c").exists()
    odd = replace(plan, problem=replace(plan.problem, storage_erase_bytes=1000))
    with pytest.raises(PlanError, match=r"moves 512 B of storage at once, which must be .* erases 1,000 B at once"):
        po.emit(odd, tmp_path / "other")
    for board, told in (
        (blocks_of(515), "a program in C moves 515 B of storage at once, which must be a multiple of"),
        (replace(blocks_of(4096), stack_bytes=2048), "one on the stack, and .* are 2,048; give a device with 4,480"),
    ):
        other = keeping_nothing(network().differentiate(optimizer="adam").cost(board, runtime="c", parameters="paged"))
        with pytest.raises(PlanError, match=told):
            po.emit(other, tmp_path / "other")
    assert po.emit(replace(plan, problem=replace(plan.problem, storage_erase_bytes=4096)), tmp_path / "c").sectors > 0


@needs_host
def test_a_step_that_a_hook_ends_never_happened(tmp_path: Path) -> None:
    """At whichever instruction: po_load gives the generation before it."""
    plan = plan_of("paged")
    program = device_program(plan, graph_of(plan))
    write(program, HOST, tmp_path)
    (tmp_path / "survivor.c").write_text((Path(__file__).parent / "survivor.c").read_text())
    (tmp_path / "hook.h").write_text("int hook(uint32_t number);\nextern int hooked;\n")
    (tmp_path / "hook.c").write_text(
        '#include <stdint.h>\n#include <stdlib.h>\n#include "hook.h"\n'
        "int hooked;\nint hook(uint32_t number)\n{\n    (void)number;\n"
        '    return getenv("AT") != NULL && hooked++ == atoi(getenv("AT"));\n}\n'
    )
    flags = ("-DPO_HOOK=hook", '-DPO_CONFIG="hook.h"', *STEP, "survivor.c", "hook.c")
    compiler(HOST).run((*FLAGS, "-Werror", *WARNINGS, *flags, "-lm", "-o", "survivor"), tmp_path)
    found = Survivor(tmp_path, program)
    found.erase()
    code, said = found.run(MANY, 1)
    assert code == 0
    first, then = said[:2]
    for at in (0, 1, 7, 20, 10**6):
        found.erase()
        os.environ["AT"] = str(at)
        try:
            ended = found.run(MANY, 1)
        finally:
            del os.environ["AT"]
        assert (ended[0] == 0) == (at == 10**6), ended
        assert found.run(MANY, 0)[1][0] == (then if at == 10**6 else first)


@needs_host
def test_saves_on_nor_flash_erase_each_sector_once(tmp_path: Path) -> None:
    """A chip that is erased in sectors and programmed in pages, whose power ends in any of these."""
    problem = dropping_model().differentiate(optimizer="adam").cost("m4", runtime="c")
    plan = lay_out(store_all(replace(problem, storage_erase_bytes=4096)))
    write(device_program(plan, graph_of(plan)), M4, tmp_path)
    for name in ("po_libm.c", "po_startup.c"):
        (tmp_path / name).unlink()
    (tmp_path / "nor.c").write_text((Path(__file__).parent / "nor.c").read_text())
    sources = (*STEP, "driver_nor.c", "nor.c", "-lm", "-o", "nor")
    compiler(HOST).run((*FLAGS, "-Werror", *WARNINGS, *sources), tmp_path)

    def run(cut: int, steps: int) -> tuple[int, list[str]]:
        ended = subprocess.run([tmp_path / "nor", str(cut), str(steps)], cwd=tmp_path, capture_output=True, text=True)
        return ended.returncode, ended.stdout.split("\n")[:-1]

    code, (*generations, last) = run(MANY, 4)
    assert (code, len({*generations})) == (0, 5)
    assert last.split()[:2] == ["0", "2"]  # four saves take turns on two copies
    changes = MANY - int(last.split()[2])
    for cut in range(0, changes, 5):
        (tmp_path / "flash.bin").unlink()
        code, said = run(cut, 4)
        assert code == 9
        again = run(MANY, 0)[1]
        assert again[0] in generations[len(said) - 1 : len(said) + 1], cut


@needs_host
def test_a_step_in_pieces_leaves_the_same_bits(tmp_path: Path) -> None:
    ended = []
    for number, flags in enumerate(((), *((f"-DPO_BUDGET={budget}u",) for budget in (1, 7, 10**6)))):
        (tmp_path / str(number)).mkdir()
        ended.append(Survivor.made(plan_of("paged"), tmp_path / str(number), *flags).run(MANY, 2))
    assert ended[0][0] == 0
    assert ended == ended[:1] * 4


@needs_host
def test_what_a_device_has_learned_is_written_as_a_network(tmp_path: Path) -> None:
    model = po.load(normalized_file())
    assert isinstance(model, po.Model)
    problem = model.differentiate(optimizer="momentum").cost("m4", runtime="c", parameters="paged")
    report = po.solve(problem, ram=problem.least_ram_bytes + 4000, threads=1, time_limit="20s")
    assert report.plan is not None
    graph = graph_of(report.plan)
    found = Survivor.made(report.plan, tmp_path, prediction=prediction_of(report.plan, graph))
    found.run(MANY, 2)
    out = tmp_path / "trained.onnx"
    assert po.restore(report.plan, found.folder / "pages.bin", out, model=normalized_file()) == 3
    _, values = newest(found.program, (found.folder / "pages.bin").read_bytes())
    written = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load(out).graph.initializer}
    for name in (*graph.trained, *graph.states):
        assert written[name].tobytes() == values[graph.root(name)].tobytes()
        assert not np.array_equal(written[name], graph.values[name])
    assert "Dropout" not in {node.op_type for node in onnx.load(out).graph.node}
    with pytest.raises(ModelError, match="can't read"):
        po.restore(report.plan, tmp_path / "nothing.bin", out, model=normalized_file())
