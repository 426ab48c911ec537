"""Put the BatchNormalizations of an ONNX file into training mode.

    python docs/examples/train_batchnorm.py NET.onnx TRAIN.onnx

PyTorch's exporter (`dynamo=True`) writes a BatchNormalization in inference mode, also of a module in training mode: it
normalises by the running statistics, and these stay as they are. In training mode it normalises by the batch's own
statistics, and the running ones follow. MOMENTUM is ONNX's: the share of the old value that is kept (torch's is the
share of the new one).
"""

from __future__ import annotations

import sys

import onnx
from onnx import helper

MOMENTUM = 0.9


def to_training(model: onnx.ModelProto, momentum: float = MOMENTUM) -> int:
    """Change the model in place; how many BatchNormalizations were in inference mode. Needs opset 14 or newer."""
    changed = 0
    for node in model.graph.node:
        attributes = {attribute.name: attribute for attribute in node.attribute}
        if node.op_type != "BatchNormalization" or ("training_mode" in attributes and attributes["training_mode"].i):
            continue
        kept = [attribute for name, attribute in attributes.items() if name not in ("training_mode", "momentum")]
        del node.attribute[:]
        node.attribute.extend(
            [*kept, helper.make_attribute("training_mode", 1), helper.make_attribute("momentum", momentum)]
        )
        running = [f"{name}.new" for name in node.input[3:5]]
        node.output.extend(running)
        changed += 1
    return changed


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: train_batchnorm.py NET.onnx TRAIN.onnx")
    network = onnx.load(sys.argv[1])
    print(f"{to_training(network)} BatchNormalizations put into training mode")
    onnx.save(network, sys.argv[2])
