"""Signals (Ctrl-C, SIGTERM, SIGHUP) are recorded, so that an interrupt survives a swallowed exception.

Python raises KeyboardInterrupt wherever the main thread happens to be. Libraries may swallow it: in a bare `except`, in
a finalizer, in a callback of C code. So the command line's handlers also record the signal, and `check` raises it
before long work begins. Without the handlers, as in a notebook, all of this has no effect.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import NoReturn

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}
"""Exit codes of a shell for these signals, and their names in messages."""


class _State:  # not a dataclass: creating one would take most of this module's import time
    """State of the handlers.

    Attributes
    ----------
    first, at_s
        The first signal, and its time.
    held
        Whether a first signal is only recorded, because a result exists.
    terminals
        The descriptors among stdout and stderr that were terminals at the start.
    kept
        Note for the message on how to continue.
    """

    first: signal.Signals | None = None
    at_s: float = 0.0
    held: bool = False
    terminals: tuple[int, ...] = ()
    kept: str = ""


_state = _State()


def install() -> None:
    """Handle SIGTERM and SIGHUP like Ctrl-C, and record all three; signals that the parent ignores stay ignored."""
    _state.terminals = tuple(number for number in (1, 2) if os.isatty(number))
    for number in CODES:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _handle)


def _handle(number: int, frame: FrameType | None) -> None:
    now_s = time.monotonic()
    if number == signal.SIGHUP:
        _redirect_to_null()
    if _state.first is None:
        _state.first, _state.at_s = signal.Signals(number), now_s
        if _state.held:
            return
    elif now_s - _state.at_s < 0.5:
        return  # a repeated signal would interrupt writing the best result
    raise KeyboardInterrupt


def _redirect_to_null() -> None:
    """Redirect output for a closed terminal to the null device: each write would fail."""
    null = os.open(os.devnull, os.O_WRONLY)
    for number in _state.terminals:
        os.dup2(null, number)
    os.close(null)


def came() -> signal.Signals | None:
    """Return the first signal, or None."""
    return _state.first


def check() -> None:
    """Raise KeyboardInterrupt in the main thread after a signal; to be called before long work."""
    if _state.first is not None and threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt


def hold() -> None:
    """Only record a first signal from now on, because a result exists. A second one still raises."""
    _state.held = True


def let_go() -> None:
    """End `hold` before long work; raise KeyboardInterrupt if a signal was recorded since."""
    _state.held = False
    check()


def add(kept: str) -> None:
    """Add a note on how to continue to the message of an interrupt."""
    _state.kept = kept


def words(number: signal.Signals) -> str:
    """Return the message of an interrupt."""
    return f"{WORDS[number]}; {_state.kept}" if _state.kept else WORDS[number]


def deafen() -> None:
    """Ignore signals from now on: only one message or Python's shutdown remains."""
    for number in CODES:
        if signal.getsignal(number) is _handle:
            signal.signal(number, signal.SIG_IGN)


def stop_here() -> NoReturn:
    """Exit before the command line has started, with a message on stderr and the signal's exit code."""
    deafen()
    number = _state.first or signal.SIGINT
    with suppress(OSError, ValueError, AttributeError):  # stderr is None if it was closed before the start
        sys.stderr.write(f"poetopt: {WORDS[number]}\n")
        sys.stderr.flush()
    os._exit(CODES[number])  # Python would exit by SIGINT if an exception has passed through `exec`
