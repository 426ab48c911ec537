"""What a step takes: seconds, and bytes that kernels allocate beside the arena.

Bytes are counted by the operating system, so that nobody's allocation is missed: while a node runs, the C library is
asked to keep what is freed instead of giving it back, so that every page it touched is still resident after
it; then it gives all back before the next. What is resident more than at the start of the step, at most,
is the peak, in units of a page. It takes glibc and Linux.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from statistics import median

from poetopt.backends.ort.clock import Clock
from poetopt.garbage import paused

_RESIDENT = "/proc/self/smaps_rollup"
_FIELD = b"Anonymous:"

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -2, -3, -4
_PR_SET_THP_DISABLE = 41

LEAST, SECONDS = 3, 4.0
"""So many passes are made of what is as expected, or as many as begin in so many seconds; where nothing is expected,
until so many have left the peak as it was."""
MOST, MOST_SECONDS = 15, 60.0
"""So many of what isn't."""

WARM_S = 0.1
"""Steps as short as this run once more before each timing."""

Act = Callable[[], object]


def peak_beside_bytes(acts: Sequence[Act], prepare: Act, *, expected: int | None = None) -> int | None:
    """The most bytes that a step holds at once beyond what is allocated already; None where that can't be measured.

    acts
        The step, node by node.
    prepare
        Called before each pass, unmeasured.
    expected
        What is above this is measured again, up to `MOST` passes: it may be the neighbourhood's doing.
    """
    found = beside_each_bytes(acts, prepare, expected=expected)
    return None if found is None else max(found, default=0)


def beside_each_bytes(acts: Sequence[Act], prepare: Act, *, expected: int | None = None) -> tuple[int, ...] | None:
    """The same for each node: the bytes that it allocates beyond what is allocated already.

    The least of several passes counts for each node, for whatever else happens in the process can only add: a few
    bytes that stay pin a whole page, and pages that were given back are counted again.
    """
    start = time.perf_counter()
    least: tuple[int, ...] | None = None
    alike, before = 0, -1
    with closing(_passes(acts, prepare)) as passes:
        for count, found in enumerate(passes, 1):
            least = found if least is None else tuple(map(min, least, found))
            peak = max(least, default=0)
            alike, before = alike + 1 if peak == before else 1, peak
            gone = time.perf_counter() - start
            if expected is None:
                done = alike >= LEAST or gone > SECONDS
            elif peak <= expected:
                done = count >= LEAST or gone > SECONDS
            else:
                done = count >= MOST or gone > MOST_SECONDS
            if done:
                break
    return least


def _passes(acts: Sequence[Act], prepare: Act) -> Generator[tuple[int, ...], None, None]:
    """For each pass, without end, the bytes resident after each act beyond those before the first."""
    with _keeping_malloc() as trim, paused(), _Resident() as resident:
        if trim is None or resident.bytes() is None:
            return
        while True:
            # Room for the figures is made before they are taken.
            extra = [0] * len(acts)
            prepare()
            trim()
            before = resident.bytes() or 0
            for k, act in enumerate(acts):
                act()
                extra[k] = max(0, (resident.bytes() or 0) - before)
                trim()
            yield tuple(extra)


def alternate(
    steps: Mapping[str, Callable[[], Act]],
    *,
    seconds: float = 5.0,
    least: int = 3,
    most: int = 15,
    clock: Clock | None = None,
) -> Mapping[str, float]:
    """Median seconds of each of several steps, run in turns so that a slow moment of the machine hits all of them.

    In a training a step follows itself, here another one. Of a short one that is felt (bert-tiny, 11 ms: a tenth), for
    the other has left its own data in the caches; so short steps run once unmeasured before each timing.

    steps
        By name: a function that prepares a run, untimed, and returns what to time.
    seconds
        About how long all of it may take; each step runs at most `most` times, and at least `least` times unless
        that takes four times as long.
    clock
        Learns for how much of the time others had the processors, which isn't in the seconds.
    """
    if clock is None:
        with Clock() as own:
            return alternate(steps, seconds=seconds, least=least, most=most, clock=own)
    times: dict[str, list[float]] = {name: [] for name in steps}
    start = time.perf_counter()
    with paused():
        for turn in range(most):
            for name in _rotated(tuple(steps), turn):
                if times[name] and times[name][-1] <= WARM_S:
                    steps[name]()()
                times[name].append(clock.time(steps[name]()))
            gone = time.perf_counter() - start
            if (turn + 1 >= least or gone > 4 * seconds) and gone * (turn + 2) / (turn + 1) > seconds:
                break
    return {name: median(found) for name, found in times.items()}


def _rotated(names: Sequence[str], turn: int) -> Sequence[str]:
    return (*names[turn % len(names) :], *names[: turn % len(names)])


class _Resident:
    """How much anonymous memory of this process is resident: counted page by page, not from the kernel's rough sums."""

    def __init__(self) -> None:
        self._buffer = bytearray(4096)
        self._file = -1

    def __enter__(self) -> _Resident:
        if os.path.exists(_RESIDENT):
            self._file = os.open(_RESIDENT, os.O_RDONLY)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)

    def bytes(self) -> int | None:
        """The number of bytes; None where the system doesn't say."""
        if self._file < 0:
            return None
        # A buffer of our own: reading must not allocate what it counts.
        count = os.preadv(self._file, [self._buffer], 0)
        place = self._buffer.find(_FIELD, 0, count)
        return int(self._buffer[place + len(_FIELD) : self._buffer.index(b"kB", place)]) * 1024 if place >= 0 else None


@contextmanager
def _keeping_malloc() -> Iterator[Act | None]:
    """Make the C library keep freed memory; gives the function that returns all that is free now, or None."""
    try:
        libc = ctypes.CDLL(None)
        mallopt, trim, prctl = libc.mallopt, libc.malloc_trim, libc.prctl
    except (OSError, AttributeError, TypeError):
        yield None
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, -1)
    mallopt(_M_TOP_PAD, 0)
    # A huge page counts as a whole, however little of it is used.
    prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    try:
        yield lambda: trim(0)
    finally:
        prctl(_PR_SET_THP_DISABLE, 0, 0, 0, 0)
        # What was set can't be unset; these are about where glibc's own end up in a process that uses much memory.
        mallopt(_M_MMAP_MAX, 65536)
        mallopt(_M_MMAP_THRESHOLD, 32 * 1024 * 1024)
        mallopt(_M_TRIM_THRESHOLD, 64 * 1024 * 1024)
        mallopt(_M_TOP_PAD, 128 * 1024)
        trim(0)
