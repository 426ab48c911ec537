"""Instructions a multiply-add of the kernels in C on an emulated Cortex-M4, beside loops in CMSIS-DSP's shape.

    python -m benchmarks.instructions [NETWORK ...] [--on cortex-m4] [--output benchmarks/results/instructions.md]

SGD steps of one row, everything computed once. Both columns are the same step with the same flags; in the other one
products and convolutions make one element at a time, as arm_mat_mult_f32 does (C, four terms a round), in place of
tiles of four by four.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx.utils

import poetopt as po
from benchmarks.output import put
from poetopt.backends.c.build import build, write
from poetopt.backends.c.program import device_program
from poetopt.backends.c.run import run
from poetopt.backends.c.targets import target
from poetopt.backends.c.tracing import weigh
from poetopt.backends.onnxruntime.batch import random_batch
from poetopt.graph import Operator, TrainingGraph
from poetopt.graph.problem import Problem
from poetopt.ops.flops import work
from poetopt.plan.assemble import store_all
from poetopt.plan.layout import lay_out

NETWORKS = ("ds-cnn", "resnet8", "mobilenetv1-025", "lenet")
ALONE = {
    "po_gemm.h": (
        ("return size % 4 == 0 || size - at >= 4 ? 4 : 1;", "return (void)size, (void)at, 1;"),
        ("for (m = 0; m + 4 <= rows; m += 4)", "for (m = 0; m < 0; m += 4)"),
        ("rows % 4 != 0 && m < rows", "m < rows"),
        ("for (n = 0; n + 4 <= columns; n += 4)", "for (n = 0; n < 0; n += 4)"),
        ("columns % 4 != 0 && n < columns", "n < columns"),
        (
            "    for (k = first; k < end; ++k) {\n        sum +=",
            "    PO_UNROLL(4)\n    for (k = first; k < end; ++k) {\n        sum +=",
        ),
    ),
    "po_conv.h": (
        ("const int32_t wide = columns >= 4;", "const int32_t wide = 0;"),
        ("&& kw == 3 && columns <= PO_PART", "&& kw < 0"),
    ),
}
"""What makes the kernels compute one element at a time."""
HEADING = "| network | kernel | multiply-adds | instructions a multiply-add | one element at a time |"


def counted(problem: Problem, on: str, alone: bool) -> Mapping[str, int]:
    """The instructions of each operator, by name."""
    graph, chosen = problem.graph, target(on, "--on")
    assert graph is not None
    program = device_program(lay_out(store_all(problem)), graph)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write(program, chosen, folder)
        for name, changes in ALONE.items() if alone else ():
            if (folder / name).exists():
                text = (folder / name).read_text(encoding="ascii")
                for old, new in changes:
                    assert old in text, f"{name}: {old}"
                    text = text.replace(old, new)
                (folder / name).write_text(text, encoding="ascii")
        counts = run(build(program, chosen, folder), random_batch(graph, 0), weigh=partial(weigh, on)).counts
    assert counts is not None
    return {o.name: int(row[0]) for o, row in zip(problem.operators, np.asarray(counts), strict=False)}


def kernel_of(operator: Operator, graph: TrainingGraph) -> str:
    """Its kernel's name, and the kind of convolution; empty where it is neither a product nor a convolution."""
    kind = operator.kind.partition("+")[0]
    if kind.split(".")[0] not in ("Conv", "Gemm", "MatMul") or kind.endswith("bias"):
        return ""
    shapes = [graph.tensors[name].shape for name in (*operator.inputs, *operator.outputs)]
    planes = [shape for shape in shapes if len(shape) == 4]
    weights = [shape for shape in planes if shape[0] > 1]  # there is one image
    if not weights:
        return kind
    if weights[-1][2:] == (1, 1):
        return f"{kind}, pointwise"
    depthwise = weights[-1][1] == 1 and all(shape[1] > 1 for shape in planes if shape[0] == 1)
    return f"{kind}, depthwise" if depthwise else kind


def rows(network: str, on: str) -> list[str]:
    """A row for each kind of kernel."""
    model = po.load(network, batch=1)
    assert isinstance(model, po.Model)
    problem = model.differentiate(optimizer="sgd").cost("m4", runtime="c")
    graph = problem.graph
    assert graph is not None
    mine, alone = (counted(problem, on, one) for one in (False, True))
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for operator in graph.operators:
        kernel = "" if operator.name not in mine else kernel_of(operator, graph)
        if kernel:
            figures = (
                sum(one.flops for one in work(operator, graph.tensors)) / 2,
                mine[operator.name],
                alone[operator.name],
            )
            found[kernel] = [a + b for a, b in zip(found[kernel], figures, strict=True)]
    made = [
        f"| {network} | {kernel} | {macs:,.0f} | {own / macs:.2f} | {other / macs:.2f} |"
        for kernel, (macs, own, other) in sorted(found.items())
    ]
    return [*made, f"| {network} | all of the step | | {sum(mine.values()):,} | {sum(alone.values()):,} |"]


def cached(on: str) -> list[str]:
    """The rows of a frozen backbone: the step with it, and as two networks, the second on features that were stored."""
    whole = po.zoo.build("mobilenetv1-025", 1)
    features = next(node.output[0] for node in whole.graph.node if node.op_type == "GlobalAveragePool")
    parts = onnx.utils.Extractor(onnx.shape_inference.infer_shapes(whole))
    backbone, head = parts.extract_model(["input"], [features]), parts.extract_model([features], ["logits"])

    def total(file: onnx.ModelProto, train: str | None, **recipe: str) -> str:
        model = po.load(file, train=train)
        assert isinstance(model, po.Model)
        problem = model.differentiate(**recipe).cost("m4", runtime="c")  # type: ignore[arg-type]
        return f"{sum(counted(problem, on, False).values()):,}"

    trained = {"loss": "cross-entropy", "optimizer": "sgd"}
    return [
        "| mobilenetv1-025, fc trained | instructions |",
        "|---|---|",
        f"| a step of the whole network | {total(whole, 'fc*', **trained)} |",
        f"| the backbone alone, once a sample | {total(backbone, None, loss='forward-only')} |",
        f"| a step of the head on its features | {total(head, None, **trained)} |",
    ]


def main() -> None:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", default=NETWORKS)
    parser.add_argument("--on", default="cortex-m4")
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    lines = [row for network in arguments.networks for row in rows(network, arguments.on)]
    lines += ["", *cached(arguments.on)]
    said = (
        f"SGD steps of one row on an emulated {arguments.on}, everything computed once. *One element at a time*: the",
        "same step, whose products and convolutions have a sum in one register, as CMSIS-DSP's arm_mat_mult_f32 in C,",
        "in place of tiles of four by four; four terms a round in products of both. A multiply and an add are two",
        "instructions: VFMA rounds once, and VMLA takes three cycles by ARM's manual, where the two take two.",
        "`python -m benchmarks.instructions --output benchmarks/results/instructions.md`.",
    )
    put([*said, "", HEADING, "|---|---|---|---|---|", *lines], arguments.output)


if __name__ == "__main__":
    main()
