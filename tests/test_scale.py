"""Nothing grows faster than the network: calls counted at three sizes, whatever is deep, wide or has long skips."""

from __future__ import annotations

import cProfile
from collections.abc import Callable

import pytest

import poetopt as po
from benchmarks.scale_networks import KINDS, build
from poetopt.report import inspection as needs_module

MOST_GROWTH = 2.25
"""Of twice the network; what is added once makes it less than 2, and sorting a little more."""


def calls(action: Callable[[], object]) -> int:
    """How many functions were called, of Python's and of C's."""
    profile = cProfile.Profile()
    profile.runcall(action)
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize("kind", KINDS)
def test_reading_differentiating_and_costing_take_work_in_proportion(kind: str) -> None:
    def step(size: int) -> int:
        model = build(kind, size)
        return calls(lambda: po.load(model).differentiate().cost("a72"))

    step(9)  # what is imported and looked up once
    counts = [step(size) for size in (30, 60, 120)]
    assert counts[1] < MOST_GROWTH * counts[0]
    assert counts[2] < MOST_GROWTH * counts[1]


@pytest.mark.parametrize("kind", ["chain", "resnet", "skips"])
def test_the_least_ram_of_deep_networks_is_the_bound(kind: str) -> None:
    found = po.inspect(po.load(build(kind, 120)))
    assert found.needs is not None
    assert found.needs.least_ram_bytes == found.needs.ram_bound_bytes
    assert not found.needs.least_ram_cut_short


def test_a_search_that_was_cut_short_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    model = po.load(build("wide", 60))
    whole = po.inspect(model)
    monkeypatch.setattr(needs_module, "WORK", 500)
    short, again = po.inspect(model), po.inspect(model)
    assert short.needs is not None
    assert whole.needs is not None
    assert short.needs.least_ram_cut_short
    assert not whole.needs.least_ram_cut_short
    assert "the search ended at its limit of work" in " ".join(str(short).split())
    assert "limit of work" not in str(whole)
    assert short.to_dict() == again.to_dict()
    assert (short.needs.least_ram_bytes or 0) > (whole.needs.least_ram_bytes or 0)
