"""A model that is trained by plans learns a text, and another by LoRA, as torch does on the same batches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.later import ALL_USE_TORCH

pytestmark = ALL_USE_TORCH


def test_validation_losses_fall_as_torchs_do(tmp_path: Path) -> None:
    from benchmarks.characters import Learning, learned
    from tests.support.torch.modules import one_thread

    with one_thread():
        found = learned(tmp_path, 2, 64, 4, Learning(2, 8, 32, "60%", 3), Learning(2, 8, 32, "40%", 3), 16_000)
    for one in found:
        assert one.ours == pytest.approx(one.theirs, rel=1e-4)
        assert one.before > one.ours[0] > one.ours[1]
    assert found[1].budget <= 0.4 * found[1].store_all
