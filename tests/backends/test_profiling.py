"""Measuring this machine: that everything is measured, and that it is what the executor then does."""

from __future__ import annotations

from pathlib import Path

import pytest

import poetopt as po
from poetopt.backends.onnxruntime.profiling import profile, storage, typical_seconds
from poetopt.devices import device
from poetopt.devices.cost import cost
from poetopt.devices.meters import Counter
from poetopt.devices.profile import with_profile
from poetopt.graph import TrainingGraph
from poetopt.ops.nodes import signatures
from poetopt.util.errors import OutputError
from tests.seeds import some


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


def test_operators_together_take_what_a_step_takes() -> None:
    # in each of three steps another operator is interrupted: no median sees it
    times = {"a": [1.0, 1.0, 7.0], "b": [2.0, 8.0, 2.0], "c": [9.0, 3.0, 3.0]}
    found = typical_seconds(times, {"a": "x", "b": "y", "c": "z"})
    assert sum(found.values()) == pytest.approx(12)
    assert found["y"] / found["x"] == pytest.approx(2)
    alike = typical_seconds({"a": [1.0, 1.0], "b": [1.0, 3.0]}, {"a": "x", "b": "x"})
    assert alike == {"x": pytest.approx(1.5)}
    assert typical_seconds({"a": [0.0]}, {"a": "x"}) == {"x": 0.0}


def test_a_plan_of_measured_costs_is_executed(tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    model = po.load("mlp")
    assert isinstance(model, po.Model)
    step = model.differentiate()
    path.write_text(step.profile().text())
    problem = step.cost("a72", profile=path)
    report = po.solve(problem, ram="80%", time_limit=5)
    execution = po.execute(report)
    assert execution.ok, execution.message


def test_storage_takes_longer_for_more(tmp_path: Path) -> None:
    found = storage(tmp_path, rounds=3)
    assert found.page_in_bytes_per_s > 1e6
    assert found.page_out_bytes_per_s > 1e6
    assert 0 <= found.page_in_latency_s < 1


def test_a_folder_that_can_t_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"can't create the paging file in .*nowhere"):
        storage(tmp_path / "nowhere")


def package(root: Path, name: str, microjoules: int, limit: int = 1_000_000) -> Path:
    folder = root / name
    folder.mkdir()
    (folder / "max_energy_range_uj").write_text(f"{limit}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    return folder / "energy_uj"


def test_energy_counters_add_up_and_start_anew(tmp_path: Path) -> None:
    assert Counter.open(tmp_path) is None
    first, second = package(tmp_path, "intel-rapl:0", 900_000), package(tmp_path, "intel-rapl:1", 0)
    package(tmp_path, "intel-rapl:0:0", 5)
    counter = Counter.open(tmp_path)
    assert counter is not None
    assert counter.counted() == 0.0
    first.write_text("100000\n")
    second.write_text("300000\n")
    assert counter.counted() == pytest.approx(0.5)
    second.write_text("400000\n")
    assert counter.counted() == pytest.approx(0.6)


def test_a_counter_that_can_t_be_read_is_none(tmp_path: Path) -> None:
    package(tmp_path, "intel-rapl:0", 1).write_text("denied")
    assert Counter.open(tmp_path) is None
