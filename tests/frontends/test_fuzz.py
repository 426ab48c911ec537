"""Damaged files end in an answer or in one message; `python -m benchmarks.fuzz` tries a thousand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.damage import OPTIONS, damaged, models
from benchmarks.fuzz import DEFECT, Outcome, tried
from poetopt.autodiff import differentiate
from poetopt.frontends.onnx_file import load_onnx
from poetopt.graph import Graph
from poetopt.util.errors import ModelError
from tests.seeds import seeds

ROOT = Path(__file__).resolve().parents[2]


def test_the_models_are_sound_and_the_damage_repeats(tmp_path: Path) -> None:
    for model in models():
        graph = load_onnx(model, batch=2 if model.graph.name in OPTIONS else None)
        assert isinstance(graph, Graph)
    assert list(damaged(3, 6)) == list(damaged(3, 6))
    assert list(damaged(3, 6)) != list(damaged(4, 6))


def test_an_order_of_axes_that_is_none() -> None:
    model = models()[2]
    node = next(node for node in model.graph.node if node.op_type == "Transpose")
    node.attribute[0].ints[:] = [0, 2, 2, 3]
    with pytest.raises(ModelError, match="Transpose"):
        differentiate(load_onnx(model))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each file has a process of its own, made by fork")
def test_hostile_inputs() -> None:
    count = len(seeds(100))
    command = [sys.executable, "-m", "benchmarks.fuzz", "--count", str(count), "--seed", "7"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{count} inputs" in done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each file has a process of its own, made by fork")
def test_a_defect_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(arguments: list[str]) -> int:
        raise KeyError(arguments[0])

    monkeypatch.setattr("poetopt.cli.app.invoke", broken)
    outcome = tried(tmp_path / "none.onnx")
    assert outcome.code == DEFECT
    assert "KeyError" in outcome.message
    assert outcome.failure == "a traceback"


@pytest.mark.parametrize(
    ("outcome", "failure"),
    [
        (Outcome(0, "", 1.0, 10**8), ""),
        (Outcome(2, "poetopt: bad\n", 1.0, 10**8), ""),
        (Outcome(2, "poetopt: bad\nworse\n", 1.0, 10**8), "not one message"),
        (Outcome(-9, "", 11.0, 10**8), "11 s"),
        (Outcome(-11, "", 1.0, 10**8), "SIGSEGV"),
        (Outcome(0, "", 1.0, 3 * 10**9), "3.0 GB"),
        (Outcome(1, "poetopt: what\n", 1.0, 10**8), "exit code 1"),
    ],
)
def test_what_counts_as_a_failure(outcome: Outcome, failure: str) -> None:
    assert outcome.failure == failure
