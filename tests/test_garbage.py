"""Building what stays leaves the collector as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from poetopt.util.process import building


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    was = gc.isenabled()
    yield
    gc.unfreeze()
    (gc.enable if was else gc.disable)()


def made() -> list[list[int]]:
    with building():
        assert not gc.isenabled()
        return [[] for _ in range(5000)]


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_goes_on_as_it_was(on: bool) -> None:
    (gc.enable if on else gc.disable)()
    made()
    assert gc.isenabled() == on
    with pytest.raises(KeyError), building():
        raise KeyError
    assert gc.isenabled() == on


def test_what_was_built_is_old_and_may_still_go() -> None:
    found = made()
    assert gc.get_freeze_count() == 0
    young = {id(x) for generation in (0, 1) for x in gc.get_objects(generation)}
    assert not any(id(x) in young for x in found)
    assert all(gc.is_tracked(x) for x in found)


def test_what_a_program_froze_stays_frozen() -> None:
    gc.freeze()
    frozen = gc.get_freeze_count()
    made()
    assert gc.get_freeze_count() == frozen > 0
