"""`poetopt train` killed at random moments and resumed: the trained file is the undisturbed one's, bit for bit.

    python -m benchmarks.train_kills [--kills 20] [--seed 0] [--every 5] [--output FILE.md]

A training with checkpoints every few steps is started again and again with `--resume`, and killed (SIGKILL) at moments
that are drawn with the seed, from before its first step on. After each kill the folder's newest checkpoint is whole. In
the end it is left alone, and its network and last checkpoint are compared with those of a training without kills.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.kills import start
from benchmarks.output import put
from poetopt.training.checkpoint import newest

ROWS, BATCH, EPOCHS = 3200, 8, 4
SOLVE = f"solve lenet --batch {BATCH} --device a72 --ram 99% --optimizer adam --time-limit 10s -o plan.json"
TRAIN = f"train plan.json --data train.npz --epochs {EPOCHS} --lr-schedule cosine"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        lines, same = killed(Path(name), options.kills, random.Random(options.seed), options.every)
    head = [
        "# Trainings killed and resumed",
        "",
        f"`python -m benchmarks.train_kills --kills {options.kills} --seed {options.seed} --every {options.every}`: "
        f"`{TRAIN}`, {EPOCHS * ROWS // BATCH} steps.",
        "",
    ]
    put([*head, *lines], options.output)
    sys.exit(not same)


def killed(folder: Path, kills: int, rng: random.Random, every: int) -> tuple[list[str], bool]:
    """The lines of the report, and whether the end is that of a training that nobody disturbed."""
    x = np.random.default_rng(0)
    labels = x.integers(0, 10, ROWS)
    np.savez(folder / "train.npz", input=x.standard_normal((ROWS, 1, 28, 28)).astype(np.float32), labels=labels)
    end(start(folder, tuple(SOLVE.split())))
    begun = time.monotonic()
    end(train(folder, "alone", every))
    took_s = time.monotonic() - begun
    steps: list[int] = []
    for _ in range(2 * kills):
        if len(steps) == kills:
            break
        process = train(folder, "killed", every)
        time.sleep(rng.uniform(0.02 * took_s, 0.15 * took_s))
        if process.poll() is not None:
            continue  # it had come to its end, and only wrote the network again
        process.send_signal(signal.SIGKILL)
        process.wait()
        found = newest(folder / "killed") if (folder / "killed").exists() else None
        if found is not None and found.passed_over:
            return [f"a checkpoint was damaged by kill {len(steps) + 1}: {found.passed_over}"], False
        steps.append(0 if found is None else found.meta["taken"])
        print(f"kill {len(steps)}: after step {steps[-1]}", file=sys.stderr, flush=True)
    end(train(folder, "killed", every))
    same = (folder / "killed.onnx").read_bytes() == (folder / "alone.onnx").read_bytes()
    states = [newest(folder / name) for name in ("killed", "alone")]
    one, other = (dict(state.states()) for state in states if state is not None)
    equal = one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)
    table = [
        "| kills | checkpoints found, by step | seconds undisturbed | trained files | last checkpoints |",
        "|---|---|---|---|---|",
        f"| {len(steps)} | {', '.join(map(str, steps))} | {took_s:.1f} | {_word(same)} | {_word(equal)} |",
    ]
    return table, same and equal and len(steps) == kills


def train(folder: Path, name: str, every: int) -> subprocess.Popen[bytes]:
    """A training that goes on with what is in the folder `name`."""
    more = f"--checkpoint {name} --every {every} --resume -o {name}.onnx"
    return start(folder, tuple(f"{TRAIN} {more}".split()))


def end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a command that must end well."""
    if code := process.wait():
        raise SystemExit(f"a command ended with code {code}")


def _word(same: bool) -> str:
    return "the same bits" if same else "DIFFERENT"


if __name__ == "__main__":
    main()
