"""Sweep files: the points that they mean, and what is wrong with bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from poetopt.api.sweeps import read_sweep
from poetopt.util.errors import OptionError
from poetopt.util.units import Factor, Share
from tests.support.api import FILE, write_sweep


def test_the_product_in_order(tmp_path: Path) -> None:
    points = read_sweep(write_sweep(tmp_path))
    assert [point.index for point in points] == list(range(2 * 2 * 2 * 3 * 2))
    assert len({point.key for point in points}) == len(points)
    assert [str(point) for point in points[:2]] == ["poet, chain on a72 at 40%", "revolve, chain on a72 at 40%"]
    assert str(points[-1]) == "revolve, short on m4 at 3000000 in 1.4x"
    assert (points[0].ram, points[0].deadline) == (Share(0.4), None)
    assert (points[-1].ram, points[-1].deadline) == (3_000_000, Factor(1.4))
    assert points[0].settings.time_limit_s == 20


def test_ranges_defaults_and_repetitions(tmp_path: Path) -> None:
    text = 'models = "lenet"\ndevices = "a72"\nram = ["20%..100%/5", "60%"]\n'
    points = read_sweep(write_sweep(tmp_path, text))
    assert [point.said["ram"] for point in points] == ["20%", "40%", "60%", "80%", "100%"]
    assert {point.method for point in points} == {"poet"}
    assert {point.settings.threads for point in points} == {1}


def test_keys_follow_contents_not_places(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
    keys = [point.key for point in read_sweep(write_sweep(first))]
    assert [point.key for point in read_sweep(write_sweep(second))] == keys
    longer = [point.key for point in read_sweep(write_sweep(second, FILE.replace("20s", "21s")))]
    assert not set(longer) & set(keys)
    path = write_sweep(second)
    (second / "short.json").write_text((second / "short.json").read_text() + "\n")
    changed = [point.key for point in read_sweep(path)]
    assert changed[: len(keys) // 2] == keys[: len(keys) // 2]
    assert not set(changed[len(keys) // 2 :]) & set(keys)


@pytest.mark.parametrize(
    ("old", "new", "error", "says"),
    [("deadlines", "dedlines", OptionError, "unknown key 'dedlines'; closest: deadlines"),
     ('name = "short"', 'nmae = "short"', OptionError, "unknown key 'nmae'; closest: name"),
     ("ram =", "# ram =", OptionError, "'ram' is missing"),
     ('["a72", "m4"]', "[]", OptionError, "'devices' is missing"),
     ('"chain.json", ', '"lenett", ', OptionError, "closest: lenet"),
     ('name = "short"', 'name = "chain"', OptionError, "two have the same name"),
     ('"40%", ', '"40 %%", ', OptionError, "ram 40 %%"), ('"1.4x"', '"soon"', OptionError, "deadlines soon"),
     ('"revolve"', '"revovle"', OptionError, "methods: there is no method 'revovle'. Did you mean revolve"),
     ('"20s"', "true", OptionError, "time_limit"),
     ('time_limit = "20s"', 'scope = "deep"', OptionError, "scope deep: must be"),
     ('time_limit = "20s"', 'scope = "depth:0"', OptionError, "scope depth:0: must be"),
     ('time_limit = "20s"', "threads = -1", OptionError, "threads = -1: must be a whole number of at least 0"),
     ("models = [", "models = [[", OptionError, "not valid TOML")],
)  # fmt: skip
def test_bad_files(tmp_path: Path, old: str, new: str, error: type[Exception], says: str) -> None:
    assert old in FILE
    with pytest.raises(error, match=says.replace("%", "%")):
        read_sweep(write_sweep(tmp_path, FILE.replace(old, new)))
