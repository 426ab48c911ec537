from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import chain, write_problem


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    return write_problem(tmp_path / "chain.json", chain())
