"""Ctrl-C and SIGTERM: what came is remembered, so that an exception that gets lost is no interrupt lost.

Python raises KeyboardInterrupt wherever the main thread happens to be. Libraries swallow it there: in a bare `except`,
in a finalizer, in a callback of C code. So the command line's handlers leave a mark as well, and who is about to begin
something long asks for it by `check`. Where the handlers aren't in place, as in a notebook, all of this does nothing.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from types import FrameType
from typing import NoReturn

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
"""What a shell shows for them."""
SAME_S = 0.5
"""What comes so soon after the first is the same: a terminal sends to a whole group, and wrappers pass it on again."""
WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class _Mark:  # no dataclass: what they need to be made takes longer than all else here
    """first: the signal that came first. at_s: when. held: whether it only leaves its mark, as an answer is in hand."""

    first: signal.Signals | None = None
    at_s: float = 0.0
    held: bool = False


_mark = _Mark()


def install() -> None:
    """Make SIGTERM what Ctrl-C is, and both leave a mark; a parent that ignores one of them wants it ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _came)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _came)


def _came(number: int, frame: FrameType | None) -> None:
    now_s = time.monotonic()
    if _mark.first is None:
        _mark.first, _mark.at_s = signal.Signals(number), now_s
        if _mark.held:
            return
    elif now_s - _mark.at_s < SAME_S:
        return  # it would cut off the way to the best so far
    raise KeyboardInterrupt


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


def deafen() -> None:
    """From now on signals are ignored: what is left is one message, or Python's own end."""
    for number in CODES:
        if signal.getsignal(number) is _came:
            signal.signal(number, signal.SIG_IGN)


def stop_here() -> NoReturn:
    """End the program before it has begun: a message on stderr, and the code of the signal."""
    number = _mark.first or signal.SIGINT
    sys.stderr.write(f"poetopt: {WORDS[number]}\n")
    sys.exit(CODES[number])
