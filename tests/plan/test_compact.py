"""The compact plan: small, exact, refused where it is damaged or of another model, and decodable in C."""

from __future__ import annotations

import random
import subprocess
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

import poetopt as po
from poetopt.backends.c.targets import LINUX, TARGETS, compilers
from poetopt.graph.problem import Problem
from poetopt.plan.compact import FINGERPRINT_BYTES, decode_compact, encode_compact, fingerprint
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.plan.normalize import normalize
from poetopt.plan.transfers import plan_transfers
from poetopt.util.errors import PlanError
from tests.problems import random_plan, random_problem, store_all
from tests.seeds import seeds

DECODER = Path(__file__).resolve().parents[2] / "docs" / "examples" / "plan_decoder.c"
CC = next((found.command for found in compilers(TARGETS[LINUX])), None)


@pytest.fixture(scope="module")
def solved() -> Plan:
    """ResNet-18 at 40 %."""
    problem = po.load("resnet18-cifar").differentiate().cost("a72")
    plan = po.solve(problem, ram="40%", time_limit=15, gap=0.05).plan
    assert plan is not None
    return plan


def corrupted(rng: random.Random, data: bytes) -> bytes:
    """`data` with something wrong: bits flipped, bytes changed, lost, doubled, swapped or added, or its end cut off."""
    found = bytearray(data)
    kind = rng.randrange(7)
    if kind == 0:
        for place in rng.sample(range(8 * len(found)), rng.choice((1, 1, 1, 2, 3, 8))):
            found[place // 8] ^= 1 << place % 8
    elif kind == 1:
        for place in rng.sample(range(len(found)), min(len(found), rng.choice((1, 2, 5)))):
            found[place] = rng.randrange(256)
    elif kind == 2:
        del found[rng.randrange(len(found)) :]
    elif kind == 3:
        del found[rng.randrange(len(found))]
    elif kind == 4:
        found.insert(rng.randrange(len(found) + 1), rng.randrange(256))
    elif kind == 5:
        i, j = sorted(rng.sample(range(len(found)), 2))
        found[i:j] = reversed(found[i:j])
    else:
        found += bytes(rng.randrange(256) for _ in range(rng.randint(1, 9)))
    return bytes(found)


def test_10000_corruptions_are_all_refused(solved: Plan) -> None:
    rng = random.Random(0)
    data = encode_compact(solved)
    tried = 0
    while tried < 10_000:
        damaged = corrupted(rng, data)
        if damaged == data:
            continue
        tried += 1
        with pytest.raises(PlanError, match="damaged"):
            decode_compact(solved.problem, damaged)


def test_nothing_with_a_right_checksum_crashes(solved: Plan) -> None:
    rng = random.Random(1)
    body = encode_compact(solved)[:-4]
    for _ in range(300):
        damaged = bytearray(body)
        for place in rng.sample(range(1 + FINGERPRINT_BYTES, len(damaged)), 3):
            damaged[place] = rng.randrange(256)
        with suppress(PlanError):
            decode_compact(solved.problem, bytes(damaged) + zlib.crc32(damaged).to_bytes(4, "little"))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C decoder as a program: it reads a problem's tables and a plan, and prints instructions."""
    if CC is None:
        pytest.skip("no C compiler")
    folder = tmp_path_factory.mktemp("decoder")
    main = folder / "main.c"
    main.write_text(f'#include "{DECODER}"\n{MAIN}')
    program = folder / "decoder"
    flags = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-O1")
    subprocess.run([*CC, *flags, "-o", program, main], check=True, capture_output=True)
    return program


MAIN = r"""
#include <stdio.h>
#include <stdlib.h>

static void show(enum action action, uint16_t target) { printf("%d %d\n", action, target); }

static uint16_t *list(FILE *in, unsigned n) {
    uint16_t *found = malloc(2 * (n + 1));
    for (unsigned k = 0, value; k < n; k++) if (fscanf(in, "%u", &value) == 1) found[k] = (uint16_t)value;
    return found;
}

int main(int count, char **names) {
    struct problem p;
    struct memory m;
    static uint8_t data[1 << 16];
    unsigned ops, tensors, inputs, reads, writes, f[4];
    FILE *in = count > 2 ? fopen(names[1], "r") : NULL, *plan = count > 2 ? fopen(names[2], "rb") : NULL;
    if (!in || !plan) return 9;
    if (fscanf(in, "%u %u %u %u %u %u %u %u %u", f, f + 1, f + 2, f + 3, &ops, &tensors, &inputs, &reads, &writes) != 9)
        return 9;
    for (int k = 0; k < 4; k++) p.fingerprint[k] = (uint8_t)f[k];
    p.operators = (uint16_t)ops, p.tensors = (uint16_t)tensors, p.inputs = (uint16_t)inputs;
    p.input = list(in, inputs);
    p.read_at = list(in, ops + 1), p.read = list(in, reads);
    p.write_at = list(in, ops + 1), p.write = list(in, writes);
    m.events = m.frees = 20000;
    m.event = malloc(m.events * sizeof *m.event), m.freed = malloc(2 * m.frees);
    m.freed_at = malloc((m.events + 2) * sizeof *m.freed_at), m.mark = malloc(2 * tensors + 2);
    return decode_plan(&p, &m, data, fread(data, 1, sizeof data, plan), show);
}
"""
ACTIONS = (Action.COMPUTE, Action.PAGE_OUT, Action.PAGE_IN, Action.FREE)


def decoded_in_c(program: Path, folder: Path, problem: Problem, data: bytes) -> tuple[int, list[Instruction]]:
    """Exit code and instructions of the C decoder."""

    def starts(lists: Sequence[Sequence[int]]) -> list[int]:
        return [sum(map(len, lists[:k])) for k in range(len(lists) + 1)]

    reads = [operator.inputs for operator in problem.operators]
    writes = [operator.outputs for operator in problem.operators]
    flat = [[i for part in parts for i in part] for parts in (reads, writes)]
    rows = [
        [*fingerprint(problem), len(reads), len(problem.tensors), len(problem.at_start), len(flat[0]), len(flat[1])],
        list(problem.at_start), starts(reads), flat[0], starts(writes), flat[1],
    ]  # fmt: skip
    tables, plan = folder / "tables.txt", folder / "plan.bin"
    tables.write_text("\n".join(" ".join(map(str, row)) for row in rows))
    plan.write_bytes(data)
    done = subprocess.run([program, tables, plan], capture_output=True, text=True)
    pairs = [line.split() for line in done.stdout.splitlines()]
    return done.returncode, [Instruction(ACTIONS[int(action)], int(target)) for action, target in pairs]


@pytest.mark.parametrize("seed", seeds(40))
def test_a_c_decoder_gives_the_same_instructions(compiled: Path, tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, operators=rng.randint(1, 12), dma=True)
    plan = random_plan(rng, problem) if seed % 4 else store_all(problem)
    if seed % 3:
        plan = normalize(plan)
    if seed % 2:
        plan = plan_transfers(plan, 10**6)
    assert decoded_in_c(compiled, tmp_path, problem, encode_compact(plan)) == (0, list(plan.instructions))


def test_the_c_decoder_decodes_resnet18_and_refuses_damage(compiled: Path, tmp_path: Path, solved: Plan) -> None:
    data, problem = encode_compact(solved), solved.problem
    assert decoded_in_c(compiled, tmp_path, problem, data) == (0, list(solved.instructions))
    rng = random.Random(2)
    for _ in range(60):
        damaged = corrupted(rng, data)
        if damaged != data:
            assert decoded_in_c(compiled, tmp_path, problem, damaged) == (1, [])
    other = replace(problem, model_hash="0" * 64, structure_hash="0" * 64)
    assert decoded_in_c(compiled, tmp_path, other, data) == (2, [])
    for _ in range(60):
        body = bytearray(data[:-4])
        for place in rng.sample(range(1 + FINGERPRINT_BYTES, len(body)), 3):
            body[place] = rng.randrange(256)
        whole = bytes(body) + zlib.crc32(body).to_bytes(4, "little")
        code, steps = decoded_in_c(compiled, tmp_path, problem, whole)
        try:
            assert (code, steps) == (0, list(decode_compact(problem, whole).instructions))
        except PlanError:
            assert (code, steps) == (3, [])
