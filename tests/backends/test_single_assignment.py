"""A plan as one ONNX graph: the same bits on onnxruntime, the plan's memory, and what a runtime undoes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import poetopt as po
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.backends.step.single_assignment import AGAIN, single_assignment
from poetopt.frontends.proto import model_proto, save_model
from poetopt.plan.assemble import plan_of
from poetopt.plan.instructions import Action, Plan
from poetopt.search.heuristics.greedy import greedy
from poetopt.util.errors import PlanError
from tests.cli.support import Runner, chain, runner, write_problem

CASES = [("resnet8", "none", 0.55), ("bert-tiny", "none", 0.6), ("mobilenetv1-025", "adam", 0.7)]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runner:
    return runner(capsys)


@cache
def plan(model: str, optimizer: str, share: float, paging: bool) -> Plan:
    """A schedule in that share of what ordinary training takes."""
    problem = po.load(model, batch=2).differentiate(optimizer=optimizer).cost("a72")
    schedule = greedy(problem, int(share * po.store_all_peak_bytes(problem)), paging=paging, remat=True)
    assert schedule is not None
    return plan_of(problem, schedule)


def products(model: onnx.ModelProto) -> int:
    return sum(node.op_type in ("MatMul", "Gemm") for node in model.graph.node)


def session(model: onnx.ModelProto, **more: Any) -> onnxruntime.InferenceSession:
    """As the documentation says: nothing is optimised, and the order is the graph's."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    for key, value in more.items():
        setattr(options, key, value)
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("paging", [False, True])
@pytest.mark.parametrize(("model", "optimizer", "share"), CASES)
def test_onnxruntime_has_the_same_bits(model: str, optimizer: str, share: float, paging: bool) -> None:
    found = plan(model, optimizer, share, paging)
    graph = found.problem.graph
    assert graph is not None
    written = single_assignment(found)
    assert written.recomputes + len(written.kept) > 0
    proto = model_proto(written.graph)
    onnx.checker.check_model(proto, full_check=True)
    feeds = dict(random_batch(graph, 0))
    if optimizer != "none":
        feeds |= {"lr": np.array(0.01), "step": np.array(3)}
    expected, made = session(model_proto(graph)), session(proto)
    assert [one.name for one in made.get_outputs()] == [one.name for one in expected.get_outputs()]
    for mine, theirs in zip(made.run(None, feeds), expected.run(None, feeds), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(("model", "optimizer", "share"), CASES)
def test_without_paging_it_takes_what_the_plan_takes(model: str, optimizer: str, share: float) -> None:
    found = plan(model, optimizer, share, False)
    written = single_assignment(found)
    assert written.kept == ()
    assert written.peak_bytes == po.simulate(found).peak_bytes
    computes = [step for step in found.instructions if step.action is Action.COMPUTE]
    scheduled = [operator for operator in written.graph.operators if not operator.view]
    assert [o.name.partition(AGAIN)[0] for o in scheduled] == [found.problem.operators[s.target].name for s in computes]


def test_what_is_paged_stays_in_ram() -> None:
    found = plan(*CASES[0], True)
    written = single_assignment(found)
    assert written.kept
    kept = [step for step in found.instructions if step.action not in (Action.PAGE_OUT, Action.PAGE_IN)]
    assert written.peak_bytes > po.simulate(found).peak_bytes
    assert len([o for o in written.graph.operators if not o.view]) == sum(s.action is Action.COMPUTE for s in kept)


def test_a_runtime_that_merges_equal_nodes_undoes_recomputes(tmp_path: Path) -> None:
    """Why optimisation has to be off: onnxruntime's basic level merges each copy with its first."""
    written = single_assignment(plan("bert-tiny", "none", 0.6, False))
    optimized = tmp_path / "optimized.onnx"
    session(
        model_proto(written.graph),
        graph_optimization_level=onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
        optimized_model_filepath=str(optimized),
    )
    plain = products(model_proto(written.graph))
    assert products(onnx.load(optimized)) < plain
    session(model_proto(written.graph), optimized_model_filepath=str(optimized))
    assert products(onnx.load(optimized)) == plain


def test_the_command_and_the_call(run: Runner, tmp_path: Path) -> None:
    report = po.solve("lenet", device="a72", batch=2, ram="100%")
    report.save(tmp_path / "plan.json")
    told = run("schedule", tmp_path / "plan.json", "-o", tmp_path / "step.onnx", "--json", "-").document
    written = po.write_schedule(report, tmp_path / "again.onnx")
    assert {**written.to_dict(), "path": told["path"]} == told
    assert (tmp_path / "again.onnx").read_bytes() == (tmp_path / "step.onnx").read_bytes()
    graph = report.problem.graph
    assert graph is not None
    save_model(graph, tmp_path / "grad.onnx")
    assert told["nodes"] == len(onnx.load(tmp_path / "grad.onnx").graph.node)
    execution = po.execute(report)
    made = session(onnx.load(tmp_path / "step.onnx"))
    found = dict(zip([one.name for one in made.get_outputs()], made.run(None, dict(execution.batch)), strict=True))
    for name, value in execution.results.items():
        np.testing.assert_array_equal(found[name], value)


def test_what_has_no_network_is_refused(run: Runner, tmp_path: Path) -> None:
    report = po.solve(write_problem(tmp_path / "chain.json", chain()), device="a72", ram="100%")
    with pytest.raises(PlanError, match="the plan is of a problem file"):
        po.write_schedule(report, tmp_path / "step.onnx")
    run("schedule", tmp_path / "none.json", "-o", tmp_path / "s.onnx").assert_one_message("no such file", code=2)
    assert not (tmp_path / "step.onnx").exists()
