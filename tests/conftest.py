"""What holds for all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Hear interrupts also where the shell that began the tests had them ignored (`make test &` in a script).

    Programs that tests start, and interrupt, would have inherited that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
