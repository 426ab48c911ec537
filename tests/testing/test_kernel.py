"""`check_kernel`: every kernel of the runtime `c` against onnxruntime, and broken kernels that it must catch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from poetopt.backends.c.targets import LINUX, TARGETS, compilers
from poetopt.ops.runtimes.c.kernel import Arguments, Call, Kernel
from poetopt.ops.runtimes.c.steps import kernels
from poetopt.testing import ContractError
from tests.seeds import everything
from tests.support.contract.kernel import Case, check_kernel, check_kernels, node_case
from tests.support.draws import DRAWS, cases_of

needs_compiler = pytest.mark.skipif(not [*compilers(TARGETS[LINUX])], reason="no C compiler for this machine")
LONG = ("Conv", "ConvTranspose", "Conv.grad_input", "Conv.grad_weight")
"""Their code takes a compiler longest."""


def test_every_kernel_can_be_drawn() -> None:
    assert set(kernels()) == set(DRAWS)


@needs_compiler
def test_kernels_agree_with_onnxruntime() -> None:
    """Every kernel; thousands of calls are in `benchmarks/kernels.py`."""
    few = [kernel for kernel in kernels().values() if kernel.op_type not in LONG]
    count = 2 if everything() else 1
    found = check_kernels({kernel: cases_of(kernel, count) for kernel in few}, optimize="-O0")
    assert [check.cases for check in found] == [count] * len(few)
    assert sum(check.in_place for check in found) > len(few) // 4 * count


@needs_compiler
@pytest.mark.parametrize("op_type", LONG)
def test_convolutions_agree_with_onnxruntime(op_type: str) -> None:
    (kernel,) = (kernel for kernel in kernels().values() if kernel.op_type == op_type)
    assert check_kernel(kernel, cases_of(kernel, 4), optimize="-O0").cases == 4


@needs_compiler
def test_whole_numbers_are_divided_by_all() -> None:
    """A quotient by 0 is 0, and one that is too large wraps; onnxruntime ends with an error, or crashes."""
    cases: dict[Kernel, list[Case]] = {kernels()["", op]: [] for op in ("Div", "Mod")}
    for dtype in (np.int32, np.int64):
        least = np.iinfo(dtype).min
        a, b = np.array([7, 0, -7, least, -7, 7], dtype), np.array([0, 0, 0, -1, 2, -2], dtype)
        wanted = (
            ("Div", 0, [0, 0, 0, least, -3, -3]),
            ("Mod", 0, [0, 0, 0, 0, 1, -1]),
            ("Mod", 1, [0, 0, 0, 0, -1, 1]),
        )
        for op, fmod, values in wanted:
            attributes = {"fmod": fmod} if op == "Mod" else {}
            drawn = node_case(op, a, np.ones_like(b), outputs=(a.dtype.name,), attributes=attributes)
            given, expected = (
                dict(zip(drawn.given, (a, b), strict=True)),
                dict.fromkeys(drawn.expected, np.array(values, dtype)),
            )
            cases[kernels()["", op]].append(replace(drawn, given=given, expected=expected))
    check_kernels(cases, optimize="-O0")


def _add(body: str, **changed: object) -> Kernel:
    """A kernel for Add of two operands of one size."""

    def code(call: Call, arguments: Arguments) -> str:
        a, b = arguments.inputs
        text = body.replace("SIZE", str(call.output().size))
        return f"{{ const float *a = {a}, *b = {b}; float *y = {arguments.outputs[0]}; {text} }}"

    made = Kernel("Add", code, headers=("po_math.h",))
    return replace(made, **changed)  # type: ignore[arg-type]


SUM = "for (int32_t i = 0; i < SIZE; ++i) { y[i] = a[i] + b[i]; }"
BROKEN = {
    "largest element from onnxruntime's": _add(SUM.replace("+ b", "- b")),
    "reads what it has not written": _add(SUM.replace("i < SIZE", "i < SIZE - 1")),
    "other bits where output 0 lies on input 1": _add(
        "for (int32_t i = 0; i < SIZE; ++i) { y[i] = a[i]; } for (int32_t i = 0; i < SIZE; ++i) { y[i] += b[i]; }",
        in_place=(1,),
    ),
    "writes over its input 0": _add(SUM + " ((float *)(uintptr_t)a)[0] = 0.0f;"),
    "the compiler refuses it": _add(SUM + " int unused;"),
    "it refuses that: not today": _add(SUM, refuses=lambda call: "not today"),
    "must be a constant": _add(SUM, constants=(1,)),
}


@needs_compiler
@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_kernel_is_caught(message: str) -> None:
    random = np.random.default_rng(0)
    a, b = (random.standard_normal((3, 4)).astype(np.float32) for _ in range(2))
    with pytest.raises(ContractError, match=message):
        check_kernel(BROKEN[message], [node_case("Add", a, b)], optimize="-O0")


@needs_compiler
def test_a_kernel_that_leaves_its_buffers_is_caught() -> None:
    a = np.ones((3, 4), np.float32)
    sound = check_kernel(_add(SUM, in_place=(0, 1)), [node_case("Add", a, a + 1)], optimize="-O0")
    assert (sound.cases, sound.in_place, sound.deviation) == (1, 2, 0.0)
    if not sound.sanitized:
        pytest.skip("the compiler has no address sanitizer")
    with pytest.raises(ContractError, match="AddressSanitizer"):
        check_kernel(_add(SUM.replace("i < SIZE", "i <= SIZE")), [node_case("Add", a, a)], optimize="-O0")
