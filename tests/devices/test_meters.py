"""Meters of energy, on trees and tables that are made up: what power and time come to, and what isn't there."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from poetopt.devices.meters import metering, open_meter
from poetopt.util.errors import ModelError


def chip(root: Path, folder: str, name: str, **files: object) -> Path:
    place = root / folder
    place.mkdir(parents=True)
    for file, text in {"name": name, **files}.items():
        (place / file).write_text(f"{text}\n")
    return place


def test_a_processors_counters(tmp_path: Path) -> None:
    package = chip(tmp_path, "intel-rapl:0", "package-0", energy_uj=900_000, max_energy_range_uj=1_000_000)
    meter = open_meter("rapl", powercap=tmp_path)
    (package / "energy_uj").write_text("950000")  # before it counts
    with metering(meter):
        (package / "energy_uj").write_text("100000")
    (package / "energy_uj").write_text("300000")
    with metering(meter):
        (package / "energy_uj").write_text("500000")
    assert meter.joules() == pytest.approx(0.15 + 0.2)


@pytest.mark.parametrize("content", [b"", b"time,power\n", b"\n\n", bytes(4096), bytes(range(9, 128)), b"power\n1\n"])
def test_a_table_without_readings_is_refused_before_the_first_step(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "supply.csv").write_bytes(content)
    with pytest.raises(ModelError, match=r"supply\.csv: it is no table of readings"):
        open_meter(str(tmp_path / "supply.csv"))


@pytest.mark.parametrize("form", ["seconds", "iso", "volts"])
def test_a_bench_supplys_table(form: str, tmp_path: Path) -> None:
    place = tmp_path / "supply.csv"
    meter = open_meter(str(place))
    began, wanted = time.time(), 0.0
    for _ in range(2):
        with metering(meter):
            start = time.time()
            time.sleep(0.1)
            wanted += (time.time() - start) * (2.0 + (start + time.time()) / 2 - began)
        time.sleep(0.1)
    ended = time.time()
    at = np.arange(began - 0.5, ended + 0.5, 0.01)
    watts = 2.0 + (at - began)  # two watts, and one more each second
    pairs = list(zip(at, watts, strict=True))
    head = "time,voltage,current" if form == "volts" else "time,power"
    lines = [head]
    for moment, power in pairs:
        when = datetime.fromtimestamp(moment, UTC).isoformat() if form == "iso" else f"{moment:.6f}"
        lines.append(f"{when},5.0,{power / 5:.6f}" if form == "volts" else f"{when},{power:.6f}")
    place.write_text("\n".join([*lines, "cut"]))
    assert meter.joules() == pytest.approx(wanted, rel=0.1)
