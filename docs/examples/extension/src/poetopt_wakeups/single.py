"""Backend `highs-single`: HiGHS kept to one thread, so that a solve takes the same way on every machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poetopt.backends.solvers.highs import HighsSession
from poetopt.backends.solvers.solver import NO_OPTIONS, Capability, Session


class OneThread(HighsSession):
    """A session that has no say in its threads."""

    capabilities = HighsSession.capabilities - {Capability.THREADS}


class SingleThread:
    """What the entry point holds."""

    name = "highs-single"
    capabilities = OneThread.capabilities

    def open(
        self, model: Any, *, threads: int, scale: float, options: Mapping[str, str] = NO_OPTIONS, log: str | None = None
    ) -> Session:
        """Open `model`; `threads` is not obeyed, as the capabilities say."""
        return OneThread(model, threads=1, scale=scale, options=options, log=log)


backend = SingleThread()
