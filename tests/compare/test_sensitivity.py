"""Sensitivity: changed devices are what their costs say, the plan never beats their optimum, and losses are told."""

from __future__ import annotations

import json
import random
from dataclasses import astuple, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import poetopt as po
from poetopt.cli.app import app
from poetopt.comparison.changed import PARAMETERS, Bound, changed, labels
from poetopt.comparison.sensitivity import (
    ALTERNATIVES,
    FACTORS,
    GAP,
    Change,
    Sensitivity,
    sensitivity,
)
from poetopt.devices.model import Device, Storage
from poetopt.devices.profile import Profile, StorageProfile
from poetopt.formulations import formulation
from poetopt.formulations.energy_budget import energy_budget, quickest
from poetopt.formulations.flash_wear import flash_wear
from poetopt.formulations.language import Block
from poetopt.formulations.options import with_options
from poetopt.graph.problem import Problem
from poetopt.plan.instructions import Plan
from poetopt.plan.simulate import simulate
from poetopt.report.comparison import sensitivity_text
from poetopt.report.plots import save_sensitivity
from poetopt.search.diagnosis.solve import solve
from poetopt.search.solution import Options
from poetopt.util.errors import OptionError
from poetopt.util.units import show_seconds
from tests.bruteforce import plan_optimum, random_tight


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("flop_per_j", [None, 1e9])
@pytest.mark.parametrize("parts", [1, 4])
def test_a_changed_problem_is_that_of_the_changed_device(factor: float, flop_per_j: float | None, parts: int) -> None:
    """All that follows from a figure: waking from the storage's power, latencies of each part, joules of FLOPs not."""
    model = po.load("mlp", batch=8, micro_batch=parts if parts > 1 else None)
    training, device = model.differentiate(), replace(po.device("a72"), flop_per_j=flop_per_j, active_power_w=2.0)
    assert isinstance(training, po.Training)
    storage = device.storage
    assert storage is not None
    storage = replace(storage, block_bytes=65536, wake_j=0.25)
    device = replace(device, storage=storage, memory_bytes_per_s=4e9)
    latencies = storage.page_in_latency_s, storage.page_out_latency_s
    problem = training.cost(device)
    faster = replace(
        storage,
        page_in_bytes_per_s=storage.page_in_bytes_per_s * factor,
        page_out_bytes_per_s=storage.page_out_bytes_per_s * factor,
    )
    share = storage.power_w / (storage.power_w + storage.cpu_power_w)
    hungry = replace(storage, power_w=storage.power_w * factor, wake_j=storage.wake_j * factor)
    quick = replace(device, flop_per_s=device.flop_per_s * factor, memory_bytes_per_s=4e9 * factor)
    for parameter, other in (
        ("storage throughput", replace(device, storage=faster)),
        ("storage power", replace(device, storage=hungry)),
        ("CPU rate", quick),
    ):
        found = changed(
            problem, parameter, factor, storage_share=share, latencies_s=latencies, by_time=flop_per_j is None
        )
        wanted = training.cost(other)
        assert found.wake_j == pytest.approx(wanted.wake_j, rel=1e-9)
        for one, two in zip(found.tensors, wanted.tensors, strict=True):
            assert astuple(one.transfers) == pytest.approx(astuple(two.transfers), rel=1e-9)
        for op, op_there in zip(found.operators, wanted.operators, strict=True):
            assert (op.time_s, op.energy_j) == pytest.approx((op_there.time_s, op_there.energy_j), rel=1e-9)
    assert labels(problem) == {"storage power": "storage power, with waking"}
    assert labels(replace(problem, wake_j=0.0)) == {}


def test_what_runs_stream_changes_with_the_device() -> None:
    """To rounding; with another throughput but for the last block of each chunk."""
    training, device = po.load("lenet", batch=1).differentiate(optimizer="sgd"), po.device("m4")
    storage = device.storage
    assert storage is not None
    problem = training.cost(device, parameters="paged")
    share = storage.power_w / (storage.power_w + storage.cpu_power_w)
    latencies = storage.page_in_latency_s, storage.page_out_latency_s
    rates = {name: 2 * getattr(storage, name) for name in ("page_in_bytes_per_s", "page_out_bytes_per_s")}
    for parameter, other, rel in (
        ("storage throughput", replace(storage, **rates, bus_bytes_per_s=None), 0.1),
        ("storage power", replace(storage, power_w=2 * storage.power_w), 1e-9),
    ):
        found = changed(problem, parameter, 2.0, storage_share=share, latencies_s=latencies).operators
        expected = training.cost(replace(device, storage=other), parameters="paged").operators
        ways = [
            (a, b)
            for k, operator in enumerate(found)
            for a, b in zip(operator.variants, expected[k].variants, strict=True)
        ]
        assert len(ways) > 50
        for here, there in ways:
            assert here.energy_j == pytest.approx(there.energy_j, rel=rel)
            assert here.time_s == pytest.approx(there.time_s, rel=rel)
    quicker = changed(problem, "CPU rate", 2.0).operators[4]
    moves = problem.operators[4].variants[0].energy_j - problem.operators[4].energy_j
    assert quicker.variants[0].energy_j == pytest.approx(problem.operators[4].energy_j / 2 + moves)


def test_an_unknown_parameter_is_refused() -> None:
    problem, _ = random_tight(random.Random(1))
    with pytest.raises(ValueError, match="there are storage throughput, storage power, CPU rate"):
        changed(problem, "colour", 2.0)


@pytest.mark.parametrize("seed", [3, 5, 8])
def test_the_optimum_there_is_that_of_brute_force(seed: int) -> None:
    problem, ram_bytes = random_tight(random.Random(seed), operators=6, training=True)
    solution = solve(problem, Options(ram_bytes=ram_bytes, scope="full", time_limit_s=20))
    if solution.plan is None:
        pytest.skip("no schedule has so little RAM")
    found = sensitivity(problem, solution, time_limit_s=20)
    assert [(change.parameter, change.factor) for change in found.changes] == [
        (parameter, factor) for parameter in PARAMETERS for factor in FACTORS
    ]
    for change in found.changes:
        moved = changed(problem, change.parameter, change.factor)
        least = plan_optimum(moved, ram_bytes)
        assert least is not None
        assert change.optimum_j is not None
        assert change.bound_j is not None
        # retention's space is a little smaller than that of all plans
        assert change.energy_j >= change.optimum_j >= moved.baseline_energy_j + least.overhead_j - 1e-9
        assert change.bound_j <= change.optimum_j + 1e-9
        assert change.loss == pytest.approx(change.energy_j / change.optimum_j - 1)
    assert all(change.loss == pytest.approx(0, abs=0.02) for change in found.changes if change.factor == 1)


def change(
    factor: float, energy_j: float, optimum_j: float, alternative_j: float | None, in_time: bool = True
) -> Change:
    loss = energy_j / optimum_j - 1
    return Change(
        "storage power", factor, 1.0, energy_j, 1.0, in_time, optimum_j, 1.0, loss, alternative_j, "paging alone"
    )


def test_the_sentence_says_what_matters_most() -> None:
    calm = Sensitivity((change(1, 10, 10, 12), change(4, 11, 10, 12)), 2.0)
    assert calm.sentence == (
        "At worst, with storage power x4, the plan takes 10 % more energy than the best one known there."
    )
    gone = Sensitivity((change(1, 10, 10, 12), change(0.5, 9, 8, 9), change(0.25, 8, 7, 7)), 2.0)
    assert gone.sentence == (
        "The plan's advantage vanishes inside the uncertainty: with storage power x0.5, paging alone costs no more "
        "than it."
    )
    assert "paging alone is as good" in sensitivity_text(gone)
    late = Sensitivity((change(1, 10, 10, None), change(0.25, 10, 10, None, in_time=False)), None)
    assert late.sentence == "The plan misses its deadline with storage power x0.25."
    both = replace(gone, changes=(*gone.changes, *late.changes))
    assert both.sentence == (
        "The plan's advantage vanishes inside the uncertainty: with storage power x0.5, paging alone costs no more "
        "than it, and the plan misses its deadline with storage power x0.25."
    )
    assert Sensitivity((change(1, 10, 10, None),), None).sentence.startswith("The plan stays the best one known")


SWAPPED = (
    ("energy-limit=9J", "leave out --with energy-limit, or --with sensitivity"),
    ("static-power=1W", "leave out --with static-power, or --with sensitivity"),
    (quickest(), "leave out the block quickest, or --with sensitivity"),
)


@pytest.mark.parametrize(("asked", "said"), SWAPPED, ids=[said.split(",")[0] for _, said in SWAPPED])
def test_another_goal_than_energy_is_refused(asked: str | Block, said: str) -> None:
    problem, ram_bytes = random_tight(random.Random(3), operators=5, training=True)
    chosen = with_options(formulation("retention"), [asked], problem, 1)
    solution = solve(problem, Options(ram_bytes=ram_bytes, scope="full", time_limit_s=20, formulation=chosen))
    told: list[str] = []
    with pytest.raises(OptionError, match=said):
        sensitivity(problem, solution, time_limit_s=20, told=told.append)
    assert told == []  # no solve was begun


@pytest.mark.parametrize("seed", [2, 6])
def test_what_blocks_forbid_holds_for_every_plan(seed: int) -> None:
    problem, ram_bytes = random_tight(random.Random(seed), operators=6, training=True)
    options = Options(ram_bytes=ram_bytes, scope="full", time_limit_s=20)
    cheap = changed(problem, "storage power", 1e-3)  # such that the unrestricted optimum pages
    free = solve(cheap, options)
    assert free.plan is not None
    written = _written(free.plan)
    assert written
    limited = replace(options, formulation=formulation("retention").with_block(flash_wear(written - 1)))
    solution = solve(cheap, limited)
    assert solution.plan is not None
    assert _written(solution.plan) < written
    found = sensitivity(cheap, solution, time_limit_s=20)
    for there in found.changes:
        least = solve(changed(cheap, there.parameter, there.factor), limited).simulation
        assert least is not None
        assert there.optimum_j == pytest.approx(least.energy_j, rel=GAP)
        assert there.bound_j is not None
        assert there.bound_j <= least.energy_j * (1 + 1e-9)
    here = next(there for there in found.changes if there.factor == 1.0)
    assert free.simulation is not None
    assert here.optimum_j is not None
    assert here.optimum_j > free.simulation.energy_j * (1 + 1e-9)


def test_a_rule_that_depends_on_figures_is_asked_again_there() -> None:
    problem, ram_bytes = random_tight(random.Random(2), operators=6, training=True)
    options = Options(ram_bytes=ram_bytes, scope="full", time_limit_s=20)
    here = solve(problem, options).simulation
    assert here is not None
    limit_j = 1.5 * here.energy_j
    capped = formulation("retention").with_block(replace(energy_budget(limit_j), goal=None))  # a limit, no goal
    found = sensitivity(problem, solve(problem, replace(options, formulation=capped)), time_limit_s=20)
    for there in found.changes:
        for energy_j in (there.optimum_j, there.least_alternative_j):
            assert energy_j is None or energy_j <= limit_j * (1 + 1e-6)
    assert any(there.energy_j > limit_j for there in found.changes)  # or nothing was held
    assert any(there.optimum_j is not None for there in found.changes)


def _written(plan: Plan) -> int:
    return sum(plan.problem.tensors[step.target].nbytes for step in plan.instructions if step.action == "page_out")


@pytest.mark.parametrize(
    ("power", "own", "other"),
    [(1e3, "recomputing alone", "paging alone"), (1e-3, "paging alone", "recomputing alone")],
)
def test_a_plain_plan_is_held_against_the_other_one(power: float, own: str, other: str) -> None:
    problem, ram_bytes = random_tight(random.Random(2), operators=6, training=True)
    problem = changed(problem, "storage power", power)
    for paging, remat in ((True, True), ALTERNATIVES[own]):
        options = Options(ram_bytes=ram_bytes, scope="full", time_limit_s=20, paging=paging, remat=remat)
        solution = solve(problem, options)
        assert solution.simulation is not None
        assert bool(solution.simulation.recomputes) is (own == "recomputing alone")
        assert bool(solution.simulation.page_ins) is (own == "paging alone")
        told: list[str] = []
        found = sensitivity(problem, solution, time_limit_s=20, told=told.append)
        if paging and remat:
            assert (own in told, other in told) == (False, True)
            assert found.advantage_j is not None
            assert found.advantage_j > 0
            assert {there.alternative for there in found.changes} == {other}
        else:  # what the options forbid is no alternative
            assert (own in told, other in told, found.advantage_j) == (False, False, None)


def test_a_plan_that_only_recomputes_hears_that_its_advantage_vanishes() -> None:
    problem, ram_bytes = random_tight(random.Random(2), operators=6, training=True)
    options = Options(ram_bytes=ram_bytes, scope="full", time_limit_s=20)
    alone = {
        name: solve(problem, replace(options, paging=paging, remat=remat)).simulation
        for name, (paging, remat) in ALTERNATIVES.items()
    }
    pages, recomputes = alone["paging alone"], alone["recomputing alone"]
    assert pages is not None
    assert recomputes is not None
    # the transfers' power at which paging is dearer by half: an eighth of that and it is cheaper, within the factors
    dear = changed(problem, "storage power", 1.5 * recomputes.overhead_j / pages.overhead_j)
    solution = solve(dear, options)
    found = sensitivity(dear, replace(solution, plan=_without_paging(dear, options)), time_limit_s=20)
    assert "advantage vanishes inside the uncertainty" in found.sentence
    assert "paging alone costs no more than it" in found.sentence


def _without_paging(problem: Problem, options: Options) -> Plan:
    plan = solve(problem, replace(options, paging=False)).plan
    assert plan is not None
    return plan


def test_what_is_open_is_told() -> None:
    proven = replace(change(1, 10, 10, None), bound_j=10.0)
    loose = replace(change(4, 10, 9, None), bound_j=5.0)
    assert (proven.open_share, proven.most_loss) == (0.0, 0.0)
    assert loose.open_share == pytest.approx(4 / 8)
    assert loose.most_loss == pytest.approx(1.0)
    found = Sensitivity((proven, loose), None)
    text = sensitivity_text(found)
    assert "with storage power x4 up to 50 % of" in text
    row = next(line for line in text.splitlines() if "x4 " in line)
    assert row.split("  ")[1:] != text.splitlines()[2].split("  ")[1:]
    assert all(figure in row for figure in ("8.00 J", "4.00 J", "11.1 %", "100 %"))
    assert "is open" not in sensitivity_text(Sensitivity((proven,), None))
    assert found.to_dict()["changes"][1]["open_share"] == loose.open_share  # type: ignore[index]


@pytest.mark.parametrize("seed", range(12))
def test_a_bound_of_one_device_holds_on_another(seed: int) -> None:
    rng = random.Random(seed)
    problem, ram_bytes = random_tight(rng, operators=4, training=True)
    best = plan_optimum(problem, ram_bytes)
    assert best is not None
    here = best.overhead_j
    for parameter in PARAMETERS:
        for factor in FACTORS:
            moved = changed(problem, parameter, factor)
            there = plan_optimum(moved, ram_bytes)
            assert there is not None
            bound = Bound(problem, None, here).there(moved, None)
            assert bound <= there.overhead_j + 1e-9
            assert bound >= min(factor, 1 / factor) * here - 1e-9
    late = Bound(problem, 5.0, 1.0)
    assert late.there(changed(problem, "CPU rate", 2.0), 5.0) == 0
    assert late.there(problem, 6.0) == 0
    assert late.there(problem, 5.0) == 1


def test_the_picture_is_always_the_same(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = Sensitivity((change(1, 10, 10, 12), change(0.5, 9, 8, 9)), 2.0)
    for name in ("one.svg", "two.svg"):
        save_sensitivity(found, "mlp on a72", tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_the_picture_marks_where_the_plan_is_late(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    here, late = change(1, 10, 10, 12), change(0.25, 10, 10, None, in_time=False)
    pictures = []
    for changes in ((here,), (here, late), (here, replace(late, optimum_j=None, loss=None))):
        save_sensitivity(Sensitivity(changes, 2.0), "mlp on a72", tmp_path / "one.svg")
        pictures.append((tmp_path / "one.svg").read_text(encoding="utf-8"))
    assert ["misses its deadline" in picture for picture in pictures] == [False, True, True]


def test_the_command_tells_writes_and_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = CliRunner().invoke(
        app,
        [
            "solve", "mlp", "--device", "a72", "--ram", "80%", "--scope", "depth:4", "--with",
            f"sensitivity={tmp_path / 's.png'}", "--json", str(tmp_path / "s.json"),
        ],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "If the device's figures are off" in result.output
    document = json.loads((tmp_path / "s.json").read_text())["sensitivity"]
    assert len(document["changes"]) == len(PARAMETERS) * len(FACTORS)
    assert document["sentence"] in result.output
    assert (tmp_path / "s.png").read_bytes().startswith(b"\x89PNG")


MEASURED = StorageProfile(
    page_in_latency_s=1e-6, page_in_bytes_per_s=3e9, page_out_latency_s=2e-7, page_out_bytes_per_s=2e9
)


def test_with_a_profile_the_share_of_the_storage_is_that_of_measured_transfers(tmp_path: Path) -> None:
    a72 = po.device("a72")
    assert a72.storage is not None
    assert a72.active_power_w is not None
    assert a72.storage.cpu_power_w == 0
    (tmp_path / "p.toml").write_text(Profile(storage=MEASURED).text(), encoding="utf-8")  # by the CPU
    command = [
        "solve", "mlp", "--device", "a72", "--ram", "90%", "--no-remat", "--with", "sensitivity",
        "--profile", str(tmp_path / "p.toml"), "--json", str(tmp_path / "s.json"),
    ]  # fmt: skip
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    changes = json.loads((tmp_path / "s.json").read_text())["sensitivity"]["changes"]
    overheads = {(c["parameter"], c["factor"]): c["energy_j"] - c["baseline_j"] for c in changes}
    here = overheads["storage power", 1.0]
    assert here > 0
    for factor in FACTORS:
        by_hand = (factor * a72.storage.power_w + a72.active_power_w) / (a72.storage.power_w + a72.active_power_w)
        assert overheads["storage power", factor] == pytest.approx(here * by_hand, rel=1e-6)


def test_transfers_are_timed_anew_and_only_deadlines_in_passes_follow_the_device() -> None:
    storage = Storage(1e-3, 20e6, 3e-3, 8e6, 0.5, 0.0, block_bytes=512)
    board = Device("board", "with DMA", 1 << 30, 1e9, dma=True, active_power_w=1.0, storage=storage)
    lenet = po.load("lenet")
    assert isinstance(lenet, po.Model)
    training = lenet.differentiate(maxima=False)  # with tensors that are large enough to be paged
    problem = training.cost(board)
    limit_s = 1.36 * problem.baseline_time_s
    solution = solve(problem, Options(ram_bytes=545_807, deadline_s=limit_s, scope="depth:4", threads=1))
    assert solution.plan is not None
    latencies = storage.page_in_latency_s, storage.page_out_latency_s
    fixed = sensitivity(problem, solution, time_limit_s=5, latencies_s=latencies)
    assert {change.deadline_s for change in fixed.changes} == {limit_s}
    found = {(change.parameter, change.factor): change for change in fixed.changes}
    slow = found["storage throughput", 0.25]
    there = replace(solution.plan, problem=changed(problem, *PARAMETERS[:1], 0.25, latencies_s=latencies))
    assert simulate(there).makespan_s > limit_s >= slow.makespan_s
    assert slow.retimed
    assert slow.in_time
    assert not found["CPU rate", 0.25].in_time
    assert found["CPU rate", 4.0].in_time
    assert "transfers timed anew" in sensitivity_text(fixed)
    passes = sensitivity(problem, solution, time_limit_s=5, latencies_s=latencies, relative_deadline=True)
    deadlines = {change.factor: change.deadline_s for change in passes.changes if change.parameter == "CPU rate"}
    assert deadlines == {factor: pytest.approx(limit_s / factor) for factor in FACTORS}
    text = sensitivity_text(passes)
    assert f"deadline {show_seconds(limit_s / 4)}" in text
    assert f"deadline {show_seconds(limit_s)}" not in text
