"""Meters of energy: counters of the processor, sensors of the board, a bench supply's table.

| `--meter` | what it reads |
|---|---|
| rapl | the processor packages' counters in /sys/class/powercap |
| hwmon, hwmon:LABEL | an INA2xx or INA3221 in /sys/class/hwmon, a channel of it |
| pmic | what a Raspberry Pi 5's power controller measures (`vcgencmd pmic_read_adc`), the sum of its rails |
| FILE.csv | columns `time` (seconds since 1970, or ISO 8601) and `power` in W, or `voltage` and `current` in V and A |

A sensor and a table are integrated by trapezoids; all that the board draws while it waits counts too.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

import numpy as np

from poetopt.devices.sanity import FIGURES
from poetopt.util.errors import ModelError, OptionError
from poetopt.util.figures import Figures
from poetopt.util.files import TABLE_BYTES, read_text
from poetopt.util.numbers import read_number
from poetopt.util.text import shortened
from poetopt.util.units import show_joules

POWERCAP, HWMON = Path("/sys/class/powercap"), Path("/sys/class/hwmon")
EVERY_S = 0.02
"""Between two readings of a sensor."""
PMIC = ("vcgencmd", "pmic_read_adc")
RAIL = re.compile(r"^\s*(\w+)_[AV]\s+(current|volt)\(\d+\)=([\d.]+)[AV]\s*$", re.M)
SENSORS = ("ina209", "ina219", "ina220", "ina226", "ina228", "ina230", "ina231", "ina238", "ina260", "ina3221")


class Meter(Protocol):
    """Measures energy between `start` and `stop`, which may come several times.

    name
        What summaries call it.
    """

    name: str

    def start(self) -> None: ...
    def stop(self) -> None: ...

    def joules(self) -> float:
        """All of it so far. Raises ModelError where what it reads doesn't say."""


@dataclass(frozen=True, kw_only=True)
class Metered(Figures):
    """Joules that were measured, beside those that were planned.

    meter, steps
        What measured them, and in how many steps.
    measured_j, planned_j
        Of all of these steps; measured ones are None where the meter doesn't say, and count what is drawn in waiting.
    fault
        Why there are none.
    """

    meter: str
    steps: int
    measured_j: float | None
    planned_j: float
    fault: str = ""

    @classmethod
    def of(cls, meter: Meter, steps: int, step_j: float) -> Metered:
        """The find of a meter in `steps` steps that were planned to take `step_j` each."""
        planned_j = steps * step_j
        try:
            return cls(meter=meter.name, steps=steps, measured_j=meter.joules(), planned_j=planned_j)
        except ModelError as error:
            return cls(meter=meter.name, steps=steps, measured_j=None, planned_j=planned_j, fault=str(error))

    def __str__(self) -> str:
        if self.measured_j is None:
            return self.fault
        ratio = f"; measured / planned = {self.measured_j / self.planned_j:.3g}" if self.planned_j else ""
        return (
            f"{show_joules(self.measured_j)} by {self.meter} in {self.steps:,} steps, waiting included, "
            f"{show_joules(self.planned_j)} planned{ratio}"
        )


class Counter:
    """The processor packages' energy counters (RAPL), where the system lets them be read."""

    name = "rapl"

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files
        self.ranges = [int((file.parent / "max_energy_range_uj").read_text()) for file in files]
        self._last = [int(file.read_text()) for file in files]
        self._sum = self._metered = self._began = 0.0

    @classmethod
    def open(cls, root: Path = POWERCAP) -> Counter | None:
        """The counters of all packages, or None."""
        files = [folder / "energy_uj" for folder in sorted(root.glob("intel-rapl:*")) if folder.name.count(":") == 1]
        with suppress(OSError, ValueError):
            return cls(files) if files else None
        return None

    def counted(self) -> float:
        """Joules since the counter was opened; to be read at least once an hour, as counters start anew."""
        now = [int(file.read_text()) for file in self.files]
        for after, before, limit in zip(now, self._last, self.ranges, strict=True):
            self._sum += (after - before if after >= before else after - before + limit) * 1e-6
        self._last = now
        return self._sum

    def idle_w(self) -> float:
        """Watts while this process sleeps."""
        before, start = self.counted(), time.perf_counter()
        time.sleep(0.5)
        return (self.counted() - before) / (time.perf_counter() - start)

    def start(self) -> None:
        """See `Meter`."""
        self._began = self.counted()

    def stop(self) -> None:
        """See `Meter`."""
        self._metered += self.counted() - self._began

    def joules(self) -> float:
        """See `Meter`."""
        return self._metered


class Sensor:
    """A power sensor that is read every now and then, in a thread.

    name
        Its chip and channel.
    watts
        Reads it. Raises OSError or ValueError where it can't.
    every_s
        Between two readings.
    """

    def __init__(self, name: str, watts: Callable[[], float], every_s: float = EVERY_S) -> None:
        self.name, self._watts, self._every_s = name, watts, every_s
        self._sum = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """See `Meter`."""
        self._ended.clear()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """See `Meter`."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def joules(self) -> float:
        """See `Meter`."""
        return self._sum

    def _read(self) -> None:
        at, power, ending = 0.0, math.nan, False
        while True:
            with suppress(OSError, ValueError):  # a bus that is busy
                now, found = time.perf_counter(), self._watts()
                self._sum += 0.0 if math.isnan(power) else (now - at) * (power + found) / 2
                at, power = now, found
            if ending:
                return
            ending = self._ended.wait(self._every_s)


class Table:
    """A bench supply's readings, in a file that others write: it is read at the end.

    What is there in the beginning is read too, and must have a reading: those of a training begin before its steps.
    Raises ModelError.
    """

    def __init__(self, path: Path) -> None:
        self.name, self._path = str(path), path
        if os.path.lexists(path):
            self._readings()
        self._spans: list[tuple[float, float]] = []
        self._began = 0.0

    def start(self) -> None:
        """See `Meter`."""
        self._began = time.time()

    def stop(self) -> None:
        """See `Meter`."""
        self._spans.append((self._began, time.time()))

    def joules(self) -> float:
        """See `Meter`."""
        times, watts = self._readings()
        if not self._spans:
            return 0.0
        if len(times) < 2 or self._spans[0][0] < times[0] or self._spans[-1][1] > times[-1]:
            raise ModelError(
                f"{self._path}: its readings don't begin before the steps and end behind them; is its clock this one's?"
            )
        total = 0.0
        for start, end in self._spans:
            inside = times[(times > start) & (times < end)]
            at = np.concatenate([[start], inside, [end]])
            total += float(np.trapezoid(np.interp(at, times, watts), at))
        return total

    def _readings(self) -> tuple[np.ndarray, np.ndarray]:
        """Seconds since 1970, and watts, in order."""
        try:
            text = read_text(self._path, TABLE_BYTES, encoding="utf-8-sig", named_by_file=True)
            rows = [row for row in csv.DictReader(io.StringIO(text)) if None not in row.values()]
            if not rows:
                raise ValueError("it has no readings yet; start what writes it, or name a file that isn't there yet")
            found = sorted((_seconds(row["time"]), _watts(row)) for row in rows)
        except (OSError, ValueError, OverflowError, KeyError, csv.Error) as error:
            what = f"no column {error}" if isinstance(error, KeyError) else getattr(error, "strerror", None) or error
            raise ModelError(
                f"{self._path}: it is no table of readings ({what}); it has columns time (seconds since 1970, or ISO "
                "8601) and power in W, or voltage and current"
            ) from error
        both = np.array(found, np.float64)
        return both[:, 0], both[:, 1]


def _seconds(text: str) -> float:
    try:
        return read_number(text)
    except ValueError:
        return datetime.fromisoformat(text).timestamp()


def _watts(row: Mapping[str, str]) -> float:
    watts = read_number(row["power"]) if "power" in row else read_number(row["voltage"]) * read_number(row["current"])
    most = FIGURES["active_power_w"].most
    if not 0 <= watts <= most:
        raise ValueError(f"{watts:g} W at {shortened(row['time'])}: a power is from 0 to {most:g} W")
    return watts


@contextmanager
def metering(meter: Meter | None) -> Iterator[None]:
    """Measures what is done meanwhile, where there is a meter."""
    if meter is None:
        yield
        return
    meter.start()
    try:
        yield
    finally:
        meter.stop()


def open_meter(asked: str | Meter, *, powercap: Path = POWERCAP, hwmon: Path = HWMON) -> Meter:
    """The meter of that name, or itself. Raises OptionError where it isn't there."""
    if not isinstance(asked, str):
        return asked
    kind, _, label = asked.partition(":")
    if asked == "rapl":
        found = Counter.open(powercap)
        if found is None:
            raise OptionError(
                f"--meter rapl: {powercap} has no counter that may be read; as root: chmod a+r "
                f"{powercap}/intel-rapl:*/energy_uj"
            )
        return found
    if kind == "hwmon":
        return _sensor(asked, label, _channels(hwmon), hwmon)
    if asked == "pmic":
        try:
            _rails()
        except (OSError, ValueError) as error:
            raise OptionError(
                f"--meter pmic: `{' '.join(PMIC)}` of a Raspberry Pi 5 doesn't answer ({error})"
            ) from error
        # the same of the power controller: each is a process of its own
        return Sensor(asked, _rails, 0.25)
    if asked.endswith(".csv"):
        return Table(Path(asked))
    raise OptionError(f"--meter {asked}: must be rapl, hwmon, hwmon:LABEL, pmic, or a table of readings, FILE.csv")


def _rails() -> float:
    """Watts of all rails of which the power controller tells both current and voltage."""
    told = subprocess.run(PMIC, capture_output=True, text=True, check=False).stdout
    found: dict[str, dict[str, float]] = {}
    for rail, what, value in RAIL.findall(told):
        found.setdefault(rail, {})[what] = float(value)
    both = [rail["current"] * rail["volt"] for rail in found.values() if len(rail) == 2]
    if not both:
        raise ValueError(f"it says {shortened(' '.join(told.split())) or 'nothing'}")
    return sum(both)


def _sensor(asked: str, label: str, channels: Mapping[str, Callable[[], float]], root: Path) -> Meter:
    if not channels:
        raise OptionError(f"--meter {asked}: {root} has no {', '.join(SENSORS[1:4])} or INA3221 that can be read")
    chosen = [name for name in channels if label in ("", name, name.partition(" ")[2])]
    if len(chosen) != 1:
        example = f"--meter 'hwmon:{next(iter(channels))}'"
        raise OptionError(f"--meter {asked}: say which channel, as in {example}; there are {', '.join(channels)}")
    return Sensor(chosen[0], channels[chosen[0]])


def _channels(root: Path) -> dict[str, Callable[[], float]]:
    """Readers of the watts of each channel, by chip and label."""
    found: dict[str, Callable[[], float]] = {}
    for folder in sorted(root.glob("hwmon*")):
        with suppress(OSError):
            chip = (folder / "name").read_text().strip()
            if chip not in SENSORS:
                continue
            if (folder / "power1_input").exists():
                found[f"{chip} {folder.name}"] = lambda file=folder / "power1_input": _number(file) * 1e-6  # type: ignore[misc]
                continue
            for k in (1, 2, 3):
                pair = folder / f"in{k}_input", folder / f"curr{k}_input"
                if all(map(_readable, pair)):
                    label = folder / f"in{k}_label"
                    name = label.read_text().strip() if label.exists() else f"{folder.name}-{k}"
                    found[f"{chip} {name}"] = lambda pair=pair: _number(pair[0]) * _number(pair[1]) * 1e-6  # type: ignore[misc]
    return found


def _number(file: Path) -> float:
    return read_number(file.read_text())


def _readable(file: Path) -> bool:
    try:
        _number(file)
    except (OSError, ValueError):
        return False
    return True
