"""Chains of layers: forward 1..n, a loss, and backward n..1."""

from __future__ import annotations

from poetopt.graph.problem import Problem, ProblemOperator, ProblemTensor, Transfers


def chain(
    layers: int,
    *,
    sizes: list[int] | None = None,
    costs: list[float] | None = None,
    gradient_bytes: int = 1,
    input_bytes: int = 0,
    own_output: bool = True,
    backward_workspace: int = 0,
    paging: bool = False,
    dma: bool = False,
    page_s: float = 1.0,
    page_j: float = 1.0,
) -> Problem:
    """One tensor an operator; sizes and costs are 1 unless they are given.

    sizes, costs
        Of the layers' activations, and joules (and seconds) of their forward operators.
    own_output
        Whether the backward operator of a layer reads the layer's output as well as its input.
    """
    size = sizes or [1] * layers
    cost = costs or [1.0] * layers

    def tensor(name: str, nbytes: int, producer: int) -> ProblemTensor:
        return ProblemTensor(
            name, nbytes, producer, Transfers(page_s * nbytes, page_j * nbytes, page_s * nbytes, page_j * nbytes)
        )

    tensors = [tensor("x", input_bytes, -1)]
    operators: list[ProblemOperator] = []
    for k in range(layers):
        operators.append(ProblemOperator(f"f{k + 1}", (k,), (k + 1,), cost[k], cost[k]))
        tensors.append(tensor(f"a{k + 1}", size[k], k))
    operators.append(ProblemOperator("loss", (layers,), (layers + 1,), 1.0, 1.0))
    tensors.append(tensor("g", gradient_bytes, layers))
    for k in range(layers, 0, -1):
        gradient = len(tensors) - 1
        reads = (k - 1, k, gradient) if own_output else (k - 1, gradient)
        operators.append(ProblemOperator(f"b{k}", reads, (gradient + 1,), 1.0, 1.0, backward_workspace, backward=True))
        tensors.append(tensor(f"g{k}", gradient_bytes, len(operators) - 1))
    return Problem("chain", "unit", tuple(operators), tuple(tensors), paging=paging, dma=dma)
