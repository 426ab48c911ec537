"""Networks of about 1,000 operators a training step, for the solver's table: deep, narrow, quick to make.

    python -m benchmarks.deep [--layers 12 30 60] [--device a72] [--ram 40%] [--time-limit 180]

prints the table of `benchmarks/results/deep.md`: transformers of so many layers.

`resnet` is the ResNet-110 of He et al.'s family for 32x32 images (6n + 2 layers, n = 18; "Deep Residual Learning",
2016, section 4.2), `transformer` a stack of 17 of BERT's encoder layers at a third of its width. Weights come from
fixed seeds; what matters to a schedule is the graph with its sizes and costs.
"""

from __future__ import annotations

import argparse
import resource
import time

from onnx import ModelProto, TensorProto

from poetopt.zoo.images import residual as block
from poetopt.zoo.network import Network
from poetopt.zoo.transformers import OPSET, Size, linear
from poetopt.zoo.transformers import bert_layer as layer


def build(name: str) -> ModelProto:
    """The network called `resnet` or `transformer`."""
    return {"resnet": resnet, "transformer": transformer}[name]()


def resnet(blocks: int = 18, batch: int = 4) -> ModelProto:
    """Three stages of 16, 32 and 64 channels with `blocks` residual blocks each, BatchNormalization that trains."""
    net = Network("deep-resnet", 110)
    x = net.input("input", (batch, 3, 32, 32))
    x = net.relu(net.batch_norm(net.conv(x, "conv1", (3, 16), 3, pad=1), "bn1", 16), "relu1")
    before = 16
    for stage, (channels, stride) in enumerate(((16, 1), (32, 2), (64, 2)), start=1):
        for place in range(blocks):
            x = block(net, x, f"layer{stage}.{place}", (before, channels), stride if place == 0 else 1)
            before = channels
    x = net.add("GlobalAveragePool", [x], "avgpool")
    x = net.add("Flatten", [x], "flatten", axis=1)
    return net.model(net.linear(x, "fc", before, 10), (batch, 10))


def transformer(layers: int = 17, batch: int = 1) -> ModelProto:
    """Float input [batch, 128, 256], `layers` encoder layers with 4 heads, a classifier of every token."""
    size = Size(batch, tokens=128, width=256, heads=4)
    net = Network("deep-transformer", 17, OPSET)
    x = net.input("input", (batch, size.tokens, size.width))
    bias = net.input("mask", (batch, 1, 1, size.tokens), TensorProto.FLOAT)
    for index in range(layers):
        x = layer(net, x, f"layer.{index}", size, bias)
    return net.model(linear(net, x, "classifier", size.width, 8), (batch, size.tokens, 8))


def row(layers: int, device: str, ram: str, limit_s: float) -> str:
    """One transformer's answer, as a line of the table."""
    import poetopt as po

    model, begin = transformer(layers), time.process_time()
    report = po.solve(model, device=device, ram=ram, time_limit=limit_s)
    found = report.solution
    plans = [told for told in found.trace if told.overhead_j is not None]
    value = plans[-1].overhead_j or 0.0
    last = next(told.elapsed_s for told in plans if told.overhead_j == value)
    near = next(told.elapsed_s for told in plans if (told.overhead_j or 0.0) <= 1.05 * value)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return (
        f"| {layers} | {len(report.problem.operators):,} | {value:.4f} | {100 * (found.overhead_gap or 0.0):.2f} % | "
        f"{found.scope} | {plans[0].elapsed_s:.1f} | {near:.0f} | {last:.0f} | {found.total_s:.0f} | "
        f"{time.process_time() - begin:.0f} | {most:,} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Deep transformers, solved.")
    parser.add_argument("--layers", type=int, nargs="+", default=[12, 30, 60])
    parser.add_argument("--device", default="a72")
    parser.add_argument("--ram", default="40%")
    parser.add_argument("--time-limit", type=float, default=180.0)
    args = parser.parse_args()
    heads = (
        "layers|operators|overhead J|any schedule saves at most|scope|first s|within 5 % s|last s|end s|processor s|MB"
    )
    print("|", heads.replace("|", " | "), "|\n" + "|---" * 11 + "|")
    for layers in args.layers:
        print(row(layers, args.device, args.ram, args.time_limit), flush=True)


if __name__ == "__main__":
    main()
