"""Edited plans are found by `verify --strict`, others pass; `python -m benchmarks.verify_edits` has 200 edits."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from benchmarks.verify_edits import edits, found_by, solved, turns, verified


@pytest.fixture(scope="module")
def plans() -> list[tuple[str, str]]:
    return list(itertools.islice(solved(), 3))


def test_plans_as_they_are_pass(plans: list[tuple[str, str]], tmp_path: Path) -> None:
    for _, text in plans:
        assert verified(json.loads(text), tmp_path) == (0, "")


def test_edits_are_found(plans: list[tuple[str, str]], tmp_path: Path) -> None:
    """A third of the kinds: the benchmark has them all."""
    ways = set()
    for kind, name, document in itertools.islice(turns(plans, len(edits())), 0, None, 3):
        code, message = verified(document, tmp_path)
        assert code in (2, 5), f"{kind} of {name}"
        assert message.count("poetopt: ") == 1
        ways.add(found_by(code, message))
    assert len(ways) >= 3
