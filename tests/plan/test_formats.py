"""Plan files of the first format are read as they ever were; a field that is added to a tensor stands in a file."""

from __future__ import annotations

import dataclasses
import json
import typing
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import poetopt as po
from poetopt.graph.problem import ProblemOperator, ProblemTensor
from poetopt.plan.codec import load, save
from poetopt.plan.layout import arena_bytes
from poetopt.plan.simulate import simulate
from poetopt.plan.tables import table
from tests.seeds import examples

FIRST = sorted((Path(__file__).parent / "format1").glob("*.json"))
"""Written by the last version that wrote the first format: with page-ins, recomputes, DMA, waking, blocks on storage,
several outputs, without a layout, and as before storage was limited."""
ROWS = (ProblemTensor, ProblemOperator)


@pytest.mark.parametrize("path", FIRST, ids=lambda path: path.stem)
def test_first_format_simulates_to_its_own_figures(path: Path, tmp_path: Path) -> None:
    found = load(path)
    figures = simulate(found.plan)
    told = [key for key in (field.name for field in dataclasses.fields(figures)) if key in found.report]
    assert len(told) >= 8
    for key in told:
        assert getattr(figures, key) == pytest.approx(found.report[key], rel=1e-12), key
    if "arena_bytes" in found.report:
        assert arena_bytes(found.plan) == found.report["arena_bytes"]
    save(found.plan, tmp_path / "again.json", found.report, ram_bytes=found.ram_bytes, deadline_s=found.deadline_s)
    assert load(tmp_path / "again.json") == found
    assert json.loads((tmp_path / "again.json").read_text(encoding="utf-8"))["version"] == 2


@pytest.mark.parametrize("name", ["lenet-paged", "mlp-store-all"])
def test_first_format_runs(name: str) -> None:
    pytest.importorskip("onnxruntime")
    (path,) = (path for path in FIRST if path.stem == name)
    assert po.execute(path).bit_identical


def values(hint: Any, name: str = "") -> st.SearchStrategy[Any]:
    """Any value of a field: what its type says, whatever it means."""
    arguments = typing.get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, **{f.name: values(hints[f.name], f.name) for f in dataclasses.fields(hint)})
    if typing.get_origin(hint) is tuple:
        return st.lists(values(arguments[0]), max_size=2).map(tuple)
    if typing.get_origin(hint) is UnionType:
        return st.none() | values(arguments[0])
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    least = -1 if name in ("producer", "updated_by") else 0
    kinds = {bool: st.booleans(), int: st.integers(least, 2**53), float: st.floats(0, 1e300), str: st.text()}
    return kinds[hint]


def back(kind: type, value: Any) -> Any:
    """`value` as its object in a file says it."""
    row = json.loads(json.dumps(table(kind).row(value)))
    return table(kind).value(table(kind).model.model_validate(row))


@pytest.mark.parametrize("kind", ROWS)
@settings(deadline=None, max_examples=examples(60))
@given(st.data())
def test_every_field_survives_a_file(kind: type, data: st.DataObject) -> None:
    value = data.draw(values(kind))
    assert back(kind, value) == value
