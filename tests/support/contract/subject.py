"""A backend under test: what all parts of `check_backend` ask of it, and how they say what it breaks."""

from __future__ import annotations

import random
from typing import Any

from poetopt.backends.solvers.solver import Backend, Capability, Search, Session
from poetopt.testing.contract import require

TOLERANCE = 1e-6
ENOUGH_S = 60.0
"""A limit that small problems never reach."""


def close(a: float, b: float) -> bool:
    """Whether two values are one value, as far as a solver can tell."""
    return abs(a - b) <= TOLERANCE * max(1.0, abs(a), abs(b))


class Subject:
    """The backend that is checked, and the generator that its problems come from."""

    def __init__(self, backend: Backend, rng: random.Random) -> None:
        self.backend, self.rng = backend, rng

    def need(self, kept: object, message: str) -> None:
        require(kept, f"backend '{self.backend.name}': {message}")

    def can(self, capability: Capability) -> bool:
        return capability in self.backend.capabilities

    def open(self, model: Any, scale: float = 1.0) -> Session:
        return self.backend.open(model, threads=1, scale=scale)

    def search(self, session: Session, **more: Any) -> Search:
        """A search to the end, unless `more` says otherwise; what it tells is checked."""
        points: list[float] = []
        bounds: list[float] = []
        asked: dict[str, Any] = {
            "time_limit_s": ENOUGH_S, "gap": 0.0, "start": None, "on_point": lambda _: points.append(0.0),
            "on_bound": bounds.append,
        }  # fmt: skip
        found = session.search(**{**asked, **more})
        if found.point is not None:
            self.need(found.point.integral, "a point that `search` returns is `integral`")
            if "on_point" not in more:
                self.need(points, "`search` returned a point that it never told `on_point`")
        self.need(bounds == sorted(bounds), f"`on_bound` was told {bounds}: a bound must only rise")
        if more.get("frozen"):
            self.need(not bounds, "`on_bound` was told a bound of a search with frozen parts, which proves nothing")
        return found
