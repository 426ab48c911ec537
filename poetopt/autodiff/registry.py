"""The table of VJP rules: which operator has which, at which opset, and what is not differentiable.

A rule is a function of the forward operator (`Primal`) and the gradients of its outputs
(`cotangents`, `None` where nothing flows back). It emits backward operators and returns one gradient
for each input, `None` for an input that has none. Broadcast operands need no care: the loop sums a
gradient down to the shape of its input, and adds up what several readers of a tensor contribute.

    @register_vjp("Neg", since=6)
    def neg(op: Primal, cotangents: Cotangents) -> Gradients:
        return (op.emit("grad_input").neg(op.only(cotangents)),)

A package adds rules through the entry point group `poetopt.rules`: the entry point's object is a module, which
registers them as it is imported, when the first rule is looked up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from poetopt.graph import Node, Operator, Tensor
from poetopt.ops.op import ops
from poetopt.util import imports
from poetopt.util.errors import MissingVjpError, ModelError

if TYPE_CHECKING:
    from poetopt.autodiff.emit import GraphBuilder, OperatorBuilder
    from poetopt.graph import Array

STRAIGHT = "poetopt.straight"
"""The domain of quantizers through which gradients pass, as `Operator.meaning` names them."""

Cotangents = tuple[Tensor | None, ...]
Gradients = tuple[Tensor | None, ...]
Rule = Callable[["Primal", Cotangents], Gradients]
RuleT = TypeVar("RuleT", bound=Rule)
Single = Callable[["OperatorBuilder", "Primal", Tensor], Tensor]
"""dX, of the backward operator, the forward one and dY."""


@dataclass(frozen=True)
class Primal:
    """A forward operator as its rule sees it.

    operator, node
        The operator, and the node whose signature is the rule's.
    inputs, outputs
        Tensors at the node's positions; `None` for an absent optional one.
    needs
        For each input, whether its gradient is wanted: skip the work where it is not.
    builder
        The graph that the rule adds to.
    """

    operator: Operator
    node: Node
    inputs: tuple[Tensor | None, ...]
    outputs: tuple[Tensor | None, ...]
    needs: tuple[bool, ...]
    builder: GraphBuilder

    @property
    def x(self) -> Tensor:
        """The first input."""
        return self.input(0)

    @property
    def y(self) -> Tensor:
        """The first output."""
        return self.output(0)

    @property
    def opset(self) -> int:
        """Version of the default domain."""
        return self.builder.opset

    def input(self, index: int) -> Tensor:
        """Input `index`, which must be there."""
        tensor = self.inputs[index] if index < len(self.inputs) else None
        if tensor is None:
            raise ModelError(f"{self.where}: input {index} is missing")
        return tensor

    def output(self, index: int) -> Tensor:
        """Output `index`, which must be there."""
        tensor = self.outputs[index] if index < len(self.outputs) else None
        if tensor is None:
            raise ModelError(f"{self.where}: output {index} is missing")
        return tensor

    def has(self, index: int) -> bool:
        """Says whether optional input `index` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def need(self, index: int) -> bool:
        """Says whether the gradient of input `index` is wanted."""
        return index < len(self.needs) and self.needs[index]

    @property
    def where(self) -> str:
        """Says how messages name this operator."""
        return f"node {self.operator.name!r} ({self.node.op_type}, opset {self.opset})"

    def value(self, index: int) -> Array | None:
        """The value of input `index` where it is known before the run, else None (absent inputs too)."""
        return self.builder.values.get(self.input(index).name) if self.has(index) else None

    def known(self, index: int) -> Array:
        """The value of input `index`; raises `ModelError` where it is only known at run time."""
        found = self.value(index)
        if found is None:
            raise ModelError(
                f"{self.where}: input {index} ({self.input(index).name!r}) must be a constant; "
                "fix dynamic shapes (--batch) or simplify the model"
            )
        return found

    def known_ints(self, index: int) -> list[int]:
        """The integers in input `index`, as `known`."""
        return [int(v) for v in np.asarray(self.known(index)).reshape(-1)]

    def attr_int(self, name: str, default: int) -> int:
        """An integer attribute."""
        found = self.node.attributes.get(name, default)
        return int(found) if isinstance(found, (int, float)) else default

    def attr_float(self, name: str, default: float) -> float:
        """A float attribute."""
        found = self.node.attributes.get(name, default)
        return float(found) if isinstance(found, (int, float)) else default

    def attr_text(self, name: str, default: str) -> str:
        """A string attribute."""
        found = self.node.attributes.get(name, default)
        return found.decode() if isinstance(found, bytes) else str(found)

    def attr_ints(self, name: str) -> tuple[int, ...] | None:
        """A list of integers, or None where it is absent."""
        found = self.node.attributes.get(name)
        return tuple(int(v) for v in found) if isinstance(found, (list, tuple, np.ndarray)) else None

    def emit(self, what: str, *, view: bool = False) -> OperatorBuilder:
        """Start the backward operator `<kind>.<what>`."""
        return self.builder.operator(f"{self.operator.name}.{what}", f"{self.operator.kind}.{what}", view=view)

    def only(self, cotangents: Cotangents) -> Tensor:
        """The gradient of the first output, for an op that is differentiated by that one alone."""
        dy = cotangents[0]
        if dy is None or any(other is not None for other in cotangents[1:]):
            raise ModelError(f"{self.where}: gradients flow back through its first output only")
        return dy

    def reads_output(self, k: OperatorBuilder, *, default: bool = True) -> bool:
        """Says whether backward operator `k`, which can do with x or with y, takes y: what is there anyway is free.

        default
            The answer where both are there, or neither is.
        """
        k.chooses = True
        there = self.builder.kept(self.x), self.builder.kept(self.y)
        chosen = there[1] if there[0] != there[1] else default
        self.builder.needed.add(self.builder.roots.get(name := (self.y if chosen else self.x).name, name))
        return chosen

    def either(self, k: OperatorBuilder) -> Tensor:
        """x or y, for a backward operator to which both say the same."""
        return self.y if self.reads_output(k) else self.x

    def result(self, k: OperatorBuilder) -> Tensor:
        """y, or where that would be kept for this alone and x is there anyway: computed again from x."""
        if self.reads_output(k):
            return self.y
        return k.node(self.node.op_type, [self.x], self.y.shape, self.y.dtype, **dict(self.node.attributes))

    def view(self, tensor: Tensor, like: Tensor) -> Tensor:
        """`tensor` under the shape of `like`, by a view operator: no bytes, no time."""
        if tensor.shape == like.shape:
            return tensor
        return self.emit("grad_input", view=True).reshape(tensor, like.shape)


_RULES: dict[tuple[str, str], dict[int, Rule]] = {}
_NONE: dict[tuple[str, str], frozenset[int] | None] = {}
_MISSING: dict[tuple[str, str], frozenset[int]] = {}
_LOADED: list[bool] = []
_OUTSIDE: list[frozenset[Rule]] = []
"""For each `trial_rules` that is open, the rules that were there before it."""


def register_vjp(op_type: str, *, since: int, domain: str = "") -> Callable[[RuleT], RuleT]:
    """Make the decorated function the rule of `op_type` from opset `since` on, until a later one takes over.

    domain
        ONNX's own, or that of what several nodes amount to (`Operator.meaning`); files have no others.

    Raises `ModelError` where the same op, domain and `since` has a rule already.
    """

    def add(rule: RuleT) -> RuleT:
        versions = _RULES.setdefault((domain, op_type), {})
        if since in versions and not (_OUTSIDE and versions[since] in _OUTSIDE[-1]):
            raise ModelError(
                f"a VJP rule of {op_type} (domain {domain or 'ai.onnx'!r}, since {since}) is registered already: "
                f"{versions[since].__module__}.{versions[since].__name__}"
            )
        versions[since] = rule
        return rule

    return add


def single(op_type: str, *, since: int) -> Callable[[Single], Rule]:
    """Makes the decorated function, which gives dX, the rule of an op whose first input alone has a gradient."""

    def add(dx: Single) -> Rule:
        @wraps(dx)
        def rule(op: Primal, cotangents: Cotangents) -> Gradients:
            return (dx(op.emit("grad_input"), op, op.only(cotangents)),)

        return register_vjp(op_type, since=since)(rule)

    return add


def declare_nondifferentiable(
    op_type: str, *, inputs: tuple[int, ...] | None = None, missing: tuple[int, ...] = (), domain: str = ""
) -> None:
    """Say that nothing flows back through `op_type`, or through these of its inputs.

    missing
        Of these, the ones that have a gradient for which there is no rule: where a trained parameter changes one, the
        network is refused.

    Raises `ModelError` where that has been said already.
    """
    if (domain, op_type) in _NONE:
        raise ModelError(f"{op_type} (domain {domain or 'ai.onnx'!r}) is declared non-differentiable already")
    _NONE[(domain, op_type)] = None if inputs is None else frozenset(inputs)
    _MISSING[(domain, op_type)] = frozenset(missing)


@contextmanager
def trial_rules() -> Iterator[None]:
    """Forgets at the end what is registered inside, which may take the place of rules that were there before."""
    load_rules()
    before = _snapshot()
    _OUTSIDE.append(frozenset(rule for versions in before[0].values() for rule in versions.values()))
    try:
        yield
    finally:
        _OUTSIDE.pop()
        _restore(before)


_State = tuple[dict[tuple[str, str], dict[int, Rule]], dict[tuple[str, str], frozenset[int] | None]]


def _snapshot() -> _State:
    return {key: dict(versions) for key, versions in _RULES.items()}, dict(_NONE)


def _restore(state: _State) -> None:
    _RULES.clear()
    _RULES.update(state[0])
    _NONE.clear()
    _NONE.update(state[1])
    for key in _MISSING.keys() - _NONE.keys():
        del _MISSING[key]


def load_rules() -> None:
    """Import the rules, once: the package's own, then those of other packages.

    Raises ModelError, naming the package, where another's can't be loaded or a rule is there already.
    """
    if _LOADED:
        return
    _LOADED.append(True)
    for name, op in ops().items():
        if op.blocked != () and ("", name) not in _NONE:
            declare_nondifferentiable(name, inputs=op.blocked, missing=op.missing)
    for point in entry_points(group="poetopt.rules"):
        before = _snapshot()
        try:
            imports.load(point, "gradient rules", ModelError)
        except ModelError:
            # as it was, so that asking again says the same
            _restore(before)
            _LOADED.clear()
            raise


def registered() -> Mapping[tuple[str, str], Mapping[int, Rule]]:
    """All rules: (domain, op) -> since -> rule, sorted."""
    load_rules()
    return {key: dict(sorted(_RULES[key].items())) for key in sorted(_RULES)}


def nondifferentiable() -> Mapping[tuple[str, str], frozenset[int] | None]:
    """All declarations: (domain, op) -> the inputs without gradient, None for all of them; sorted."""
    load_rules()
    return {key: _NONE[key] for key in sorted(_NONE)}


def principal(operator: Operator) -> Node:
    """The node whose signature is the operator's: what it means, the one of its kind, else the first."""
    if operator.meaning is not None:
        return operator.meaning
    return next((node for node in operator.nodes if node.op_type == operator.kind), operator.nodes[0])


def signature(operator: Operator) -> tuple[str, str]:
    """Domain and name under which an operator's rule is looked up.

    An operator of one node goes by its op, a composite region by its meaning, another of several nodes (made by
    this package) by its kind.
    """
    if operator.meaning is not None or len(operator.nodes) == 1:
        node = principal(operator)
        return ("" if node.domain == "ai.onnx" else node.domain), node.op_type
    return "", operator.kind


def find_rule(operator: Operator, opset: int) -> Rule | None:
    """The rule with the highest `since` that is not above `opset`, or None."""
    load_rules()
    domain, op_type = signature(operator)
    versions = _RULES.get((domain, op_type), {})
    usable = [since for since in versions if since <= opset or domain]
    return versions[max(usable)] if usable else None


def rule_of(operator: Operator, opset: int) -> Rule:
    """`find_rule`, or `MissingVjpError` with what exists and how to add one."""
    rule = find_rule(operator, opset)
    if rule is not None:
        return rule
    domain, op_type = signature(operator)
    since = sorted(_RULES.get((domain, op_type), {}))
    have = f"rules exist since opset {', '.join(map(str, since))}" if since else "it has no rule at any opset"
    raise MissingVjpError(
        f"node {operator.name!r}: no gradient rule for {op_type} (domain {domain or 'ai.onnx'!r}, opset {opset}); "
        f"{have}. Add one with @poetopt.autodiff.register_vjp({op_type!r}, since={opset}"
        + (f", domain={domain!r}" if domain else "")
        + "), or declare_nondifferentiable if nothing flows back through it"
    )


def blocked_inputs(operator: Operator) -> frozenset[int] | None:
    """Positions of inputs through which nothing flows back; None where that is all of them."""
    load_rules()
    return _NONE.get(signature(operator), frozenset())


def missing_inputs(operator: Operator) -> frozenset[int]:
    """Positions of inputs that have a gradient for which there is no rule."""
    load_rules()
    return _MISSING.get(signature(operator), frozenset())


def flows(
    tensors: Mapping[str, Tensor], operators: Iterable[Operator]
) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """Of each operator that passes gradients: the inputs that get one, and the outputs that bring it.

    A gradient flows along floating-point tensors, except where an op or an input is declared
    non-differentiable; and along the integers of a quantizer through which gradients pass.
    """
    for operator in operators:
        blocked = blocked_inputs(operator)
        if blocked is None:
            continue
        carries = signature(operator)[0] == STRAIGHT
        yield (
            [name for position, name in enumerate(principal(operator).inputs) if position not in blocked],
            [name for name in operator.outputs if carries or is_float(tensors[name])],
        )


def downstream(tensors: Mapping[str, Tensor], operators: Iterable[Operator], roots: Iterable[str]) -> set[str]:
    """`roots` and every tensor from which a gradient can flow back to one of them."""
    live = set(roots)
    for read, written in flows(tensors, operators):
        if not live.isdisjoint(read):
            live.update(written)
    return live


def is_float(tensor: Tensor) -> bool:
    """Says whether gradients flow along `tensor`."""
    return tensor.dtype in {"float16", "bfloat16", "float32", "float64"}
