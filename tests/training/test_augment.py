"""Images that are flipped and moved: each is one of those that it may become, and the same ones after a resumption."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import poetopt as po
from poetopt.training.augment import Augmented
from poetopt.training.source import source_of
from poetopt.util.errors import OptionError
from tests.support.training import graph_of, plan_of, rows
from tests.training.test_trainer import copies, equal


def moved(image: Any, dy: int, dx: int) -> Any:
    """[channels, height, width], black where nothing is left."""
    found = np.zeros_like(image)
    _, height, width = image.shape
    for y in range(height):
        for x in range(width):
            if 0 <= y - dy < height and 0 <= x - dx < width:
                found[:, y, x] = image[:, y - dy, x - dx]
    return found


def test_flips_and_crops() -> None:
    plan = plan_of("lenet")
    data = rows(plan, 16)
    source = source_of(data, graph_of(plan), "sequential", 0)
    plain = np.concatenate([batch["input"] for batch in source.epoch(0)])
    seen = set()
    for asked in ("flip", "crop", "flip,crop"):
        changed = np.concatenate([b["input"] for b in Augmented(source, asked, graph_of(plan), 3).epoch(0)])
        for image, found in zip(plain, changed, strict=True):
            sides = [image, image[:, :, ::-1]] if "flip" in asked else [image]
            reach = range(-3, 4) if "crop" in asked else range(1)
            fits = [
                (turned, dy, dx)
                for turned, side in enumerate(sides)
                for dy in reach
                for dx in reach
                if np.array_equal(moved(side, dy, dx), found)
            ]
            assert len(fits) == 1
            seen.add((asked, *fits[0]))
    assert len(seen) > 20
    again = [batch["input"] for batch in Augmented(source, "flip,crop", graph_of(plan), 3).epoch(0, 1)]
    np.testing.assert_array_equal(np.concatenate(again), changed[len(changed) - len(np.concatenate(again)) :])


def noisy(batch: Any, random: np.random.RandomState) -> Any:
    """As one would write it."""
    return {**batch, "input": batch["input"] + random.normal(0, 0.1, batch["input"].shape).astype(np.float32)}


@pytest.mark.parametrize("asked", ["flip,crop", noisy, ["crop", noisy]], ids=["words", "own", "both"])
def test_a_stopped_training_goes_on_to_the_same_bits(asked: Any, tmp_path: Path) -> None:
    plan = plan_of("lenet")
    data = rows(plan, 24)
    found = []
    for folder, parts in (("whole", [2]), ("parts", [1, 2])):
        for epochs in parts:
            with po.Trainer(plan, lr=0.05, seed=1) as trainer:
                trainer.fit(data, epochs=epochs, augment=asked, checkpoint=tmp_path / folder, resume=True, keep="last")
                values = copies(trainer.values())
        found.append(values)
    equal(*found)
    with (
        po.Trainer(plan, seed=1) as trainer,
        pytest.raises(OptionError, match=r"it was made with --augment .*(crop|noisy)"),
    ):
        trainer.fit(data, epochs=3, checkpoint=tmp_path / "whole", resume=True)
