"""What onnxruntime takes of RAM for a plan written as one ONNX file, and what its optimizations undo.

    .venv/bin/python -m benchmarks.schedule_file [--ram 60%] [--device a72] [--output FILE.md] [MODEL ...]

A plan without paging, of heuristics alone, is written by `poetopt schedule`, and the unscheduled step as `poetopt grad`
does. Each file runs in a process of its own: `rise` is what VmHWM, reset before a run, rises to above what the process
had with inputs, weights and outputs in RAM; the nodes are those that its session keeps.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import poetopt as po
from poetopt.api.batches import known_schedule
from poetopt.api.problems import asked
from poetopt.frontends.proto import save_model
from poetopt.util.units import show_bytes

NETWORKS = ("resnet18-cifar", "mobilenetv2", "bert-tiny")
WAYS = {
    "unscheduled": ("grad", "off", ()),
    "scheduled": ("step", "off", ()),
    "scheduled, optimized": ("step", "on", ()),
    "scheduled, optimized but for common subexpressions": ("step", "on", ("CommonSubexpressionElimination",)),
}
HEADER = """| network | plan's peak | store-all | file | nodes | rise |
|---|---|---|---|---|---|"""


def run(model: str, optimized: str, disabled: list[str], feeds: dict[str, tuple[list[int], str]]) -> dict[str, int]:
    """Nodes of the session, and the rise of VmHWM over a run."""
    import numpy as np
    import onnx
    import onnxruntime as ort

    options = ort.SessionOptions()
    if optimized == "off":
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.enable_cpu_mem_arena = options.enable_mem_pattern = False
    options.enable_mem_reuse = False  # a buffer that is reused stays until then
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = ort.InferenceSession(model, options, ["CPUExecutionProvider"], disabled_optimizers=disabled)
    binding = session.io_binding()
    for name, (shape, dtype) in feeds.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, dtype)))
    places = {one.name: np.ones(one.shape, np.float32) for one in session.get_outputs()}  # `run` would copy them
    for name, place in places.items():
        binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(place))
    session.run_with_iobinding(binding)
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS:")
    session.run_with_iobinding(binding)
    options.optimized_model_filepath = model + ".optimized"
    ort.InferenceSession(model, options, ["CPUExecutionProvider"], disabled_optimizers=disabled)
    nodes = len(onnx.load(model + ".optimized", load_external_data=False).graph.node)
    return {"nodes": nodes, "rise": _status("VmHWM:") - before}


def _status(key: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(key))
    return int(line.split()[1]) * 1024


def rows(name: str, device: str, ram: str, folder: Path) -> list[str]:
    """The lines of a network."""
    problem = po.load(name).differentiate().cost(device)
    known = known_schedule(problem, asked(problem, ram=ram, paging=False))
    if known is None or problem.graph is None:
        return [f"| {name} | no schedule in {ram} | | | | |"]
    po.write_schedule(known.plan, folder / "step.onnx")
    save_model(problem.graph, folder / "grad.onnx")
    graph = problem.graph
    feeds = {i: (list(graph.tensors[i].shape), graph.tensors[i].dtype) for i in graph.inputs}
    found = []
    for way, (file, optimized, disabled) in WAYS.items():
        case = json.dumps([str(folder / f"{file}.onnx"), optimized, list(disabled), feeds])
        command = [sys.executable, "-m", "benchmarks.schedule_file", "--one", case]
        # blocks of a tensor's size go back to the system as they are freed
        env = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
        told = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=env).stdout)
        peaks = (show_bytes(known.simulation.peak_bytes), show_bytes(po.store_all_peak_bytes(problem)))
        found.append(f"| {name} | {peaks[0]} | {peaks[1]} | {way} | {told['nodes']:,} | {show_bytes(told['rise'])} |")
        print(found[-1], flush=True)
    return found


def main() -> None:
    """Print the table, and write it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=NETWORKS)
    parser.add_argument("--ram", default="60%")
    parser.add_argument("--device", default="a72")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked_for = parser.parse_args()
    if asked_for.one:
        print(json.dumps(run(*json.loads(asked_for.one))))
        return
    lines = HEADER.splitlines()
    for name in asked_for.models:
        with tempfile.TemporaryDirectory() as folder:
            lines += rows(name, asked_for.device, asked_for.ram, Path(folder))
    if asked_for.output:
        asked_for.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
