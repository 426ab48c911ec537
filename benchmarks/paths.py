"""Every zoo network trained, asked, saved, restored and resumed on every runtime, without and with optimizers.

    python -m benchmarks.paths [NETWORK ...] [--in-c PARAMETERS] [--output FILE.md]

Two steps of training on random batches. On onnxruntime, *train* compares them with ordinary training, *predict* the
loss that `evaluate` says with what onnxruntime alone makes of the exported file, and the others a trainer that was
loaded with the one that was saved. In C, *train* is what `run --on` shows: the plan beside the unscheduled step, and
its distance from onnxruntime's; *predict* is po_predict behind that. The others run the emitted example with po_save
behind each step: *restore* begins a new process on that storage, *resume* takes the second step there, and both are
held against one process that took two. A plan without an optimizer is followed by plain descent. Batches are of one
row. A file that has rows of other networks keeps them.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import poetopt as po
from benchmarks.output import put
from poetopt import zoo
from poetopt.autodiff.passes.rows import whole
from poetopt.backends.c.build import build, write
from poetopt.backends.c.emulator import emulate
from poetopt.backends.c.execute import numbers
from poetopt.backends.c.generations import newest
from poetopt.backends.c.program import device_program
from poetopt.backends.c.run import _arrays, _read_rows, fed_with, first_pages, laid_out
from poetopt.backends.c.sensitivity import distance, predicted
from poetopt.backends.c.targets import TARGETS
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.backends.onnxruntime.reference import Ordinary
from poetopt.backends.onnxruntime.sessions import Sessions
from poetopt.backends.step.places import graph_of
from poetopt.plan.instructions import Plan
from poetopt.search.predicting import prediction_of
from poetopt.util.errors import ExecutionError, InfeasibleError, NoScheduleError, PoetError

Cells = dict[str, str]
Arrays = Mapping[str, Any]
COLUMNS = "train", "predict", "restore", "resume"
OPTIMIZERS = "none", "sgd", "adam"
RUNTIMES = "onnxruntime", "host", "cortex-m4"
RATE = 1e-3
ASKED = 9
"""The seed of what is predicted."""
SECONDS = 20
"""For one search."""
LOSSES = {"autoencoder": "mse"}
IN_C = 300_000
"""Parameters of the largest network that is run in C, unless `--in-c` says more."""
SEARCHED = 1_000_000
"""Of the largest one that onnxruntime trains within 80 % of the store-all peak; others have all of it, unsearched."""
WHOLE = 5_000_000
"""Of the largest one that it takes more than one step of."""


def planned(model: onnx.ModelProto, optimizer: str, runtime: str, loss: str = "auto", size: int = 0) -> Plan:
    """A plan of a step. Raises PoetError where there is none."""
    within: dict[str, Any] = {"device": "m4", "parameters": "resident" if optimizer == "none" else "auto"}
    ways = [within]
    if runtime == "onnxruntime":
        ways = [{"device": "a72", "ram": ram} for ram in ("80%", "100%")[size > SEARCHED :]]
    elif runtime == "host":
        ways = [{"device": "m4", "ram": "100%", "parameters": "resident"}]
    *loose, last = ways
    for asked in loose:
        with suppress(InfeasibleError):
            return planned_by(model, optimizer, loss, asked)
    return planned_by(model, optimizer, loss, last)


def planned_by(model: onnx.ModelProto, optimizer: str, loss: str, asked: Mapping[str, Any]) -> Plan:
    """The plan of one solve."""
    report = po.solve(model, loss=loss, optimizer=optimizer, time_limit=f"{SECONDS}s", threads=1, **asked)
    if report.plan is None:
        raise NoScheduleError(str(report).partition("\n")[0])
    return report.plan


def on_onnxruntime(plan: Plan, model: onnx.ModelProto, folder: Path, size: int) -> Iterator[tuple[str, str]]:
    """What training there shows, column by column."""
    graph = graph_of(plan)
    more = size <= WHOLE
    run = po.train(plan, 1 + more, RATE, check=1)
    yield "train", ("bits" if more else "bits, one step") if run.bit_identical else f"WRONG: {run.message}"
    if not more:
        return
    batches = [random_batch(graph.whole, seed) for seed in range(2)]
    first, second = (po.Trainer(plan, model=model, lr=RATE) for _ in range(2))
    with closing(first), closing(second):
        first.step(batches[0])
        first.export(folder / "trained.onnx")
        loss = alone(folder / "trained.onnx", graph.outputs[0], batches[1])
        far = abs(first.evaluate(batches[1]).loss - loss) / max(loss, 1.0)
        yield "predict", f"{far:.0e}" if far < 1e-4 else f"WRONG: {far:.1e}"
        first.save(folder / "saved")
        second.load(folder / "saved")
        yield "restore", told(same(first.values(), second.values()))
        losses = first.step(batches[1]), second.step(batches[1])
        yield "resume", told(losses[0] == losses[1] and same(first.values(), second.values()))


def alone(path: Path, output: str, batch: Arrays) -> float:
    """The loss of a file's output, by onnxruntime and NumPy alone."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    fed = {one.name: batch[one.name] for one in session.get_inputs()}
    out = np.asarray(session.run([output], fed)[0]).astype(np.float64)
    if "target" in batch:
        return float(np.square(out - batch["target"]).mean())
    low = out - out.max(-1, keepdims=True)
    logs = low - np.log(np.exp(low).sum(-1, keepdims=True))
    return float(-np.take_along_axis(logs, np.asarray(batch["labels"])[..., None], -1).mean())


def same(mine: Arrays, theirs: Arrays) -> bool:
    """Whether all arrays have the same bits."""
    return {*mine} == {*theirs} and all(mine[name].tobytes() == theirs[name].tobytes() for name in mine)


def told(well: bool) -> str:
    """A cell."""
    return "bits" if well else "WRONG: other bits"


def in_c(plan: Plan, on: str, folder: Path) -> Iterator[tuple[str, str]]:
    """What programs in C show, column by column."""
    run = po.execute_on(plan, on) if graph_of(plan).optimizer == "none" else po.train_on(plan, on, 2, RATE)
    well = run.bit_identical and run.close
    train = f"bits; {run.distance:.0e} of {5 * run.sensitivity:.0e}" if well else f"WRONG: {run.message}"
    yield "train", train
    if run.predicted is None:
        yield "predict", "no po_predict within the arena"
    else:
        far = f"bits; {run.predicted.distance:.0e} of {5 * run.predicted.sensitivity:.0e}"
        yield "predict", far if run.predicted.ok else f"WRONG: {run.predicted.message(on)}"
    program = Saving(plan, on, folder)
    if program.early() > 5e-6:
        yield "predict", f"WRONG: before the first step, outputs are {program.early():.1e} off"
    batches = [random_batch(program.graph.whole, seed) for seed in range(2)]
    one, storage = program.run(batches[:1])
    again, _ = program.run([], storage)
    yield "restore", told(again == {**one, "losses.bin": b""} and program.kept(storage, one["results.bin"]))
    two, _ = program.run(batches)
    went, _ = program.run(batches[1:], storage)
    yield "resume", told({**went, "losses.bin": one["losses.bin"] + went["losses.bin"]} == two)
    if program.graph.states:
        off = program.far(two["results.bin"], batches)
        yield "train", f"{train}; statistics {off:.0e}" if off < 1e-3 else f"WRONG: statistics are {off:.1e} off"


class Saving:
    """The compiled program of `paths.c`."""

    def __init__(self, plan: Plan, on: str, folder: Path) -> None:
        self.graph = graph_of(plan)
        self.program = device_program(plan, self.graph, prediction=prediction_of(plan, self.graph))
        target = TARGETS["linux" if on == "host" else on]
        write(self.program, target, folder)
        (folder / "main.c").rename(folder / "example.c")
        source = Path(__file__).with_suffix(".c").read_text()
        (folder / "main.c").write_text(f"#define RATE {RATE}f\n{source}")
        self.built = build(self.program, target, folder, measuring=False)

    def run(self, batches: Sequence[Arrays], storage: bytes | None = None) -> tuple[dict[str, bytes], bytes]:
        """Take a step on each batch, from what the storage has; what came out by file, and the storage."""
        program = self.program
        said = [numbers(self.graph, step, {"lr": RATE}) for step in range(len(batches))]
        files = {
            "batches.bin": b"".join(fed_with(program, batch) for batch in batches),
            "pages.bin": first_pages(self.built) if storage is None else storage,
        }
        if program.hyperparameters and storage is None:  # they last, the count of steps among them
            files["hyperparameters.bin"] = b"".join(laid_out(program.hyperparameters, one) for one in said)
        if program.predicts is not None:
            files["asked.bin"] = laid_out(program.asked, random_batch(self.graph, ASKED))
        found = self._ended(files)
        names = ("losses.bin", "results.bin", "outputs.bin")
        return {name: found.get(name, b"") for name in names}, found["pages.bin"]

    def early(self) -> float:
        """How far the outputs of a program that took no step are from onnxruntime's, relative."""
        if self.program.predicts is None:
            return 0.0
        network = graph_of(self.program.predicts.plan)
        exact = predicted(network, whole(self.graph.joint), [random_batch(self.graph, ASKED)]).exact
        mine = _read_rows(self.program, self.program.outputs, self.run([])[0]["outputs.bin"])
        return distance({name: mine[name][None] for name in mine}, exact, network.outputs)

    def kept(self, storage: bytes, results: bytes) -> bool:
        """Whether `restore` reads of the storage what the program has learned."""
        found, mine = newest(self.program, storage)[1], _arrays(self.program, results)
        ends = {name: self.graph.states.get(name, name) for name in self.graph.learned}
        return all(found[self.graph.joint.root(old)].tobytes() == mine[new].tobytes() for old, new in ends.items())

    def far(self, results: bytes, batches: Sequence[Arrays]) -> float:
        """How far running statistics went otherwise than onnxruntime takes them, relative."""
        graph = self.graph
        first, steps = whole(graph.joint), Ordinary(graph, Sessions(graph, 1), whole(graph.joint), RATE)
        steps.say({"lr": RATE})
        for batch in batches:
            steps.take(batch)
        mine: Arrays = _arrays(self.program, results)
        ends: Arrays = steps.held
        exact = {name: ends[name] - first[name] for name in graph.states}
        return distance({old: mine[new] - first[old] for old, new in graph.states.items()}, exact, tuple(exact))

    def _ended(self, files: Mapping[str, bytes]) -> Mapping[str, bytes]:
        if self.built.board is not None:
            return {**files, **emulate(self.built, files).files}
        folder = self.built.folder
        for old in folder.glob("[!p]*.bin"):
            old.unlink()
        for name, content in files.items():
            (folder / name).write_bytes(content)
        ended = subprocess.run([self.built.executable], cwd=folder, capture_output=True, text=True)
        if ended.returncode:
            raise ExecutionError(f"the program ended with {ended.returncode}: {ended.stderr.strip()}")
        return {file.name: file.read_bytes() for file in folder.glob("*.bin")}


def cells(model: onnx.ModelProto, optimizer: str, runtime: str, loss: str = "auto", size: int = 0) -> Cells:
    """What each column says; from the first failure on, that."""
    found: Cells = {}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        try:
            plan = planned(model, optimizer, runtime, loss, size)
            cores = (
                on_onnxruntime(plan, model, folder, size) if runtime == "onnxruntime" else in_c(plan, runtime, folder)
            )
            for column, text in cores:
                found[column] = text
        except PoetError as error:
            found[COLUMNS[len(found)]] = f"code {error.exit_code}: {error}"
    return {column: found.get(column, "-") for column in COLUMNS}


def rows(name: str, most: int) -> Iterator[list[str]]:
    """The rows of a network."""
    model = zoo.build(name, 1)
    size = sum(math.prod(one.dims) for one in model.graph.initializer)
    for runtime in RUNTIMES:
        for optimizer in OPTIMIZERS:
            if size > most and runtime != "onnxruntime":
                yield [name, runtime, optimizer, f"not run: {size:,} parameters", "-", "-", "-", "-"]
                continue
            began = time.monotonic()
            found = cells(model, optimizer, runtime, LOSSES.get(name, "auto"), size)
            seconds = time.monotonic() - began
            yield [name, runtime, optimizer, *(found[column] for column in COLUMNS), f"{seconds:.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=zoo.names())
    parser.add_argument("--in-c", type=int, default=IN_C, metavar="PARAMETERS")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    for name in given.networks:
        found = [f"| {' | '.join(row)} |" for row in rows(name, given.in_c)]
        put([*HEAD, *sorted([*found, *others(given.output, name)], key=lambda line: line.split()[1])], given.output)


def others(path: Path | None, name: str) -> list[str]:
    """The rows that a file has of other networks."""
    lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
    return [line for line in lines[len(HEAD) :] if line.split()[1] != name]


HEAD = [
    "# Every path of every network", "", *(__doc__ or "").splitlines(), "",
    "| network | runtime | optimizer | " + " | ".join(COLUMNS) + " | seconds |", "|" + "---|" * 8,
]  # fmt: skip


if __name__ == "__main__":
    main()
