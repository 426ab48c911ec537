"""What is measured: bytes that come and go during a step, and runs that take turns."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from itertools import count

import numpy as np
import pytest

from poetopt.backends.onnxruntime import measure
from poetopt.backends.onnxruntime.execution import compare
from poetopt.backends.onnxruntime.measure import beside_each_bytes, give_back, high_water_bytes, peak_beside_bytes

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
    [
        ([()], 0),
        ([(30_000,)], 30_000),
        ([(100_000,), (700_000, 300_000), (400_000, 10)], 1_000_000),
        ([(40_000_000,)], 40_000_000),
    ],
)
def test_the_peak_of_the_worst_act(acts: list[tuple[int, ...]], expected: int) -> None:
    peak = peak_beside_bytes([allocating(*sizes) for sizes in acts], nothing, expected=expected + PAGE)
    if peak is None:
        pytest.skip("this platform doesn't say what is resident")
    # The first and the last page of each block may hold something else already, and others' pages come and go.
    blocks = max(len(sizes) for sizes in acts)
    assert expected - (2 * blocks + 4) * PAGE <= peak <= expected + 4 * PAGE


def pinned(size: int, kept: list[object]) -> Callable[[], object]:
    """Take a block and give it back, behind which another one stays, unused: a larger one finds no room there."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = libc.memset.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]

    def act() -> None:
        block = libc.memset(libc.malloc(size), 1, size)
        kept.append(libc.malloc(1 << 20))
        libc.free(block)

    return act


def test_the_high_water_mark_is_of_all_that_was_freed_and_not_given_back() -> None:
    kept: list[object] = []
    acts = [pinned(size, kept) for size in (2_000_000, 4_000_000, 8_000_000)]
    held = high_water_bytes(acts, nothing)
    trim = give_back()
    if held is None or trim is None:
        pytest.skip("this platform doesn't say what is resident")
    live = peak_beside_bytes(acts, nothing)
    given = high_water_bytes([acts[0], trim, acts[1], trim, acts[2]], nothing)
    assert live is not None
    assert given is not None
    assert 8_000_000 - 8 * PAGE <= held <= 14_000_000 + 64 * PAGE  # gaps from before may serve each of them
    assert 8_000_000 - 2 * PAGE <= live <= given + 2 * PAGE
    assert given <= 8_000_000 + 64 * PAGE


def test_what_a_step_gives_back_of_before_hides_nothing_of_its_own() -> None:
    trim, libc = give_back(), c_library()
    old: list[int] = []

    def prepare() -> None:
        old.append(libc.memset(libc.malloc(6_000_000), 1, 6_000_000))

    def release() -> None:
        libc.free(old.pop())

    if trim is None:
        pytest.skip("this C library gives nothing back")
    held = high_water_bytes([release, trim, allocating(3_000_000)], prepare)
    if held is None:
        pytest.skip("this platform doesn't say what is resident")
    assert 3_000_000 - 2 * PAGE <= held <= 3_000_000 + 64 * PAGE


def keeping(size: int, kept: list[object]) -> Callable[[], object]:
    """Take a block that stays."""
    return lambda: kept.append(np.ones(size, np.uint8))


@pytest.mark.parametrize("counts", [True, False], ids=["faults counted", "faults not counted"])
def test_what_stays_is_there_beside_what_comes_later(counts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not counts:
        monkeypatch.setattr(measure, "_fault_counter", lambda: count(step=1 << 62).__next__)
    kept: list[object] = []
    sizes = (0, 200_000, 5_000_000, 5_000_000, 50_000)
    acts = [allocating(size) for size in sizes]
    acts.insert(3, keeping(3_000_000, kept))
    expected = (0, 200_000, 5_000_000, 3_000_000, 8_000_000, 3_050_000)
    each = beside_each_bytes(acts, kept.clear)
    peak = peak_beside_bytes(acts, kept.clear, expected=0)
    if each is None or peak is None:
        pytest.skip("this platform doesn't say what is resident")
    for found, size in zip((*each, peak), (*expected, max(expected)), strict=True):
        assert size - 2 * PAGE <= found <= size + 6 * PAGE


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
