"""Ctrl-C, SIGTERM, a terminal that hangs up: what came is remembered, so that no lost exception is a lost interrupt.

Python raises KeyboardInterrupt wherever the main thread happens to be. Libraries swallow it there: in a bare `except`,
in a finalizer, in a callback of C code. So the command line's handlers leave a mark as well, and who is about to begin
something long asks for it by `check`. Where the handlers aren't in place, as in a notebook, all of this does nothing.
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
"""What a shell shows for them, and what they are called."""


class _Mark:  # no dataclass: what they need to be made takes longer than all else here
    """first: the signal that came first. at_s: when. held: whether it only leaves its mark, as an answer is in hand.

    terminals: which of stdout and stderr were one at the start. kept: what to tell of what was kept.
    """

    first: signal.Signals | None = None
    at_s: float = 0.0
    held: bool = False
    terminals: tuple[int, ...] = ()
    kept: str = ""


_mark = _Mark()


def install() -> None:
    """Make the others what Ctrl-C is, and all leave a mark; a parent that ignores one of them wants it ignored."""
    _mark.terminals = tuple(number for number in (1, 2) if os.isatty(number))
    for number in CODES:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _came)


def _came(number: int, frame: FrameType | None) -> None:
    now_s = time.monotonic()
    if number == signal.SIGHUP:
        _leave_terminal()
    if _mark.first is None:
        _mark.first, _mark.at_s = signal.Signals(number), now_s
        if _mark.held:
            return
    elif now_s - _mark.at_s < 0.5:
        return  # it would cut off the way to the best so far
    raise KeyboardInterrupt


def _leave_terminal() -> None:
    """It is gone, and each line for it would be an error: what is told from here on is told to nobody."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in _mark.terminals:
        os.dup2(nowhere, number)
    os.close(nowhere)


def came() -> signal.Signals | None:
    """The signal that came first, if one did."""
    return _mark.first


def check() -> None:
    """Raise KeyboardInterrupt in the main thread where a signal came: nothing long begins after one."""
    if _mark.first is not None and threading.current_thread() is threading.main_thread():
        raise KeyboardInterrupt


def hold() -> None:
    """The answer is in hand: from now on a first signal leaves its mark only. A second one, later, still raises."""
    _mark.held = True


def let_go() -> None:
    """Something long follows that an interrupt is to end again; one that came since `hold` does so now."""
    _mark.held = False
    check()


def add(kept: str) -> None:
    """What the message of the interrupt is to tell besides: where to go on."""
    _mark.kept = kept


def words(number: signal.Signals) -> str:
    """The message of an interrupt."""
    return f"{WORDS[number]}; {_mark.kept}" if _mark.kept else WORDS[number]


def deafen() -> None:
    """From now on signals are ignored: what is left is one message, or Python's own end."""
    for number in CODES:
        if signal.getsignal(number) is _came:
            signal.signal(number, signal.SIG_IGN)


def stop_here() -> NoReturn:
    """End the program before it has begun: a message on stderr, and the code of the signal."""
    deafen()
    number = _mark.first or signal.SIGINT
    with suppress(OSError, ValueError, AttributeError):  # None where it was closed before the start
        sys.stderr.write(f"poetopt: {WORDS[number]}\n")
        sys.stderr.flush()
    os._exit(CODES[number])  # Python would end by SIGINT where an exception has passed through `exec`
