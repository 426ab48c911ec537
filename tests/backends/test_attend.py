"""A solver that doesn't end when it is told to is left behind, and the next run waits for it."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from poetopt.backends.solvers.attend import Attendant

pytestmark = pytest.mark.skipif(os.name != "posix", reason="sends signals")


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_deaf_solver_is_left_behind() -> None:
    attendant, may_end, told = Attendant("test", grace_s=0.01), threading.Event(), threading.Event()
    order: list[str] = []

    def deaf() -> None:
        _interrupt()
        may_end.wait()
        order.append("first")

    with pytest.raises(KeyboardInterrupt):
        attendant.run(deaf, told.set)
    assert told.is_set()
    assert not order
    may_end.set()
    assert not attendant.run(lambda: order.append("second"), told.set)
    assert order == ["first", "second"]


def test_one_that_ends_is_waited_for() -> None:
    attendant, told = Attendant("test", grace_s=60.0), threading.Event()

    def obedient() -> None:
        _interrupt()
        told.wait()

    assert attendant.run(obedient, told.set)


def test_an_interrupt_of_one_that_waits_in_line_takes_it_out() -> None:
    attendant, may_end, ran = Attendant("test", grace_s=0.01), threading.Event(), threading.Event()

    def deaf() -> None:
        _interrupt()
        may_end.wait()

    with pytest.raises(KeyboardInterrupt):
        attendant.run(deaf, lambda: None)
    timer = threading.Timer(0.05, _interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        attendant.run(ran.set, lambda: None)
    may_end.set()
    assert not attendant.run(lambda: None, lambda: None)
    assert not ran.is_set()
