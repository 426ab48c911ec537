"""A folder of checkpoints has a whole one at every moment, and a damaged one is passed over."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poetopt.training.checkpoint import held, newest, save
from poetopt.util.errors import OutputError, PlanError

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
        PlanError, match=r"no checkpoint in it can be read \(step-000000002.npz: .*; step-000000001.npz"
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
