"""A plan in a few hundred bytes: what a device needs beside the problem that it trains.

The default is one compute of each operator in order, every buffer freed right after its last use
(`with_frees`). Only what differs is stored, as variable-length integers (7 bits a byte, low ones first;
signed ones zigzag, none over 32 bits):

    version (1 byte), fingerprint of the problem (4 bytes)
    number of events = recomputes, page-outs, page-ins, and first computes by a variant
      each: 4 * (operators computed for the first time since the event before) + kind, then
            target - prediction, signed; of a compute by a variant, its number
    number of exceptions = places where other tensors are freed than by default
      each: instructions that are not frees since the exception before, how many frees, and the
            tensors, each less the one before, signed
    CRC-32 of all before (4 bytes, little-endian)

The prediction is the recompute before for a recompute, the first output of the last operator for a page-out, the
first input of the next operator for a page-in, and the next operator for a compute by a variant.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Sequence
from typing import NoReturn

from poetopt.graph.problem import Feature, Home, Problem, check_supported
from poetopt.plan.assemble import with_frees
from poetopt.plan.instructions import Action, Instruction, Plan
from poetopt.util.errors import PlanError

VERSION = 1
FINGERPRINT_BYTES = 4
SUPPORTS = frozenset(Feature)
"""Features of problems whose plans are encoded."""
PLAIN = (str(Home.RAM), False, False, -1, False)
"""Home, carried, result, updated by and backed of a graph input."""
LAST_SHIFT = 28
"""Numbers have at most 32 bits: the fifth byte holds four of them."""
KINDS = (Action.COMPUTE, Action.PAGE_OUT, Action.PAGE_IN)
"""Each event's kind is its place here."""
STREAMED = 3
"""The kind of a compute by a variant."""


def encode_compact(plan: Plan) -> bytes:
    """The plan's instructions, without offsets: `lay_out` finds those again.

    The plan must be one that `simulate` passes.
    """
    problem = plan.problem
    check_supported(problem, "the compact encoding", SUPPORTS)
    events, frees = _split(plan.instructions)
    _, default = _split(with_frees(problem, events))
    data = bytearray([VERSION]) + fingerprint(problem)

    coded: list[int] = []
    count = ahead = gap = recomputed = 0
    for event in events:
        first = event.action is Action.COMPUTE and event.target == ahead
        if first and not event.variant:
            ahead += 1
            gap += 1
            continue
        if event.variant:
            coded += [4 * gap + STREAMED, _zigzag(event.target - ahead), event.variant]
        else:
            coded.append(4 * gap + KINDS.index(event.action))
            coded.append(_zigzag(event.target - _prediction(problem, event.action, ahead, recomputed)))
        if first:
            ahead += 1
        elif event.action is Action.COMPUTE:
            recomputed = event.target
        count, gap = count + 1, 0
    data += _varints([count, *coded])

    exceptions: list[int] = []
    count = before = 0
    for place, (actual, usual) in enumerate(zip(frees, default, strict=True)):
        if actual != usual:
            exceptions += [place - before, len(actual), *_deltas(actual)]
            count, before = count + 1, place
    data += _varints([count, *exceptions])
    return bytes(data) + zlib.crc32(data).to_bytes(4, "little")


def decode_compact(problem: Problem, data: bytes) -> Plan:
    """The plan for `problem` that `encode_compact` made these bytes of, without offsets.

    Raises PlanError where the bytes are damaged, of another version, or of another problem.
    """
    if len(data) < 1 + FINGERPRINT_BYTES + 4 or zlib.crc32(data[:-4]) != int.from_bytes(data[-4:], "little"):
        raise PlanError(f"the compact plan is damaged: its {len(data)} bytes don't have the checksum they should")
    if data[0] != VERSION:
        raise PlanError(f"the compact plan has version {data[0]}, and this program reads version {VERSION}")
    if data[1 : 1 + FINGERPRINT_BYTES] not in (fingerprint(problem), _fingerprint(problem, problem.model_hash)):
        raise PlanError(f"the compact plan is of another problem than {problem.name!r}; solve this one")
    reader = _BitReader(data[1 + FINGERPRINT_BYTES : -4])
    operators = len(problem.operators)
    events: list[Instruction] = []
    ahead = recomputed = 0
    for _ in range(reader.number()):
        gap, kind = divmod(reader.number(), 4)
        if ahead + gap > operators:
            _nonsense()
        events += [Instruction(Action.COMPUTE, k) for k in range(ahead, ahead + gap)]
        ahead += gap
        action = Action.COMPUTE if kind == STREAMED else KINDS[kind]
        predicted = ahead if kind == STREAMED else _prediction(problem, action, ahead, recomputed)
        target = predicted + _unzigzag(reader.number())
        if not 0 <= target < (operators if action is Action.COMPUTE else len(problem.tensors)):
            _nonsense()
        variant = reader.number() if kind == STREAMED else 0
        if kind == STREAMED and not 0 < variant <= len(problem.operators[target].variants):
            _nonsense()
        events.append(Instruction(action, target, variant))
        if kind == STREAMED and target == ahead:
            ahead += 1
        elif action is Action.COMPUTE:
            recomputed = target
    events += [Instruction(Action.COMPUTE, k) for k in range(ahead, operators)]

    _, frees = _split(with_frees(problem, events))
    place = 0
    for count in range(reader.number()):
        gap = reader.number()
        place += gap
        if place >= len(frees) or (count and not gap):
            _nonsense()
        tensors: list[int] = []
        for _ in range(reader.number()):
            tensors.append((tensors[-1] if tensors else 0) + _unzigzag(reader.number()))
        if not all(0 <= i < len(problem.tensors) for i in tensors):
            _nonsense()
        frees[place] = tensors
    if reader.left():
        _nonsense()
    instructions = [Instruction(Action.FREE, i) for i in frees[0]]
    for event, freed in zip(events, frees[1:], strict=True):
        instructions.append(event)
        instructions += [Instruction(Action.FREE, i) for i in freed]
    return Plan(problem, tuple(instructions))


class _BitReader:
    """Reads variable-length integers."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def number(self) -> int:
        value = shift = 0
        while True:
            if self.place >= len(self.data):
                _nonsense()
            byte = self.data[self.place]
            if shift == LAST_SHIFT and byte >> (32 - LAST_SHIFT):
                _nonsense()
            self.place += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def left(self) -> int:
        return len(self.data) - self.place


def _nonsense() -> NoReturn:
    raise PlanError("the compact plan names operators or tensors that this problem does not have; solve it again")


def _split(instructions: Iterable[Instruction]) -> tuple[list[Instruction], list[list[int]]]:
    """The instructions that are not frees; what is freed before the first and after each of them."""
    events: list[Instruction] = []
    frees: list[list[int]] = [[]]
    for step in instructions:
        if step.action is Action.FREE:
            frees[-1].append(step.target)
        else:
            events.append(step)
            frees.append([])
    return events, frees


def _prediction(problem: Problem, action: Action, ahead: int, recomputed: int) -> int:
    if action is Action.COMPUTE:
        return recomputed
    operators = problem.operators
    if action is Action.PAGE_OUT:
        near = problem.written_after(ahead - 1) if ahead else ()
    else:
        near = operators[ahead].inputs if ahead < len(operators) else ()
    return near[0] if near else 0


def fingerprint(problem: Problem) -> bytes:
    """Changes with the model's structure, and with all that decides what an instruction means or whether a plan fits.

    Weights are data, and don't count. Older ones are of the model's content.
    """
    return _fingerprint(problem, problem.structure_hash or problem.model_hash)


def _fingerprint(problem: Problem, model: str) -> bytes:
    kernels = f"{problem.runtime} {problem.runtime_version}"
    digest = hashlib.sha256(f"{model} {problem.alignment} {kernels}".encode())
    for operator in problem.operators:
        digest.update(repr((operator.inputs, operator.outputs, operator.workspace_bytes)).encode())
        digest.update(repr(operator.takes).encode() if operator.takes else b"")
        for way in operator.variants:
            digest.update(repr((way.streamed_in, way.streamed_out, way.workspace_bytes)).encode())
    for tensor in problem.tensors:
        digest.update(repr((tensor.nbytes, tensor.producer)).encode())
        if not tensor.computed or tensor.result:
            ends = (str(tensor.home), tensor.carried, tensor.result, tensor.updated_by, tensor.backed)
            digest.update(repr(ends).encode() if ends != PLAIN else b"")
    return digest.digest()[:FINGERPRINT_BYTES]


def _deltas(numbers: Sequence[int]) -> list[int]:
    return [_zigzag(number - before) for number, before in zip(numbers, [0, *numbers], strict=False)]


def _zigzag(number: int) -> int:
    return 2 * number if number >= 0 else -2 * number - 1


def _unzigzag(number: int) -> int:
    return number >> 1 if number & 1 == 0 else -(number + 1 >> 1)


def _varints(numbers: Iterable[int]) -> bytes:
    data = bytearray()
    for number in numbers:
        while number >= 0x80:
            data.append(number & 0x7F | 0x80)
            number >>= 7
        data.append(number)
    return bytes(data)
