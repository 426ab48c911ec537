"""Energy meters: counters of the processor, sensors of the board, the table of a bench supply.

| `--meter` | source |
|---|---|
| rapl | counters of the processor packages in /sys/class/powercap |
| hwmon, hwmon:LABEL | an INA2xx or INA3221 in /sys/class/hwmon, a channel of it |
| pmic | the power controller of a Raspberry Pi 5 (`vcgencmd pmic_read_adc`), the sum of its rails |
| FILE.csv | columns `time` (seconds since 1970, or ISO 8601) and `power` in W, or `voltage` and `current` in V and A |

A sensor and a table are integrated by trapezoids. They include the energy that the board draws while it waits.
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
"""Seconds between two readings of a sensor."""
PMIC = ("vcgencmd", "pmic_read_adc")
RAIL = re.compile(r"^\s*(\w+)_[AV]\s+(current|volt)\(\d+\)=([\d.]+)[AV]\s*$", re.M)
SENSORS = ("ina209", "ina219", "ina220", "ina226", "ina228", "ina230", "ina231", "ina238", "ina260", "ina3221")


class Meter(Protocol):
    """Protocol of a meter of the energy between `start` and `stop`, which may be called several times.

    Attributes
    ----------
    name
        Name in summaries.
    """

    name: str

    def start(self) -> None: ...
    def stop(self) -> None: ...

    def joules(self) -> float:
        """Return the joules of all intervals so far. Raises ModelError if the source doesn't have them."""


@dataclass(frozen=True, kw_only=True)
class Metered(Figures):
    """Measured joules beside planned joules.

    Attributes
    ----------
    meter, steps
        Name of the meter, and the number of steps.
    measured_j, planned_j
        Joules of all these steps. Measured ones are None if the meter has none, and include waiting.
    fault
        Reason for missing joules.
    """

    meter: str
    steps: int
    measured_j: float | None
    planned_j: float
    fault: str = ""

    @classmethod
    def of(cls, meter: Meter, steps: int, step_j: float) -> Metered:
        """Return the result of a meter for `steps` steps that were planned to take `step_j` each."""
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
    """Energy counters of the processor packages (RAPL), if the system allows reading them."""

    name = "rapl"

    def __init__(self, files: Sequence[Path]) -> None:
        self.files = files
        self.ranges = [int((file.parent / "max_energy_range_uj").read_text()) for file in files]
        self._last = [int(file.read_text()) for file in files]
        self._sum = self._metered = self._began = 0.0

    @classmethod
    def open(cls, root: Path = POWERCAP) -> Counter | None:
        """Return the counters of all packages, or None."""
        files = [folder / "energy_uj" for folder in sorted(root.glob("intel-rapl:*")) if folder.name.count(":") == 1]
        with suppress(OSError, ValueError):
            return cls(files) if files else None
        return None

    def counted(self) -> float:
        """Return the joules since the counter was opened; call it at least hourly, because counters wrap around."""
        now = [int(file.read_text()) for file in self.files]
        for after, before, limit in zip(now, self._last, self.ranges, strict=True):
            self._sum += (after - before if after >= before else after - before + limit) * 1e-6
        self._last = now
        return self._sum

    def idle_w(self) -> float:
        """Return the watts while this process sleeps."""
        before, start = self.counted(), time.perf_counter()
        time.sleep(0.5)
        return (self.counted() - before) / (time.perf_counter() - start)

    def start(self) -> None:
        """Begin an interval."""
        self._began = self.counted()

    def stop(self) -> None:
        """End the interval."""
        self._metered += self.counted() - self._began

    def joules(self) -> float:
        """Return the joules of all intervals so far."""
        return self._metered


class Sensor:
    """A power sensor that a thread reads at intervals.

    Parameters
    ----------
    name
        Chip and channel.
    watts
        Function that reads it. Raises OSError or ValueError on failure.
    every_s
        Seconds between two readings.
    """

    def __init__(self, name: str, watts: Callable[[], float], every_s: float = EVERY_S) -> None:
        self.name, self._watts, self._every_s = name, watts, every_s
        self._sum = 0.0
        self._stop_event = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin an interval."""
        self._stop_event.clear()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the interval."""
        self._stop_event.set()
        if self._thread is not None:
            self._thread.join()

    def joules(self) -> float:
        """Return the joules of all intervals so far."""
        return self._sum

    def _read(self) -> None:
        last_time, power, ending = 0.0, math.nan, False
        while True:
            with suppress(OSError, ValueError):  # the bus may be busy
                now, watts = time.perf_counter(), self._watts()
                self._sum += 0.0 if math.isnan(power) else (now - last_time) * (power + watts) / 2
                last_time, power = now, watts
            if ending:
                return
            ending = self._stop_event.wait(self._every_s)


class Table:
    """Readings of a bench supply in a file that another program writes; the file is read at the end.

    A file that exists at the beginning is checked and must have a reading, because the readings must begin before the
    first step. Raises ModelError.
    """

    def __init__(self, path: Path) -> None:
        self.name, self._path = str(path), path
        if os.path.lexists(path):
            self._readings()
        self._spans: list[tuple[float, float]] = []
        self._began = 0.0

    def start(self) -> None:
        """Begin an interval."""
        self._began = time.time()

    def stop(self) -> None:
        """End the interval."""
        self._spans.append((self._began, time.time()))

    def joules(self) -> float:
        """Return the joules of all intervals so far."""
        times, watts = self._readings()
        if not self._spans:
            return 0.0
        if len(times) < 2 or self._spans[0][0] < times[0] or self._spans[-1][1] > times[-1]:
            raise ModelError(
                f"{self._path}: its readings don't cover all steps. Start them before the steps, end them after, and "
                "use one clock"
            )
        total = 0.0
        for start, end in self._spans:
            inside = times[(times > start) & (times < end)]
            at = np.concatenate([[start], inside, [end]])
            total += float(np.trapezoid(np.interp(at, times, watts), at))
        return total

    def _readings(self) -> tuple[np.ndarray, np.ndarray]:
        """Return seconds since 1970 and watts, in order of time."""
        try:
            text = read_text(self._path, TABLE_BYTES, encoding="utf-8-sig", named_by_file=True)
            rows = [row for row in csv.DictReader(io.StringIO(text)) if None not in row.values()]
            if not rows:
                raise ValueError("it has no readings yet: start its writer first, or name a new file")
            readings = sorted((_seconds(row["time"]), _watts(row)) for row in rows)
        except (OSError, ValueError, OverflowError, KeyError, csv.Error) as error:
            what = f"no column {error}" if isinstance(error, KeyError) else getattr(error, "strerror", None) or error
            raise ModelError(
                f"{self._path}: it is no table of readings ({what}). Give columns time (seconds since 1970, or ISO "
                "8601) and power in W, or voltage and current"
            ) from error
        columns = np.array(readings, np.float64)
        return columns[:, 0], columns[:, 1]


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
    """Measure the energy of the block if there is a meter."""
    if meter is None:
        yield
        return
    meter.start()
    try:
        yield
    finally:
        meter.stop()


def open_meter(asked: str | Meter, *, powercap: Path = POWERCAP, hwmon: Path = HWMON) -> Meter:
    """Return the meter with that name, or `asked` itself if it is a meter. Raises OptionError if it isn't available."""
    if not isinstance(asked, str):
        return asked
    kind, _, label = asked.partition(":")
    if asked == "rapl":
        meter = Counter.open(powercap)
        if meter is None:
            raise OptionError(
                f"--meter rapl: {powercap} has no readable counter. Allow reading as root: chmod a+r "
                f"{powercap}/intel-rapl:*/energy_uj"
            )
        return meter
    if kind == "hwmon":
        return _open_sensor(asked, label, _find_channels(hwmon), hwmon)
    if asked == "pmic":
        try:
            _rail_watts()
        except (OSError, ValueError) as error:
            raise OptionError(
                f"--meter pmic: `{' '.join(PMIC)}` of a Raspberry Pi 5 doesn't answer ({error})"
            ) from error
        # Each reading of the power controller starts a process, so it is read less often.
        return Sensor(asked, _rail_watts, 0.25)
    if asked.endswith(".csv"):
        return Table(Path(asked))
    raise OptionError(f"--meter {asked}: must be rapl, hwmon, hwmon:LABEL, pmic, or a table of readings, FILE.csv")


def _rail_watts() -> float:
    """Return the watts of all rails that report both current and voltage."""
    output = subprocess.run(PMIC, capture_output=True, text=True, check=False).stdout
    rails: dict[str, dict[str, float]] = {}
    for rail, quantity, value in RAIL.findall(output):
        rails.setdefault(rail, {})[quantity] = float(value)
    watts = [rail["current"] * rail["volt"] for rail in rails.values() if len(rail) == 2]
    if not watts:
        raise ValueError(f"its output is {shortened(' '.join(output.split())) or 'nothing'}")
    return sum(watts)


def _open_sensor(asked: str, label: str, channels: Mapping[str, Callable[[], float]], root: Path) -> Meter:
    if not channels:
        raise OptionError(f"--meter {asked}: {root} has no readable {', '.join(SENSORS[1:4])} or INA3221")
    chosen = [name for name in channels if label in ("", name, name.partition(" ")[2])]
    if len(chosen) != 1:
        example = f"--meter 'hwmon:{next(iter(channels))}'"
        raise OptionError(f"--meter {asked}: name a channel, as in {example}. There are {', '.join(channels)}")
    return Sensor(chosen[0], channels[chosen[0]])


def _find_channels(root: Path) -> dict[str, Callable[[], float]]:
    """Return functions that read the watts of each channel, by chip and label."""
    readers: dict[str, Callable[[], float]] = {}
    for folder in sorted(root.glob("hwmon*")):
        with suppress(OSError):
            chip = (folder / "name").read_text().strip()
            if chip not in SENSORS:
                continue
            if (folder / "power1_input").exists():
                readers[f"{chip} {folder.name}"] = lambda file=folder / "power1_input": _read_number(file) * 1e-6  # type: ignore[misc]
                continue
            for k in (1, 2, 3):
                pair = folder / f"in{k}_input", folder / f"curr{k}_input"
                if all(map(_is_readable, pair)):
                    label = folder / f"in{k}_label"
                    name = label.read_text().strip() if label.exists() else f"{folder.name}-{k}"
                    readers[f"{chip} {name}"] = lambda pair=pair: _read_number(pair[0]) * _read_number(pair[1]) * 1e-6  # type: ignore[misc]
    return readers


def _read_number(file: Path) -> float:
    return read_number(file.read_text())


def _is_readable(file: Path) -> bool:
    try:
        _read_number(file)
    except (OSError, ValueError):
        return False
    return True
