"""What the band in a front's picture is called."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from poetopt.report.plots import _proof


@pytest.mark.parametrize(
    ("scopes", "says"),
    [
        (["depth<=12", "depth<=4", "depth<=8", "store-all"], "each point's scope\n(depth<=4 to depth<=12)"),
        (["full", "forward", "depth<=8"], "(depth<=8 to full)"),
        (["depth<=4", "store-all"], "within the scope depth<=4"),
    ],
)
def test_a_band_names_the_scopes_of_its_bounds(scopes: list[str], says: str) -> None:
    points = cast("Any", [SimpleNamespace(scope=scope) for scope in scopes])
    assert _proof(points).endswith(says)
