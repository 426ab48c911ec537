"""Profiles of an emulated core: instructions by class, modelled cycles, and the costs that they become."""

from __future__ import annotations

import pytest

import poetopt as po
from poetopt.backends.c.execute import execute_on
from poetopt.backends.c.tracing import CLASSES, LEVELS, core, timed
from poetopt.plan.assemble import store_all
from poetopt.plan.layout import lay_out
from poetopt.util.errors import OptionError
from tests.backends.c.support import needs_emulator, network


@pytest.mark.parametrize(
    ("instruction", "kind", "middle"),
    [
        (("adds", "r0, r1, r2"), "arithmetic", 1),
        (("smull", "r0, r1, r2, r3"), "multiply", 1),
        (("smulbb", "r0, r1, r2"), "arithmetic", 1),
        (("sdiv", "r0, r1, r2"), "divide", 7),
        (("ldr.w", "r0, [r1, #4]"), "load", 1.5),
        (("ldrd", "r0, r1, [r2]"), "load", 3),
        (("pop.w", "{r4, r5, r6, pc}"), "load", 5),
        (("vpush", "{d8, d9}"), "store", 5),
        (("vldmia", "r0!, {s0, s1, s2}"), "load", 4),
        (("blt", "#0x80"), "branch", 1),
        (("bic", "r0, r1, r2"), "arithmetic", 1),
        (("vmul.f32", "s0, s1, s2"), "float", 1.25),
        (("vfma.f32", "s0, s1, s2"), "float", 3),
        (("vsqrt.f32", "s0, s1"), "float divide", 14),
        (("vcvt.f32.s32", "s0, s1"), "float move", 1),
    ],
)
def test_an_instruction_takes_what_the_manual_says(instruction: tuple[str, str], kind: str, middle: float) -> None:
    """Cortex-M4: DDI 0439, tables 3-1 and 7-1."""
    found, (low, mid, high) = timed(core("cortex-m4"), *instruction)
    assert (found, mid) == (kind, middle)
    assert low <= mid <= high


def test_a_cortex_m0plus_calls_in_three_cycles_and_loads_in_two() -> None:
    m0 = core("cortex-m0plus")
    assert timed(m0, "bl", "#0x80")[1][0] + m0.taken[0] == 3
    assert timed(m0, "b", "#0x80")[1][0] + m0.taken[0] == 2
    assert timed(m0, "ldr", "r0, [r1]")[1] == (2, 2, 2)
    assert timed(m0, "push", "{r4, lr}")[1] == (3, 3, 3)


def test_a_cortex_m7_issues_two_at_once_and_waits_for_results() -> None:
    """LLVM's ARMScheduleM7.td: two a cycle, float results after 3, of a multiply and add 3 after the one it adds to."""
    m7, m4 = core("cortex-m7"), core("cortex-m4")
    for instruction in (("adds", "r0, r1, r2"), ("ldr", "r0, [r1]"), ("vmul.f32", "s0, s1, s2"), ("str", "r0, [r1]")):
        kind, (low, middle, high) = timed(m7, *instruction)
        assert low == 0.5
        assert low < middle <= high
        assert middle <= timed(m4, *instruction)[1][1], kind
    assert timed(m7, "vadd.f32", "s0, s1, s2")[1][2] == timed(m7, "vfma.f32", "s0, s1, s2")[1][2] == 3
    assert timed(m7, "vldmia", "r0!, {s0, s1}")[1] == (1.5, 3, 3)


def test_other_processors_have_no_model() -> None:
    with pytest.raises(OptionError, match="--on host: its cycles can't be modelled"):
        core("host")


@needs_emulator
def test_a_profile_has_what_a_run_counts() -> None:
    pytest.importorskip("capstone")
    step = network().differentiate()
    problem = step.cost("m4")
    found = step.on("c").profile_on("cortex-m4")
    counted = execute_on(lay_out(store_all(problem)), "cortex-m4").by_operator
    assert {name: one.instructions for name, one in found.operators.items()} == pytest.approx(counted, rel=0.01)
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


@needs_emulator
def test_the_catalogues_rate_is_that_of_the_kernels() -> None:
    pytest.importorskip("capstone")
    model = po.load("lenet", batch=1)
    assert isinstance(model, po.Model)
    step = model.differentiate(optimizer="sgd")
    found = step.profile_on("cortex-m4")
    modelled = sum(one.cycles[LEVELS.index("middle")] for one in found.operators.values()) / found.clock_hz
    assert 0.7 < modelled / step.cost("m4").baseline_time_s < 1.4
