"""Plans of all kinds executed, against ordinary training of the same graph."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

import poetopt as po
from poetopt.backends.onnxruntime import Execution, execute, random_batch, save_results
from poetopt.backends.onnxruntime.execution import compare
from poetopt.backends.onnxruntime.executor import store_all_program
from poetopt.backends.onnxruntime.reference import NodeByNode
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.backends.step.memory import MappedBlock
from poetopt.backends.step.program import Program
from poetopt.backends.step.region import ResidentRegion, slots
from poetopt.backends.step.storage import PageFile
from poetopt.frontends import load
from poetopt.plan.assemble import plan_of, store_all_bytes
from poetopt.plan.instructions import Action, Plan
from poetopt.plan.layout import arena_bytes, buffers, check_layout, lay_out
from poetopt.plan.schedule import Schedule
from poetopt.plan.simulate import simulate
from poetopt.util.errors import OptionError, OutputError, PlanError
from tests.seeds import turns
from tests.support.backends import NETWORKS, dropout, embedding, problem, problem_of, store_all
from tests.support.frontends import floats, model_of
from tests.support.problems import random_plan

KEYS = {
    "bit_identical", "gradients", "max_abs_diff", "budget_bytes", "arena_bytes", "kernel_workspace_bytes",
    "measured_peak_bytes", "store_all_peak_bytes", "step_s", "store_all_step_s", "fused_step_s", "bytes_paged",
    "transfer_s", "high_water_bytes",
}  # fmt: skip


@cache
def executed(name: str) -> Execution:
    """Of a network's plan that stores all."""
    return execute(store_all(problem(name)))


def passed(execution: Execution) -> None:
    assert execution.message == ""
    assert execution.ok
    assert execution.bit_identical
    assert execution.max_abs_diff == 0
    assert execution.different == ()
    assert execution.loss is not None
    assert math.isfinite(execution.loss)


def test_a_step_holds_no_more_than_the_plan_reserves(monkeypatch: pytest.MonkeyPatch) -> None:
    """LeNet's convolutions take scratch memory of many sizes, which an allocator keeps unless it is told otherwise."""
    report = po.solve(po.load("lenet").differentiate().cost("a72"), ram=540_000, time_limit=10)
    assert report.plan is not None
    reserve = report.problem.reserve_bytes
    found = po.execute(report)
    if found.high_water_bytes is None or found.measured_peak_bytes is None:
        pytest.skip("this platform doesn't say what is resident")
    assert found.measured_peak_bytes <= found.high_water_bytes <= found.arena_bytes + reserve
    monkeypatch.setattr(Sessions, "give_back", staticmethod(lambda: None))
    kept = po.execute(report)
    assert kept.bit_identical
    assert kept.high_water_bytes is not None
    assert kept.high_water_bytes > kept.arena_bytes + reserve


@pytest.mark.parametrize(("op", "opset"), [("HardSwish", 18), ("Mish", 18), ("Swish", 24)])
def test_an_expanded_op_holds_no_more_than_its_reserve(op: str, opset: int) -> None:
    """onnxruntime has no kernel for these: it runs several, whose temporaries are as large as the output."""
    nodes = [
        helper.make_node("Mul", ["x", "s"], ["k"]), helper.make_node(op, ["k"], ["h"]),
        helper.make_node("ReduceMean", ["h", "axes"], ["m"], keepdims=0), helper.make_node("MatMul", ["m", "w"], ["y"]),
    ]  # fmt: skip
    weights = {"s": floats(24, 1, 1), "w": floats(24, 10), "axes": np.array([2, 3])}
    model = model_of(nodes, {"x": [4, 24, 64, 64]}, ["y"], weights, opset=opset, ir_version=10)
    report = po.solve(model, device="a72", ram="100%")
    passed(po.execute(report))


def test_the_step_that_time_is_compared_with_stores_all_and_computes_the_same() -> None:
    found = problem("residual")
    graph = found.graph
    assert graph is not None
    plan = lay_out(random_plan(random.Random(5), found))
    sessions, region, batch = Sessions(graph), ResidentRegion.of(graph), random_batch(graph)
    names = (graph.loss, *graph.gradients.values(), *graph.states.values())
    with PageFile(slots(plan)) as pages:
        compared = store_all_program(Program(plan, graph, MappedBlock(arena_bytes(plan)), region, sessions, pages))
    assert compared.arena.nbytes == store_all_bytes(found) - found.reserve_bytes
    assert {step.action for step in compared.plan.instructions} == {Action.COMPUTE, Action.FREE}
    compared.run_checked(batch)
    theirs = NodeByNode(graph, sessions, region.given, names).run(batch)
    assert compare({name: compared.result(name) for name in names}, theirs, names).identical


@pytest.mark.parametrize("name", NETWORKS)
def test_store_all(name: str) -> None:
    found = problem(name)
    plan = store_all(found)
    execution = executed(name)
    passed(execution)
    graph = found.graph
    assert graph is not None
    assert execution.gradients == len(graph.trained)
    assert execution.statistics == len(graph.states)
    assert execution.store_all_peak_bytes == store_all_bytes(found)
    assert execution.arena_bytes == arena_bytes(plan)
    assert execution.budget_bytes == execution.store_all_peak_bytes
    assert execution.bytes_paged == 0
    assert execution.results.keys() == {"loss", *(f"{name}.grad" for name in graph.trained)}
    if execution.measured_peak_bytes is not None:
        assert execution.arena_bytes <= execution.measured_peak_bytes <= execution.budget_bytes
    document = execution.to_dict()
    assert document.keys() >= KEYS
    assert json.loads(json.dumps(document, allow_nan=False)) == document


@pytest.mark.parametrize(
    ("name", "seed"), [(name, seed) for place, name in enumerate(NETWORKS) for seed in turns(place, range(3))]
)
def test_any_valid_plan(name: str, seed: int, tmp_path: Path) -> None:
    """Wasteful plans: recomputes of anything at any time, pages of anything, frees as early or late as is valid."""
    found = problem(name)
    plan = lay_out(random_plan(random.Random(seed), found, length=100))
    execution = execute(plan, seed=seed, workdir=tmp_path)
    assert execution.bit_identical, execution.message
    assert execution.bytes_paged == simulate(plan).bytes_paged
    assert (execution.transfer_s > 0) == (execution.bytes_paged > 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["lenet", "residual", "dropout"])
def test_recompute_and_page(name: str, tmp_path: Path) -> None:
    """Every recomputable operator again right before the last that reads its output; inputs and masks paged."""
    found = problem(name)
    page_ins: set[tuple[int, int]] = set()
    again: set[tuple[int, int]] = set()
    for tensor, readers in enumerate(found.readers):
        producer = found.tensors[tensor].producer
        if not readers or readers[-1] <= found.last_forward or producer > found.last_forward:
            continue
        if producer < 0 or not found.operators[producer].recomputable:
            page_ins.add((readers[-1], tensor))
        elif len(readers) > 1:
            again.add((readers[-1], producer))
            page_ins.update((readers[-1], i) for i in found.operators[producer].inputs if i in found.at_start)
    assert again
    schedule = Schedule(frozenset(again), frozenset(page_ins))
    plan = lay_out(plan_of(found, schedule))
    assert simulate(plan).recomputes == len(again)
    assert simulate(plan).page_ins
    passed(execute(plan, ram_bytes=arena_bytes(plan) + found.reserve_bytes, workdir=tmp_path))


def test_dropout_draws_the_same_masks_every_time() -> None:
    found = problem_of(load(dropout()))
    plan = store_all(found)
    first, second = execute(plan), execute(plan)
    passed(first)
    assert first.fused_bit_identical
    assert compare(first.results, second.results, tuple(first.results)).identical
    graph = found.graph
    assert graph is not None
    masks = [t.name for t in graph.tensors.values() if t.dtype == "bool" and t.name.endswith(".mask")]
    values = NodeByNode(graph, Sessions(graph), graph.values, masks).run(random_batch(graph))
    assert len(masks) == 2
    assert not np.array_equal(values[masks[0]], values[masks[1]])


@pytest.mark.parametrize("loss", ["cross-entropy", "mse"])
def test_losses_and_indices(loss: str) -> None:
    passed(execute(store_all(problem_of(load(embedding()), loss)), seed=5))


def test_the_unscheduled_gradients_are_those_of_one_session() -> None:
    assert executed("mlp").fused_bit_identical


def test_more_threads_compute_the_same() -> None:
    plan = store_all(problem("mlp"))
    execution = execute(plan, threads=2)
    assert execution.bit_identical
    assert execution.threads == 2
    with pytest.raises(OptionError, match="--threads 0"):
        execute(plan, threads=0)


# --- what must be noticed ------------------------------------------------------------------------------


def test_overlapping_offsets_are_refused_and_would_be_noticed() -> None:
    """A plan whose buffers overlap is refused on paper; run all the same, it computes something else."""
    plan = store_all(problem("lenet"))
    found = list(buffers(plan))
    live = [k for k, buffer in enumerate(found) if buffer.nbytes and buffer.first >= 0 and not buffer.workspace]
    first = next(k for k in live if found[k].last - found[k].first > 4)
    second = next(k for k in live if found[first].first < found[k].first < found[first].last)
    offsets = list(plan.offsets)
    offsets[second] = offsets[first]
    broken = replace(plan, offsets=tuple(offsets))
    with pytest.raises(PlanError, match="overlap"):
        execute(broken)
    assert not _identical(broken)
    assert _identical(plan)


def _identical(plan: Plan) -> bool:
    """Whether a plan that nobody checked gives the gradients of ordinary training."""
    graph = plan.problem.graph
    assert graph is not None
    region, sessions, batch = ResidentRegion.of(graph), Sessions(graph), random_batch(graph)
    names = (graph.loss, *graph.gradients.values())
    with PageFile({}) as pages:
        program = Program(plan, graph, MappedBlock(arena_bytes(plan)), region, sessions, pages)
        program.run_checked(batch)
    theirs = NodeByNode(graph, sessions, region.given, names).run(batch)
    return compare({name: program.result(name) for name in names}, theirs, names).identical


def test_freed_bytes_are_poisoned() -> None:
    """What the plan has freed is not there any more when the checked step ends."""
    plan = store_all(problem("residual"))
    graph = plan.problem.graph
    assert graph is not None
    arena = MappedBlock(arena_bytes(plan))
    with PageFile({}) as pages:
        Program(plan, graph, arena, ResidentRegion.of(graph), Sessions(graph), pages).run_checked(random_batch(graph))
    kept = np.zeros(arena.nbytes, bool)
    for buffer in buffers(plan):
        if buffer.last == len(plan.instructions) - 1 and plan.instructions[-1].action is not Action.FREE:
            kept[buffer.offset : buffer.offset + buffer.nbytes] = True
    assert (arena.bytes[~kept] == 0xFF).all()


def test_plans_that_can_t_be_executed() -> None:
    plan = store_all(problem("mlp"))
    with pytest.raises(PlanError, match="a problem file, which has no network to execute"):
        execute(replace(plan, problem=replace(plan.problem, graph=None)))
    with pytest.raises(PlanError, match="Lay it out first"):
        execute(replace(plan, offsets=()))
    with pytest.raises(PlanError, match="more than the RAM budget"):
        execute(plan, ram_bytes=simulate(plan).peak_bytes - 1)
    with pytest.raises(PlanError, match="solve the model again"):
        execute(plan, graph=problem("lenet").graph)
    with pytest.raises(PlanError, match="B for what kernels allocate"):
        execute(replace(plan, problem=replace(plan.problem, reserve_bytes=0)))
    cut = replace(plan, instructions=plan.instructions[:-3])
    with pytest.raises(PlanError, match="Every operator must be computed"):
        execute(cut)


def test_the_reserve_is_not_the_arena_s() -> None:
    """An arena that leaves no room for kernels is refused, though it fits the budget."""
    plan = store_all(problem("lenet"))
    reserve = plan.problem.reserve_bytes
    assert reserve > 0
    peak = simulate(plan).peak_bytes
    shifted = replace(plan, offsets=tuple(offset + reserve // 64 * 64 for offset in plan.offsets))
    check_layout(shifted, peak)
    with pytest.raises(PlanError, match="ends at byte"):
        execute(shifted, ram_bytes=peak)


# --- data and dumps ------------------------------------------------------------------------------------


def test_a_dump_can_be_the_data_of_another_run(tmp_path: Path) -> None:
    plan = store_all(problem("mlp"))
    first = execute(plan, seed=9)
    place = tmp_path / "step.npz"
    save_results(first, place)
    with np.load(place) as archive:
        names = set(archive.files)
        assert archive["loss"].shape == ()
    assert names == {"input", "labels", *first.results}
    second = execute(plan, data=place)
    assert compare(first.results, second.results, tuple(first.results)).identical
    assert second.loss == first.loss


def test_an_unwritable_dump(tmp_path: Path) -> None:
    execution = executed("mlp")
    with pytest.raises(OutputError, match="can't write"):
        save_results(execution, tmp_path / "missing" / "step.npz")
    assert list(tmp_path.iterdir()) == []
