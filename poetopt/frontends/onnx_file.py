"""The ONNX frontend: a model of PyTorch's or another exporter becomes a `Graph`.

The steps, each in its own module: read and check the file, fix the batch, convert the opset, decide
what is trained, infer shapes and fold constants, assemble.
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

if TYPE_CHECKING:
    import onnx

    from poetopt.graph import Array


EXPORTERS_NAMES = frozenset({
    "", "main_graph", "main", "graph", "torch_jit", "torch-jit-export", "tf2onnx", "onnx_graph", "model", "onnxmltools",
})  # fmt: skip
"""What exporters call every graph, in lower case."""


_UNFIT = (
    "; the model is inconsistent",
    "; the file is damaged or was exported wrongly",
    "; the file is damaged or was exported with a wrong size",
    "; give a larger input, or export the model with one",
)
"""What messages advise of shapes where nobody gave any."""


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

    source
        Path of an `.onnx` file (external data is looked for beside it), or a model in memory, which is not changed.
    options
        How to read it; `batch` and `train` are short for options with these alone.
    batch
        Size of the batch dimension, needed where the file leaves it symbolic. Where the file has a fixed
        batch, it is replaced if nothing else in the model depends on it.
    train
        Glob patterns (comma separated, or a sequence) of the parameters to train. Default: see `trained`.
    reference
        What `Graph.source` says; default: the path.
    content
        What is at the path, where that has been read.

    Outputs that can't be imported are left out while there are others (`Graph.unread`). Raises `ModelError` for
    anything that is not a valid model, and `UnsupportedOpError` for operators that can't be imported; the message names
    file, node, operator, opset and the remedy.
    """
    options = options or read_options(batch=batch, train=train)
    return graph_of(read_model(source, content, allow_symlinks=options.allow_symlinks), options, reference)


def graph_of(document: Document, options: ReadOptions, reference: str | None = None) -> Graph:
    """As `load_onnx` does, of what was read, which is changed."""
    if reference is not None:
        document.where = reference
    options, notes = fix_values(document, options)
    inline_functions(document)
    list_sequences(document)  # conditions depend on them
    inline_branches(document, options)
    list_sequences(document)  # of the branches
    split_sequences(document, options)
    notes += spell_out_fused(document)
    notes += spell_out_quantized(document)
    apart, idle = take_apart(document)
    notes += apart
    normalized = merged_layers(document)
    unread = tidy(document)
    constants = lift_constants(document)
    content_hash = _content_hash(document)
    fixed = fix_inputs(document, options)
    notes += fixed.notes
    declared = _declared(document, fixed)
    opset = document.opset
    before = set(document.weights)
    converted = convert(document, elements=counting(document, options))
    if converted:
        notes.append(converted)
    if document.opset != opset:
        constants |= lift_constants(document) | (document.weights.keys() - before)
    leave_out_empty(document)
    spell_out_pads(document)
    list_statistics(document)
    aliases = resolve_identities(document)
    constants |= fill_constants(document)
    notes += separate_statistics(document, aliases)
    origin = origins(document, normalized)
    aliases |= {name: weight for name, weight in origin.names.items() if name not in aliases}
    ties = tie_copies(document, origin.copies, bool(origin.parameters))
    aliases = {name: ties.names.get(root, root) for name, root in aliases.items()} | ties.names
    constants &= document.weights.keys()  # copies are gone
    chosen = choose_trained(document, constants, aliases, options.train, origin, idle)
    notes += (*chosen.notes, *origin.notes(chosen.names, ties.names), *ties.notes)
    try:
        draft, trained = _specialised(document, fixed, chosen.names, declared)
    except ModelError as error:
        raise _misfit(error, options, fixed) from error
    unread |= draft.unread
    notes += _left_out(document.where, unread)
    stored_values = {name: array for name, array in trained.items() if name not in document.fills}
    if not origin.parameters:
        notes += named_note(document)
    notes += finite_note(stored_values)
    if fixed.changed:
        notes.append(f"batch {fixed.changed[0]} of the file replaced by {fixed.changed[1]}")
    settle(draft, {info.name for info in document.proto.graph.output})
    drawn = draw_by_dropout(draft, [info.name for info in document.proto.graph.output])
    notes += _simplified(draft)
    if drawn:
        notes.append(f"masks that the file draws by hand, and that are taken for Dropout's: {drawn}")
    graph = assemble(
        draft,
        _name(document.proto.graph.name, reference or ("" if document.folder is None else document.where)),
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
    """Raise what `load_onnx` does of a document, but for sizes and choices that it leaves open."""
    with suppress(OpenError):
        graph_of(document.copied(), read_options())


def _name(own: str, where: str) -> str:
    """The network's name: its own, or its file's where that is what an exporter calls each."""
    return own if own.lower() not in EXPORTERS_NAMES else PurePath(where).stem or own or "graph"


def _misfit(error: ModelError, options: ReadOptions, fixed: FixedInputs) -> ModelError:
    """Says what holds where shapes don't fit each other: sizes that the user gave are the first to doubt."""
    given = size_options(options)
    text, unfit, _ = str(error).partition(next((told for told in _UNFIT if told in str(error)), "\n"))
    if not given or not unfit:
        return error
    shapes = ", ".join(f"{name} {list(shape)}" for name, (_, shape) in rebatched(fixed).items())
    return ModelError(f"{text}; the network doesn't fit these sizes ({shapes}): give others with {given}")


def _left_out(where: str, unread: Mapping[str, str]) -> list[str]:
    """Notes on outputs that can't be imported: name -> the whole reason."""
    short = {name: reason.removeprefix(f"{where}: ").partition(";")[0] for name, reason in unread.items()}
    return [
        Note(f"output {name!r} can't be imported and is left out: {reason}", short=f"output {name!r} is left out")
        for name, reason in short.items()
    ]


def _simplified(draft: Draft) -> list[str]:
    """Notes on nodes that are gone."""
    notes = [f"{draft.folded} constant nodes folded"] if draft.folded else []
    written = [name for node in draft.nodes for name in node.output]
    left = [name for name in written if name in draft.unfolded]
    if left:
        notes.append(
            f"{len(left)} constant tensors are too dear to compute ahead, so each step computes them "
            f"({left[0]}: {draft.unfolded[left[0]]})"
        )
    if draft.removed_dropouts:
        notes.append(f"{draft.removed_dropouts} Dropout nodes in evaluation mode pass their input on")
    if draft.repeated:
        batches = ", ".join(f"{name} for {batch}" for name, batch in list(draft.repeated.items())[:3])
        more = ", ..." if len(draft.repeated) > 3 else ""
        notes.append(f"first states of recurrent layers that were for another batch are repeated: {batches}{more}")
    return notes


def _declared(document: Document, fixed: FixedInputs) -> dict[str, Type]:
    """Gives what the file says of tensors that are not inputs, where it is static (with the sizes put in)."""
    found: dict[str, Type] = {}
    if fixed.restated:
        return found
    for info in (*document.proto.graph.value_info, *document.proto.graph.output):
        tensor = info.type.tensor_type
        if not info.type.HasField("tensor_type") or not tensor.HasField("shape"):
            continue
        dims = [fixed.sizes.get(dim.dim_param, 0) if dim.dim_param else dim.dim_value for dim in tensor.shape.dim]
        if tensor.elem_type and all(dim > 0 for dim in dims):
            found[info.name] = (int(tensor.elem_type), tuple(int(dim) for dim in dims))
    return found


def _specialised(
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
    advice = f"the file has batch {old} baked in, so it can't run with --batch {new}; export it with a symbolic batch"
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
            became = "nothing" if after is None else list(after[1])
            raise ModelError(f"{where}: {advice} (tensor {name!r} would change from {list(shape)} to {became})")
    return replace(changed, unread=draft.unread), trained


def _content_hash(document: Document) -> str:
    """SHA-256 of what the model computes, the weights included, however and wherever they are stored."""
    digest = hashlib.sha256()
    graph = document.proto.graph

    def put(raw: bytes | memoryview[int]) -> None:
        digest.update(memoryview(raw).nbytes.to_bytes(8, "little"))
        digest.update(raw)

    put(str(document.opset).encode())
    for part in (graph.input, graph.node):
        for message in part:
            put(message.SerializeToString(deterministic=True))
    for info in graph.output:
        put(info.name.encode())
    read = {name for node in graph.node for name in node.input} | {info.name for info in graph.output}
    for name in sorted(read & document.weights.keys()):
        array = array_of(document, name)
        put(f"{name}:{dtype_name(document.weights[name].data_type)}:{array.shape}".encode())
        put(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
