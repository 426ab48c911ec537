"""Operators that share a function: what is one, what tells them apart, and whose instructions are whose."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poetopt.backends.c import tracing
from poetopt.backends.c.build import build, emitted
from poetopt.backends.c.operators import OperatorCode, shared
from poetopt.backends.c.program import DeviceProgram, device_program
from poetopt.backends.c.run import Ran, run
from poetopt.backends.c.targets import Target
from poetopt.backends.c.tracing import Trace
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.plan.assemble import store_all
from poetopt.plan.layout import lay_out
from tests.backends.c.support import HOST, M4, dropping, needs_host, other_board, same


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


def code(name: str, body: str) -> OperatorCode:
    """An operator without tensors."""
    return OperatorCode(
        name, name, (), True, f"/* {name} */\nPO_OPERATOR {name}(void *work)\n{{\n{body}}}\n", (), (), 0
    )


def test_what_differs_is_a_parameter_and_small_numbers_are_not() -> None:
    text = "    /* Add: {0} -> y */\n    po_add(PO_RESIDENT({1}u), PO_RESIDENT(8u), {2}, {3}, {4}f, work);\n"
    bodies = [("a", 64, 100, 3, "0.25"), ("b", 128, 200, 3, "0.5"), ("c", 64, 200, 3, "0.5"), ("d", 64, 200, 4, "0.5")]
    found = shared({name: code(name, text.format(name, *rest)) for name, *rest in bodies})
    assert found["d"].text
    assert not found["d"].given
    a, b, c = (found[name] for name in "abc")
    assert a.function == b.function == c.function == "a_and_2"
    assert (b.text, c.text) == ("", "")
    assert "PO_OPERATOR a_and_2(void *p0, int32_t n1, float n2, void *work)\n" in a.text
    assert "    /* Add */\n    po_add(p0, PO_RESIDENT(8u), n1, 3, n2, work);\n" in a.text
    assert b.given == ("PO_RESIDENT(128u)", "200", "0.5f")
    assert c.given == ("PO_RESIDENT(64u)", "200", "0.5f")


def test_sizes_of_arrays_and_of_copies_stay_numbers() -> None:
    for line in ("float tile[{}];", "memcpy(work, work, {});"):
        found = shared({k: code(f"op{k}", f"    {line.format(k)}\n") for k in (100, 200)})
        assert all(made.text and not made.given for made in found.values())


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


@other_board
def test_instructions_are_counted_with_the_operator_that_takes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where operators share a function, on soft floats too; counting in Python and in C is the same."""
    made = program()
    counts = ran(made, tmp_path / "c", M4).counts
    assert counts is not None
    assert (counts[:-1, 0] > 0).all()
    assert counts[-1, 0] < counts[:-1, 0].sum()
    alike: dict[tuple[str, str], set[int]] = {}
    for (index, _), one in made.routines[0].operators.items():
        if one.given and not any(given.rstrip("u").isdigit() for given in one.given):
            alike.setdefault((one.function, ""), set()).add(int(counts[index, 0]))
    assert alike
    assert all(max(of) - min(of) <= 0.05 * max(of) for of in alike.values())  # what a Relu or a mask decides

    def count(trace: Any, machine: Any, address: int, size: int, data: object) -> None:
        """What po_count does."""
        c, first, end = trace._counts, address // 2, (address + size) // 2
        if end > c.halfwords:
            return
        trace.sums[c.row, -1] += np.uint64(first != c.end)
        if trace.kind[first] == tracing.SCHEDULE:
            c.row = c.rest
        elif trace.kind[first] == tracing.ENTRY and c.last == tracing.SCHEDULE:
            c.row = int(trace.order[c.call % c.calls])
            c.call += 1
        trace.sums[c.row, :-1] += trace.before[end] - trace.before[first]
        c.end, c.last = end, int(trace.kind[first])

    def attach(trace: Trace, machine: Any, unicorn: Any) -> None:
        machine.hook_add(unicorn.UC_HOOK_BLOCK, partial(count, trace))

    monkeypatch.setattr(Trace, "attach", attach)
    here = ran(made, tmp_path / "python", M4).counts
    assert here is not None
    assert np.array_equal(counts, here)
