"""Run a plan inside one arena, and ordinary training beside it, and compare bit by bit."""

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

    plan
        A plan with offsets, of a problem that was made of a training graph.
    graph
        That graph; by default the one in the plan's problem.
    ram_bytes
        The budget for arena and kernels; by default what the plan takes.
    data
        A batch: arrays by input name, or an `.npz` file of them; by default a random one, drawn with `seed`.
    workdir
        Where the paging file lies during the execution; by default the system's temporary folder.
    threads
        Threads of each session. What kernels allocate is only planned for one.
    told
        Called with what is done next, never while a clock runs.

    Raises `PlanError` for a plan that can't be executed or breaks the budget on paper, `ModelError` for data that don't
    fit, `ExecutionError` where a kernel or the storage fails. A failed comparison is no error: see `Execution.ok`.
    """
    chosen, problem = graph_of(plan, graph), plan.problem
    joint = chosen.joint
    names = joint.results
    made = Prepared(plan, chosen, whole(joint), {})
    with ScheduledStep(made, ram_bytes=ram_bytes, workdir=workdir, threads=threads, told=told) as step:
        program, sessions, simulation = step.program, step.sessions, step.simulation
        batch = batch_of(chosen.whole, data, seed)
        fed, batch = batch, program.carried.take(batch)
        told("ordinary training, to compare with")
        reference = reference_of(NodeByNode, chosen, sessions, program.begun, names)

        def results() -> Mapping[str, Array]:
            return {name: program.result(name) for name in names}

        before = _checksum(program.region)
        theirs = reference.run(batch)
        told("the schedule, with all that it frees poisoned")
        program.run_checked(batch)
        if _checksum(program.region) != before:
            raise ExecutionError(
                "a kernel has written over a parameter or constant; please report it with the plan file"
            )
        comparison = compare(results(), theirs, names)
        told("the schedule once more")
        program.load(batch)
        program.run()
        comparison = comparison.joined(compare(results(), theirs, names))
        mine = {name: array.copy() for name, array in results().items()}
        times, waited, fused_same = _race(program, sessions, batch, names, mine, told)
        told("timing transfers")
        with Stopwatch() as clock:
            transfer_s = transfer_seconds(program, batch, clock)
        told("measuring what the process holds in a step")
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
        waited_share=waited,
        bytes_paged=simulation.bytes_paged,
        bytes_streamed=simulation.bytes_streamed,
        transfer_s=transfer_s,
        fused_bit_identical=fused_same,
        outputs=len(joint.targets) if joint.forward_only else 0,
        loss=None if joint.forward_only else float(mine[joint.loss].reshape(-1)[0]),
        threads=threads,
        sessions=len(sessions),
        versions={
            "onnxruntime": str(onnxruntime().__version__),
            "onnx": onnx.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        results={shown: mine[name] for shown, name in joint.shown_results.items()},
        batch=fed,
    )


def _checksum(region: ResidentRegion) -> tuple[int, ...]:
    """Of all that a step may only read."""
    read = (array for name, array in region.given.items() if name not in region.first)
    return tuple(zlib.crc32(array.reshape(-1).view(np.uint8).data) for array in read)


def store_all_program(program: Program | Parted) -> Program | Parted:
    """The step that computes each operator once and moves nothing, in an arena of its own.

    It is what the schedule's time is to be compared with: the same kernels and bindings, and all that differs is the
    schedule. (Node by node in memory of the runtime's, a step takes a fifth to a half longer.)
    """
    plan = lay_out(store_all(program.plan.problem))
    arena, kernels = MappedBlock(arena_bytes(plan)), program.kernels
    assert isinstance(kernels, Sessions)
    made = program_of(plan, program.graph, arena, program.region, kernels.of, program.pages)
    made.carried.used = program.carried.used
    return made


def _race(
    program: Program | Parted,
    sessions: Sessions,
    batch: Batch,
    names: tuple[str, ...],
    mine: Mapping[str, Array],
    told: Told,
) -> tuple[Mapping[str, float], float, bool]:
    """Median seconds of the three steps, the share that was waiting, and whether the fused one gives the same bits."""

    rounds = count(1)
    pace = paced(told)

    def prepared(one: Program | Parted) -> Callable[[], Callable[[], object]]:
        def prepare() -> Callable[[], object]:
            pace(f"timing steps: run {next(rounds)}")
            one.load(batch)
            return one.run

        return prepare

    told("the step as one session")
    fused = reference_of(Fused, program.graph, sessions, program.begun, names)
    same = compare(mine, fused.run(batch), names).identical

    def whole() -> Callable[[], object]:
        fused.redraw()
        return lambda: fused.run(batch)

    steps = {"scheduled": prepared(program), "store_all": prepared(store_all_program(program)), "fused": whole}
    with Stopwatch() as clock:
        return alternate(steps, clock=clock), clock.share, same


def transfer_seconds(program: Program | Parted, batch: Batch, clock: Stopwatch) -> float:
    """Median seconds that all transfers of one step take together, over up to nine steps."""
    paged = program.transfers
    found: list[float] = []
    start = time.perf_counter()
    # transfers are timed in this many steps, or in as many as begin in this many seconds
    while paged and len(found) < 9 and (not found or time.perf_counter() - start < 4.0):
        program.load(batch)
        found.append(0.0)
        for k, act in enumerate(program.acts):
            if k in paged:
                found[-1] += clock.time(act)
            else:
                act()
    return median(found) if found else 0.0
