"""Operators as C functions: their names, the resident region that they read, and shared functions.

Operators that differ only in addresses and sizes share one C function, which takes these as parameters.

A network repeats its layers, and code is expensive on a microcontroller. Small numbers (a kernel's taps, steps, flags)
stay constants: the compiler unrolls their loops and decides their branches.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from poetopt.backends.step.parted import scheduled_names
from poetopt.backends.step.places import Places
from poetopt.devices.cost import in_flash
from poetopt.graph import DTYPE_BYTES, Operator, TrainingGraph
from poetopt.graph.problem import Problem
from poetopt.ops.nodes import resident_storages
from poetopt.ops.runtimes.c.kernel import WORD_BYTES, Arguments, Call
from poetopt.ops.runtimes.c.steps import KernelStep, layout, steps
from poetopt.ops.runtimes.contract import InnerLayout


def identifier(name: str) -> str:
    """Return `name` as a C identifier; not unique, and it may begin with a digit."""
    return re.sub(r"[^0-9A-Za-z]+", "_", name).strip("_")[:40] or "x"


def comment(text: str) -> str:
    """Return `text` for a comment: a line of printable ASCII without a meaning for C or a terminal."""
    plain = re.sub(r"\s+", " ", text).encode("ascii", "backslashreplace").decode("ascii")
    plain = re.sub(r"[^ -~]", "?", plain).replace("\\", "|").replace("*/", "* /").replace("/*", "/ *")
    return re.sub(r"\?(?=\?)", "? ", plain)  # two in a row begin a trigraph


def literal(text: str) -> str:
    """Return `text` as a C string."""
    made = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}" for byte in text.encode("utf-8")
    )
    return f'"{made}"'


@dataclass(frozen=True, slots=True)
class ResidentSpan:
    """Adjacent storages with given values: their offset, and their names in order."""

    offset: int
    nbytes: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resident:
    """Resident region, or constants in flash.

    Attributes
    ----------
    offsets
        Offset of each storage, by name. The widest elements come first, so that each is aligned for its own.
    nbytes
        Size of it all: the sum of the storages' sizes, and the words of kernels.
    given
        Values before the step (parameters, constants), in as few spans as possible.
    kept
        Offset of the words that kernels keep from step to step.
    """

    offsets: Mapping[str, int]
    nbytes: int
    given: tuple[ResidentSpan, ...]
    kept: int = 0


def lay_out_resident(graph: TrainingGraph, problem: Problem, kept_bytes: int = 0) -> tuple[Resident, Resident]:
    """Return the resident region of a step, and its part that `problem` has in mapped flash.

    Parameters
    ----------
    graph
        Graph of the whole step: of a split batch, `TrainingGraph.joint`.
    kept_bytes
        Bytes that kernels keep from step to step, in the region as well.
    """
    scheduled = scheduled_names(problem)
    flash = in_flash(graph, problem.flash_bytes)
    ram = [name for name in resident_storages(graph) if name not in scheduled and name not in flash]
    return _side_by_side(graph, ram, kept_bytes), _side_by_side(graph, flash, 0)


def _side_by_side(graph: TrainingGraph, names: Iterable[str], kept_bytes: int) -> Resident:
    """Place storages without gaps: by width of the elements, then given values, then in the order of `names`.

    The words of kernels come after all elements that are as wide or wider.
    """
    given_names = graph.values.keys() - {*graph.sums.values()}  # sums begin with zeros, whatever their values
    roots = sorted(names, key=lambda name: (-DTYPE_BYTES[graph.tensors[name].dtype], name not in given_names))
    offsets: dict[str, int] = {}
    spans: list[ResidentSpan] = []
    end = 0
    kept = -1
    for name in roots:
        nbytes = graph.tensors[name].nbytes
        if kept < 0 and DTYPE_BYTES[graph.tensors[name].dtype] < WORD_BYTES:
            kept = end
            end += kept_bytes
        offsets[name] = end
        if name in given_names:
            last = spans[-1] if spans else None
            if last is not None and last.offset + last.nbytes == end:
                spans[-1] = ResidentSpan(last.offset, last.nbytes + nbytes, (*last.names, name))
            else:
                spans.append(ResidentSpan(end, nbytes, (name,)))
        end += nbytes
    if kept < 0:
        kept = end
        end += kept_bytes
    return Resident(offsets, end, tuple(spans), kept)


Still = tuple[Resident, Resident]
"""Unscheduled tensors: in RAM, in flash."""
Run = tuple[int, int]
"""Index of an operator and its variant, 0 for the plain one, as in an instruction."""
PREFIX = "po_op"
"""Prefix of the names of operators' functions."""
WORKSPACE = "work"
"""Parameter for the operator's workspace."""


@dataclass(frozen=True, slots=True)
class OperatorCode:
    """C function that runs one operator.

    Attributes
    ----------
    name
        Name of the operator.
    function
        Name of the C function.
    tensors
        Tensors whose addresses it takes, by index in the problem, in order.
    workspace
        Whether it takes the address of a workspace, too, as the last.
    text
        Definition of the function.
    headers
        Kernels that it includes: the package that has them as data, and the file's name.
    state
        Words that kernels keep from step to step, by their first values.
    state_at
        Offset of these among the words of all operators.
    given
        First arguments in C, which distinguish it from others that share the function.
    stored
        Tensors whose first block on storage it takes, by index in the problem, as the last; it then returns a code.
    sums
        Whether it streams sums of gradients, and takes after these blocks whether they are begun.
    """

    name: str
    function: str
    tensors: tuple[int, ...]
    workspace: bool
    text: str
    headers: tuple[tuple[str, str], ...]
    state: tuple[int, ...]
    state_at: int
    given: tuple[str, ...] = ()
    stored: tuple[int, ...] = ()
    sums: bool = False


def operator_code(
    index: int,
    graph: TrainingGraph,
    problem: Problem,
    places: Places,
    still: Still,
    state_at: int,
    prefix: str = PREFIX,
) -> OperatorCode:
    """Return the function of operator `index` of `problem`, whose name begins with `prefix`.

    Raise `UnsupportedOpError` where a kernel is missing.
    """
    operator = places.operators[problem.operators[index].name]
    writer = Writer(operator, graph, places, still, layout(operator, graph.tensors, problem.alignment))
    lines: list[str] = []
    headers: dict[tuple[str, str], None] = {}
    state: list[int] = []
    for step in steps(operator, graph.tensors, graph.constants, problem.alignment):
        words = step.kernel.state(step.call)
        arguments = writer.arguments(step, len(state) if words else None)
        state += words
        headers.update(dict.fromkeys((step.kernel.include, header) for header in step.kernel.headers))
        lines.append(f"/* {shown(step.call)} */")
        lines += step.kernel.code(step.call, arguments).splitlines()
    function = f"{prefix}_{index}_{identifier(operator.name)}"
    parameters = [f"void *t{k}" for k in range(len(writer.tensors))]
    parameters += [f"void *{WORKSPACE}"] if writer.workspace else []
    parameters += ["uint32_t *state"] if state else []
    names = [problem.tensors[i].name for i in writer.tensors]
    told = "".join(f"\n   t{k}: {comment(name)}" for k, name in enumerate(names))
    head = f"/* operator {index}: {comment(operator.name)} ({comment(operator.kind)}){told} */"
    body = "".join(f"    {line}\n" if line else "\n" for line in lines)
    text = f"{head}\nPO_OPERATOR {function}({', '.join(parameters) or 'void'})\n{{\n{body}}}\n"
    return OperatorCode(
        operator.name, function, tuple(writer.tensors), writer.workspace, text, tuple(headers), tuple(state), state_at
    )


class Writer:
    """C expressions for the operands of an operator's calls."""

    def __init__(
        self, operator: Operator, graph: TrainingGraph, places: Places, still: Still, inner: InnerLayout
    ) -> None:
        self.operator = operator
        self.graph = graph
        self.places = places
        self.resident, self.flash = still
        self.inner = inner
        self.tensors: list[int] = []
        self.workspace = False

    def arguments(self, step: KernelStep, state: int | None) -> Arguments:
        """Return the arguments of a step's kernel code; `state` is the offset of its words."""
        call = step.call
        return Arguments(
            tuple(self.of(name) if name else "" for name in call.node.inputs),
            tuple(self.of(name) if name else "" for name in call.node.outputs),
            self._work(step.scratch_offset) if step.scratch_bytes else "",
            "" if state is None else f"(state + {state})",
        )

    def of(self, name: str) -> str:
        """Return the C address of the tensor `name`."""
        if name in self.inner.offsets:
            return self._work(self.inner.offsets[name])
        root = self.graph.root(self.inner.storage.get(name, name))
        if root in self.resident.offsets:
            return f"PO_RESIDENT({self.resident.offsets[root]}u)"
        if root in self.flash.offsets:
            return f"PO_FLASH({self.flash.offsets[root]}u)"
        index = self.places.index[root]
        if index not in self.tensors:
            self.tensors.append(index)
        return f"t{self.tensors.index(index)}"

    def _work(self, offset: int) -> str:
        self.workspace = True
        return f"PO_AT({WORKSPACE}, {offset}u)"


def shown(call: Call) -> str:
    """Return a call in words, for a comment."""
    node = call.node
    reads = ", ".join(comment(name) for name in node.inputs if name)
    return f"{comment(node.op_type)}: {reads} -> {', '.join(comment(name) for name in node.outputs if name)}"


Key = TypeVar("Key")

VALUE = re.compile(r"PO_(?:RESIDENT|FLASH)\(\d+u\)|(?<![\w.])\d+(?:\.\d+)?(?:e[-+]?\d+)?[uf]?(?![\w.])")
"""Matches possible parameters: unscheduled addresses and numbers."""
WHOLE = re.compile(r"memcpy\(|INT64|\b(?:float|double|u?int\d+_t) \w+\[")
"""Matches lines that keep their numbers: sizes of another type, and of arrays."""
COMMENT = re.compile(r"/\* ([^:]*?)(?:: .*?)? \*/")
HEAD = re.compile(r"(PO_\w+) (\w+)\((.*)\)\n")


def shared(operators: Mapping[Key, OperatorCode]) -> dict[Key, OperatorCode]:
    """Return `operators` with one function for several where possible: the first of these has its text."""
    groups: dict[str, list[Key]] = {}
    values: dict[Key, list[str]] = {}
    for key, code in operators.items():
        outline, values[key] = _outline(code.text)
        groups.setdefault(outline, []).append(key)
    codes = dict(operators)
    for outline, keys in groups.items():
        if len(keys) > 1:
            codes.update(_share_function(outline, {key: operators[key] for key in keys}, [values[key] for key in keys]))
    return codes


def _outline(text: str) -> tuple[str, list[str]]:
    """Return a definition without names and with a gap for each value, and the values."""
    _, _, definition = text.partition("*/\n")
    head, _, body = definition.partition("{\n")
    values: list[str] = []

    def gap(found: re.Match[str]) -> str:
        value = found[0]
        # numbers below 16 stay constants of a function
        if value.rstrip("u").isdigit() and int(value.rstrip("u")) < 16:
            return value
        values.append(value)
        return "\0"

    lines = []
    for line in body.splitlines():
        if "/*" in line:
            lines.append(COMMENT.sub(r"/* \1 */", line))
        elif WHOLE.search(line):
            lines.append(re.sub(r"PO_(?:RESIDENT|FLASH)\(\d+u\)", gap, line))
        else:
            lines.append(VALUE.sub(gap, line))
    return HEAD.sub(r"\1 \0(\3)\n", head) + "{\n" + "\n".join(lines) + "\n", values


def _share_function(
    outline: str, codes: Mapping[Key, OperatorCode], values: Sequence[Sequence[str]]
) -> dict[Key, OperatorCode]:
    """Return the codes of a group: the first has the function."""
    taken: dict[tuple[str, ...], str] = {}
    kinds: list[str] = []
    filled: list[str] = []
    for column in zip(*values, strict=True):
        if len(set(column)) == 1:
            filled.append(column[0])
            continue
        if column not in taken:
            kind = _type(column[0])
            letter = "p" if kind.endswith("*") else "n"
            taken[column] = f"{letter}{len(taken)}"
            kinds.append(f"{kind}{taken[column]}" if kind.endswith("*") else f"{kind} {taken[column]}")
        filled.append(taken[column])
    head, *pieces = outline.split("\0")
    first = next(iter(codes.values()))
    function = f"{first.function}_and_{len(codes) - 1}"
    parts = zip(filled, pieces[1:], strict=True)
    definition = head + function + pieces[0] + "".join(value + piece for value, piece in parts)
    parameters = ", ".join(kinds)
    definition = HEAD.sub(
        lambda m: f"{m[1]} {m[2]}({', '.join(filter(None, (parameters, '' if m[3] == 'void' else m[3])))})\n",
        definition,
        count=1,
    )
    names = "".join(f"\n   {comment(code.name)}" for code in codes.values())
    text = f"/* one function for {len(codes)} operators:{names} */\n{definition}"
    return {
        key: replace(
            code, function=function, text=text if code is first else "", given=tuple(column[k] for column in taken)
        )
        for k, (key, code) in enumerate(codes.items())
    }


def _type(value: str) -> str:
    if value.startswith("PO_"):
        return "void *" if value.startswith("PO_RESIDENT") else "const void *"
    return {"u": "uint32_t", "f": "float"}.get(value[-1], "int32_t")
