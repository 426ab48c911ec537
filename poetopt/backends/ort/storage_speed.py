"""How fast tensors come and go between the arena and a file, as the executor moves them: checksums included.

Nothing is synced, so what is measured is the system's page cache wherever memory is free for it. There a transfer is a
copy, and how long a copy takes depends on what the processor's caches hold: one right after the other, transfers took
half of what they take in a step of resnet18-cifar, and two thirds in one of bert-tiny. So other work can be done
between any two that are timed; but what is written out was just made.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from poetopt.backends.ort.clock import Clock
from poetopt.devices.profile import StorageProfile
from poetopt.devices.profile_csv import fit
from poetopt.step.storage import PageFile

SIZES = (4096, 65536, 524288, 2097152, 8388608)
"""Sizes of the transfers that the storage is measured with."""


def storage(
    workdir: str | os.PathLike[str] | None = None,
    *,
    rounds: int = 9,
    clock: Clock | None = None,
    between: Callable[[], object] | None = None,
) -> StorageProfile:
    """Latency and rate of transfers to and from a file: by least squares of relative errors over several sizes.

    workdir
        The folder whose storage is measured; by default the system's temporary one.
    rounds
        Transfers of each size that are timed each way, at least.
    between
        What to do before each transfer, untimed.

    Raises ExecutionError where the storage fails.
    """
    if clock is None:
        with Clock() as own:
            return storage(workdir, rounds=rounds, clock=own, between=between)
    taken: dict[str, list[tuple[float, float]]] = {"out": [], "in": []}
    with PageFile({str(nbytes): nbytes for nbytes in SIZES}, None if workdir is None else Path(workdir)) as pages:
        for nbytes in SIZES:
            source, target = np.random.default_rng(0).integers(0, 256, (2, nbytes), np.uint8)
            found: dict[str, list[float]] = {"out": [], "in": []}
            for _ in range(rounds + 1):
                for way, move, buffer in (("out", pages.write, source), ("in", pages.read, target)):
                    if between is not None:
                        between()
                    if way == "out":
                        source += 1  # a plan writes a tensor out right after it was computed
                    found[way].append(clock.time(partial(move, str(nbytes), buffer)))
            for way, times in found.items():
                taken[way].append((nbytes, median(times[1:])))  # at first the file's blocks are new
    out_s, out_rate = fit(taken["out"])
    in_s, in_rate = fit(taken["in"])
    return StorageProfile(
        page_in_latency_s=in_s, page_in_bytes_per_s=in_rate, page_out_latency_s=out_s, page_out_bytes_per_s=out_rate
    )
