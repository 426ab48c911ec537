"""Axes along which a node can be cut, so that its kernel computes each slice with the bits of the whole.

A rule gives each axis of each operand a letter. Axes of one letter are cut together; an axis without a letter can't be
cut. An operand without the letter is whole in each slice. Kernels that sum in a fixed order restrict the chunks (MLAS,
in onnxruntime 1.31):

| axis | chunks |
|---|---|
| rows of a product | 2 or more: a single row has a special kernel |
| columns of a product | more than 64, so that the products are summed in the same blocks |
| the inner axis of a product | multiples of its blocks: of 128, or 1,024 for 64 columns or fewer |
| channels that a convolution writes | more than its positions if all channels are, so that it unfolds equally |
| axes that a reduction keeps | 2 or more; runs that are summed begin at a multiple of 64 elements, as in the whole |

A product with one row is not cut along columns: the choice of its kernel depends on their number.

An operand that stays in RAM in separate runs (`in_ram`) has two more rules, for channels:

| axis | chunks |
|---|---|
| channels of a normalization | any |
| channels of sums | 2 or more, whose planes begin where vectors do: one channel alone is summed in another order |
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from math import frexp, prod
from typing import TYPE_CHECKING

from poetopt.graph import PACKED, Node, Tensor
from poetopt.ops.nodes import Call
from poetopt.ops.op import op_of
from poetopt.ops.quantization import settings, sharing
from poetopt.ops.runtimes.sliced import Cut

if TYPE_CHECKING:
    from poetopt.graph import Array


ELEMENTS = 64
"""Chunks of a vectorized kernel are multiples of it, so that no element changes between vector and remainder."""


@dataclass(frozen=True, slots=True)
class Axes:
    """The letters of a node's operands.

    Attributes
    ----------
    inputs, outputs
        A letter for each axis of each operand, "-" for none.
    summed
        The letter of the axis that is summed up.
    multiples, least
        By letter, the number whose multiples chunks are, and the fewest positions of a chunk; this includes the last.
    aligned
        Whether the order of sums depends on where their runs begin in memory.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    summed: str = ""
    multiples: Mapping[str, int] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)
    aligned: bool = False


@dataclass(frozen=True, slots=True)
class Through:
    """A node that is cut.

    Attributes
    ----------
    cuts
        Cut of each operand, by name.
    per
        Positions per step of the loop on the axis that `multiple` and `least` restrict.
    summed
        Whether it sums up over the cut axis.
    exact
        Whether no element changes between vector and remainder.
    aligned
        Whether the order of sums depends on where their runs begin in memory.
    """

    cuts: Mapping[str, Cut]
    per: int
    summed: bool = False
    multiple: int = 1
    least: int = 1
    exact: bool = False
    aligned: bool = False


def through(
    node: Node,
    name: str,
    cut: Cut,
    tensors: Mapping[str, Tensor],
    values: Mapping[str, Array],
    *,
    in_ram: bool = False,
) -> Through | None:
    """Return how a node is cut if its operand `name` is cut; None if that is impossible."""
    if node.domain:
        return None
    op = op_of(node.op_type)
    if op.cuts is not None:
        cuts_by_name = op.cuts(node, name, cut, tensors)
        return None if cuts_by_name is None else Through(cuts_by_name, cut.per, exact=op.exact)
    rule = op.letters or (op.letters_in_ram if in_ram else op.letters_streamed)
    inputs = tuple(tensors[n] if n else None for n in node.inputs)
    axes = rule(Call(node, inputs, tuple(tensors[n] for n in node.outputs if n), values)) if rule is not None else None
    if axes is None:
        return None
    operands = [(n, letters) for n, letters in zip(node.inputs, axes.inputs, strict=False) if n]
    operands += [(n, letters) for n, letters in zip(filter(None, node.outputs), axes.outputs, strict=False)]
    letters = {ls[cut.axis] for n, ls in operands if n == name and len(ls) > cut.axis}
    if len(letters) != 1 or letters == {"-"}:
        return None
    (letter,) = letters
    cuts: dict[str, Cut] = {}
    for operand, ls in operands:
        if letter in ls:
            one = Cut(ls.index(letter), cut.per)
            if cuts.setdefault(operand, one) != one:
                return None
    if any(operand in cuts and letter not in ls for operand, ls in operands):
        return None
    return Through(
        cuts, cut.per, letter == axes.summed, axes.multiples.get(letter, 1), axes.least.get(letter, 1),
        op.exact or (node.op_type == "BatchNormalization" and letter in "nc") or _is_step(node),
        axes.aligned,
    )  # fmt: skip


def _is_step(node: Node) -> bool:
    """Return whether a node is a HardSigmoid without rounding: through 0, or with a power of two as slope."""
    if node.op_type != "HardSigmoid":
        return False
    slope, bias = (float(node.attributes.get(key, 0.2)) for key in ("alpha", "beta"))  # type: ignore[arg-type]
    return bias == 0 or abs(frexp(slope)[0]) == 0.5


Rule = Callable[[Call], Axes | None]


def _known_ints(call: Call, index: int) -> list[int]:
    """Return the integers of a known input."""
    value = call.value(index)
    return [] if value is None else [int(v) for v in value.reshape(-1).tolist()]


def _letter(axis: int) -> str:
    """Return the capital letter of an axis that is known by its number alone."""
    return chr(ord("A") + axis)


def _letters_except(rank: int, without: Container[int] = ()) -> str:
    """Return the letters of all axes except `without`."""
    return "".join("-" if k in without else _letter(k) for k in range(rank))


def elementwise(call: Call) -> Axes | None:
    """Return the axes along which all operands broadcast equally."""
    shape = call.output().shape

    def letters(tensor: Tensor | None) -> str:
        own_shape = tensor.shape if tensor is not None else ()
        begin = len(shape) - len(own_shape)
        return "".join(_letter(begin + k) if size == shape[begin + k] > 1 else "-" for k, size in enumerate(own_shape))

    return Axes(tuple(map(letters, call.inputs)), (letters(call.output()),))


def _product(columns: int) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """Return multiples and least positions of rows ("m"), columns ("n") and the inner axis ("k")."""
    narrow = 64  # columns up to which a product sums up in longer blocks
    return {"n": 16, "k": 128 if columns > narrow else 1024}, {"m": 2, "n": narrow + 1}


def gemm(call: Call) -> Axes | None:
    """Return rows, columns and the inner axis."""
    rows, columns = call.output().shape
    if rows < 2 or call.output().dtype != "float32":
        return None
    a = "km" if call.integer("transA", 0) else "mk"
    b = "nk" if call.integer("transB", 0) else "kn"
    c_shape = call.shape(2)
    last = zip("mn"[2 - len(c_shape) :], c_shape, (rows, columns)[2 - len(c_shape) :], strict=True)
    c = "".join(letter if size == whole > 1 else "-" for letter, size, whole in last)
    return Axes((a, b, c)[: len(call.inputs)], ("mn",), "k", *_product(columns))


def matmul(call: Call) -> Axes | None:
    """Return rows, columns of a matrix and the inner axis."""
    a, b = call.shape(0), call.shape(1)
    if len(a) < 2 or len(b) != 2 or call.output().dtype != "float32" or prod(a[:-1]) < 2:
        return None
    lead = "m" if len(a) == 2 else "-" * (len(a) - 1)
    return Axes((f"{lead}k", "kn"), (f"{lead}n",), "k", *_product(b[1]))


def transpose(call: Call) -> Axes | None:
    """Return all axes, in another order for the result."""
    rank = len(call.output().shape)
    perm = call.integers("perm", range(rank)[::-1])
    return Axes((_letters_except(rank),), ("".join(map(_letter, perm)),))


def conv(call: Call) -> Axes | None:
    """Return images and channels."""
    if call.integer("group", 1) != 1:
        return None
    rest, channels, positions = "-" * (len(call.output().shape) - 2), call.shape(1)[0], prod(call.output().shape[2:])
    least = positions + 1 if channels > positions else 2
    return Axes((f"n-{rest}", f"o-{rest}", "o")[: len(call.inputs)], (f"no{rest}",), "", {"o": 16}, {"o": least})


def softmax(call: Call) -> Axes | None:
    """Return all axes but the last, along which the softmax goes."""
    rank = len(call.output().shape)
    letters = _letters_except(rank, (rank - 1,))
    return Axes((letters,), (letters,)) if rank and call.integer("axis", -1) % rank == rank - 1 else None


def batch_norm(positions: bool) -> Rule:
    """Return a rule for given statistics: images and channels; with `positions` the spatial axes too."""

    def rule(call: Call) -> Axes | None:
        rank = len(call.output().shape)
        if call.integer("training_mode", 0) or len(call.outputs) > 1 or rank < 2:
            return None
        letters = "nc" + (_letters_except(rank)[2:] if positions else "-" * (rank - 2))
        return Axes((letters, *["c"] * 4), (letters,))

    return rule


def layer_norm(call: Call) -> Axes | None:
    """Return rows; their means and deviations have size 1 along the normalized axes."""
    rank = len(call.output().shape)
    letters = _letters_except(rank, range(call.integer("axis", -1) % rank, rank))
    return Axes((letters, *("" for _ in call.inputs[1:])), (letters,) * len(call.outputs))


def reduction(call: Call) -> Axes | None:
    """Return the axes that the reduction keeps."""
    if call.value(1) is None:
        return None
    rank = len(call.shape(0))
    x_letters = _letters_except(rank, {axis % rank for axis in _known_ints(call, 1)})
    y_letters = x_letters if call.integer("keepdims", 1) else x_letters.replace("-", "")
    return Axes((x_letters, ""), (y_letters,), least=dict.fromkeys(x_letters.replace("-", ""), 2), aligned=True)


def pool(call: Call) -> Axes | None:
    """Return planes; a pool that also outputs indices can't be cut, as they count in all of x."""
    letters = "nc" + "-" * (len(call.output().shape) - 2)
    return Axes((letters,), (letters,)) if len(call.outputs) == 1 else None


def sliced(call: Call) -> Axes | None:
    """Return the axes that the Slice leaves whole."""
    rank = len(call.output().shape)
    letters = _letters_except(rank, {k % rank for k in _known_ints(call, 3)})
    return None if call.value(3) is None else Axes((letters,), (letters,))


def channel_sums(call: Call) -> Axes | None:
    """Return channels, for sums over all axes but the second."""
    data, rank = call.input(0), len(call.shape(0))
    if call.value(1) is None or call.integer("keepdims", 1) or rank < 3:
        return None
    plane = data.nbytes // prod(data.shape[:2])
    # 64 bytes are the widest vector, and the alignment of buffers
    if {k % rank for k in _known_ints(call, 1)} != {*range(rank)} - {1} or plane % 64:
        return None
    return Axes((f"-c{'-' * (rank - 2)}",), ("c",), least={"c": 2})


def view(node: Node, name: str, cut: Cut, tensors: Mapping[str, Tensor]) -> Mapping[str, Cut] | None:
    """Cut a view: the same bytes in another shape."""
    x, y = node.inputs[0], node.outputs[0]
    if name not in (x, y):
        return None
    other = y if name == x else x
    other_cut = _reshaped(tensors[name].shape, tensors[other].shape, cut)
    return None if other_cut is None else {name: cut, other: other_cut}


def _reshaped(shape: Sequence[int], other: Sequence[int], cut: Cut) -> Cut | None:
    before, run = prod(shape[: cut.axis]), cut.per * prod(shape[cut.axis + 1 :])
    for axis, size in enumerate(other):
        inner = prod(other[axis + 1 :])
        if size > 1 and prod(other[:axis]) == before:
            return Cut(axis, run // inner) if run % inner == 0 else None
    return None


def col2im(node: Node, name: str, cut: Cut, tensors: Mapping[str, Tensor]) -> Mapping[str, Cut] | None:
    """Cut a Col2Im: channels of the image are blocks of the columns' second axis."""
    x, y = node.inputs[0], node.outputs[0]
    if name not in (x, y) or cut.axis > 1:
        return None
    block = tensors[x].shape[1] // tensors[y].shape[1] if cut.axis else 1
    if name == x:
        return {x: cut, y: Cut(cut.axis, cut.per // block)} if cut.per % block == 0 else None
    return {y: cut, x: Cut(cut.axis, cut.per * block)}


def scatter(node: Node, name: str, cut: Cut, tensors: Mapping[str, Tensor]) -> Mapping[str, Cut] | None:
    """Cut a ScatterND of rows along the rows of its table."""
    data, indices, y = node.inputs[0], tensors[node.inputs[1]], node.outputs[0]
    rows = len(indices.shape) == 2 and indices.shape[1] == 1 and len(tensors[data].shape) == 2
    if not rows or node.attributes.get("reduction", "none") != "none" or name not in (data, y) or cut != Cut(0):
        return None
    return {data: cut, y: cut}


def dequantize(node: Node, name: str, cut: Cut, tensors: Mapping[str, Tensor]) -> Mapping[str, Cut] | None:
    """Cut a DequantizeLinear: elements keep their scales; chunks of whole blocks have some of the scales."""
    x, scale, *zero = node.inputs
    axis, block = sharing(tensors[x].shape, tensors[scale].shape, *settings(node))
    if name not in (x, node.outputs[0]):
        own_axis = axis if axis is not None and not block else cut.axis
        cut = Cut(own_axis, cut.per * block if block and own_axis == axis else cut.per)
    cuts = {x: cut, node.outputs[0]: cut}
    if block and cut.axis == axis and cut.per % block:
        return None
    if block or cut.axis == axis:
        per = cut.per // block if block and cut.axis == axis else cut.per
        cuts.update((n, Cut(cut.axis if block else 0, per)) for n in (scale, *filter(None, zero)))
    whole = all(
        one.per * prod(tensors[n].shape[one.axis + 1 :]) % PACKED.get(tensors[n].dtype, 1) == 0
        for n, one in cuts.items()
    )
    return cuts if whole and name in cuts else None


def reads_rows(node: Node, name: str) -> bool:
    """Return whether a node gathers rows of the table `name` by their numbers."""
    gathers = node.op_type == "Gather" and not node.domain and not node.attributes.get("axis", 0)
    return gathers and node.inputs[0] == name and node.inputs[1] != name


def row_range(node: Node, name: str, tensors: Mapping[str, Tensor], values: Mapping[str, Array]) -> range | None:
    """Return the contiguous rows of the table `name` that a Slice reads; None for all other nodes."""
    if node.op_type != "Slice" or node.domain or node.inputs[0] != name or name in node.inputs[1:]:
        return None
    known = [values.get(operand) for operand in node.inputs[1:]]
    if len(known) < 3 or any(value is None or value.size != 1 for value in known):
        return None
    begin, end, axis, *step = (int(value.reshape(-1)[0]) for value in known if value is not None)
    count = tensors[node.outputs[0]].shape[0]
    return range(begin, end) if axis == 0 <= begin and end - begin == count and step in ([], [1]) else None
