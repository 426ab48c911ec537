"""Common parts of the command line: messages, JSON, the live line, and the handling of every error."""

from __future__ import annotations

import atexit
import codecs
import importlib
import io
import json
import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from poetopt.util import imports, interrupts, notes, shortage
from poetopt.util.errors import BackendUnavailableError, InfeasibleError, OptionError, OutputError, PoetError
from poetopt.util.figures import plain
from poetopt.util.files import check_writable, write_atomically
from poetopt.util.imports import culprit, failure, origin
from poetopt.util.process import PATHS
from poetopt.util.progress import Told, silent
from poetopt.util.shortage import ShortageError
from poetopt.util.text import escaped, shortened, shown

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from poetopt.search.solution import Listener

ERASED = "\r\x1b[2K"
"""Codes that erase a terminal's line."""
_UNTOLD: list[OSError] = []
"""Errors of writing that are reported at the end."""
_OWN: list[bool] = []
"""Not empty if the process belongs to one command line."""
LAYOUT = "\n\t"
"""Control characters that texts for people may contain."""


def complain(message: str) -> None:
    """Write one message to stderr."""
    text = f"poetopt: {shortened(shown(message.strip(), keep=LAYOUT))}"
    if sys.stderr.isatty():
        from poetopt.report.layout import fitted

        with suppress(OSError, ValueError):
            text = fitted(text, os.get_terminal_size(sys.stderr.fileno()).columns)
    print(text, file=sys.stderr)  # noqa: T201


def say(text: str, *, unless: Sequence[str | None] = ()) -> None:
    """Write lines for people to stdout, unless one of the outputs in `unless` is `-`.

    Control characters are escaped: texts of files can't control the terminal.
    """
    if "-" not in unless:
        if sys.stdout.isatty():
            from poetopt.report.layout import fitted, terminal_width

            text = fitted(text, terminal_width())
        print(shown(text, keep=LAYOUT))  # noqa: T201


def say_meanwhile(text: str, *, unless: Sequence[str | None] = ()) -> None:
    """Write lines as `say` does, at once and in place of the live line on stderr.

    If that fails, the work continues in silence, and the exit code reports it at the end.
    """
    if sys.stderr.isatty():
        sys.stderr.write(ERASED)
        sys.stderr.flush()
    try:
        say(text, unless=unless)
        sys.stdout.flush()
    except OSError as error:
        _UNTOLD.append(error)
        _silence_stdout()


def write_json(document: Mapping[str, object], target: str | None) -> None:
    """Write an object as JSON to stdout (`-`), to a file, or nowhere; NaN and infinity become null.

    Raises OutputError if it can't be written.
    """
    if target is None:
        return
    text = json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False)
    write_text(text + "\n", target, option="--json")


def write_text(text: str, target: str, *, option: str) -> None:
    """Write a text to stdout (`-`) or, whole or not at all, to a file. Raises OutputError."""
    if target != "-":
        write_atomically(target, text)
        return
    if sys.__stdout__ is None:
        raise OutputError(f"{option} -: the standard output is closed. Give a file.")
    sys.stdout.write(text)


def check_outputs(
    inputs: Sequence[str | None], outputs: Mapping[str, str | None], texts: Collection[str] = ("--json",)
) -> None:
    """Check before the work that the outputs can be written.

    Parameters
    ----------
    inputs
        Files that are read; no output may overwrite them.
    outputs
        Paths by option; `-` is stdout.
    texts
        Options that may write to stdout.

    Raises
    ------
    OutputError
        A path can't be written.
    OptionError
        Two options name the same path, or an option can't write to stdout.
    """
    to_stdout = [option for option, path in outputs.items() if path == "-"]
    for option in to_stdout:
        if option not in texts:
            raise OptionError(f"{option} -: it can't be written to the standard output. Give a file.")
    if len(to_stdout) > 1:
        raise OptionError(f"{to_stdout[0]} -: {to_stdout[1]} goes to the standard output too. Give a file for one.")
    uses = {os.path.realpath(path): "is the input" for path in inputs if path is not None}
    for option, path in outputs.items():
        if path is None or path == "-":
            continue
        real = os.path.realpath(path)
        if real in uses:
            raise OptionError(f"{option} {path}: {uses[real]} already. Give another path.")
        if Path(real).is_file() or not Path(real).exists():
            uses[real] = f"is the file of {option}"
        check_writable(path)


@contextmanager
def live_line(first: str = "reading the model") -> Iterator[Callable[[str], None] | None]:
    """Yield a function that shows a line on stderr, cut to the terminal's width; None without a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    console = Console(stderr=True)
    with console.status(first, spinner="dots") as status:
        # the spinner takes three columns
        yield lambda text: status.update(text[: console.width - 3])


@contextmanager
def live_progress() -> Iterator[Listener | None]:
    """Yield a listener that shows the progress of a solve on stderr; None without a terminal."""
    from poetopt.report.layout import progress_line

    with live_line() as tell:
        yield None if tell is None else lambda progress: tell(progress_line(progress))


@contextmanager
def doing(work: str) -> Iterator[Told]:
    """Show the current work on a terminal's stderr while the body runs; the body may update it.

    The line doesn't move by itself: the body measures times.
    """
    if not sys.stderr.isatty():
        yield silent
        return

    def tell(text: str) -> None:
        sys.stderr.write(f"{ERASED}{text} ...")
        sys.stderr.flush()

    sys.stderr.write(f"{work} ...")
    sys.stderr.flush()
    try:
        yield tell
    finally:
        sys.stderr.write(ERASED)
        sys.stderr.flush()


def own_the_process() -> None:
    """Keep stderr for messages of poetopt: no warnings or logs of libraries, no traceback of a defect.

    SIGTERM acts like Ctrl-C: commands clean up, and a solve ends with its best schedule so far.
    """
    _OWN.append(True)
    interrupts.install()
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    logging.disable()
    sys.excepthook = _last_resort
    _fill_streams()


def _fill_streams() -> None:
    """Open closed standard streams on the null device, so that no other file gets their numbers.

    Characters that an encoding lacks are escaped. What can't be written to stderr is dropped: the exit code reports it.
    With limited memory, libraries' messages on stderr are dropped, as `supervise` reports the shortage better.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    codecs.register_error("poetopt", escaped)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="poetopt")
    encoding, number = getattr(sys.stderr, "encoding", "utf-8"), 2
    if shortage.memory_limit() is not None:
        number, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 2)
    raw = _Unfailing(number, "w", closefd=False)
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(raw), encoding, "poetopt", line_buffering=True)


class _Unfailing(io.FileIO):
    """A file that drops what it can't write: on a full disk, to a pipe without a reader."""

    def write(self, data: Buffer, /) -> int:
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def without_parser(module: ModuleType, arguments: dict[str, Any]) -> int:
    """Return the exit code of `module.work(**arguments)`.

    The program `poetopt` continues in a fresh interpreter, if possible, to free the memory of the parser.
    """
    if not _OWN or not sys.executable:
        return module.work(**arguments)  # type: ignore[no-any-return]
    handover = json.dumps([sys.path, module.__name__, notes.all_shown(), arguments])
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os.dup2(sys.stderr.fileno(), 2)
    interrupts.check()
    signal.pthread_sigmask(signal.SIG_BLOCK, interrupts.CODES)  # until the new interpreter has its handlers
    os.execv(
        sys.executable, [sys.executable, "-c", f"{PATHS}; from poetopt.cli.console import go_on; go_on()", handover]
    )


def go_on() -> NoReturn:
    """Run the command in the interpreter that `without_parser` started."""
    sys.path[:], name, verbose, arguments = json.loads(sys.argv[1])
    own_the_process()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, interrupts.CODES)
    notes.show_all(wanted=verbose)
    end(guarded(lambda: importlib.import_module(name).work(**arguments)))


def end(code: int) -> NoReturn:
    """End the process after all work. Signals are ignored meanwhile, as they would change the exit code."""
    interrupts.deafen()
    if interrupts.came() is None:
        atexit._run_exitfuncs()
    leave(code)


def leave(code: int) -> NoReturn:
    """End the process at once.

    Python would take seconds to free a model of a million rows. It would also wait for the thread of a stopped solver,
    and
    report a Ctrl-C inside `exec` that was handled before.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def guarded(command: Callable[[], int]) -> int:
    """Run a command and return its exit code, or that of its error, which is written to stderr."""
    aborts = (sys.modules["typer"].Abort,) if "typer" in sys.modules else ()
    try:
        code = command()
        sys.stdout.flush()
        if _UNTOLD:
            raise _UNTOLD.pop(0)
    except (KeyboardInterrupt, *aborts):
        return _stopped()
    except BrokenPipeError:
        _silence_stdout()
        # Nobody reads stdout: end with the exit code of SIGPIPE in a shell, without a message.
        return 141
    except Exception as error:
        shortage_message = shortage.lack(error)
        if interrupts.came() is not None and not isinstance(error, (InfeasibleError, OSError)):
            return _stopped()  # libraries turn an interrupt into other errors
        outcome = (shortage_message, ShortageError.exit_code) if shortage_message is not None else _message(error)
        if outcome is None:
            raise
        if not isinstance(error, PoetError):
            _silence_stdout()
        complain(outcome[0])
        return outcome[1]
    return code


def _message(error: Exception) -> tuple[str, int] | None:
    """Return the message and the exit code of an error; None for a defect, or if a traceback is asked for."""
    traceback = bool(os.environ.get("POETOPT_TRACEBACK"))
    if isinstance(error, PoetError):
        return None if traceback and error.__cause__ is not None else (str(error), error.exit_code)
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        text = f"{where}{error.strerror or error}. Check the path, its permissions and the free space."
        return text, OutputError.exit_code
    if isinstance(error, RecursionError):
        text = "the input is nested too deeply. Check that it is a model of ordinary structure."
        return text, PoetError.exit_code
    missing = imports.told(error) if isinstance(error, ModuleNotFoundError) else None
    if missing is not None:
        return missing, BackendUnavailableError.exit_code
    point = culprit(error.__traceback__)
    if point is None or traceback:
        return None
    text = f"{origin(point)} failed: {failure(error)}. Report it to its authors with the output of POETOPT_TRACEBACK=1."
    return text, PoetError.exit_code


def _stopped() -> int:
    """Report the signal that ended the command, and return its exit code."""
    interrupts.deafen()  # a second signal must not cut off the message
    number = interrupts.came() or signal.SIGINT
    complain(interrupts.words(number))
    return interrupts.CODES[number]


def _silence_stdout() -> None:
    """Drop the rest of stdout's buffer, which the interpreter would try to write again at exit."""
    with suppress(OSError):  # without a free descriptor, `leave` tries once more and fails
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _last_resort(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Report a defect of poetopt in one message. POETOPT_TRACEBACK=1 shows the traceback."""
    if os.environ.get("POETOPT_TRACEBACK"):
        sys.__excepthook__(kind, error, trace)
        return
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else ""
    complain(
        f"a defect in poetopt: {kind.__name__}: {error}{place}. Please report it, with what POETOPT_TRACEBACK=1 shows."
    )
