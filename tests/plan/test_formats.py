"""Plan files of the first format are read as they ever were; a field that is added to a tensor stands in a file."""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import poetopt as po
from poetopt.graph.problem import Home, Problem, ProblemOperator, ProblemTensor
from poetopt.plan.codec import from_json, load, save, to_json
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes
from poetopt.plan.simulate import simulate
from poetopt.plan.tables import BLOCKS, table
from poetopt.util.errors import PlanError
from tests.graph.test_problem import plain
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


def test_first_format_has_several_kinds() -> None:
    kinds = [json.loads(path.read_text(encoding="utf-8")) for path in FIRST]
    assert {data["version"] for data in kinds} == {1}
    assert {data["device"]["dma"] for data in kinds} == {True, False}
    assert {data["inputs_at"] is None for data in kinds} == {True, False}
    assert {"storage_bytes" in data["device"] for data in kinds} == {True, False}
    assert any(data["report"]["recomputes"] for data in kinds)
    assert any(data["report"]["page_ins"] for data in kinds)


@pytest.mark.parametrize("name", ["lenet-paged", "mlp-store-all"])
def test_first_format_runs(name: str) -> None:
    pytest.importorskip("onnxruntime")
    (path,) = (path for path in FIRST if path.stem == name)
    assert po.execute(path).bit_identical


def test_a_newer_format_is_refused() -> None:
    data = to_json(Plan(plain(), ()))
    for version in (3, 0, "2", None, 2.5):
        with pytest.raises(PlanError, match=rf"of version {version!r}, and this program reads version 1 or 2; solve"):
            from_json({**data, "version": version})


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


@dataclasses.dataclass(frozen=True, slots=True)
class Lost:
    """A part that a tensor may get one day."""

    rows: tuple[int, ...] = ()
    share: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Wider(ProblemTensor):
    """A tensor with more to say."""

    precision: int = 32
    lost: tuple[Lost, ...] = ()
    spot: Home = Home.NOWHERE


def test_a_field_that_is_added_needs_no_word_elsewhere() -> None:
    wider = Wider("t", 4, 0, precision=8, lost=(Lost((1, 2), 0.5),), spot=Home.FLASH)
    assert back(Wider, wider) == wider
    plainer = Wider("t", 4, 0)
    assert back(Wider, plainer) == plainer
    assert not {"precision", "lost", "spot"} & set(table(Wider).row(plainer)), "a default takes no room in a file"


def test_every_field_of_a_problem_stands_in_a_file() -> None:
    blocks = {name for block in BLOCKS.values() for name in block.keys}
    assert blocks | {"tensors", "operators", "closing", "graph"} == {
        field.name for field in dataclasses.fields(Problem)
    }


def row_with(kind: str, **fields: Any) -> Callable[[dict[str, Any]], object]:
    return lambda data: data[kind][0].update(fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (row_with("tensors", home="cellar"), r"tensors\[0\]: \"home\" must be one of 'nowhere', 'ram', 'storage' or"),
        (
            row_with("tensors", home="nowhere"),
            r"tensors\[0\] \('x'\): its home can't be 'nowhere'.*file is damaged",
        ),
        (row_with("tensors", retain_s=5.0), r'tensors\[0\]: "retain_s" is nothing that this version knows'),
        (row_with("operators", tiles=2), r'operators\[0\]: "tiles" is nothing that this version knows'),
        (row_with("tensors", carried=1), r'tensors\[0\]: "carried" must be true or false; the file is damaged'),
        (row_with("tensors", name=7), r'tensors\[0\]: "name" must be a text'),
        (row_with("tensors", producer=0.5), r'tensors\[0\]: "producer" must be a whole number of at least 0'),
        (row_with("operators", variants=[{"streamed_in": [1]}]), r'operators\[0\].*"streamed_in" of a variant must be'),
        (row_with("operators", inputs=["x"]), r'"inputs" must be a list of whole numbers of at least 0'),
        (row_with("operators", time_s=True), r'operators\[0\]: "time_s" must be a number of at least 0'),
        (lambda data: data["operators"][0].pop("recomputable"), r'operators\[0\] has no "recomputable"'),
        (lambda data: data["model"].update(notes=[1]), r'"model": "notes" must be a list of texts'),
        (lambda data: data["device"].update(dma=1), '"device": "dma" must be true or false'),
        (lambda data: data["budget"].update(deadline_s="1"), '"budget": "deadline_s" must be a number of at least 0'),
        (lambda data: data.update(report=[]), '"report" is not an object'),
        (lambda data: data.update(inputs_at=[True]), 'the plan file: "inputs_at" must be a list of whole numbers'),
        (lambda data: data.pop("instructions"), 'the plan file has no "instructions"'),
    ],
)
def test_what_is_damaged_is_named_with_its_place(change: Callable[[dict[str, Any]], object], message: str) -> None:
    data = json.loads(json.dumps(to_json(Plan(plain(), ()))))
    change(data)
    with pytest.raises(PlanError, match=message):
        from_json(data)
