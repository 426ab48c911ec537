"""Runtimes by name: our own, those of other packages, and what a device file says."""

from __future__ import annotations

import importlib.metadata
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import poetopt as po
from poetopt.graph import Node
from poetopt.ops import runtimes
from poetopt.ops.runtimes.onnxruntime import OnnxRuntime
from poetopt.ops.runtimes.onnxruntime import runtime as ours
from poetopt.util.errors import DeviceError

HERE = "tests.ops.runtimes.test_names"


class Bare(OnnxRuntime):
    """A runtime that works nowhere in place, sets nothing aside, and packs tightly."""

    name = "bare"
    version = "0"
    alignment = 8

    def in_place(self, node: Node) -> tuple[int, ...]:
        return ()

    def reserve_bytes(self, kernels: int) -> int:
        return 0


BARE = Bare()
ODD = object()


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages that register a runtime: one that is whole, one of another name, one that is none."""
    points = [
        EntryPoint("bare", f"{HERE}:BARE", "poetopt.runtimes"),
        EntryPoint("naked", f"{HERE}:BARE", "poetopt.runtimes"),
        EntryPoint("odd", f"{HERE}:ODD", "poetopt.runtimes"),
        EntryPoint("gone", f"{HERE}:GONE", "poetopt.runtimes"),
    ]
    known = importlib.metadata.entry_points
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda *, group: points if group == "poetopt.runtimes" else known(group=group),
    )


def board(folder: Path, runtime: str) -> Path:
    path = folder / "board.toml"
    path.write_text(f'base = "m4"\nruntime = "{runtime}"\n', encoding="utf-8")
    return path


@pytest.mark.usefixtures("others")
def test_a_device_counts_with_the_runtime_that_it_names(tmp_path: Path) -> None:
    """What works in place, the reserve and the alignment are that runtime's, whichever was asked for first."""
    step = po.load("lenet").differentiate()
    assert isinstance(step, po.Training)
    assert step.derived is not None
    bare, plain = step.cost(board(tmp_path, "bare")), step.cost("m4", runtime="onnxruntime")
    assert (bare.alignment, bare.reserve_bytes) == (8, 0)
    assert plain.alignment == ours.alignment
    assert plain.reserve_bytes >= ours.reserve_bytes(0)
    alone = [operator.name for operator in step.derived.operators if not operator.view]
    assert [operator.name for operator in bare.operators] == alone
    assert len(plain.operators) < len(alone)
    assert [o.name for o in step.cost("m4", runtime="onnxruntime").operators] == [o.name for o in plain.operators]
    blocks = po.load("lenet").differentiate(granularity="block").cost(board(tmp_path, "bare"))
    assert len(blocks.operators) < len(alone)


@pytest.mark.usefixtures("others")
def test_what_a_package_registers_must_be_a_runtime_of_that_name() -> None:
    assert runtimes.names() == ("onnxruntime", "c", "bare", "gone", "naked", "odd")
    with pytest.raises(DeviceError, match=r"runtime 'naked' \(.*\) is a Bare of the name 'bare'; tell its authors"):
        runtimes.runtime("naked")
    with pytest.raises(DeviceError, match=r"runtime 'odd' \(.*\) is a object without name, version, alignment"):
        runtimes.runtime("odd")
    with pytest.raises(DeviceError, match=r"runtime 'gone' \(.*\) can't be loaded"):
        runtimes.runtime("gone")
