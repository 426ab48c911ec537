"""A sweep from its file to its last row."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poetopt.api.sweeps.cluster import check_dask, connected
from poetopt.api.sweeps.evaluate import Value, evaluate
from poetopt.api.sweeps.points import Point, read_sweep
from poetopt.api.sweeps.store import Store, opened
from poetopt.util.errors import ExecutionError, OptionError
from poetopt.util.version import __version__

if TYPE_CHECKING:
    from distributed import Client, Future


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
