"""Networks of MLPerf Tiny (Banbury et al., 2021), layer by layer as its reference code builds them.

`ds-cnn` spots keywords, `resnet8` classifies CIFAR-10, `mobilenetv1-025` detects persons, `autoencoder` finds anomalies
in sounds (github.com/mlcommons/tiny, `benchmark/training/*/keras_model.py` and `vww_model.py`). All
BatchNormalization is in training mode, convolutions before it have biases, and padding is Keras's "same": odd padding
goes to the bottom and the right. Dropout is omitted.
"""

from __future__ import annotations

from onnx import ModelProto

from poetopt.zoo.network import Network

Pad = tuple[int, int, int, int]

KEYWORDS, SIZE = (49, 10), 64
"""Frames and features of a second of speech; channels of all layers."""
SAME, EVEN_BY_TWO = (1, 1, 1, 1), (0, 0, 1, 1)
"""Padding of 3x3 windows with stride 1, and with stride 2 for even sizes."""
SEPARABLE = ((16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *((128, 1),) * 5, (256, 2), (256, 1))
"""Channels and stride of each separable convolution of MobileNetV1 at a quarter of its width."""
CODER = (128, 128, 128, 128, 8, 128, 128, 128, 128)
"""Units of the autoencoder's hidden layers."""


def build(batch: int, name: str) -> ModelProto:
    """Return the network `name`."""
    builders = {"ds-cnn": ds_cnn, "resnet8": resnet8, "mobilenetv1-025": mobilenet, "autoencoder": autoencoder}
    return builders[name](batch)


def ds_cnn(batch: int) -> ModelProto:
    """Build DS-CNN, input [batch, 1, 49, 10], output [batch, 12]: Zhang et al., "Hello Edge", 2017."""
    net = Network("ds-cnn", 21)
    x = net.input("input", (batch, 1, *KEYWORDS))
    x = _conv_norm_relu(net, x, "conv1", (1, SIZE), (10, 4), 2, (4, 1, 5, 1))
    for block in range(1, 5):
        x = _conv_norm_relu(net, x, f"block{block}.depthwise", (SIZE, SIZE), 3, 1, SAME, SIZE)
        x = _conv_norm_relu(net, x, f"block{block}.pointwise", (SIZE, SIZE), 1)
    return _with_classifier(net, x, SIZE, batch, 12)


def resnet8(batch: int) -> ModelProto:
    """Build ResNet-8, input [batch, 3, 32, 32], output [batch, 10]."""
    net = Network("resnet8", 22)
    x = net.input("input", (batch, 3, 32, 32))
    x = _conv_norm_relu(net, x, "conv1", (3, 16), 3, 1, SAME)
    in_channels = 16
    for stage, channels in enumerate((16, 32, 64), start=1):
        stride, pad = (1, SAME) if channels == in_channels else (2, EVEN_BY_TWO)
        y = _conv_norm_relu(net, x, f"stage{stage}.conv1", (in_channels, channels), 3, stride, pad)
        y = net.conv(y, f"stage{stage}.conv2", (channels, channels), 3, pad=1, bias=True)
        y = net.batch_norm(y, f"stage{stage}.conv2.bn", channels)
        if channels != in_channels:
            x = net.conv(x, f"stage{stage}.shortcut", (in_channels, channels), 1, stride, bias=True)
        x = net.relu(net.add("Add", [x, y], f"stage{stage}.add"), f"stage{stage}.relu")
        in_channels = channels
    return _with_classifier(net, x, in_channels, batch, 10)


def mobilenet(batch: int) -> ModelProto:
    """Build MobileNetV1, input [batch, 3, 96, 96], output [batch, 2]: Howard et al., 2017, width 0.25."""
    net = Network("mobilenetv1-025", 23)
    x = net.input("input", (batch, 3, 96, 96))
    x = _conv_norm_relu(net, x, "conv1", (3, 8), 3, 2, EVEN_BY_TWO)
    in_channels = 8
    for layer, (channels, stride) in enumerate(SEPARABLE, start=1):
        pad = SAME if stride == 1 else EVEN_BY_TWO
        x = _conv_norm_relu(net, x, f"layer{layer}.depthwise", (in_channels, in_channels), 3, stride, pad, in_channels)
        x = _conv_norm_relu(net, x, f"layer{layer}.pointwise", (in_channels, channels), 1)
        in_channels = channels
    return _with_classifier(net, x, in_channels, batch, 2)


def autoencoder(batch: int) -> ModelProto:
    """Build the autoencoder, [batch, 640] to [batch, 640]; its loss is mse, with the input as target."""
    net = Network("autoencoder", 24)
    x = net.input("input", (batch, 640))
    in_features = 640
    for layer, units in enumerate(CODER, start=1):
        x = net.linear(x, f"fc{layer}", in_features, units)
        x = net.relu(net.batch_norm(x, f"bn{layer}", units), f"relu{layer}")
        in_features = units
    return net.model(net.linear(x, "out", in_features, 640), (batch, 640))


def _conv_norm_relu(
    net: Network,
    x: str,
    name: str,
    channels: tuple[int, int],
    kernel: int | tuple[int, int],
    stride: int = 1,
    pad: Pad = (0, 0, 0, 0),
    group: int = 1,
) -> str:
    """Add convolution, BatchNormalization and ReLU."""
    x = net.conv(x, name, channels, kernel, stride, pad=pad, bias=True, group=group)
    return net.relu(net.batch_norm(x, f"{name}.bn", channels[1]), f"{name}.relu")


def _with_classifier(net: Network, x: str, channels: int, batch: int, classes: int) -> ModelProto:
    """Add the mean over the image and a linear layer, and return the model."""
    x = net.add("Flatten", [net.add("GlobalAveragePool", [x], "pool")], "flatten", axis=1)
    return net.model(net.linear(x, "fc", channels, classes), (batch, classes))
