"""Damaged and hostile inputs of all kinds, drawn with a seed: models, their external data, plans, tables, archives.

A case is a folder and a command line. Beside the folder lies a file that nothing in it may read: `SECRET` in any output
is a leak.
"""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from benchmarks.damage import OPTIONS, bytes_of, fields_of, models

SECRET = b"SECRET-OUTSIDE-OF-THE-FOLDER-"
DIGITS = "9" * 5000
KINDS = ("bytes", "fields", "external", "plan", "device", "profile", "sweep", "data", "problem")


@dataclass(frozen=True)
class Case:
    """How it was made; files by name (bytes, or a link's target); names of pipes; the command, run in the folder."""

    label: str
    command: tuple[str, ...]
    files: dict[str, bytes] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    pipes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sound:
    """What the damaged ones are made of, beside the models: a plan, a device, a profile, a problem file, and data."""

    plan: bytes
    device: bytes
    profile: bytes
    problem: bytes
    data: bytes


def cases(seed: int, count: int, sound: Sound) -> Iterator[Case]:
    """`count` cases; half of them are models, as they are what most files are."""
    for number in range(count):
        rng = random.Random(f"mutants/{seed}/{number}")
        kind = rng.choices(KINDS, (20, 20, 12, 14, 9, 7, 7, 6, 5))[0]
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
    document = json.loads(data)
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
    text = json.dumps(document)
    if rng.random() < 0.1:
        text = text.replace("1", DIGITS, 1) if rng.random() < 0.5 else "[" * 100_000 + text
    return text.encode()


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


_MAKERS = {
    "bytes": _bytes, "fields": _fields, "external": _external, "plan": _plan, "device": _device, "profile": _profile,
    "sweep": _sweep, "data": _data, "problem": _problem,
}  # fmt: skip
