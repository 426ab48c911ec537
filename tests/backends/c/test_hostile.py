"""Hostile labels, indices, truths and images of the storage: a code each, by a program that ASan and UBSan watch."""

from __future__ import annotations

import random
import struct
import subprocess
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

import poetopt as po
from poetopt.backends.c.build import FLAGS, STEP, write
from poetopt.backends.c.generations import HEAD, blocks, copy_at, first_copy, head_at, network_of, newest
from poetopt.backends.c.program import DeviceProgram, device_program
from poetopt.backends.c.targets import compiler
from poetopt.backends.onnxruntime.batch import TRUTH, limits, random_batch
from poetopt.backends.step.places import graph_of
from poetopt.ops.runtimes.c.windows import BLOCK_BYTES
from poetopt.plan.assemble import store_all
from poetopt.plan.layout import lay_out
from poetopt.util.errors import ModelError
from poetopt.zoo.network import Network
from tests.backends.c.test_saving import plan_of
from tests.support.c import HOST, WARNINGS, needs_host, network
from tests.support.contract.kernel_program import sanitizers

MAIN = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "po.h"
static unsigned char *pages; /* of their size, so that ASan sees its end */
static uint32_t length;
int po_read(uint32_t b, void *a, uint32_t n)
{
    const int there = (uint64_t)b * PO_BLOCK_BYTES + n <= length;
    if (there) {
        memcpy(a, pages + b * PO_BLOCK_BYTES, n);
    }
    return !there;
}
int po_write(uint32_t b, const void *a, uint32_t n)
{
    const int there = (uint64_t)b * PO_BLOCK_BYTES + n <= length;
    if (there) {
        memcpy(pages + b * PO_BLOCK_BYTES, a, n);
    }
    return !there;
}
static uint32_t seen(uint32_t sum, const unsigned char *data, uint32_t bytes)
{
    for (uint32_t k = 0; k < bytes; k++) {
        sum = (sum ^ data[k]) * 16777619u;
    }
    return sum;
}
/* Each case: the length of an image, it, and 1 where a step with the inputs behind follows po_load(). Prints the codes,
   a checksum of the parameters behind po_load(), and whether anything changed in RAM that the step was to leave. */
int main(void)
{
    static unsigned char before[PO_RESIDENT_BYTES];
    FILE *cases = fopen("cases.bin", "rb");
    while (cases != NULL && fread(&length, 1, sizeof length, cases) == sizeof length) {
        uint32_t steps, sum = 2166136261u;
        int code;
        pages = malloc(length + 1u);
        if (pages == NULL || fread(pages, 1, length, cases) != length || fread(&steps, 1, 4u, cases) != 4u) {
            return 1;
        }
        memset(po_arena, 0xa5, PO_ARENA_BYTES);
        code = po_load();
        for (uint32_t k = 0; code == 0 && k < PO_PARAMETERS; k++) {
            const po_tensor *t = &po_parameters[k];
            sum = seen(sum, t->address != NULL ? t->address : pages + t->block * PO_BLOCK_BYTES, t->bytes);
        }
        printf("%d %u", code, (unsigned)sum);
        if (steps != 0u) {
            for (uint32_t k = 0; k < PO_INPUTS; k++) {
                if (fread(po_inputs[k].address, 1, po_inputs[k].bytes, cases) != po_inputs[k].bytes) {
                    return 1;
                }
            }
            memcpy(before, po_resident, sizeof before);
            code = po_step();
            printf(" %d %d", code, memcmp(before, po_resident, sizeof before) != 0);
        }
        printf("\\n");
        free(pages);
    }
    return 0;
}
"""
IMAGES, BATCHES = 150, 150


def said(program: DeviceProgram, folder: Path, cases: bytes) -> list[list[int]]:
    folder.mkdir()
    write(program, HOST, folder)
    (folder / "main.c").write_text(MAIN)
    (folder / "cases.bin").write_bytes(cases)
    flags = (*FLAGS, *sanitizers(compiler(HOST).command), "-g")
    compiler(HOST).run((*flags, "-Werror", *WARNINGS, *STEP, "main.c", "-lm", "-o", "main"), folder)
    ended = subprocess.run([folder / "main"], cwd=folder, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return [[int(word) for word in line.split()] for line in ended.stdout.splitlines()]


def case(image: bytes, *inputs: bytes) -> bytes:
    return struct.pack("<I", len(image)) + image + struct.pack("<I", bool(inputs)) + b"".join(inputs)


def fnv(pieces: Sequence[bytes]) -> int:
    found = 2166136261
    for byte in b"".join(pieces):
        found = (found ^ byte) * 16777619 & 0xFFFFFFFF
    return found


def images(program: DeviceProgram) -> list[bytes]:
    """A storage with generations 6 and 7, and what may be there in its stead."""
    rng, first = random.Random(0), first_copy(program)
    head = HEAD.unpack(first[-BLOCK_BYTES:][: HEAD.size])

    def copy(number: int, network: bytes, magic: int = head[0]) -> bytes:
        """A copy with another head, whose checksum is right."""
        made = HEAD.pack(magic, number, network, head[3], 0)[:-4]
        made += zlib.crc32(made).to_bytes(4, "little")
        return first[:-BLOCK_BYTES] + made.ljust(BLOCK_BYTES, b"\0")

    mine = network_of(program)
    size = blocks(program) * BLOCK_BYTES
    copies = [copy_at(program, which) * BLOCK_BYTES for which in (0, 1)]

    def storage(*made: bytes) -> bytearray:
        found = bytearray(rng.randbytes(size))
        for at, one in zip(copies, made, strict=True):
            found[at : at + len(one)] = one
        return found

    good, other, version = copy(7, mine), copy(9, bytes(16)), copy(9, mine, head[0] + 1)
    found = [
        storage(*pair) for pair in ((good, other), (other, good), (other, other), (version, good), (version, other))
    ]
    while len(found) < IMAGES:
        image = storage(copy(6, mine), good)
        match len(found) % 4:
            case 0:  # a bit of the newer copy, and often of the older
                for at in copies[rng.randrange(2) :]:
                    image[at + rng.randrange(len(first))] ^= 1 << rng.randrange(8)
            case 1:  # bits of both heads
                for which in (0, 1):
                    image[head_at(program, which) * BLOCK_BYTES + rng.randrange(HEAD.size)] ^= 1 << rng.randrange(8)
            case 2:
                del image[rng.randrange(size) :]
            case _:  # erased, or written by somebody else
                at = rng.randrange(size)
                image[at : at + 5000] = (b"\xff" * 5000 if rng.random() < 0.5 else rng.randbytes(5000))[: size - at]
        found.append(image)
    return [bytes(image) for image in found]


@needs_host
def test_any_storage_gives_a_code(tmp_path: Path) -> None:
    """By `newest`, which is written apart from the C: the same values, or none."""
    program = device_program(plan_of("paged"), graph_of(plan_of("paged")))
    cases = images(program)
    codes = Counter[int]()
    for image, (code, sum_) in zip(cases, said(program, tmp_path / "c", b"".join(map(case, cases))), strict=True):
        codes[code] += 1
        try:
            _, values = newest(program, image)
        except ModelError:
            assert code in (1, 4, 5)
            continue
        if code == 0:
            assert sum_ == fnv([values[program.graph.root(row.name)].tobytes() for row in program.parameters])
        else:
            assert len(image) < blocks(program) * BLOCK_BYTES
            assert code == 1
    assert all(codes[code] >= 1 for code in (0, 1, 4, 5)), codes


def looked_up() -> onnx.ModelProto:
    """Rows of a table that data index, and how true each of three outputs is."""
    net = Network("looked-up", 4)
    table = net.he("table", (7, 6), 6)
    x = net.add("Gather", [table, net.input("ids", (2, 4), onnx.TensorProto.INT64)], "rows", axis=0)
    return net.model(net.linear(net.add("Flatten", [x], "flatten", axis=1), "fc", 24, 3), (2, 3))


WHOLE = (-1, 5, 7, -7, -8, 255, 256, 100_000, 2**31, 2**32 + 1, -(2**31), 2**63 - 1, -(2**63))
REAL = (np.nan, np.inf, -np.inf, -1e-6, 1 + 1e-6, 3e38, -0.0, 1.0)


@needs_host
@pytest.mark.parametrize("kind", ["labels", "ids"])
def test_any_batch_gives_a_code_and_changes_nothing(kind: str, tmp_path: Path) -> None:
    if kind == "labels":
        problem = network().differentiate(optimizer="adam").cost("m4", runtime="c")
    else:
        model = po.load(looked_up())
        assert isinstance(model, po.Model)
        problem = model.differentiate(loss="bce", optimizer="sgd").cost("m4", runtime="c")
    plan = lay_out(store_all(problem))
    program = device_program(plan, graph_of(plan))
    storage = b""  # nothing is there
    rng, cases, wrong = np.random.default_rng(0), list[bytes](), list[bool]()
    for _ in range(BATCHES):
        batch = dict(random_batch(program.graph, len(cases)))
        hurt = False
        for row in program.inputs:
            found = limits(program.graph, row.name)
            if found is None or rng.random() < 0.4:
                continue
            array = batch[row.name].copy()
            value = rng.choice(np.array(REAL if found.what == TRUTH else WHOLE))
            array.reshape(-1)[rng.integers(array.size)] = value
            hurt |= not found.least <= value <= found.most
            batch[row.name] = array
        wrong.append(bool(hurt))
        cases.append(case(storage, *(np.ascontiguousarray(batch[row.name]).tobytes() for row in program.inputs)))
    assert 30 < sum(wrong) < BATCHES
    for hurt, (loaded, _, code, changed) in zip(wrong, said(program, tmp_path / "c", b"".join(cases)), strict=True):
        assert (loaded, code, changed) == ((0, 2, 0) if hurt else (0, 0, 1))
