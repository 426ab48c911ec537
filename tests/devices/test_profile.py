"""Profiles: what makes operators the same, files that come back, merging, measurements by hand, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import poetopt as po
from poetopt.devices import device
from poetopt.devices.cost import cost
from poetopt.devices.profile import OperatorProfile, Profile, StorageProfile, load_profile, with_profile
from poetopt.devices.profile_csv import from_csv, template
from poetopt.graph import Operator, TrainingGraph
from poetopt.ops.nodes import signature, signatures
from poetopt.util.errors import DeviceError

A72 = device("a72")


def training(name: str = "mlp", batch: int | None = None) -> TrainingGraph:
    model = po.load(name, batch=batch)
    assert isinstance(model, po.Model)
    return model.differentiate().graph


MLP = training()


def operator(name: str) -> Operator:
    (found,) = [operator for operator in MLP.operators if operator.name == name]
    return found


seconds = st.floats(1e-300, 1e6)
joules = st.floats(0, 1e9)
watts = st.floats(0, 1e5)
latencies = st.floats(0, 60)
operator_profiles = st.builds(
    OperatorProfile,
    time_s=seconds,
    spread_s=seconds,
    runs=st.integers(0, 2**53),
    workspace_bytes=st.none() | st.integers(0, 2**50),
    energy_j=st.none() | joules,
)
rates = st.floats(0.1, 1e13)
storages = st.builds(
    StorageProfile,
    page_in_latency_s=latencies,
    page_in_bytes_per_s=rates,
    page_out_latency_s=latencies,
    page_out_bytes_per_s=rates,
    power_w=st.none() | watts,
    dma=st.booleans(),
)
words = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20)
profiles = st.builds(
    Profile,
    about=st.dictionaries(st.from_regex(r"[a-z]{1,8}", fullmatch=True), words, max_size=3)
    | st.builds(lambda text: {"energy": text}, words),
    power_w=st.none() | watts,
    operators=st.dictionaries(words, operator_profiles, max_size=4),
    storage=st.none() | storages,
)


@given(profiles)
def test_a_profile_comes_back_from_its_file(tmp_path_factory: pytest.TempPathFactory, profile: Profile) -> None:
    path = tmp_path_factory.mktemp("profile") / "p.toml"
    path.write_text(profile.text(), encoding="utf-8")
    assert load_profile(path) == profile


@given(profiles, profiles)
def test_merging_keeps_everything_and_prefers_the_newer(older: Profile, newer: Profile) -> None:
    merged = older.merged(newer)
    assert merged.operators.keys() == older.operators.keys() | newer.operators.keys()
    assert all(merged.operators[key] == entry for key, entry in newer.operators.items())
    assert merged.storage == (newer.storage or older.storage)
    assert merged.merged(newer) == merged
    assert Profile().merged(newer) == newer
    if merged.power_w is not None:
        source = newer if newer.power_w is not None else older
        assert merged.about.get("energy") == source.about.get("energy")


def whole(**changes: object) -> Profile:
    """Every operator of the network takes a second."""
    entries = {key: OperatorProfile(time_s=1.0) for key in signatures(MLP).values()}
    return replace(Profile(operators=entries), **changes)  # type: ignore[arg-type]


def test_measured_figures_replace_estimates() -> None:
    problem = with_profile(cost(MLP, A72), A72, whole())
    assert all(entry.time_s == 1.0 for entry in problem.operators)
    assert A72.active_power_w is not None
    assert all(entry.energy_j == A72.active_power_w for entry in problem.operators)
    assert problem.tensors == cost(MLP, A72).tensors
    assert problem.dma
    (note,) = problem.notes
    assert f"{len(problem.operators)} of {len(problem.operators)} operators" in note
    assert [entry.energy_j for entry in with_profile(problem, A72, whole(power_w=5.0)).operators] == [5.0] * len(
        problem.operators
    )


def test_measured_joules_count_before_power() -> None:
    key = signature(MLP.operators[0], MLP)
    profile = Profile(operators={key: OperatorProfile(time_s=2.0, energy_j=0.5)}, power_w=7.0)
    problem = with_profile(cost(MLP, A72), A72, profile)
    assert (problem.operators[0].time_s, problem.operators[0].energy_j) == (2.0, 0.5)


def test_what_is_missing_keeps_the_roofline_and_is_listed() -> None:
    keys = list(signatures(MLP).items())
    profile = Profile(operators={keys[0][1]: OperatorProfile(time_s=1.0)})
    before = cost(MLP, A72)
    problem = with_profile(before, A72, profile)
    shared = {name for name, key in keys if key == keys[0][1]}
    for old, new in zip(before.operators, problem.operators, strict=True):
        assert new == (replace(old, time_s=1.0, energy_j=A72.active_power_w or 0.0) if old.name in shared else old)
    missing = [name for name, _ in keys if name not in shared]
    (note,) = [note for note in problem.notes if "roofline" in note]
    assert all(name in note for name in missing[:8])


def test_a_transfer_of_a_profile_moves_whole_blocks() -> None:
    assert A72.storage is not None
    blocks = replace(A72, storage=replace(A72.storage, block_bytes=2**20))
    storage = StorageProfile(
        page_in_latency_s=1.0, page_in_bytes_per_s=100.0, page_out_latency_s=2.0, page_out_bytes_per_s=50.0
    )
    for tensor in with_profile(cost(MLP, blocks), blocks, whole(storage=storage)).tensors:
        assert 0 < tensor.nbytes < 2**20
        assert tensor.page_in_s == 1.0 + 2**20 / 100
        assert tensor.page_out_s == 2.0 + 2**20 / 50


def measured(tmp_path: Path, rows: Sequence[str], header: str = "operator,time_s,bytes", **options: object) -> Profile:
    path = tmp_path / "board.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return from_csv(path, MLP, **options)  # type: ignore[arg-type]


def test_measurements_by_hand(tmp_path: Path) -> None:
    first, second = [operator for operator in MLP.operators if not operator.view][:2]
    profile = measured(
        tmp_path,
        [f"{first.name},0.5,,", f"{first.name},0.7,0.25,4096", f'"{signature(second, MLP)}",1,,', ""],
        "operator, time_s, energy_j, workspace_bytes",
        power_w=2.0,
    )  # fmt: skip
    entry = profile.operators[signature(first, MLP)]
    assert (entry.time_s, entry.runs, entry.energy_j, entry.workspace_bytes) == (0.6, 2, 0.25, 4096)
    assert profile.operators[signature(second, MLP)].time_s == 1.0
    assert profile.power_w == 2.0
    assert profile.storage is None


def test_a_template_filled_in_is_a_whole_profile(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    lines = template(MLP).splitlines()
    path.write_text("\n".join(lines))
    with pytest.raises(DeviceError, match="it has no measurement"):
        from_csv(path, MLP)
    filled = [lines[0]]
    for line in lines[1:]:
        head, _, nbytes = line.rpartition(",,,,")
        filled.append(f"{head},{0.001 + int(nbytes) / 1e6 if nbytes else 0.5},,,{nbytes}")
    path.write_text("\n".join(filled))
    profile = from_csv(path, MLP, dma=True)
    assert set(profile.operators) == set(signatures(MLP).values())
    assert profile.storage is not None
    assert profile.storage.page_in_latency_s == pytest.approx(0.001)
    assert profile.storage.page_out_bytes_per_s == pytest.approx(1e6)
    assert profile.storage.dma
