"""LoRA adapters: `lora` adds them to a network, `merge_lora` merges the trained adapters into its weights.

An adapter adds x A B alpha / rank to a product x W, with A [inputs, rank] and B [rank, outputs]. B starts at zero, so
that the network's outputs don't change at first. Source: Hu et al., LoRA, arXiv 2106.09685.
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
    """Return a network with LoRA adapters on some of its products; only they are trained, all else is frozen.

    Parameters
    ----------
    model
        A file, or a model in memory, which isn't changed; the result of `quantize` works too.
    rank
        Columns of A.
    targets
        Glob patterns of names, comma separated or in a sequence: of weights (with `.weight` or without), or of nodes.
    alpha
        Scale of the adapter, times its rank; default: the rank, for a scale of 1.
    seed
        Seed of A, which is normal with a variance of 1 / inputs.
    out
        Path of a file to write as well.

    Raises
    ------
    OptionError
        For an invalid rank or alpha, and for patterns that match nothing (the message has the closest names).
    ModelError
        For a model that isn't an ONNX network, or that has adapters.
    OutputError
        If the file can't be written.
    """
    scale = 1.0 if alpha is None else alpha / max(rank, 1)
    try:
        is_valid = rank >= 1 and read_float32(scale) != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        alpha_text = "" if alpha is None else f", alpha {alpha}"
        raise OptionError(f"rank {rank}{alpha_text}: give a rank of 1 or more, and an alpha in float32's range, not 0")
    document = read_network(model)
    if any(map(LORA.search, document.weights)):
        raise ModelError(f"{document.where}: it has LoRA adapters already. Merge them, or give all targets at once")
    chosen = {product.node.output[0]: product for product in _select_targets(document, targets)}
    generator, used_names, trained = np.random.default_rng(seed), document.names, list[str]()
    used_names |= {node.name for node in document.proto.graph.node}
    factors: dict[np.dtype[Any], str] = {}
    nodes: list[NodeProto] = []
    for node in document.proto.graph.node:
        nodes.append(copied(node))
        product = chosen.get(next(iter(node.output), ""))
        if product is None:
            continue
        stem, (inner, outer) = product.names[0], product.sizes
        a = unique(f"{stem}.lora_A.weight", used_names)
        b = unique(f"{stem}.lora_B.weight", used_names)
        # the scales of a quantized weight have the type of the dequantized weight
        dtype = array_of(document, node.input[2] if node.op_type == "MatMulNBits" else product.weight).dtype
        if rank * (inner + outer) * dtype.itemsize > PROTOBUF_LIMIT_BYTES:
            raise OptionError(f"rank {rank}: adapters over the limit of an ONNX file, 2 GB. Give a smaller rank")
        normal = generator.standard_normal((inner, rank), np.float32) / np.float32(math.sqrt(inner))
        put(document, a, normal.astype(dtype))
        put(document, b, np.zeros((rank, outer), dtype))
        trained += [a, b]
        if scale != 1 and dtype not in factors:
            factors[dtype] = put(document, unique("lora.scale", used_names), np.array(scale, dtype))
            used_names.add(factors[dtype])
        factor = factors.get(dtype, "")
        parts = ("base", "lora_A", "lora_B", "lora", "adapted")
        base, low, high, scaled, adapted = (unique(f"{stem}.{part}", used_names) for part in parts)
        used_names.update((a, b, base, low, high, scaled, adapted))
        nodes[-1].output[0] = base
        nodes += [
            helper.make_node("MatMul", [node.input[0], a], [low], name=low),
            helper.make_node("MatMul", [low, b], [high], name=high),
        ]
        if factor:
            nodes.append(helper.make_node("Mul", [high, factor], [scaled], name=scaled))
        nodes.append(helper.make_node("Add", [base, scaled if factor else high], node.output, name=adapted))
    result = whole(document, nodes)
    helper.set_model_props(result, {**{p.key: p.value for p in result.metadata_props}, PARAMETERS: "\n".join(trained)})
    return written(document, result, out)


def _select_targets(document: Document, targets: str | Sequence[str]) -> list[Product]:
    """Return the products that the patterns match, without those of existing adapters."""
    texts = [targets] if isinstance(targets, str) else list(targets)
    patterns = [pattern.strip() for text in texts for pattern in text.split(",") if pattern.strip()]
    plain = [one for one in products(document) if not LORA.search(one.weight)]
    selected: list[Product] = []
    for pattern in patterns:
        matches = [one for one in plain if any(fnmatch.fnmatchcase(name, pattern) for name in one.names)]
        if not matches:
            names = [name for one in plain for name in one.names]
            hint = (
                closest(pattern.strip("*"), names) or f". Its products are {listed([one.names[0] for one in plain], 4)}"
            )
            raise OptionError(f"{document.where}: targets {pattern!r} match no product with a stored matrix{hint}")
        selected += [one for one in matches if one not in selected]
    if not selected:
        raise OptionError("targets: no pattern. Give one such as '*q_proj,*v_proj'")
    return selected


def merge_lora(model: Source, *, out: str | os.PathLike[str] | None = None) -> onnx.ModelProto:
    """Return a network with its LoRA adapters merged into its weights.

    Parameters
    ----------
    model, out
        As for `lora`. Adapters of other exporters are found by their names.

    Raises
    ------
    ModelError
        If there are no adapters, or the weight of one is quantized: it can't hold the sum exactly.
    """
    document = read_network(model)
    graph = document.proto.graph
    by_output = {node.output[0]: node for node in graph.node}
    stored = {product.node.output[0]: product for product in products(document)}
    merged: dict[str, str] = {}
    for node in graph.node:
        if node.op_type != "Add" or len(node.input) != 2:
            continue
        for own, other in (node.input, tuple(node.input)[::-1]):
            pair, base = _adapter_matrix(document, other, by_output, stored), _base_product(own, by_output, stored)
            if pair is None or base is None:
                continue
            if base.node.op_type == "MatMulNBits":
                raise ModelError(
                    f"{document.where}: the weight {base.weight!r} is quantized, and can't hold its adapter exactly. "
                    "Keep the adapter, or merge it into the network from before quantization"
                )
            value: Any = array_of(document, base.weight)
            if pair.shape != base.sizes:
                raise ModelError(
                    f"{document.where}: the adapter of the weight {base.weight!r} has {list(pair.shape)} inputs and "
                    f"outputs, and the weight {list(base.sizes)}. Export the model again"
                )
            with np.errstate(all="ignore"):
                pair = pair / next((a.f for a in base.node.attribute if a.name == "alpha" and a.f), 1.0)
                total = (value + (pair.T if base.turned else pair)).astype(value.dtype)
            total = total.T if base.turned != bool(attribute_int(base.node, "transB", 0)) else total
            base.node.input[1] = put(document, unique(f"{base.weight}.merged", document.names), total)
            merged[node.output[0]] = own
            break
    if not merged:
        raise ModelError(f"{document.where}: no product with a stored matrix has a LoRA adapter")
    nodes = [copied(node) for node in graph.node if node.output[0] not in merged]
    for node in nodes:
        for k, name in enumerate(node.input):
            node.input[k] = merged.get(name, name)
    kept = needed(nodes, {merged.get(info.name, info.name) for info in graph.output})
    for info in graph.output:
        if info.name in merged:
            kept.append(helper.make_node("Identity", [merged[info.name]], [info.name]))
    result = whole(document, kept)
    properties = [entry for entry in result.metadata_props if entry.key != PARAMETERS]
    del result.metadata_props[:]
    result.metadata_props.extend(properties)
    return written(document, result, out)


def _adapter_matrix(document: Document, name: str, by_output: dict[str, NodeProto], stored: dict[str, Product]) -> Any:
    """Return A B alpha / rank, [inputs, outputs], if `name` is x times that; else None."""
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


def _base_product(name: str, by_output: dict[str, NodeProto], stored: dict[str, Product]) -> Product | None:
    """Return the product that writes `name`, directly or with a bias added; None if there is none."""
    node = by_output.get(name)
    if node is not None and node.op_type == "Add":
        return next((stored[n] for n in node.input if n in stored), None)
    return stored.get(name)
