"""Small faults put into the package one at a time: which test says so?

    python -m benchmarks.faults [--only WORD] [--first N] [--output FILE.md]

Each is a line of the package with a sign, a case, an axis or a bound wrong. It is put into a copy of the tree, the
tests beside it are run first, then all, until one fails; `survived` where none does. A fault names its line by the
text, so it outlives moves; where the text has changed, the fault is put where the line went.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.output import put

ROOT = Path(__file__).parent.parent
TAKEN = ("poetopt", "tests", "docs", "benchmarks", "pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md")
LONGEST_S = 1500.0


@dataclass(frozen=True)
class Fault:
    """`line` becomes `wrong`; `beside` are the tests that are run first, by folder or file below `tests`."""

    what: str
    line: str
    wrong: str
    beside: tuple[str, ...]


FAULTS = (
    # plan, problem, arena, passes
    Fault(
        "a page-in that comes late is not waited for",
        "if self.arrived[i] > start:",
        "if self.arrived[i] < start:",
        ("plan",),
    ),
    Fault(
        "a layout's alignment isn't checked",
        "if buffer.offset < 0 or buffer.offset % alignment:",
        "if buffer.offset < 0:",
        ("plan", "test_layout.py"),
    ),
    Fault(
        "a buffer's offset is written a moment early",
        "groups[buffer.first + 1].append(buffer.offset)",
        "groups[buffer.first].append(buffer.offset)",
        ("plan",),
    ),
    Fault(
        "a recompute of what can't be recomputed",
        "return producer >= 0 and self.operators[producer].recomputable",
        "return producer >= 0",
        ("graph", "plan", "formulations"),
    ),
    Fault(
        "a batch counts as carried on storage",
        "return self.home is Home.STORAGE and self.carried and not self.of_batch",
        "return self.home is Home.STORAGE and self.carried",
        ("graph", "backends"),
    ),
    Fault(
        "another way of streaming than was chosen",
        "return self.variants[number - 1] if number else self.plain",
        "return self.variants[number - 2] if number else self.plain",
        ("graph", "ops", "test_streamed_solve.py"),
    ),
    Fault(
        "buffers that meet in one moment lie over each other",
        "together = (begin < end[k]) & (begin[k] < end)",
        "together = (begin + 1 < end[k]) & (begin[k] < end)",
        ("test_arena.py", "test_layout.py"),
    ),
    Fault(
        "a buffer's size is left out of a layout",
        "            tops[k] = offset + instance.rounded[k]",
        "            tops[k] = offset",
        ("test_arena.py", "test_layout.py"),
    ),
    Fault(
        "writing over an operand beside a larger one",
        "if any(tensors[n].nbytes * SIDE > tensors[name].nbytes for n in beside):",
        "if any(tensors[n].nbytes * SIDE < tensors[name].nbytes for n in beside):",
        ("autodiff",),
    ),
    Fault(
        "a block with two ends",
        "if any(self.block[place] != sink and place < sink for place in later):",
        "if any(self.block[place] != sink and place > sink for place in later):",
        ("autodiff",),
    ),
    # search
    Fault(
        "every plan: the deadline is half as long again",
        "asked.deadline_s * (1 + RELATIVE_TOLERANCE)\n",
        "asked.deadline_s * 1.5\n",
        ("search",),
    ),
    Fault(
        "every plan: what is on storage is written again",
        "elif i in now.stored and i not in there:",
        "elif i in now.stored and i in there:",
        ("search",),
    ),
    Fault(
        "the reserve isn't left to the runtime",
        "return self._ram_bytes - self.problem.reserve_bytes",
        "return self._ram_bytes",
        ("search", "backends"),
    ),
    Fault(
        "a storage's last block is never used",
        "return self.machine.blocks + self.problem.blocks(i) <= self._capacity",
        "return self.machine.blocks + self.problem.blocks(i) < self._capacity",
        ("search", "formulations"),
    ),
    Fault(
        "room for what lasts is counted without the least step",
        "room = ram_bytes + problem.reserve_bytes - problem.least_ram_bytes",
        "room = ram_bytes + problem.reserve_bytes",
        ("search", "formulations"),
    ),
    Fault(
        "a certified bound is rounded up",
        "return math.nextafter(rounded, -math.inf) if Fraction(rounded) > value else rounded",
        "return math.nextafter(rounded, math.inf) if Fraction(rounded) > value else rounded",
        ("search",),
    ),
    Fault(
        "a certificate takes the streamed side for the other",
        "if (paged and of_reader and i in way.streamed_in) or (not paged and i in way.streamed_out):",
        "if (paged and of_reader and i in way.streamed_out) or (not paged and i in way.streamed_in):",
        ("search",),
    ),
    Fault(
        "the least RAM is sought above all of it",
        "top = min(options.ram_bytes, max(store_all_bytes(problem), problem.least_ram_bytes))",
        "top = max(options.ram_bytes, max(store_all_bytes(problem), problem.least_ram_bytes))",
        ("search",),
    ),
    # formulations
    Fault(
        "a write counts a read's seconds",
        "_priced(moved[0], model.page_in_s) + _priced(moved[1], model.page_out_s)",
        "_priced(moved[0], model.page_in_s) + _priced(moved[1], model.page_in_s)",
        ("formulations",),
    ),
    Fault(
        "poet: a stage loses its last run",
        "operators[j].recomputable and t <= last_run[j]",
        "operators[j].recomputable and t < last_run[j]",
        ("formulations",),
    ),
    Fault(
        "chains: what isn't run again streams from its producer",
        "if values.streamed and (producer < 0 or not again[producer]):",
        "if values.streamed and (producer < 0 or again[producer]):",
        ("formulations",),
    ),
    Fault(
        "a stage's workspace takes no room",
        "return np.array(sums) + self.workspace_bytes",
        "return np.array(sums)",
        ("formulations",),
    ),
    Fault(
        "what is kept across stages is never given back",
        "np.add.at(steps, space.point_stage, -weight)",
        "np.add.at(steps, space.point_stage, weight)",
        ("formulations", "search"),
    ),
    # solvers
    # runtimes and executors
    Fault(
        "the last whole batch is left out",
        "whole = start + count <= self.rows",
        "whole = start + count < self.rows",
        ("backends", "training"),
    ),
    Fault(
        "a file in the board's hands is cut at its start",
        "content += bytes(max(0, place - len(content)))",
        "content += bytes(max(0, len(content) - place))",
        ("backends", "ops"),
    ),
    Fault(
        "a part of the batch has two parts' rows",
        "a[k * size[n] : (k + 1) * size[n]]",
        "a[k * size[n] : (k + 2) * size[n]]",
        ("backends", "test_micro_batches.py"),
    ),
    Fault(
        "a chunk of a held tensor starts nowhere",
        "shift = begin * cut.unit_bytes(self.tensors[held]) if cut is not None else 0",
        "shift = 0",
        ("backends", "ops", "backends"),
    ),
    Fault(
        "FLOPs of a pool's gradient lack what it writes",
        "return each_input * x + each_output * n",
        "return each_input * x",
        ("ops",),
    ),
    Fault(
        "a window's chunk without its lower rows",
        "(end * self.step + self.high) // self.per",
        "(end * self.step) // self.per",
        ("ops",),
    ),
    Fault(
        "a made operand counts as given",
        "made = name in self.operator.outputs and name not in self.operator.inputs",
        "made = name in self.operator.outputs",
        ("ops",),
    ),
    Fault(
        "C's Slice by the clamped end alone",
        "first = slice(starts[k], ends[k], step).indices(x.shape[axis])[0]",
        "first = slice(0, ends[k], step).indices(x.shape[axis])[0]",
        ("ops",),
    ),
    Fault(
        "onnxruntime's buffer of a resize is halved",
        "return _round({4: 16 * inner, 5: 24 * inner}.get(len(shape), 24 * sum(shape)))",
        "return _round({4: 8 * inner, 5: 12 * inner}.get(len(shape), 12 * sum(shape)))",
        ("ops", "backends"),
    ),
    # gradients
    Fault(
        "a tap too many on the edge of a window",
        "max((-(-n // s) - 1) * s + (k - 1) * d + 1 - n, 0)",
        "max((-(-n // s) - 1) * s + (k - 1) * d - n, 0)",
        ("autodiff",),
    ),
    Fault(
        "GRU: the sign of the update gate's gradient",
        "k.mul(k.sub(layer.before, h), gating.slope(k, gates[0], z))",
        "k.mul(k.sub(h, layer.before), gating.slope(k, gates[0], z))",
        ("autodiff",),
    ),
    Fault(
        "DFT: the scale of its gradient",
        "1 / length if inverse else float(length)",
        "float(length) if inverse else 1 / length",
        ("autodiff",),
    ),
    Fault(
        "a tap's place without dilation",
        "stride, offset = self.strides[axis], tap * self.dilations[axis] - self.before[axis]",
        "stride, offset = self.strides[axis], tap - self.before[axis]",
        ("autodiff",),
    ),
    # reading
    Fault(
        "a function's defaults replace what was given",
        "function.attribute_proto if default.name not in given)",
        "function.attribute_proto)",
        ("frontends",),
    ),
    Fault(
        "a cycle is no cycle",
        "stuck = [nodes[index] for index in range(len(nodes)) if index not in done]",
        "stuck = [nodes[index] for index in range(len(nodes)) if index in done]",
        ("frontends",),
    ),
    # optimizers, training
    Fault(
        "clipping's norm over all but the last axis",
        "made = draft.reduce_sum(_reduced(draft, read, long[0] + 1), range(long[0] + 1), keepdims=False)",
        "made = draft.reduce_sum(_reduced(draft, read, long[0] + 1), range(long[0]), keepdims=False)",
        ("autodiff",),
    ),
    Fault(
        "a loss that is no number is passed on",
        "if not math.isfinite(found.loss):",
        "if math.isinf(found.loss):",
        ("training",),
    ),
    Fault(
        "checkpoints at the wrong steps",
        "if every is not None and position.step % every == 0 and not whole:",
        "if every is not None and position.step % every == 1 and not whole:",
        ("training",),
    ),
    # devices, comparison, sweeps
    Fault(
        "compute and memory bound the other way",
        "return sum(max(node.flops / self.flop_per_s, node.nbytes / self.memory_bytes_per_s) for node in work)",
        "return sum(min(node.flops / self.flop_per_s, node.nbytes / self.memory_bytes_per_s) for node in work)",
        ("devices",),
    ),
    Fault(
        "Chen's square root is its root again",
        "step = max(1, math.isqrt(len(candidates)))",
        "step = max(1, math.isqrt(math.isqrt(len(candidates))))",
        ("compare",),
    ),
    Fault(
        "Capuchin runs again what isn't done",
        "if producer in runs or producer >= stage:",
        "if producer in runs or producer > stage:",
        ("compare",),
    ),
    Fault(
        "a sweep goes through what is done",
        "missing = [point for point in points if point.key not in done]",
        "missing = list(points)",
        ("api",),
    ),
    # reports, API, torch
    Fault(
        "the largest batch stops one early",
        "while (best.batch if best else 0) < beyond - 1:",
        "while (best.batch if best else 0) < beyond - 2:",
        ("test_micro_batches.py",),
    ),
    Fault(
        "torch's check runs where it has no gradient",
        "if not terms or not plain.gradients:",
        "if not plain.gradients:",
        ("pytorch",),
    ),
)


def main() -> None:
    """Put each fault in, and say what caught it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--beside-only", action="store_true", help="leave out the run of all tests")
    parser.add_argument("--check", action="store_true", help="only see that each fault has its line")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    rows = []
    for fault in FAULTS[args.first :]:
        if args.only not in fault.what:
            continue
        path, count = place(fault)
        if args.check or path is None:
            if path is None:
                print(f"{fault.what}: {count} lines are '{fault.line.strip()}'", flush=True)
            continue
        caught = verdict(fault, path, args.beside_only)
        rows.append(f"| {fault.what} | {caught} |")
        print(rows[-1], flush=True)
    if args.output:
        head = [
            "# Small faults, and which test says so\n",
            f"`python -m benchmarks.faults`: {len(rows)} faults, {sum('survived' in r for r in rows)} survived.\n",
            "| fault | caught by |\n|---|---|",
        ]
        put([*head, *rows], args.output)


def place(fault: Fault) -> tuple[Path | None, int]:
    """The one file of the package that has the fault's line, and how often the line stands there."""
    found = [(p, p.read_text().count(fault.line)) for p in sorted((ROOT / "poetopt").rglob("*.py"))]
    found = [(p, count) for p, count in found if count]
    return (found[0][0], 1) if len(found) == 1 and found[0][1] == 1 else (None, sum(count for _, count in found))


def verdict(fault: Fault, path: Path, beside_only: bool) -> str:
    """The first test that fails with the fault in the package."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for taken in TAKEN:
            source = ROOT / taken
            if source.is_dir():
                shutil.copytree(source, folder / taken, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, folder / taken)
        for link in ("formulations", "frontends", "backends"):
            (folder / link).symlink_to(Path("poetopt", link))
        faulty = folder / path.relative_to(ROOT)
        faulty.write_text(faulty.read_text().replace(fault.line, fault.wrong))
        beside = [str(Path("tests", one)) for one in fault.beside if (folder / "tests" / one).exists()]
        for tests in [beside] if beside_only else [beside, []]:
            command = [sys.executable, "-P", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
            try:
                # The folder comes before the installed package, in what tests start as well.
                done = subprocess.run(
                    command,
                    cwd=folder,
                    env={**os.environ, "PYTHONPATH": str(folder)},
                    timeout=LONGEST_S,
                    capture_output=True,
                    text=True,
                )
            except subprocess.TimeoutExpired:
                return "a test that doesn't end"
            failed = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M)
            if failed:
                return f"`{failed[1].split('[')[0]}`"
    return "**survived**"


if __name__ == "__main__":
    main()
