"""Measure this machine: times of operators and transfers as in a step, and energy where the system counts it.

Each operator is timed within whole training steps in an arena, as the executor runs them. So the operator's inputs have
their real values, and lie in the cache or not as in training. Operators of one signature are one sample. The time of
whole steps beyond the sum of those samples' medians is spread over them. No figure contains waiting for a processor
that other processes have. Energy is RAPL's counter over the steps less idling, where the system lets it be read. It is
too coarse for single operators, which get their time x that power.

Transfers between the arena and a file are timed as the executor makes them, checksums included.

Nothing is synced, so the system's page cache is measured wherever memory is free for it. There a transfer is a copy,
and its time depends on the contents of the processor's caches. One right after the other, transfers took half of their
time in a step of resnet18-cifar, and two thirds of that in one of bert-tiny. So other work can be done between any two
timed transfers; but data that is written out was just computed.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

from poetopt.backends.onnxruntime.batch import Batch, random_batch
from poetopt.backends.onnxruntime.measure import Stopwatch, beside_each_bytes, told
from poetopt.backends.onnxruntime.sessions import Sessions, onnxruntime
from poetopt.backends.step.memory import MappedBlock
from poetopt.backends.step.program import Program
from poetopt.backends.step.region import ResidentRegion
from poetopt.backends.step.storage import PageFile
from poetopt.devices.cost import cost
from poetopt.devices.loading import device
from poetopt.devices.meters import Counter
from poetopt.devices.profile import NO_WAITING, OperatorProfile, Profile, StorageProfile
from poetopt.devices.profile_csv import fit, quartile_spread
from poetopt.graph import TrainingGraph
from poetopt.ops.nodes import signatures
from poetopt.plan.assemble import plan_of
from poetopt.plan.layout import arena_bytes, lay_out
from poetopt.plan.schedule import Schedule

SIZES = (4096, 65536, 524288, 2097152, 8388608)
"""Bytes of the transfers by which the storage is measured."""


def storage(
    workdir: str | os.PathLike[str] | None = None,
    *,
    rounds: int = 9,
    clock: Stopwatch | None = None,
    between: Callable[[], object] | None = None,
) -> StorageProfile:
    """Return latency and rate of transfers to and from a file, by least squares of relative errors over several sizes.

    Parameters
    ----------
    workdir
        Folder whose storage is measured; by default the system's temporary one.
    rounds
        Minimum number of timed transfers of each size in each direction.
    between
        Called before each transfer, untimed.

    Raises
    ------
    ExecutionError
        The storage fails.
    """
    if clock is None:
        with Stopwatch() as new_clock:
            return storage(workdir, rounds=rounds, clock=new_clock, between=between)
    samples: dict[str, list[tuple[float, float]]] = {"out": [], "in": []}
    with PageFile({str(nbytes): nbytes for nbytes in SIZES}, None if workdir is None else Path(workdir)) as pages:
        for nbytes in SIZES:
            source, target = np.random.default_rng(0).integers(0, 256, (2, nbytes), np.uint8)
            times_s: dict[str, list[float]] = {"out": [], "in": []}
            for _ in range(rounds + 1):
                for direction, move, buffer in (("out", pages.write, source), ("in", pages.read, target)):
                    if between is not None:
                        between()
                    if direction == "out":
                        source += 1  # a plan writes a tensor out right after its computation
                    times_s[direction].append(clock.time(partial(move, str(nbytes), buffer)))
            for direction, times in times_s.items():
                samples[direction].append((nbytes, median(times[1:])))  # the first transfer allocates the file's blocks
    out_s, out_rate = fit(samples["out"])
    in_s, in_rate = fit(samples["in"])
    return StorageProfile(
        page_in_latency_s=in_s, page_in_bytes_per_s=in_rate, page_out_latency_s=out_s, page_out_bytes_per_s=out_rate
    )


def machine() -> str:
    """Return a description of processor, system and architecture."""
    return f"{_processor()}, {platform.system()} {platform.machine()}"


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Model") and value.strip():
                return value.strip()
    return platform.processor() or "unknown processor"


APART, APART_S = 0.05, 0.003
"""Gap between timed transfers: a share of a step, as where a plan pages a handful of tensors, and at most APART_S
seconds. Of 2, 5 and 10 ms, 2 and 5 agreed best with the transfers of three networks' plans in a step."""

Listener = Callable[[str], None]


def profile(
    graph: TrainingGraph,
    *,
    power_w: float | None = None,
    workdir: str | os.PathLike[str] | None = None,
    seconds: float = 20.0,
    steps: int = 9,
    seed: int = 0,
) -> Profile:
    """Measure this machine with one model's training step.

    It needs the memory of the whole step, and one thread.

    Parameters
    ----------
    graph
        Training graph; each of its distinct operators is measured.
    power_w
        Watts of computing, where the system doesn't tell. Without both, the device's power counts when solving.
    workdir
        Folder whose storage is measured; by default the system's temporary one.
    seconds, steps
        Steps are timed until there are this many, or this many seconds are over; at least two.

    Raises
    ------
    ExecutionError
        A kernel or the storage fails.
    """
    keys = signatures(graph)
    with Stopwatch() as clock:
        times, kernel_bytes, watts, transfers = _measure(graph, workdir, seconds, steps, seed, clock)
        counts = clock.counts
    samples: dict[str, list[float]] = {}
    workspace: dict[str, int] = {}
    for name, operator_times in times.items():
        samples.setdefault(keys[name], []).extend(operator_times)
        if (extra := kernel_bytes.get(name)) is not None:
            workspace[keys[name]] = max(extra, workspace.get(keys[name], 0))
    seconds_of = typical_seconds(times, keys)
    # at least a nanosecond: the clock can't resolve less
    operators = {
        key: OperatorProfile(
            time_s=max(seconds_of[key], 1e-9),
            spread_s=quartile_spread(operator_times),
            runs=len(operator_times),
            workspace_bytes=workspace.get(key),
        )
        for key, operator_times in samples.items()
    }
    return Profile(
        about=_about(watts, power_w, clock.share, counts),
        power_w=power_w if watts is None else watts,
        operators=operators,
        storage=transfers,
    )


def typical_seconds(times: Mapping[str, Sequence[float]], keys: Mapping[str, str]) -> Mapping[str, float]:
    """Return seconds of each signature: medians, scaled so that all operators together take the median step's time.

    Parameters
    ----------
    times
        Seconds of each operator, by name, in each of the steps.
    keys
        Signature of each operator.

    Notes
    -----
    An interruption hits few of the runs of any one operator, so medians don't show it; but it hits some operator of
    every
    step. Without the scale, the predicted step would be too short wherever other processes run.
    """
    samples: dict[str, list[float]] = {}
    for name, operator_times in times.items():
        samples.setdefault(keys[name], []).extend(operator_times)
    medians = {key: median(operator_times) for key, operator_times in samples.items()}
    sum_of_medians = sum(medians[keys[name]] for name in times)
    median_step = median(map(sum, zip(*times.values(), strict=True)))
    return (
        {key: value * median_step / sum_of_medians for key, value in medians.items()} if sum_of_medians > 0 else medians
    )


def _measure(
    graph: TrainingGraph,
    workdir: str | os.PathLike[str] | None,
    seconds: float,
    steps: int,
    seed: int,
    clock: Stopwatch,
) -> tuple[Mapping[str, list[float]], Mapping[str, int], float | None, StorageProfile]:
    """Return seconds of each operator in each step, bytes that its kernels allocate, watts, and transfers."""
    # this function reads only bytes of the problem, and those don't depend on the device
    problem = cost(graph, device("a72"))
    plan = lay_out(plan_of(problem, Schedule()))
    batch = random_batch(graph, seed)
    with PageFile({}) as pages:
        program = Program(plan, graph, MappedBlock(arena_bytes(plan)), ResidentRegion.of(graph), Sessions(graph), pages)
        owners = [problem.operators[plan.instructions[call.number].target].name for call in program.calls]
        names = [operator.name for operator in problem.operators]
        times: dict[str, list[float]] = {name: [] for name in names}
        program.run_checked(batch)
        counter = Counter.open()
        idle_w = counter.idle_w() if counter else 0.0
        joules = busy_s = 0.0
        start = time.perf_counter()
        for turn in range(max(steps, 2)):
            program.load(batch)
            acts = program.acts
            before, begin_s = counter.counted() if counter else 0.0, time.perf_counter()
            action_times = _time_actions(acts, clock)
            busy_s += time.perf_counter() - begin_s
            joules += counter.counted() - before if counter else 0.0
            sums = dict.fromkeys(names, 0.0)
            for owner, action_s in zip(owners, action_times, strict=True):
                sums[owner] += action_s
            for name, action_s in sums.items():
                times[name].append(action_s)
            if turn > 0 and time.perf_counter() - start > seconds:
                break
        program.load(batch)
        each = beside_each_bytes(program.acts, lambda: program.load(batch))
        apart_s = min(busy_s / len(times[names[0]]) * APART, APART_S)
        transfers = storage(workdir, clock=clock, between=partial(_work_for, _repeat_steps(program, batch), apart_s))
    kernel_bytes: dict[str, int] = {}
    for owner, nbytes in zip(owners, each or (), strict=False):
        kernel_bytes[owner] = max(nbytes, kernel_bytes.get(owner, 0))
    watts = joules / busy_s - idle_w if counter and busy_s else None
    return times, kernel_bytes, watts if watts is not None and watts > 0 else None, transfers


def _repeat_steps(program: Program, batch: Batch) -> Iterator[object]:
    """Repeat steps without end, action by action."""
    while True:
        program.load(batch)
        for act in program.acts:
            yield act()


def _work_for(acts: Iterator[object], seconds: float) -> None:
    """Go on with `acts` until `seconds` are over."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        next(acts)


def _time_actions(acts: Sequence[Callable[[], object]], clock: Stopwatch) -> list[float]:
    """Return the seconds of each action of a step."""
    clock_s, waited_s_now = time.perf_counter, clock.waited
    start = waited_s_now()
    readings: list[tuple[float, float]] = []
    for act in acts:
        begin = clock_s()
        act()
        # what the clock takes itself is between the acts
        readings.append((clock_s() - begin, waited_s_now()))
    waits = [
        waited_after - before
        for before, waited_after in pairwise((start, *(waited_after for _, waited_after in readings)))
    ]
    return [clock.timed(wall_s, waited_s) for (wall_s, _), waited_s in zip(readings, waits, strict=True)]


def _about(watts: float | None, power_w: float | None, waited_share: float, counts: bool) -> Mapping[str, str]:
    if watts is not None:
        energy = "package power by RAPL over the steps, less idling"
    elif power_w is not None:
        energy = "no energy counter can be read here: seconds x a power given by hand"
    else:
        energy = "no energy counter can be read here: seconds x the device's power"
    return {
        "machine": machine(),
        "runtime": f"onnxruntime {onnxruntime().__version__}, 1 thread",
        "energy": energy,
        "load": told(waited_share) or (NO_WAITING[0] if counts else "waiting for processors isn't counted here"),
        "transfers": "through the page cache: written without a sync, as poetopt run does",
    }
