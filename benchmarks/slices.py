"""The least RAM of a step of the zoo's networks on onnxruntime with paged parameters, operators plain and by slices.

.venv/bin/python -m benchmarks.slices [--device a72] [NETWORK]... [--output FILE.md]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import poetopt as po
from benchmarks.output import put
from poetopt.plan.layout import taken_bytes
from poetopt.plan.simulate import simulate
from poetopt.testing.plans import keeping_nothing

NETWORKS = (
    "lenet", "mlp", "resnet18-cifar", "vgg16-cifar", "mobilenetv2", "resnet50", "vit-b16", "bert-tiny", "bert-base",
    "gpt2-small",
)  # fmt: skip
HEADING = "| network | batch | plain: least | by slices: least | a plan takes | operators by slices | what binds then |"


def row(name: str, device: str) -> str:
    """A network's line."""
    model = po.load(name)
    assert isinstance(model, po.Model)
    step = model.differentiate(optimizer="sgd")
    plain, sliced = (step.cost(device, parameters="paged", stream=stream) for stream in ("never", "auto"))
    plan = keeping_nothing(sliced)
    taken = sliced.beside_bytes + taken_bytes(plan, simulate(plan).peak_bytes)
    largest = max(range(len(sliced.operators)), key=sliced.least_working_set_bytes)
    batch = model.graph.tensors[model.graph.inputs[0]].shape[0]
    ways = sum(1 for operator in sliced.operators if operator.variants)
    totals = [plain.least_ram_bytes + plain.beside_bytes, sliced.least_ram_bytes + sliced.beside_bytes, taken]
    shown = " | ".join(f"{value:,}" for value in totals)
    kind = sliced.operators[largest].kind
    return f"| {name} | {batch} | {shown} | {ways} of {len(sliced.operators)} | {kind} |"


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--device", default="a72")
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    head = [
        f"`python -m benchmarks.slices --device {asked.device}`: bytes of RAM that a step of sgd takes in all.",
        "*Least*: no step takes less, by its largest operator. *A plan takes*: so much does a schedule",
        "by slices, laid out, that keeps nothing in RAM from one operator to the next.",
        "",
        HEADING,
        "|" + "---|" * (HEADING.count("|") - 1),
    ]
    put([*head, *(row(name, asked.device) for name in asked.networks)], asked.output)


if __name__ == "__main__":
    main()
