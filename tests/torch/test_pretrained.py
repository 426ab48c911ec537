"""The example on real data: what was pretrained on some classes learns the others inside its budget."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.support.later import uses_torch


@uses_torch
def test_wines_that_were_not_known_are_learned(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("sklearn")
    example = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "examples" / "pretrained.py"))
    before, after = example["main"]("wine", 8)
    assert before < 0.85
    assert after > before + 0.1
    assert "store-all" in capsys.readouterr().out
