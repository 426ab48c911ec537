"""The table of VJP rules: the rule of each operator at each opset, and the declarations of non-differentiability.

A rule is a function of the forward operator (`Primal`) and the gradients of its outputs (`cotangents`,
`None` where no gradient flows back). It emits backward operators and returns one gradient for each input,
`None` for an input without a gradient. A rule needs no case for broadcast operands: the reverse loop sums a
gradient to the shape of its input, and adds up the contributions of several readers of a tensor.

    @register_vjp("Neg", since=6)
    def neg(op: Primal, cotangents: Cotangents) -> Gradients:
        return (op.emit("grad_input").neg(op.only(cotangents)),)

A package adds rules through the entry point group `poetopt.rules`. The entry point's object is a module that
registers the rules when it is imported; poetopt imports it when it looks up the first rule.
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
"""Domain of quantizers through which gradients pass, in `Operator.meaning`."""

Cotangents = tuple[Tensor | None, ...]
Gradients = tuple[Tensor | None, ...]
Rule = Callable[["Primal", Cotangents], Gradients]
RuleT = TypeVar("RuleT", bound=Rule)
Single = Callable[["OperatorBuilder", "Primal", Tensor], Tensor]
"""A function of the backward operator, the forward operator and dY that returns dX."""


@dataclass(frozen=True)
class Primal:
    """A forward operator, as the argument of its gradient rule.

    Attributes
    ----------
    operator, node
        The operator, and the node by whose signature the rule is registered.
    inputs, outputs
        Tensors at the node's positions; `None` for an absent optional one.
    needs
        Whether each input needs a gradient; a rule skips the others.
    builder
        The graph to which the rule adds operators.
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
        """Opset of the default domain."""
        return self.builder.opset

    def input(self, index: int) -> Tensor:
        """Return input `index`; raise ModelError where it is absent."""
        tensor = self.inputs[index] if index < len(self.inputs) else None
        if tensor is None:
            raise ModelError(f"{self.where}: input {index} is missing")
        return tensor

    def output(self, index: int) -> Tensor:
        """Return output `index`; raise ModelError where it is absent."""
        tensor = self.outputs[index] if index < len(self.outputs) else None
        if tensor is None:
            raise ModelError(f"{self.where}: output {index} is missing")
        return tensor

    def has(self, index: int) -> bool:
        """Return whether optional input `index` is present."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def need(self, index: int) -> bool:
        """Return whether input `index` needs a gradient."""
        return index < len(self.needs) and self.needs[index]

    @property
    def where(self) -> str:
        """The operator's name in messages."""
        return f"node {self.operator.name!r} ({self.node.op_type}, opset {self.opset})"

    def value(self, index: int) -> Array | None:
        """Return the value of input `index`, or None where it is absent or known only at run time."""
        return self.builder.values.get(self.input(index).name) if self.has(index) else None

    def known(self, index: int) -> Array:
        """Return the value of input `index`; raise ModelError where it is known only at run time."""
        value = self.value(index)
        if value is None:
            raise ModelError(
                f"{self.where}: input {index} ({self.input(index).name!r}) must be a constant; "
                "fix dynamic shapes (--batch), or simplify the model"
            )
        return value

    def known_ints(self, index: int) -> list[int]:
        """Return the integers in input `index`; raise ModelError where they are known only at run time."""
        return [int(v) for v in np.asarray(self.known(index)).reshape(-1)]

    def attr_int(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        value = self.node.attributes.get(name, default)
        return int(value) if isinstance(value, (int, float)) else default

    def attr_float(self, name: str, default: float) -> float:
        """Return a float attribute."""
        value = self.node.attributes.get(name, default)
        return float(value) if isinstance(value, (int, float)) else default

    def attr_text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        value = self.node.attributes.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def attr_ints(self, name: str) -> tuple[int, ...] | None:
        """Return an attribute that is a list of integers, or None where it is absent."""
        values = self.node.attributes.get(name)
        return tuple(int(v) for v in values) if isinstance(values, (list, tuple, np.ndarray)) else None

    def emit(self, what: str, *, view: bool = False) -> OperatorBuilder:
        """Start the backward operator `<kind>.<what>`."""
        return self.builder.operator(f"{self.operator.name}.{what}", f"{self.operator.kind}.{what}", view=view)

    def only(self, cotangents: Cotangents) -> Tensor:
        """Return the gradient of the first output; raise ModelError where another output has one."""
        dy = cotangents[0]
        if dy is None or any(other is not None for other in cotangents[1:]):
            raise ModelError(
                f"{self.where}: its gradient rule covers the first output only; use no other output in the loss"
            )
        return dy

    def reads_output(self, k: OperatorBuilder, *, default: bool = True) -> bool:
        """Return whether backward operator `k`, which can read x or y, reads y.

        It reads the one that other operators keep anyway, as that costs no memory; `default` decides where both
        or neither are kept.
        """
        k.chooses = True
        kept = self.builder.kept(self.x), self.builder.kept(self.y)
        reads_y = kept[1] if kept[0] != kept[1] else default
        self.builder.needed.add(self.builder.roots.get(name := (self.y if reads_y else self.x).name, name))
        return reads_y

    def either(self, k: OperatorBuilder) -> Tensor:
        """Return x or y, for a backward operator that can read either."""
        return self.y if self.reads_output(k) else self.x

    def result(self, k: OperatorBuilder) -> Tensor:
        """Return y; where only this operator would keep y and x is kept anyway, recompute y from x."""
        if self.reads_output(k):
            return self.y
        return k.node(self.node.op_type, [self.x], self.y.shape, self.y.dtype, **dict(self.node.attributes))

    def view(self, tensor: Tensor, like: Tensor) -> Tensor:
        """Return `tensor` in the shape of `like`, by a view operator that takes no bytes and no time."""
        if tensor.shape == like.shape:
            return tensor
        return self.emit("grad_input", view=True).reshape(tensor, like.shape)


_RULES: dict[tuple[str, str], dict[int, Rule]] = {}
_NONDIFFERENTIABLE: dict[tuple[str, str], frozenset[int] | None] = {}
_MISSING: dict[tuple[str, str], frozenset[int]] = {}
_LOADED: list[bool] = []
_RULES_BEFORE_TRIAL: list[frozenset[Rule]] = []
"""For each open `trial_rules`, the rules that were registered before it."""


def register_vjp(op_type: str, *, since: int, domain: str = "") -> Callable[[RuleT], RuleT]:
    """Register the decorated function as the rule of `op_type` from opset `since` to that of the next rule.

    Parameters
    ----------
    domain
        ONNX's own, or the domain of a fused op (`Operator.meaning`); model files have no others.

    Raises
    ------
    ModelError
        The op has a rule of this domain and `since` already.
    """

    def register(rule: RuleT) -> RuleT:
        versions = _RULES.setdefault((domain, op_type), {})
        if since in versions and not (_RULES_BEFORE_TRIAL and versions[since] in _RULES_BEFORE_TRIAL[-1]):
            raise ModelError(
                f"a VJP rule of {op_type} (domain {domain or 'ai.onnx'!r}, since {since}) is registered already: "
                f"{versions[since].__module__}.{versions[since].__name__}; register one of them only"
            )
        versions[since] = rule
        return rule

    return register


def single(op_type: str, *, since: int) -> Callable[[Single], Rule]:
    """Register the decorated function, which returns dX, as the rule of an op of one differentiable input."""

    def register(dx: Single) -> Rule:
        @wraps(dx)
        def rule(op: Primal, cotangents: Cotangents) -> Gradients:
            return (dx(op.emit("grad_input"), op, op.only(cotangents)),)

        return register_vjp(op_type, since=since)(rule)

    return register


def declare_nondifferentiable(
    op_type: str, *, inputs: tuple[int, ...] | None = None, missing: tuple[int, ...] = (), domain: str = ""
) -> None:
    """Declare that no gradient flows back through `op_type`.

    Parameters
    ----------
    inputs
        Positions of the inputs that get no gradient; None for all of them.
    missing
        Those of `inputs` that are differentiable but have no rule. A network in which a trained parameter changes
        one of them raises MissingVjpError.

    Raises
    ------
    ModelError
        The op has a declaration already.
    """
    if (domain, op_type) in _NONDIFFERENTIABLE:
        raise ModelError(f"{op_type} (domain {domain or 'ai.onnx'!r}) is declared non-differentiable already")
    _NONDIFFERENTIABLE[(domain, op_type)] = None if inputs is None else frozenset(inputs)
    _MISSING[(domain, op_type)] = frozenset(missing)


@contextmanager
def trial_rules() -> Iterator[None]:
    """Remove at the end all rules that are registered inside, and restore the rules that they replaced."""
    load_rules()
    before = _snapshot()
    _RULES_BEFORE_TRIAL.append(frozenset(rule for versions in before[0].values() for rule in versions.values()))
    try:
        yield
    finally:
        _RULES_BEFORE_TRIAL.pop()
        _restore(before)


_State = tuple[dict[tuple[str, str], dict[int, Rule]], dict[tuple[str, str], frozenset[int] | None]]


def _snapshot() -> _State:
    return {key: dict(versions) for key, versions in _RULES.items()}, dict(_NONDIFFERENTIABLE)


def _restore(state: _State) -> None:
    _RULES.clear()
    _RULES.update(state[0])
    _NONDIFFERENTIABLE.clear()
    _NONDIFFERENTIABLE.update(state[1])
    for key in _MISSING.keys() - _NONDIFFERENTIABLE.keys():
        del _MISSING[key]


def load_rules() -> None:
    """Import the rules once: poetopt's, then those of other packages.

    Raises
    ------
    ModelError
        Another package's rules can't be loaded, or replace a rule. The message names the package.
    """
    if _LOADED:
        return
    _LOADED.append(True)
    for name, op in ops().items():
        if op.blocked != () and ("", name) not in _NONDIFFERENTIABLE:
            declare_nondifferentiable(name, inputs=op.blocked, missing=op.missing)
    for point in entry_points(group="poetopt.rules"):
        before = _snapshot()
        try:
            imports.load(point, "gradient rules", ModelError)
        except ModelError:
            # undo the partial registration, so that the next call raises the same error
            _restore(before)
            _LOADED.clear()
            raise


def registered() -> Mapping[tuple[str, str], Mapping[int, Rule]]:
    """Return all rules, sorted: (domain, op) -> since -> rule."""
    load_rules()
    return {key: dict(sorted(_RULES[key].items())) for key in sorted(_RULES)}


def nondifferentiable() -> Mapping[tuple[str, str], frozenset[int] | None]:
    """Return all declarations, sorted: (domain, op) -> the inputs without a gradient, None for all of them."""
    load_rules()
    return {key: _NONDIFFERENTIABLE[key] for key in sorted(_NONDIFFERENTIABLE)}


def principal(operator: Operator) -> Node:
    """Return the node whose signature is the operator's: its fused op, else the node of its kind, else the first."""
    if operator.meaning is not None:
        return operator.meaning
    return next((node for node in operator.nodes if node.op_type == operator.kind), operator.nodes[0])


def signature(operator: Operator) -> tuple[str, str]:
    """Return domain and name under which an operator's rule is registered.

    They are the op of a single node, the fused op of a composite region, and the kind of another operator of
    several nodes, which poetopt itself wrote.
    """
    if operator.meaning is not None or len(operator.nodes) == 1:
        node = principal(operator)
        return ("" if node.domain == "ai.onnx" else node.domain), node.op_type
    return "", operator.kind


def find_rule(operator: Operator, opset: int) -> Rule | None:
    """Return the rule with the highest `since` that is not above `opset`, or None."""
    load_rules()
    domain, op_type = signature(operator)
    versions = _RULES.get((domain, op_type), {})
    usable = [since for since in versions if since <= opset or domain]
    return versions[max(usable)] if usable else None


def rule_of(operator: Operator, opset: int) -> Rule:
    """Return the rule of an operator; raise MissingVjpError, which says how to add one, where there is none."""
    rule = find_rule(operator, opset)
    if rule is not None:
        return rule
    domain, op_type = signature(operator)
    since = sorted(_RULES.get((domain, op_type), {}))
    existing = f"It has rules since opset {', '.join(map(str, since))}" if since else "It has no rule at any opset"
    raise MissingVjpError(
        f"node {operator.name!r}: no gradient rule for {op_type} (domain {domain or 'ai.onnx'!r}, opset {opset}). "
        f"{existing}. Add one with @poetopt.autodiff.register_vjp({op_type!r}, since={opset}"
        + (f", domain={domain!r}" if domain else "")
        + "), or call declare_nondifferentiable if no gradient flows back through it"
    )


def blocked_inputs(operator: Operator) -> frozenset[int] | None:
    """Return the positions of inputs that get no gradient, or None for all of them."""
    load_rules()
    return _NONDIFFERENTIABLE.get(signature(operator), frozenset())


def missing_inputs(operator: Operator) -> frozenset[int]:
    """Return the positions of inputs that are differentiable but have no rule."""
    load_rules()
    return _MISSING.get(signature(operator), frozenset())


def flows(
    tensors: Mapping[str, Tensor], operators: Iterable[Operator]
) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    """Yield, for each operator that passes gradients, the inputs that get one and the outputs that have one.

    A gradient flows along floating-point tensors, except where an op or an input is declared
    non-differentiable, and along the integers of a quantizer through which gradients pass.
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
    """Return `roots` and every tensor from which a gradient can flow back to one of them."""
    live = set(roots)
    for read, written in flows(tensors, operators):
        if not live.isdisjoint(read):
            live.update(written)
    return live


def is_float(tensor: Tensor) -> bool:
    """Return whether `tensor` is of a floating-point type, along which gradients flow."""
    return tensor.dtype in {"float16", "bfloat16", "float32", "float64"}
