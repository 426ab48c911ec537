"""A network small enough to be compiled in a moment, and plans of it."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

import poetopt as po
from poetopt.backends.c.build import Built, build, write
from poetopt.backends.c.program import DeviceProgram, device_program
from poetopt.backends.c.targets import TARGETS, compilers
from poetopt.backends.onnxruntime.batch import Batch, random_batch
from poetopt.devices import Device
from poetopt.graph import TrainingGraph
from poetopt.graph.problem import Problem
from poetopt.ops.runtimes.c.windows import BLOCK_BYTES
from poetopt.plan.assemble import store_all
from poetopt.plan.instructions import Plan
from poetopt.plan.layout import lay_out
from poetopt.zoo.network import Network
from tests.seeds import everything

HOST, M4 = TARGETS["linux"], TARGETS["cortex-m4"]

needs_host = pytest.mark.skipif(not [*compilers(HOST)], reason="no C compiler for this machine")
needs_emulator = pytest.mark.skipif(
    not (importlib.util.find_spec("unicorn") and importlib.util.find_spec("elftools")) or not [*compilers(M4)],
    reason="the emulator isn't installed (pip install 'poetopt[device]')",
)
_OTHERS = pytest.mark.skipif(not everything(), reason="one emulated board at each change, the others by --seeds all")


def other_board(test: Callable[..., None]) -> Callable[..., None]:
    """Decorates a test on an emulated board that shows what `test_step` does on one, of other steps or cores."""
    marked: Callable[..., None] = needs_emulator(_OTHERS(test))
    return marked


def blocks_of(nbytes: int) -> Device:
    """m4 with a storage of such blocks, and a stack that holds one."""
    m4 = po.device("m4")
    assert m4.storage is not None
    return replace(m4, storage=replace(m4.storage, block_bytes=nbytes), stack_bytes=1536 + nbytes)


@cache
def network() -> po.Model:
    """Two convolutions and a linear layer on 2x8x8 images, two of them a batch."""
    net = Network("tiny", 7)
    x = net.input("input", (2, 2, 8, 8))
    x = net.relu(net.conv(x, "conv1", (2, 6), 3, pad=1, bias=True), "relu1")
    x = net.relu(net.conv(x, "conv2", (6, 6), 3, pad=1, bias=True), "relu2")
    x = net.max_pool(x, "pool")
    x = net.add("Flatten", [x], "flatten", axis=1)
    found = po.load(net.model(net.linear(x, "fc", 96, 5), (2, 5)))
    assert isinstance(found, po.Model)
    return found


@cache
def normalized_file() -> onnx.ModelProto:
    """BatchNormalization and Dropout in training form, a pooling with indices, a residual, on 2x8x8 images."""
    net = Network("normalized", 5)
    x = net.relu(net.batch_norm(net.conv(net.input("input", (2, 2, 8, 8)), "conv1", (2, 6), 3, pad=1), "bn1", 6), "r1")
    y = net.batch_norm(net.conv(x, "conv2", (6, 6), 3, pad=1), "bn2", 6)
    x = net.max_pool(net.relu(net.add("Add", [x, y], "sum"), "r2"), "pool")
    ratio, on = net.constant("ratio", np.array(0.5, np.float32)), net.constant("on", np.array(True))
    x = net.add("Dropout", [net.add("Flatten", [x], "flatten", axis=1), ratio, on], "drop", seed=1)
    return net.model(net.linear(x, "fc", 96, 5), (2, 5))


@cache
def dropping_model() -> po.Model:
    """Three linear layers, in front of two of which half of everything is dropped."""
    net = Network("dropping", 3)
    x = net.relu(net.linear(net.input("input", (2, 12)), "fc1", 12, 9), "relu1")
    for k in (2, 3):
        ratio, training = net.constant(f"ratio{k}", np.array(0.5, np.float32)), net.constant(f"on{k}", np.array(True))
        x = net.linear(net.add("Dropout", [x, ratio, training], f"drop{k}", seed=k), f"fc{k}", 9, 9)
    found = po.load(net.model(x, (2, 9)))
    assert isinstance(found, po.Model)
    return found


@cache
def dropping() -> Problem:
    """A step of sgd on it."""
    return dropping_model().differentiate(optimizer="sgd").cost("m4", runtime="c")


@cache
def tiny() -> Problem:
    """Its training step, for an M4 and kernels in C; it keeps both Relus' outputs, which are paged."""
    return network().differentiate(maxima=False).cost("m4", runtime="c")


@cache
def updating() -> Problem:
    """The same with the updates of gradient descent with momentum in it."""
    return network().differentiate(optimizer="momentum").cost("m4", runtime="c")


def graph() -> TrainingGraph:
    """What `tiny` is made of."""
    found = tiny().graph
    assert found is not None
    return found


@cache
def paged() -> Plan:
    """A plan of `tiny` that pages and recomputes."""
    report = po.solve(tiny(), ram="70%", remat=False, threads=1, time_limit="20s")
    assert report.plan is not None
    return report.plan


@cache
def paged_parameters() -> Plan:
    """A plan of a step of sgd whose parameters are on storage: some stay in RAM, others come and go."""
    problem = network().differentiate(optimizer="sgd").cost("m4", runtime="c", parameters="paged")
    report = po.solve(problem, ram=problem.least_ram_bytes + 1200, threads=1, time_limit="20s")
    assert report.plan is not None
    return report.plan


@cache
def unscheduled() -> Plan:
    """The plan that computes everything once."""
    return lay_out(store_all(tiny()))


def batch() -> Batch:
    """One, the same at each call."""
    return random_batch(graph(), 3)


def written(plan: Plan, folder: Path, target_name: str = "linux") -> DeviceProgram:
    """The program of a plan, written into `folder`."""
    program = device_program(plan, graph())
    write(program, TARGETS[target_name], folder)
    return program


def built(plan: Plan, folder: Path, target_name: str = "linux") -> Built:
    """A plan, compiled without a warning."""
    program = written(plan, folder, target_name)
    return build(program, TARGETS[target_name], folder, warnings=("-Werror", *WARNINGS))


def on_qemu(found: Built) -> bytes:
    """What the same program writes on QEMU, after `run` has shown it on the other emulator."""
    program, target = found.program, found.target
    (found.folder / "batches.bin").write_bytes(b"".join(batch()[row.name].tobytes() for row in program.inputs))
    (found.folder / "pages.bin").write_bytes(bytes(program.storage.count * BLOCK_BYTES))
    command = ["qemu-system-arm", *target.qemu, "-display", "none", "-monitor", "none", "-serial", "none"]
    command += ["-semihosting-config", "enable=on,target=native", "-kernel", "po.elf"]
    subprocess.run(command, cwd=found.folder, check=True, timeout=120)
    return (found.folder / "results.bin").read_bytes()


WARNINGS = ("-Wall", "-Wextra", "-Wconversion")


def same(mine: Batch, theirs: Batch) -> bool:
    """Whether two runs gave the same bits."""
    return set(mine) == set(theirs) and all(
        np.array_equal(mine[name].reshape(-1).view(np.uint8), theirs[name].reshape(-1).view(np.uint8)) for name in mine
    )
