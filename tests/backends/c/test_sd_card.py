"""Steps that page to a real SD card on SPI, as QEMU's LM3S6965 has one: the example for a board without files."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from poetopt.backends.c.build import build, write
from poetopt.backends.c.execute import numbers
from poetopt.backends.c.generations import blocks
from poetopt.backends.c.program import TableRow, device_program
from poetopt.backends.c.run import run
from poetopt.backends.c.targets import TARGETS
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.ops.runtimes.c.windows import BLOCK_BYTES
from poetopt.plan.assemble import store_all
from poetopt.plan.layout import lay_out
from tests.seeds import some
from tests.support.c import HOST, needs_emulator, needs_host, paged_parameters, updating

QEMU = ("qemu-system-arm", "-machine", "lm3s6965evb", "-display", "none", "-monitor", "none", "-serial", "none")
CARD_BYTES = 1 << 20
RAM_BYTES = 64 << 10
STEPS = 3


@needs_emulator
@needs_host
@pytest.mark.skipif(not shutil.which("qemu-system-arm"), reason="QEMU for ARM isn't installed (qemu-system-arm)")
@pytest.mark.parametrize("kind", some(("paged", "resident"), 1))
def test_steps_before_and_after_a_reset_leave_the_same_bits_as_here(kind: str, tmp_path: Path) -> None:
    """Three, and three more by what the card has saved."""
    plan = paged_parameters() if kind == "paged" else lay_out(store_all(updating()))
    graph = plan.problem.graph
    assert graph is not None
    program = device_program(plan, graph)
    batches = [random_batch(graph, seed) for seed in range(STEPS)]
    write(program, HOST, tmp_path / "host")
    built = build(program, HOST, tmp_path / "host", measuring=False)
    said = [numbers(graph, k, {}) for k in range(2 * STEPS)]
    expected = [run(built, *batches * boots, said=said[: STEPS * boots]).results for boots in (1, 2)]

    folder = tmp_path / "board"
    core = TARGETS["cortex-m0plus"]  # a Cortex-M3 runs its instructions
    write(program, core, folder)
    (folder / "main.c").write_text("#define PO_SEMIHOSTING\n" + (folder / "main_sd.c").read_text())
    linked = build(program, core, folder, warnings=("-Wall", "-Wextra", "-Wconversion", "-Werror"))
    assert linked.board is not None
    assert linked.board.nbytes <= RAM_BYTES
    card = bytearray((folder / "po_storage.bin").read_bytes())
    card += bytes(blocks(program) * BLOCK_BYTES - len(card))
    card += _block(struct.pack("<I", STEPS))
    for batch in batches:
        for row in program.inputs:
            card += _block(np.ascontiguousarray(batch[row.name]).tobytes())
    behind = len(card)
    place = folder / "card.img"
    place.write_bytes(bytes(card) + bytes(CARD_BYTES - len(card)))
    drive = ("-drive", "file=card.img,if=sd,format=raw", "-semihosting-config", "enable=on,target=native")
    for after in expected:
        subprocess.run([*QEMU, *drive, "-kernel", "po.elf"], cwd=folder, check=True, timeout=120)
        written, at, moved = place.read_bytes(), behind, 0
        for row in (*program.results, *program.parameters):
            there = at if row.block < 0 else row.block * BLOCK_BYTES
            found = np.frombuffer(written[there : there + row.tensor.nbytes], after[row.name].dtype)
            assert found.tobytes() == after[row.name].tobytes(), row.name
            at += len(_block(bytes(row.tensor.nbytes)))
            moved += _moved(row, written, bytes(card))
        assert bool(moved) == (kind == "paged")


def _moved(row: TableRow, after: bytes, before: bytes) -> bool:
    """Whether a tensor on the storage isn't what it was."""
    part = slice(row.block * BLOCK_BYTES, row.block * BLOCK_BYTES + row.tensor.nbytes)
    return row.block >= 0 and after[part] != before[part]


def _block(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK_BYTES)
