"""Plan files: what comes back is what went in, and damage is seen."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poetopt.plan.codec import MOST_INSTRUCTIONS, PlanFile, from_json, load, save, to_json
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, lay_out
from poetopt.plan.simulate import simulate
from poetopt.util.errors import OutputError, PlanError
from tests.seeds import examples
from tests.support.problems import random_plan, random_problem, store_all

seeds = st.integers(0, 2**32 - 1)
Json = dict[str, Any]


def some_plan(seed: int, *, operators: int | None = None) -> Plan:
    rng = random.Random(seed)
    problem = random_problem(
        rng, operators=operators or rng.randint(1, 8), dma=rng.random() < 0.5, alignment=rng.choice((1, 8))
    )
    named = replace(
        problem,
        model_ref="résumé.onnx",
        model_hash="ab" * 32,
        recipe={"batch": 2, "train": ["fc.*"], "loss": "mse", "output": None},
        reserve_bytes=96,
        resident_bytes=1234,
        device_ram_bytes=rng.choice((None, 2_000_000)),
        notes=("a note",),
    )
    return random_plan(rng, named)


@settings(deadline=None, max_examples=examples(80))
@given(seeds, st.booleans())
def test_json_comes_back_equal(seed: int, laid_out: bool) -> None:
    plan = some_plan(seed)
    if laid_out:
        plan = lay_out(plan)
    data = json.loads(json.dumps(to_json(plan, {"status": "optimal"}, deadline_s=3.5)))
    found = from_json(data)
    assert found.plan == plan
    assert found.plan.problem.recipe == plan.problem.recipe
    assert (found.ram_bytes, found.deadline_s, found.report) == (None, 3.5, {"status": "optimal"})


def test_files_come_back_equal(tmp_path: Path) -> None:
    plan = lay_out(some_plan(7))
    path = tmp_path / "plan.json"
    ram_bytes = arena_bytes(plan) + plan.problem.reserve_bytes
    save(plan, path, {"gap": 0.0}, ram_bytes=ram_bytes)
    assert load(path) == PlanFile(plan, ram_bytes, None, {"gap": 0.0})
    assert len(path.read_text(encoding="utf-8").splitlines()) > len(plan.instructions)
    with pytest.raises(OutputError, match="can't write"):
        save(plan, tmp_path / "missing" / "plan.json")
    with pytest.raises(PlanError, match="can't be written as JSON"):
        save(plan, path, {"gap": float("nan")})
    assert load(path).plan == plan


def test_a_model_that_changed_is_refused(tmp_path: Path) -> None:
    plan = lay_out(some_plan(11))
    path = tmp_path / "plan.json"
    save(plan, path)
    dearer = replace(
        plan.problem, operators=tuple(replace(operator, energy_j=9.0) for operator in plan.problem.operators)
    )
    assert load(path, lambda _: dearer).plan == plan
    larger = replace(
        plan.problem, tensors=tuple(replace(tensor, nbytes=tensor.nbytes + 1) for tensor in plan.problem.tensors)
    )
    with pytest.raises(PlanError, match="has changed since the plan was made"):
        load(path, lambda _: larger)


def set_at(*keys: str | int, to: object) -> Callable[[Json], None]:
    def change(data: Json) -> None:
        place: Any = data
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_at("format", to="onnx"), 'it is not a plan file: "format"'),
        (set_at("version", to=99), "version 99, and this program reads version 1"),
        (set_at("tensors", 0, "bytes", to=-1), r'tensors\[0\]: "bytes" must be a whole number of at least 0'),
        (set_at("tensors", 0, "bytes", to=True), r'tensors\[0\]: "bytes"'),
        (set_at("tensors", 0, "page_in_s", to=-0.5), r'"page_in_s" must be a number of at least 0'),
        (set_at("tensors", 0, "page_in_s", to=10**400), r'"page_in_s" must be a number'),
        (set_at("operators", 1, "inputs", to=[999]), r"operators\[1\]: \"inputs\" must be ascending indices"),
        (set_at("operators", 0, "outputs", to=[]), "its producer is not the operator that writes it"),
        (set_at("operators", 0, to=5), r"operators\[0\] is not an object"),
        (set_at("device", "alignment", to=0), '"alignment" must be a number of at least 1'),
        (set_at("instructions", 0, to=["fly", 1]), r"instructions\[0\] is not an action"),
        (set_at("instructions", 0, to=["compute", 10**6]), r"instructions\[0\] has an impossible target or offset"),
        (set_at("instructions", 0, to=["compute", 0]), "more or fewer offsets than buffers"),
        (set_at("instructions", to=[]), "ends after 0 instructions without operator 0"),
        (set_at("budget", "ram_bytes", to=1), "RAM budget of 1 bytes"),
        (lambda data: data.pop("device"), 'the plan file has no "device"'),
        (
            lambda data: [row.__setitem__(slice(2, None), [0] * (len(row) - 2)) for row in data["instructions"]],
            "overlap",
        ),
    ],
)
def test_damage_is_named(change: Callable[[Json], object], message: str) -> None:
    problem = random_problem(random.Random(8), operators=4, training=True, size=lambda: 4)
    data = json.loads(json.dumps(to_json(lay_out(store_all(problem)))))
    assert from_json(data).plan.instructions
    change(data)
    with pytest.raises(PlanError, match=message):
        from_json(data)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a complete plan file"),
        (b"\xff\xfe\x00", "it is not text"),
        (b"[1, 2]", "the plan file is not an object"),
        (b'{"format": NaN}', "it contains NaN"),
        (b'{"format": ' + b"9" * 6000 + b"}", "thousands of digits"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_files_that_are_no_plans(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(PlanError, match=f"bad.json.*{message}"):
        load(path)
    with pytest.raises(PlanError, match="can't read the plan file"):
        load(tmp_path / "none.json")


@settings(deadline=None, max_examples=examples(60))
@given(seeds)
def test_no_damage_gets_through(seed: int) -> None:
    """Any single change of the text either changes nothing that a plan is made of, or is a PlanError."""
    rng = random.Random(seed)
    data = to_json(lay_out(some_plan(seed, operators=3)))
    text = json.dumps(data)
    place = rng.randrange(len(text))
    damaged = rng.choice((text[:place], text[:place] + rng.choice('0-9{}[],"xe.') + text[place + 1 :]))
    try:
        loaded = json.loads(damaged)
    except ValueError:
        return
    try:
        found = from_json(loaded)
    except PlanError:
        return
    simulate(found.plan)


def test_a_plan_of_too_many_instructions_is_refused() -> None:
    document = to_json(some_plan(0))
    document = {**document, "instructions": [["free", 0]] * (MOST_INSTRUCTIONS + 1)}
    with pytest.raises(PlanError, match=r"1,000,001 instructions, and at most 1,000,000 are read"):
        from_json(document)


def test_a_plan_says_its_runtime_and_its_kernels() -> None:
    """Other kernels are other workspaces: both are in the file, and older files lack them."""
    problem = replace(random_problem(random.Random(3)), runtime="c", runtime_version="7")
    plan = lay_out(store_all(problem))
    written = json.loads(json.dumps(to_json(plan)))
    assert from_json(written).plan.problem == problem
    for key in ("runtime", "runtime_version"):
        del written["device"][key]
    assert from_json(written).plan.problem.runtime == ""
