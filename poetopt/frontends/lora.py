"""LoRA's pairs of thin matrices: `lora` adds them to a network, `merge_lora` puts what they have learned into it.

Beside a product x W there is x A B alpha / rank, with A [inputs, rank] and B [rank, outputs]. B is zero at first, so
that nothing changes yet. Source: Hu et al., LoRA, arXiv 2106.09685.
"""

from __future__ import annotations

import fnmatch
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, helper

from poetopt.frontends import read_network
from poetopt.frontends.places import FLOATS
from poetopt.frontends.proto import PARAMETERS, PROTOBUF_LIMIT_BYTES, attribute_int, copied, unique
from poetopt.frontends.read import Document, array_of
from poetopt.frontends.rewriting import Product, Source, products, put, whole, written
from poetopt.frontends.structure import needed
from poetopt.frontends.trained import LORA
from poetopt.util.errors import ModelError, OptionError
from poetopt.util.notes import listed
from poetopt.util.numbers import read_float32
from poetopt.util.text import closest


def lora(
    model: Source,
    rank: int = 8,
    targets: str | Sequence[str] = "*q_proj,*v_proj",
    *,
    alpha: float | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
) -> onnx.ModelProto:
    """A network with LoRA's pairs beside some of its products; they alone are trained, and all else is frozen.

    model
        A file, or a model in memory, which isn't changed. What `quantize` made of one is as good.
    rank
        Columns of A.
    targets
        Patterns of names, with commas between or in a sequence: of weights (with `.weight` or without), or of nodes.
    alpha
        What the pair counts, times its rank; by default the rank, so that it counts once.
    seed
        Of A, which is normal with a variance of one over its inputs.
    out
        Where the file is written, too.

    Raises OptionError for a rank, an alpha or patterns that say nothing, with the names that are near, ModelError for
    what is no network, OutputError where it can't be written.
    """
    scale = 1.0 if alpha is None else alpha / max(rank, 1)
    try:
        fits = rank >= 1 and read_float32(scale) != 0
    except ValueError:
        fits = False
    if not fits:
        said = "" if alpha is None else f", alpha {alpha}"
        raise OptionError(f"rank {rank}{said}: give a rank of 1 or more, and an alpha that isn't 0, in float32's range")
    document = read_network(model)
    if any(map(LORA.search, document.weights)):
        raise ModelError(f"{document.where}: it has LoRA's pairs already; merge them, or give all targets at once")
    chosen = {one.node.output[0]: one for one in _targets(document, targets)}
    draw, taken, trained = np.random.default_rng(seed), document.names, list[str]()
    taken |= {node.name for node in document.proto.graph.node}
    factors: dict[np.dtype[Any], str] = {}
    nodes: list[NodeProto] = []
    for node in document.proto.graph.node:
        nodes.append(copied(node))
        one = chosen.get(next(iter(node.output), ""))
        if one is None:
            continue
        stem, (inner, outer) = one.names[0], one.sizes
        a = unique(f"{stem}.lora_A.weight", taken)
        b = unique(f"{stem}.lora_B.weight", taken)
        # the scales of a quantized weight have the type that it would have
        kind = array_of(document, node.input[2] if node.op_type == "MatMulNBits" else one.weight).dtype
        if rank * (inner + outer) * kind.itemsize > PROTOBUF_LIMIT_BYTES:
            raise OptionError(f"rank {rank}: pairs of more than the 2 GB that a file holds; give a smaller one")
        normal = draw.standard_normal((inner, rank), np.float32) / np.float32(math.sqrt(inner))
        put(document, a, normal.astype(kind))
        put(document, b, np.zeros((rank, outer), kind))
        trained += [a, b]
        if scale != 1 and kind not in factors:
            factors[kind] = put(document, unique("lora.scale", taken), np.array(scale, kind))
            taken.add(factors[kind])
        factor = factors.get(kind, "")
        parts = ("base", "lora_A", "lora_B", "lora", "adapted")
        base, low, high, scaled, adapted = (unique(f"{stem}.{part}", taken) for part in parts)
        taken.update((a, b, base, low, high, scaled, adapted))
        nodes[-1].output[0] = base
        nodes += [
            helper.make_node("MatMul", [node.input[0], a], [low], name=low),
            helper.make_node("MatMul", [low, b], [high], name=high),
        ]
        if factor:
            nodes.append(helper.make_node("Mul", [high, factor], [scaled], name=scaled))
        nodes.append(helper.make_node("Add", [base, scaled if factor else high], node.output, name=adapted))
    made = whole(document, nodes)
    helper.set_model_props(made, {**{p.key: p.value for p in made.metadata_props}, PARAMETERS: "\n".join(trained)})
    return written(document, made, out)


def _targets(document: Document, targets: str | Sequence[str]) -> list[Product]:
    """The products that patterns name; the products of pairs that are there already are none."""
    texts = [targets] if isinstance(targets, str) else list(targets)
    patterns = [pattern.strip() for text in texts for pattern in text.split(",") if pattern.strip()]
    there = [one for one in products(document) if not LORA.search(one.weight)]
    found: list[Product] = []
    for pattern in patterns:
        own = [one for one in there if any(fnmatch.fnmatchcase(name, pattern) for name in one.names)]
        if not own:
            names = [name for one in there for name in one.names]
            near = closest(pattern.strip("*"), names) or f"; there are {listed([one.names[0] for one in there], 4)}"
            raise OptionError(f"{document.where}: targets {pattern!r} match no product with a stored matrix{near}")
        found += [one for one in own if one not in found]
    if not found:
        raise OptionError("targets: no pattern; give one such as '*q_proj,*v_proj'")
    return found


def merge_lora(model: Source, *, out: str | os.PathLike[str] | None = None) -> onnx.ModelProto:
    """A network with what LoRA's pairs have learned in its own weights, and without the pairs.

    model, out
        As for `lora`; the pairs may be of another exporter's, by their names.

    Raises ModelError where there are no pairs, and where a weight beside one is quantized: it has no room for them.
    """
    document = read_network(model)
    graph = document.proto.graph
    by_output = {node.output[0]: node for node in graph.node}
    stored = {one.node.output[0]: one for one in products(document)}
    gone: dict[str, str] = {}
    for node in graph.node:
        if node.op_type != "Add" or len(node.input) != 2:
            continue
        for own, other in (node.input, tuple(node.input)[::-1]):
            pair, base = _pair(document, other, by_output, stored), _base(own, by_output, stored)
            if pair is None or base is None:
                continue
            if base.node.op_type == "MatMulNBits":
                raise ModelError(
                    f"{document.where}: the weight {base.weight!r} is quantized, and can't take up its pair exactly; "
                    "keep the pair, or merge into the network from before it was quantized"
                )
            value: Any = array_of(document, base.weight)
            if pair.shape != base.sizes:
                raise ModelError(
                    f"{document.where}: the pair beside the weight {base.weight!r} has {list(pair.shape)} inputs and "
                    f"outputs, and the weight {list(base.sizes)}; export the model again"
                )
            with np.errstate(all="ignore"):
                pair = pair / next((a.f for a in base.node.attribute if a.name == "alpha" and a.f), 1.0)
                total = (value + (pair.T if base.turned else pair)).astype(value.dtype)
            total = total.T if base.turned != bool(attribute_int(base.node, "transB", 0)) else total
            base.node.input[1] = put(document, unique(f"{base.weight}.merged", document.names), total)
            gone[node.output[0]] = own
            break
    if not gone:
        raise ModelError(f"{document.where}: no pair of LoRA's stands beside a product with a stored matrix")
    nodes = [copied(node) for node in graph.node if node.output[0] not in gone]
    for node in nodes:
        for k, name in enumerate(node.input):
            node.input[k] = gone.get(name, name)
    kept = needed(nodes, {gone.get(info.name, info.name) for info in graph.output})
    for info in graph.output:
        if info.name in gone:
            kept.append(helper.make_node("Identity", [gone[info.name]], [info.name]))
    made = whole(document, kept)
    said = [entry for entry in made.metadata_props if entry.key != PARAMETERS]
    del made.metadata_props[:]
    made.metadata_props.extend(said)
    return written(document, made, out)


def _pair(document: Document, name: str, by_output: dict[str, NodeProto], stored: dict[str, Product]) -> Any:
    """A B alpha / rank, [inputs, outputs], where `name` is x times that; None where it isn't."""
    node, scale = by_output.get(name), 1.0
    if node is not None and node.op_type == "Mul":
        one = (n for n in node.input if n in document.weights and math.prod(document.weights[n].dims) == 1)
        factor = next((n for n in one if document.weights[n].data_type in FLOATS), "")
        scale = float(array_of(document, factor).item()) if factor else math.nan
        node = by_output.get(next((n for n in node.input if n != factor), ""))
    last = stored.get(node.output[0]) if node is not None else None
    first = stored.get(last.node.input[0]) if last is not None else None
    if last is None or first is None or not (LORA.search(first.weight) and LORA.search(last.weight)):
        return None
    a, b = (array_of(document, one.weight).astype(np.float64) for one in (first, last))
    a, b = (value.T if one.turned else value for value, one in ((a, first), (b, last)))
    if a.shape[1] != b.shape[0] or not math.isfinite(scale):
        return None
    with np.errstate(all="ignore"):
        return a @ b * scale


def _base(name: str, by_output: dict[str, NodeProto], stored: dict[str, Product]) -> Product | None:
    """The product that `name` is, perhaps with a bias behind it."""
    node = by_output.get(name)
    if node is not None and node.op_type == "Add":
        return next((stored[n] for n in node.input if n in stored), None)
    return stored.get(name)
