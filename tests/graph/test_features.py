"""Whoever can't plan for something refuses it in one sentence, and never answers as if it weren't there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

import poetopt as po
from poetopt.comparison import baselines
from poetopt.formulations import formulation
from poetopt.graph.problem import (
    COMPUTES,
    PLAINLY,
    Feature,
    Home,
    Problem,
    ProblemOperator,
    ProblemTensor,
    Variant,
    check_supported,
)
from poetopt.plan.instructions import Plan
from poetopt.plan.simulate import SUPPORTS, simulate
from poetopt.util.errors import ProblemError
from tests.graph.test_problem import operator, plain, tensor
from tests.support.problems import store_all


def scheduled(baseline: str, problem: Problem) -> Plan:
    return baselines.method(baseline).schedule(problem, 100)


def taking(problem: Problem) -> Problem:
    """A third operator, which writes its output over what the second wrote."""
    last = ProblemOperator("over", (2,), (3,), 1.0, 1.0, recomputable=False, backward=True, takes=(2, 3))
    tensors = (*problem.tensors, ProblemTensor("db", problem.tensors[2].nbytes, 2))
    return replace(problem, operators=(*problem.operators, last), tensors=tensors)


HAVING: dict[Feature, Callable[[Problem], Problem]] = {
    Feature.STORED: tensor(0, home=Home.STORAGE), Feature.MAPPED: tensor(0, home=Home.FLASH),
    Feature.CARRIED: tensor(0, carried=True), Feature.RESULT: tensor(2, result=True),
    Feature.UPDATED: tensor(0, updated_by=1), Feature.STREAMED: operator(0, variants=(Variant((0,)),)),
    Feature.OVERTAKEN: operator(0, updaters=(1,)), Feature.TAKEN: taking,
}  # fmt: skip
ASKED: dict[str, Callable[[Problem], Any]] = {
    "the search": lambda problem: po.solve(problem, ram=100),
    "the simulator": lambda problem: simulate(store_all(problem)),
    "formulation 'retention'": lambda problem: formulation("retention").build(problem, ram_bytes=100, scope="depth:1"),
    "formulation 'poet'": lambda problem: formulation("poet").build(problem, ram_bytes=100),
    **{f"baseline '{name}'": partial(scheduled, name) for name in baselines.names()},
}
SUPPORTED = {
    "the simulator": SUPPORTS,
    "the search": frozenset(Feature),
    "formulation 'retention'": frozenset({Feature.STORED, Feature.UPDATED, *COMPUTES, *PLAINLY}),
    "formulation 'poet'": frozenset({Feature.STORED, Feature.UPDATED, *COMPUTES, *PLAINLY}),
    **{f"baseline '{name}'": PLAINLY for name in baselines.names()},
    **{
        f"baseline '{name}'": frozenset({Feature.STORED, Feature.UPDATED, *COMPUTES, *PLAINLY})
        for name in ("nntrainer", "poet-paging-only", "poet-remat-only", "poet")
    },
}
"""What some of them plan for; their own tests hold that they do it right."""


@pytest.mark.parametrize("feature", Feature)
def test_a_feature_is_beyond_whoever_does_not_name_it(feature: Feature) -> None:
    problem = HAVING[feature](plain())
    assert set(problem.features) == {feature}
    others = set(Feature) - {feature}
    assert str(feature) in (problem.beyond(others) or "")
    assert problem.beyond({feature}) is None
    check_supported(problem, "somebody", {feature})
    with pytest.raises(ProblemError, match=f"^somebody can't solve this problem yet: .*'.*' {feature}. Leave"):
        check_supported(problem, "somebody", others)


@pytest.mark.parametrize("who", ASKED)
def test_consumers_refuse_what_they_do_not_know(who: str) -> None:
    ASKED[who](replace(plain(), device="a72"))
    for feature, having in HAVING.items():
        if feature in SUPPORTED.get(who, ()):
            continue
        with pytest.raises(
            ProblemError, match=f"{who} can't (solve this problem yet:|page parameters, and) .*{feature}"
        ):
            ASKED[who](having(plain()))
