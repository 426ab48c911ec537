"""po_selftest passes where the program computes what onnxruntime does, and fails where anything is another."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

import poetopt as po
from poetopt.backends.c.build import FLAGS, STEP, write
from poetopt.backends.c.generations import copy_at
from poetopt.backends.c.golden import golden_of
from poetopt.backends.c.program import DeviceProgram, device_program
from poetopt.backends.c.targets import compiler
from poetopt.backends.step.places import graph_of
from poetopt.ops.runtimes.c.windows import BLOCK_BYTES
from poetopt.plan.assemble import store_all
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import lay_out
from poetopt.search.predicting import prediction_of
from tests.backends.c.test_parts import paged as in_parts
from tests.backends.c.test_predicting import plan_of
from tests.support.c import HOST, WARNINGS, dropping_model, needs_host, network
from tests.test_forward_only import branching

MAIN = """
#include <stdio.h>
#include <string.h>
#include "po.h"
static unsigned char pages[PO_BLOCKS * PO_BLOCK_BYTES], first[PO_RESIDENT_BYTES], lasting[PO_ARENA_BYTES];
int po_read(uint32_t b, void *a, uint32_t n) { memcpy(a, pages + b * PO_BLOCK_BYTES, n); return 0; }
int po_write(uint32_t b, const void *a, uint32_t n) { memcpy(pages + b * PO_BLOCK_BYTES, a, n); return 0; }
int main(void)
{
    FILE *file = fopen("po_storage.bin", "rb");
    int code;
    if (file == NULL || fread(pages, 1, sizeof pages, file) > sizeof pages) {
        return 1;
    }
    memset(po_arena, 0xff, PO_ARENA_BYTES);
    code = po_selftest();
    memcpy(first, po_resident, sizeof first);
    memcpy(lasting, po_arena, sizeof lasting);
    printf("%d %d", code, po_load());
    printf(" %d", memcmp(first, po_resident, sizeof first) == 0 && memcmp(lasting, po_arena, sizeof lasting) == 0);
    return 0;
}
"""
"""Prints the test's code, po_load's, and whether the test has left what po_load leaves."""


@cache
def program_of(kind: str) -> DeviceProgram:
    """Of gradients; two outputs alone; Adam and drawn numbers; parts; running statistics, in RAM and on storage."""
    if kind == "gradients":
        plan = plain(network())
    elif kind == "alone":
        model = po.load(branching(outputs=("y", "t2")))
        assert isinstance(model, po.Model)
        plan = plain(model, loss="forward-only")
    elif kind == "adam":
        plan = plain(dropping_model(), optimizer="adam")
    elif kind == "parts":
        plan = in_parts()
    else:
        plan = plan_of(kind)
    graph = graph_of(plan)
    program = device_program(plan, graph, prediction=prediction_of(plan, graph))
    assert (program.predicts is None) is (kind == "alone")
    return replace(program, golden=golden_of(program))


def plain(model: po.Model, **options: object) -> Plan:
    return lay_out(store_all(model.differentiate(**options).cost("m4", runtime="c")))  # type: ignore[arg-type]


def said(folder: Path) -> str:
    compiler(HOST).run((*FLAGS, "-Werror", *WARNINGS, *STEP, "main.c", "-lm", "-o", "main"), folder)
    return subprocess.run([folder / "main"], cwd=folder, capture_output=True, text=True, check=True).stdout


@needs_host
@pytest.mark.parametrize("kind", ["gradients", "adam", "resident", "paged", "tight", "parts", "alone"])
def test_what_was_emitted_passes(kind: str, tmp_path: Path) -> None:
    write(program_of(kind), HOST, tmp_path)
    (tmp_path / "main.c").write_text(MAIN)
    assert said(tmp_path) == "0 0 1"


@needs_host
@pytest.mark.parametrize("name", ["po_weights.bin", "po_storage.bin"])
def test_a_bit_of_any_first_value_is_seen(name: str, tmp_path: Path) -> None:
    program = program_of("paged" if name == "po_storage.bin" else "resident")
    write(program, HOST, tmp_path)
    (tmp_path / "main.c").write_text(MAIN)
    data = bytearray((tmp_path / name).read_bytes())
    at = len(data) // 2 if name == "po_weights.bin" else copy_at(program, 0) * BLOCK_BYTES
    data[at] ^= 1
    (tmp_path / name).write_bytes(data)
    assert said(tmp_path)[0] == "5"


@needs_host
@pytest.mark.parametrize(("kind", "what"), [("gradients", "results"), ("paged", "parameters"), ("parts", "outputs")])
def test_every_number_counts(kind: str, what: str, tmp_path: Path) -> None:
    """Each is held to less than a thousandth; that the last one is twice as far off as it may be is seen."""
    program = program_of(kind)
    golden = program.golden
    assert golden is not None
    rows = [row for row in getattr(golden, what) if row is not None]
    assert rows
    assert all(row.most < 1e-3 * max(abs(row.total), 1e-2) for row in rows), rows
    other = [row and replace(row, total=row.total + 2 * row.most * (row is rows[-1])) for row in getattr(golden, what)]
    write(replace(program, golden=replace(golden, **{what: other})), HOST, tmp_path)
    (tmp_path / "main.c").write_text(MAIN)
    assert said(tmp_path)[0] == "5"
