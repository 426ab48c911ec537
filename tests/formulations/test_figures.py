"""What people give a constructor: one clear error for each figure that is none."""

from __future__ import annotations

import copy
import math
import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from poetopt.formulations import formulation
from poetopt.formulations.block import Block
from poetopt.formulations.energy_budget import energy_budget
from poetopt.formulations.flash_wear import flash_wear
from poetopt.formulations.goal import ENERGY
from poetopt.formulations.language import data_of
from poetopt.formulations.static_power import static_power
from poetopt.formulations.within import least, within
from poetopt.search.solved import add_late_rows, plan_of
from poetopt.testing.problems import tight
from poetopt.util.errors import FormulationError, PlanError
from tests.stored import tight_with_parameters

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


@pytest.mark.parametrize("make", [least, lambda goal: within(goal, 3.0)])
@pytest.mark.parametrize("goal", [None, "energy", 3.0])
def test_what_is_no_goal_is_refused(make: Callable[[Any], Block], goal: object) -> None:
    with pytest.raises(FormulationError, match="is no Goal; give one, such as"):
        make(goal)


@pytest.mark.parametrize("name", ["retention", "poet"])
def test_models_are_built_for_figures_alone(name: str) -> None:
    problem, ram_bytes = tight(random.Random(1), forward=2)
    build = formulation(name).build
    for figure in NONE:
        for key in ("ram_bytes", "compute_s", "makespan_s", "hidden_share"):
            if figure is not None or key in ("ram_bytes", "hidden_share"):
                with pytest.raises(FormulationError, match=f"^formulation '{name}': {key} must be "):
                    build(problem, **{"ram_bytes": ram_bytes, key: figure})  # type: ignore[arg-type]
    for key in ("paging", "remat", "mutable"):
        with pytest.raises(FormulationError, match=f"{key} must be True or False, and is 'no'"):
            build(problem, ram_bytes=ram_bytes, **{key: "no"})  # type: ignore[arg-type]
    with pytest.raises(FormulationError, match="scope must be a text"):
        build(problem, ram_bytes=ram_bytes, scope=None)  # type: ignore[arg-type]


def _drop(key: str) -> Callable[[dict[str, Any]], object]:
    return lambda data: data.pop(key)


def _set(key: str, value: object) -> Callable[[dict[str, Any]], object]:
    def change(data: dict[str, Any]) -> None:
        data[key][next(iter(data[key]))] = value

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_drop("ram_bytes"), "the data lack ram_bytes"),
        (_drop("tensor_bytes"), "the data lack tensor_bytes of 't0' and"),
        (_drop("compute_j"), "the data lack compute_j of 'op0' and"),
        (_drop("operators"), "the data can't be loaded: .*compute_j"),
        (_set("tensor_bytes", "3J"), "the data can't be loaded: .*tensor_bytes"),
        (_set("tensor_bytes", 2.5), "tensor_bytes of 't0' must be a whole number"),
        (_set("compute_j", math.inf), "compute_j of 'op0' must be finite"),
        (_set("ram_bytes", -1), "the data can't be loaded: .*ram_bytes"),
        (_set("alignment", "x"), "the data can't be loaded: .*alignment"),
        (lambda data: data.clear(), "the data lack operators"),
    ],
)
def test_data_that_lack_something_say_what(change: Callable[[dict[str, Any]], object], told: str) -> None:
    problem, ram_bytes = tight(random.Random(1), forward=2)
    data = copy.deepcopy(data_of(problem, ram_bytes=ram_bytes))
    waiting = formulation("retention").from_data()
    assert waiting.create_instance(data).name == "retention"
    change(data[None])
    with pytest.raises(FormulationError, match=told):
        waiting.create_instance(data)


def test_a_file_of_data_that_is_not_there_is_named() -> None:
    with pytest.raises(FormulationError, match=r"the data can't be loaded: .*nowhere\.dat"):
        formulation("retention").from_data().create_instance("nowhere.dat")


@pytest.mark.parametrize("name", ["retention", "poet"])
@pytest.mark.parametrize("value", [math.nan, math.inf, 2, -1, "1"])
def test_values_that_no_solver_finds_are_named(name: str, value: object) -> None:
    problem, _ = tight(random.Random(1), forward=2)
    model = formulation(name).build(problem, ram_bytes=10_000)
    for variable in model.component_data_objects(variables(), descend_into=True):
        if not variable.fixed:
            variable.set_value(0, skip_validation=True)
    entry = next(iter((model.recompute.r if name == "retention" else model.paging.M_in).values()))
    entry.set_value(value, skip_validation=True)
    for ask in (plan_of, add_late_rows):
        with pytest.raises(PlanError, match=re.escape(f"{entry.name} has the value {value!r}, and no solution has")):
            ask(model)


def variables() -> object:
    import pyomo.environ as pyo

    return pyo.Var


def test_blocks_that_care_about_stages_are_refused_where_parameters_are_paged() -> None:
    """Retention has no decision there, and a row over page-outs would see none of them."""
    problem, ram_bytes = tight_with_parameters(random.Random(1), forward=2)
    assert problem.stored_at_start
    cares = Block("cares", _nothing, restricts=True, refuses=_fine)
    for name in ("retention", "poet"):
        with pytest.raises(FormulationError, match="block 'cares' may care in which stage a tensor is moved"):
            formulation(name).with_block(cares).build(problem, ram_bytes=ram_bytes)
        formulation(name).with_block(flash_wear(10)).build(problem, ram_bytes=ram_bytes)


def _nothing(block: object) -> None:
    """Nothing."""


def _fine(trial: object) -> None:
    return None
