"""A folder of checkpoints has a whole one at every moment, and a damaged one is passed over."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poetopt.training.checkpoint import held, newest, save
from poetopt.training.loop import Position
from poetopt.util.errors import ModelError, OutputError, PlanError

STATES: dict[str, Any] = {
    "a/b:c.weight": np.arange(2000, dtype=np.float32).reshape(40, 50),
    "meta": np.array(3),
    "empty": np.zeros((0, 2)),
}


def test_the_newest_two_are_kept_and_the_newest_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert newest(folder) is None
    for step in (5, 10, 1_000_000_000):
        save(folder, {"taken": step}, STATES)
    assert sorted(path.name for path in folder.iterdir()) == ["step-000000010.npz", "step-1000000000.npz"]
    found = newest(folder)
    assert found is not None
    assert (found.meta["taken"], found.meta["serial"]) == (1_000_000_000, 3)
    assert found.passed_over == ()
    states = dict(found.states())
    assert list(states) == list(STATES)
    for name, array in states.items():
        np.testing.assert_array_equal(array, STATES[name])
        assert found.shapes()[name] == (array.shape, array.dtype)


@pytest.mark.parametrize("seed", range(3))
def test_one_that_is_cut_short_or_changed_is_passed_over(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    save(tmp_path, {"taken": 1}, STATES)
    path = save(tmp_path, {"taken": 2}, STATES)
    whole = path.read_bytes()
    damaged = [whole[: rng.randrange(len(whole))] for _ in range(6)]
    for _ in range(6):
        place = rng.randrange(400, 8000)  # in the numbers of the weight
        damaged.append(whole[:place] + bytes([whole[place] ^ 1 << rng.randrange(8)]) + whole[place + 1 :])
    for content in damaged:
        path.write_bytes(content)
        found = newest(tmp_path)
        assert found is not None
        assert found.path.name == "step-000000001.npz"
        assert len(found.passed_over) == 1
        assert path.name in found.passed_over[0]
    (tmp_path / "step-000000001.npz").write_bytes(b"")
    with pytest.raises(
        PlanError, match=r"none of its checkpoints can be read \(step-000000002.npz: .*; step-000000001.npz"
    ):
        newest(tmp_path)


def test_where_it_can_t_be_written_the_others_stay(tmp_path: Path) -> None:
    save(tmp_path, {"taken": 1}, STATES)

    class Failing(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            raise OSError(28, "No space left on device")

    with pytest.raises(OutputError, match="No space left on device"):
        save(tmp_path, {"taken": 2}, Failing(STATES))
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000001.npz"]
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match=r"can't write checkpoints to .*file"):
        save(tmp_path / "file", {"taken": 2}, STATES)


def test_one_training_at_a_time(tmp_path: Path) -> None:
    with (
        held(tmp_path),
        pytest.raises(OutputError, match="another training writes its checkpoints there"),
        held(tmp_path),
    ):
        pass
    with held(tmp_path):
        pass


def test_the_newest_whole_ones_are_kept_whatever_their_numbers(tmp_path: Path) -> None:
    for step in (12, 16):
        save(tmp_path, {"taken": step}, STATES)
    for step in (400, 500):
        (tmp_path / f"step-{step:09d}.npz").write_bytes(b"damaged")
    found = newest(tmp_path)
    assert found is not None
    assert (found.path.name, len(found.passed_over)) == ("step-000000016.npz", 2)
    path = save(tmp_path, {"taken": 20}, STATES)
    assert sorted(tmp_path.iterdir()) == [tmp_path / "step-000000016.npz", path]
    path.write_bytes(b"damaged")
    again = save(tmp_path, {"taken": 18}, STATES)  # fewer steps, and yet newer
    assert sorted(tmp_path.iterdir()) == [tmp_path / "step-000000016.npz", again]
    save(tmp_path, {"taken": 3}, STATES)
    found = newest(tmp_path)
    assert found is not None
    assert found.meta["taken"] == 3


def test_damaged_ones_stay_while_there_is_one_whole(tmp_path: Path) -> None:
    damaged = tmp_path / "step-000000400.npz"
    damaged.write_bytes(b"damaged")
    path = save(tmp_path, {"taken": 1}, STATES)
    assert sorted(tmp_path.iterdir()) == [path, damaged]


POSITION = {"epoch": 1, "batch": 0, "step": 3, "losses": [0.5], "total": 0.0, "validations": [], "seconds": 1.5}


@pytest.mark.parametrize(("said", "message"), [
    ({"taken": "3"}, '"taken" must be a whole number'), ({"taken": -1}, '"taken" must be'),
    ({"taken": 2**70}, '"taken" must be'), ({"taken": True}, '"taken" must be'), ({}, 'has no "taken"'),
    ({"taken": 1, "hyperparameters": {"lr": "fast"}}, '"lr" must be a number'),
    ({"taken": 1, "position": {**POSITION, "epoch": -2}}, '"epoch" must be'),
    ({"taken": 1, "position": {**POSITION, "losses": ["low"]}}, "losses"),
    ({"taken": 1, "position": {**POSITION, "validations": [{"epoch": 1}]}}, 'has no "loss"'),
    ({"taken": 1, "position": [3]}, '"position" is not an object'),
    ({"taken": 1, "course": {"rows": "none"}}, '"rows" must be'),
    ({"taken": 1, "network": 5}, '"network" must be'),
])  # fmt: skip
def test_what_no_training_says_is_passed_over(said: dict[str, Any], message: str, tmp_path: Path) -> None:
    first = save(tmp_path, {"taken": 2, "position": POSITION}, STATES)
    path = tmp_path / "step-000000009.npz"
    meta = np.frombuffer(json.dumps({"format": 1, **said}).encode(), np.uint8)
    np.savez(path, meta=meta)
    found = newest(tmp_path)
    assert found is not None
    assert found.path == first
    first.unlink()
    with pytest.raises(PlanError, match=f"none of its checkpoints can be read .*{re.escape(message)}"):
        newest(tmp_path)


def test_numbers_that_json_has_no_word_for_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "step-000000009.npz"
    np.savez(path, meta=np.frombuffer(b'{"format": 1, "taken": 1, "hyperparameters": {"lr": NaN}}', np.uint8))
    with pytest.raises(PlanError, match='"lr" must be a'):
        newest(tmp_path)


def test_a_lock_is_never_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("all that I have")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / ".lock").symlink_to(tmp_path / "mine")
    with pytest.raises(OutputError, match="can't write checkpoints to"), held(folder):
        pass
    (folder / ".lock").unlink()
    (folder / ".lock").symlink_to(tmp_path / "new")
    with pytest.raises(OutputError, match="can't write checkpoints to"), held(folder):
        pass
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "position",
    [
        Position(1, 3, 13, [0.5]),
        Position(0, 10**6, 10**6),
        Position(0, 3, 4),
        Position(1, 3, 13, [0.5] * 50),
        Position(1, 3, 13),
    ],
    ids=["whole", "batch", "step", "losses", "no losses"],
)
def test_a_place_that_contradicts_itself_is_refused(position: Position, request: pytest.FixtureRequest) -> None:
    if request.node.callspec.id == "whole":
        position.check("checkpoint", 10)
        position.check("checkpoint", None)
    else:
        with pytest.raises(ModelError, match=r"contradict epoch .* --resume continues from the one before"):
            position.check("checkpoint", 10)
