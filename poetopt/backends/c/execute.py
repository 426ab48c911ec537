"""Run a plan in C, and the unscheduled step on the same kernels, and compare both, and with onnxruntime."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from poetopt.autodiff.passes.rows import whole
from poetopt.backends.c.build import Built, build, write
from poetopt.backends.c.emulator import check_present
from poetopt.backends.c.execution import DeviceExecution
from poetopt.backends.c.program import DeviceProgram, device_program
from poetopt.backends.c.run import Ran, run
from poetopt.backends.c.sensitivity import TRIALS, Sensitivity, Steps, distance, moved_by, sensitivity
from poetopt.backends.c.targets import Target, compiler, target
from poetopt.backends.onnxruntime.batch import Batch, check_batch, load_batch, random_batch
from poetopt.backends.onnxruntime.execution import compare
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.backends.step.places import graph_of
from poetopt.graph import TrainingGraph
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, check_layout, lay_out
from poetopt.plan.simulate import simulate
from poetopt.plan.storeall import store_all, store_all_bytes
from poetopt.util.progress import Told, silent
from poetopt.util.scratch import scratch_folder

if TYPE_CHECKING:
    from poetopt.graph import Array


def execute_on(
    plan: Plan,
    on: str,
    *,
    graph: TrainingGraph | None = None,
    ram_bytes: int | None = None,
    data: Mapping[str, object] | str | os.PathLike[str] | None = None,
    seed: int = 0,
    stack_bytes: int | None = None,
    told: Told = silent,
) -> DeviceExecution:
    """Emit `plan`, compile it, run it on one batch, and check what it computes.

    on
        `host`, or a core that is emulated: `cortex-m4`, ...
    ram_bytes
        The budget for the arena; by default what the plan takes.
    data
        A batch, as for `execute`; by default a random one, drawn with `seed`.
    stack_bytes
        The stack that a bare board's program is linked with; by default what the device sets aside.

    Raises `PlanError` for a plan that isn't for the runtime c or breaks its budget, `UnsupportedOpError` where a kernel
    is missing, `BackendUnavailableError` where compiler or emulator are, `ExecutionError` where the step fails.
    """
    chosen_target = target(on, "--on")
    chosen = graph_of(plan, graph)
    program = device_program(plan, chosen)
    simulation = simulate(plan, ram_bytes=ram_bytes)
    check_layout(plan, ram_bytes)
    if chosen_target.bare:
        check_present()
    batch = _batch(chosen, data, seed)
    with scratch_folder("c") as folder:
        told(f"compiling for {on}")
        scheduled = _built(program, chosen_target, Path(folder, "scheduled"), stack_bytes)
        told("compiling the step that computes everything once")
        once = device_program(unscheduled(plan), chosen)
        plain = _built(once, chosen_target, Path(folder, "whole"), stack_bytes)
        told(f"running the schedule on {on}")
        mine = run(scheduled, batch)
        told("running the step that computes everything once")
        theirs = run(plain, batch)
        told("the same step on onnxruntime, and how far one ulp moves it")
        reference = measured_reference(chosen, batch)
        by_operator = instructions_by_operator(scheduled, mine)
    names = tuple(row.name for row in program.results)
    kept = (*names, *(row.name for row in program.parameters))
    comparison = compare(mine.results, theirs.results, kept)
    if mine.again:
        comparison = comparison.joined(compare(mine.again, theirs.results, kept))
    arena, went = arena_bytes(plan), moved(chosen, mine.results)
    return DeviceExecution(
        on=on,
        compiler=scheduled.compiler.name,
        bit_identical=comparison.identical,
        different=comparison.different,
        gradients=len(chosen.gradients or chosen.trained),
        statistics=len(chosen.states),
        max_abs_diff=comparison.max_abs_diff,
        distance=distance(went, reference.exact, tuple(went)),
        sensitivity=reference.together,
        far=reference.far(went),
        budget_bytes=arena if ram_bytes is None else ram_bytes,
        arena_bytes=arena,
        resident_bytes=program.resident.nbytes,
        kernel_workspace_bytes=0,
        measured_peak_bytes=arena,
        linked_ram_bytes=scheduled.sizes.ram_bytes if scheduled.sizes else None,
        stack_bytes=mine.stack_bytes,
        code_bytes=scheduled.sizes.code_bytes if scheduled.sizes else None,
        instructions=mine.instructions,
        store_all_peak_bytes=store_all_bytes(plan.problem),
        step_s=mine.step_s,
        store_all_step_s=theirs.step_s,
        fused_step_s=None,
        bytes_paged=simulation.bytes_paged,
        bytes_streamed=simulation.bytes_streamed,
        loss=float(mine.results[chosen.loss].reshape(-1)[0]),
        by_operator=by_operator,
        results={name: mine.results[name] for name in kept},
        batch=batch,
    )


def unscheduled(plan: Plan) -> Plan:
    """The plan that computes everything once, plain."""
    return lay_out(store_all(replace(plan.problem, closing_ram_bytes=None)))


def moved(graph: TrainingGraph, results: Mapping[str, Array]) -> Mapping[str, Array]:
    """What a step makes of a batch: the gradients or, where it updates parameters by them, how far these move."""
    if graph.gradients:
        return {name: results[f"{name}.grad"] for name in graph.gradients}
    return moved_by(graph, whole(graph), results)


def measured_reference(graph: TrainingGraph, batch: Batch) -> Sensitivity:
    """What the step makes of a batch on onnxruntime, node by node, and how far one ulp moves that."""
    sessions = Sessions(graph, 1)
    shown = {made: f"{name}.grad" for name, made in graph.gradients.items()}
    shown |= {new: name for name, new in graph.joint.carried.items() if name in graph.trained}
    exact, *near = (
        {shown[name]: array for name, array in Steps(graph, sessions, seed).take(batch).items() if name in shown}
        for seed in (None, *range(TRIALS))
    )
    went = moved(graph, exact)
    return sensitivity(went, [moved(graph, one) for one in near], went if graph.gradients else exact)


def instructions_by_operator(built: Built, ran: Ran) -> Mapping[str, int]:
    """How many instructions each operator took, what it calls of libraries included; nothing on this machine."""
    if ran.counts is None:
        return {}
    names = built.program.operator_names
    return {name: int(row[0]) for name, row in zip(names, ran.counts, strict=False) if row[0]}


def _built(program: DeviceProgram, chosen: Target, folder: Path, stack_bytes: int | None) -> Built:
    compiler(chosen)  # nothing is written where there is none
    write(program, chosen, folder)
    return build(program, chosen, folder, stack_bytes=stack_bytes)


def _batch(graph: TrainingGraph, data: Mapping[str, object] | str | os.PathLike[str] | None, seed: int) -> Batch:
    if data is None:
        return random_batch(graph.whole, seed)
    return check_batch(graph.whole, data if isinstance(data, Mapping) else load_batch(data, graph.whole))
