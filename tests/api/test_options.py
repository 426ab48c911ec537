"""The options of the Python calls: declared once, and seen by `help`, type checkers and the command line."""

from __future__ import annotations

import inspect
import os
import re
import typing
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path

import numpy as np
import onnx
import pytest

import poetopt as po
from poetopt.api.options import CompareOptions, ParetoOptions, ReadingOptions, SolveOptions, names_of, texts_of
from poetopt.report.report import Report
from poetopt.util.errors import OptionError
from poetopt.util.hints import matches
from poetopt.util.units import Factor

CALLS: tuple[tuple[Callable[..., object], type], ...] = (
    (po.load, ReadingOptions),
    (po.solve, SolveOptions),
    (po.compare, CompareOptions),
    (po.pareto, ParetoOptions),
)


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


WRONG: dict[str, Sequence[object]] = {
    "threads": ["1_0", 1.5, True], "scope": [None, 3], "dims": [5, {1: 2}, {"n": 0.5}, [1]], "paging": ["no", 1],
    "rates": [5, {"w": "x"}, [1]], "solver_options": [[1], {"seed": object()}], "device": [5], "listener": [5],
    "blocks": ["x", [1]], "formulation": [3, None], "batch": [1.5, [1]], "time_limit": [None, [1]], "log": [5],
    "values": [[1]], "loss": [None], "deadline": [[1]], "class_weights": [5, ["a"]],
}  # fmt: skip
RIGHT: dict[str, Sequence[object]] = {
    "threads": [np.int64(1)], "gap": [np.float32(0.5), 1, "1%"], "rates": [["w=1"], {"w": np.float64(1)}, "w=1"],
    "class_weights": [np.ones(3, np.float32), (1, 2.5)], "dims": [{"n": 1, "m": "2"}], "log": [Path("log")],
    "shapes": [{"x": (1, None)}], "deadline": [Factor(1.5)], "paging": [np.True_], "listener": [print], "blocks": [()],
}  # fmt: skip


def test_an_argument_of_another_type_is_refused_by_name() -> None:
    for call, options in CALLS:
        texts = texts_of(options)
        for name in WRONG.keys() & texts.keys():
            for value in WRONG[name]:
                with pytest.raises(OptionError, match=rf"^{name}=.*: must be "):
                    call("there-is-no-such-file.onnx", **{name: value})
        assert all(matches(value, texts[name]) for name in RIGHT.keys() & texts.keys() for value in RIGHT[name])
        given = {field.name: field.default for field in fields(options)}
        assert all(matches(value, texts[name]) for name, value in given.items())


def test_annotations_can_be_evaluated() -> None:
    """Also of names that modules import for type checkers alone."""
    functions = [getattr(po, name) for name in po.__all__ if inspect.isroutine(getattr(po, name))]
    methods = [
        one for kind in (po.Model, po.Training, po.Trainer) for _, one in inspect.getmembers(kind, inspect.isfunction)
    ]
    assert len(functions) > 20
    assert all(isinstance(typing.get_type_hints(one), dict) for one in (*functions, *methods))
    hints = typing.get_type_hints(po.solve)
    assert hints["return"] is Report
    assert hints["log"] == str | os.PathLike[str] | None
    assert (
        hints["problem"]
        == po.Problem | po.Training | po.TrainingFile | po.Model | onnx.ModelProto | str | os.PathLike[str]
    )
