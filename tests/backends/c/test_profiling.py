"""Operators that share a function, and profiles of an emulated core: whose instructions are whose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from poetopt.api.training import SAME_BYTES
from poetopt.backends.c.build import build, emitted
from poetopt.backends.c.execute import execute_on
from poetopt.backends.c.program import DeviceProgram, device_program
from poetopt.backends.c.run import Ran, run
from poetopt.backends.c.targets import Target
from poetopt.backends.c.tracing import CLASSES, core, timed
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.plan.assemble import store_all
from poetopt.plan.layout import lay_out
from tests.support.c import HOST, dropping, needs_emulator, needs_host, network, same


def program() -> DeviceProgram:
    """A step of three linear layers, two of which are of one size."""
    problem = dropping()
    assert problem.graph is not None
    return device_program(lay_out(store_all(problem)), problem.graph)


def ran(made: DeviceProgram, folder: Path, target: Target = HOST) -> Ran:
    """One step."""
    for name, content in emitted(made, target).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return run(build(made, target, folder, warnings=("-Werror",)), random_batch(made.graph, 3))


@needs_host
def test_a_shared_function_works_on_what_it_is_given(tmp_path: Path) -> None:
    """Two operators that are given each other's addresses compute something else."""
    made = program()
    (routine,) = made.routines
    texts = [one.text for one in made.codes if one.text]
    assert len(texts) < len(made.codes)
    results = ran(made, tmp_path / "right").results
    (one, first), (other, second) = next(
        ((i, a), (j, b))
        for i, a in routine.operators.items()
        for j, b in routine.operators.items()
        if a.function == b.function and a.given != b.given and "weight.update" in a.name and i != j
    )
    swapped = {**routine.operators, one: replace(first, given=second.given), other: replace(second, given=first.given)}
    other_made = replace(made, routines=(replace(routine, operators=swapped),))
    wrong = ran(other_made, tmp_path / "wrong").results
    assert not same(results, wrong)


@pytest.mark.parametrize(
    ("instruction", "kind", "middle"),
    [(("adds", "r0, r1, r2"), "arithmetic", 1), (("smull", "r0, r1, r2, r3"), "multiply", 1),
     (("smulbb", "r0, r1, r2"), "arithmetic", 1), (("sdiv", "r0, r1, r2"), "divide", 7),
     (("ldr.w", "r0, [r1, #4]"), "load", 1.5), (("ldrd", "r0, r1, [r2]"), "load", 3),
     (("pop.w", "{r4, r5, r6, pc}"), "load", 5), (("vpush", "{d8, d9}"), "store", 5),
     (("vldmia", "r0!, {s0, s1, s2}"), "load", 4), (("blt", "#0x80"), "branch", 1),
     (("bic", "r0, r1, r2"), "arithmetic", 1), (("vmul.f32", "s0, s1, s2"), "float", 1.25),
     (("vfma.f32", "s0, s1, s2"), "float", 3), (("vsqrt.f32", "s0, s1"), "float divide", 14),
     (("vcvt.f32.s32", "s0, s1"), "float move", 1)],
)  # fmt: skip
def test_an_instruction_takes_what_the_manual_says(instruction: tuple[str, str], kind: str, middle: float) -> None:
    """Cortex-M4: DDI 0439, tables 3-1 and 7-1."""
    found, (low, mid, high) = timed(core("cortex-m4"), *instruction)
    assert (found, mid) == (kind, middle)
    assert low <= mid <= high


@needs_emulator
def test_a_profile_has_what_a_run_counts() -> None:
    pytest.importorskip("capstone")
    step = network().differentiate()
    found = step.on("c").profile_on("cortex-m4")
    problem = step.cost(SAME_BYTES, runtime="c")  # of another device, addresses are others, and instructions with them
    counted = execute_on(lay_out(store_all(problem)), "cortex-m4").by_operator
    assert {name: one.instructions for name, one in found.operators.items()} == counted
    for one in found.operators.values():
        low, middle, high = one.cycles
        assert sum(one.classes[kind] for kind in CLASSES) == one.instructions
        assert one.instructions * 0.9 < low < middle < high < 4 * one.instructions
    costed = step.cost("m4", profile=found.profile)
    for operator in costed.operators:
        one = found.operators[operator.name]
        assert operator.time_s == pytest.approx(one.cycles[1] / 64e6, rel=0.3)  # the mean of those alike
    taken = sum(operator.time_s for operator in costed.operators)
    assert taken == pytest.approx(sum(one.cycles[1] for one in found.operators.values()) / 64e6)
    assert any("modelled (emulated cortex-m4 at 64 MHz)" in note for note in costed.notes)
