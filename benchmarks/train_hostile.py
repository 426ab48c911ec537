"""Hostile inputs to `poetopt train`: each ends with one message and a documented code, and nothing is lost.

    python -m benchmarks.train_hostile [--seeds 4] [--only KIND] [--minutes M] [--output FILE.md]

Each kind of damage is drawn anew with each seed: data that are none, don't fit, are cut short or changed; checkpoints
that are damaged or another network's; options that make no sense; outputs that can't be written, a full disk (a limit
on the size of files) among them. After each, stderr has one message, the code is 2 to 6, no trained file is there, and
the checkpoints that were there before still are, a whole one where one was; no process was started, and none took
longer than a minute. Changed bytes may do no harm (`HARMLESS`): then a training ends well. All of it happens in one
process, what `train` does in others, too; the step is made ready once a plan.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
from PIL import Image

from benchmarks.damage import bytes_of
from benchmarks.mutants import _json
from benchmarks.output import put
from poetopt.cli.app import invoke
from poetopt.training.checkpoint import newest
from poetopt.util.errors import PoetError
from poetopt.util.progress import silent

Rng = Any
Arguments = list[str]
ROWS, BATCH = 24, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--only", default="")
    parser.add_argument("--minutes", type=float, default=np.inf)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    if hasattr(signal, "SIGXFSZ"):
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    faults: list[str] = []
    codes: defaultdict[str, list[int]] = defaultdict(list)
    messages: dict[str, str] = {}
    sys.addaudithook(_hear)
    signal.signal(signal.SIGALRM, _too_long)
    with tempfile.TemporaryDirectory() as name:
        ground = Path(name)
        prepare(ground)
        begun = time.monotonic()
        for seed in range(options.seeds):
            for kind, made in KINDS.items():
                if options.only not in kind or time.monotonic() - begun > 60 * options.minutes:
                    continue
                code, message, fault = one(ground, made, np.random.default_rng([seed, len(kind)]), kind in HARMLESS)
                codes[kind].append(code)
                messages[kind] = message or messages.get(kind, "")
                if fault:
                    faults.append(f"{kind}, seed {seed}: {fault}")
                    print(faults[-1], file=sys.stderr, flush=True)
    rows = [
        f"| {kind} | {len(those)} | {', '.join(map(str, sorted(set(those))))} | {messages[kind]} |"
        for kind, those in codes.items()
    ]
    count = sum(map(len, codes.values()))
    lines = [
        "# Hostile inputs to train",
        "",
        f"`python -m benchmarks.train_hostile --seeds {options.seeds} --minutes {options.minutes:g}`: "
        f"{count} inputs, {len(faults)} of which ended "
        "otherwise than with one message, a documented code, and all that was there before.",
        "",
        "| what | inputs | codes | the last message |",
        "|---|---|---|---|",
        *rows,
        *([""] if faults else []),
        *faults,
    ]
    put(lines, options.output)
    sys.exit(bool(faults))


def data(rng: Rng, count: int = ROWS) -> dict[str, Any]:
    """Good rows for LeNet."""
    return {
        "input": rng.standard_normal((count, 1, 28, 28)).astype(np.float32),
        "labels": rng.integers(0, 10, count),
    }


def prepare(ground: Path) -> None:
    """A plan, another network's plan, good data, and a checkpoint of a training."""
    np.savez(ground / "good.npz", **data(np.random.default_rng(1)))
    for name, optimizer in (("lenet", "adam"), ("lenet", "none"), ("mlp", "adam")):
        line = f"solve {name} --batch {BATCH} --device a72 --ram 100% --optimizer {optimizer} -o"
        quietly([*line.split(), str(ground / f"{name}-{optimizer}.json")])
    for name, folder in (("lenet", "kept"), ("mlp", "others")):
        given = data(np.random.default_rng(1))
        if name == "mlp":
            given["input"] = given["input"].reshape(ROWS, 784)
        np.savez(ground / f"{name}.npz", **given)
        given_as = "good" if name == "lenet" else name
        kept = f"--checkpoint {ground}/{folder} --every 2"
        line = f"train {ground}/{name}-adam.json --data {ground}/{given_as}.npz {kept}"
        code, said = quietly([*line.split(), "-o", str(ground / "first.onnx")])
        assert code == 0, said


STARTED: list[str] = []


def _hear(event: str, given: tuple[Any, ...]) -> None:
    """Nothing may start a process."""
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn"):
        STARTED.append(f"{event} {given[:1]}")


def _too_long(number: int, frame: object) -> None:
    raise RuntimeError("it took longer than a minute")


def whole(folder: Path) -> bool:
    """Whether a folder has a checkpoint to go on from."""
    try:
        return newest(folder) is not None
    except PoetError:
        return False


def one(ground: Path, made: Callable[[Path, Rng], Arguments], rng: Rng, harmless: bool) -> tuple[int, str, str]:
    """Code and message of one hostile input, and what is wrong with how it ended."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in ("kept", "others"):
            shutil.copytree(ground / part, folder / part)
        for plan_file in ground.glob("*.json"):
            shutil.copy(plan_file, folder)
        shutil.copy(ground / "good.npz", folder)
        more = made(folder, rng)
        before = {path: path.read_bytes() for path in (folder / "kept").glob("*.npz") if path.is_file()}
        good = whole(folder / "kept")
        STARTED.clear()
        plan = [] if more and not more[0].startswith("-") else [str(folder / "lenet-adam.json")]
        out = [] if "-o" in more else ["-o", str(folder / "out.onnx")]
        given = [] if "--data" in more else ["--data", str(folder / "good.npz")]
        signal.alarm(60)
        code, said = quietly(["train", *plan, *more, *given, *out])
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        fault = ""
        if STARTED:
            fault = f"it started a process: {STARTED}"
        elif good and not whole(folder / "kept"):
            fault = "no checkpoint is whole any more"
        elif harmless and (code, said) == (0, ""):
            pass
        elif (
            said.count("poetopt: ") != 1 or not said.startswith("poetopt: ") or "Traceback" in said or "defect" in said
        ):
            fault = f"not one message: {said!r}"
        elif not 2 <= code <= 6:
            fault = f"code {code}: {said!r}"
        elif (folder / "out.onnx").exists():
            fault = "a trained file is there"
        elif any(path.read_bytes() != content for path, content in before.items() if path.exists()):
            fault = "a checkpoint has changed"
        elif before and not any((folder / "kept").glob("*.npz")):
            fault = "the checkpoints are gone"
        elif left := [path.name for path in folder.rglob(".poetopt-*")]:
            fault = f"left: {left}"
        return code, said.removeprefix("poetopt: ").strip().replace(str(folder), "...").replace("|", "/"), fault


PREPARED: dict[object, Any] = {}
"""What a plan's step was made ready in, by its content and how it was asked for: most inputs leave it as it is."""


def _called(_what: str, function: Callable[..., Any], *given: Any, told: Any = silent) -> Any:
    """What `poetopt.util.process.call` does, in this process, and once for each plan."""
    limited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
    if function.__name__ != "_prepare" or limited or not Path(given[0]).is_file():
        return function(*given, told=told)
    key = (Path(given[0]).read_bytes(), given[1:-1])
    if key not in PREPARED:
        function(*given, told=told)
        PREPARED[key] = {path.name: path.read_bytes() for path in Path(given[-1]).iterdir() if path.name != ".lock"}
    for name, content in PREPARED[key].items():
        (Path(given[-1]) / name).write_bytes(content)
    return None


def quietly(arguments: Arguments) -> tuple[int, str]:
    """Code and stderr of a command line; an exception that gets through counts as a traceback."""
    said = io.StringIO()
    with (
        contextlib.redirect_stderr(said),
        contextlib.redirect_stdout(io.StringIO()),
        patch("poetopt.util.process.call", _called),
    ):
        try:
            code = invoke(arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is, it got through
            return -1, f"Traceback: {type(error).__name__}: {error}"
    return code, said.getvalue()


def _changed(change: Callable[[dict[str, Any], Rng], None], count: int = ROWS) -> Callable[[Path, Rng], Arguments]:
    """Good rows with a change, as a file or as a shard among good ones, or as what is validated."""

    def made(folder: Path, rng: Rng) -> Arguments:
        rows = data(rng, count)
        change(rows, rng)
        save = np.savez if rng.random() < 0.5 else np.savez_compressed
        if rng.random() < 0.3:
            (folder / "shards").mkdir()
            np.savez(folder / "shards" / "a.npz", **data(rng))
            save(folder / "shards" / "b.npz", **rows)
            return ["--data", str(folder / "shards")]
        save(folder / "bad.npz", **rows)
        return ["--validate" if rng.random() < 0.2 else "--data", str(folder / "bad.npz")]

    return made


def _nan(rows: dict[str, Any], rng: Rng) -> None:
    flat = rows["input"].reshape(-1)
    flat[rng.integers(flat.size)] = rng.choice([np.nan, np.inf, -np.inf])


def _label(rows: dict[str, Any], rng: Rng) -> None:
    rows["labels"][rng.integers(ROWS)] = rng.choice([-1, 10, 2**40, -(2**40)])


def _shape(rows: dict[str, Any], rng: Rng) -> None:
    array = rows["input"]
    rows["input"] = [array[:, 0], array[..., :27], array[:, :, :, None], array.reshape(-1), array[0]][rng.integers(5)]


def _type(rows: dict[str, Any], rng: Rng) -> None:
    name, dtype = [("input", "f8"), ("input", "i8"), ("labels", "f4"), ("input", "U5"), ("input", "c8")][
        rng.integers(5)
    ]
    rows[name] = rows[name].astype(dtype)


def _names(rows: dict[str, Any], rng: Rng) -> None:
    rows[["Input", "x", "", "label"][rng.integers(4)]] = rows.pop(["input", "labels"][rng.integers(2)])


def _uneven(rows: dict[str, Any], rng: Rng) -> None:
    name = ["input", "labels"][rng.integers(2)]
    rows[name] = rows[name][: int(rng.integers(1, ROWS))]


def _none(rows: dict[str, Any], rng: Rng) -> None:
    for name in rows:
        rows[name] = rows[name][:0]


def _objects(rows: dict[str, Any], rng: Rng) -> None:
    rows["labels"] = np.array([object()] * ROWS, dtype=object) if rng.random() < 0 else rows["labels"].astype("S3")


def _few(folder: Path, rng: Rng) -> Arguments:
    np.savez(folder / "few.npz", **data(rng, int(rng.integers(1, BATCH))))
    return ["--data", str(folder / "few.npz")]


def _cut(folder: Path, rng: Rng) -> Arguments:
    np.savez(folder / "cut.npz", **data(rng))
    whole = (folder / "cut.npz").read_bytes()
    (folder / "cut.npz").write_bytes(whole[: int(rng.integers(len(whole)))])
    return ["--data", str(folder / "cut.npz")]


def _flipped(folder: Path, rng: Rng) -> Arguments:
    (np.savez if rng.random() < 0.5 else np.savez_compressed)(folder / "flipped.npz", **data(rng))
    raw = bytearray((folder / "flipped.npz").read_bytes())
    raw[int(rng.integers(200, len(raw) - 500))] ^= int(rng.integers(1, 256))
    (folder / "flipped.npz").write_bytes(raw)
    return ["--data", str(folder / "flipped.npz")]


def _garbage(folder: Path, rng: Rng) -> Arguments:
    name = ["x.npz", "x.csv", "x", "x.onnx", "x.npy"][rng.integers(5)]
    (folder / name).write_bytes(rng.bytes(int(rng.integers(0, 5000))))
    return ["--data", str(folder / name)]


def _places(folder: Path, rng: Rng) -> Arguments:
    (folder / "empty").mkdir()
    (folder / "texts").mkdir()
    (folder / "texts" / "a.txt").write_text("x")
    place = ["/dev/null", "/dev/zero", folder / "empty", folder / "texts", folder / "gone.npz", "", "\0"][
        rng.integers(7)
    ]
    return ["--data", str(place)]


def _table(folder: Path, rng: Rng) -> Arguments:
    rows = data(rng)
    lines = [["labels", *(f"p{k}" for k in range(784))]]
    lines += [
        [str(y), *(f"{v:.3f}" for v in x)] for y, x in zip(rows["labels"], rows["input"].reshape(ROWS, -1), strict=True)
    ]
    k, c = int(rng.integers(0, ROWS)), int(rng.integers(0, 785))
    change = int(rng.integers(6))
    if change == 0:
        lines[k + 1][c] = str(rng.choice(["", "x", "nan", "1e999", "0x1", "--"]))
    elif change == 1:
        lines[k + 1] = lines[k + 1][:c]
    elif change == 2:
        lines[k + 1][0] = str(rng.choice(["10", "-1", "1.5", "99999999999999999999"]))
    elif change == 3:
        del lines[0]
    elif change == 4:
        lines[0][c] = lines[0][c - 1]
    else:
        lines = lines[:1]
    (folder / "t.csv").write_text("\n".join(",".join(line) for line in lines), encoding="utf-8")
    return ["--data", str(folder / "t.csv")]


def _images(folder: Path, rng: Rng) -> Arguments:
    for name in ("cat", "dog"):
        (folder / "images" / name).mkdir(parents=True)
        for k in range(6):
            (folder / "images" / name / f"{k}.png").write_bytes(rng.bytes(300))
    if rng.random() < 0.3:
        (folder / "images" / "empty").mkdir()
    return ["--data", str(folder / "images")]


FORMS = ("png", "jpeg", "bmp", "gif", "webp", "tiff")


def _image_bytes(folder: Path, rng: Rng) -> Arguments:
    """Images of all formats, with bytes of one of them changed, or its end cut off."""
    for name in ("cat", "dog"):
        (folder / "images" / name).mkdir(parents=True)
        for k in range(4):
            form = FORMS[rng.integers(len(FORMS))]
            pixels = rng.integers(0, 256, (int(rng.integers(1, 40)), 28, 3), np.uint8)
            Image.fromarray(pixels).save(folder / "images" / name / f"{k}.{form}")
    place = sorted((folder / "images").glob("*/*"))[rng.integers(8)]
    place.write_bytes(bytes_of(place.read_bytes(), Random(int(rng.integers(2**31)))))
    return ["--data", str(folder / "images")]


def _image_forms(folder: Path, rng: Rng) -> Arguments:
    """What other formats begin with, under the name of an image; some make Pillow start a program."""
    (folder / "images" / "cat").mkdir(parents=True)
    heads = (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n", b"P6 1 1 255\n123",
        b"%PDF-1.4\n", b"\x00\x00\x01\x00\x01\x00", b"FLIF", b"8BPS\x00\x01", b"gimp xcf ", b"icns\x00\x00\x00\x08",
    )  # fmt: skip
    for k in range(8):
        head = heads[rng.integers(len(heads))]
        place = folder / "images" / "cat" / f"{k}.{FORMS[rng.integers(len(FORMS))]}"
        place.write_bytes(head + rng.bytes(int(rng.integers(100))))
    return ["--data", str(folder / "images")]


def _special(folder: Path, rng: Rng) -> Arguments:
    """A pipe that nobody writes to, or a device that never ends, where data or checkpoints are."""
    name = ["x.npz", "x.csv", "shards/x.npz", "images/a/x.png", "kept/step-000000400.npz"][rng.integers(5)]
    place = folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    for k in range(4 if name.startswith("images") else 0):
        Image.new("L", (28, 28)).save(place.parent / f"{k}.png")
    if rng.random() < 0.5:
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero")
    if name.startswith("kept"):
        return ["--checkpoint", str(folder / "kept"), "--resume", "--epochs", "2", "--data", str(folder / "good.npz")]
    return ["--data", str(folder / name.partition("/")[0])]


def _above(folder: Path, rng: Rng) -> Arguments:
    """Damaged checkpoints of higher numbers than the good ones, which must not cost these."""
    for number in rng.choice(np.arange(7, 600), 2, replace=False):
        good = sorted((folder / "kept").glob("*.npz"))[0].read_bytes()
        content = bytes_of(good[: int(rng.integers(1, len(good)))], Random(int(rng.integers(2**31))))
        (folder / "kept" / f"step-{number:09d}.npz").write_bytes(content)
    return [
        "--checkpoint",
        str(folder / "kept"),
        "--resume",
        "--epochs",
        "2",
        "--every",
        "2",
        "--data",
        str(folder / "good.npz"),
    ]


def _shards(folder: Path, rng: Rng) -> Arguments:
    (folder / "shards").mkdir()
    for k in range(3):
        (np.savez if rng.random() < 0.5 else np.savez_compressed)(folder / "shards" / f"{k}.npz", **data(rng, 8))
    place = folder / "shards" / f"{rng.integers(3)}.npz"
    place.write_bytes(bytes_of(place.read_bytes(), Random(int(rng.integers(2**31)))))
    return ["--data", str(folder / "shards")]


def _csv_bytes(folder: Path, rng: Rng) -> Arguments:
    _table(folder, rng)
    place = folder / "t.csv"
    place.write_bytes(bytes_of(place.read_bytes(), Random(int(rng.integers(2**31)))))
    return ["--data", str(place)]


def _plan_values(folder: Path, rng: Rng) -> Arguments:
    plan = folder / "lenet-adam.json"
    plan.write_bytes(_json(plan.read_bytes(), Random(int(rng.integers(2**31)))))
    return [str(plan)]


def _checkpoints(folder: Path, rng: Rng) -> Arguments:
    for path in (folder / "kept").glob("*.npz"):
        whole = bytearray(path.read_bytes())
        if rng.random() < 0.5:
            del whole[int(rng.integers(len(whole))) :]
        else:
            whole[int(rng.integers(600, 0.9 * len(whole)))] ^= int(rng.integers(1, 256))
        path.write_bytes(whole)
    return ["--checkpoint", str(folder / "kept"), "--resume", "--data", str(folder / "good.npz")]


def _foreign(folder: Path, rng: Rng) -> Arguments:
    return ["--checkpoint", str(folder / "others"), "--resume"]


def _meta(folder: Path, rng: Rng) -> Arguments:
    """A checkpoint whose numbers are whole, and whose words are not."""
    for path in (folder / "kept").glob("*.npz"):
        with np.load(path) as archive:
            arrays = {name: archive[name] for name in archive.files}
        meta = json.loads(arrays["meta"].tobytes())
        key = ["format", "position", "course", "taken", "optimizer"][rng.integers(5)]
        values: list[Any] = [None, -1, "x", {}, [], 10**30]
        meta[key] = values[rng.integers(len(values))]
        arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
        np.savez(path, **arrays)
    return ["--checkpoint", str(folder / "kept"), "--resume", "--epochs", "3"]


def _again(folder: Path, rng: Rng) -> Arguments:
    more = [[], ["--resume", "--seed", "3"], ["--resume", "--batch-order", "sequential"]][rng.integers(3)]
    return ["--checkpoint", str(folder / "kept"), *more]


def _options(folder: Path, rng: Rng) -> Arguments:
    wrong = (
        "--lr 0", "--lr nan", "--lr -1", "--lr inf", "--lr x", "--epochs 0", "--epochs -2", "--lr-schedule step:0:1",
        "--lr-schedule cosine:1", "--lr-schedule x", "--momentum 0.9", "--weight-decay -1", "--weight-decay nan",
        "--accumulate 2", "--clip-norm 1", "--optimizer sgd", "--optimizer none", "--optimizer lion", "--seed -1",
        "--every 0", "--every 3", "--resume", "--batch-order random", f"--checkpoint {folder}/good.npz",
        "--checkpoint /dev/null", f"--workdir {folder}/good.npz", f"--model {folder}/good.npz", f"--json {folder}/a/b",
    )  # fmt: skip
    return wrong[rng.integers(len(wrong))].split()


def _diverging(folder: Path, rng: Rng) -> Arguments:
    rate = f"{10.0 ** rng.integers(20, 38):g}"
    return ["--lr", rate, "--checkpoint", str(folder / "kept"), "--resume", "--epochs", "4", "--every", "1",
            "--data", str(folder / "good.npz")]  # fmt: skip


def _outputs(folder: Path, rng: Rng) -> Arguments:
    wrong = [
        folder / "gone" / "x.onnx",
        folder,
        folder / "good.npz" / "x.onnx",
        folder / "lenet-adam.json",
        "/dev/full",
    ]
    return ["-o", str(wrong[rng.integers(len(wrong))])]


def _full(folder: Path, rng: Rng) -> Arguments:
    """No file may grow to the size of a checkpoint, or of what a step is prepared in."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(rng.integers(200_000, 490_000)), resource.RLIM_INFINITY))
    plan = str(folder / "lenet-none.json")
    return [plan, "--momentum", "0.9", "--checkpoint", str(folder / "new"), "--every", "2"]


def _full_unpacking(folder: Path, rng: Rng) -> Arguments:
    np.savez_compressed(folder / "packed.npz", **data(rng, 400))
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(rng.integers(800_000, 1_200_000)), resource.RLIM_INFINITY))
    return ["--data", str(folder / "packed.npz")]


def _plans(folder: Path, rng: Rng) -> Arguments:
    plan = folder / "lenet-adam.json"
    whole = plan.read_text(encoding="utf-8")
    wrong = [
        whole[: int(rng.integers(len(whole)))],
        "",
        "{}",
        whole.replace("lenet", "mlp"),
        whole.replace("compute", "free"),
    ]
    (folder / "plan.json").write_text(wrong[rng.integers(len(wrong))], encoding="utf-8")
    return [[str(folder / "plan.json")], [str(folder / "gone.json")], [str(folder / "mlp-adam.json")]][rng.integers(3)]


KINDS: dict[str, Callable[[Path, Rng], Arguments]] = {
    "NaN or infinity in the data": _changed(_nan),
    "labels out of range": _changed(_label),
    "wrong shapes": _changed(_shape),
    "wrong types": _changed(_type),
    "wrong names": _changed(_names),
    "arrays of different lengths": _changed(_uneven),
    "no rows": _changed(_none),
    "labels that are texts": _changed(_objects),
    "fewer rows than a batch": _few,
    "data cut short": _cut,
    "a byte of the data changed": _flipped,
    "garbage for data": _garbage,
    "places that are no data": _places,
    "tables with a fault": _table,
    "images that are none": _images,
    "damaged checkpoints": _checkpoints,
    "checkpoints of another network": _foreign,
    "checkpoints that say nonsense": _meta,
    "a folder of another training": _again,
    "options that make no sense": _options,
    "a training that diverges": _diverging,
    "outputs that can't be written": _outputs,
    "a full disk": _full,
    "a full disk while unpacking": _full_unpacking,
    "plans that are none, or another's": _plans,
    "images with bytes changed": _image_bytes,
    "other formats named as images": _image_forms,
    "pipes and devices": _special,
    "damaged checkpoints above good ones": _above,
    "shards with bytes changed": _shards,
    "tables with bytes changed": _csv_bytes,
    "plans with values changed": _plan_values,
}
HARMLESS = {
    "images with bytes changed", "damaged checkpoints above good ones", "shards with bytes changed",
    "tables with bytes changed", "plans with values changed", "pipes and devices",
}  # fmt: skip
"""Where what was changed may not count."""


if __name__ == "__main__":
    main()
