"""Sweeps: one TOML file of questions, a loop over them on dask, one SQLite table of answers.

    models = ["lenet", { model = "net.onnx", batch = 4, train = ["fc.*"], loss = "mse" },
              { model = "open.onnx", dims = { height = 160 }, shapes = { x = "1x3x?x160" }, values = { sr = 16000 } }]
    devices = ["a72", "./board.toml"]
    ram = "20%..100%/9"             # or a list: ["40%", "300KiB"]
    deadlines = ["none", "1.5x"]    # optional, like all that follow
    methods = ["poet", "dtr"]       # names of `poetopt compare`; default: poet
    time_limit = "20s"              # of one solve; gap, scope, threads and backend as in `poetopt compare`

Paths are relative to the file. Points are the product, in the order of the file; methods vary fastest. A model has the
options of `po.load` and `Model.differentiate`. Each row is written when its point ends, in its own transaction, under a
key of everything that it depends on. So no kill loses a row, and the same command continues with the missing points.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poetopt import zoo
from poetopt.api.comparing import settings_of
from poetopt.api.models import load
from poetopt.api.options import DERIVED, READ, MethodOptions
from poetopt.api.problems import store_all_peak_bytes
from poetopt.comparison.baselines import method
from poetopt.comparison.baselines.acceptance import Settings
from poetopt.comparison.compare import compare
from poetopt.comparison.rows import COLUMNS as FOUND
from poetopt.comparison.rows import in_bytes, parse_budgets
from poetopt.devices import device as device_of
from poetopt.graph.problem import Problem
from poetopt.util import __version__
from poetopt.util.errors import (
    BackendUnavailableError,
    DeviceError,
    ExecutionError,
    OptionError,
    OutputError,
    PoetError,
)
from poetopt.util.files import (
    TABLE_BYTES,
    check_writable,
    digest,
    is_regular,
    lock_file,
    parse_toml,
    read_text,
    scratch_folder,
)
from poetopt.util.text import closest
from poetopt.util.units import Factor, Share, finite, parse_deadline, parse_time, show_seconds

if TYPE_CHECKING:
    from distributed import Client

Row = dict[str, Any]
"""Answer of a point, by column."""
KEYS = ("models", "devices", "ram", "deadlines", "methods", "time_limit", "gap", "scope", "threads", "backend")
MODEL_KEYS = tuple(dict.fromkeys(("model", "name", *READ, *DERIVED)))
POINT = ("point", "model", "device", "method", "ram", "deadline")
RESULT = tuple(name for name in FOUND if name not in ("method", "reason", "solve_s"))
OF_PROBLEM = ("deadline_s", "operators", "tensors", "store_all_peak_bytes", "baseline_energy_j", "baseline_time_s")
COLUMNS = (*POINT, *RESULT, *OF_PROBLEM, "reason", "limited", "solve_s", "total_s")
"""All but the last four are reproducible, unless a time limit ended a solve."""
ERROR = "error"
"""Status of a point whose model or device can't be used."""
CONNECT_S = 15
"""Seconds to wait for a scheduler, and for its first worker."""


@dataclass(frozen=True, kw_only=True)
class SweepPoint:
    """One solve: a model, a device, a budget, a deadline and a method.

    Attributes
    ----------
    options
        Options of the model, as JSON.
    content
        SHA-256 of the files of model and device; empty for names.
    """

    index: int
    model: str
    model_name: str
    options: str
    device: str
    content: tuple[str, str]
    ram: int | Share
    deadline: float | Factor | None
    method: str
    settings: Settings

    @property
    def said(self) -> dict[str, str]:
        """Columns of its row that don't depend on the solve."""
        ram, deadline = self.ram, self.deadline
        return {
            "model": self.model_name,
            "device": Path(self.device).stem if self.content[1] else self.device,
            "method": self.method,
            "ram": f"{100 * ram.fraction:.10g}%" if isinstance(ram, Share) else str(ram),
            "deadline": "none" if deadline is None else f"{deadline.times:.10g}x" if isinstance(deadline, Factor)
            else f"{deadline:.10g}",
        }  # fmt: skip

    @property
    def key(self) -> str:
        """Hash of everything that the row depends on, with the content of files, but not the point's position."""
        files = [self.content[0] or self.model, self.content[1] or self.device]
        parts = [__version__, files, self.options, *self.said.values(), asdict(self.settings)]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def __str__(self) -> str:
        columns = self.said
        text = f"{self.method}, {self.model_name} on {columns['device']} at {columns['ram']}"
        return text if self.deadline is None else f"{text} in {columns['deadline']}"


def evaluate(point: SweepPoint) -> Row:
    """Return the row of a point, without its position. An error of poetopt is also a row, with the reason."""
    begin = time.monotonic()
    try:
        problem = _cached_problem(point.model, point.options, point.device)
        peak = store_all_peak_bytes(problem)
        deadline = point.deadline
        deadline_s = deadline.times * problem.baseline_time_s if isinstance(deadline, Factor) else deadline
        settings = replace(point.settings, deadline_s=deadline_s)
        (solved,) = compare(problem, in_bytes((point.ram,), peak), [point.method], settings).rows
        row = {key: value for key, value in solved.to_dict().items() if key != "method"}
        of_problem = (deadline_s, len(problem.operators), len(problem.tensors), peak, problem.baseline_energy_j)
        row |= dict(zip(OF_PROBLEM, (*of_problem, problem.baseline_time_s), strict=True))
    except (PoetError, AttributeError, TypeError, ValueError) as error:
        row = {"status": ERROR, "reason": str(error), "solve_s": 0.0}
    # A solve that took 95 % of its time limit was ended by it, so another run may differ.
    limited = int(float(str(row["solve_s"])) >= 0.95 * point.settings.time_limit_s)
    return {**row, "limited": limited, "total_s": time.monotonic() - begin}


@lru_cache(maxsize=2)
def _cached_problem(model: str, options: str, device: str) -> Problem:
    model_options: dict[str, Any] = json.loads(options)
    step = load(model, **{name: value for name, value in model_options.items() if name in READ})
    return step.differentiate(**{name: value for name, value in model_options.items() if name in DERIVED}).cost(device)


def read_sweep(path: str | os.PathLike[str]) -> tuple[SweepPoint, ...]:
    """Return the points of a sweep file. Raises OptionError if it can't be read or is invalid."""
    shown = os.fspath(path)
    try:
        table: dict[str, Any] = parse_toml(read_text(path, TABLE_BYTES))
    except OSError as error:
        raise OptionError(
            f"{shown}: the sweep can't be read: {error.strerror}. Give the path of a TOML file"
        ) from error
    except ValueError as error:
        what = "it is not text" if isinstance(error, UnicodeDecodeError) else f"not valid TOML: {error}"
        raise OptionError(f"{shown}: {what}. Give a TOML file with models, devices and ram") from error
    _check_keys(shown, table, KEYS, "a sweep")
    for key in ("models", "devices", "ram"):
        if not table.get(key):
            raise OptionError(f"{shown}: '{key}' is missing. A sweep needs models, devices and ram")
    folder = Path(shown).resolve().parent
    models = [_read_model_entry(shown, folder, entry) for entry in _as_list(table["models"])]
    if len({name for _, name, _, _ in models}) < len(models):
        raise OptionError(f'{shown}: models: two have the same name. Tell them apart with name = "..."')
    devices = [_find_file(shown, folder, str(entry)) for entry in _as_list(table["devices"])]
    if unknown := next((place for place, *_, content in models if not content and place not in zoo.names()), None):
        raise OptionError(
            f"{shown}: {unknown}: neither a regular file nor a network of the zoo{closest(unknown, zoo.names())}"
        )
    try:
        if not any(place.endswith(".json") for place, *_ in models):  # a problem file has its own devices
            for place, _ in devices:
                device_of(place)
        budgets = [one for entry in _as_list(table["ram"]) for one in parse_budgets(str(entry), option="ram")]
        deadlines = [
            None if entry == "none" else parse_deadline(str(entry), option="deadlines")
            for entry in _as_list(table.get("deadlines", "none"))
        ]
        methods = [method(str(entry)).name for entry in _as_list(table.get("methods", "poet"))]
        threads = table.get("threads", 1)
        if type(threads) is not int or threads < 0:
            raise OptionError(f"threads = {threads!r}: must be a whole number of at least 0")
        texts = {name: str(table[name]) for name in ("gap", "scope", "backend") if name in table}
        limit_s = parse_time(table.get("time_limit", "60s"), option="time_limit")
        settings = settings_of(MethodOptions(**texts, threads=threads), limit_s)  # type: ignore[arg-type]
    except (DeviceError, OptionError) as error:
        raise OptionError(f"{shown}: {str(error).replace('--', '')}") from error
    points: dict[str, SweepPoint] = {}  # points that are named twice run once
    for model, device, deadline, ram, name in itertools.product(models, devices, deadlines, budgets, methods):
        point = SweepPoint(
            index=len(points), model=model[0], model_name=model[1], options=model[2], device=device[0],
            content=(model[3], device[1]), deadline=deadline, ram=ram, method=name, settings=settings,
        )  # fmt: skip
        points.setdefault(point.key, point)
    return tuple(points.values())


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _check_keys(shown: str, table: Mapping[str, object], keys: Sequence[str], what: str) -> None:
    for key in table:
        if key not in keys:
            raise OptionError(
                f"{shown}: unknown key '{key}'{closest(key, keys)}. The keys of {what} are {', '.join(keys)}"
            )


def _read_model_entry(shown: str, folder: Path, entry: object) -> tuple[str, str, str, str]:
    """Return the path or name of a model, its name in rows, its options as JSON, and the digest of its file."""
    table = entry if isinstance(entry, dict) else {"model": entry}
    _check_keys(f"{shown}: models", table, MODEL_KEYS, "a model")
    model = str(table.get("model"))
    options = {key: value for key, value in table.items() if key not in ("model", "name")}
    place, content = _find_file(shown, folder, model)
    words = [Path(model).stem if content else model, *(f"{key}={value}" for key, value in options.items())]
    return place, str(table.get("name") or " ".join(words)), json.dumps(options, default=str, sort_keys=True), content


def _find_file(shown: str, folder: Path, text: str) -> tuple[str, str]:
    """Return the absolute path of a file beside the sweep and its digest, or a name and ""."""
    path = folder / text
    if not is_regular(path):
        if path.suffix in (".onnx", ".json", ".toml") or os.sep in text:
            raise OptionError(f"{shown}: {text}: no regular file in {folder}. Give a path relative to the sweep file")
        return text, ""
    try:
        return str(path), digest(path)
    except OSError as error:
        raise OptionError(f"{path}: can't be read: {error.strerror}. Check its permissions") from error


@contextmanager
def opened(path: str | os.PathLike[str], points: Sequence[SweepPoint]) -> Iterator[sqlite3.Connection]:
    """Open the results file of a sweep, create it if there is none, and lock it against other sweeps.

    A file that was created here is removed if the block raises before there is a row.

    Raises
    ------
    OptionError
        For another kind of file, the results of another sweep, or a file in use.
    OutputError
        For a file that can't be written.
    """
    shown = os.fspath(path)
    is_new = not Path(path).exists()
    if is_new:
        check_writable(path)
    elif not is_regular(path):
        raise OptionError(f"{shown}: not a regular file. Give another path with -o")
    keys = {point.key for point in points}
    with ExitStack() as stack:
        try:
            descriptor = os.open(shown, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise OutputError(f"can't write {shown}: {error.strerror}. Give another path with -o") from error
        stack.callback(os.close, descriptor)  # releases the lock, as the end of the process does
        if not lock_file(descriptor):
            raise OptionError(f"{shown}: another sweep is writing it. Wait for its end, or give another -o")
        connection = stack.enter_context(closing(sqlite3.connect(shown, timeout=30.0)))
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        is_complete = False
        try:
            tables = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL LIMIT 2").fetchall()
            if not tables:
                with connection:
                    connection.execute(_TABLE)
            elif tables != [(_TABLE,)]:  # a view or a trigger could run any code
                raise OptionError(f"{shown}: not the results of a sweep of this version. Give another path with -o")
            _check_rows(shown, connection, keys)
            yield connection
            is_complete = True
        except sqlite3.OperationalError as error:
            raise OutputError(f"can't write {shown}: {error}. Make room there, or give another -o") from error
        except sqlite3.DatabaseError as error:
            raise OptionError(f"{shown}: not the results of a sweep ({error}). Give another path with -o") from error
        finally:
            if is_new and not is_complete and not _count_rows(connection):
                with suppress(OSError):
                    os.unlink(shown)


_TABLE = f"CREATE TABLE rows (key PRIMARY KEY, {', '.join(COLUMNS)})"
"""Statement that creates the only table of a results file."""


def _check_rows(shown: str, connection: sqlite3.Connection, keys: Collection[str]) -> None:
    """Raise OptionError for rows of no point of the sweep, and for cells of a wrong type."""
    foreign, first = 0, list[object]()
    for key, *cells in connection.execute(f"SELECT key, {', '.join(COLUMNS)} FROM rows"):
        if key not in keys:
            foreign, first = foreign + 1, first or cells[1 : len(POINT)]
        elif not all(cell is None or isinstance(cell, str) or finite(cell) is not None for cell in cells):
            raise OptionError(f"{shown}: a row has a cell that is neither number nor text. Give another path with -o")
    if foreign:
        raise OptionError(
            f"{shown}: the results of another sweep, or of another version of poetopt: {foreign} of its rows are not "
            f"points of this one ({', '.join(map(str, first))}; a changed model, device file or setting counts too). "
            "Give another -o, or the original sweep"
        )


def _count_rows(connection: sqlite3.Connection) -> int:
    try:
        return int(connection.execute("SELECT count(*) FROM rows").fetchone()[0])
    except sqlite3.Error:  # not even a table
        return 0


def put(connection: sqlite3.Connection, point: SweepPoint, row: Row) -> None:
    """Store a row."""
    cells = {**point.said, "point": point.index, **row}
    with connection:
        marks = ", ".join("?" * (1 + len(COLUMNS)))
        connection.execute(f"INSERT INTO rows VALUES ({marks})", [point.key, *map(cells.get, COLUMNS)])


def rows_of(connection: sqlite3.Connection, points: Sequence[SweepPoint]) -> dict[str, Row]:
    """Return all rows by key, in the order of the sweep's points."""
    cursor = connection.execute(f"SELECT key, {', '.join(COLUMNS)} FROM rows")
    stored = {key: dict(zip(COLUMNS, cells, strict=True)) for key, *cells in cursor}
    return {point.key: {**stored[point.key], "point": point.index} for point in points if point.key in stored}


@dataclass(frozen=True)
class Swept:
    """Result of a completed sweep.

    Attributes
    ----------
    rows
        All rows of the results file, including those of earlier runs, in the order of the points.
    here
        Number of rows that this run added.
    lost
        Points without a row, each with the reason.
    """

    path: str
    total: int
    rows: tuple[Row, ...] = field(repr=False)
    here: int
    lost: tuple[tuple[str, str], ...]
    total_s: float

    def to_dict(self) -> dict[str, object]:
        """Return the object of `poetopt sweep --json`."""
        return {
            "points": self.total,
            "rows": list(self.rows),
            "new_rows": self.here,
            "lost": [{"point": point, "reason": reason} for point, reason in self.lost],
            "total_s": self.total_s,
            "version": __version__,
        }

    def __str__(self) -> str:
        by_status = Counter(str(row["status"]) for row in self.rows)
        states = ", ".join(f"{count} {status}" for status, count in sorted(by_status.items()))
        limited = sum(bool(row["limited"]) for row in self.rows)
        reasons = Counter(str(row["reason"]) for row in self.rows if row["status"] == ERROR)
        lines = [
            f"{len(self.rows)} of {self.total} rows in {self.path}: {states or 'none'}",
            f"  {self.here} of them from this run, in {show_seconds(self.total_s)}",
        ]
        if limited:
            lines.append(f"  {limited} ended by their time limit; another run may find better or worse plans for these")
        return "\n".join([*lines, *(f"  error, {count} times: {reason}" for reason, count in reasons.items())])


def sweep(
    path: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str] | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
    told: Callable[[str], None] | None = None,
) -> Swept:
    """Run the points of a sweep file that its results file has no row for.

    Parameters
    ----------
    path
        The sweep (`poetopt.api.sweeps`).
    out
        Results file; by default beside the sweep, with the suffix `.sqlite`.
    scheduler
        Address of a dask scheduler; by default a cluster of local processes.
    workers
        Number of local processes; by default one per processor. A point whose worker dies is run once more.
    told
        Function that is called with a line for each point that ends.

    Raises
    ------
    OptionError
        For an invalid sweep or results file.
    BackendUnavailableError
        Without dask, or if the scheduler doesn't answer.
    ExecutionError
        If the scheduler goes away.
    """
    begin = time.monotonic()
    if workers is not None and (scheduler is not None or workers < 1):
        raise OptionError(
            "--workers: must be at least 1, and can't be used with --scheduler, which has its own workers"
        )
    points = read_sweep(path)
    results_path = Path(path).with_suffix(".sqlite") if out is None else Path(out)
    lost: list[tuple[str, str]] = []
    with opened(results_path, points) as connection:
        done = rows_of(connection, points)
        missing = [point for point in points if point.key not in done]
        if missing:
            with _connected(scheduler, min(len(missing), workers or os.cpu_count() or 1)) as client:
                from distributed import as_completed

                futures = {client.submit(evaluate, point, pure=False): point for point in missing}
                for number, future in enumerate(as_completed(futures), len(done) + 1):
                    point = futures[future]
                    if future.status == "finished":
                        put(connection, point, future.result())
                    elif future.status == "error":
                        error = future.exception()
                        reason = "its worker died, twice" if type(error).__name__ == "KilledWorker" else repr(error)
                        lost.append((str(point), reason))
                    else:
                        raise ExecutionError(
                            f"the dask scheduler went away. {number - 1} of {len(points)} rows are kept. Start it, and "
                            "give the same command again"
                        )
                    if told is not None:
                        told(f"{number} of {len(points)} points: {point}")
        rows = tuple(rows_of(connection, points).values())
        return Swept(str(results_path), len(points), rows, len(rows) - len(done), tuple(lost), time.monotonic() - begin)


@contextmanager
def _connected(scheduler: str | None, workers: int) -> Iterator[Client]:
    """Yield a client of `scheduler`, or of a local cluster of `workers` processes, which ends with the block.

    Raises BackendUnavailableError if the scheduler doesn't answer, or has no workers that can import poetopt.
    """
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise BackendUnavailableError(
            "dask.distributed is not installed. Install it with: pip install 'poetopt[dask]'"
        ) from error
    if scheduler is not None:
        try:
            client = Client(scheduler, timeout=CONNECT_S)
        except (OSError, ValueError) as error:  # a timeout is an OSError
            raise BackendUnavailableError(
                f"--scheduler {scheduler}: no dask scheduler answers there ({error}). Start one with `dask scheduler`, "
                "and give the address that it shows (tcp://HOST:8786)"
            ) from error
        with client:
            _check_workers(client, scheduler)
            yield client
        return
    settings = {
        # A point whose worker died is run once more, and a worker has one point at a time.
        "distributed.scheduler.allowed-failures": 1,
        "distributed.scheduler.worker-saturation": 1.0,
        # A worker may be silent during a long solve, so silence must not count as its death.
        "distributed.scheduler.worker-ttl": None,
        "distributed.worker.daemon": True,
    }
    with dask.config.set(settings), ExitStack() as stack:
        # dask never removes its files in the common folder.
        scratch = stack.enter_context(scratch_folder("sweep"))
        stack.enter_context(dask.config.set({"temporary-directory": scratch}))
        _start_quiet_tracker()  # before the block, because Python allows interrupts again once it runs
        with _interrupts_blocked():
            try:
                local_cluster = LocalCluster(
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
                    f"no worker can be started ({error or type(error).__name__}). Check the limits on open files and "
                    "processes (ulimit -n, -u), and that the current folder still exists"
                ) from error
            cluster = stack.enter_context(local_cluster)
        yield stack.enter_context(Client(cluster))


def _check_workers(client: Client, scheduler: str) -> None:
    try:
        client.wait_for_workers(1, timeout=CONNECT_S)
    except TimeoutError as error:
        raise BackendUnavailableError(
            f"--scheduler {scheduler}: it has no workers. Start some with: dask worker {scheduler} --nthreads 1"
        ) from error
    for worker, version in client.run(installed_version).items():
        if version != __version__:
            raise BackendUnavailableError(
                f"--scheduler {scheduler}: the worker {worker} has poetopt {version}, but this is {__version__}. "
                "Install the same version there"
            )


def installed_version() -> str:
    """Return the version of poetopt on the worker that runs it."""
    return __version__


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Hide Ctrl-C from threads and processes that begin in the block; this process gets it at the end of the block.

    A terminal sends Ctrl-C to workers too, and each would print a traceback. They end with the cluster.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_quiet_tracker() -> None:
    """Start Python's resource tracker without its warnings.

    Libraries of the workers create semaphores, and a worker that is killed during a solve leaves them behind.
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
