"""Features of problems that not every algorithm supports, and the check for them.

An algorithm names the features that it supports. A problem with another one is rejected with a message, instead of
being solved incorrectly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from enum import StrEnum
from typing import TYPE_CHECKING, NoReturn

from poetopt.graph.problem.tensors import Home, ProblemOperator, ProblemTensor
from poetopt.util.errors import ProblemError

if TYPE_CHECKING:
    from poetopt.graph.problem.problem import Problem


class Feature(StrEnum):
    """Features of tensors and operators besides being computed or being in RAM at the start."""

    STORED = "is on storage when the step begins"
    MAPPED = "is in mapped flash"
    CARRIED = "must be in RAM again when the step ends"
    RESULT = "must be in RAM when the step ends"
    UPDATED = "is updated in place"
    STREAMED = "has variants with streamed operands"
    OVERTAKEN = "may not run after an update of its input"
    TAKEN = "writes its output over an input"


COMPUTES = frozenset({Feature.OVERTAKEN})
"""Features that matter only to algorithms that recompute."""


PLAINLY = frozenset({Feature.STREAMED, Feature.TAKEN})
"""Features that need no support: variants are optional, and `Problem.extra_bytes` accounts for overwritten inputs."""


def features(problem: Problem) -> Iterator[tuple[Feature, str]]:
    """Yield each feature of each tensor and operator, with its owner."""
    for tensor in problem.tensors:
        owner = f"tensor {tensor.name!r}"
        if tensor.home is Home.STORAGE or tensor.backed:
            yield Feature.STORED, owner
        if tensor.home is Home.FLASH:
            yield Feature.MAPPED, owner
        if tensor.carried and tensor.home is Home.RAM:
            yield Feature.CARRIED, owner
        if tensor.result:
            yield Feature.RESULT, owner
        if tensor.updated:
            yield Feature.UPDATED, owner
    for operator in problem.operators:
        if operator.variants:
            yield Feature.STREAMED, f"operator {operator.name!r}"
        if operator.updaters:
            yield Feature.OVERTAKEN, f"operator {operator.name!r}"
        if operator.takes:
            yield Feature.TAKEN, f"operator {operator.name!r}"


def check_supported(problem: Problem, who: str, supports: Set[Feature] = frozenset()) -> None:
    """Raise ProblemError if a problem has a feature that isn't in `supports`.

    Parameters
    ----------
    who
        Subject of the message.
    """
    unsupported = problem.beyond(supports)
    if unsupported is not None:
        raise ProblemError(f"{who} can't solve this problem yet: {unsupported}. Leave that out of the problem")


def check(problem: Problem) -> None:
    """Raise ProblemError, naming the tensor or operator, if they contradict each other."""
    operators, tensors = problem.operators, problem.tensors
    for key in ("alignment", "storage_block_bytes", "storage_erase_bytes"):
        if getattr(problem, key) < 1:
            raise ProblemError(f'"{key}" must be a number of at least 1')
    writer = [-1] * len(tensors)
    readers: dict[int, list[int]] = {i: [] for i, tensor in enumerate(tensors) if tensor.updated}
    for k, operator in enumerate(operators):
        for key, indices in (("inputs", operator.inputs), ("outputs", operator.outputs)):
            last = -1
            for i in indices:
                if not last < i < len(tensors):
                    raise ProblemError(
                        f'operators[{k}]: "{key}" must be ascending indices in a table of {len(tensors)} '
                        f"({operator.name!r})"
                    )
                last = i
        for i in operator.outputs:
            if writer[i] >= 0:
                _refuse(i, tensors[i], f"operators {writer[i]} and {k} both write it")
            writer[i] = k
        for i in operator.inputs:
            if i in readers:
                readers[i].append(k)
        if operator.variants:
            _check_variants(k, operator, tensors)
        if operator.takes:
            _check_takes(k, operators, tensors)
        if any(not k < updater < len(operators) for updater in operator.updaters):
            raise ProblemError(f'operators[{k}] ({operator.name!r}): "updaters" must be operators that come after it')
    for i, tensor in enumerate(tensors):
        if tensor.producer != writer[i]:
            _refuse(i, tensor, "its producer is not the operator that writes it")
        if tensor.computed is not (tensor.home is Home.NOWHERE):
            what = "an operator writes it first" if tensor.computed else "no operator writes it"
            _refuse(i, tensor, f"its home can't be '{tensor.home}', because {what}")
        if tensor.carried and tensor.computed:
            _refuse(i, tensor, "a tensor without a home can't be carried. Make it a result, which is in RAM at the end")
        if tensor.backed and tensor.home is not Home.RAM:
            _refuse(i, tensor, "only a tensor with its home in RAM can also have a copy on storage")
        if tensor.result and not tensor.computed:
            _refuse(i, tensor, "only a computed tensor can be a result. Carry a tensor that has a home")
        if tensor.updated:
            _check_update(i, tensor, readers[i])


def _check_takes(k: int, operators: Sequence[ProblemOperator], tensors: Sequence[ProblemTensor]) -> None:
    operator = operators[k]
    place = f'operators[{k}] ({operator.name!r}): "takes"'
    old, new = operator.takes if len(operator.takes) == 2 else (-1, -1)
    if old not in operator.inputs or new not in operator.outputs:
        raise ProblemError(f"{place} must be an input and an output of the operator")
    if tensors[old].nbytes != tensors[new].nbytes:
        raise ProblemError(f"{place} must be two tensors of the same size")
    updated = tensors[old].updated_by == k and tensors[old].home is Home.RAM and not tensors[old].carried
    if operator.recomputable or not (tensors[old].computed or updated) or tensors[old].result:
        raise ProblemError(f"{place} requires an operator that runs once, and a computed input that is no result")
    if not updated and any(old in other.inputs for n, other in enumerate(operators) if n != k):
        raise ProblemError(f"{place}: another operator also reads {tensors[old].name!r}")


def _check_update(i: int, tensor: ProblemTensor, readers: Sequence[int]) -> None:
    if tensor.computed:
        _refuse(i, tensor, "only a tensor with a home can be updated, and an operator computes this one")
    if tensor.home is Home.FLASH:
        _refuse(i, tensor, "it is in flash, which is never written, so it can't be updated")
    if tensor.updated_by not in readers:
        _refuse(i, tensor, f"operator {tensor.updated_by} updates it, but doesn't read it")
    if readers[-1] > tensor.updated_by:
        _refuse(i, tensor, f"operator {readers[-1]} reads it after operator {tensor.updated_by} has updated it")


def _check_variants(k: int, operator: ProblemOperator, tensors: Sequence[ProblemTensor]) -> None:
    written = (*operator.outputs, *(i for i in operator.inputs if tensors[i].updated_by == k))
    for variant in operator.variants:
        for key, streamed, operands in (
            ("streamed_in", variant.streamed_in, operator.inputs),
            ("streamed_out", variant.streamed_out, written),
        ):
            if list(streamed) != sorted(set(streamed) & set(operands)):
                raise ProblemError(
                    f'operators[{k}] ({operator.name!r}): "{key}" of a variant must be ascending indices among the '
                    "operator's own"
                )
        for i in variant.streamed_in:
            if tensors[i].home is Home.FLASH:
                _refuse(i, tensors[i], f"it is read in flash, but a variant of {operator.name!r} streams it")
        for i in written:
            if tensors[i].updated_by == k and (i in variant.streamed_in) is not (i in variant.streamed_out):
                _refuse(i, tensors[i], f"{operator.name!r} updates it: a variant must stream it in and out, or neither")


def _refuse(i: int, tensor: ProblemTensor, what: str) -> NoReturn:
    raise ProblemError(f"tensors[{i}] ({tensor.name!r}): {what}")
