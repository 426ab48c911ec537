"""ONNX frontend: turn a model of PyTorch's or another exporter into a `Graph`.

The steps, each in its own module: read and check the file, fix the batch, convert the opset, select the
trained parameters, infer shapes and fold constants, assemble.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from poetopt.frontends.assemble import assemble, list_statistics
from poetopt.frontends.convert import (
    convert,
    fill_constants,
    leave_out_empty,
    lift_constants,
    resolve_identities,
    separate_statistics,
    spell_out_pads,
)
from poetopt.frontends.draft import Draft, FoldingBudget, Rebatch, Type
from poetopt.frontends.dropouts import draw_by_dropout
from poetopt.frontends.fused import spell_out_fused
from poetopt.frontends.inlining import counting, inline_branches, inline_functions
from poetopt.frontends.origins import merged_layers, named_note, origins
from poetopt.frontends.proto import dtype_name
from poetopt.frontends.quantized import settle, spell_out_quantized
from poetopt.frontends.read import Document, array_of, read_model
from poetopt.frontends.reading import ReadOptions, read_options, size_options
from poetopt.frontends.sequences import list_sequences, split_sequences
from poetopt.frontends.sizes import FixedInputs, fix_inputs, follows_batch, rebatched
from poetopt.frontends.specialise import specialise
from poetopt.frontends.structure import needed, tidy
from poetopt.frontends.summary import structure_hash
from poetopt.frontends.ties import take_apart, tie_copies
from poetopt.frontends.trained import choose_trained, finite_note
from poetopt.frontends.values import fix_values
from poetopt.graph import Graph
from poetopt.util.errors import ModelError, OpenError
from poetopt.util.notes import Note
from poetopt.util.text import without_remedy

if TYPE_CHECKING:
    import onnx

    from poetopt.graph import Array


EXPORTERS_NAMES = frozenset({
    "", "main_graph", "main", "graph", "torch_jit", "torch-jit-export", "tf2onnx", "onnx_graph", "model", "onnxmltools",
})  # fmt: skip
"""Names that exporters give every graph, in lower case."""


_INCONSISTENT = (
    ". The model is inconsistent",
    ". The file is damaged or was exported wrongly",
    ". The file is damaged or was exported with a wrong size",
    ". Give a larger input, or export the model with one",
)
"""Beginnings of remedies for inconsistent shapes, replaced if the user gave sizes."""


def load_onnx(
    source: str | os.PathLike[str] | onnx.ModelProto,
    options: ReadOptions | None = None,
    *,
    batch: int | None = None,
    train: str | Sequence[str] | None = None,
    reference: str | None = None,
    content: bytes | None = None,
) -> Graph:
    """Read an ONNX model as a forward graph with static shapes.

    Outputs that can't be imported are dropped if there are others (`Graph.unread`).

    Parameters
    ----------
    source
        Path of an `.onnx` file (with external data beside it), or a model in memory, which is not changed.
    options
        How to read it; without them, `batch` and `train` count.
    batch
        Size of the batch dimension, needed if the file leaves it symbolic. A fixed batch is replaced if nothing else
        in the model depends on it.
    train
        Glob patterns (comma separated, or a sequence) of the parameters to train. Default: see `trained`.
    reference
        Value of `Graph.source`; default: the path.
    content
        Content of the file, if it has been read.

    Raises
    ------
    ModelError
        For an invalid model.
    UnsupportedOpError
        For operators that can't be imported. The message has file, node, operator, opset and remedy.
    """
    options = options or read_options(batch=batch, train=train)
    return graph_of(read_model(source, content, allow_symlinks=options.allow_symlinks), options, reference)


def graph_of(document: Document, options: ReadOptions, reference: str | None = None) -> Graph:
    """Return the graph of a document, as `load_onnx` does; `document` is changed."""
    if reference is not None:
        document.where = reference
    options, notes = fix_values(document, options)
    inline_functions(document)
    list_sequences(document)  # conditions of If depend on sequences
    inline_branches(document, options)
    list_sequences(document)  # sequences of the branches
    split_sequences(document, options)
    notes += spell_out_fused(document)
    notes += spell_out_quantized(document)
    unshare_notes, idle = take_apart(document)
    notes += unshare_notes
    merged = merged_layers(document)
    unread = tidy(document)
    constants = lift_constants(document)
    content_hash = _content_hash(document)
    fixed = fix_inputs(document, options)
    notes += fixed.notes
    declared = _declared_types(document, fixed)
    opset = document.opset
    old_weights = set(document.weights)
    converted = convert(document, elements=counting(document, options))
    if converted:
        notes.append(converted)
    if document.opset != opset:
        constants |= lift_constants(document) | (document.weights.keys() - old_weights)
    leave_out_empty(document)
    spell_out_pads(document)
    list_statistics(document)
    aliases = resolve_identities(document)
    constants |= fill_constants(document)
    notes += separate_statistics(document, aliases)
    origin = origins(document, merged)
    aliases |= {name: weight for name, weight in origin.names.items() if name not in aliases}
    ties = tie_copies(document, origin.copies, bool(origin.parameters))
    aliases = {name: ties.names.get(root, root) for name, root in aliases.items()} | ties.names
    constants &= document.weights.keys()  # without the tied copies
    chosen = choose_trained(document, constants, aliases, options.train, origin, idle)
    notes += (*chosen.notes, *origin.notes(chosen.names, ties.names), *ties.notes)
    try:
        draft, trained = _specialise(document, fixed, chosen.names, declared)
    except ModelError as error:
        raise _blame_sizes(error, options, fixed) from error
    unread |= draft.unread
    notes += _notes_of_unread(document.where, unread)
    stored_values = {name: array for name, array in trained.items() if name not in document.fills}
    if not origin.parameters:
        notes += named_note(document)
    notes += finite_note(stored_values)
    if fixed.changed:
        notes.append(f"replaced the file's batch {fixed.changed[0]} by {fixed.changed[1]}")
    settle(draft, {info.name for info in document.proto.graph.output})
    mask_count = draw_by_dropout(draft, [info.name for info in document.proto.graph.output])
    notes += _notes_of_folding(draft)
    if mask_count:
        notes.append(f"random masks that the file computes from primitives, and that Dropout replaces: {mask_count}")
    graph = assemble(
        draft,
        _network_name(document.proto.graph.name, reference or ("" if document.folder is None else document.where)),
        list(fixed.types),
        [info.name for info in document.proto.graph.output if info.name not in unread],
        trained,
        source=reference if reference is not None else ("" if document.folder is None else document.where),
        content_hash=content_hash,
        notes=notes,
        unread=unread,
    )
    return replace(graph, named=options.train is not None, structure_hash=structure_hash(graph))


def check_readable(document: Document) -> None:
    """Raise the errors of `load_onnx` for a document, except for sizes and choices that it leaves open."""
    with suppress(OpenError):
        graph_of(document.copied(), read_options())


def _network_name(name: str, where: str) -> str:
    """Return the network's name, or its file's if the exporter gives every graph that name."""
    return name if name.lower() not in EXPORTERS_NAMES else PurePath(where).stem or name or "graph"


def _blame_sizes(error: ModelError, options: ReadOptions, fixed: FixedInputs) -> ModelError:
    """Return the error for inconsistent shapes: if the user gave sizes, the remedy is to change them."""
    used = size_options(options)
    text, remedy, _ = str(error).partition(
        next((beginning for beginning in _INCONSISTENT if beginning in str(error)), "\n")
    )
    if not used or not remedy:
        return error
    shapes = ", ".join(f"{name} {list(shape)}" for name, (_, shape) in rebatched(fixed).items())
    return ModelError(f"{text}. The network doesn't accept these sizes ({shapes}). Give others with {used}")


def _notes_of_unread(where: str, unread: Mapping[str, str]) -> list[str]:
    """Return the notes on outputs that can't be imported; `unread` has the full reasons."""
    problems = {name: without_remedy(reason.removeprefix(f"{where}: ")) for name, reason in unread.items()}
    return [
        Note(f"dropped output {name!r}, which can't be imported: {reason}", short=f"dropped output {name!r}")
        for name, reason in problems.items()
    ]


def _notes_of_folding(draft: Draft) -> list[str]:
    """Return the notes on nodes that were folded or removed."""
    notes = [f"folded {draft.folded} constant nodes"] if draft.folded else []
    written = [name for node in draft.nodes for name in node.output]
    left = [name for name in written if name in draft.unfolded]
    if left:
        notes.append(
            f"{len(left)} constant tensors cost too much to compute ahead, so each step computes them "
            f"({left[0]}: {draft.unfolded[left[0]]})"
        )
    if draft.removed_dropouts:
        notes.append(f"{draft.removed_dropouts} Dropout nodes in evaluation mode pass their input on")
    if draft.repeated:
        batches = ", ".join(f"{name} for {batch}" for name, batch in list(draft.repeated.items())[:3])
        more = ", ..." if len(draft.repeated) > 3 else ""
        notes.append(f"repeated initial states of recurrent layers that were for another batch: {batches}{more}")
    return notes


def _declared_types(document: Document, fixed: FixedInputs) -> dict[str, Type]:
    """Return the types that the file declares for other tensors than inputs, if static with the sizes known."""
    types: dict[str, Type] = {}
    if fixed.restated:
        return types
    for info in (*document.proto.graph.value_info, *document.proto.graph.output):
        tensor = info.type.tensor_type
        if not info.type.HasField("tensor_type") or not tensor.HasField("shape"):
            continue
        dims = [fixed.sizes.get(dim.dim_param, 0) if dim.dim_param else dim.dim_value for dim in tensor.shape.dim]
        if tensor.elem_type and all(dim > 0 for dim in dims):
            types[info.name] = (int(tensor.elem_type), tuple(int(dim) for dim in dims))
    return types


def _specialise(
    document: Document, fixed: FixedInputs, trained_names: Sequence[str], declared: Mapping[str, Type]
) -> tuple[Draft, dict[str, Array]]:
    nodes = list(document.proto.graph.node)
    read = {name for node in nodes for name in node.input} | {info.name for info in document.proto.graph.output}
    trained = {name: array_of(document, name) for name in trained_names}
    constants = {name: array_of(document, name) for name in document.weights if name in read and name not in trained}
    arrays = {**trained, **constants}
    stored = sum(array.nbytes for name, array in arrays.items() if name not in document.fills)
    weights: dict[str, Type] = {
        name: (int(document.weights[name].data_type), array.shape) for name, array in arrays.items()
    }
    where, opset = document.where, document.opset
    types, outputs = {**fixed.types, **weights}, [info.name for info in document.proto.graph.output]
    draft = specialise(
        where, opset, nodes, types, constants, declared, outputs=outputs, budget=FoldingBudget(stored), kept=outputs
    )
    if draft.unread:
        unread = draft.unread
        nodes = needed(nodes, [name for name in outputs if name not in unread])
        draft = specialise(where, opset, nodes, types, constants, declared, budget=FoldingBudget(stored), kept=outputs)
        draft.unread.update(unread)
    if fixed.changed is None:
        return draft, trained
    old, new = fixed.changed
    advice = f"the file has a fixed batch {old}, so it can't run with --batch {new}. Export it with a symbolic batch"
    inputs = {**rebatched(fixed), **weights}
    try:
        rebatch = Rebatch(draft.types, old, new)
        changed = specialise(
            where, opset, nodes, inputs, constants, {}, rebatch, budget=FoldingBudget(stored), kept=outputs
        )
    except ModelError as error:
        raise ModelError(f"{where}: {advice} ({error})") from error
    for name, (_, shape) in draft.types.items():
        after = changed.types.get(name)
        is_constant = name in draft.constants or name in draft.gone
        if after is None or not (is_constant or follows_batch(shape, after[1], old, new)):
            new_shape = "nothing" if after is None else list(after[1])
            raise ModelError(f"{where}: {advice} (tensor {name!r} would change from {list(shape)} to {new_shape})")
    return replace(changed, unread=draft.unread), trained


def _content_hash(document: Document) -> str:
    """SHA-256 of the model's nodes and weights, wherever they are stored."""
    digest = hashlib.sha256()
    graph = document.proto.graph

    def update(raw: bytes | memoryview[int]) -> None:
        digest.update(memoryview(raw).nbytes.to_bytes(8, "little"))
        digest.update(raw)

    update(str(document.opset).encode())
    for part in (graph.input, graph.node):
        for message in part:
            update(message.SerializeToString(deterministic=True))
    for info in graph.output:
        update(info.name.encode())
    read = {name for node in graph.node for name in node.input} | {info.name for info in graph.output}
    for name in sorted(read & document.weights.keys()):
        array = array_of(document, name)
        update(f"{name}:{dtype_name(document.weights[name].data_type)}:{array.shape}".encode())
        update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
