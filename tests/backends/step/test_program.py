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
from tests.support.backends import problem
from tests.support.problems import random_plan
from tests.support.reference_kernels import ReferenceKernels


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
