"""A refusal names a smaller batch only where a schedule for it exists: it is solved then."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

import poetopt as po
from poetopt.util.errors import InfeasibleError
from tests.frontends.support import floats, model_of


def network(path: Path, batch: int | str, width: int = 24) -> str:
    """A small convolutional network whose activations grow with the batch."""
    nodes = [
        helper.make_node("Conv", ["x", "conv.weight"], ["a"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "conv2.weight"], ["c"], pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("Sigmoid", ["c"], ["d"]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("Gemm", ["f", "fc.weight"], ["y"]),
    ]
    weights = {"conv.weight": floats(6, 1, 3, 3), "conv2.weight": floats(6, 6, 3, 3), "fc.weight": floats(6, 5)}
    onnx.save(model_of(nodes, {"x": [batch, 1, width, width]}, ["y"], weights), path)
    return str(path)


def refused(model: str, batch: int | None, **asked: object) -> tuple[str, dict[str, object]]:
    """The message and the report of a refusal."""
    problem = po.load(model, batch=batch).differentiate().cost("a72")
    with pytest.raises(InfeasibleError) as raised:
        po.solve(problem, **asked)  # type: ignore[arg-type]
    assert raised.value.report is not None
    return str(raised.value), dict(raised.value.report)


@pytest.mark.parametrize("share", [0.75, 0.5, 0.3])
def test_the_batch_that_would_fit_fits(tmp_path: Path, share: float) -> None:
    model = network(tmp_path / "net.onnx", "N")
    needed = po.load(model, batch=12).differentiate().cost("a72").least_ram_bytes
    ram = int(share * needed)
    said, report = refused(model, 12, ram=ram)
    smaller = report["fitting_batch"]
    assert isinstance(smaller, int)
    assert 1 <= smaller < 12
    assert f"--batch {smaller} would fit" in said
    again = po.solve(po.load(model, batch=smaller).differentiate().cost("a72"), ram=ram, time_limit=20)
    assert again.plan is not None
    twice, same = refused(model, 12, ram=ram)
    assert twice == said
    assert _figures(same) == _figures(report)


def _figures(report: dict[str, object]) -> dict[str, object]:
    """The report without what differs between two calls: how long they took, and in which process."""
    taken = ("build_s", "solve_s", "total_s", "timing", "process_peak_bytes")
    return {key: value for key, value in report.items() if key not in taken}


def test_a_fixed_batch_is_changed_where_that_is_possible(tmp_path: Path) -> None:
    model = network(tmp_path / "net.onnx", 8)
    ram = po.load(model).differentiate().cost("a72").least_ram_bytes // 2
    _, report = refused(model, None, ram=ram)
    smaller = report["fitting_batch"]
    assert isinstance(smaller, int)
    assert po.solve(po.load(model, batch=smaller).differentiate().cost("a72"), ram=ram).plan is not None


def test_nothing_is_said_where_no_batch_fits(tmp_path: Path) -> None:
    model = network(tmp_path / "net.onnx", "N")
    for batch, ram in ((6, 1_000), (1, 1_000)):
        said, report = refused(model, batch, ram=ram)
        assert report["fitting_batch"] is None
        assert "would fit" not in said


def test_a_share_of_ram_is_of_the_smaller_batch_then(tmp_path: Path) -> None:
    """What is too small a share for one batch is for the others too, but for what doesn't grow with them."""
    model = network(tmp_path / "net.onnx", "N")
    said, report = refused(model, 6, ram="20%")
    found = re.search(r"--batch (\d+) would fit", said)
    assert (found is None) == (report["fitting_batch"] is None)
    if found is not None:
        assert po.solve(po.load(model, batch=int(found[1])).differentiate().cost("a72"), ram="20%").plan is not None


def test_a_model_in_memory_is_not_read_again() -> None:
    nodes = [helper.make_node("Gemm", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["y"])]
    model = model_of(nodes, {"x": ["N", 64]}, ["y"], {"w": np.asarray(floats(64, 64))})
    problem = po.load(model, batch=64).differentiate(loss="mse").cost("a72")
    with pytest.raises(InfeasibleError) as raised:
        po.solve(problem, ram=1_000)
    assert raised.value.report is not None
    assert raised.value.report["fitting_batch"] is None
