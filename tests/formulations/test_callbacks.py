"""A block or figure that is wrong is told by its name in one message, wherever in a solve it shows."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyomo.environ as pyo
import pytest

import poetopt as po
from poetopt.formulations.energy_budget import energy_budget
from poetopt.formulations.flash_wear import flash_wear
from poetopt.formulations.goal import ENERGY
from poetopt.formulations.language import Block, PointLike, PyomoBlock, Row, Terms
from poetopt.formulations.static_power import static_power
from poetopt.formulations.within import within
from poetopt.graph.problem import Problem
from poetopt.util.errors import FormulationError


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
    "no build": (odd(build=None), "block 'odd': build must be a function, and is None"),
    "two words": (odd(name="a b"), "block 'a b': its name .* identifier"),
    "a name of the model's": (odd(name="space"), "block 'space': models already have an attribute of this name"),
    "a text required": (odd(requires="paging"), "block 'odd': requires must be a tuple of names, and is 'paging'"),
    "no rows": (odd(separator=lambda block, point: None), "block 'odd': separator returned None, not a list of rows"),
    "too few coefficients": (separating(coefficients=[1.0]), r"a row \(few\) of \d+ variables and 1 coefficients"),
    "a whole variable": (
        separating(variables=lambda all_: [all_[0].parent_component()], coefficients=[1.0]),
        "block 'odd': .* a IndexedVar in place of a variable's entry",
    ),
    "infinite": (separating(coefficients=lambda all_: [math.inf] * len(all_)), "coefficient that is not finite"),
    "words": (separating(coefficients=lambda all_: ["1"] * len(all_)), "a row .* with wrong field types"),
    "no bound": (separating(upper=math.nan), "a row .* from -inf to nan, which no point satisfies"),
    "an empty row": (separating(variables=[], coefficients=[]), "a row .* without variables"),
    "no violation": (separating(violation=math.nan), "whose violation is nan"),
    "separator": (odd(separator=fails), "block 'odd': separator failed: ZeroDivisionError: by zero .test_callbacks"),
    "refuses": (odd(refuses=fails), "block 'odd': refuses failed: ZeroDivisionError"),
    "adds_j": (odd(adds_j=fails, base_j=free), "block 'odd': adds_j failed: ZeroDivisionError"),
    "build": (odd(build=fails), "block 'odd': build failed: ZeroDivisionError"),
    "a rule": (odd(build=by_rule), "block 'odd': build failed: ZeroDivisionError"),
    "adds_j of a plan": (odd(adds_j=lambda plan, simulation: 1.0, base_j=free), r"adds_j must take \(trial\)"),
    "base_j of a problem": (odd(base_j=lambda problem: 1.0), r"base_j must take \(problem, baseline_j\)"),
    "yes": (odd(refuses=lambda trial: True), "block 'odd': refuses returned True, not a text or None"),
    "seven": (odd(refuses=lambda trial: 7), "block 'odd': refuses returned 7, not a text or None"),
    "nan joules": (odd(adds_j=lambda *_: math.nan, base_j=free), "adds_j returned nan, not a finite number of joules"),
    "no joules": (odd(adds_j=lambda *_: None, base_j=free), "adds_j returned None, not a number of joules"),
    "bytes owed": (odd(reserve_bytes=lambda _: -5), "reserve_bytes returned -5, not a whole number of bytes"),
    "half a byte": (odd(reserve_bytes=lambda _: 2.5), "reserve_bytes returned 2.5, not a whole number of bytes"),
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


NONE: tuple[object, ...] = (math.nan, math.inf, -math.inf, -1, -0.5, True, None, "3", "3J", [3], 3j)
"""Nothing of this is a figure."""
MAKERS: dict[str, Callable[[Any], object]] = {
    "flash_wear": flash_wear,
    "energy_budget": energy_budget,
    "static_power": static_power,
    "within": lambda figure: within(ENERGY, figure),
}


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("figure", NONE, ids=repr)
def test_what_is_no_figure_is_refused_by_the_blocks_name(maker: str, figure: object) -> None:
    with pytest.raises(FormulationError, match=f"^{maker.split()[0]}: .*"):
        MAKERS[maker](figure)
