"""Layers and functions of torch, exported, read, differentiated, and their gradients held against torch's own.

    python -m benchmarks.torch_exports [--only PART] [--kept FILE] [--output FILE.md]

Each stands between a trained linear layer and a trained scale, in training mode and, where that isn't the same, in
evaluation mode, under the squared error to a random target. Each goes through `po.torch.export` (with an open batch,
else a fixed one, as its message proposes) and through torch's older exporter with `po.load`. A gradient agrees within
1e-4 of its norm, 1e-6 of all gradients', or 16 times what torch's is off its own in float64. One that doesn't is the
file's where the file's own loss, moved along the difference, moves as poetopt says, and else WRONG. Dropouts pass
everything on where numbers are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper
from torch import Tensor, nn
from torch.onnx._internal.exporter import _registration as exporter_functions

import poetopt as po
from benchmarks.output import put
from poetopt.frontends.proto import model_proto

f: Any = nn.functional
AGREES, FIXED, TORCH = "agrees", "agrees with a fixed batch", "refused by torch"
CHECK, POETOPT = "refused by the check", "refused by poetopt"
FILE, DRAWS, WRONG, TRACEBACK = "the file computes something else", "draws, not compared", "WRONG", "traceback"
VERDICTS = (AGREES, FIXED, TORCH, CHECK, POETOPT, DRAWS, FILE, WRONG, TRACEBACK)
EXPORTERS = ("po.torch.export", "older exporter")
TOLERANCE, SMALL, ROUNDING, MOVED = 1e-4, 1e-6, 16.0, 1e-2
Case = tuple[str, Any, tuple[Tensor, ...]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--kept", type=Path, help="of a run that was cut off: it goes on from there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.ERROR)
    warnings.simplefilter("ignore")
    registry: Any = exporter_functions.ONNXRegistry
    registry.from_torchlib = staticmethod(cache(registry.from_torchlib))  # it parses all functions anew
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    said = []
    kept = options.kept.read_text(encoding="utf-8").splitlines() if options.kept and options.kept.exists() else []
    before = {tuple(line.split(" | ")[:2]): line for line in kept}
    for name, module, given in cases():
        for exporter in EXPORTERS if options.only in name else ():
            line = before.get((f"| {name}", exporter))
            if line is None:
                with tempfile.TemporaryDirectory() as folder:
                    verdict, why = one(module, given, Path(folder) / "net.onnx", exporter == EXPORTERS[1])
                why = " ".join(why.replace(folder, "").split(" Defined at:")[0].split()).replace("|", "/")
                line = f"| {name} | {exporter} | {verdict} | {why[:240]} |"
                print(line, flush=True)
                if options.kept:
                    with options.kept.open("a", encoding="utf-8") as file:
                        file.write(line + "\n")
            verdict = line.split(" | ")[2]
            counts[exporter][verdict] += 1
            if verdict != AGREES:
                said.append(line)
    total = sum(sum(count.values()) for count in counts.values())
    lines = [
        "# Exports of torch's layers and functions",
        "",
        f"`python -m benchmarks.torch_exports`: {total} exports of {total // 2} cases, "
        f"torch {torch.__version__}, onnxruntime {onnxruntime.__version__}.",
        "",
        f"| | {' | '.join(EXPORTERS)} |",
        "|---|---:|---:|",
        *(f"| {verdict} | {' | '.join(str(counts[e][verdict]) for e in EXPORTERS)} |" for verdict in VERDICTS),
        "",
        "| case | exporter | verdict | what is said |",
        "|---|---|---|---|",
        *said,
    ]
    put(lines, options.output)


class Between(nn.Module):
    """A layer or function behind a trained linear layer and in front of a trained scale."""

    def __init__(self, layer: Any, given: tuple[Tensor, ...]) -> None:
        super().__init__()
        self.layer, width = layer, given[0].shape[-1]
        self.first = nn.Linear(width, width) if given[0].is_floating_point() else nn.Identity()
        scales = [torch.rand(y.shape[-1:]) + 0.5 for y in self.outputs(given)]
        self.last = nn.ParameterList([nn.Parameter(scale) for scale in scales])

    def outputs(self, given: tuple[Tensor, ...]) -> list[Tensor]:
        """All floats of the layer's."""
        made = self.layer(self.first(given[0]), *given[1:])
        leaves = torch.utils._pytree.tree_leaves(made)
        return [y for y in leaves if isinstance(y, Tensor) and y.is_floating_point()]

    def forward(self, *given: Tensor) -> Tensor:
        outputs = [y * scale for y, scale in zip(self.outputs(given), self.last, strict=True)]
        return outputs[0] if len(outputs) == 1 else torch.stack([y.mean() for y in outputs])


DROPS = (nn.modules.dropout._DropoutNd, nn.MultiheadAttention)
MODES = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd, nn.RReLU)


def cases() -> list[Case]:
    """Name, module and inputs, seeded; what has modes is there in both."""
    found: list[Case] = []
    torch.manual_seed(0)
    for name, (layer, *specs) in rows().items():
        given = tuple(spec if isinstance(spec, Tensor) else torch.randn(spec) for spec in specs)
        found.append((name, Between(layer, given), given))
        if any(isinstance(part, MODES) for part in found[-1][1].modules()):
            found.append((f"{name}, evaluation", deepcopy(found[-1][1]).eval(), given))
    return found


def one(module: Between, given: tuple[Tensor, ...], path: Path, older: bool) -> tuple[str, str]:
    """A verdict, and what was said or found."""
    verdict = AGREES
    try:
        if older:
            try:
                _older(module, given, path)
            except Exception as error:  # noqa: BLE001 - torch raises whatever it meets
                return TORCH, str(error) or type(error).__name__
            names = {tensor.name for tensor in onnx.load(path).graph.initializer}
            model = po.load(path, train=[name for name, _ in module.named_parameters() if name in names])
        else:
            try:
                model = po.torch.export(module, given, path)
            except po.PoetError as error:
                if "dynamic_batch=False" not in str(error):
                    raise
                verdict = FIXED
                model = po.torch.export(module, given, path, dynamic_batch=False)
        return _difference(module, given, model, path) or (verdict, "")
    except po.PoetError as error:
        said = str(error)
        return (TORCH if "torch can't export" in said else CHECK if "check=False" in said else POETOPT), said
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return TRACEBACK, f"{type(error).__name__}: {error}"


def _older(module: Between, given: tuple[Tensor, ...], path: Path) -> None:
    """Write what torch's older exporter does; the module's statistics stay as they were."""
    state = {name: value.clone() for name, value in module.state_dict().items()}
    training = module.training
    for parameter in module.parameters():  # what is equal is merged
        parameter.data += 1e-3 * torch.randn(parameter.shape)
    mode = torch.onnx.TrainingMode.TRAINING if training else torch.onnx.TrainingMode.EVAL
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            torch.onnx.export(
                module, given, path, dynamo=False, opset_version=20, training=mode, do_constant_folding=False
            )
    finally:
        named = dict(module.named_parameters())
        module.load_state_dict({name: value for name, value in state.items() if name not in named}, strict=False)
        module.train(training)


def _difference(module: Between, given: tuple[Tensor, ...], model: Any, path: Path) -> tuple[str, str] | None:
    """In what outputs or gradients differ from torch's."""
    file = onnx.load(path)
    drops = [node for node in file.graph.node if node.op_type == "Dropout"]
    for node in drops:
        del node.input[1:]
    if drops:
        onnx.save(file, path)
        model = po.load(path, batch=given[0].shape[0], train=list(model.graph.trained))
    still = {part: part.training for part in module.modules() if isinstance(part, DROPS)}
    for part in still:
        part.training = False
    feeds = {entry.name: x.numpy() for entry, x in zip(file.graph.input, given, strict=False)}
    y = module(*given)
    target = torch.randn(y.shape)
    wanted = _gradients(module, given, target)
    try:
        exact = _gradients(
            deepcopy(module).double(), [x.double() if x.is_floating_point() else x for x in given], target
        )
    except RuntimeError:  # it is of float32 alone
        exact = wanted
    for part, training in still.items():
        part.training = training
    step = model.training_graph(loss="mse")
    names = {**dict(step.gradients), "": step.loss, " ": model.graph.outputs[0]}
    proto = model_proto(step, list(names.values()))
    if drawn := [node.op_type for node in proto.graph.node if node.op_type.startswith(("Random", "Bernoulli"))]:
        return DRAWS, drawn[0]
    feeds |= {labels: target.numpy() for labels in step.added_inputs}
    found = dict(zip(names, _run(proto, list(names.values()), feeds), strict=True))
    if far := _far(found[" "], y.detach().numpy(), 0.0):
        return FILE, f"output: {far}"
    total = float(np.sqrt(sum(float((gradient**2).sum()) for gradient in wanted.values())))
    for name, gradient in wanted.items():
        got = found.get(name, np.zeros_like(gradient))
        rounding = ROUNDING * float(np.linalg.norm(gradient - exact[name]))
        if not (far := _far(got, gradient, SMALL * total + rounding)):
            continue
        way = (got - gradient) / np.linalg.norm(got - gradient)
        (tensor,) = (tensor for tensor in proto.graph.initializer if tensor.name == name)
        before, losses = numpy_helper.to_array(tensor), []
        for move in (-MOVED, MOVED):
            tensor.CopyFrom(numpy_helper.from_array(before + np.float32(move) * way, name))
            losses.append(float(_run(proto, [step.loss], feeds)[0].reshape(-1)[0]))
        moves = (losses[1] - losses[0]) / (2 * MOVED)
        ours, theirs = (float((g * way).sum()) for g in (got, gradient))
        verdict = FILE if abs(moves - ours) < 0.1 * abs(moves - theirs) else WRONG
        return verdict, f"gradient of {name}: {far}; along that, {ours:.3g} here, {theirs:.3g} in torch, {moves:.3g}"
    return None


def _gradients(module: Between, given: Sequence[Tensor], target: Tensor) -> dict[str, Any]:
    """Torch's, by parameter, of the mean squared error."""
    named = dict(module.named_parameters())
    loss = ((module(*given) - target) ** 2).mean()
    made = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: gradient.numpy() for name, gradient in zip(named, made, strict=True) if gradient is not None}


def _run(proto: onnx.ModelProto, names: list[str], feeds: dict[str, Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    taken = {entry.name for entry in session.get_inputs()}
    ran: list[Any] = session.run(names, {name: x for name, x in feeds.items() if name in taken})
    return ran


def _far(found: Any, wanted: Any, least: float) -> str:
    if found.shape != wanted.shape:
        return f"{found.shape} instead of {wanted.shape}"
    found, wanted = np.nan_to_num(found), np.nan_to_num(wanted)
    distance, size = np.linalg.norm(found - wanted), np.linalg.norm(wanted)
    return "" if distance <= TOLERANCE * size + least else f"{distance:.2g} of {size:.2g}"


Rows = dict[str, tuple[Any, ...]]


def rows() -> Rows:
    """A layer or function, and shapes or values of what it takes."""
    flat, wide, image, cube, series = (3, 6), (2, 4, 6), (2, 4, 6, 6), (2, 2, 4, 4, 4), (2, 4, 8)
    ids, mask = torch.randint(0, 9, (3, 5)), torch.rand(3, 6) > 0.5
    some, at = torch.randint(0, 6, (3, 2)), torch.tensor([2, 0, 4])
    classes, chosen = torch.tensor([1, 4, 0]), torch.rand(3, 6)
    far = (torch.randn(3, 6), torch.randn(3, 6))

    def of(names: str, tail: str, *given: Any, before: Any = lambda x: x, more: tuple[Any, ...] = ()) -> Rows:
        return {
            f"{name}{tail}": (lambda x, *y, name=name: getattr(torch, name)(before(x), *y, *more), *given)
            for name in names.split()
        }

    layers = (
        "CELU ELU GELU Hardshrink Hardsigmoid Hardswish Hardtanh Identity LeakyReLU LogSigmoid Mish PReLU ReLU ReLU6 "
        "RReLU SELU SiLU Sigmoid Softplus Softshrink Softsign Tanh Tanhshrink Dropout AlphaDropout FeatureAlphaDropout "
        "GLU"
    )
    plain = (
        "abs asinh atan ceil cos cosh erf erfc exp expm1 floor frac neg round sigmoid sign sin sinc sinh square tan "
        "tanh trunc relu exp2 deg2rad nan_to_num"
    )
    positive = "acos asin atanh log log10 log1p log2 reciprocal rsqrt sqrt logit digamma lgamma erfinv"
    along = (
        "sum mean prod var std logsumexp softmax log_softmax amax amin cumsum cumprod norm sort median cummax max min "
        "logcumsumexp var_mean unbind nansum mode"
    )
    two = "add sub mul div maximum minimum fmax fmin atan2 hypot logaddexp fmod remainder copysign dist cdist"
    found: Rows = {name: (getattr(nn, name)(), flat) for name in layers.split()}
    found |= of(plain, "", flat) | of(along, " over an axis", wide, more=(1,)) | of(two, " with another", flat, flat)
    found |= of(positive, " of positive", flat, before=lambda x: x.sigmoid() * 0.9 + 0.05)
    for d, shape in ((1, series), (2, image), (3, cube)):
        c, line = shape[1], ("linear", "bilinear", "trilinear")[d - 1]

        def layer(name: str, d: int = d) -> Any:
            return getattr(nn, f"{name}{d}d")

        of_axes: Rows = {
            f"Conv{d}d": (layer("Conv")(c, 6, 3, padding=1), shape),
            f"Conv{d}d, strides, groups": (layer("Conv")(c, 2 * c, 2, 2, groups=c, bias=False), shape),
            f"Conv{d}d, same, dilated": (layer("Conv")(c, 3, 2, padding="same", dilation=2), shape),
            f"Conv{d}d, circular": (layer("Conv")(c, 3, 3, padding=1, padding_mode="circular"), shape),
            f"Conv{d}d, replicate": (layer("Conv")(c, 3, 3, padding=1, padding_mode="replicate"), shape),
            f"ConvTranspose{d}d": (layer("ConvTranspose")(c, 3, 3, 2, 1, output_padding=1), shape),
            f"MaxPool{d}d": (layer("MaxPool")(2), shape),
            f"MaxPool{d}d, padded, ceil": (layer("MaxPool")(3, 2, 1, ceil_mode=True), shape),
            f"AvgPool{d}d": (layer("AvgPool")(2), shape),
            f"AvgPool{d}d, padded, ceil": (layer("AvgPool")(3, 2, 1, True, count_include_pad=d != 2), shape),
            f"LPPool{d}d": (layer("LPPool")(2, 2), shape),
            f"AdaptiveAvgPool{d}d": (layer("AdaptiveAvgPool")(2), shape),
            f"AdaptiveAvgPool{d}d, uneven": (layer("AdaptiveAvgPool")(3), shape),
            f"AdaptiveMaxPool{d}d": (layer("AdaptiveMaxPool")(2), shape),
            f"BatchNorm{d}d": (layer("BatchNorm")(c), shape),
            f"InstanceNorm{d}d": (layer("InstanceNorm")(c, affine=True), shape),
            f"InstanceNorm{d}d, tracking": (layer("InstanceNorm")(c, track_running_stats=True), shape),
            f"Dropout{d}d": (layer("Dropout")(), shape),
            f"ConstantPad{d}d": (layer("ConstantPad")(1, 0.5), shape),
            f"ReflectionPad{d}d": (layer("ReflectionPad")(1), shape),
            f"ReplicationPad{d}d": (layer("ReplicationPad")(1), shape),
            f"ZeroPad{d}d": (layer("ZeroPad")(1), shape),
            f"CircularPad{d}d": (layer("CircularPad")(1), shape),
            f"Upsample {d}d, nearest": (nn.Upsample(scale_factor=2), shape),
            f"Upsample {d}d, linear": (nn.Upsample(scale_factor=2, mode=line), shape),
            f"Upsample {d}d, aligned": (nn.Upsample((7,) * d, mode=line, align_corners=True), shape),
        }
        found |= {name: row for name, row in of_axes.items() if d < 3 or "," not in name}
    for kind in ("RNN", "GRU", "LSTM"):
        found |= {
            kind: (getattr(nn, kind)(6, 5, batch_first=True), wide),
            f"{kind}, two layers, both ways": (getattr(nn, kind)(6, 5, 2, batch_first=True, bidirectional=True), wide),
            f"{kind}, time first": (getattr(nn, kind)(6, 5, bias=False), wide),
            f"{kind}Cell": (getattr(nn, f"{kind}Cell")(6, 5), flat),
        }
    reduced = {
        "BCELoss": "sigmoid", "BCEWithLogitsLoss": "sigmoid", "KLDivLoss": "softmax", "HuberLoss": "", "L1Loss": "",
        "MSELoss": "", "SmoothL1Loss": "", "SoftMarginLoss": "sign", "PoissonNLLLoss": "exp",
    }  # fmt: skip
    for name, made in reduced.items():
        loss = getattr(nn, name)(reduction="none")
        aimed = getattr(torch, made)(far[0], *([1] if made == "softmax" else [])) if made else far[0]
        found[name] = (lambda x, y, loss=loss: loss(x.sigmoid() if isinstance(loss, nn.BCELoss) else x, y), flat, aimed)
    found |= {
        "CrossEntropyLoss": (nn.CrossEntropyLoss(), flat, classes),
        "CrossEntropyLoss, smoothed": (nn.CrossEntropyLoss(label_smoothing=0.1), flat, classes),
        "CrossEntropyLoss, probabilities": (nn.CrossEntropyLoss(), flat, chosen.softmax(1)),
        "NLLLoss": (lambda x, y: f.nll_loss(x.log_softmax(1), y), flat, classes),
        "GaussianNLLLoss": (lambda x, y: f.gaussian_nll_loss(x, y, x.exp()), flat, far[0]),
        "MultiLabelSoftMarginLoss": (nn.MultiLabelSoftMarginLoss(), flat, mask.float()),
        "MultiMarginLoss": (nn.MultiMarginLoss(), flat, classes),
        "MarginRankingLoss": (lambda x, y: f.margin_ranking_loss(x, y, y.sign()), flat, far[0]),
        "HingeEmbeddingLoss": (nn.HingeEmbeddingLoss(), flat, far[0].sign()),
        "CosineEmbeddingLoss": (lambda x, y: f.cosine_embedding_loss(x, y, y[:, 0].sign()), flat, far[0]),
        "TripletMarginLoss": (nn.TripletMarginLoss(), flat, *far),
        "CosineSimilarity": (nn.CosineSimilarity(), flat, far[0]),
        "PairwiseDistance": (nn.PairwiseDistance(), flat, far[0]),
        "CTCLoss": (lambda x: f.ctc_loss(x.log_softmax(2), torch.ones(2, 2).long(), (4, 4), (2, 2)), (4, 2, 6)),
        "Linear": (nn.Linear(6, 3), flat), "Bilinear": (nn.Bilinear(6, 6, 3), flat, far[0]),
        "Embedding": (nn.Embedding(9, 4), ids), "Embedding, padding": (nn.Embedding(9, 4, padding_idx=0), ids),
        "EmbeddingBag": (nn.EmbeddingBag(9, 4, mode="sum"), ids), "EmbeddingBag, mean": (nn.EmbeddingBag(9, 4), ids),
        "EmbeddingBag, max": (nn.EmbeddingBag(9, 4, mode="max"), ids), "LayerNorm": (nn.LayerNorm(6), wide),
        "LayerNorm, two axes": (nn.LayerNorm((4, 6)), wide), "GroupNorm": (nn.GroupNorm(2, 4), image),
        "RMSNorm": (nn.RMSNorm(6), wide), "LocalResponseNorm": (nn.LocalResponseNorm(3), image),
        "CrossMapLRN2d": (nn.CrossMapLRN2d(3), image), "BatchNorm1d, flat": (nn.BatchNorm1d(6), flat),
        "BatchNorm1d, plain": (nn.BatchNorm1d(6, affine=False), flat),
        "BatchNorm1d, no statistics": (nn.BatchNorm1d(6, track_running_stats=False), flat),
        "weight_norm": (nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)), flat),
        "spectral_norm": (nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)).eval(), flat),
        "Softmax": (nn.Softmax(1), flat), "Softmin": (nn.Softmin(1), flat), "LogSoftmax": (nn.LogSoftmax(1), wide),
        "Softmax2d": (nn.Softmax2d(), image),
        "Threshold": (nn.Threshold(0.1, 2), flat), "PReLU of channels": (nn.PReLU(4), image),
        "GELU, tanh": (nn.GELU("tanh"), flat),
        "AdaptiveLogSoftmaxWithLoss": (nn.AdaptiveLogSoftmaxWithLoss(6, 9, [4]), flat, classes),
        "MultiheadAttention": (nn.MultiheadAttention(6, 2, batch_first=True), wide, wide, wide),
        "MultiheadAttention of itself": (_Itself(nn.MultiheadAttention(6, 2, 0.1, batch_first=True)), wide),
        "TransformerEncoderLayer": (nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True), wide),
        "TransformerEncoderLayer, dropping": (nn.TransformerEncoderLayer(6, 2, 8, 0.1, batch_first=True), wide),
        "TransformerDecoderLayer": (nn.TransformerDecoderLayer(6, 2, 8, 0.0, batch_first=True), wide, wide),
        "Transformer": (nn.Transformer(6, 2, 1, 1, 8, 0.0, batch_first=True), wide, wide),
        "PixelShuffle": (nn.PixelShuffle(2), image), "PixelUnshuffle": (nn.PixelUnshuffle(2), image),
        "ChannelShuffle": (nn.ChannelShuffle(2), image), "Flatten": (nn.Flatten(), image),
        "Unflatten": (nn.Unflatten(1, (2, 3)), flat), "Fold": (nn.Fold((4, 4), 2, stride=2), (2, 8, 4)),
        "Unfold": (nn.Unfold(3, padding=1), image),
        "Upsample, bicubic": (nn.Upsample(scale_factor=2, mode="bicubic"), image),
        "interpolate, area": (lambda x: f.interpolate(x, 3, mode="area"), image),
        "interpolate, nearest-exact": (lambda x: f.interpolate(x, 4, mode="nearest-exact"), image),
        "interpolate, antialias": (lambda x: f.interpolate(x, 4, mode="bilinear", antialias=True), image),
        "MaxUnpool2d": (lambda x: f.max_unpool2d(*f.max_pool2d(x, 2, return_indices=True), 2), image),
        "FractionalMaxPool2d": (nn.FractionalMaxPool2d(2, 3, _random_samples=torch.rand(2, 4, 2)), image),
        "grid_sample": (lambda x, g: f.grid_sample(x, g, align_corners=False), image, torch.rand(2, 3, 3, 2) - 0.5),
        "affine_grid": (lambda x: f.affine_grid(x, [2, 1, 3, 3], False), (2, 2, 3)),
        "scaled_dot_product_attention": (lambda x: f.scaled_dot_product_attention(x, x + 1, x * 2), image),
        "attention, causal": (lambda x: f.scaled_dot_product_attention(x, x, x, is_causal=True), image),
        "attention, mask": (lambda x, m: f.scaled_dot_product_attention(x, x, x, m), image, (6, 6)),
        "normalize": (f.normalize, flat), "one_hot": (lambda x: f.one_hot(x, 9).float(), ids),
        "pad, reflect": (lambda x: f.pad(x, (1, 2, 0, 1), "reflect"), image),
        "pad, cropping": (lambda x: f.pad(x, (-1, 2)), flat),
        "gumbel_softmax of logits": (lambda x: (x / 0.5).softmax(-1), flat),
        "hardtanh": (lambda x: f.hardtanh(x, -0.5, 0.7), flat),
        "einsum": (lambda x: torch.einsum("bij,bkj->bik", x, x), wide),
        "einsum, diagonal": (lambda x: torch.einsum("bii->bi", x), (2, 4, 4)), "matmul": (lambda x: x @ x.mT, wide),
        "bmm": (lambda x: torch.bmm(x, x.transpose(1, 2)), wide),
        "baddbmm": (lambda x: torch.baddbmm(x, x, x), (2, 4, 4)), "addmm": (lambda x: torch.addmm(x, x, x.T @ x), flat),
        "outer": (lambda x: torch.outer(x[0], x[1]), flat), "kron": (lambda x: torch.kron(x, x[:2, :2]), flat),
        "cross": (lambda x, y: torch.linalg.cross(x, y), (2, 3), (2, 3)),
        "tensordot": (lambda x: torch.tensordot(x, x, ([1, 2], [1, 2])), wide),
        "det": (lambda x: torch.linalg.det(x), (2, 3, 3)),
        "inv": (lambda x: torch.linalg.inv(x + 3 * torch.eye(3)), (2, 3, 3)),
        "vector_norm": (lambda x: torch.linalg.vector_norm(x, 3, -1), flat), "trace": (lambda x: x.trace(), (3, 3)),
        "index_put": (lambda x: x.index_put((at,), x[:3] * 2), (5, 6)),
        "index_put, accumulated": (lambda x: x.index_put((at[[0, 0, 1]],), x[:3] * 2, accumulate=True), (5, 6)),
        "index_add": (lambda x: x.index_add(1, at, x[:, :3]), flat),
        "index_copy": (lambda x: x.index_copy(1, at, x[:, :3]), flat),
        "index_select": (lambda x: x.index_select(1, at), flat), "index": (lambda x: x[:, at], flat),
        "index, two": (lambda x: x[at[:2], :, at[:2]], (5, 3, 6)),
        "index_fill": (lambda x: x.index_fill(1, at, 0.5), flat),
        "masked_fill": (lambda x, m: x.masked_fill(m, -2.0), flat, mask),
        "masked_select": (lambda x, m: x.masked_select(m), flat, mask),
        "masked_scatter": (lambda x, m: x.masked_scatter(m, x * 2), flat, mask),
        "scatter": (lambda x, i: x.scatter(1, i, x[:, :2] * 2), flat, torch.tensor([[0, 3], [5, 1], [2, 4]])),
        "scatter_add": (lambda x, i: x.scatter_add(1, i, x[:, :2]), flat, some),
        "gather": (lambda x, i: x.gather(1, i), flat, some),
        "take": (lambda x: x.take(torch.tensor([1, 7, 3])), flat),
        "take_along_dim": (lambda x, i: x.take_along_dim(i, 1), flat, some), "topk": (lambda x: x.topk(3, 1)[0], flat),
        "kthvalue": (lambda x: x.kthvalue(2, 1)[0], flat), "quantile": (lambda x: x.quantile(0.3, 1), flat),
        "where": (lambda x, y: torch.where(x > y, x * 2, y), flat, flat), "clamp": (lambda x: x.clamp(-0.5, 0.7), flat),
        "clamp by tensors": (lambda x, y: x.clamp(y - 0.5, y + 0.5), flat, flat),
        "lerp": (lambda x, y: torch.lerp(x, y, 0.3), flat, flat),
        "addcmul": (lambda x, y: torch.addcmul(x, x, y, value=0.5), flat, flat),
        "addcdiv": (lambda x, y: torch.addcdiv(x, x, y.exp()), flat, flat), "pow": (lambda x: x ** 3, flat),
        "pow of tensors": (lambda x, y: x.exp() ** y, flat, flat),
        "xlogy": (lambda x, y: torch.xlogy(x, y.exp()), flat, flat), "float_power": (lambda x: x.exp() ** 1.5, flat),
         "stack": (lambda x: torch.stack([x, x * 2], 1), flat),
        "cat": (lambda x: torch.cat([x, x.tanh()], 1), flat),
        "split": (lambda x: [y * k for k, y in enumerate(x.split(2, 1))], flat),
        "split, uneven": (lambda x: x.split([1, 5], 1), flat), "chunk": (lambda x: x.chunk(2, 1), flat),
        "tensor_split": (lambda x: x.tensor_split(4, 1), flat), "flip": (lambda x: x.flip(1), wide),
        "diff": (lambda x: x.diff(dim=1), flat), "aminmax": (lambda x: x.aminmax(dim=1), flat),
        "roll": (lambda x: x.roll(2, 1), wide), "rot90": (lambda x: x.rot90(1, [1, 2]), wide),
        "repeat": (lambda x: x.repeat(1, 2), flat), "tile": (lambda x: x.tile(1, 3), flat),
        "repeat_interleave": (lambda x: x.repeat_interleave(2, 1), flat),
        "expand": (lambda x: x[:, None].expand(-1, 4, -1), flat),
        "broadcast_to": (lambda x: x.broadcast_to(2, 3, 6), flat), "permute": (lambda x: x.permute(0, 2, 1), wide),
        "movedim": (lambda x: x.movedim(1, 3), image), "unfold of a tensor": (lambda x: x.unfold(1, 3, 2), flat),
        "squeeze": (lambda x: x[:, :1].squeeze(1), wide), "view": (lambda x: x.view(-1, 2, 3), flat),
        "unflatten": (lambda x: x.unflatten(1, (3, 2)), flat), "narrow": (lambda x: x.narrow(1, 2, 3), flat),
        "slices": (lambda x: x[:, 1:5:2], flat), "slices written": (_written, flat),
        "select_scatter": (lambda x: x.select_scatter(x[:, 0] * 2, 1, 3), flat),
        "slice_scatter": (lambda x: x.slice_scatter(x[:, :2], 1, 3, 5), flat),
        "diagonal": (lambda x: x.diagonal(0, 1, 2), (2, 4, 4)), "diag_embed": (lambda x: x.diag_embed(), flat),
        "tril": (lambda x: x.tril(), (2, 4, 4)), "triu": (lambda x: x.triu(1), (2, 4, 4)),
        "meshgrid": (lambda x: torch.meshgrid(x[0], x[1], indexing="ij"), flat),
        "cartesian_prod": (lambda x: torch.cartesian_prod(x[0], x[1]), flat),
        "trapezoid": (lambda x: torch.trapezoid(x, dim=1), flat),
        "std, biased, keepdim": (lambda x: x.std(1, correction=0, keepdim=True), wide),
        "norm, all": (lambda x: x.norm(), flat), "norm, 1": (lambda x: x.norm(1, 1), flat),
        "max of all": (lambda x: x.max(), flat), "cov": (lambda x: x.T.cov(), flat),
        "rfft": (lambda x: torch.fft.rfft(x).abs(), flat), "detach": (lambda x: x * x.detach(), flat),
        "half and back": (lambda x: x.double().exp().float(), flat),
        "argmax of it": (lambda x: x * x.argmax(1, keepdim=True), flat),
        "bucketize": (lambda x: x * torch.bucketize(x, torch.tensor([-0.5, 0.5])), flat),
        "searchsorted": (lambda x: x.cumsum(1) + torch.searchsorted(torch.arange(4.0), x), flat),
    }  # fmt: skip
    for way in ("sum", "prod", "mean", "amax", "amin"):
        reduce = lambda x, i, way=way: x.scatter_reduce(1, i, x[:, :2].exp(), way)  # noqa: E731
        found[f"scatter_reduce, {way}"] = (reduce, flat, some)
    return found


class _Itself(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Any:
        return self.layer(x, x, x, need_weights=False)


def _written(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 1:3] = x[:, 3:5] * 2
    return y


if __name__ == "__main__":
    main()
