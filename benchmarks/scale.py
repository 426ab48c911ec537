"""How `inspect` and refusals grow with the network: seconds of whole processes, from the shell.

    .venv/bin/python -m benchmarks.scale [--only SUBSTRING]... [--output FILE.md]

CPU seconds are those of the process and the system for it, which other programs on the machine change little.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import onnx

from benchmarks.scale_networks import KINDS, build

SIZES = (500, 1_000, 2_000, 3_000, 10_000)
REFUSALS = (
    ("lenet", "--device", "m0", "--ram", "400KB"),
    ("lenet", "--device", "a72", "--ram", "300KB", "--no-paging"),
    ("lenet", "--device", "m0", "--ram", "550KB", "--deadline", "0.9x"),
    ("lenet", "--device", "m0", "--ram", "550KB", "--with", "energy-limit=0.9x"),
    ("mlp", "--device", "m0", "--ram", "20KB"),
    ("resnet18-cifar", "--device", "a72", "--ram", "1MB"),
)
HEADING = "| what | s | CPU s | MB | said |\n|---|---|---|---|---|"


def measured(*command: str) -> tuple[float, float, float, str, str]:
    """Wall-clock seconds, CPU seconds, megabytes, stdout and stderr of one call of poetopt."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "poetopt", *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "1000"},
    ) as process:
        out, said = process.communicate()
    seconds = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, cpu, after.ru_maxrss / 1000, out, said


def rows(only: list[str]) -> Iterator[str]:
    """The table's rows: networks by size, so that the most memory so far is the row's, then refusals."""
    with tempfile.TemporaryDirectory() as folder:
        for size in SIZES:
            for kind in KINDS:
                name = f"inspect {kind} {size:,}"
                if only and not any(part in name for part in only):
                    continue
                path = Path(folder) / f"{kind}.onnx"
                onnx.save(build(kind, size), path)
                seconds, cpu, megabytes, out, _ = measured("inspect", str(path))
                least = next((" ".join(line.split()) for line in out.splitlines() if "least RAM" in line), "nothing")
                yield f"| {name} | {seconds:.1f} | {cpu:.1f} | {megabytes:.0f} | {least} |"
    for refusal in REFUSALS:
        name = "solve " + " ".join(refusal)
        if only and not any(part in name for part in only):
            continue
        found = [measured("solve", *refusal) for _ in range(2)]
        same = "the same twice" if found[0][4] == found[1][4] else "DIFFERENT in the second call"
        seconds, cpu = min(run[0] for run in found), min(run[1] for run in found)
        yield f"| `{name}` | {seconds:.2f} | {cpu:.2f} | | {same}: {' '.join(found[0][4].split())[-160:]} |"


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    lines = [HEADING]
    for row in rows(given.only):
        print(row, flush=True)
        lines.append(row)
    if given.output is not None:
        given.output.write_text("\n".join(["`python -m benchmarks.scale`", "", *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
