"""Meters of energy, on trees and tables that are made up: what power and time come to, and what isn't there."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import poetopt as po
from poetopt.devices.meters import Metered, metering, open_meter
from poetopt.plan.simulate import simulate
from poetopt.util.errors import OptionError
from tests.training.support import plan_of, rows


def chip(root: Path, folder: str, name: str, **files: object) -> Path:
    place = root / folder
    place.mkdir(parents=True)
    for file, text in {"name": name, **files}.items():
        (place / file).write_text(f"{text}\n")
    return place


def measured(meter: Any, seconds: float = 0.2) -> tuple[float, float]:
    """Joules, and the seconds that they were measured in."""
    begin = time.perf_counter()
    with metering(meter):
        time.sleep(seconds)
    return meter.joules(), time.perf_counter() - begin


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


def test_a_sensor_of_power_and_one_of_volts_and_amperes(tmp_path: Path) -> None:
    chip(tmp_path, "hwmon0", "cpu_thermal", temp1_input=40_000)
    chip(tmp_path, "hwmon1", "ina219", power1_input=5_000_000, in1_input=1, curr1_input=1)
    found, seconds = measured(open_meter("hwmon", hwmon=tmp_path))
    assert found == pytest.approx(5.0 * seconds, rel=0.2)
    jetson = {"in1_label": "VDD_IN", "in1_input": 5000, "curr1_input": 1200, "in2_label": "VDD_CPU", "in2_input": 5000}
    chip(tmp_path / "other", "hwmon3", "ina3221", curr2_input=400, in3_input=5000, **jetson)  # the third has no current
    meter = open_meter("hwmon:VDD_IN", hwmon=tmp_path / "other")
    assert meter.name == "ina3221 VDD_IN"
    found, seconds = measured(meter)
    assert found == pytest.approx(6.0 * seconds, rel=0.2)
    for asked in ("hwmon", "hwmon:VDD_GPU"):
        with pytest.raises(OptionError, match=r"say which channel, as in --meter 'hwmon:ina3221 VDD_IN'; .*VDD_CPU$"):
            open_meter(asked, hwmon=tmp_path / "other")


def test_the_power_controller_of_a_raspberry_pi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its own format: rails with a current and a voltage count, two voltages without a current don't."""
    told = """\
     3V7_WL_SW_A current(0)=0.10000000A
        0V8_SW_A current(6)=0.50000000A
      VDD_CORE_A current(7)=2.50000000A
     3V7_WL_SW_V volt(8)=3.70000000V
        0V8_SW_V volt(14)=0.80000000V
      VDD_CORE_V volt(15)=0.90000000V
         EXT5V_V volt(24)=5.11702000V
          BATT_V volt(25)=0.00000000V"""
    usual = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OptionError, match=r"`vcgencmd pmic_read_adc` of a Raspberry Pi 5 doesn't answer \(.*No such"):
        open_meter("pmic")
    program = tmp_path / "vcgencmd"
    program.write_text(f'#!/bin/sh\n[ "$1" = pmic_read_adc ] && cat <<END\n{told}\nEND\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{usual}")
    found, seconds = measured(open_meter("pmic"), 0.6)
    assert found == pytest.approx((0.37 + 0.4 + 2.25) * seconds, rel=0.2)
    program.write_text("#!/bin/sh\necho error=1 error_msg=Command not registered\n")
    with pytest.raises(OptionError, match=r"doesn't answer \(it says error=1 error_msg=Command not registered\)"):
        open_meter("pmic")


@pytest.mark.parametrize("form", ["seconds", "iso", "volts"])
def test_a_bench_supplys_table(form: str, tmp_path: Path) -> None:
    place = tmp_path / "supply.csv"
    meter = open_meter(str(place))
    began = time.time()
    for _ in range(2):
        with metering(meter):
            time.sleep(0.1)
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
    assert meter.joules() == pytest.approx(0.1 * (2.05 + 2.25), rel=0.1)


def test_what_isn_t_there(tmp_path: Path) -> None:
    for asked, message in (
        ("rapl", r"has no counter that may be read; as root: chmod a\+r"),
        ("hwmon", "has no ina219, ina220, ina226 or INA3221 that can be read"),
        ("watts", "must be rapl, hwmon, hwmon:LABEL, pmic, or a table of readings, FILE.csv"),
    ):
        with pytest.raises(OptionError, match=message):
            open_meter(asked, powercap=tmp_path, hwmon=tmp_path)
    for text, message in (
        ("a,b\n1,2\n", "it is no table of readings"),
        ("time,power\n1,2\n2,2\n", "is its clock this one's"),
    ):
        place = tmp_path / "supply.csv"
        place.write_text(text)
        meter = open_meter(str(place))
        with metering(meter):
            pass
        found = Metered.of(meter, 3, 2.0)
        assert (found.measured_j, found.planned_j) == (None, 6.0)
        assert message in str(found)


class Own:
    """A meter that says ten joules each time."""

    name = "mine"

    def __init__(self) -> None:
        self.times = 0

    def start(self) -> None:
        self.times += 1

    def stop(self) -> None:
        pass

    def joules(self) -> float:
        return 10.0 * self.times


def test_planned_against_measured(tmp_path: Path) -> None:
    plan = plan_of()
    step_j = simulate(plan).energy_j
    with po.Trainer(plan) as trainer:
        ended = trainer.fit(rows(plan, 12), epochs=2, validate=rows(plan, 4), meter=Own())
    assert ended.energy == Metered(meter="mine", steps=6, measured_j=20.0, planned_j=6 * step_j)
    assert ended.to_dict()["energy"]["planned_j"] == 6 * step_j  # type: ignore[index]
    assert str(ended.energy).startswith("20.0 J by mine in 6 steps, waiting included, ")
    run = po.train(plan, 5, 0.01, meter=Own())
    assert run.energy == Metered(meter="mine", steps=5, measured_j=10.0, planned_j=5 * step_j)
