"""Every option that takes a number, of every command, and every file with numbers: one reading of them all."""

from __future__ import annotations

import csv
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import poetopt as po
from poetopt.cli.app import app
from poetopt.cli.options import BLOCKS, Option
from poetopt.devices.meters import Table
from poetopt.formulations.options import names, option
from poetopt.training.source import parse_schedule
from poetopt.util.errors import PoetError
from tests.support.cli import Runner
from tests.support.each import each

HOSTILE = ("1_0", "١", "nan", "inf", "1e-400", "1e400", "0x1p3")
IN_FLOAT32 = ("1e-46", "1e39")
NAMED = r".*(FILE|FOLDER|DIR|NAME|PATTERNS?|PICTURE|HOST|PLAN|TRAIN|KEY)\b[^=]*(=VALUE)?"
TEXT = re.compile(rf"{NAMED}|TRAINED.onnx|[a-z0-9,.:|-]*[a-z]{{2}}[^=:]*")
"""Words of options that take names, files, or one of a few texts; all others take numbers."""
GIVEN = {
    "model": "net.onnx", "plan": "plan.json", "file": "sweep.toml", "storage": "flash.bin", "device": "a72",
    "out": "out.onnx", "data": "rows.npz",
}  # fmt: skip


def numeric(table: tuple[Option, ...]) -> Iterator[tuple[str, str]]:
    """How each option that takes a number is written, and what stands around the number."""
    for one in table:
        flag = f"{one.flags[-1]} "
        if one is BLOCKS:
            yield from ((f"--block {name}=", "{}") for name in names() if option(name).metavar.isupper())
        elif one.kind is bool or (TEXT.fullmatch(one.words) and not re.search(r"\b[NKD]\b", one.words)):
            continue
        elif "=" in one.words:
            yield flag, "input={}"
        elif "warmup" in one.words:
            yield from ((flag, form) for form in ("warmup:{}", "step:{}:0.5", "step:2:{}"))
        elif "BUDGETS" in one.words:
            yield from ((flag, form) for form in ("{}", "20%..100%/{}", "{}..5MB/3"))
        else:
            yield flag, "depth:{}" if "depth" in one.words else "{}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    onnx.save(po.zoo.build("mlp", 2), "net.onnx")
    po.solve("net.onnx", device="a72").save("plan.json")
    np.savez("rows.npz", input=np.zeros((2, 784), np.float32), labels=np.zeros(2, np.int64))
    return tmp_path


def test_no_option_takes_what_is_no_number(run: Runner, folder: Path) -> None:
    wrong, seen = [], dict[tuple[str, str], int]()
    for registered in app.registered_commands:
        command = registered.callback
        assert command is not None
        table: tuple[Option, ...] = getattr(command, "options", ())
        needed = [GIVEN[one.name] for one in inspect.signature(command).parameters.values() if one.default is one.empty
                  and one.name not in {each.name for each in table} | {"out"}]  # fmt: skip
        for one in inspect.signature(command).parameters.values():
            if one.default is one.empty and one.name in ("device", "out", "data"):
                needed += [f"--{one.name}", GIVEN[one.name]]
        exact = {f"--{each.name} ".replace("_", "-") for each in table if each.kind == float | None}
        for flag, form in numeric(table):
            numbers = (*HOSTILE, *(IN_FLOAT32 if flag in exact else ()))
            for number in numbers if (flag, form) not in seen else numbers[len(seen) % len(numbers) :][:1]:
                words = f"{flag}{form.format(number)}"
                ended = run(command.__name__, *needed, *words.split(" ", 1))
                if ended.code != 2 or number not in ended.err or ended.err.count("\n") != 1:
                    wrong.append((command.__name__, words, ended.code, ended.err[:200]))
            seen[flag, form] = seen.get((flag, form), 0) + 1
    assert not wrong
    assert sum(seen.values()) > 100
    assert sorted(path.name for path in folder.iterdir()) == ["net.onnx", "plan.json", "rows.npz"]


@each("number", HOSTILE)
def test_no_file_has_what_is_no_number(run: Runner, folder: Path, number: str) -> None:
    """Of each kind: a device, a board's measurements, a meter's readings, a sweep, rows of data."""
    run("profile", "net.onnx", "--template", "board.csv")
    with Path("board.csv").open(newline="") as file:
        operator = list(csv.reader(file))[1][0].replace('"', '""')
    operator = f'"{operator}"'
    texts = [f"operator,time_s,{name}\n{operator},0.1,{number}" for name in ("energy_j", "workspace_bytes", "bytes")]
    for text in (*texts, f"operator,time_s\n{operator},{number}"):
        Path("board.csv").write_text(text, encoding="utf-8")
        run("profile", "net.onnx", "--from-csv", "board.csv").assert_one_message(number, code=2)
    for figure in ("ram_bytes = '{} GiB'", "flop_per_s = '{} GFLOP/s'"):
        Path("board.toml").write_text(f'base = "a72"\n[figures]\n{figure.format(number)}', encoding="utf-8")
        run("devices", "--show", "board.toml").assert_one_message(number, code=2)
    for key in ("ram", "deadlines", "time_limit", "gap"):
        lines = {"models": "mlp", "devices": "a72", "ram": "50%", key: number}
        Path("sweep.toml").write_text(
            "\n".join(f'{name} = "{value}"' for name, value in lines.items()), encoding="utf-8"
        )
        run("sweep", "sweep.toml").assert_one_message(number, code=2)
    for column in ("power", "voltage,current"):
        Path("meter.csv").write_text(f"time,{column}\n0,{number},1\n1,1,1\n", encoding="utf-8")
        with pytest.raises(PoetError):
            Table(Path("meter.csv")).joules()
    if number in HOSTILE[:4]:
        names = ",".join(f"x{k}" for k in range(784))
        Path("rows.csv").write_text(f"labels,{names}\n1,{number}{',1' * 783}\n", encoding="utf-8")
        ended = run("train", "plan.json", "--data", "rows.csv", "-o", "out.onnx")
        ended.assert_one_message("line 2", code=2)


@each(("option", "number", "bounds"), [
    ("--seed", "99999999999999999999", ("2^63",)), ("--seed", "9" * 400, ("2^63",)), ("--seed", "-1", ("at least 0",)),
    ("--lr", "1e-45", ("1.18e-38", "3.4e+38")), ("--lr", "1e39", ("1.18e-38", "3.4e+38")),
])  # fmt: skip
def test_the_range_of_a_number_is_told(run: Runner, option: str, number: str, bounds: tuple[str, ...]) -> None:
    run("run", "plan.json", "--steps", "2", option, number).assert_one_message(option, *bounds, code=2)


def test_what_decays_below_a_float32_is_0() -> None:
    """A rate that a user gives is refused there, and one that a schedule comes to isn't."""
    schedule = parse_schedule("step:1:1e-20")
    assert [schedule.rate(0.1, 0, epoch, 10) for epoch in (1, 3)] == [0.1 * 1e-20, 0.0]
    with po.Trainer(po.solve("mlp", device="a72"), lr=0.1) as trainer:
        for lr in (1e-46, 1e39, float("nan")):
            with pytest.raises(PoetError, match="--lr"):
                trainer.step({"input": np.zeros((8, 784), np.float32), "labels": np.zeros(8, np.int64)}, lr=lr)
