"""The largest batch of each network within a total of RAM: how soon it is found, and what refuses one sample more.

    .venv/bin/python -m benchmarks.largest_batch [--total-ram 512MB] [--device a72] [--time-limit 60s]
                                                 [--output FILE.md] [MODEL ...]

Each network has a process of its own. `found` is the time until the batch and its refusal are known and a schedule with
it, `all` that with the solve of the schedule; both are of the wall, `CPU` of the process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import poetopt as po
from poetopt.search.solution import Progress
from poetopt.util.units import show_bytes, show_seconds

NETWORKS = ("lenet", "resnet18-cifar", "vgg16-cifar", "bert-tiny", "mobilenetv2", "resnet50")
HEADER = """| network | batch | one more needs | proven | found | all | CPU | seconds a sample at a batch | gap |
|---|---|---|---|---|---|---|---|---|"""


def row(model: str, device: str, total_ram: str, time_limit: str) -> str:
    """A line of the table."""
    begin, found_s = time.monotonic(), 0.0

    def heard(progress: Progress) -> None:
        nonlocal found_s
        if progress.scope and not found_s:
            found_s = time.monotonic() - begin

    report = po.solve(model, device=device, total_ram=total_ram, batch="max", time_limit=time_limit, listener=heard)
    all_s, cpu_s = time.monotonic() - begin, time.process_time()
    found = report.largest
    assert found is not None
    needs = found.why.split(" with all beside it")[0].rsplit(" ", 1)[-1].replace(",", "")
    samples = ", ".join(f"{one.batch:,}: {show_seconds(one.time_s / one.batch)}" for one in found.at)
    gap = report.solution.overhead_gap
    cells = [
        model, f"{found.batch:,}", show_bytes(int(needs)) if needs.isdecimal() else found.why,
        "yes" if found.proven else "no", f"{found_s or all_s:.0f} s", f"{all_s:.0f} s", f"{cpu_s:.0f} s", samples,
        "" if gap is None else f"{gap:.1%}",
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Print the table, and write it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=NETWORKS)
    parser.add_argument("--total-ram", default="512MB")
    parser.add_argument("--device", default="a72")
    parser.add_argument("--time-limit", default="60s")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(row(asked.one, asked.device, asked.total_ram, asked.time_limit)))
        return
    lines = [f"`--batch max --total-ram {asked.total_ram}` on {asked.device}.", "", *HEADER.splitlines()]
    print("\n".join(lines), flush=True)
    for model in asked.models:
        options = ["--total-ram", asked.total_ram, "--device", asked.device, "--time-limit", asked.time_limit]
        command = [sys.executable, "-m", "benchmarks.largest_batch", "--one", model, *options]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        lines.append(json.loads(ended.stdout))
        print(lines[-1], flush=True)
    if asked.output:
        asked.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
