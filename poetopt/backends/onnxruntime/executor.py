"""Run a plan inside one arena, and ordinary training for comparison, and compare them bit by bit."""

from __future__ import annotations

import os
import platform
import time
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from poetopt.autodiff.passes.rows import whole
from poetopt.backends.onnxruntime.batch import Batch, batch_of
from poetopt.backends.onnxruntime.execution import Execution, compare
from poetopt.backends.onnxruntime.measure import Stopwatch, alternate, memory_beside
from poetopt.backends.onnxruntime.prepared import Prepared
from poetopt.backends.onnxruntime.reference import Fused, NodeByNode, reference_of
from poetopt.backends.onnxruntime.sessions import Sessions, onnxruntime
from poetopt.backends.onnxruntime.stepping import ScheduledStep
from poetopt.backends.step.memory import MappedBlock
from poetopt.backends.step.parted import Parted, program_of
from poetopt.backends.step.places import graph_of
from poetopt.backends.step.program import Program
from poetopt.backends.step.region import ResidentRegion
from poetopt.graph import TrainingGraph
from poetopt.plan.assemble import store_all, store_all_bytes
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, lay_out, taken_bytes
from poetopt.util.errors import ExecutionError
from poetopt.util.progress import Told, paced, silent

if TYPE_CHECKING:
    from poetopt.graph import Array


def execute(
    plan: Plan,
    *,
    graph: TrainingGraph | None = None,
    ram_bytes: int | None = None,
    data: Mapping[str, object] | str | os.PathLike[str] | None = None,
    seed: int = 0,
    workdir: str | os.PathLike[str] | None = None,
    threads: int = 1,
    told: Told = silent,
) -> Execution:
    """Execute `plan` on onnxruntime and check it against ordinary training on the same batch.

    Parameters
    ----------
    plan
        Plan with offsets, of a problem that was made from a training graph.
    graph
        That graph; by default the one in the plan's problem.
    ram_bytes
        Budget for arena and kernels; by default what the plan needs.
    data
        Batch: arrays by input name, or an `.npz` file of them; by default a random one, drawn with `seed`.
    workdir
        Folder of the paging file during the execution; by default the system's temporary folder.
    threads
        Threads of each session. The plan's reserve for kernels holds for one thread only.
    told
        Called with the next piece of work, never while a clock runs.

    Returns
    -------
    Execution
        A failed comparison raises nothing: see `Execution.ok`.

    Raises
    ------
    PlanError
        The plan can't be executed, or exceeds the budget by its own figures.
    ModelError
        The data don't fit the network's inputs.
    ExecutionError
        A kernel or the storage fails.
    """
    training_graph, problem = graph_of(plan, graph), plan.problem
    joint = training_graph.joint
    names = joint.results
    prepared = Prepared(plan, training_graph, whole(joint), {})
    with ScheduledStep(prepared, ram_bytes=ram_bytes, workdir=workdir, threads=threads, told=told) as step:
        program, sessions, simulation = step.program, step.sessions, step.simulation
        batch = batch_of(training_graph.whole, data, seed)
        whole_batch, batch = batch, program.carried.take(batch)
        told("running ordinary training for comparison")
        reference = reference_of(NodeByNode, training_graph, sessions, program.begun, names)

        def results() -> Mapping[str, Array]:
            return {name: program.result(name) for name in names}

        before = _checksum(program.region)
        ordinary = reference.run(batch)
        told("running the schedule with freed memory poisoned")
        program.run_checked(batch)
        if _checksum(program.region) != before:
            raise ExecutionError(
                "a kernel has overwritten a parameter or constant; please report it with the plan file"
            )
        comparison = compare(results(), ordinary, names)
        told("running the schedule again")
        program.load(batch)
        program.run()
        comparison = comparison.joined(compare(results(), ordinary, names))
        scheduled = {name: array.copy() for name, array in results().items()}
        times, waited_share, fused_identical = _time_steps(program, sessions, batch, names, scheduled, told)
        told("timing transfers")
        with Stopwatch() as clock:
            transfer_s = transfer_seconds(program, batch, clock)
        told("measuring the memory of the process in a step")
        load, arena = partial(program.load, batch), program.arena.nbytes
        memory = memory_beside(program.acts, load, arena, problem.reserve_bytes, paced(told))
    import onnx

    return Execution(
        **memory,
        bit_identical=comparison.identical,
        different=comparison.different,
        gradients=len(joint.gradients),
        statistics=len(joint.states),
        updated=len(joint.carried) - len(joint.states) - len(joint.sums),
        max_abs_diff=comparison.max_abs_diff,
        budget_bytes=taken_bytes(plan, simulation.peak_bytes) if ram_bytes is None else ram_bytes,
        arena_bytes=arena,
        store_all_peak_bytes=store_all_bytes(plan.problem),
        step_s=times["scheduled"],
        store_all_step_s=times["store_all"],
        fused_step_s=times["fused"],
        waited_share=waited_share,
        bytes_paged=simulation.bytes_paged,
        bytes_streamed=simulation.bytes_streamed,
        transfer_s=transfer_s,
        fused_bit_identical=fused_identical,
        outputs=len(joint.targets) if joint.forward_only else 0,
        loss=None if joint.forward_only else float(scheduled[joint.loss].reshape(-1)[0]),
        threads=threads,
        sessions=len(sessions),
        versions={
            "onnxruntime": str(onnxruntime().__version__),
            "onnx": onnx.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        results={shown: scheduled[name] for shown, name in joint.shown_results.items()},
        batch=whole_batch,
    )


def _checksum(region: ResidentRegion) -> tuple[int, ...]:
    """Return checksums of all tensors that a step must not write."""
    read_only = (array for name, array in region.given.items() if name not in region.first)
    return tuple(zlib.crc32(array.reshape(-1).view(np.uint8).data) for array in read_only)


def store_all_program(program: Program | Parted) -> Program | Parted:
    """Return the step that computes each operator once and moves nothing, in its own arena.

    It is the baseline of the schedule's time: kernels and bindings are the same, and only the schedule differs. (Node
    by
    node in memory of the runtime's, a step takes a fifth to a half longer.)
    """
    plan = lay_out(store_all(program.plan.problem))
    arena, kernels = MappedBlock(arena_bytes(plan)), program.kernels
    assert isinstance(kernels, Sessions)
    baseline = program_of(plan, program.graph, arena, program.region, kernels.of, program.pages)
    baseline.carried.used = program.carried.used
    return baseline


def _time_steps(
    program: Program | Parted,
    sessions: Sessions,
    batch: Batch,
    names: tuple[str, ...],
    scheduled: Mapping[str, Array],
    told: Told,
) -> tuple[Mapping[str, float], float, bool]:
    """Return median seconds of the three steps, the share of waiting, and whether the fused step is bit-identical."""
    rounds = count(1)
    pace = paced(told)

    def preparer(program_to_time: Program | Parted) -> Callable[[], Callable[[], object]]:
        def prepare() -> Callable[[], object]:
            pace(f"timing steps: run {next(rounds)}")
            program_to_time.load(batch)
            return program_to_time.run

        return prepare

    told("running the step as one session")
    fused = reference_of(Fused, program.graph, sessions, program.begun, names)
    is_identical = compare(scheduled, fused.run(batch), names).identical

    def prepare_fused() -> Callable[[], object]:
        fused.redraw()
        return lambda: fused.run(batch)

    steps = {"scheduled": preparer(program), "store_all": preparer(store_all_program(program)), "fused": prepare_fused}
    with Stopwatch() as clock:
        return alternate(steps, clock=clock), clock.share, is_identical


def transfer_seconds(program: Program | Parted, batch: Batch, clock: Stopwatch) -> float:
    """Return the median seconds that all transfers of one step take together, over up to nine steps."""
    transfers = program.transfers
    totals_s: list[float] = []
    start = time.perf_counter()
    # at most nine steps, or as many as begin within four seconds
    while transfers and len(totals_s) < 9 and (not totals_s or time.perf_counter() - start < 4.0):
        program.load(batch)
        totals_s.append(0.0)
        for k, act in enumerate(program.acts):
            if k in transfers:
                totals_s[-1] += clock.time(act)
            else:
                act()
    return median(totals_s) if totals_s else 0.0
