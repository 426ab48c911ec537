"""Axes through Reshape and Transpose, against numpy's own on an array of numbers."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from poetopt.autodiff.choice import Axes, order_behind, own_axes, place_of, reshaped
from tests.seeds import seeds


def numbers(axes: Axes, shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """For each element, where it lies behind: what `axes` say."""
    behind = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    parts = []
    for pieces in axes:
        place = np.zeros(1, np.int64)
        for axis, stride, size in pieces:
            place = (place[:, None] + np.arange(size)[None, :] * stride * behind[axis]).reshape(-1)
        parts.append(place)
    found = np.zeros((), np.int64)
    for part in parts:
        found = found[..., None] + part
    return np.asarray(found)


def regrouped(rng: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Another shape of as many elements: the prime factors in order, in other groups."""
    factors = [p for length in shape for p in primes(length)]
    cuts = sorted(rng.randrange(len(factors) + 1) for _ in range(rng.randrange(1, 4)))
    return tuple(math.prod(factors[a:b]) for a, b in zip([0, *cuts], [*cuts, len(factors)], strict=True))


def primes(number: int) -> list[int]:
    found, p = [], 2
    while number > 1:
        while number % p == 0:
            found.append(p)
            number //= p
        p += 1
    return found


@pytest.mark.parametrize("seed", seeds(300))
def test_elements_lie_where_axes_say(seed: int) -> None:
    rng = random.Random(seed)
    shape = tuple(rng.choice([1, 2, 3, 4, 6]) for _ in range(rng.randrange(1, 5)))
    array = np.arange(math.prod(shape)).reshape(shape)
    axes = own_axes(shape)
    for _ in range(rng.randrange(1, 5)):
        if rng.random() < 0.5:
            perm = rng.sample(range(array.ndim), array.ndim)
            array, axes = array.transpose(perm), tuple(axes[axis] for axis in perm)
            continue
        wanted = regrouped(rng, array.shape)
        found = reshaped(axes, wanted)
        if found is None:
            break
        array, axes = array.reshape(wanted), found
    np.testing.assert_array_equal(numbers(axes, shape), array)
    pieces = [piece for axis in axes for piece in axis]
    in_order = array.reshape([size for _, _, size in pieces]).transpose(order_behind(pieces))
    np.testing.assert_array_equal(in_order.reshape(-1), np.arange(array.size))
    for axis, length in enumerate(shape):
        place = place_of(axes, axis, length)
        if place is not None and length > 1:
            step = math.prod(shape[axis + 1 :])
            np.testing.assert_array_equal(
                np.moveaxis(array, place, -1) - array.take([0], place).squeeze(place)[..., None],
                np.broadcast_to(np.arange(length) * step, np.moveaxis(array, place, -1).shape),
            )


def test_what_does_not_divide_is_not_followed() -> None:
    assert reshaped(own_axes((4, 3)), (6, 2)) is None
    assert reshaped(own_axes((4, 3)), (2, 2, 3)) == (((0, 2, 2),), ((0, 1, 2),), ((1, 1, 3),))
    assert reshaped((((0, 2, 2),), ((0, 1, 2),)), (4,)) == (((0, 1, 4),),)
    assert place_of(own_axes((4, 1, 3)), 2, 3) == 2
    assert place_of(((), ((1, 1, 6),)), 1, 3) is None
