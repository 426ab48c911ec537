"""Workers: processes of this machine, or those of a dask scheduler that is running already."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from poetopt.util.errors import BackendUnavailableError, OptionError
from poetopt.util.scratch import scratch_folder
from poetopt.util.version import __version__

if TYPE_CHECKING:
    from distributed import Client

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
