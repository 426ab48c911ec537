"""Damaged and hostile inputs of all kinds, drawn with a seed: models, their external data, plans, tables, archives.

A case is a folder and a command line. Beside the folder lies a file that nothing in it may read: `SECRET` in any output
is a leak.
"""

from __future__ import annotations

import io
import json
import random
import sqlite3
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from benchmarks.damage import OPTIONS, bytes_of, fields_of, models

SECRET = b"SECRET-OUTSIDE-OF-THE-FOLDER-"
DIGITS = "9" * 5000
KINDS = ("bytes", "fields", "external", "plan", "device", "profile", "sweep", "data", "problem")
COMMANDS = ("lora", "quantize", "merge", "restore", "show", "meter", "profiles", "results")
"""Of inputs that other commands than `inspect`, `solve` and `run` read; drawn where they are asked for."""


@dataclass(frozen=True)
class Case:
    """How it was made; files by name (bytes, or a link's target); names of pipes; the command, run in the folder.

    What it writes at `out.onnx`, `inspect` can read as it can `m.onnx`.
    """

    label: str
    command: tuple[str, ...]
    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    pipes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sound:
    """What the damaged ones are made of, beside the models: a plan, a device, a profile, a problem file, and data.

    networks
        That LoRA, the quantizer and merging take: plain, adapted, quantized, both.
    on_device, storage
        A plan of the last but one in C, and what the program's storage holds; the plan's network is `net.onnx`.
    results
        Of `SWEEP_ALONE`.
    table
        Measurements of a board.
    """

    plan: bytes
    device: bytes
    profile: bytes
    problem: bytes
    data: bytes
    networks: tuple[bytes, ...] = ()
    on_device: bytes = b""
    storage: bytes = b""
    results: bytes = b""
    table: bytes = b""


def cases(seed: int, count: int, sound: Sound, kinds: Sequence[str] = KINDS) -> Iterator[Case]:
    """`count` cases; half of them are models, as they are what most files are."""
    weights = (20, 20, 12, 14, 9, 7, 7, 6, 5) if tuple(kinds) == KINDS else None
    for number in range(count):
        rng = random.Random(f"mutants/{seed}/{number}")
        kind = rng.choices(kinds, weights)[0]
        case = _MAKERS[kind](rng, sound)
        yield Case(f"{number}: {kind}: {case.label}", case.command, case.files, case.links, case.pipes)


def _model(rng: random.Random, kind: str) -> Case:
    base = rng.choice(models())
    data = bytes_of(base.SerializeToString(), rng) if kind == "bytes" else fields_of(base, rng)
    more = OPTIONS.get(base.graph.name, ())
    return Case(base.graph.name, ("inspect", "m.onnx", "--device", "a72", *more), {"m.onnx": data})


def _bytes(rng: random.Random, sound: Sound) -> Case:
    return _model(rng, "bytes")


def _fields(rng: random.Random, sound: Sound) -> Case:
    return _model(rng, "fields")


_PLACES = (
    "../secret.bin", "/proc/self/environ", "link.bin", "folder/w.bin", "w.bin", "./w.bin", "pipe", "zero", "folder", "",
    "w.bin\0x", "folder/../../secret.bin", "linked/secret.bin", "/dev/zero", "é\n.bin", "w.bin/x",
)  # fmt: skip


def _external(rng: random.Random, sound: Sound) -> Case:
    """A weight whose data lies somewhere: `grad` would write what it finds there."""
    base = onnx.ModelProto()
    base.CopyFrom(rng.choice(models()))
    floats = [tensor for tensor in base.graph.initializer if tensor.data_type == TensorProto.FLOAT]
    weight = max(floats, key=lambda tensor: int(np.prod(tensor.dims)))
    size = 4 * int(np.prod(weight.dims))
    weight.ClearField("float_data")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    place = rng.choice(_PLACES)
    for key, values in (
        ("location", (place,)),
        ("offset", (None, None, None, 0, -1, 2**63, 4, "x")),
        ("length", (None, None, size, 0, 2**63)),
    ):
        value = rng.choice(values)
        if value is not None:
            weight.external_data.add(key=key, value=str(value))
    if rng.random() < 0.1:
        weight.dims[:] = [2**31, 2**31]
    data = base.SerializeToString()
    if rng.random() < 0.3:
        data = bytes_of(data, rng)
    weights = bytes(rng.choices(range(40, 60), k=size))
    links = {
        "link.bin": rng.choice(("../secret.bin", "w.bin", "link.bin", "/dev/zero", "pipe")),
        "zero": "/dev/zero",
        "linked": "..",
    }
    more = OPTIONS.get(base.graph.name, ())
    return Case(
        f"{base.graph.name} at {place!r}", ("grad", "m.onnx", "-o", "out.onnx", *more),
        {"m.onnx": data, "w.bin": weights, "folder/w.bin": weights}, links, ("pipe",),
    )  # fmt: skip


_VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1, 2, 2**31, 2**53, 2**63, 10**400, 1e308, -0.5, float("inf"), float("nan"), "", "x", "\ud800",
    "../secret.bin", "/dev/zero", "pipe", [], {}, [[]], "\0", "a" * 10000,
)  # fmt: skip


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(entries):
        yield value, key
        yield from _places(inner)


def _json(data: bytes, rng: random.Random) -> bytes:
    """Values changed, or bytes."""
    if rng.random() < 0.3:
        return bytes_of(data, rng)
    text = _values(json.loads(data), rng)
    if rng.random() < 0.1:
        text = text.replace("1", DIGITS, 1) if rng.random() < 0.5 else "[" * 100_000 + text
    return text.encode()


def _values(document: Any, rng: random.Random) -> str:
    """The text of a document that is changed in some places."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        place, key = rng.choice(list(_places(document)))
        action = rng.randrange(5)
        if action == 0:
            del place[key]
            if not document:
                break
        elif action == 1 and isinstance(place, list):
            place.insert(rng.randrange(len(place) + 1), place[key])
        else:
            place[key] = rng.choice(_VALUES)
    return json.dumps(document)


def _plan(rng: random.Random, sound: Sound) -> Case:
    command = rng.choice(
        (
            ("verify", "p.json"),
            ("run", "p.json"),
            ("show", "p.json", "-o", "out.txt"),
            ("verify", "p.json", "--bound", "--time-limit", "2s"),
        )
    )
    return Case(command[0], command, {"p.json": _json(sound.plan, rng)}, pipes=("pipe",))


_LINES = (
    f"x = {DIGITS}", "x = " + "[" * 3000, 'base = "m0"', 'base = "/dev/zero"', 'base = "pipe"',
    'base = "../secret.bin"', 'base = "d.toml"', "ram_bytes = inf", "ram_bytes = nan", 'name = "\\u0000"', "x = 1e999",
    "[x]\n[x]", 'models = ["../secret.bin"]', 'models = ["pipe"]', 'models = ["mlp\\u0000"]', 'devices = ["pipe"]',
    'models = [{ model = "mlp", batch = 99999999999999999999 }]', 'ram = "1%..100%/1000000000"', "ram = 1e400",
    "threads = 123456789012345678901234567890", 'time_limit = "1e400s"',
)  # fmt: skip


_NUMBERS = ("-1", "0", "1e308", "inf", "nan", "true", DIGITS, "[]", "{}", "1979-05-27", '""')


def _toml(data: bytes, rng: random.Random) -> bytes:
    """Lines changed, or bytes."""
    if rng.random() < 0.4:
        return bytes_of(data, rng)
    lines = data.decode().splitlines()
    for _ in range(rng.choice((1, 1, 2, 3))):
        at, action = rng.randrange(len(lines)), rng.randrange(5)
        if action == 0:
            del lines[at]
        elif action == 1:
            lines.insert(at, rng.choice(_LINES))
        elif action == 2:
            lines[at] = rng.choice(_LINES)
        else:
            key = lines[at].partition("=")[0]
            lines[at] = f"{key}= {rng.choice(_NUMBERS)}"
        if not lines:
            lines = [""]
    return "\n".join(lines).encode()


def _device(rng: random.Random, sound: Sound) -> Case:
    command = ("solve", "mlp", "--device", "./d.toml", "--time-limit", "2s", "-o", "out.json")
    return Case("solve", command, {"d.toml": _toml(sound.device, rng)}, pipes=("pipe",))


def _profile(rng: random.Random, sound: Sound) -> Case:
    command = ("solve", "mlp", "--device", "a72", "--profile", "d.toml", "--time-limit", "2s", "-o", "out.json")
    return Case("solve", command, {"d.toml": _toml(sound.profile, rng)}, pipes=("pipe",))


_SWEEP = b"""\
models = ["mlp", { model = "net.onnx", batch = 2, train = ["w*"] }]
devices = ["a72", "./d.toml"]
ram = "80%..100%/2"
deadlines = ["none", "1.5x"]
methods = ["poet"]
time_limit = "1s"
gap = "1%"
"""


def _sweep(rng: random.Random, sound: Sound) -> Case:
    """Its points alone are read (`fuzz.py` knows the command): workers would take most of the time."""
    files = {"s.toml": _toml(_SWEEP, rng), "d.toml": sound.device, "net.onnx": models()[0].SerializeToString()}
    return Case("points", ("sweep", "s.toml"), files, pipes=("pipe",))


def _data(rng: random.Random, sound: Sound) -> Case:
    """An archive for `run`: damaged, or with members that lie."""
    data, what = sound.data, rng.randrange(4)
    if what == 0:
        data = bytes_of(data, rng)
    else:
        held = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(held, "w", rng.choice((0, 8, 12, 14))) as new:
            for info in old.infolist():
                content = old.read(info)
                if what == 1:
                    content = bytes_of(content, rng)
                elif what == 2:
                    shape = rng.choice((b"(%d,)" % 2**50, b"(-1,)", b"()", b"(" * 90, b"(32, 64", b"(32,)"))
                    content = content.replace(b"(32", shape, 1)
                new.writestr(info.filename, content)
            if what == 3:
                new.writestr("bomb.npy", bytes(10**7))
        data = held.getvalue()
    return Case(f"archive {what}", ("run", "p.json", "--data", "d.npz"), {"p.json": sound.plan, "d.npz": data})


def _problem(rng: random.Random, sound: Sound) -> Case:
    command = ("solve", "q.json", "--device", "a72", "--ram", "80%", "--time-limit", "2s", "-o", "out.json")
    return Case("solve", command, {"q.json": _json(sound.problem, rng)})


_OPTIONS = {
    "lora": (("--targets", "*"), ("--targets", "*", "--alpha", "3"), ("--targets", "*q_proj,o*", "--rank", "2"), ()),
    "quantize": (("--block", "16"), ("--kind", "int8", "--block", "16"), ()),
    "merge": (("--merge",),),
}


def _rewritten(rng: random.Random, sound: Sound, kind: str) -> Case:
    """A network that is written anew; what it is made of has a weight or two in a file of its own now and then."""
    base = onnx.load_from_string(sound.networks[{"lora": rng.choice((0, 0, 2)), "quantize": rng.choice((0, 0, 1))}.get(
        kind, rng.choice((1, 1, 3))
    )])  # fmt: skip
    if kind != "merge" and rng.random() < 0.2:
        base.CopyFrom(rng.choice(models()))
    if rng.random() < 0.2:
        weight = rng.choice(base.graph.initializer)
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=rng.choice((*_PLACES, *["w.bin"] * 9)))
    data = bytes_of(base.SerializeToString(), rng) if rng.random() < 0.4 else fields_of(base, rng)
    options = rng.choice(_OPTIONS[kind])
    files, links = {"m.onnx": data, "w.bin": bytes(4096)}, {"link.bin": "../secret.bin", "zero": "/dev/zero"}
    command = ("lora" if kind == "merge" else kind, "m.onnx", "-o", "out.onnx", *options)
    return Case(" ".join(options), command, files, links, ("pipe",))


def _lora(rng: random.Random, sound: Sound) -> Case:
    return _rewritten(rng, sound, "lora")


def _quantize(rng: random.Random, sound: Sound) -> Case:
    return _rewritten(rng, sound, "quantize")


def _merge(rng: random.Random, sound: Sound) -> Case:
    return _rewritten(rng, sound, "merge")


def _restore(rng: random.Random, sound: Sound) -> Case:
    """A plan, its network or a storage that is damaged, or no file at all."""
    plan, network, storage, what = sound.on_device, sound.networks[0], sound.storage, rng.randrange(6)
    place = "s.bin"
    if what == 0:
        plan = _json(plan, rng)
    elif what == 1:
        network = bytes_of(network, rng) if rng.random() < 0.5 else fields_of(onnx.load_from_string(network), rng)
    elif what == 2:
        place = rng.choice(("zero", "pipe", "folder", "p.json", "nothing", "link.bin", "/dev/stdin"))
    elif what == 3:
        storage = rng.choice((b"", storage[: rng.randrange(len(storage))], storage + bytes(10**6), storage[::-1]))
    else:
        storage = bytes_of(storage, rng)
    files = {"p.json": plan, "net.onnx": network, "s.bin": storage, "folder/x": b""}
    links = {"zero": "/dev/zero", "link.bin": "link.bin"}
    return Case("storage", ("restore", "p.json", place, "-o", "restored.onnx"), files, links, ("pipe",))


def _show(rng: random.Random, sound: Sound) -> Case:
    """A plan whose report alone says what nobody would."""
    document = json.loads(sound.plan)
    document["report"] = json.loads(_values(document["report"], rng))
    form = rng.choice(("txt", "html", "svg"))
    if form == "svg" and rng.random() < 0.8:  # drawing takes seconds
        form = "txt"
    return Case("report", ("show", "p.json", "-o", f"out.{form}"), {"p.json": json.dumps(document).encode()})


_CELLS = (
    "-5", "-0.0", "1e308", "-1e308", "inf", "nan", "", "x", "1_0", "0x10", "2026-11-29", "2026-11-29T25:00", "9" * 5000,
    "0001-01-01", "9999-12-31T23:59:59", "\0", '"', '"open', ",", ";", "é", "\ufeff", "1e5", "1e-320", "٣",
)  # fmt: skip


def _cells(text: str, rng: random.Random) -> bytes:
    """Cells of a table changed, or its bytes."""
    if rng.random() < 0.3:
        return bytes_of(text.encode(), rng)
    rows = [line.split(",") for line in text.splitlines()]
    for _ in range(rng.choice((1, 1, 2, 4))):
        row = rng.choice(rows)
        if rng.random() < 0.8 and row:
            row[rng.randrange(len(row))] = rng.choice(_CELLS)
        else:
            rows.insert(rng.randrange(len(rows) + 1), rng.choice((row[:1], row * 2, row)))
    return "\n".join(",".join(row) for row in rows).encode("utf-8", "surrogatepass")


def _meter(rng: random.Random, sound: Sound) -> Case:
    head = rng.choice(("time,power", "time,voltage,current"))
    cells = "5" if head.endswith("power") else "5,0.5"
    text = "\n".join([head, *(f"{at},{cells}" for at in ("0", "1e9", "1.7e9", "1e12"))])
    place = "r.csv" if rng.random() < 0.9 else rng.choice(("pipe.csv", "zero.csv", "folder.csv", "nothing.csv"))
    command = ("run", "p.json", "--data", "d.npz", "--steps", "2", "--lr", "0.1", "--meter", place)
    files = {"p.json": sound.plan, "net.onnx": sound.networks[0], "d.npz": sound.data, "r.csv": _cells(text, rng)}
    files |= {"folder.csv/x": b""}
    return Case(head, command, files, {"zero.csv": "/dev/zero"}, ("pipe.csv",))


def _profiles(rng: random.Random, sound: Sound) -> Case:
    """A profile that `solve` reads or `profile` adds to, or a table of measurements that it is made of."""
    if rng.random() < 0.3:
        return _profile(rng, sound)
    if rng.random() < 0.5:
        files = {"net.onnx": sound.networks[0], "t.csv": sound.table, "p.toml": _toml(sound.profile, rng)}
    else:
        files = {"net.onnx": sound.networks[0], "t.csv": _cells(sound.table.decode(), rng)}
    command = ("profile", "net.onnx", "--from-csv", "t.csv", "--power", "3W", "-o", "p.toml")
    return Case("table", command, files)


SWEEP_ALONE = b'models = ["net.onnx"]\ndevices = ["a72"]\nram = "90%..100%/2"\ntime_limit = "5s"\n'
_SQL = (
    "UPDATE rows SET {0} = {1}", "UPDATE rows SET {0} = {1} WHERE point = 1", "DELETE FROM rows", "DROP TABLE rows",
    "ALTER TABLE rows DROP COLUMN gap", "ALTER TABLE rows RENAME COLUMN {0} TO other",
    "ALTER TABLE rows ADD COLUMN more",
    "CREATE TABLE other (x)", "INSERT INTO rows (key, {0}) VALUES ({1}, {1})", "PRAGMA user_version = 7",
    "CREATE TRIGGER t AFTER INSERT ON rows BEGIN DELETE FROM rows; END", "PRAGMA journal_mode = WAL",
    "DROP TABLE rows; CREATE VIEW rows AS WITH RECURSIVE c(key) AS (VALUES(1) UNION ALL SELECT key + 1 FROM c) "
    "SELECT * FROM c",
)  # fmt: skip
_HELD = (
    "NULL",
    "-1",
    "9e999",
    "-9e999",
    "x'ff00'",
    "'text'",
    "''",
    "1e308",
    "zeroblob(1000000)",
    "9223372036854775807",
)


def _results(rng: random.Random, sound: Sound) -> Case:
    """The results file of a sweep that is whole."""
    data = sound.results
    if rng.random() < 0.4:
        data = bytes_of(data, rng)
    else:
        with closing(sqlite3.connect(":memory:")) as connection:
            connection.deserialize(data)
            names = [row[1] for row in connection.execute("PRAGMA table_info(rows)")]
            for _ in range(rng.choice((1, 1, 2))):
                with suppress(sqlite3.Error):
                    connection.executescript(rng.choice(_SQL).format(rng.choice(names), rng.choice(_HELD)))
            data = connection.serialize()
    place = "r.sqlite" if rng.random() < 0.95 else rng.choice(("pipe", "zero", "folder", "nothing.sqlite"))
    files = {"s.toml": SWEEP_ALONE, "net.onnx": sound.networks[0], "r.sqlite": data, "folder/x": b""}
    return Case("rows", ("sweep", "s.toml", place), files, {"zero": "/dev/zero"}, ("pipe",))


_MAKERS = {
    "bytes": _bytes, "fields": _fields, "external": _external, "plan": _plan, "device": _device, "profile": _profile,
    "sweep": _sweep, "data": _data, "problem": _problem, "lora": _lora, "quantize": _quantize, "merge": _merge,
    "restore": _restore, "show": _show, "meter": _meter, "profiles": _profiles, "results": _results,
}  # fmt: skip
