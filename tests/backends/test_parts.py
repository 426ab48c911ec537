"""A program is the plan's instructions bound to addresses, and runs on whatever kernels it is given."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.backends.onnxruntime.executor import execute
from poetopt.backends.step.memory import MappedBlock
from poetopt.backends.step.places import check_belongs
from poetopt.backends.step.program import Program
from poetopt.backends.step.region import ResidentRegion, slots
from poetopt.backends.step.storage import PageFile
from poetopt.devices import cost, device
from poetopt.graph import Node, TrainingGraph
from poetopt.graph.problem import Problem
from poetopt.ops.runtimes.contract import Runtime
from poetopt.ops.runtimes.onnxruntime import OnnxRuntime
from poetopt.ops.runtimes.onnxruntime import runtime as onnxruntime
from poetopt.plan.instructions import Action, Plan
from poetopt.plan.layout import arena_bytes, lay_out
from poetopt.util.errors import PlanError
from tests.backends.reference import ReferenceKernels
from tests.backends.support import problem
from tests.problems import random_plan


class Tight(OnnxRuntime):
    """Nothing is written over, nothing is allocated, buffers lie close together."""

    name = "tight"
    alignment = 8

    def in_place(self, node: Node) -> tuple[int, ...]:
        return ()

    def reserve_bytes(self, kernels: int) -> int:
        return 0


def graph_of(found: Problem) -> TrainingGraph:
    assert found.graph is not None
    return found.graph


def wasteful(found: Problem, seed: int) -> Plan:
    """A valid plan with recomputes and transfers at random places."""
    return lay_out(random_plan(random.Random(seed), found, length=40))


class Recorder:
    """Kernels that note what they are bound to, and do nothing."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.nodes: list[tuple[Node, Mapping[str, int]]] = []

    def bound(self, node: Node, addresses: Mapping[str, int], shapes: object = None) -> Callable[[], object]:
        self.nodes.append((node, addresses))
        return lambda: None

    def draws(self, node: Node) -> bool:
        return False

    def freed(self) -> None:
        return None

    def give_back(self) -> Callable[[], object]:
        return self.freed

    def errors(self) -> tuple[type[Exception], ...]:
        return ()

    def reason(self, error: BaseException) -> str:
        return ""


def bound(plan: Plan, graph: TrainingGraph, kernels: Recorder) -> Program:
    with PageFile(slots(plan)) as pages:
        return Program(plan, graph, MappedBlock(arena_bytes(plan)), ResidentRegion.of(graph), kernels, pages)


@pytest.mark.parametrize("runtime", [onnxruntime, Tight()], ids=lambda runtime: runtime.name)
@pytest.mark.parametrize("name", ["mlp", "residual"])
def test_the_acts_are_the_plans_instructions(name: str, runtime: Runtime) -> None:
    """Each COMPUTE runs its nodes but for views, each transfer moves its tensor, each place lies in the arena."""
    graph = graph_of(problem(name))
    found = cost(graph, device("a72"), runtime)
    plan, kernels = wasteful(found, 3), Recorder(runtime)
    program = bound(plan, graph, kernels)
    calls = [call for call in program.calls if call.act != kernels.freed]
    assert [call.number for call in calls] == sorted(call.number for call in calls)
    nodes, low, size = iter(kernels.nodes), program.arena.address, arena_bytes(plan)
    held = {program.region.address(root) for root in program.places.resident}
    for number, instruction in enumerate(plan.instructions):
        mine = [call for call in calls if call.number == number]
        if instruction.action is not Action.COMPUTE:
            assert [call.moves for call in mine] == [True] * (instruction.action is not Action.FREE)
            continue
        operator = program.places.operators[found.operators[instruction.target].name]
        views = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")
        run = [next(nodes) for _ in mine]
        kept = [node for node, _ in run]
        assert [node for node in operator.nodes if node in kept] == kept
        assert all(node.op_type in views for node in operator.nodes if node not in kept)
        for _, addresses in run:
            for tensor, address in addresses.items():
                if low <= address < low + size:
                    assert graph.root(tensor) not in program.places.resident
                    assert address <= low + size - graph.tensors[tensor].nbytes
                    assert (address - low) % runtime.alignment == 0
                else:
                    assert address in held
    assert next(nodes, None) is None


def test_memory_is_given_back_only_where_kernels_could_pass_the_reserve() -> None:
    found, recorder = problem("lenet"), Recorder(onnxruntime)
    graph = graph_of(found)
    plan = wasteful(found, 1)
    program = bound(plan, graph, recorder)
    kernels = {o.name: onnxruntime.workspace(o, graph.tensors).kernel_bytes for o in graph.operators if not o.view}
    room = found.reserve_bytes - onnxruntime.reserve_bytes(0)
    needs = [
        need
        for step in plan.instructions
        if step.action is Action.COMPUTE
        for need in kernels[found.operators[step.target].name]
    ]
    times, taken = 0, 0
    for need in needs:
        if taken and taken + need > room:
            times, taken = times + 1, 0
        taken += need
    assert times == sum(call.act == recorder.freed for call in program.calls) > 0


def ran(
    plan: Plan, graph: TrainingGraph, runtime: Runtime, batch: Mapping[str, NDArray[Any]]
) -> Mapping[str, NDArray[Any]]:
    """What the step leaves behind, run with freed bytes poisoned on onnx's reference kernels."""
    with PageFile(slots(plan)) as pages:
        program = Program(
            plan,
            graph,
            MappedBlock(arena_bytes(plan)),
            ResidentRegion.of(graph),
            ReferenceKernels(graph, runtime),
            pages,
        )
        program.run_checked(batch)
        names = (graph.loss, *graph.gradients.values())
        return {name: program.result(name).copy() for name in names}


@pytest.mark.parametrize("runtime", [onnxruntime, Tight()], ids=lambda runtime: runtime.name)
def test_a_program_runs_on_kernels_of_another_runtime(runtime: Runtime) -> None:
    graph = graph_of(problem("mlp"))
    plan = wasteful(cost(graph, device("a72"), runtime), 5)
    assert {Action.PAGE_IN, Action.PAGE_OUT} <= {step.action for step in plan.instructions}
    batch = random_batch(graph, 2)
    found = ran(plan, graph, runtime, batch)
    wanted: Mapping[str, Any] = execute(wasteful(problem("mlp"), 5), data=batch).results
    np.testing.assert_allclose(found[graph.loss], wanted["loss"], rtol=1e-5)
    for name, made in graph.gradients.items():
        np.testing.assert_allclose(found[made], wanted[f"{name}.grad"], rtol=1e-4, atol=1e-6)


def test_a_plan_of_another_runtime_is_refused() -> None:
    """It reserves nothing for kernels, and onnxruntime's allocate."""
    graph = graph_of(problem("residual"))
    found = cost(graph, device("a72"), Tight())
    check_belongs(graph, found, Tight(), "plan.json")
    with pytest.raises(PlanError, match="solve the model again"):
        check_belongs(graph, found, onnxruntime, "plan.json")


def test_a_step_needs_no_onnxruntime() -> None:
    code = """if True:
        import sys
        import poetopt.backends.step.places, poetopt.backends.step.slices, poetopt.backends.step.program
        step = "poetopt.backends.step"
        others = [name for name in sys.modules if name.startswith("poetopt.backends.") and not name.startswith(step)]
        print([*others, *(name for name in sys.modules if "onnxruntime" in name)])
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
