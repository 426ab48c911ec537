"""Many steps with a schedule: the same bits as without, updates that are right, data sets in batches."""

from __future__ import annotations

import random
import runpy
from pathlib import Path

import numpy as np
import pytest

from poetopt.backends.onnxruntime import execute, random_batch
from poetopt.backends.onnxruntime.batch import Batches
from poetopt.backends.onnxruntime.training import save_training, train
from poetopt.graph import TrainingGraph
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import lay_out
from poetopt.report.execution import execution_rows, training_text
from poetopt.util.errors import ModelError, OptionError
from tests.support.backends import NETWORKS, problem, store_all
from tests.support.problems import random_plan


def graph_of(name: str) -> TrainingGraph:
    found = problem(name).graph
    assert found is not None
    return found


def wasteful(name: str, seed: int = 0) -> Plan:
    """A valid plan with recomputes and transfers at random places."""
    return lay_out(random_plan(random.Random(seed), problem(name), length=60))


@pytest.mark.parametrize("name", NETWORKS)
def test_every_loss_is_that_of_training_without_a_schedule(name: str, tmp_path: Path) -> None:
    ended = train(wasteful(name), 6, 0.01, workdir=tmp_path, check=1)
    assert ended.ok, ended.message
    assert ended.losses == ended.reference_losses
    assert len(set(ended.losses)) == 6
    assert name == "dropout" or ended.losses[-1] < ended.losses[0]
    assert ended.optimizer_bytes == 0
    assert list(tmp_path.iterdir()) == []


def test_dropout_draws_anew_in_each_step() -> None:
    plan = store_all(problem("dropout"))
    ended = train(plan, 4, 1e-30, check=1)
    assert ended.bit_identical
    assert len(set(ended.losses)) == 4


def test_a_data_set_is_taken_in_batches_and_round_again() -> None:
    graph = graph_of("mlp")
    rng = np.random.default_rng(0)
    images = rng.standard_normal((10, *graph.tensors["input"].shape[1:])).astype(np.float32)
    labels = rng.integers(0, 10, 10)
    batches = Batches(graph, {"input": images, "labels": labels})
    assert batches.rows == 10
    for step in range(6):
        rows = [(4 * step + k) % 10 for k in range(4)]
        np.testing.assert_array_equal(batches.get(step)["input"], images[rows])
        np.testing.assert_array_equal(batches.get(step)["labels"], labels[rows])
    ended = train(store_all(problem("mlp")), 5, 0.1, data={"input": images, "labels": labels}, check=1)
    assert ended.bit_identical


def test_data_that_don_t_fit_are_refused() -> None:
    graph = graph_of("mlp")
    batch = dict(random_batch(graph))
    images = np.zeros((9, *graph.tensors["input"].shape[1:]), np.float32)
    with pytest.raises(ModelError, match=r"different numbers of rows \('input' 9, 'labels' 8\)"):
        Batches(graph, {"input": images, "labels": np.zeros(8, np.int64)})
    with pytest.raises(ModelError, match="the data lacks 'labels'"):
        Batches(graph, {"input": images})
    with pytest.raises(ModelError, match=r"'input' has shape \[3, 5\]"):
        Batches(graph, {**batch, "input": np.zeros((3, 5), np.float32)})
    labels = np.array([0, 1, 2, 3, 77, 1, 1, 1])
    with pytest.raises(ModelError, match="holds the label 77"):
        train(store_all(problem("mlp")), 3, 0.1, data={"input": images[:8], "labels": labels})
    for wrong in ({**batch, "labels": labels}, {**batch, "input": images}):
        with pytest.raises(ModelError, match=r"only the 4 of one batch, which would repeat with .* rows too"):
            Batches(graph, wrong)


@pytest.mark.parametrize(
    ("steps", "lr", "momentum", "message"),
    [
        (0, 0.1, 0.0, "--steps 0: must be at least 1"),
        (1, 0.0, 0.0, "--lr 0: must be more than 0"),
        (1, float("nan"), 0.0, "--lr nan"),
        (1, float("inf"), 0.0, "--lr inf"),
        (1, 0.1, 0.9, "--momentum 0.9: the plan's optimizer is none .plain descent., which has lr; solve with"),
    ],
)
def test_numbers_that_make_no_sense(steps: int, lr: float, momentum: float, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        train(store_all(problem("mlp")), steps, lr, momentum=momentum)


def test_what_was_learned_is_saved(tmp_path: Path) -> None:
    ended = train(store_all(problem("residual")), 2, 0.1)
    save_training(ended.losses, ended.values, tmp_path / "t.npz")
    with np.load(tmp_path / "t.npz") as saved:
        assert set(saved.files) == {"losses", *graph_of("residual").gradients, *graph_of("residual").states}
        assert tuple(saved["losses"]) == ended.losses
        for name, value in ended.values.items():
            np.testing.assert_array_equal(saved[name], value)


def test_a_training_that_diverges_has_the_same_bits(tmp_path: Path) -> None:
    ended = train(wasteful("mlp"), 6, 1e6, check=1)
    assert ended.bit_identical
    document = ended.to_dict()
    assert None in document["losses"] or max(ended.losses) > 1e6  # type: ignore[operator]


def test_a_loss_that_is_no_number_is_told() -> None:
    plan = store_all(problem("mlp"))
    batch = dict(random_batch(graph_of("mlp")))
    nowhere = np.full_like(batch["input"], np.nan)
    calm, lost = train(plan, 2, 0.1, data=batch), train(plan, 2, 0.1, data={**batch, "input": nowhere}, check=1)
    assert lost.bit_identical
    assert "the loss is no number from the first step on: nothing was learned" in words(training_text(plan, lost))
    assert (lost.diverged_step, lost.last_finite_loss) == (1, None)
    assert "no number" not in training_text(plan, calm)
    assert (calm.diverged_step, calm.last_finite_loss) == (0, calm.losses[-1])
    once = execute(plan, data={**batch, "input": nowhere})
    told = ("note", "the loss is no number: the data's 'input' holds NaN or infinity")
    assert told in execution_rows(plan, once)[1]


def words(text: str) -> str:
    """A summary without its line breaks."""
    return " ".join(text.split())


def test_a_training_that_diverges_says_when() -> None:
    plan = store_all(problem("mlp"))
    ended = train(plan, 8, 1e30)
    finite = [np.isfinite(loss) for loss in ended.losses]
    assert finite[0]
    assert not finite[-1]
    first = finite.index(False)
    assert (ended.diverged_step, ended.last_finite_loss) == (first + 1, ended.losses[first - 1])
    text = words(training_text(plan, ended))
    assert f"no number from step {first + 1} on, the last before was {ended.losses[first - 1]:.6g}" in text
    assert "Take a smaller --lr than 1e+30" in text
    assert ended.to_dict()["diverged_step"] == first + 1
    assert ended.ok


def test_the_example_fine_tunes_inside_its_budget() -> None:
    path = Path(__file__).resolve().parents[3] / "docs" / "examples" / "finetune.py"
    example = runpy.run_path(str(path))
    assert example["main"](10) > 0.2
