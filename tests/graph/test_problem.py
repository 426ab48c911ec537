"""What a problem says of its tensors: one network of each kind of tensor, the questions, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from poetopt.graph import Role, Tensor, residence
from poetopt.graph.problem import Home, Problem, ProblemOperator, ProblemTensor, Transfers, Variant
from poetopt.util.errors import PoetError, ProblemError

X, W, Y, DY, STAT, TABLE, DW = range(7)


def whole_memory() -> Problem:
    """One trained layer with its update: the input on storage, a weight, a running statistic, a table in flash.

    y = layer(x, w, table); dy = loss(y); dw = weight(x, dy); update(w, stat, dw) writes w and stat anew.
    """
    tensors = (
        ProblemTensor("x", 10, -1, home=Home.STORAGE),
        ProblemTensor("w", 100, -1, Transfers(1.0, 2.0, 3.0, 4.0), home=Home.STORAGE, carried=True, updated_by=3),
        ProblemTensor("y", 20, 0),
        ProblemTensor("dy", 20, 1),
        ProblemTensor("stat", 4, -1, carried=True, updated_by=3),
        ProblemTensor("table", 50, -1, home=Home.FLASH, carried=True),
        ProblemTensor("dw", 100, 2, result=True),
    )
    operators = (
        ProblemOperator(
            "layer", (X, W, TABLE), (Y,), 1.0, 1.0, variants=(Variant((W,), (), 32, 2.0, 3.0, 100),), updaters=(3,)
        ),
        ProblemOperator("loss", (Y,), (DY,), 1.0, 1.0, recomputable=False, takes=(Y, DY)),
        ProblemOperator("weight", (X, DY), (DW,), 1.0, 1.0, backward=True),
        ProblemOperator("update", (W, STAT, DW), (), 1.0, 1.0, backward=True),
    )
    return Problem("layer", "m4", operators, tensors, reserve_bytes=7, storage_block_bytes=8)


def plain() -> Problem:
    """An input in RAM and two computed tensors: what every device and formulation can plan for."""
    tensors = (ProblemTensor("x", 10, -1), ProblemTensor("y", 20, 0), ProblemTensor("dx", 10, 1))
    operators = (
        ProblemOperator("forward", (0,), (1,), 1.0, 1.0),
        ProblemOperator("backward", (0, 1), (2,), 1.0, 1.0, backward=True),
    )
    return Problem("plain", "m4", operators, tensors)


def test_a_home_follows_from_the_producer_unless_it_is_said() -> None:
    assert [tensor.home for tensor in plain().tensors] == [Home.RAM, Home.NOWHERE, Home.NOWHERE]
    assert ProblemTensor("w", 1, -1, home=Home.FLASH).home is Home.FLASH


def test_what_reads_a_resident_tensor_runs_no_more_after_its_update() -> None:
    problem = operator(0, updaters=(1,))(plain())
    assert problem.last_run == (1, 1)
    with pytest.raises(ProblemError, match=r'"updaters" must be operators that come after it'):
        operator(1, updaters=(1,))(plain())


def test_where_tensors_begin_and_end() -> None:
    problem = whole_memory()
    assert problem.at_start == (STAT,)
    assert problem.stored_at_start == (X, W)
    assert problem.given == (X, W, STAT, TABLE)
    assert problem.start_bytes == 4 + 7
    assert problem.at_end == (STAT, DW)
    assert [i for i in range(7) if problem.outlives(i)] == [W, STAT, TABLE, DW]


def test_what_brings_a_tensor_back() -> None:
    problem = whole_memory()
    assert [i for i in range(7) if problem.may_recompute(i)] == [Y, DW]
    assert [i for i in range(7) if problem.may_page_out(i)] == [W, Y, DY, STAT, DW]
    assert not any(replace(problem, paging=False).may_page_out(i) for i in range(7))
    assert [i for i in range(7) if problem.written_first(i)] == [Y, DY, STAT, DW]


def test_when_a_tensor_is_written_out() -> None:
    problem = whole_memory()
    assert [problem.written_after(stage) for stage in range(-1, 4)] == [(STAT,), (Y,), (DY,), (DW,), (W, STAT)]


def test_nothing_that_reads_a_tensor_runs_after_its_update() -> None:
    problem = whole_memory()
    assert problem.updates == ((), (), (), (W, STAT))
    assert problem.last_run == (3, 3, 3, 3)
    longer = replace(problem, operators=(*problem.operators, ProblemOperator("after", (DY,), (), 1.0, 1.0)))
    assert longer.last_run == (3, 4, 4, 3, 4)


def test_blocks_on_storage() -> None:
    assert whole_memory().blocks(Y) == 3


def test_an_operators_own_figures_are_its_plain_variant() -> None:
    assert ProblemOperator("f", (), (), 2.0, 3.0, 5).plain == Variant(workspace_bytes=5, time_s=2.0, energy_j=3.0)


def tensor(i: int, **fields: Any) -> Callable[[Problem], Problem]:
    """A problem with other fields in tensor i."""
    return lambda p: replace(p, tensors=(*p.tensors[:i], replace(p.tensors[i], **fields), *p.tensors[i + 1 :]))


def operator(k: int, **fields: Any) -> Callable[[Problem], Problem]:
    """A problem with other fields in operator k."""
    return lambda p: replace(p, operators=(*p.operators[:k], replace(p.operators[k], **fields), *p.operators[k + 1 :]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (tensor(Y, producer=2), r"tensors\[2\] \('y'\): its producer is not the operator that writes it"),
        (tensor(X, producer=0), r"tensors\[0\] \('x'\): its producer"),
        (
            tensor(Y, home=Home.RAM),
            r"tensors\[2\] \('y'\): its home can't be 'ram', because an operator writes it first",
        ),
        (
            tensor(X, home=Home.NOWHERE),
            r"tensors\[0\] \('x'\): its home can't be 'nowhere', because no operator writes it",
        ),
        (tensor(Y, carried=True), r"\('y'\): a tensor without a home can't be carried"),
        (tensor(X, result=True), r"\('x'\): only a computed tensor can be a result"),
        (tensor(X, updated_by=3), r"\('x'\): operator 3 updates it, but doesn't read it"),
        (tensor(X, updated_by=99), r"\('x'\): operator 99 updates it"),
        (tensor(X, updated_by=0), r"\('x'\): operator 2 reads it after operator 0 has updated it"),
        (tensor(Y, updated_by=1), r"\('y'\): only a tensor with a home can be updated"),
        (tensor(TABLE, updated_by=0), r"\('table'\): it is in flash"),
        (operator(0, inputs=(1, 0)), r'operators\[0\]: "inputs" must be ascending indices in a table of 7 \(\'layer\''),
        (operator(0, inputs=(0, 0, 1)), r'operators\[0\]: "inputs" must be ascending'),
        (operator(0, outputs=(7,)), r'operators\[0\]: "outputs" must be ascending'),
        (operator(0, inputs=(-1,)), r'operators\[0\]: "inputs" must be ascending'),
        (operator(1, outputs=(Y, DY)), r"\('y'\): operators 0 and 1 both write it"),
        (operator(0, variants=(Variant((DY,)),)), r'"streamed_in" of a variant must be ascending indices among'),
        (operator(0, variants=(Variant((), (W,)),)), r'"streamed_out" of a variant must be ascending indices among'),
        (lambda p: replace(p, alignment=0), '"alignment" must be a number of at least 1'),
        (lambda p: replace(p, storage_block_bytes=0), '"storage_block_bytes" must be a number of at least 1'),
    ],
)
def test_what_contradicts_itself_is_refused(change: Callable[[Problem], Problem], message: str) -> None:
    problem = whole_memory()
    with pytest.raises(ProblemError, match=message) as found:
        change(problem)
    assert isinstance(found.value, PoetError)
    assert found.value.exit_code == 2


def test_an_update_may_be_streamed_to_storage() -> None:
    streamed = operator(3, variants=(Variant((W,), (W,), 16, 2.0, 2.0, 100, 100),))(whole_memory())
    assert streamed.operators[3].variants[0].written_bytes == 100


@pytest.mark.parametrize("role", Role)
def test_what_outlives_the_step_lies_in_the_resident_region(role: Role) -> None:
    held = residence(role)
    assert Tensor("t", (1,), "float32", role).resident == held.outlives
    computed = held.home is Home.NOWHERE
    operators = (ProblemOperator("f", () if computed else (0,), (0,) if computed else (), 1.0, 1.0),)
    made = ProblemTensor("t", 1, 0 if computed else -1, home=held.home, carried=held.carried, result=held.result)
    assert Problem("role", "m4", operators, (made,)).outlives(0) == held.outlives
    assert held.outlives == (role not in (Role.INPUT, Role.ACTIVATION, Role.GRADIENT))
