"""A step is data that no runtime is needed for, and a program runs on whatever kernels it is given."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.backends.onnxruntime.executor import execute
from poetopt.backends.step.memory import MappedBlock
from poetopt.backends.step.parts import GiveBack, PageTransfer, RunNode, instructed
from poetopt.backends.step.places import Places, check_belongs
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


@pytest.mark.parametrize("runtime", [onnxruntime, Tight()], ids=lambda runtime: runtime.name)
@pytest.mark.parametrize("name", ["mlp", "residual"])
def test_the_parts_are_the_plans_instructions(name: str, runtime: Runtime) -> None:
    """Each COMPUTE runs its nodes but for views, each transfer moves its tensor, each place lies in the arena."""
    graph = graph_of(problem(name))
    found = cost(graph, device("a72"), runtime)
    plan = wasteful(found, 3)
    places = Places(graph, found, runtime)
    step = list(instructed(plan, places))
    assert [one.number for one in step] == list(range(len(plan.instructions)))
    size = arena_bytes(plan)
    resident = {name for name in graph.tensors if graph.root(name) in places.resident}
    for one, instruction in zip(step, plan.instructions, strict=True):
        moved = [part for part in one.parts if isinstance(part, PageTransfer)]
        run = [part for part in one.parts if isinstance(part, RunNode)]
        assert [part.action for part in moved] == [instruction.action] * (
            instruction.action in (Action.PAGE_IN, Action.PAGE_OUT)
        )
        if instruction.action is not Action.COMPUTE:
            assert not run
            continue
        operator = places.operators[found.operators[instruction.target].name]
        views = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity")
        kept = [part.node for part in run]
        assert [node for node in operator.nodes if node in kept] == kept
        assert all(node.op_type in views for node in operator.nodes if node not in kept)
        for part in run:
            for tensor, place in part.places.items():
                assert place.root in places.resident or tensor not in resident
                assert place.root or 0 <= place.offset <= size - graph.tensors[tensor].nbytes
                assert place.offset % runtime.alignment == 0


def test_memory_is_given_back_only_where_kernels_could_pass_the_reserve() -> None:
    found = problem("lenet")
    graph = graph_of(found)
    plan = wasteful(found, 1)
    parts = [part for one in instructed(plan, Places(graph, found, onnxruntime)) for part in one.parts]
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
    assert times == sum(isinstance(part, GiveBack) for part in parts) > 0


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
        import poetopt.backends.step.places, poetopt.backends.step.parts, poetopt.backends.step.program
        step = "poetopt.backends.step"
        others = [name for name in sys.modules if name.startswith("poetopt.backends.") and not name.startswith(step)]
        print([*others, *(name for name in sys.modules if "onnxruntime" in name)])
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"
