"""`poetopt train` killed at random moments and resumed: the trained file is the undisturbed one's, bit for bit.

    python -m benchmarks.train_kills [--kills 70] [--kills-on 30] [--seed 0] [--every 5] [--output FILE.md]

A training with checkpoints every few steps is started again and again with `--resume`, and killed (SIGKILL) at moments
that are drawn with the seed, from before its first step on. After each kill the folder's newest checkpoint is whole,
and no older than the one before. Where a training comes to its end, its network and last checkpoint are compared with
those of a training without kills, and another begins. Then `train --on host` is killed (`--kills-on`): its network is
there with the undisturbed one's bits or not at all, and none of its processes is left. Each training is a fork of this
process, which has imported all that it needs, so that moments of training are hit, not of imports.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from multiprocessing.context import ForkProcess
from pathlib import Path
from unittest.mock import patch

import numpy as np

from benchmarks.kills import GONE_S, _end, _group
from benchmarks.output import put
from poetopt.training.checkpoint import newest
from poetopt.util.progress import silent

ROWS, BATCH, EPOCHS = 1600, 8, 4
SOLVE = f"solve lenet --batch {BATCH} --device a72 --ram 99% --optimizer adam --time-limit 10s -o plan.json"
TRAIN = f"train plan.json --data train.npz --epochs {EPOCHS} --lr-schedule cosine"
SOLVE_ON = f"solve mlp --batch {BATCH} --device m4 --runtime c --ram 100% --optimizer sgd --time-limit 10s -o c.json"
TRAIN_ON = "train c.json --data mlp.npz --on host --lr 0.01 -o c.onnx"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=70)
    parser.add_argument("--kills-on", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows, same = [], True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder)
        rng = random.Random(options.seed)
        for found, good in (
            killed(folder, options.kills, rng, options.every),
            killed_on(folder, options.kills_on, rng),
        ):
            rows.append(found)
            same = same and good
    head = [
        "# Trainings killed and resumed",
        "",
        f"`python -m benchmarks.train_kills --kills {options.kills} --kills-on {options.kills_on} "
        f"--seed {options.seed} --every {options.every}`: SIGKILL at random moments of a training of "
        f"{EPOCHS * ROWS // BATCH} steps, which is resumed, and of one in C, which begins anew.",
        "",
        "| command | kills | at steps, or before the end | came to their end | compared with one without kills |",
        "|---|---|---|---|---|",
    ]
    put([*head, *rows], options.output)
    sys.exit(not same)


def prepare(folder: Path) -> None:
    """Plans and data."""
    rng = np.random.default_rng(0)
    images, labels = rng.standard_normal((ROWS, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, ROWS)
    np.savez(folder / "train.npz", input=images, labels=labels)
    np.savez(folder / "mlp.npz", input=images.reshape(ROWS, -1)[:800], labels=labels[:800])
    for line in (SOLVE, SOLVE_ON):
        _end(folder, tuple(line.split()))
    import poetopt.api.trainer
    import poetopt.backends.onnxruntime.prepared
    import poetopt.cli.training
    import poetopt.training.in_c
    import poetopt.training.loop  # noqa: F401 - imported before the forks


def killed(folder: Path, kills: int, rng: random.Random, every: int) -> tuple[str, bool]:
    """A row of the report, and whether all is well."""
    begun = time.monotonic()
    end(train(folder, "alone", every))
    took_s = time.monotonic() - begun
    steps: list[int] = []
    problems: list[str] = []
    ends, last = 0, 0
    while len(steps) < kills and not problems:
        process = train(folder, "killed", every)
        process.join(rng.uniform(0.0, 0.2 * took_s))
        if process.exitcode is None:
            process.kill()
            process.join()
            found = newest(folder / "killed") if (folder / "killed").exists() else None
            step = 0 if found is None else found.meta["taken"]
            if (found is not None and found.passed_over) or step < last:
                problems.append(f"kill {len(steps) + 1}: step {step} after {last}, {found and found.passed_over}")
            steps.append(step)
            last = step
            print(f"kill {len(steps)}: after step {step}", file=sys.stderr, flush=True)
            continue
        ends, last = ends + 1, 0
        problems += different(folder)
    end(train(folder, "killed", every))
    problems += different(folder)
    word = "; ".join(problems) or "the same bits: trained files, last checkpoints"
    return f"| `{TRAIN}` | {len(steps)} | {', '.join(map(str, steps))} | {ends + 1} | {word} |", not problems


def different(folder: Path) -> list[str]:
    """What isn't as in the training without kills; what was killed is removed."""
    found = [] if (folder / "killed.onnx").read_bytes() == (folder / "alone.onnx").read_bytes() else ["trained files"]
    states = [newest(folder / name) for name in ("killed", "alone")]
    one, other = (dict(state.states()) for state in states if state is not None)
    if one.keys() != other.keys() or any(one[name].tobytes() != other[name].tobytes() for name in one):
        found.append("last checkpoints")
    shutil.rmtree(folder / "killed")
    (folder / "killed.onnx").unlink()
    return [f"DIFFERENT {what}" for what in found]


def killed_on(folder: Path, kills: int, rng: random.Random) -> tuple[str, bool]:
    """A row of the report, and whether all is well."""
    out = folder / "c.onnx"
    begun = time.monotonic()
    end(fork(folder, TRAIN_ON))
    took_s, whole = time.monotonic() - begun, out.read_bytes()
    moments: list[str] = []
    problems: list[str] = []
    ends = 0
    while len(moments) < kills and not problems:
        out.unlink(missing_ok=True)
        moment_s = rng.uniform(0, took_s)
        process = fork(folder, TRAIN_ON)
        process.join(moment_s)
        if process.exitcode is None:
            process.kill()
            process.join()
            moments.append(f"{moment_s / took_s:.0%}")
        else:
            ends += 1
        if out.exists() and out.read_bytes() != whole:
            problems.append(f"half-written at {moment_s / took_s:.0%}")
        limit = time.monotonic() + GONE_S
        while _group(process.pid or 0) and not problems:
            time.sleep(0.1)
            if time.monotonic() > limit:
                problems.append(f"a process is left after {moment_s / took_s:.0%}")
    out.unlink(missing_ok=True)
    end(fork(folder, TRAIN_ON))
    if out.read_bytes() != whole:
        problems.append("DIFFERENT trained files")
    word = "; ".join(problems) or "the same bits or no file; no process left"
    return f"| `{TRAIN_ON}` | {len(moments)} | {', '.join(moments)} | {ends + 1} | {word} |", not problems


def train(folder: Path, name: str, every: int) -> ForkProcess:
    """A training that goes on with what is in the folder `name`."""
    return fork(folder, f"{TRAIN} --checkpoint {name} --every {every} --resume -o {name}.onnx")


def fork(folder: Path, line: str) -> ForkProcess:
    """A command line in a fork of this process, which leads a session."""
    process = multiprocessing.get_context("fork").Process(target=_run, args=(folder, line))
    process.start()
    return process


def _run(folder: Path, line: str) -> None:
    from poetopt.cli.app import invoke

    os.setsid()
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with patch("poetopt.util.process.call", lambda _what, function, *given, told=silent: function(*given, told=told)):
        os._exit(invoke(line.split()))


def end(process: ForkProcess) -> None:
    """Wait for a command that must end well."""
    process.join()
    if process.exitcode:
        raise SystemExit(f"a command ended with code {process.exitcode}")


if __name__ == "__main__":
    main()
