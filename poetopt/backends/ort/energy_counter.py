"""The processor packages' energy counters (RAPL), where the system lets them be read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

POWERCAP = Path("/sys/class/powercap")
IDLE_S = 0.5


class Counter:
    """The processor packages' energy counters (RAPL), where the system lets them be read."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files
        self.ranges = [int((file.parent / "max_energy_range_uj").read_text()) for file in files]
        self._last = [int(file.read_text()) for file in files]
        self._sum = 0.0

    @classmethod
    def open(cls, root: Path = POWERCAP) -> Counter | None:
        """The counters of all packages, or None."""
        files = [folder / "energy_uj" for folder in sorted(root.glob("intel-rapl:*")) if folder.name.count(":") == 1]
        with suppress(OSError, ValueError):
            return cls(files) if files else None
        return None

    def joules(self) -> float:
        """Joules since the counter was opened; to be read at least once an hour, as counters start anew."""
        now = [int(file.read_text()) for file in self.files]
        for after, before, limit in zip(now, self._last, self.ranges, strict=True):
            self._sum += (after - before if after >= before else after - before + limit) * 1e-6
        self._last = now
        return self._sum

    def idle_w(self) -> float:
        """Watts while this process sleeps."""
        before, start = self.joules(), time.perf_counter()
        time.sleep(IDLE_S)
        return (self.joules() - before) / (time.perf_counter() - start)
