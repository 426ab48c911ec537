from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import Runner, chain, runner, write_problem


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runner:
    return runner(capsys)


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    return write_problem(tmp_path / "chain.json", chain())
