"""Profiles: what makes operators the same, files that come back, merging, measurements by hand, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import poetopt as po
from poetopt.devices import device
from poetopt.devices.cost import cost
from poetopt.devices.profile import (
    NO_WAITING,
    OperatorProfile,
    Profile,
    StorageProfile,
    load_profile,
    with_profile,
)
from poetopt.devices.profile_csv import fit, from_csv, quartile_spread, template
from poetopt.graph import Node, Operator, TrainingGraph
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


def rekeyed(chosen: Operator, **attributes: object) -> Operator:
    nodes = tuple(replace(node, attributes={**node.attributes, **attributes}) for node in chosen.nodes)
    return replace(chosen, nodes=nodes)


def test_a_signature_reads_and_has_no_names() -> None:
    first = MLP.operators[0]
    text = signature(first, MLP)
    assert text.startswith(f"{first.kind}(float32[")
    assert " -> float32[" in text
    assert "#" in text
    names = {name: f"other_{k}" for k, name in enumerate(MLP.tensors)}
    renamed = replace(
        MLP,
        tensors={names[name]: replace(tensor, name=names[name]) for name, tensor in MLP.tensors.items()},
        values={names[name]: value for name, value in MLP.values.items()},
    )

    def node(old: Node) -> Node:
        return replace(
            old,
            name="n",
            inputs=tuple(names.get(name, "") for name in old.inputs),
            outputs=tuple(names.get(name, "") for name in old.outputs),
        )

    for old in MLP.operators:
        new = replace(
            old,
            name="op",
            nodes=tuple(map(node, old.nodes)),
            inputs=tuple(names[name] for name in old.inputs),
            outputs=tuple(names[name] for name in old.outputs),
        )
        assert signature(new, renamed) == signature(old, MLP)


def test_a_signature_tells_kinds_attributes_and_shapes_apart() -> None:
    first = MLP.operators[0]
    assert signature(rekeyed(first, alpha=2.0), MLP) != signature(first, MLP)
    assert signature(replace(first, kind="Other"), MLP) != signature(first, MLP)
    other = training(batch=7)
    assert not set(signatures(other).values()) & set(signatures(MLP).values())


def test_networks_share_operators() -> None:
    small, large = signatures(training("bert-tiny")), signatures(training("bert-tiny"))
    assert small == large
    assert len(set(small.values())) < len(small)


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


def test_figures_of_two_machines_are_never_merged() -> None:
    entries = {"x": OperatorProfile(time_s=1.0)}
    here = Profile(about={"machine": "a processor, Linux"}, operators=entries)
    other = replace(here, about={"machine": "another processor, Linux"})
    board = replace(here, about={"machine": "measurements from m4.csv"}, power_w=0.09)
    for older, newer in permutations((here, other, board), 2):
        with pytest.raises(DeviceError, match=r"its figures are of .*, and the new ones of .*\(-o\)") as told:
            older.merged(newer)
        assert all(one.about["machine"] in str(told.value) for one in (older, newer))
    with pytest.raises(DeviceError, match="a machine without a name"):
        replace(here, about={}).merged(here)
    assert here.merged(here) == here
    more = board.merged(replace(board, about={"machine": "measurements from lenet.csv"}))
    assert more.about["machine"] == "measurements from m4.csv, lenet.csv"
    assert more.merged(board) == more


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version = 2", "version: Input should be 1"),
        ("", "version: Field required"),
        ("version = 1\npower_w = -1", "power_w: .*greater than or equal to 0"),
        ("version = 1\npower_w = nan", "power_w"),
        ('version = 1\n[operators."x"]\nruns = 1', r"operators\.x\.time_s: Field required"),
        ('version = 1\n[operators."x"]\ntime_s = "1"', r"operators\.x\.time_s: .*valid number"),
        ("version = 1\n[storage]\npage_in_latency_s = 0", r"storage\.page_in_bytes_per_s: Field required"),
        ("version = 1\nother = 1", "other: Extra inputs"),
        ("version = = 1", "not valid TOML"),
        ('version = 1\n[operators."x"]\ntime_s = 1e300', r"operators\.x\.time_s: .*less than or equal to 1000000"),
        ('version = 1\n[operators."x"]\ntime_s = 0', r"operators\.x\.time_s: .*greater than 0"),
        (
            'version = 1\n[operators."x"]\ntime_s = 1\nworkspace_bytes = 1_000_000_000_000_000_000',
            r"workspace_bytes: .*less than or equal to 1125899906842624",
        ),
        (
            "version = 1\n[storage]\npage_in_bytes_per_s = 1e-12",
            r"page_in_bytes_per_s: .*greater than or equal to 0\.1",
        ),
    ],
)
def test_a_file_that_is_no_profile_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "p.toml"
    path.write_text(text)
    with pytest.raises(DeviceError, match=message) as caught:
        load_profile(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_told() -> None:
    with pytest.raises(DeviceError, match=r"the profile can't be read: No such file.*poetopt profile MODEL"):
        load_profile("nowhere.toml")


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


def test_what_the_profile_says_of_its_measuring_is_noted() -> None:
    busy = "others had the processors for 89% of that time, not counted"
    storage = StorageProfile(
        page_in_latency_s=1.0, page_in_bytes_per_s=100.0, page_out_latency_s=2.0, page_out_bytes_per_s=50.0
    )
    profile = whole(storage=storage, about={"load": busy, "transfers": "through the page cache"})
    notes = with_profile(cost(MLP, A72), A72, profile).notes
    assert any(busy in note for note in notes)
    assert any("the storage (through the page cache)" in note for note in notes)
    for quiet in NO_WAITING:
        assert not any(quiet in note for note in with_profile(cost(MLP, A72), A72, whole(about={"load": quiet})).notes)
    # figures of the busy time are no better for a quiet one beside them; measured anew, they are
    free = whole(about={"load": NO_WAITING[0]})
    other = Profile(about=free.about, operators={"other": OperatorProfile(time_s=1.0)})
    assert profile.merged(other).about["load"] == busy
    assert profile.merged(free).about["load"] == NO_WAITING[0]
    assert free.merged(profile).about["load"] == busy


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


def test_a_storage_without_dma_costs_the_cpu() -> None:
    storage = StorageProfile(
        page_in_latency_s=1.0, page_in_bytes_per_s=100.0, page_out_latency_s=2.0, page_out_bytes_per_s=50.0, power_w=1.0
    )
    problem = with_profile(cost(MLP, A72), A72, whole(storage=storage, power_w=4.0))
    assert not problem.dma
    assert A72.storage is not None
    for tensor in problem.tensors:
        assert tensor.page_in_s == 1.0 + A72.storage.moved_bytes(tensor.nbytes) / 100
        assert tensor.page_out_s == 2.0 + A72.storage.moved_bytes(tensor.nbytes) / 50
        assert tensor.page_in_j == tensor.page_in_s * 5.0
        assert tensor.page_out_j == tensor.page_out_s * 5.0
    beside = with_profile(cost(MLP, A72), A72, whole(storage=replace(storage, dma=True)))
    assert beside.dma
    assert beside.tensors[0].page_in_j == beside.tensors[0].page_in_s * 1.0


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


def test_a_storage_that_only_the_profile_has_is_never_free() -> None:
    bare = replace(A72, storage=None, dma=False)
    storage = StorageProfile(
        page_in_latency_s=1.0, page_in_bytes_per_s=1e3, page_out_latency_s=2.0, page_out_bytes_per_s=1e3, dma=True
    )
    problem = cost(MLP, bare)
    assert any("has no storage" in note for note in problem.notes)
    with pytest.raises(DeviceError, match=r"transfers would be free\. Write power_w, in watts, under \[storage\]"):
        with_profile(problem, bare, whole(storage=storage))
    given = with_profile(problem, bare, whole(storage=replace(storage, power_w=0.5)))
    copied = with_profile(problem, bare, whole(storage=replace(storage, dma=False), power_w=3.0))
    for found, power_w in ((given, 0.5), (copied, 3.0)):
        assert found.paging
        assert not any("has no storage" in note for note in found.notes)
        assert all(tensor.page_in_j == tensor.page_in_s * power_w for tensor in found.tensors)
    assert any("charged the CPU's alone" in note for note in copied.notes)
    assert not any("charged the CPU's alone" in note for note in given.notes)


def test_joules_of_transfers_by_hand_are_the_storages_power(tmp_path: Path) -> None:
    rows = ["page_in,1,1000,4", "page_in,2,2000,8", "page_out,3,1000,12", "page_out,4,2000,16"]
    header = "operator,time_s,bytes,energy_j"
    for options, power_w in (({"dma": True}, 4.0), ({"power_w": 3.0}, 1.0)):
        storage = measured(tmp_path, rows, header, **options).storage
        assert storage is not None
        assert storage.power_w == power_w
    with pytest.raises(DeviceError, match="hold the CPU's, which makes the transfers: give its watts with --power"):
        measured(tmp_path, rows, header)


def test_measured_workspace_replaces_the_reserve() -> None:
    before = cost(MLP, A72)
    entries = {key: OperatorProfile(time_s=1.0, workspace_bytes=1_000_000) for key in signatures(MLP).values()}
    assert with_profile(before, A72, Profile(operators=entries)).reserve_bytes >= 1_000_000
    assert with_profile(before, A72, whole()).reserve_bytes == before.reserve_bytes


def test_a_problem_without_a_network_is_refused() -> None:
    with pytest.raises(DeviceError, match="a profile needs a network"):
        with_profile(replace(cost(MLP, A72), graph=None), A72, Profile())


def measured(tmp_path: Path, rows: Sequence[str], header: str = "operator,time_s,bytes", **options: object) -> Profile:
    path = tmp_path / "board.csv"
    path.write_text("\n".join([header, *rows]) + "\n")
    return from_csv(path, MLP, **options)  # type: ignore[arg-type]


def test_measurements_by_hand(tmp_path: Path) -> None:
    first, second = [operator for operator in MLP.operators if not operator.view][:2]
    profile = measured(
        tmp_path,
        [
            f"{first.name},0.5,,",
            f"{first.name},0.7,0.25,4096",
            f'"{signature(second, MLP)}",1,,',
            "",
        ],
        "operator, time_s, energy_j, workspace_bytes",
        power_w=2.0,
    )
    entry = profile.operators[signature(first, MLP)]
    assert (entry.time_s, entry.runs, entry.energy_j, entry.workspace_bytes) == (0.6, 2, 0.25, 4096)
    assert profile.operators[signature(second, MLP)].time_s == 1.0
    assert profile.power_w == 2.0
    assert profile.storage is None


def test_a_template_filled_in_is_a_whole_profile(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    lines = template(MLP).splitlines()
    path.write_text("\n".join(lines))
    with pytest.raises(DeviceError, match="it holds no measurement"):
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


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["nobody,1,"], r"board\.csv, line 2: 'mlp' has no operator 'nobody'; .*--template"),
        (["fc1,1,"], "line 2: 'fc1' is one operator with what works in place behind it; give 'relu1' the seconds"),
        (["fc1,much,"], r"line 2: time_s is 'much'; it must be a number of more than 0"),
        (["fc1,-1,"], "line 2: time_s is '-1'"),
        (["fc1,nan,"], "line 2: time_s is 'nan'"),
        (["fc1,1,,,"], "line 2: more cells than columns"),
        (["page_in,1,"], "line 2: page_in needs the column bytes"),
        (["page_in,1,100"], "one direction of the storage alone; add rows of page_out"),
        (["page_in,1,100", "page_out,1,0"], "page_out: no transfer of at least one byte"),
        (["page_in,1,100", "page_out,2,1", "page_out,1,1000"], "larger transfers took no longer"),
        ([], "it holds no measurement"),
        (["fc3,1,", '"fc3,2,'], "look for a quote that is not closed"),
    ],
)
def test_measurements_that_can_t_be_are_refused_with_the_line(tmp_path: Path, rows: list[str], message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        measured(tmp_path, rows)


@pytest.mark.parametrize(
    "header", ["operator,seconds", "name,time_s", "operator,time_s,colour", "operator;time_s", "operator,time_s,time_s"]
)
def test_columns_must_be_known(tmp_path: Path, header: str) -> None:
    with pytest.raises(DeviceError, match="column"):
        measured(tmp_path, [], header)


@given(st.floats(0, 0.1), st.floats(1e3, 1e9), st.lists(st.integers(1, 10**7), min_size=2, max_size=6, unique=True))
def test_the_fit_finds_a_line(latency: float, rate: float, sizes: list[int]) -> None:
    found = fit([(n, latency + n / rate) for n in sizes])
    for n in sizes:
        assert found[0] + n / found[1] == pytest.approx(latency + n / rate, rel=1e-3)


def test_one_size_gives_a_rate_alone() -> None:
    assert fit([(1000, 2.0), (1000, 2.0)]) == (0.0, 500.0)


def test_spread() -> None:
    assert quartile_spread([1.0, 2.0, 3.0]) == 0.0
    assert quartile_spread([4.0, 1.0, 2.0, 3.0]) == 1.0
    assert math.isfinite(quartile_spread([1.0] * 9))


def test_the_example_in_the_documentation(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "profiles.md").read_text(encoding="utf-8")
    path = tmp_path / "board.csv"
    path.write_text(page.partition("```csv\n")[2].partition("```")[0])
    profile = from_csv(path, training("resnet18-cifar"), power_w=0.09, dma=True)
    assert len(profile.operators) == 2
    assert profile.storage is not None
    path = tmp_path / "board.toml"
    path.write_text(page.partition("```toml\n")[2].partition("```")[0])
    assert load_profile(path).storage is not None
