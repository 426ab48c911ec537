"""Memory and time of a step: bytes that kernels allocate outside the arena, and seconds.

The operating system counts bytes, so that no allocation is missed. While a node runs, the C library keeps freed memory
instead of returning it, so that every page that the node touched is still resident after it; then all free memory is
returned before the next node. The peak is the most that is resident beyond the start of the step, in units of a page.
It needs glibc and Linux.

Counting resident memory takes milliseconds, more than most nodes. A page becomes resident by a fault, and the number
of faults is known at once. So memory is counted only where a node with that many pages could matter.

Kernels take scratch memory from `malloc`. Memory that they free stays with the process: a kernel that finds the gap too
small takes new pages, so that a step of resnet18-cifar holds 3.9 MB where no kernel takes more than 1.2. `malloc_trim`
returns all free pages, in about 0.1 ms. A step calls it before a kernel that could otherwise exceed the plan's reserve
(`poetopt.backends.step.program`). It needs glibc; elsewhere nothing is called.

Measured code runs in one thread. Whenever other processes have all processors, that thread waits, and a wall clock goes
on: on a machine with four times as much to do as it has processors, a step seemed to take three times as long. Linux
counts each thread's waiting for a processor (`/proc/thread-self/schedstat`, the second figure), without waiting for
storage. Elsewhere the clock is a wall clock.
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
    """Return a function that returns all free pages to the system; None where the C library has none."""
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
    return lambda: trim(0)


SCHEDSTAT = "/proc/thread-self/schedstat"


T = TypeVar("T")


class Stopwatch:
    """Clock that doesn't count waiting for a processor; a context manager.

    The thread that opened it must read it.
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
        """Return whether the system counts waiting. Read it before the clock is closed."""
        return self._file >= 0

    def waited(self) -> float:
        """Return seconds for which this thread has waited for a processor so far; 0 where the system doesn't count."""
        if self._file < 0:
            return 0.0
        try:
            return int(os.pread(self._file, 64, 0).split()[1]) * 1e-9
        except (OSError, ValueError, IndexError):
            return 0.0

    def timed(self, wall_s: float, waited_s: float) -> float:
        """Return the seconds of work that took `wall_s`, of which the thread waited `waited_s`; add both to `share`."""
        waited_s = min(max(waited_s, 0.0), wall_s)
        self._wall_s += wall_s
        self._waited_s += waited_s
        return wall_s - waited_s

    def call(self, act: Callable[[], T]) -> tuple[T, float]:
        """Return the result of `act`, and its seconds."""
        waited_s = self.waited()
        begin = time.perf_counter()
        result = act()
        wall_s = time.perf_counter() - begin
        return result, self.timed(wall_s, self.waited() - waited_s)

    def time(self, act: Callable[[], object]) -> float:
        """Return the seconds of `act`."""
        return self.call(act)[1]

    @property
    def share(self) -> float:
        """Share of all timed wall seconds for which other processes had the processors."""
        return self._waited_s / self._wall_s if self._wall_s > 0 else 0.0


def told(share: float) -> str:
    """Return that share in words; empty where it is too small to matter."""
    # a smaller share isn't reported
    if share < 0.05:
        return ""
    words = f"others had the processors for {share:.0%} of that time, not counted"
    # from this share on, the others' use of the caches slows the counted seconds, too (up to a fifth)
    return words if share < 0.5 else f"{words}; caches suffer too, so measure again on a freer machine"


_RESIDENT = "/proc/self/smaps_rollup"
_FIELD = b"Anonymous:"

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -2, -3, -4
_PR_SET_THP_DISABLE = 41

LEAST, SECONDS = 3, 4.0
"""Passes, or seconds, where the peak is as expected. Without an expectation, the passes end once the peak was the same
in this many of them."""
MOST, MOST_SECONDS = 15, 60.0
"""Passes, or seconds, where the peak is above the expected one."""


def peak_beside_bytes(acts: Sequence[Act], prepare: Act, *, expected: int | None = None) -> int | None:
    """Return the most bytes that a step holds at once beyond what is allocated already; None without measurement.

    Parameters
    ----------
    acts
        Actions of the step, node by node.
    prepare
        Called before each pass, unmeasured.
    expected
        A higher peak is measured again, up to `MOST` passes: other allocations of the process may have caused it.
    """
    bytes_by_act = _least_of_passes(_passes(acts, prepare, each=False), expected)
    return None if bytes_by_act is None else max(bytes_by_act, default=0)


def beside_each_bytes(acts: Sequence[Act], prepare: Act) -> tuple[int, ...] | None:
    """Return the bytes that each node allocates beyond what is allocated already; None without measurement."""
    return _least_of_passes(_passes(acts, prepare, each=True), None)


def high_water_bytes(acts: Sequence[Act], prepare: Act) -> int | None:
    """Return the most that becomes resident in a step; None without measurement.

    Between the actions only the step itself returns memory (`give_back`). So the figure counts live memory and all that
    an
    allocator may keep: the highest mark of any process that takes such steps.

    Parameters
    ----------
    acts, prepare
        As in `peak_beside_bytes`.
    """
    give_back_act = give_back()
    with _keep_freed_memory() as trim, paused(), _ResidentCounter() as resident:
        if trim is None or resident.bytes() is None:
            return None
        marks: list[int] = []
        for _ in range(LEAST):
            prepare()
            trim()
            marks.append(_highest(acts, give_back_act, resident))
    return min(marks)


def _highest(acts: Sequence[Act], give_back_act: Act | None, resident: _ResidentCounter) -> int:
    """Return the most that a pass from now on holds above its least resident memory."""
    faulted = _fault_counter()
    low = resident_bytes = resident.bytes() or 0
    most, faults = 0, faulted()
    for act in acts:
        if act is not give_back_act:
            act()
            continue
        if resident_bytes + faulted() - faults - low > most:  # counting takes longer than most acts
            most = max(most, (resident.bytes() or 0) - low)
        act()
        # memory from before the step may be returned in it
        resident_bytes = resident.bytes() or 0
        low, faults = min(low, resident_bytes), faulted()
    return max(most, (resident.bytes() or 0) - low)


def held_bytes(arena_bytes: int, high_water: int | None, live: int | None) -> int | None:
    """Return arena and high-water mark together; None without measurement.

    Live memory is held, too. Separate passes measure both, each in whole pages, so the mark is at least the live
    memory.

    Parameters
    ----------
    high_water, live
        Results of `high_water_bytes` and `peak_beside_bytes`.
    """
    return None if high_water is None else arena_bytes + max(high_water, live or 0)


def memory_beside(
    acts: Sequence[Act], load: Act, arena_bytes: int, expected: int, told: Told = silent
) -> Mapping[str, Any]:
    """Measure the memory of kernels and allocator in steps that `load` prepares: figures of `Execution`, by name.

    Parameters
    ----------
    expected
        As for `peak_beside_bytes`.
    """
    high_water, passes = high_water_bytes(acts, load), count(1)
    gc.collect()
    load()

    def prepare() -> None:
        told(f"measuring the memory of kernels: pass {next(passes)}")
        load()

    live = peak_beside_bytes(acts, prepare, expected=expected)
    return {
        "kernel_workspace_bytes": live,
        "measured_peak_bytes": None if live is None else arena_bytes + live,
        "high_water_bytes": held_bytes(arena_bytes, high_water, live),
    }


def _least_of_passes(passes: Generator[tuple[int, ...], None, None], expected: int | None) -> tuple[int, ...] | None:
    """Return the least figure of each node over several passes; None if there are none.

    Other work of the process can only add: a few bytes that stay pin a whole page, and pages that were returned are
    counted again.
    """
    start = time.perf_counter()
    least: tuple[int, ...] | None = None
    n_unchanged, last_peak = 0, -1
    with closing(passes):
        for number, figures in enumerate(passes, 1):
            least = figures if least is None else tuple(map(min, least, figures))
            peak = max(least, default=0)
            n_unchanged, last_peak = n_unchanged + 1 if peak == last_peak else 1, peak
            elapsed_s = time.perf_counter() - start
            if expected is None:
                is_done = n_unchanged >= LEAST or elapsed_s > SECONDS
            elif peak <= expected:
                is_done = number >= LEAST or elapsed_s > SECONDS
            else:
                is_done = number >= MOST or elapsed_s > MOST_SECONDS
            if is_done:
                break
    return least


def _passes(acts: Sequence[Act], prepare: Act, *, each: bool) -> Generator[tuple[int, ...], None, None]:
    """Yield for each pass, without end, the bytes resident after each action beyond those before the first.

    Unless `each` is set, an action that can't be the peak gets only an upper bound.
    """
    with _keep_freed_memory() as trim, paused(), _ResidentCounter() as resident:
        if trim is None or resident.bytes() is None:
            return
        fault_bytes = _fault_counter()
        while True:
            # the list is allocated before the measurement
            figures = [0] * len(acts)
            prepare()
            trim()
            base = resident.bytes() or 0
            bound = most = 0
            for k, act in enumerate(acts):
                faults = fault_bytes()
                act()
                bound += fault_bytes() - faults
                if bound <= most:
                    figures[k] = bound
                    trim()
                    continue
                figures[k] = max(0, (resident.bytes() or 0) - base)
                most = 0 if each else max(most, figures[k])
                trim()
                # memory from before the step may be returned in it
                resident_bytes = resident.bytes() or 0
                base = min(base, resident_bytes)
                bound = resident_bytes - base
            yield tuple(figures)


def _fault_counter() -> Callable[[], int]:
    """Return a counter of the bytes of all pages that became resident so far.

    Where the system doesn't count, each call adds more than any memory.
    """
    from resource import RUSAGE_SELF, getpagesize, getrusage

    page = getpagesize()

    def faulted() -> int:
        return getrusage(RUSAGE_SELF).ru_minflt * page

    pages = 64
    with mmap.mmap(-1, pages * page) as mapping:
        before = faulted()
        for place in range(0, len(mapping), page):
            mapping[place] = 1
        is_counting = faulted() - before >= pages * page
    return faulted if is_counting else count(step=1 << 62).__next__


def alternate(
    steps: Mapping[str, Callable[[], Act]],
    *,
    seconds: float = 5.0,
    least: int = 3,
    most: int = 15,
    clock: Stopwatch | None = None,
) -> Mapping[str, float]:
    """Return median seconds of several steps, run in turns so that a slow moment of the machine hits all of them.

    In training a step follows itself; here it follows another one, which leaves its own data in the caches. That slows
    short steps (bert-tiny, 11 ms: by a tenth), so they run once unmeasured before each timing.

    Parameters
    ----------
    steps
        By name: a function that prepares a run, untimed, and returns what to time.
    seconds
        Approximate limit of all of it; each step runs at most `most` times, and at least `least` times unless that
        takes
        four times as long.
    clock
        Records the share of time for which other processes had the processors; those seconds don't count.
    """
    if clock is None:
        with Stopwatch() as new_clock:
            return alternate(steps, seconds=seconds, least=least, most=most, clock=new_clock)
    times: dict[str, list[float]] = {name: [] for name in steps}
    start = time.perf_counter()
    with paused():
        for turn in range(most):
            for name in _rotated(tuple(steps), turn):
                # steps of up to 0.1 s run once more before each timing
                if times[name] and times[name][-1] <= 0.1:
                    steps[name]()()
                times[name].append(clock.time(steps[name]()))
            elapsed_s = time.perf_counter() - start
            if (turn + 1 >= least or elapsed_s > 4 * seconds) and elapsed_s * (turn + 2) / (turn + 1) > seconds:
                break
    return {name: median(times_s) for name, times_s in times.items()}


def _rotated(names: Sequence[str], turn: int) -> Sequence[str]:
    return (*names[turn % len(names) :], *names[: turn % len(names)])


class _ResidentCounter:
    """Counter of the process's resident anonymous memory, page by page, not from the kernel's rough sums."""

    def __init__(self) -> None:
        self._buffer = bytearray(4096)
        self._file = -1

    def __enter__(self) -> _ResidentCounter:
        if os.path.exists(_RESIDENT):
            self._file = os.open(_RESIDENT, os.O_RDONLY)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)

    def bytes(self) -> int | None:
        """Return the number of bytes; None where the system doesn't tell."""
        if self._file < 0:
            return None
        # a preallocated buffer: reading must not allocate memory that it counts
        count = os.preadv(self._file, [self._buffer], 0)
        place = self._buffer.find(_FIELD, 0, count)
        return int(self._buffer[place + len(_FIELD) : self._buffer.index(b"kB", place)]) * 1024 if place >= 0 else None


@contextmanager
def _keep_freed_memory() -> Iterator[Act | None]:
    """Make the C library keep freed memory; yield the function that returns all free memory, or None."""
    try:
        libc = ctypes.CDLL(None)
        mallopt, trim, prctl = libc.mallopt, libc.malloc_trim, libc.prctl
    except (OSError, AttributeError, TypeError):
        yield None
        return
    mallopt(_M_MMAP_MAX, 0)
    mallopt(_M_TRIM_THRESHOLD, -1)
    mallopt(_M_TOP_PAD, 0)
    # without huge pages: one counts as a whole, however little of it is used
    prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    try:
        yield lambda: trim(0)
    finally:
        prctl(_PR_SET_THP_DISABLE, 0, 0, 0, 0)
        # the settings can't be unset; these are about glibc's own in a process that uses much memory
        mallopt(_M_MMAP_MAX, 65536)
        mallopt(_M_MMAP_THRESHOLD, 32 * 1024 * 1024)
        mallopt(_M_TRIM_THRESHOLD, 64 * 1024 * 1024)
        mallopt(_M_TOP_PAD, 128 * 1024)
        trim(0)
