"""No pass grows faster than the network: calls are counted, no clock is asked."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.growth import chain, nested, passes
from poetopt.graph.arena import packing

SMALL, LARGE = 50, 100
MOST = 2.3
"""Times the calls for twice the operators; 4 is quadratic."""


def calls(count: int, kind: str) -> dict[str, int]:
    """How many functions each pass calls, those of libraries in C among them."""
    found: dict[str, int] = {}

    def run(name: str, act: Callable[[], Any]) -> Any:
        found[name] = 0

        def counted(_: object, event: str, __: object) -> None:
            if event in ("call", "c_call"):
                found[name] += 1

        gc.disable()  # what it calls is no pass
        sys.setprofile(counted)
        try:
            return act()
        finally:
            sys.setprofile(None)
            gc.enable()

    passes(nested(count) if kind == "untrained" else chain(kind, count), run)
    return found


@pytest.mark.parametrize("kind", ["untrained", "layers"])
def test_twice_the_operators_take_twice_the_calls(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MOST_PAIRS", 0)  # small ones are packed by looking at each pair, up to so many
    calls(10, kind)  # imports, and what is made once
    small, large = calls(SMALL, kind), calls(LARGE, kind)
    growing = {name: large[name] / small[name] for name in small if large[name] > MOST * small[name]}
    assert not growing
