"""A sweep from its file to its last row."""

from __future__ import annotations

import csv
import io
import logging
import os
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from poetopt.api.sweeps.points import SweepPoint, Value, evaluate, read_sweep
from poetopt.api.sweeps.store import COLUMNS, Store, opened
from poetopt.util.errors import BackendUnavailableError, ExecutionError, OptionError
from poetopt.util.files import scratch_folder
from poetopt.util.units import show_seconds
from poetopt.util.version import __version__

if TYPE_CHECKING:
    from distributed import Client, Future


def progress_line(state: State) -> str:
    """`37 of 60 points, 2.1 a minute, 11 min left: poet, lenet on a72 at 40%`."""
    text = f"{state.done} of {state.total} points"
    if state.rate_per_s is not None and state.remaining_s is not None:
        rate = f"{state.rate_per_s:.3g} a second" if state.rate_per_s >= 1 else f"{60 * state.rate_per_s:.3g} a minute"
        text += f", {rate}, {show_seconds(state.remaining_s)} left"
    if state.retried:
        text += f", {state.retried} again"
    return f"{text}: {state.last}"


def sweep_lines(found: Swept) -> list[str]:
    """The ends of points, and the place of the rows."""
    ended = Counter(str(row["status"]) for row in found.rows)
    states = ", ".join(f"{count} {status}" for status, count in sorted(ended.items()))
    lines = [
        f"{len(found.rows)} of {found.total} rows in {found.path}: {states or 'none'}",
        f"  {found.here} of them from this run, in {show_seconds(found.total_s)}"
        + (f"; {found.retried} points given out again, as their worker died" if found.retried else ""),
    ]
    limited = sum(bool(row["limited"]) for row in found.rows)
    if limited:
        lines.append(f"  {limited} ended by their time limit: another run may find better or worse plans for these")
    reasons = Counter(str(row["reason"]) for row in found.rows if row["status"] == "error")
    lines += [f"  error, {count} times: {reason}" for reason, count in reasons.items()]
    return lines


def sweep_csv(found: Swept) -> str:
    """All rows; what is not there is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in found.rows)
    return text.getvalue()


CONNECT_S = 15
"""Seconds to wait for a scheduler, and for its first worker."""


def check_dask() -> None:
    """Raise BackendUnavailableError where dask.distributed is not installed."""
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise BackendUnavailableError(
            "dask.distributed is not installed; install it with: pip install 'poetopt[dask]'"
        ) from error


@contextmanager
def connected(scheduler: str | None, workers: int) -> Iterator[Client]:
    """A client of `scheduler`, or of a cluster of that many processes here, which ends with the block.

    Raises BackendUnavailableError where the scheduler doesn't answer, or has no workers that can import poetopt.
    """
    check_dask()
    import dask
    from distributed import Client

    if scheduler is not None:
        with _client_of(scheduler) as client:
            _check_workers(client, scheduler)
            yield client
        return
    from distributed import LocalCluster

    settings = {
        # Our own loop gives a point out again; a scheduler elsewhere does so by itself first.
        "distributed.scheduler.allowed-failures": 0,
        # A worker deep in a solve may be silent for long: only its end counts as its death.
        "distributed.scheduler.worker-ttl": None,
        "distributed.worker.daemon": True,
    }
    with dask.config.set(settings), ExitStack() as stack:
        # dask never removes what it makes in the common folder.
        scratch = stack.enter_context(scratch_folder("sweep"))
        stack.enter_context(dask.config.set({"temporary-directory": scratch}))
        _start_quiet_tracker()  # not in the block: Python lets interrupts in again once it has started
        with _deaf_to_interrupts():
            try:
                made = LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    processes=True,
                    # Loopback only, any free port, and no pages on it.
                    host="127.0.0.1",
                    dashboard_address="127.0.0.1:0",
                    scheduler_kwargs={"dashboard": False},
                    memory_limit=0,
                    silence_logs=logging.CRITICAL,
                )
            except (OSError, RuntimeError, ValueError) as error:
                raise OptionError(
                    f"no worker can be started here ({error or type(error).__name__}); check the limits on open files "
                    "and processes (ulimit -n, -u) and that the current folder is still there"
                ) from error
            cluster = stack.enter_context(made)
        yield stack.enter_context(Client(cluster))


@contextmanager
def _deaf_to_interrupts() -> Iterator[None]:
    """Keep threads and processes that begin in the block from being told of Ctrl-C; this process is at the block's end.

    A terminal sends Ctrl-C to workers as well, and each would show a traceback of its own. They end with the cluster.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_quiet_tracker() -> None:
    """Start Python's keeper of semaphores such that it cleans up without a word.

    Libraries of the workers make some, and a worker that is killed deep in a solve leaves them behind.
    """
    from multiprocessing import resource_tracker

    before = os.environ.get("PYTHONWARNINGS")
    quiet = "ignore::UserWarning:multiprocessing.resource_tracker"
    os.environ["PYTHONWARNINGS"] = f"{before},{quiet}" if before else quiet
    try:
        resource_tracker.ensure_running()
    finally:
        if before is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = before


@contextmanager
def _client_of(scheduler: str) -> Iterator[Client]:
    from distributed import Client

    try:
        client = Client(scheduler, timeout=CONNECT_S)
    except (OSError, ValueError) as error:  # a timeout is an OSError
        raise BackendUnavailableError(
            f"--scheduler {scheduler}: no dask scheduler answers there ({error}); start one with `dask scheduler`, and "
            "give the address that it shows (tcp://HOST:8786)"
        ) from error
    with client:
        yield client


def _check_workers(client: Client, scheduler: str) -> None:
    try:
        client.wait_for_workers(1, timeout=CONNECT_S)
    except TimeoutError as error:
        raise BackendUnavailableError(
            f"--scheduler {scheduler}: it has no workers; start some with: dask worker {scheduler} --nthreads 1"
        ) from error
    for worker, version in client.run(installed_version).items():
        if version != __version__:
            has = f"poetopt {version}" if version else "no poetopt"
            raise BackendUnavailableError(
                f"--scheduler {scheduler}: the worker {worker} has {has}, this is {__version__}; install the same there"
            )


def installed_version() -> str:
    """Of poetopt, on the worker that is asked."""
    return __version__


@dataclass(frozen=True)
class State:
    """The progress of a sweep.

    done, here, total
        Points with a row; those of them that this run made; all.
    rate_per_s, remaining_s
        Of this run; None before its first row.
    retried
        Points that were given out again, as their worker died.
    """

    done: int
    here: int
    total: int
    elapsed_s: float
    retried: int
    last: str

    @property
    def rate_per_s(self) -> float | None:
        return self.here / self.elapsed_s if self.here and self.elapsed_s > 0 else None

    @property
    def remaining_s(self) -> float | None:
        return (self.total - self.done) / self.rate_per_s if self.rate_per_s else None


Told = Callable[[State], None]


@dataclass(frozen=True)
class Swept:
    """A sweep that came to its end.

    rows
        All of the results file, earlier runs' included, in the order of the points.
    here
        How many of them this run made.
    lost
        Points without a row, each with why.
    """

    path: str
    total: int
    rows: tuple[dict[str, Value], ...]
    here: int
    retried: int
    lost: tuple[tuple[str, str], ...]
    total_s: float

    def __repr__(self) -> str:
        return f"<Swept {self.path}: {len(self.rows)} of {self.total} points>"

    def to_dict(self) -> dict[str, object]:
        """The object of `poetopt sweep --json`."""
        return {
            "points": self.total,
            "rows": list(self.rows),
            "new_rows": self.here,
            "retried": self.retried,
            "lost": [{"point": point, "reason": reason} for point, reason in self.lost],
            "total_s": self.total_s,
            "version": __version__,
        }


def sweep(
    path: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
    retries: int = 1,
    told: Told | None = None,
) -> Swept:
    """Run the points of a sweep file that its results file has no row of.

    path
        The sweep (`poetopt.api.sweeps.points`).
    out
        The results; by default beside the sweep, with the ending `.sqlite`.
    scheduler
        The address of a dask scheduler; by default a cluster of processes here.
    workers
        So many of them; by default one a processor.
    retries
        Of a point whose worker died.

    Raises OptionError for a sweep or results file that can't be used, BackendUnavailableError without dask or where
    the scheduler doesn't answer, ExecutionError where it goes away.
    """
    begin = time.monotonic()
    if workers is not None and scheduler is not None:
        raise OptionError("--workers: the scheduler has workers of its own; leave it out, or --scheduler")
    if retries < 0 or (workers is not None and workers < 1):
        raise OptionError("--workers must be at least 1, --retries at least 0")
    points = read_sweep(path)
    where = Path(path).with_suffix(".sqlite") if out is None else Path(out)
    lost: list[tuple[str, str]] = []
    with opened(where, points) as store:
        done = store.done()
        missing = [point for point in points if point.index not in done]
        here = retried = 0

        def say(last: str) -> None:
            if told is not None:
                told(State(len(done) + here, here, len(points), time.monotonic() - begin, retried, last))

        if missing:
            check_dask()
            say("starting workers")
            with connected(scheduler, min(len(missing), workers or os.cpu_count() or 1)) as client:
                for point, future, again in _ended(client, missing, store, retries):
                    if again:
                        retried += 1
                        say(f"again, as its worker died: {point}")
                    elif future.status == "finished":
                        store.put(point, future.result())
                        here += 1
                        say(str(point))
                    elif future.status != "error":
                        raise ExecutionError(
                            f"the dask scheduler went away (a point's state is '{future.status}'); {len(done) + here} "
                            f"of {len(points)} rows are kept: start it, and give the same command again"
                        )
                    else:
                        error = future.exception()
                        died = "its worker died, and so did those of its retries"
                        killed = type(error).__name__ == "KilledWorker"
                        lost.append((str(point), died if killed else f"{type(error).__name__}: {error}"))
        rows = tuple(store.rows())
        return Swept(str(where), len(points), rows, here, retried, tuple(lost), time.monotonic() - begin)


def _ended(
    client: Client, missing: Sequence[SweepPoint], store: Store, retries: int
) -> Iterator[tuple[SweepPoint, Future, bool]]:
    """Each point that came to an end, and whether it is given out again, as its worker died.

    Every worker is kept busy with one point, and no more: what dies with a worker is one point.
    """
    from distributed import KilledWorker, as_completed

    waiting, futures = deque(missing), as_completed([])
    at_work: dict[str, SweepPoint] = {}
    tries: Counter[int] = Counter()
    while waiting or at_work:
        # Workers may come and go meanwhile; without any, a point waits for the next one.
        while waiting and len(at_work) < max(1, sum(client.nthreads().values())):
            point = waiting.popleft()
            store.start(point)
            future = client.submit(evaluate, point, pure=False)
            at_work[future.key] = point
            futures.add(future)
        future = next(futures)
        point = at_work.pop(future.key)
        killed = future.status == "error" and isinstance(future.exception(), KilledWorker)
        again = killed and tries[point.index] < retries
        if again:
            tries[point.index] += 1
            waiting.appendleft(point)
        yield point, future, again
