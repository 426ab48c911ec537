"""The example of federated clients: rounds are what their joules and a round's time allow."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path

import pytest

import poetopt as po

EXAMPLE = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "examples" / "federated.py"))
RAM = 62_000


def test_rounds_are_what_joules_and_time_allow(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("distributed")
    report = po.solve(po.load("mlp", batch=8).differentiate().cost("rpi5"), ram=RAM)
    step = report.to_dict()
    energy, seconds = step["energy_j"], step["makespan_s"]
    assert isinstance(energy, float)
    assert isinstance(seconds, float)
    client = EXAMPLE["Client"]("able", "rpi5", RAM, 10.5 * 12 * energy, 100)  # 12 whole batches of 8
    clients = [
        client,
        replace(client, name="poor", joules=11.9 * energy),
        replace(client, name="small", ram_bytes=20_000),
    ]
    clients.append(replace(client, name="slow", samples=800))
    found = EXAMPLE["main"](clients, round_limit_s=99.5 * seconds, model="mlp", workers=1)
    assert [share.rounds for share in found] == [10, 0, 0, 0]
    assert found[0].round_s == pytest.approx(12 * seconds)
    assert "below the" in found[2].reason
    assert "a round takes more than" in found[3].reason
    told = capsys.readouterr().out
    assert "2 plans for 4 clients" in told
    assert "all of them together: 10 rounds, then able has no joules left" in told
