"""Run a plan inside one arena, and ordinary training beside it, and compare bit by bit."""

from __future__ import annotations

import gc
import os
import platform
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from poetopt.backends.onnxruntime.batch import Batch, batch_of
from poetopt.backends.onnxruntime.execution import Execution, compare
from poetopt.backends.onnxruntime.measure import Stopwatch, alternate, held_bytes, high_water_bytes, peak_beside_bytes
from poetopt.backends.onnxruntime.prepared import Prepared
from poetopt.backends.onnxruntime.reference import Fused, NodeByNode, reference_of
from poetopt.backends.onnxruntime.sessions import Sessions, onnxruntime
from poetopt.backends.onnxruntime.stepping import ScheduledStep
from poetopt.backends.step.memory import MappedBlock
from poetopt.backends.step.parted import Parted, all_slots, program_of, scheduled_names
from poetopt.backends.step.places import check_belongs, graph_of
from poetopt.backends.step.program import Program
from poetopt.backends.step.region import ResidentRegion
from poetopt.backends.step.storage import PageFile
from poetopt.graph import TrainingGraph
from poetopt.plan.assemble import store_all, store_all_bytes
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import arena_bytes, check_layout, lay_out, taken_bytes
from poetopt.plan.simulate import simulate
from poetopt.util.errors import ExecutionError, OptionError
from poetopt.util.process import peak_bytes, resident_bytes
from poetopt.util.progress import Told, paced, silent

if TYPE_CHECKING:
    from poetopt.graph import Array


TRANSFER_STEPS, TRANSFER_S = 9, 4.0
"""Transfers are timed in this many steps, or in as many as begin in this many seconds."""


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
    if threads < 1:
        raise OptionError(f"--threads {threads}: must be at least 1")
    chosen = graph_of(plan, graph)
    problem = plan.problem
    check_belongs(chosen, problem, Sessions.runtime, problem.name)
    simulation = simulate(plan, ram_bytes=ram_bytes)
    check_layout(plan, None if ram_bytes is None else ram_bytes - problem.reserve_bytes)
    batch = batch_of(chosen.whole, data, seed)
    joint = chosen.joint
    names = joint.results

    with ExitStack() as stack:
        pages = stack.enter_context(PageFile(all_slots(plan, chosen), None if workdir is None else Path(workdir)))
        arena = MappedBlock(arena_bytes(plan))
        region = ResidentRegion.of(joint, scheduled_names(plan.problem))
        sessions = Sessions(chosen, threads)
        program = program_of(plan, chosen, arena, region, sessions.of, pages, told=paced(told))
        fed, batch = batch, program.carried.take(batch)
        told("ordinary training, to compare with")
        reference = reference_of(NodeByNode, chosen, sessions, program.begun, names)

        def results() -> Mapping[str, Array]:
            return {name: program.result(name) for name in names}

        before = _checksum(region)
        theirs = reference.run(batch)
        told("the schedule, with all that it frees poisoned")
        program.run_checked(batch)
        if _checksum(region) != before:
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
        high_water = high_water_bytes(program.acts, lambda: program.load(batch))
        kernels = _beside(program, batch, paced(told))
    import onnx

    bytes_of_arena = arena_bytes(plan)
    return Execution(
        bit_identical=comparison.identical,
        different=comparison.different,
        gradients=len(joint.gradients),
        statistics=len(joint.states),
        updated=len(joint.carried) - len(joint.states) - len(joint.sums),
        max_abs_diff=comparison.max_abs_diff,
        budget_bytes=taken_bytes(plan, simulation.peak_bytes) if ram_bytes is None else ram_bytes,
        arena_bytes=bytes_of_arena,
        kernel_workspace_bytes=kernels,
        measured_peak_bytes=None if kernels is None else bytes_of_arena + kernels,
        high_water_bytes=held_bytes(bytes_of_arena, high_water, kernels),
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
    while paged and len(found) < TRANSFER_STEPS and (not found or time.perf_counter() - start < TRANSFER_S):
        program.load(batch)
        found.append(0.0)
        for k, act in enumerate(program.acts):
            if k in paged:
                found[-1] += clock.time(act)
            else:
                act()
    return median(found) if found else 0.0


def _beside(program: Program | Parted, batch: Batch, told: Told) -> int | None:
    """Gives what kernels allocate beside the arena, at most."""
    gc.collect()
    program.load(batch)
    passes = count(1)

    def prepare() -> None:
        told(f"measuring what kernels allocate: pass {next(passes)}")
        program.load(batch)

    return peak_beside_bytes(program.acts, prepare, expected=program.plan.problem.reserve_bytes)


STEPS = 3
"""How many are taken, and timed."""


@dataclass(frozen=True)
class Alone:
    """Some steps of a plan.

    figures
        By their keys in JSON: `loss` of the first step; `alone_step_s`, median seconds of a step, from a batch to its
        loss; `arena_bytes`, `bytes_paged`, `bytes_streamed` as in `Execution`; `total_ram_bytes`, `process_base_bytes`,
        `process_peak_bytes` as in `TrainingRun`.
    digests
        Of what the first one gives, by the names of `Execution.results`.
    """

    figures: Mapping[str, Any]
    digests: Mapping[str, bytes]


def run_alone(
    made: Prepared,
    *,
    data: Mapping[str, object] | str | os.PathLike[str] | None = None,
    seed: int = 0,
    workdir: str | os.PathLike[str] | None = None,
    told: Told = silent,
) -> Alone:
    """Take a few steps on one batch.

    Arguments and errors are those of `execute`.
    """
    simulation = simulate(made.plan, ram_bytes=made.ram_bytes)
    base = resident_bytes()
    batch = batch_of(made.graph.whole, made.fed if data is None else data, seed)
    with Stopwatch() as clock, ScheduledStep(made, ram_bytes=made.ram_bytes, workdir=workdir, told=told) as step:
        told("the schedule alone")
        loss, seconds = clock.call(partial(step.run, batch))
        found = step.digests()
        times = [seconds, *(clock.time(partial(step.run, batch)) for _ in range(STEPS - 1))]
        peak = peak_bytes()
    figures = {
        "loss": None if made.graph.forward_only else loss,
        "arena_bytes": arena_bytes(made.plan),
        "bytes_paged": simulation.bytes_paged,
        "bytes_streamed": simulation.bytes_streamed,
        "alone_step_s": median(times),
        "total_ram_bytes": made.plan.problem.beside_bytes + taken_bytes(made.plan, simulation.peak_bytes),
        "process_base_bytes": base,
        "process_peak_bytes": peak,
    }
    return Alone(figures, found)
