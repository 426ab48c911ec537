"""The storage of a step in C: where each tensor begins on it, and tables whose rows go there one by one.

Tables whose rows go between RAM and storage one by one: which rows a batch uses, and where each is.

The user's program feeds the numbers of rows. A step begins with a list of those that the batch uses, each once, and
puts their places in the list into the input, as the operators read it. The list is in the resident region, behind the
words of kernels. On the storage a row begins with a block.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from poetopt.backends.c.operators import comment
from poetopt.backends.step.places import Places
from poetopt.graph import Tensor, TrainingGraph
from poetopt.graph.problem import Problem
from poetopt.ops.runtimes.c import runtime
from poetopt.plan.instructions import Action, Plan
from poetopt.util.errors import PlanError


@dataclass(frozen=True, slots=True)
class BlockStorage:
    """The storage of a step.

    blocks
        The first block of each tensor that is paged or streamed, or that has its first value there, by its name.
    first
        The tensors with their first values there and their bytes, in the order of their blocks, which come before all
        others.
    count
        How many blocks there are.
    block_bytes
        What is moved at once: the device's blocks, as many of them as make 512 B.
    """

    blocks: Mapping[str, int]
    first: Mapping[str, int]
    count: int
    block_bytes: int

    def of(self, problem: Problem) -> Mapping[int, int]:
        """`blocks` of the tensors of `problem`, by their index there."""
        return {i: self.blocks[held.name] for i, held in enumerate(problem.tensors) if held.name in self.blocks}


def erased_blocks(problem: Problem) -> int:
    """Blocks that the device erases at once; 1 where it hasn't to."""
    return max(1, problem.storage_erase_bytes // runtime.block_bytes(problem.storage_block_bytes))


def lay_out_storage(
    plans: Sequence[Plan], first: int = 0, whole: Mapping[str, int] | None = None, empty: Collection[str] = ()
) -> BlockStorage:
    """Whole blocks for each tensor, from block `first` on: what begins there, then what else the plans move.

    What fills an erase block shares none with others, so that writing it from begin to end erases each once.

    whole
        Bytes there of those that are larger than in RAM, by name: tables by rows.
    empty
        What has no value that matters before the first step.
    """
    begin: dict[str, int] = {}
    moved: dict[str, int] = {}
    for plan in plans:
        tensors = plan.problem.tensors
        begun = sorted({*plan.problem.stored_at_start, *plan.problem.lasting})
        begin |= {tensors[i].name: tensors[i].nbytes for i in begun if tensors[i].name not in empty}
        moved |= {tensors[i].name: tensors[i].nbytes for i in sorted({*begun, *_moved(plan)})}
    sizes = {**begin, **moved}
    blocks: dict[str, int] = {}
    end = first
    unit, block = erased_blocks(plans[0].problem), runtime.block_bytes(plans[0].problem.storage_block_bytes)
    for name in sizes:
        count = -(-(whole or {}).get(name, sizes[name]) // block)
        if count >= unit:
            end = -(-end // unit) * unit
        blocks[name] = end
        end += count if count < unit else -(-count // unit) * unit
    return BlockStorage(blocks, begin, end, block)


def _moved(plan: Plan) -> set[int]:
    """Gives what a plan pages or streams."""
    found = {step.target for step in plan.instructions if step.action in (Action.PAGE_OUT, Action.PAGE_IN)}
    for step in plan.instructions:
        if step.action is Action.COMPUTE and step.variant:
            way = plan.problem.operators[step.target].variant(step.variant)
            found.update((*way.streamed_in, *way.streamed_out))
    return found


@dataclass(frozen=True, slots=True)
class ListedTable:
    """A table by rows.

    whole
        All of it.
    block_bytes
        Of the storage.
    count
        How many rows its tensor in the arena has room for.
    ids
        The input that says which; "" where a constant does.
    fixed
        The rows that a constant says.
    numbers_at
        Where in the resident region the list lies, its length first.
    of
        The table that has the list, for an optimizer's state; else itself. By index in the problem.
    """

    name: str
    whole: Tensor
    block_bytes: int
    count: int
    ids: str
    fixed: tuple[int, ...]
    numbers_at: int
    of: int

    @property
    def row_bytes(self) -> int:
        """Bytes of a row: whole blocks."""
        return self.whole.nbytes // self.whole.shape[0]

    @property
    def identifier(self) -> str:
        """Gives what C calls the list."""
        return f"po_rows_{self.of}"


def list_of(name: str, graph: TrainingGraph, places: Places) -> str:
    """Gives what C calls the list of rows of a table, or of an optimizer's state of one."""
    return f"po_rows_{places.index[graph.rows[name].of or name]}"


def tables_of(graph: TrainingGraph, places: Places, kept: int, block: int) -> dict[int, ListedTable]:
    """The tables of a step by their index in the problem; their lists lie from `kept` on; `block` is moved at once.

    Raises `PlanError` where a row isn't whole blocks of the storage.
    """
    found: dict[int, ListedTable] = {}
    for name, rows in graph.rows.items():
        whole = Tensor(name, tuple(rows.values.shape), graph.tensors[name].dtype, graph.tensors[name].role)
        count = graph.tensors[name].shape[0]
        made = ListedTable(name, whole, block, count, rows.ids, rows.fixed, kept, places.index[rows.of or name])
        if made.row_bytes % block:
            raise PlanError(
                f"a row of the table {name!r} has {made.row_bytes} B, and C reads whole blocks of {block:,} B from "
                "storage alone; solve with --parameters resident, or an optimizer with which tables stay whole"
            )
        found[places.index[name]] = made
        if rows.ids and not rows.of:
            kept += runtime.row_numbers_bytes(count)
    return found


def declared(tables: Mapping[int, ListedTable]) -> Iterator[str]:
    """The lists of rows, in C."""
    for index, table in tables.items():
        if table.of != index:
            continue
        if table.ids:
            yield f"/* The number of rows of {comment(table.name)} that the batch uses, and these rows. */\n"
            yield f"#define {table.identifier} ((uint32_t *)PO_RESIDENT({table.numbers_at}u))\n\n"
        else:
            numbers = ", ".join(f"{number}u" for number in (len(table.fixed), *table.fixed))
            yield f"/* The number of rows of {comment(table.name)} that every batch uses, and these rows. */\n"
            yield f"static const uint32_t {table.identifier}[{len(table.fixed) + 1}] = {{{numbers}}};\n\n"


def moved(tables: Mapping[int, ListedTable], index: int, block: int, address: str, *, out: bool) -> str:
    """The call that moves the rows of a table."""
    table = tables[index]
    way = "po_rows_out" if out else "po_rows_in"
    blocks = table.row_bytes // table.block_bytes
    return f"{way}({table.identifier}, {block}u, {blocks}u, {address}, {table.row_bytes}u)"
