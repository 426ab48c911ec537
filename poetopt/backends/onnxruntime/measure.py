"""Describes what a step takes: seconds, and bytes that kernels allocate beside the arena.

Bytes are counted by the operating system, so that nobody's allocation is missed: while a node runs, the C library is
asked to keep what is freed instead of giving it back, so that every page it touched is still resident after
it; then it gives all back before the next. What is resident more than at the start of the step, at most,
is the peak, in units of a page. It takes glibc and Linux.

To count what is resident takes milliseconds, more than most nodes. A page becomes resident by a fault, and how many
faults there were is known at once; so it is counted only where a node with that many pages could matter.

The C library's allocator, kept from holding what kernels are done with.

Kernels take scratch memory from `malloc`. What they free stays with the process: the next kernel that finds the gap too
small takes new pages beside it, so that a step of resnet18-cifar holds 3.9 MB where no kernel takes more than 1.2.
`malloc_trim` gives all free pages back, in about 0.1 ms. A step calls it before a kernel that could else bring the sum
over the plan's reserve (`poetopt.backends.step.program`). It takes glibc; elsewhere nothing is called.

A clock for measurements on a machine that others use as well.

What is measured runs in one thread. Whenever others have all processors, that thread waits, and a clock on the wall
goes on: on a machine with four times as much to do as it has processors, a step seemed to take three times as long.
Linux counts each thread's waiting for a processor (`/proc/thread-self/schedstat`, the second figure); waiting for
storage is not in it. Elsewhere the clock is the one on the wall.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import cache
from itertools import count
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from poetopt.util.process import paused
from poetopt.util.progress import Told, silent

if TYPE_CHECKING:
    from poetopt.backends.step.program import Act


@cache
def give_back() -> Callable[[], object] | None:
    """Gives what returns all free pages to the system; None where the C library has no such function."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    return lambda: trim(0)


SCHEDSTAT = "/proc/thread-self/schedstat"


T = TypeVar("T")


class Stopwatch:
    """Seconds that pass while this thread has a processor, or waits for something else than one; a context manager.

    To be read by the thread that opened it.
    """

    def __init__(self, path: str = SCHEDSTAT) -> None:
        self._file = -1
        self._wall_s = self._waited_s = 0.0
        with suppress(OSError):
            self._file = os.open(path, os.O_RDONLY)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @property
    def counts(self) -> bool:
        """Says whether the system tells of waiting; to be asked before the clock is closed."""
        return self._file >= 0

    def waited(self) -> float:
        """Seconds for which this thread has waited for a processor since it began; 0 where the system doesn't tell."""
        if self._file < 0:
            return 0.0
        try:
            return int(os.pread(self._file, 64, 0).split()[1]) * 1e-9
        except (OSError, ValueError, IndexError):
            return 0.0

    def timed(self, wall_s: float, waited_s: float) -> float:
        """Seconds of something that took `wall_s`, of which the thread waited `waited_s`; it counts for `share`."""
        waited_s = min(max(waited_s, 0.0), wall_s)
        self._wall_s += wall_s
        self._waited_s += waited_s
        return wall_s - waited_s

    def call(self, act: Callable[[], T]) -> tuple[T, float]:
        """Gives what `act` gives, and the seconds that it took."""
        waited_s = self.waited()
        begin = time.perf_counter()
        given = act()
        wall_s = time.perf_counter() - begin
        return given, self.timed(wall_s, self.waited() - waited_s)

    def time(self, act: Callable[[], object]) -> float:
        """The seconds that `act` takes."""
        return self.call(act)[1]

    @property
    def share(self) -> float:
        """The share of the wall's seconds of all that was timed for which others had the processors."""
        return self._waited_s / self._wall_s if self._wall_s > 0 else 0.0


def told(share: float) -> str:
    """That share in words; empty where it is too small to be felt."""
    # from this share of waiting on, people are told
    if share < 0.05:
        return ""
    words = f"others had the processors for {share:.0%} of that time, not counted"
    # from this share on, what the others leave in the caches is felt in the seconds that do count (up to a fifth)
    return words if share < 0.5 else f"{words}; caches suffer too, so measure again on a freer machine"


_RESIDENT = "/proc/self/smaps_rollup"
_FIELD = b"Anonymous:"

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -2, -3, -4
_PR_SET_THP_DISABLE = 41

LEAST, SECONDS = 3, 4.0
"""What is as expected is run this many times, or as often as fits into this many seconds; where nothing is expected,
until this many runs have left the peak as it was."""
MOST, MOST_SECONDS = 15, 60.0
"""The same where it is not as expected."""


def peak_beside_bytes(acts: Sequence[Act], prepare: Act, *, expected: int | None = None) -> int | None:
    """The most bytes that a step holds at once beyond what is allocated already; None where that can't be measured.

    acts
        The step, node by node.
    prepare
        Called before each pass, unmeasured.
    expected
        What is above this is measured again, up to `MOST` passes: it may be the neighbourhood's doing.
    """
    found = _least(_passes(acts, prepare, each=False), expected)
    return None if found is None else max(found, default=0)


def beside_each_bytes(acts: Sequence[Act], prepare: Act) -> tuple[int, ...] | None:
    """The same for each node: the bytes that it allocates beyond what is allocated already."""
    return _least(_passes(acts, prepare, each=True), None)


def high_water_bytes(acts: Sequence[Act], prepare: Act) -> int | None:
    """The most that the process has resident in a step beyond what it had before it; None where that can't be measured.

    Nothing is given back between the acts but where the step does it itself (`give_back`), so that this is
    what is live and all that an allocator may hold beside it: the highest mark of any process that takes such steps.

    acts, prepare
        As in `peak_beside_bytes`.
    """
    gives_back = give_back()
    with _keeping_malloc() as trim, paused(), _Resident() as resident:
        if trim is None or resident.bytes() is None:
            return None
        found: list[int] = []
        for _ in range(LEAST):
            prepare()
            trim()
            found.append(_highest(acts, gives_back, resident))
    return min(found)


def _highest(acts: Sequence[Act], gives_back: Act | None, resident: _Resident) -> int:
    """The most that a pass that begins now holds above the least that was there before."""
    faulted = _fault_counter()
    low = held = resident.bytes() or 0
    most, faults = 0, faulted()
    for act in acts:
        if act is not gives_back:
            act()
            continue
        if held + faulted() - faults - low > most:  # counting takes longer than most acts
            most = max(most, (resident.bytes() or 0) - low)
        act()
        # What was there before the step may be given back in it.
        held = resident.bytes() or 0
        low, faults = min(low, held), faulted()
    return max(most, (resident.bytes() or 0) - low)


def held_bytes(arena_bytes: int, high_water: int | None, live: int | None) -> int | None:
    """Arena and high-water mark together; None where that can't be measured.

    What is live at once is held, too. Passes of their own measure both, each in whole pages, so the mark is at least
    that.

    high_water, live
        Of `high_water_bytes` and `peak_beside_bytes`.
    """
    return None if high_water is None else arena_bytes + max(high_water, live or 0)


def memory_beside(
    acts: Sequence[Act], load: Act, arena_bytes: int, expected: int, told: Told = silent
) -> Mapping[str, Any]:
    """Measure what kernels and allocator hold in steps that `load` prepares: figures of `Execution`, by name.

    expected
        As for `peak_beside_bytes`.
    """
    high_water, passes = high_water_bytes(acts, load), count(1)
    gc.collect()
    load()

    def prepare() -> None:
        told(f"measuring what kernels allocate: pass {next(passes)}")
        load()

    live = peak_beside_bytes(acts, prepare, expected=expected)
    return {
        "kernel_workspace_bytes": live,
        "measured_peak_bytes": None if live is None else arena_bytes + live,
        "high_water_bytes": held_bytes(arena_bytes, high_water, live),
    }


def _least(passes: Generator[tuple[int, ...], None, None], expected: int | None) -> tuple[int, ...] | None:
    """Gives what is counted for each node: the least of several passes; None if there are none.

    Whatever else happens in the process can only add: a few bytes that stay pin a whole page, and pages that were given
    back are counted again.
    """
    start = time.perf_counter()
    least: tuple[int, ...] | None = None
    alike, before = 0, -1
    with closing(passes):
        for number, found in enumerate(passes, 1):
            least = found if least is None else tuple(map(min, least, found))
            peak = max(least, default=0)
            alike, before = alike + 1 if peak == before else 1, peak
            gone = time.perf_counter() - start
            if expected is None:
                done = alike >= LEAST or gone > SECONDS
            elif peak <= expected:
                done = number >= LEAST or gone > SECONDS
            else:
                done = number >= MOST or gone > MOST_SECONDS
            if done:
                break
    return least


def _passes(acts: Sequence[Act], prepare: Act, *, each: bool) -> Generator[tuple[int, ...], None, None]:
    """For each pass, without end, the bytes resident after each act beyond those before the first.

    Unless `each` is asked for, what can't be the most of all is only bounded, from above.
    """
    with _keeping_malloc() as trim, paused(), _Resident() as resident:
        if trim is None or resident.bytes() is None:
            return
        faulted = _fault_counter()
        while True:
            # Room for the figures is made before they are taken.
            extra = [0] * len(acts)
            prepare()
            trim()
            before = resident.bytes() or 0
            bound = most = 0
            for k, act in enumerate(acts):
                faults = faulted()
                act()
                bound += faulted() - faults
                if bound <= most:
                    extra[k] = bound
                    trim()
                    continue
                extra[k] = max(0, (resident.bytes() or 0) - before)
                most = 0 if each else max(most, extra[k])
                trim()
                # What was there before the step may be given back in it.
                held = resident.bytes() or 0
                before = min(before, held)
                bound = held - before
            yield tuple(extra)


def _fault_counter() -> Callable[[], int]:
    """A counter of the bytes of all pages that became resident so far.

    Where the system doesn't count, a step of the counter is more than any memory.
    """
    from resource import RUSAGE_SELF, getpagesize, getrusage

    page = getpagesize()

    def faulted() -> int:
        return getrusage(RUSAGE_SELF).ru_minflt * page

    pages = 64
    with mmap.mmap(-1, pages * page) as fresh:
        before = faulted()
        for place in range(0, len(fresh), page):
            fresh[place] = 1
        counts = faulted() - before >= pages * page
    return faulted if counts else count(step=1 << 62).__next__


def alternate(
    steps: Mapping[str, Callable[[], Act]],
    *,
    seconds: float = 5.0,
    least: int = 3,
    most: int = 15,
    clock: Stopwatch | None = None,
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
        with Stopwatch() as own:
            return alternate(steps, seconds=seconds, least=least, most=most, clock=own)
    times: dict[str, list[float]] = {name: [] for name in steps}
    start = time.perf_counter()
    with paused():
        for turn in range(most):
            for name in _rotated(tuple(steps), turn):
                # steps as short as this run once more before each timing
                if times[name] and times[name][-1] <= 0.1:
                    steps[name]()()
                times[name].append(clock.time(steps[name]()))
            gone = time.perf_counter() - start
            if (turn + 1 >= least or gone > 4 * seconds) and gone * (turn + 2) / (turn + 1) > seconds:
                break
    return {name: median(found) for name, found in times.items()}


def _rotated(names: Sequence[str], turn: int) -> Sequence[str]:
    return (*names[turn % len(names) :], *names[: turn % len(names)])


class _Resident:
    """Counts the anonymous memory of this process that is resident, page by page, not from the kernel's rough sums."""

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
