"""The options of the Python calls: declared once, and seen by `help`, type checkers and the command line."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable

import pytest

import poetopt as po
from poetopt.api.options import CompareOptions, ParetoOptions, ReadingOptions, SolveOptions, names_of

CALLS = ((po.load, ReadingOptions), (po.solve, SolveOptions), (po.compare, CompareOptions), (po.pareto, ParetoOptions))


@pytest.mark.parametrize(("call", "options"), CALLS, ids=[options.__name__ for _, options in CALLS])
def test_help_has_each_option_with_its_default(call: Callable[..., object], options: type) -> None:
    first, *others = inspect.signature(call).parameters.values()
    assert first.default is inspect.Parameter.empty
    assert tuple(one.name for one in others) == names_of(options)
    assert all(one.default == getattr(options, one.name) for one in others)
    said = re.findall(r"^([a-z_, ]+)\n    ", inspect.getdoc(call) or "", flags=re.M)
    assert {one.name for one in others} <= {name for line in said for name in line.split(", ")}


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match=r"unknown option 'rum'; closest: ram.*there are .*train, dims,"):
        po.solve("mlp", rum=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="missing a required argument: 'problem'"):
        po.solve(ram=3)  # type: ignore[call-arg]
