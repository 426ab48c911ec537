"""Facts of an op beside its gradient rule and its kernel; the file of its family declares them.

    declare("Sin", "Cos", op=Op(flops=EXP, range=(-1.0, 1.0), in_place=(0,), letters=axes.elementwise))

Code that goes over a graph asks `op_of`, and names no op. An op without a declaration has the defaults of `Op`.
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
"""The least value of each attribute by name, or all values that the attribute may have."""
Range = tuple[float, float]
"""The least and the greatest value."""
AUTO_PAD: tuple[int | str, ...] = ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID", "")
"""The values of the attribute `auto_pad`; old exporters write an empty text for NOTSET."""
ANYWHERE = -1
"""The `pole` of an op whose derivative is infinite at the ends of its domain."""
MASKED = -2
"""The `pole` of an op whose result is NaN where an infinity masks all values that it normalizes."""


class Steps(StrEnum):
    """Number of steps that an evaluation takes."""

    PLAIN = "a few per element"
    COUNTED = "its FLOPs"
    MANY = "interpolation, sorting, scattering"
    UNKNOWN = "dependent on operand values, or never applied to constants"


class Origin(StrEnum):
    """Source of the numbers of a result."""

    OWN = "computed"
    BETWEEN = "between the least and the greatest of the first operand"
    MOVED = "from the first operand alone"


class Choice(StrEnum):
    """Kind of integers that select something."""

    LABELS = "classes, along the second axis"
    INDICES = "positions along `axis`"


@dataclass(frozen=True, slots=True)
class Op:
    """The facts of an op of ONNX's own domain. Operands are positions of inputs.

    Attributes
    ----------
    flops
        FLOPs: per element of the first output; per element of the first input and of the first output; or a function
        of the shapes. None: one per element, and `steps` doesn't follow from it.
    evaluation
        The steps of an evaluation, where they don't follow from `flops`: an op of constant `flops` is plain.
    picks
        Whether it reads only those elements of its first input that it writes.
    asks_shape
        Whether it reads only the shape of its first input.
    is_integer
        Whether it computes with integers in place of floats.
    newest_opset
        The newest opset in which onnxruntime has a kernel; None where newer opsets have one too. In newer opsets ONNX
        gave the op more types.
    is_heavy
        Whether it is never part of a block (`poetopt.autodiff.passes.blocks`), however small.
    random
        Whether its result differs from run to run.
    blocked
        Operands through which no gradient flows back (None: all of them).
    missing
        Those `blocked` operands that have a gradient in mathematics, for which poetopt has no rule.
    weights
        Operands where a layer has its weights; where data index a table, the table.
    settings
        Operands that are settings or statistics rather than weights.
    learnable
        Those of the `settings` that have a gradient nevertheless.
    first_states
        Operands that are data, and may have another batch size.
    lengths
        The operand that has the lengths of sequences.
    chooses
        Kind of the integers of its second operand, which are below a size of the first.
    filter_axis
        The axis of a convolution's weight along which filters lie.
    reads_quantized
        Whether a runtime may have one kernel for the DequantizeLinear before it and the op, under both names.
    is_product
        Whether it is a layer whose bias an Add behind it may add.
    normalizes
        Whether it is a normalization.
    sums
        Whether it computes sums or means.
    numbers
        Source of its numbers.
    keeps_scores
        Whether its results are still scores where its operand is a layer's scores.
    is_probability
        Whether its values are probabilities.
    looks
        The axes of samples along which a result depends on other samples: those that `axis` names, those from `axis`
        on, those that `axes` names, all but the first, or any.
    is_mean
        Whether its result without an axis of samples is a mean over them, unless samples have weights.
    is_linear
        Whether the result of a mean is the mean of the results.
    loss
        The loss that `auto` attaches to the op's operand, where an output comes from this op alone.
    range
        The least and the greatest value of its results, or a function that computes them from those of the operands.
    value
        Function of numpy's float64 arrays and the attributes that computes the op, where an exporter may have written
        out an activation with it.
    pole
        The operand at whose 0 a derivative is infinite.
    axis
        How many more values `axis` may have than the first input has axes.
    axes
        The operand that names axes as the attribute `axes` does.
    attributes
        The least value of attributes that count something, or all values that an attribute may have.
    settings_check
        Function that yields problems of settings that must fit a shape or each other.
    lists
        Operands that are one number or a list of numbers: they have no second axis.
    operands_check
        Function that yields problems of operands that must fit each other.
    window
        Whether its window must fit into its padded input.
    in_place
        Operands over which onnxruntime's kernel may write with the same bits as in a separate output.
    workspace
        Function that computes the bytes that onnxruntime's kernel allocates.
    any_type
        Whether onnxruntime's kernel moves values of any type unchanged.
    letters, letters_streamed, letters_in_ram
        Functions that name the axes along which onnxruntime's kernel can be cut
        (`poetopt.ops.runtimes.onnxruntime.axes`): always, where operands are on storage, where they are in RAM.
    cuts
        Function that cuts a node where letters can't express it.
    exact
        Whether onnxruntime's kernel computes the same bits of an element in a vector and in the remainder.
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
        """Steps of an evaluation."""
        plain = isinstance(self.flops, (int, tuple))
        return self.evaluation or (Steps.PLAIN if plain else Steps.MANY)

    @property
    def computes(self) -> bool:
        """Return whether it computes with its data."""
        return self.flops != 0


_OPS: dict[str, Op] = {}
_PLAIN = Op()


def declare(*names: str, op: Op) -> None:
    """Declare ops of one kind.

    Parameters
    ----------
    names
        Op types of ONNX's own domain.
    op
        Their facts.

    Raises
    ------
    ModelError
        An op is declared already.
    """
    for name in names:
        if name in _OPS:
            raise ModelError(f"{name} is declared already; declare each op once")
        _OPS[name] = op


@cache
def ops() -> Mapping[str, Op]:
    """Return all declarations by name."""
    for module in VJPS:
        import_module(f"poetopt.ops.{module}")
    return _OPS


def op_of(name: str) -> Op:
    """Return the facts of an op of ONNX's own domain; the defaults where it isn't declared."""
    return ops().get(name, _PLAIN)
