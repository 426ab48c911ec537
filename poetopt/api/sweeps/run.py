"""A sweep from its file to its last row."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poetopt.api.sweeps.evaluate import Value, evaluate
from poetopt.api.sweeps.points import Point, read_sweep
from poetopt.api.sweeps.store import Store, opened
from poetopt.util.errors import BackendUnavailableError, ExecutionError, OptionError
from poetopt.util.scratch import scratch_folder
from poetopt.util.version import __version__

if TYPE_CHECKING:
    from distributed import Client, Future

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
    """What begins in the block, threads and processes, is never told of Ctrl-C; this process is at the block's end.

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
    """How far a sweep is.

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
    with opened(where, points) as store:
        done = store.done()
        run = _Run(store, points, retries, told or (lambda _state: None), len(done), begin)
        missing = [point for point in points if point.index not in done]
        if missing:
            check_dask()
            run.say("starting workers")
            wanted = min(len(missing), workers or os.cpu_count() or 1)
            with connected(scheduler, wanted) as client:
                run.all(client, missing)
        return Swept(
            path=str(where),
            total=len(points),
            rows=tuple(store.rows()),
            here=run.here,
            retried=sum(run.tries.values()),
            lost=tuple(run.lost),
            total_s=time.monotonic() - begin,
        )


@dataclass
class _Run:
    store: Store
    points: Sequence[Point]
    retries: int
    told: Told
    done: int
    begin: float
    here: int = 0
    tries: Counter[int] = field(default_factory=Counter)
    lost: list[tuple[str, str]] = field(default_factory=list)

    def say(self, last: str) -> None:
        elapsed_s = time.monotonic() - self.begin
        self.told(State(self.done, self.here, len(self.points), elapsed_s, sum(self.tries.values()), last))

    def all(self, client: Client, missing: Sequence[Point]) -> None:
        """Keep every worker busy with one point, and no more: what dies with a worker is one point."""
        from distributed import as_completed

        waiting = iter(missing)
        at_work: dict[str, Point] = {}
        futures = as_completed([])
        self._fill(client, waiting, at_work, futures)
        while at_work:
            future = next(futures)
            point = at_work.pop(future.key)
            again = self._ended(point, future)
            if again:
                self._submit(client, point, at_work, futures)
            self._fill(client, waiting, at_work, futures)

    def _fill(self, client: Client, waiting: Iterator[Point], at_work: dict[str, Point], futures: Any) -> None:
        # Workers may come and go meanwhile; without any, a point waits for the next one.
        room = max(1, sum(client.nthreads().values()))
        while len(at_work) < room and (point := next(waiting, None)) is not None:
            self._submit(client, point, at_work, futures)

    def _submit(self, client: Client, point: Point, at_work: dict[str, Point], futures: Any) -> None:
        self.store.start(point)
        future = client.submit(evaluate, point, pure=False)
        at_work[future.key] = point
        futures.add(future)

    def _ended(self, point: Point, future: Future) -> bool:
        """Keep what came of a point; whether it has to be tried again."""
        from distributed import KilledWorker

        if future.status == "finished":
            self.store.put(point, future.result())
            self.done += 1
            self.here += 1
            self.say(str(point))
            return False
        if future.status != "error":
            raise ExecutionError(
                f"the dask scheduler went away (a point's state is '{future.status}'); {self.done} of "
                f"{len(self.points)} rows are kept: start it, and give the same command again"
            )
        error = future.exception()
        if isinstance(error, KilledWorker) and self.tries[point.index] < self.retries:
            self.tries[point.index] += 1
            self.say(f"again, as its worker died: {point}")
            return True
        died = "its worker died, and so did those of its retries" if isinstance(error, KilledWorker) else ""
        self.lost.append((str(point), died or f"{type(error).__name__}: {error}"))
        return False
