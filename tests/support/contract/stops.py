"""Whether a backend's searches end when they are asked to: part of `check_backend`."""

from __future__ import annotations

import math
import os
import signal
import threading
from concurrent.futures import Future
from typing import Any

import numpy as np

from poetopt.backends.solvers.solver import Capability, Outcome, Point, Search, Session
from poetopt.testing.contract import ContractError
from tests.support.contract import milp
from tests.support.contract.subject import ENOUGH_S, Subject

SHORT_S = 1.0
"""A limit that the endless one always does."""
PATIENCE_S = 45.0
"""How much longer than its limit a search may take, on a busy machine, before it counts as one that ignores it."""


class Stops(Subject):
    """The time limit and an interrupt, on a program whose search never ends by itself."""

    def time_limit(self) -> None:
        model = milp.endless()
        session = self.open(model)
        worth: list[float] = []

        def tell(point: Point) -> None:
            worth.append(float(point[model.over].sum() + point[model.under].sum()))

        first = self._in_time(session, SHORT_S, on_point=tell)
        self.need(
            first.outcome is Outcome.STOPPED,
            f"out of time, a search is `stopped` also where it has an incumbent; this one is {first.outcome}",
        )
        self.need(
            first.point is not None, "out of time, a search returns the best point that it has; this one has none"
        )
        assert first.point is not None
        told = float(first.point[model.over].sum() + first.point[model.under].sum())
        self.need(
            abs(told - first.objective) < 1e-4 * max(1.0, told), f"the point is worth {told}, not {first.objective}"
        )
        self.need(first.bound <= first.objective, f"out of time, the bound {first.bound} is above {first.objective}")
        if self.can(Capability.BOUND):
            self.need(math.isfinite(first.bound), "it is capable of BOUND, and out of time it has none")
        if self.can(Capability.WARM_START):
            start = [(v, first.point[v]) for v in (model.x, model.over, model.under)]
            again = self._in_time(session, SHORT_S / 2, start=start)
            self.need(
                again.objective <= first.objective + 1e-4 * max(1.0, told),
                f"it is capable of WARM_START, and ends with {again.objective} from a start of {first.objective}",
            )
        partial = [(model.x, np.ones(len(model.x)))]
        self._in_time(session, SHORT_S / 4, start=partial)

    def interrupt(self) -> bool:
        """One real SIGINT during a search; whether it could be tried."""
        if (
            threading.current_thread() is not threading.main_thread()
            or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        ):
            return False
        session = self.open(milp.endless())
        timer = threading.Timer(SHORT_S / 2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        try:
            found = self.search(session, time_limit_s=ENOUGH_S)
        except KeyboardInterrupt:
            timer.join()
        else:
            timer.cancel()
            raise ContractError(
                f"backend '{self.backend.name}': a search that was interrupted returned {found.outcome}; it must raise "
                "KeyboardInterrupt once the solver has stopped"
            )
        self.need(session.relax(ENOUGH_S).outcome is Outcome.OPTIMAL, "after an interrupt the session is of no use")
        self.need(not math.isnan(session.incumbent_bound), "after an interrupt the bound is lost")
        return True

    def _in_time(self, session: Session, limit_s: float, **more: Any) -> Search:
        """A search that is out of time, and given up where it doesn't end: no thread can be stopped from outside."""
        ended: Future[Search] = Future()

        def work() -> None:
            try:
                ended.set_result(self.search(session, time_limit_s=limit_s, **more))
            except BaseException as error:  # noqa: BLE001 - handed over to the caller, whatever it is
                ended.set_exception(error)

        threading.Thread(target=work, name=f"check {self.backend.name}", daemon=True).start()
        try:
            return ended.result(limit_s + PATIENCE_S)
        except TimeoutError as error:
            if ended.done():
                raise
            raise ContractError(
                f"backend '{self.backend.name}': it ignores time_limit_s: a search of {limit_s:g} s goes on after "
                f"{limit_s + PATIENCE_S:g} s (it was left running); hand the limit to the solver"
            ) from error
