"""Memory and garbage collection of this process, and calls in a subprocess that ends with it."""

from __future__ import annotations

import gc
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any, TypeVar

from poetopt.util import shortage
from poetopt.util.errors import ExecutionError, PoetError
from poetopt.util.progress import Told, silent


def peak_bytes() -> int:
    """Return the peak of resident bytes since the process began."""
    peak = _status_bytes("VmHWM:")
    if peak is not None:
        return peak
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident_bytes() -> int | None:
    """Return the resident bytes now; None if the system doesn't report them."""
    return _status_bytes("VmRSS:")


def _status_bytes(field: str) -> int | None:
    with (
        suppress(OSError, ValueError, IndexError),
        open("/proc/self/status", encoding="ascii", errors="replace") as file,
    ):
        for line in file:
            if line.startswith(field):
                return int(line.split()[1]) * 1024
    return None


@contextmanager
def paused() -> Iterator[None]:
    """Disable the garbage collector in the body, and restore it afterwards."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def building() -> Iterator[None]:
    """Disable the garbage collector in the body, and move the objects of the body to the oldest generation.

    Without that, the collector would scan them three times afterwards, as they age: a third of the time of building and
    compiling a model. If the program has frozen objects, the generations don't change.
    """
    with paused():
        yield
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()  # to the oldest generation


T = TypeVar("T")
_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PATHS = f"import sys; sys.path[:] = [{_HERE!r}, *filter(None, sys.path)]"
"""Code that puts this package first on the path, and drops the working directory, which `python -c` adds."""
_CODE = f"{PATHS}; from poetopt.util.process import main; main()"
_TOLD, _DONE, _FAILED = "told", "done", "failed"


def call(what: str, function: Callable[..., T], *arguments: object, told: Told = silent) -> T:
    """Call `function(*arguments, told=...)` in a subprocess, and return its result.

    Parameters
    ----------
    what
        Name of the work for the message if the process fails.
    function
        A module-level function. Its arguments and its result are pickled.

    Raises
    ------
    PoetError
        If the function raises it.
    ExecutionError
        If the process ends without a result.
    """
    request = pickle.dumps((sys.path, function.__module__, function.__qualname__, arguments))
    with ExitStack() as stack:
        try:
            errors = stack.enter_context(tempfile.TemporaryFile())
            process = subprocess.Popen(
                [sys.executable, "-c", _CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        except OSError as error:
            raise ExecutionError(f"{what} needs a subprocess, which can't be started: {error}") from error
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
            while True:
                kind, content = pickle.load(process.stdout)
                if kind == _TOLD:
                    told(content)
                elif kind == _DONE:
                    return content  # type: ignore[no-any-return]
                else:
                    raise content
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            ended = f"{what}: its process {_describe_end(process.wait(), errors)}"
            if shortage.memory_limit() is not None:
                raise shortage.ShortageError(f"{ended}. {shortage.lack_of_memory()}") from error
            raise ExecutionError(ended) from error
        finally:
            process.kill()
            process.stdin.close()
            process.stdout.close()
            process.wait()


def _describe_end(code: int, errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read()[-2000:].decode(errors="replace").strip().splitlines()
    if code < 0:
        killed = " (often the system, for lack of memory)" if code == -9 else ""
        return f"was killed by signal {-code}{killed}"
    return f"ended with code {code}{f': {lines[-1]}' if lines else ''}"


def main() -> None:
    """Run one call in the subprocess: the request is on stdin, the answer goes to stdout."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with the answer
    sys.path[:], module, name, arguments = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def answer(kind: str, content: object) -> None:
        pickle.dump((kind, content), answers)
        answers.flush()

    try:
        import importlib

        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        answer(_DONE, function(*arguments, told=lambda text: answer(_TOLD, text)))
    except KeyboardInterrupt:
        os._exit(130)
    except Exception as error:
        message = shortage.lack(error)
        if message is None and not isinstance(error, PoetError):
            raise
        answer(_FAILED, type(error)(str(error)) if message is None else shortage.ShortageError(message))


def _end_with_parent() -> None:
    """Exit when stdin ends, because the parent has ended."""
    os.read(0, 1)  # unbuffered: the lock of the buffered stdin would be held when the interpreter exits
    os._exit(1)
