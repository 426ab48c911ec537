"""Measuring this machine: operators where they run in a step, the storage by files, energy where the system counts it.

Each operator is timed within whole training steps in an arena, as the executor runs them, so that what it reads is
where it would be (in the cache or not) and holds what it would hold. Operators of one signature are one sample; what
whole steps take beyond the sum of those samples' medians is spread over them. Waiting for a processor that others have
is in no figure.
Energy is RAPL's counter over the steps less idling, where the system lets it be read; it is too coarse for single
operators, which get their time x that power.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

from poetopt.backends.ort.batch import random_batch
from poetopt.backends.ort.clock import Clock, told
from poetopt.backends.ort.machine import machine
from poetopt.backends.ort.measure import beside_each_bytes
from poetopt.backends.ort.memory import Block
from poetopt.backends.ort.places import Region
from poetopt.backends.ort.program import Program
from poetopt.backends.ort.sessions import Sessions, onnxruntime
from poetopt.backends.ort.storage import PageFile
from poetopt.devices.cost import cost
from poetopt.devices.loading import device
from poetopt.devices.profile import NO_WAITING, OperatorProfile, Profile, StorageProfile
from poetopt.devices.profile_csv import fit, quartile_spread
from poetopt.devices.signature import signatures
from poetopt.graph import TrainingGraph
from poetopt.plan.assemble import plan_of
from poetopt.plan.layout import arena_bytes, lay_out
from poetopt.schedule import Schedule

SAME_BYTES = "a72"
"""Bytes don't depend on the device, and of the problem only bytes are used here."""
FILE_BYTES = (4096, 65536, 524288, 2097152, 8388608)
"""Sizes of the transfers that the storage is measured with."""
SPREAD_BYTES = 64 * 2**20
"""Memory that the transfers take turns over."""
SLOTS = 64
POWERCAP = Path("/sys/class/powercap")
IDLE_S = 0.5
TICK_S = 1e-9
"""What an operator takes at least: a clock that saw nothing pass can't tell less."""

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

    graph
        The training graph; each of its distinct operators is measured.
    power_w
        Watts of computing, where the system doesn't tell. Without both, the device's power counts when solving.
    workdir
        The folder whose storage is measured; by default the system's temporary one.
    seconds, steps
        Steps are timed until there are so many, or so many seconds are over; at least two.

    Takes the memory of the whole step, and one thread. Raises ExecutionError where a kernel or the storage fails.
    """
    keys = signatures(graph)
    with Clock() as clock:
        times, spaces, watts = _operators(graph, seconds, steps, seed, clock)
        transfers = storage(workdir, clock=clock)
        counts = clock.counts
    samples: dict[str, list[float]] = {}
    workspace: dict[str, int] = {}
    for name, found in times.items():
        samples.setdefault(keys[name], []).extend(found)
        if (extra := spaces.get(name)) is not None:
            workspace[keys[name]] = max(extra, workspace.get(keys[name], 0))
    seconds_of = typical_seconds(times, keys)
    operators = {
        key: OperatorProfile(
            time_s=max(seconds_of[key], TICK_S),
            spread_s=quartile_spread(found),
            runs=len(found),
            workspace_bytes=workspace.get(key),
        )
        for key, found in samples.items()
    }
    return Profile(
        about=_about(watts, power_w, clock.share, counts),
        power_w=power_w if watts is None else watts,
        operators=operators,
        storage=transfers,
    )


def typical_seconds(times: Mapping[str, Sequence[float]], keys: Mapping[str, str]) -> Mapping[str, float]:
    """Seconds of each signature: medians, scaled so that all operators together take what the median step took.

    times
        Seconds of each operator, by name, in each of the steps.
    keys
        The signature of each.

    An interruption hits few of the runs of any one operator, so medians don't see it, and some operator of every
    step: without the scale, a step would be predicted too short wherever anything else runs.
    """
    samples: dict[str, list[float]] = {}
    for name, found in times.items():
        samples.setdefault(keys[name], []).extend(found)
    medians = {key: median(found) for key, found in samples.items()}
    together = sum(medians[keys[name]] for name in times)
    whole = median(map(sum, zip(*times.values(), strict=True)))
    return {key: value * whole / together for key, value in medians.items()} if together > 0 else medians


def storage(
    workdir: str | os.PathLike[str] | None = None, *, rounds: int = 9, clock: Clock | None = None
) -> StorageProfile:
    """Latency and rate of transfers to and from a file, as the executor makes them (checksums included).

    Nothing is synced, so that they are those of the system's page cache wherever memory is free for it.

    Raises ExecutionError where the storage fails.
    """
    if clock is None:
        with Clock() as own:
            return storage(workdir, rounds=rounds, clock=own)
    ways: dict[str, list[tuple[float, float]]] = {"out": [], "in": []}
    # Buffers and slots take turns over more memory than caches hold, as tensors of a step do.
    memory = np.random.default_rng(0).integers(0, 256, SPREAD_BYTES, np.uint8)
    slots = {f"{nbytes} B, {k}": nbytes for nbytes in FILE_BYTES for k in range(SPREAD_BYTES // nbytes // 2)[:SLOTS]}
    with PageFile(slots, None if workdir is None else Path(workdir)) as pages:
        for nbytes in FILE_BYTES:
            names = [name for name, size in slots.items() if size == nbytes]
            apart = SPREAD_BYTES // 2 // len(names)
            taken: dict[str, list[float]] = {"out": [], "in": []}
            for turn in range(max(rounds, len(names)) + len(names)):
                place = turn % len(names)
                name, start = names[place], place * apart
                out_s = clock.time(partial(pages.write, name, memory[start : start + nbytes]))
                back = SPREAD_BYTES // 2 + (place * 7 % len(names)) * apart
                in_s = clock.time(partial(pages.read, name, memory[back : back + nbytes]))
                if turn >= len(names):
                    # before, the file's blocks were new
                    taken["out"].append(out_s)
                    taken["in"].append(in_s)
            for way, found in taken.items():
                ways[way].append((float(nbytes), median(found)))
    out_s, out_rate = fit(ways["out"])
    in_s, in_rate = fit(ways["in"])
    return StorageProfile(
        page_in_latency_s=in_s, page_in_bytes_per_s=in_rate, page_out_latency_s=out_s, page_out_bytes_per_s=out_rate
    )


def _operators(
    graph: TrainingGraph, seconds: float, steps: int, seed: int, clock: Clock
) -> tuple[Mapping[str, list[float]], Mapping[str, int], float | None]:
    """Seconds of each operator in each step, bytes that its kernels allocate, and watts over idling where known."""
    problem = cost(graph, device(SAME_BYTES))
    plan = lay_out(plan_of(problem, Schedule()))
    batch = random_batch(graph, seed)
    with PageFile({}) as pages:
        program = Program(plan, graph, Block(arena_bytes(plan)), Region.of(graph), Sessions(graph), pages)
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
            before, begin = counter.joules() if counter else 0.0, time.perf_counter()
            found = _walk(acts, clock)
            busy_s += time.perf_counter() - begin
            joules += counter.joules() - before if counter else 0.0
            sums = dict.fromkeys(names, 0.0)
            for owner, taken in zip(owners, found, strict=True):
                sums[owner] += taken
            for name, taken in sums.items():
                times[name].append(taken)
            if turn > 0 and time.perf_counter() - start > seconds:
                break
        program.load(batch)
        each = beside_each_bytes(program.acts, lambda: program.load(batch))
    spaces: dict[str, int] = {}
    for owner, extra in zip(owners, each or (), strict=False):
        spaces[owner] = max(extra, spaces.get(owner, 0))
    watts = joules / busy_s - idle_w if counter and busy_s else None
    return times, spaces, watts if watts is not None and watts > 0 else None


def _walk(acts: Sequence[Callable[[], object]], clock: Clock) -> list[float]:
    """Seconds of each act of a step."""
    now, waited = time.perf_counter, clock.waited
    start = waited()
    taken: list[tuple[float, float]] = []
    for act in acts:
        begin = now()
        act()
        # what the clock takes itself is between the acts
        taken.append((now() - begin, waited()))
    waits = [after - before for before, after in pairwise((start, *(after for _, after in taken)))]
    return [clock.timed(wall_s, waited_s) for (wall_s, _), waited_s in zip(taken, waits, strict=True)]


class Counter:
    """The processor packages' energy counters (RAPL), where the system lets them be read."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files
        self.ranges = [int((file.parent / "max_energy_range_uj").read_text()) for file in files]
        self._last = [int(file.read_text()) for file in files]
        self._sum = 0.0

    @classmethod
    def open(cls, root: Path = POWERCAP) -> Counter | None:
        """The counters of all packages, or None."""
        files = [folder / "energy_uj" for folder in sorted(root.glob("intel-rapl:*")) if folder.name.count(":") == 1]
        with suppress(OSError, ValueError):
            return cls(files) if files else None
        return None

    def joules(self) -> float:
        """Joules since the counter was opened; to be read at least once an hour, as counters start anew."""
        now = [int(file.read_text()) for file in self.files]
        for after, before, limit in zip(now, self._last, self.ranges, strict=True):
            self._sum += (after - before if after >= before else after - before + limit) * 1e-6
        self._last = now
        return self._sum

    def idle_w(self) -> float:
        """Watts while this process sleeps."""
        before, start = self.joules(), time.perf_counter()
        time.sleep(IDLE_S)
        return (self.joules() - before) / (time.perf_counter() - start)


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
