"""Random configurations of every rule against float64 finite differences; the script of docs/ops.md draws many more."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poetopt.autodiff.registry import registered
from poetopt.ops.losses.vjp import ATTACHED
from tests.support.autodiff.errors import TOLERANCE, finite_difference_error
from tests.support.autodiff.random_specs import RANDOM, specs
from tests.support.each import each

WITHOUT = {"Cast", "CastLike"} | ATTACHED
"""Nothing to vary but the type; and a kind of `--loss mse` alone."""


@each("op", RANDOM)
def test_random_configurations(op: str) -> None:
    @settings(max_examples=2, deadline=None, derandomize=True, database=None,
              suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])  # fmt: skip
    @given(st.data())
    def check(data: st.DataObject) -> None:
        spec = data.draw(specs(op))
        assert finite_difference_error(spec, directions=1) <= TOLERANCE

    check()


def test_every_rule_is_drawn() -> None:
    assert {op for domain, op in registered() if not domain} == set(RANDOM) | WITHOUT
