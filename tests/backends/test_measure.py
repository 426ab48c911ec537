"""What is measured: bytes that come and go during a step, runs that take turns, and every operator for a profile."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import poetopt as po
from poetopt.backends.onnxruntime.execution import compare
from poetopt.backends.onnxruntime.measure import (
    alternate,
    peak_beside_bytes,
)
from poetopt.backends.onnxruntime.profiling import profile
from poetopt.devices import device
from poetopt.devices.cost import cost
from poetopt.devices.profile import with_profile
from poetopt.graph import TrainingGraph
from poetopt.ops.nodes import signatures
from tests.seeds import some

PAGE = 4096


def c_library() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = libc.memset.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    return libc


def allocating(*sizes: int) -> Callable[[], object]:
    """Take blocks of these sizes from the C library, use them all, and give them back."""
    libc = c_library()

    def act() -> None:
        blocks = [libc.memset(libc.malloc(size), 1, size) for size in sizes]
        for block in blocks:
            libc.free(block)

    return act


def nothing() -> None:
    return None


@pytest.mark.parametrize(
    ("acts", "expected"),
    [([()], 0), ([(30_000,)], 30_000), ([(100_000,), (700_000, 300_000), (400_000, 10)], 1_000_000),
     ([(40_000_000,)], 40_000_000)],
)  # fmt: skip
def test_the_peak_of_the_worst_act(acts: list[tuple[int, ...]], expected: int) -> None:
    peak = peak_beside_bytes([allocating(*sizes) for sizes in acts], nothing, expected=expected + PAGE)
    if peak is None:
        pytest.skip("this platform doesn't say what is resident")
    # The first and the last page of each block may hold something else already, and others' pages come and go.
    blocks = max(len(sizes) for sizes in acts)
    assert expected - (2 * blocks + 4) * PAGE <= peak <= expected + 4 * PAGE


def test_each_step_is_prepared_and_run_in_turns() -> None:
    log: list[str] = []

    def step(name: str) -> Callable[[], Callable[[], object]]:
        def prepare() -> Callable[[], object]:
            log.append(f"prepare {name}")
            return lambda: log.append(name)

        return prepare

    times = alternate({"a": step("a"), "b": step("b")}, seconds=60, most=2)
    # so short a step runs once more before each later timing, right after which it is timed
    once = {name: [f"prepare {name}", name] for name in "ab"}
    assert log == [*once["a"], *once["b"], *once["b"], *once["b"], *once["a"], *once["a"]]
    assert times.keys() == {"a", "b"}
    assert all(seconds >= 0 for seconds in times.values())


def test_comparison_is_by_bits() -> None:
    nan, zero = np.array([np.nan, 1.0], np.float32), np.array([0.0, 2.0], np.float32)
    mine = {"same": nan, "sign": zero, "far": np.array([1.0, 2.0])}
    theirs = {"same": nan.copy(), "sign": np.array([-0.0, 2.0], np.float32), "far": np.array([1.0, 5.0])}
    assert compare(mine, theirs, ("same",)).identical
    found = compare(mine, theirs, ("same", "sign"))
    assert (found.different, found.max_abs_diff) == (("sign",), 0.0)
    assert compare(mine, theirs, ("same", "sign", "far")).max_abs_diff == 3.0
    assert compare({"x": nan}, {"x": zero}, ("x",)).max_abs_diff == np.inf
    assert compare({"x": zero}, {"x": zero.astype(np.float64)}, ("x",)).different == ("x",)


def training(name: str) -> TrainingGraph:
    model = po.load(name)
    assert isinstance(model, po.Model)
    return model.differentiate().graph


@pytest.mark.parametrize("name", some(("lenet", "bert-tiny"), 1))
def test_every_operator_is_measured(name: str, tmp_path: Path) -> None:
    graph = training(name)
    found = profile(graph, steps=4, workdir=tmp_path, power_w=2.5)
    assert set(found.operators) == set(signatures(graph).values())
    counts = {key: list(signatures(graph).values()).count(key) for key in found.operators}
    for key, entry in found.operators.items():
        assert entry.time_s > 0
        assert entry.spread_s >= 0
        assert entry.runs == 4 * counts[key]
    assert found.storage is not None
    assert not found.storage.dma
    assert found.power_w is not None
    assert "power" in found.about["energy"]
    assert "processors" in found.about["load"]
    assert "page cache" in found.about["transfers"]
    assert list(tmp_path.iterdir()) == []
    problem = with_profile(cost(graph, device("a72")), device("a72"), found)
    assert problem.baseline_time_s == pytest.approx(
        sum(found.operators[key].time_s for key in signatures(graph).values())
    )
    assert not any("roofline" in note for note in problem.notes)
