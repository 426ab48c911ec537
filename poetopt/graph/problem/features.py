"""Features of problems that not everybody can plan for yet, and who says so.

Whoever takes a problem names the features that it supports; what goes beyond them is refused in one sentence, instead
of being answered wrongly.
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
    """Holds what the tensors and operators of a problem may have, beside being computed or given in RAM."""

    STORED = "lies on storage when the step begins"
    MAPPED = "lies in mapped flash"
    CARRIED = "has to be in RAM, where it began, when the step ends"
    RESULT = "has to be in RAM when the step ends"
    UPDATED = "is written anew over itself"
    STREAMED = "has variants with streamed operands"
    OVERTAKEN = "may not run after an update of what it reads"
    TAKEN = "writes its output over what it reads"


COMPUTES = frozenset({Feature.OVERTAKEN})
"""What matters to those alone who compute operators again."""


PLAINLY = frozenset({Feature.STREAMED, Feature.TAKEN})
"""What takes no care: variants needn't be used, and `Problem.extra_bytes` says what taking over an input spares."""


def features(problem: Problem) -> Iterator[tuple[Feature, str]]:
    """Each feature of each tensor and operator, and whose it is."""
    for tensor in problem.tensors:
        named = f"tensor {tensor.name!r}"
        if tensor.home is Home.STORAGE or tensor.backed:
            yield Feature.STORED, named
        if tensor.home is Home.FLASH:
            yield Feature.MAPPED, named
        if tensor.carried and tensor.home is Home.RAM:
            yield Feature.CARRIED, named
        if tensor.result:
            yield Feature.RESULT, named
        if tensor.updated:
            yield Feature.UPDATED, named
    for operator in problem.operators:
        if operator.variants:
            yield Feature.STREAMED, f"operator {operator.name!r}"
        if operator.updaters:
            yield Feature.OVERTAKEN, f"operator {operator.name!r}"
        if operator.takes:
            yield Feature.TAKEN, f"operator {operator.name!r}"


def check_supported(problem: Problem, who: str, supports: Set[Feature] = frozenset()) -> None:
    """Raise ProblemError where a problem holds what `who` (the subject of the message) can't plan for."""
    beyond = problem.beyond(supports)
    if beyond is not None:
        raise ProblemError(f"{who} can't take this problem yet: {beyond}; leave that out of the problem")


def check(problem: Problem) -> None:
    """Raise ProblemError, naming the tensor or operator, where they contradict each other."""
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
                        f'operators[{k}]: "{key}" must be ascending places in a table of {len(tensors)} '
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
            _refuse(i, tensor, f"its home can't be '{tensor.home}', as {what}")
        if tensor.carried and tensor.computed:
            _refuse(i, tensor, "what has no home can't be carried; a result stays in RAM at the end")
        if tensor.backed and tensor.home is not Home.RAM:
            _refuse(i, tensor, "only what begins in RAM has a copy on storage beside it")
        if tensor.result and not tensor.computed:
            _refuse(i, tensor, "only what an operator computes is a result; carry what has a home")
        if tensor.updated:
            _check_update(i, tensor, readers[i])


def _check_takes(k: int, operators: Sequence[ProblemOperator], tensors: Sequence[ProblemTensor]) -> None:
    operator = operators[k]
    named = f'operators[{k}] ({operator.name!r}): "takes"'
    given, made = operator.takes if len(operator.takes) == 2 else (-1, -1)
    if given not in operator.inputs or made not in operator.outputs:
        raise ProblemError(f"{named} must be an input and an output of its own")
    if tensors[given].nbytes != tensors[made].nbytes:
        raise ProblemError(f"{named} must be two tensors of one size")
    updated = tensors[given].updated_by == k and tensors[given].home is Home.RAM and not tensors[given].carried
    if operator.recomputable or not (tensors[given].computed or updated) or tensors[given].result:
        raise ProblemError(f"{named} is for what runs once, and for an input that is computed and no result")
    if not updated and any(given in other.inputs for n, other in enumerate(operators) if n != k):
        raise ProblemError(f"{named}: another operator reads {tensors[given].name!r}, too")


def _check_update(i: int, tensor: ProblemTensor, readers: Sequence[int]) -> None:
    if tensor.computed:
        _refuse(i, tensor, "only what has a home is updated, and an operator computes this")
    if tensor.home is Home.FLASH:
        _refuse(i, tensor, "it lies in flash, which is never written, and can't be updated")
    if tensor.updated_by not in readers:
        _refuse(i, tensor, f"operator {tensor.updated_by} updates it, and doesn't read it")
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
                    f'operators[{k}] ({operator.name!r}): "{key}" of a variant must be ascending places among the '
                    "operator's own"
                )
        for i in variant.streamed_in:
            if tensors[i].home is Home.FLASH:
                _refuse(i, tensors[i], f"it is read in flash, and a variant of {operator.name!r} streams it")
        for i in written:
            if tensors[i].updated_by == k and (i in variant.streamed_in) is not (i in variant.streamed_out):
                _refuse(
                    i, tensors[i], f"{operator.name!r} updates it: a variant streams it both in and out, or neither"
                )


def _refuse(i: int, tensor: ProblemTensor, what: str) -> NoReturn:
    raise ProblemError(f"tensors[{i}] ({tensor.name!r}): {what}")
