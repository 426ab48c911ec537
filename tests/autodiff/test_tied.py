"""A weight that is both a table of embeddings and the matrix of the last layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import poetopt as po
from poetopt.autodiff import differentiate
from poetopt.devices.cost import cost
from poetopt.devices.loading import device
from poetopt.graph import TrainingGraph
from tests.support.autodiff.build import graph
from tests.support.autodiff.oracle import batch, run

WORDS = np.random.default_rng(0).standard_normal((40, 4)).astype(np.float32)


def steps(indices: Sequence[int]) -> tuple[TrainingGraph, TrainingGraph]:
    """The network with the weight shared, and with a copy of it for each use."""
    ids = np.array(indices, np.int64)
    nodes = "e = Gather(w, ids)\nh = Tanh(e)\ny = Gemm<transB=1>(h, {})"
    tied = graph(nodes.format("w"), {}, {"w": WORDS, "ids": ids}, ["y"])
    apart = graph(nodes.format("v"), {}, {"w": WORDS, "v": WORDS, "ids": ids}, ["y"])
    return differentiate(tied), differentiate(apart)


@pytest.mark.parametrize("indices", [(3, 9, 3, 3, 0, -1), (5,), tuple(range(0, 40, 3)), tuple(range(30)) * 2])
def test_the_gradient_is_the_sum_over_both_uses(indices: Sequence[int]) -> None:
    tied, apart = steps(indices)
    feeds = batch(tied, 1)
    got, want = run(tied, feeds)["w.grad"], run(apart, feeds)
    np.testing.assert_allclose(got, want["w.grad"] + want["v.grad"], rtol=1e-5, atol=1e-6)


def test_no_tensor_of_zeros_is_made() -> None:
    tied, _ = steps((3, 9, 0))
    size = tied.tensors["w"].nbytes
    temporary = {n for o in tied.operators for node in o.nodes for n in node.outputs if n not in o.outputs}
    assert max(tied.tensors[name].nbytes for name in temporary) < size
    large = [o for o in tied.operators if any(tied.tensors[n].nbytes == size for n in o.outputs)]
    assert len(large) == 2


def test_the_second_use_adds_in_place() -> None:
    """One resident buffer for the gradient, however many uses the weight has; no schedule sees it."""
    tied, apart = steps((3, 9, 0))
    (adding,) = (o for o in tied.operators if o.over)
    assert adding.outputs == ("w.grad",)
    assert tied.root("w.grad") == adding.over
    assert tied.readers[adding.over] == (adding,)
    assert not adding.recomputable
    problem = cost(tied, device("a72"))
    assert {adding.over, "w.grad"}.isdisjoint(tensor.name for tensor in problem.tensors)
    assert problem.resident_bytes < cost(apart, device("a72")).resident_bytes
    assert po.execute(po.solve(problem)).ok
