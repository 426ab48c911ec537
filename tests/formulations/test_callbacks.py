"""A block that is wrong is told by its name in one message, wherever in a solve it shows; and nothing else is."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyomo.environ as pyo
import pytest

import poetopt as po
from poetopt.formulations.language import Block, Formulation, PointLike, PyomoBlock, Row, Terms
from poetopt.graph.problem import Problem
from poetopt.util.errors import FormulationError

RETENTION = po.formulations.formulation("retention")


@pytest.fixture(scope="module")
def problem() -> Problem:
    return po.load("lenet").differentiate().cost("m4")


def nothing(block: PyomoBlock) -> None:
    pass


def fails(*_: object) -> Any:
    raise ZeroDivisionError("by zero")


def odd(**given: Any) -> Block:
    """A block `odd` behind `paging` that forbids nothing."""
    return Block(**{"name": "odd", "build": nothing, "requires": ("paging",), "restricts": False, **given})


def reads(block: PyomoBlock) -> list[Any]:
    return list(block.model().paging.p.values())


def separating(**changed: Any) -> Block:
    """A late row of the page-ins that always holds, but for what is changed; a function is of the variables."""

    def rows(block: PyomoBlock, point: PointLike) -> list[Row]:
        variables = reads(block)
        row = Row(variables, [1.0] * len(variables), -math.inf, 1e9, 1.0, "few", core=True)
        return [replace(row, **{name: x(variables) if callable(x) else x for name, x in changed.items()})]

    return odd(separator=rows)


def row_of(make: Callable[[list[Any]], Any]) -> Block:
    """A constraint over the page-ins."""

    def build(block: PyomoBlock) -> None:
        block.within = pyo.Constraint(expr=make(reads(block)))

    return odd(build=build)


def paying(make: Callable[[list[Any]], Any]) -> Block:
    """Something else than terms in the objective."""

    def build(block: PyomoBlock) -> None:
        block.energy_j = make(reads(block))

    return odd(build=build)


def by_rule(block: PyomoBlock) -> None:
    block.within = pyo.Constraint([0], rule=fails)


def without_bound(block: PyomoBlock) -> None:
    block.x = pyo.Var(bounds=(0.0, math.nan))
    block.within = pyo.Constraint(expr=block.x >= 0)


def free(_: Problem, baseline_j: float) -> float:
    return 0.0


WRONG: dict[str, tuple[Any, str]] = {
    # what isn't a block at all, or not one that a model can have
    "a number": (5, "a int is no block"),
    "a class": (Block, "the class Block is no block"),
    "no build": (odd(build=None), "block 'odd': build must be a function, and is None"),
    "no function": (odd(separator=5), "block 'odd': separator must be a function, and is 5"),
    "two words": (odd(name="a b"), "block 'a b': its name .* identifier"),
    "no name": (odd(name=""), "block '': its name .* identifier"),
    "a name of the model's": (odd(name="space"), "block 'space': models have another attribute of this name"),
    "a name of Pyomo's": (odd(name="component"), "block 'component': models have another attribute"),
    "a text required": (odd(requires="paging"), "block 'odd': requires must be a tuple of names, and is 'paging'"),
    "a goal's name": (odd(goal="time"), "block 'odd': goal must be a Goal, and is 'time'"),
    # what separators return
    "no rows": (odd(separator=lambda block, point: None), "block 'odd': separator returned None, not a list of rows"),
    "numbers": (odd(separator=lambda block, point: (1, 2)), "separator returned 1 in place of a Row"),
    "too few coefficients": (separating(coefficients=[1.0]), r"a row \(few\) of \d+ variables and 1 coefficients"),
    "a number for a variable": (separating(variables=[5], coefficients=[1.0]), "'odd': .* a int in place of a var"),
    "a whole variable": (
        separating(variables=lambda all_: [all_[0].parent_component()], coefficients=[1.0]),
        "block 'odd': .* a IndexedVar in place of a variable's entry",
    ),
    "infinite": (separating(coefficients=lambda all_: [math.inf] * len(all_)), "coefficient that is not finite"),
    "nan": (separating(coefficients=lambda all_: [math.nan] * len(all_)), "coefficient that is not finite"),
    "words": (separating(coefficients=lambda all_: ["1"] * len(all_)), "a row .* that isn't made as Row says"),
    "no bound": (separating(upper=math.nan), "a row .* from -inf to nan, which nothing keeps"),
    "crossed": (separating(lower=2.0, upper=1.0), "a row .* from 2.0 to 1.0, which nothing keeps"),
    "no side": (separating(upper=math.inf), "from -inf to inf: one of them must be finite"),
    "an empty row": (separating(variables=[], coefficients=[]), "a row .* without variables"),
    "no violation": (separating(violation=math.nan), "whose violation is nan"),
    # functions that raise
    "separator": (odd(separator=fails), "block 'odd': separator failed: ZeroDivisionError: by zero .test_callbacks"),
    "refuses": (odd(refuses=fails), "block 'odd': refuses failed: ZeroDivisionError"),
    "when": (odd(when=fails), "block 'odd': when failed: ZeroDivisionError"),
    "impossible": (odd(impossible=fails), "block 'odd': impossible failed: ZeroDivisionError"),
    "adds_j": (odd(adds_j=fails, base_j=free), "block 'odd': adds_j failed: ZeroDivisionError"),
    "base_j": (odd(base_j=fails), "block 'odd': base_j failed: ZeroDivisionError"),
    "reserve_bytes": (odd(reserve_bytes=fails), "block 'odd': reserve_bytes failed: ZeroDivisionError"),
    "build": (odd(build=fails), "block 'odd': build failed: ZeroDivisionError"),
    "a rule": (odd(build=by_rule), "block 'odd': build failed: ZeroDivisionError"),
    "adds_j of a plan": (odd(adds_j=lambda plan, simulation: 1.0, base_j=free), r"adds_j must take \(trial\)"),
    "base_j of a problem": (odd(base_j=lambda problem: 1.0), r"base_j must take \(problem, baseline_j\)"),
    # what they return
    "yes": (odd(refuses=lambda trial: True), "block 'odd': refuses returned True, not a text or None"),
    "seven": (odd(refuses=lambda trial: 7), "block 'odd': refuses returned 7, not a text or None"),
    "nan joules": (odd(adds_j=lambda *_: math.nan, base_j=free), "adds_j returned nan, not a finite number of joules"),
    "no joules": (odd(adds_j=lambda *_: None, base_j=free), "adds_j returned None, not a number of joules"),
    "bytes owed": (odd(reserve_bytes=lambda _: -5), "reserve_bytes returned -5, not a whole number of bytes"),
    "half a byte": (odd(reserve_bytes=lambda _: 2.5), "reserve_bytes returned 2.5, not a whole number of bytes"),
    # what stands in the model
    "no terms": (paying(lambda all_: 3.0), "block 'odd': energy_j must be made by `terms`, and is a float"),
    "unequal terms": (paying(lambda all_: Terms(all_, [1.0])), r"energy_j has \d+ variables and 1 coefficients"),
    "terms of nan": (paying(lambda all_: Terms(all_[:1], [math.nan])), "'odd': energy_j has a coefficient that is not"),
    "terms of numbers": (paying(lambda all_: Terms([5], [1.0])), "'odd': energy_j has a int in place of a variable"),
    "a product": (row_of(lambda all_: all_[0] * all_[1] <= 1), "block 'odd': constraint odd.within is not linear"),
    "a row of nan": (row_of(lambda all_: math.nan * all_[0] <= 1), "'odd': constraint odd.within has the coefficient"),
    "a row to nan": (row_of(lambda all_: all_[0] <= math.nan), "block 'odd': constraint odd.within has the bound nan"),
    "a bound of nan": (odd(build=without_bound), "block 'odd': var odd.x"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_told_by_name(case: str, problem: Problem, caplog: pytest.LogCaptureFixture) -> None:
    block, complaint = WRONG[case]
    with pytest.raises(FormulationError, match=complaint) as told:
        po.solve(problem, ram="97%", blocks=[block], time_limit=20)
    assert "failed: ZeroDivisionError" not in complaint or isinstance(told.value.__cause__, ZeroDivisionError)
    # what Pyomo logs of an error goes to stderr
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("blocks", ["flash-wear=1MB", odd(), 5])
def test_blocks_are_a_list(blocks: Any, problem: Problem) -> None:
    with pytest.raises(po.util.errors.OptionError, match="blocks must be a list of blocks and texts"):
        po.solve(problem, ram="70%", blocks=blocks)


def built(block: Block, problem: Problem) -> tuple[Formulation, Any]:
    together = RETENTION.with_block(block)
    return together, together.build(problem, ram_bytes=10**6, scope="forward")


def test_rows_from_another_scope(problem: Problem) -> None:
    """A key whose row can't be made; where the new scope hasn't the block, its rows are left behind."""
    for revive, complaint in ((fails, "revive failed: ZeroDivisionError"), (lambda *_: 3, "revive returned 3")):
        together, model = built(odd(revive=revive), problem)
        with pytest.raises(FormulationError, match=f"block 'odd': {complaint}"):
            together.revive(model, [("odd", 1)])
    together, model = built(odd(revive=fails, when=lambda space: False), problem)
    assert together.revive(model, [("odd", 1)]) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, po.PoetError("a message of its own")])
def test_what_is_nobodys_fault_passes(error: BaseException | type[BaseException], problem: Problem) -> None:
    def interrupted(_: object) -> Any:
        raise error

    with pytest.raises(error if isinstance(error, type) else type(error)) as told:
        RETENTION.with_block(odd(reserve_bytes=interrupted)).reserve_bytes(problem)
    assert not isinstance(told.value, FormulationError)


def test_a_defect_of_our_own_is_no_blocks_fault(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fails, "__module__", "poetopt.formulations.odd")
    with pytest.raises(ZeroDivisionError):
        RETENTION.with_block(odd(reserve_bytes=fails)).reserve_bytes(problem)


def test_good_answers_pass(problem: Problem) -> None:
    """Numbers of numpy's, a reason, whole bytes that are a float."""
    block = odd(reserve_bytes=lambda _: np.float64(2), base_j=lambda *_: np.float32(1.5), refuses=lambda _: "no")
    together = RETENTION.with_block(block)
    assert together.reserve_bytes(problem) == 2
    assert together.baseline_j(problem) == problem.baseline_energy_j + 1.5
    assert together.refusal(None) == "no"  # type: ignore[arg-type]
