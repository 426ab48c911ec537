"""`check_vjp` passes the rules of the house and catches broken ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from poetopt.autodiff import registry
from poetopt.autodiff.registry import Cotangents, Gradients, Primal, Rule
from poetopt.testing import ContractError, check_vjp

DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((3, 4))
Install = Callable[[Rule], None]


def test_the_rules_of_the_house() -> None:
    assert max(check_vjp("Tanh", X).deviation.values()) < 1e-6
    found = check_vjp("Gemm", X, DRAW.standard_normal((5, 4)), DRAW.standard_normal(5), attributes={"transB": 1})
    assert set(found.deviation) == {"input 0", "input 1", "input 2"}
    check_vjp("MaxPool", DRAW.permutation(64).reshape(1, 1, 8, 8) * 0.1, attributes={"kernel_shape": (2, 2)})
    check_vjp("Gather", X, np.array([2, 0, 2]))
    check_vjp("Split", X, np.array([1, 3]), attributes={"axis": 1}, outputs=2)


@pytest.fixture
def install() -> Iterator[Install]:
    """Puts a rule in the place of Softsign's."""
    registry.load_rules()
    built_in = registry._RULES.pop(("", "Softsign"))

    def put(rule: Rule) -> None:
        registry.register_vjp("Softsign", since=1)(rule)

    yield put
    registry._RULES[("", "Softsign")] = built_in


def right(op: Primal, cotangents: Cotangents) -> Gradients:
    k = op.emit("grad_input")
    rest = k.sub(k.graph.scalar(1.0, op.y.dtype), k.unary("Abs", op.y))
    return (k.mul(op.only(cotangents), k.mul(rest, rest)),)


def wrong(op: Primal, cotangents: Cotangents) -> Gradients:
    """Forgets the square."""
    k = op.emit("grad_input")
    return (k.mul(op.only(cotangents), k.sub(k.graph.scalar(1.0, op.y.dtype), k.unary("Abs", op.y))),)


def none(op: Primal, cotangents: Cotangents) -> Gradients:
    return (None,)


def too_many(op: Primal, cotangents: Cotangents) -> Gradients:
    return (op.only(cotangents), op.only(cotangents))


def crash(op: Primal, cotangents: Cotangents) -> Gradients:
    raise LookupError("an attribute that isn't there")


def test_a_right_rule(install: Install) -> None:
    install(right)
    assert check_vjp("Softsign", X).deviation["input 0"] < 1e-6


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [(wrong, "the rule's gradient says"), (none, "no trained parameter (.*) reaches|no gradient comes"),
     (too_many, "rule"), (crash, "fails")],
    ids=lambda value: getattr(value, "__name__", ""),
)  # fmt: skip
def test_broken_rules_are_caught(install: Install, rule: Rule, complaint: str) -> None:
    install(rule)
    with pytest.raises(ContractError, match=complaint):
        check_vjp("Softsign", X)
