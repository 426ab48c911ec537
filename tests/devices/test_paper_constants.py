"""The shared problem files hold costs made from the authors' constants: ours must agree with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from poetopt.devices import Work, device

INSTANCES = Path(__file__).resolve().parents[2] / "../shared/instances"
FILES = sorted(INSTANCES.glob("*.json"))
KEYS = {"m0": "paper-m0", "m4": "paper-m4", "a72": "paper-a72", "a72nocache": "paper-a72-nocache"}


@pytest.mark.skipif(not FILES, reason="the shared problem files are not here")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_costs_of_the_problem_files(path: Path) -> None:
    problem: dict[str, Any] = json.loads(path.read_text())
    # the exact_* files were made from constants rounded to five digits
    tolerance = 1e-4 if path.stem.startswith("exact_") else 1e-12
    assert set(problem["costs"]) <= set(KEYS)
    for key, costs in problem["costs"].items():
        found = device(KEYS[key])
        for k, node in enumerate(problem["nodes"]):
            nbytes = node["bytes"]
            work = (Work(node["flops"], 0),)
            if costs["compute_s"][k]:
                assert costs["compute_s"][k] == pytest.approx(found.compute_s(work), rel=tolerance)
                assert costs["compute_j"][k] == pytest.approx(found.compute_j(work), rel=tolerance)
            if nbytes:
                assert costs["page_in_s"][k] == pytest.approx(found.page_in_s(nbytes), rel=tolerance)
                assert costs["page_in_j"][k] == pytest.approx(found.page_in_j(nbytes), rel=tolerance)
                assert costs["page_out_s"][k] == pytest.approx(found.page_out_s(nbytes), rel=tolerance)
                assert costs["page_out_j"][k] == pytest.approx(found.page_out_j(nbytes), rel=tolerance)


def test_the_authors_derivations() -> None:
    """Their constants are written as products; these are the products."""
    assert device("paper-m0").flop_per_s == 2000 / 0.012
    assert device("paper-m4").flop_per_s == pytest.approx(16283 * 100 * 1000 / 255.6237, rel=1e-15)
    assert device("paper-a72").flop_per_j == pytest.approx(16283 * 100 * 1000 / (13.53 * 0.6 * 5), rel=1e-15)


def test_what_is_doubtful_in_them() -> None:
    """The A72's rate and energy together imply 50 W against 3 W; without write cache they agree."""
    cached, plain = device("paper-a72"), device("paper-a72-nocache")
    assert cached.flop_per_j is not None
    assert plain.flop_per_j is not None
    assert cached.flop_per_s / cached.flop_per_j == pytest.approx(50, rel=0.01)
    assert plain.flop_per_s / plain.flop_per_j == pytest.approx(3, rel=1e-9)
