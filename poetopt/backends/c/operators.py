"""Each operator of a plan as one C function, which takes the addresses in the arena and calls the kernels."""

from __future__ import annotations

from dataclasses import dataclass

from poetopt.backends.c.names import comment, identifier
from poetopt.backends.c.resident import Resident
from poetopt.graph import Operator, TrainingGraph
from poetopt.operators.constants import constants_of
from poetopt.problem import Problem
from poetopt.runtimes.c.kernel import Arguments, Call
from poetopt.runtimes.c.steps import Step, layout, steps
from poetopt.runtimes.contract import InnerLayout
from poetopt.step.places import Places

Still = tuple[Resident, Resident]
"""What no schedule moves: in RAM, in flash."""
Run = tuple[int, int]
"""An operator and how it runs, as an instruction says it: by its variant, 0 for the plain one."""
PREFIX = "po_op"
"""What the names of operators' functions begin with."""
WORKSPACE = "work"
"""The parameter that is the operator's workspace."""


@dataclass(frozen=True, slots=True)
class OperatorCode:
    """A C function that runs one operator.

    name
        Of the operator.
    function
        Of the C function.
    tensors
        What it takes the addresses of, by index in the problem, in order.
    workspace
        Whether it takes that of a workspace, too, as the last.
    text
        The function's definition.
    headers
        What kernels it includes: the package that has it as data, and the file's name.
    state
        Words that kernels keep from step to step, by their first values.
    state_at
        Where these begin among those of all operators.
    given
        What it is called with before anything else, in C: what tells it from others that share the function.
    stored
        What it takes the first block on storage of, by index in the problem, as the last; it returns a code then.
    sums
        Whether it streams sums of gradients, and takes behind these blocks whether they are begun.
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
    """The function of operator `index` of `problem`, whose name begins with `prefix`.

    Raises `UnsupportedOpError` where no kernel runs one of its nodes.
    """
    operator = places.operators[problem.operators[index].name]
    writer = Writer(operator, graph, places, still, layout(operator, graph.tensors, problem.alignment))
    lines: list[str] = []
    headers: dict[tuple[str, str], None] = {}
    state: list[int] = []
    for step in steps(operator, graph.tensors, constants_of(graph), problem.alignment):
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
    """The C expressions of what an operator's calls name."""

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

    def arguments(self, step: Step, state: int | None) -> Arguments:
        """What the code of a step's kernel is written with; `state`: where its words begin."""
        call = step.call
        return Arguments(
            tuple(self.of(name) if name else "" for name in call.node.inputs),
            tuple(self.of(name) if name else "" for name in call.node.outputs),
            self._work(step.scratch_offset) if step.scratch_bytes else "",
            "" if state is None else f"(state + {state})",
        )

    def of(self, name: str) -> str:
        """Where the tensor `name` lies."""
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
    """A call in words, as a comment has it."""
    node = call.node
    reads = ", ".join(comment(name) for name in node.inputs if name)
    return f"{comment(node.op_type)}: {reads} -> {', '.join(comment(name) for name in node.outputs if name)}"
