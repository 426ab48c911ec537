"""Small networks of the kinds that people train, as torch modules: what the exporter makes of them is to be trained."""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import Any

import onnx
import torch
import torch.nn.functional as f
from torch import Tensor, nn


class SqueezeExcite(nn.Module):
    """The middle of an EfficientNet: SiLU, a 5x5 depthwise convolution, channels weighed by their means."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.expand, self.norm1 = nn.Conv2d(3, width, 1), nn.BatchNorm2d(width)
        self.depth, self.norm2 = nn.Conv2d(width, width, 5, 2, 2, groups=width), nn.BatchNorm2d(width)
        self.squeeze, self.excite = nn.Conv2d(width, 4, 1), nn.Conv2d(4, width, 1)
        self.project, self.classify = nn.Conv2d(width, 8, 1), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Any:
        x = f.silu(self.norm1(self.expand(x)))
        x = f.silu(self.norm2(self.depth(x)))
        x = x * torch.sigmoid(self.excite(f.silu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        return self.classify(self.project(x).mean((2, 3)))


class UNet(nn.Module):
    """Down, up by a transposed convolution, joined; then resized both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.up, self.third = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 8, 3, padding=1)
        self.last = nn.Conv2d(16, 4, 1)

    def forward(self, x: Tensor) -> Any:
        wide = torch.tanh(self.first(x))
        deep = torch.tanh(self.second(f.avg_pool2d(wide, 2)))
        joined = torch.tanh(self.third(torch.cat([self.up(deep), wide], 1)))
        small = f.avg_pool2d(joined, 2)
        smooth = f.interpolate(small, scale_factor=2, mode="bilinear", align_corners=False)
        return self.last(torch.cat([smooth, f.interpolate(small, scale_factor=2, mode="nearest")], 1))


class Recurrent(nn.Module):
    """Embedding, two recurrent layers, a classifier of the last state."""

    def __init__(self, kind: str, bidirectional: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 12)
        self.layers = getattr(nn, kind)(12, 16, 2, batch_first=True, bidirectional=bidirectional)
        self.classify = nn.Linear(32 if bidirectional else 16, 5)

    def forward(self, ids: Tensor) -> Any:
        return self.classify(self.layers(self.embed(ids))[0][:, -1])


class Encoder(nn.Module):
    """A layer of torch's own transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(60, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, "gelu", batch_first=True, norm_first=True)
        self.classify = nn.Linear(32, 6)

    def forward(self, ids: Tensor) -> Any:
        return self.classify(self.layer(self.embed(ids)).mean(1))


class Decoder(nn.Module):
    """A Llama-like layer: RMS normalization, rotary positions, keys shared by two heads, SwiGLU, next-token scores."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(60, 32), nn.Linear(32, 60, False)
        self.q, self.k, self.v, self.o = (nn.Linear(32, width, False) for width in (32, 16, 16, 32))
        self.gate, self.rise, self.fall = nn.Linear(32, 48, False), nn.Linear(32, 48, False), nn.Linear(48, 32, False)
        self.norm1, self.norm2 = nn.Parameter(torch.ones(32)), nn.Parameter(torch.ones(32))

    def forward(self, ids: Tensor) -> Any:
        x = self.embed(ids)
        batch, tokens = ids.shape
        y = _rms(x, self.norm1)
        q, k, v = (p(y).view(batch, tokens, -1, 8).transpose(1, 2) for p in (self.q, self.k, self.v))
        angles = torch.outer(torch.arange(tokens).float(), 10_000 ** (-torch.arange(0, 8, 2).float() / 8))
        angles = torch.cat([angles, angles], -1)
        q, k = (t * angles.cos() + torch.cat([-t[..., 4:], t[..., :4]], -1) * angles.sin() for t in (q, k))
        k, v = (t[:, :, None].expand(batch, 2, 2, tokens, 8).reshape(batch, 4, tokens, 8) for t in (k, v))
        mixed = f.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, tokens, 32)
        x = x + self.o(mixed)
        y = _rms(x, self.norm2)
        return self.head(x + self.fall(f.silu(self.gate(y)) * self.rise(y)))


def _rms(x: Tensor, scale: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * scale


class Chunks(nn.Module):
    """Attention with a causal mask of its own, and one projection cut in three: as GPT-2 has it."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.classify = nn.Linear(16, 48), nn.Linear(16, 4)
        self.register_buffer("hidden", torch.full((5, 5), -1e4).triu(1))

    def forward(self, x: Tensor) -> Any:
        q, k, v = self.project(x).chunk(3, -1)
        weights = (q @ k.transpose(1, 2) / 4 + self.hidden).softmax(-1)
        return self.classify(f.gelu(weights @ v, approximate="tanh").mean(1))


def networks() -> dict[str, tuple[nn.Module, Tensor]]:
    """Each network with a batch, seeded."""
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (3, 7))
    return {"squeeze-excite": (SqueezeExcite(), torch.randn(2, 3, 9, 9)), "unet": (UNet(), torch.randn(1, 3, 8, 8)),
            "lstm": (Recurrent("LSTM", False), ids), "gru": (Recurrent("GRU", True), ids), "encoder": (Encoder(), ids),
            "decoder": (Decoder(), ids)}  # fmt: skip


def export_newer(module: nn.Module, x: Tensor, *, optimize: bool, dynamic: bool) -> onnx.ModelProto:
    """What the newer exporter writes: with BatchNormalization in evaluation mode, whatever the module is in."""
    file: Any = io.BytesIO()
    shapes = ({0: torch.export.Dim("batch")},) if dynamic else None
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), file, dynamo=True, optimize=optimize, dynamic_shapes=shapes, verbose=False)
    return onnx.load_from_string(file.getvalue())


def export(module: nn.Module, x: Tensor, opset: int, *, training: bool = True) -> onnx.ModelProto:
    """What the older exporter writes, in training mode by default; the module's statistics stay as they were."""
    module.train(training)
    file: Any = io.BytesIO()
    statistics = {key: value.clone() for key, value in module.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module, (x,), file, opset_version=opset, dynamo=False, do_constant_folding=False,
            training=torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL,
        )  # fmt: skip
    module.load_state_dict(statistics)
    return onnx.load_from_string(file.getvalue())
