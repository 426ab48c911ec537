"""What is known of an op beside its rule and its kernel, a declaration an op in its family's file.

    declare("Sin", "Cos", op=Op(flops=EXP, range=(-1.0, 1.0), in_place=(0,), letters=axes.elementwise))

Whoever goes over a graph asks `op_of`, and names no op. What isn't declared is nothing special.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from poetopt.ops import VJPS
from poetopt.util.errors import ModelError

if TYPE_CHECKING:
    from onnx import NodeProto

    from poetopt.frontends.checks import Shape, Shapes
    from poetopt.graph import Array, Node, Tensor
    from poetopt.ops.flops import ShapedNode
    from poetopt.ops.nodes import Call
    from poetopt.ops.runtimes.onnxruntime.axes import Axes
    from poetopt.ops.runtimes.sliced import Cut

EXP = 10
"""FLOPs of one exp, log, sine or power: a range reduction and a polynomial."""

Allowed = dict[str, int | tuple[int | str, ...]]
"""The least value of attributes by name, or the few that there are."""
Range = tuple[float, float]
"""The least and the greatest value."""
AUTO_PAD: tuple[int | str, ...] = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", "")
"""The values of the attribute `auto_pad`; old exporters write an empty text for the first."""
ANYWHERE = -1
"""The `pole` of an op whose derivative is infinite at the ends of its domain."""
MASKED = -2
"""The `pole` of an op whose result is NaN where an infinity masks all that it normalizes."""


class Steps(StrEnum):
    """How many steps an evaluation takes."""

    PLAIN = "a few an element"
    COUNTED = "its FLOPs"
    MANY = "interpolation, sorting, scattering"
    UNKNOWN = "it depends on what is in its operands, or nobody applies it to constants"


class Origin(StrEnum):
    """Where the numbers of a result come from."""

    OWN = "computed"
    BETWEEN = "between the least and the greatest of the first operand"
    MOVED = "from the first operand alone"


class Choice(StrEnum):
    """Integers that choose."""

    LABELS = "classes, along the second axis"
    INDICES = "places along `axis`"


@dataclass(frozen=True, slots=True)
class Op:
    """The facts of an op of ONNX's own domain. Operands are named by position.

    flops
        An element of the first output; of the first input and output; or by shapes. None: one, and `steps` doesn't
        follow from it.
    evaluation
        The steps of an evaluation, where `flops` doesn't say: constant `flops` are plain.
    picks, asks_shape
        Whether it reads only what it delivers of its first input; only the shape of that.
    is_integer
        Whether it computes with integers in place of floats.
    newest_opset
        The newest opset in which onnxruntime has it, where it hasn't it in newer ones: ONNX gave it more types there.
    is_heavy
        Whether it is never part of a block (`poetopt.autodiff.passes.blocks`), however small.
    random
        Whether its result differs from run to run.
    blocked, missing
        Operands through which nothing flows back (None: all of them); those of them that have a gradient for which
        there is no rule.
    weights
        Operands in a layer's place; of a table where data index it.
    settings, learnable
        Operands that are settings or statistics rather than weights; those of them that have a gradient all the same.
    first_states
        Operands that are data, and of another batch's size perhaps.
    lengths
        The operand that has the lengths of sequences.
    chooses
        What its second operand is, of integers below a size of the first.
    filter_axis
        The axis of a convolution's weight that has a filter each.
    reads_quantized
        Whether a runtime may have a kernel for it with the DequantizeLinear before it, under both names.
    is_product, normalizes, sums
        Whether it is a layer that an Add may stand behind, for its bias; a normalization; sums or means.
    numbers
        Where its numbers come from.
    keeps_scores, is_probability
        Whether a layer's scores are scores still behind it; whether its values are probabilities.
    looks
        Along which axes of samples it makes each result of others' too: those that `axis` names, those from it on,
        those that `axes` names, all but the first, or any.
    is_mean, is_linear
        Whether its result without samples is a mean over them, unless samples have weights; whether a mean stays one.
    loss
        The loss that auto takes of what goes into it, where it is all that an output comes from.
    range
        The least and the greatest value of its results, or these of those of its operands.
    value
        Its value of numpy's float64 arrays and its attributes, where an activation may be written out with it.
    pole
        The operand at whose 0 a derivative is infinite.
    axis, axes
        How many more values `axis` may have than the first input has axes; the operand that names such axes as the
        attribute `axes` does.
    attributes
        The least value of attributes that count something, or the few that there are.
    settings_check
        Problems of settings that must fit a shape or each other.
    lists
        Operands that are one number or a list of them: they have no second axis.
    operands_check
        Problems of operands that must fit each other.
    window
        Whether its window must fit into its padded input.
    in_place
        Operands over which onnxruntime's kernel may write, to the same bits as with an output of its own.
    workspace, any_type
        The bytes that this kernel allocates; whether it moves values of any type as they are.
    letters, letters_streamed, letters_in_ram, cuts, exact
        Along which axes onnxruntime's kernel can be cut (`poetopt.ops.runtimes.onnxruntime.axes`): always, where
        operands are on storage, where they are in RAM; how, where letters can't say; whether every element is the same
        in a vector and in the remainder.
    """

    flops: int | tuple[int, int] | Callable[[ShapedNode], int] | None = None
    evaluation: Steps | None = None
    picks: bool = False
    asks_shape: bool = False
    is_integer: bool = False
    newest_opset: int | None = None
    is_heavy: bool = False
    random: bool = False
    blocked: tuple[int, ...] | None = ()
    missing: tuple[int, ...] = ()
    weights: tuple[int, ...] = ()
    settings: tuple[int, ...] = ()
    learnable: tuple[int, ...] = ()
    first_states: tuple[int, ...] = ()
    lengths: int | None = None
    chooses: Choice | None = None
    filter_axis: int | None = None
    reads_quantized: bool = False
    is_product: bool = False
    normalizes: bool = False
    sums: bool = False
    numbers: Origin = Origin.OWN
    keeps_scores: bool = False
    is_probability: bool = False
    looks: str = ""
    is_mean: bool = False
    is_linear: bool = False
    loss: str = ""
    range: Range | Callable[[Sequence[Range]], Range] | None = None
    value: Callable[..., Any] | None = None
    pole: int | None = None
    axis: int | None = None
    axes: int | None = None
    attributes: Allowed = field(default_factory=dict)
    settings_check: Callable[[Mapping[str, tuple[int, ...]], Shapes], Iterator[str]] | None = None
    lists: tuple[int, ...] = ()
    operands_check: Callable[[NodeProto, Shape, Shapes, Mapping[str, Array]], Iterator[str]] | None = None
    window: bool = False
    in_place: tuple[int, ...] = ()
    workspace: Callable[[Call], int] | None = None
    any_type: bool = False
    letters: Callable[[Call], Axes | None] | None = None
    letters_streamed: Callable[[Call], Axes | None] | None = None
    letters_in_ram: Callable[[Call], Axes | None] | None = None
    cuts: Callable[[Node, str, Cut, Mapping[str, Tensor]], Mapping[str, Cut] | None] | None = None
    exact: bool = False

    @property
    def steps(self) -> Steps:
        """The steps of an evaluation."""
        plain = isinstance(self.flops, (int, tuple))
        return self.evaluation or (Steps.PLAIN if plain else Steps.MANY)

    @property
    def computes(self) -> bool:
        """Whether it computes something with its data."""
        return self.flops != 0


_OPS: dict[str, Op] = {}
_PLAIN = Op()


def declare(*names: str, op: Op) -> None:
    """Declare these ops. Raises `ModelError` for one that is declared already."""
    for name in names:
        if name in _OPS:
            raise ModelError(f"{name} is declared already")
        _OPS[name] = op


@cache
def ops() -> Mapping[str, Op]:
    """All declarations, by name."""
    for module in VJPS:
        import_module(f"poetopt.ops.{module}")
    return _OPS


def op_of(name: str) -> Op:
    """The facts of an op of ONNX's own domain."""
    return ops().get(name, _PLAIN)
