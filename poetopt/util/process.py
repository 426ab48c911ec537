"""This process, its memory and its garbage, and work in a process of its own that ends with this one."""

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
    """The most that was resident since the process began."""
    found = _of("VmHWM:")
    if found is not None:
        return found
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def resident_bytes() -> int | None:
    """What is resident now; None where the system doesn't say."""
    return _of("VmRSS:")


def _of(field: str) -> int | None:
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
    """Without the collector, which afterwards is as it was."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextmanager
def building() -> Iterator[None]:
    """Without the collector, and what was made meanwhile counts as old in the end, without a look at it.

    A collector that is merely paused goes through all of it three times afterwards, as it grows old: a third of the
    time that building and compiling a model takes. Where a program has frozen objects of its own it is left at that.
    """
    with paused():
        yield
        if not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()  # to the oldest generation


T = TypeVar("T")
_HERE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PATHS = f"import sys; sys.path[:] = [{_HERE!r}, *filter(None, sys.path)]"
"""This very package, and nothing of the working directory, which `python -c` looks into first."""
_CODE = f"{PATHS}; from poetopt.util.process import main; main()"
_TOLD, _DONE, _FAILED = "told", "done", "failed"


def call(what: str, function: Callable[..., T], *arguments: object, told: Told = silent) -> T:
    """What `function(*arguments, told=...)` gives in another process.

    what
        For the message where that process ends without an answer.
    function
        Of a module. Its arguments and its result are pickled.

    Raises the `PoetError` that the function raises; `ExecutionError` where the process ends otherwise.
    """
    request = pickle.dumps((sys.path, function.__module__, function.__qualname__, arguments))
    with ExitStack() as stack:
        try:
            errors = stack.enter_context(tempfile.TemporaryFile())
            process = subprocess.Popen(
                [sys.executable, "-c", _CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
            )
        except OSError as error:
            raise ExecutionError(f"{what} needs a process of its own, which can't be started: {error}") from error
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
            ended = f"{what}: its process {_end(process.wait(), errors)}"
            if shortage.memory_limit() is not None:
                raise shortage.ShortageError(f"{ended}; {shortage.lack_of_memory()}") from error
            raise ExecutionError(ended) from error
        finally:
            process.kill()
            process.stdin.close()
            process.stdout.close()
            process.wait()


def _end(code: int, errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read()[-2000:].decode(errors="replace").strip().splitlines()
    if code < 0:
        killed = " (often the system, for lack of memory)" if code == -9 else ""
        return f"was ended by signal {-code}{killed}"
    return f"ended with code {code}{f': {lines[-1]}' if lines else ''}"


def main() -> None:
    """What such a process does: one call, asked for on stdin, answered on stdout."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is no answer
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
        lacking = shortage.lack(error)
        if lacking is None and not isinstance(error, PoetError):
            raise
        answer(_FAILED, type(error)(str(error)) if lacking is None else shortage.ShortageError(lacking))


def _end_with_parent() -> None:
    """Nothing more comes on stdin but its end, when the parent's is gone."""
    os.read(0, 1)  # not of the buffered stdin, whose lock would be held when the interpreter ends
    os._exit(1)
