"""Storage of a step in C: first block of each tensor, and tables whose rows are paged one by one.

The user's program feeds the numbers of rows. A step begins with a list of the distinct rows that the batch uses, and
replaces the numbers in the input by places in that list, as the operators read it. The list is in the resident region,
after the words of kernels. On the storage a row begins with a block.
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
    """Storage of a step.

    Attributes
    ----------
    blocks
        First block of each tensor that is paged, streamed, or begins on storage, by its name.
    first
        Tensors with their first values there and their bytes, in the order of their blocks, which precede all others.
    count
        Number of blocks.
    block_bytes
        Unit of transfers: the device's blocks, as many of them as make 512 B.
    """

    blocks: Mapping[str, int]
    first: Mapping[str, int]
    count: int
    block_bytes: int

    def of(self, problem: Problem) -> Mapping[int, int]:
        """Return `blocks` of the tensors of `problem`, by index."""
        return {i: self.blocks[tensor.name] for i, tensor in enumerate(problem.tensors) if tensor.name in self.blocks}


def erased_blocks(problem: Problem) -> int:
    """Return the number of blocks that the device erases at once; 1 where it doesn't erase."""
    return max(1, problem.storage_erase_bytes // runtime.block_bytes(problem.storage_block_bytes))


def lay_out_storage(
    plans: Sequence[Plan], first: int = 0, whole: Mapping[str, int] | None = None, empty: Collection[str] = ()
) -> BlockStorage:
    """Assign whole blocks to each tensor, from block `first` on: first values, then other tensors that the plans move.

    A tensor that fills an erase block shares none with others, so that writing it in order erases each block once.

    Parameters
    ----------
    whole
        Bytes on storage of tensors that are larger there than in RAM, by name: tables by rows.
    empty
        Names of tensors whose value before the first step doesn't matter.
    """
    first_bytes: dict[str, int] = {}
    moved: dict[str, int] = {}
    for plan in plans:
        tensors = plan.problem.tensors
        stored = sorted({*plan.problem.stored_at_start, *plan.problem.lasting})
        first_bytes |= {tensors[i].name: tensors[i].nbytes for i in stored if tensors[i].name not in empty}
        moved |= {tensors[i].name: tensors[i].nbytes for i in sorted({*stored, *_paged_or_streamed(plan)})}
    sizes = {**first_bytes, **moved}
    blocks: dict[str, int] = {}
    end = first
    erase_unit, block = erased_blocks(plans[0].problem), runtime.block_bytes(plans[0].problem.storage_block_bytes)
    for name in sizes:
        count = -(-(whole or {}).get(name, sizes[name]) // block)
        if count >= erase_unit:
            end = -(-end // erase_unit) * erase_unit
        blocks[name] = end
        end += count if count < erase_unit else -(-count // erase_unit) * erase_unit
    return BlockStorage(blocks, first_bytes, end, block)


def _paged_or_streamed(plan: Plan) -> set[int]:
    """Return the indices of the tensors that a plan pages or streams."""
    indices = {step.target for step in plan.instructions if step.action in (Action.PAGE_OUT, Action.PAGE_IN)}
    for step in plan.instructions:
        if step.action is Action.COMPUTE and step.variant:
            variant = plan.problem.operators[step.target].variant(step.variant)
            indices.update((*variant.streamed_in, *variant.streamed_out))
    return indices


@dataclass(frozen=True, slots=True)
class ListedTable:
    """Table by rows.

    Attributes
    ----------
    whole
        Tensor of all rows.
    block_bytes
        Bytes of a block of the storage.
    count
        Number of rows of its tensor in the arena.
    ids
        Input that selects the rows; "" where a constant does.
    fixed
        Rows that a constant selects.
    numbers_at
        Offset of the list in the resident region; its length comes first.
    of
        Table with the list, for an optimizer's state; else the table itself. By index in the problem.
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
        """C name of the list."""
        return f"po_rows_{self.of}"


def list_of(name: str, graph: TrainingGraph, places: Places) -> str:
    """Return the C name of the list of rows of a table, or of an optimizer's state of one."""
    return f"po_rows_{places.index[graph.rows[name].of or name]}"


def tables_of(graph: TrainingGraph, places: Places, kept: int, block: int) -> dict[int, ListedTable]:
    """Return the tables of a step by index in the problem; their lists begin at offset `kept`.

    `block` is the bytes of a storage block. Raise `PlanError` where a row isn't whole blocks.
    """
    listed: dict[int, ListedTable] = {}
    for name, rows in graph.rows.items():
        full_tensor = Tensor(name, tuple(rows.values.shape), graph.tensors[name].dtype, graph.tensors[name].role)
        count = graph.tensors[name].shape[0]
        table = ListedTable(name, full_tensor, block, count, rows.ids, rows.fixed, kept, places.index[rows.of or name])
        if table.row_bytes % block:
            raise PlanError(
                f"a row of the table {name!r} has {table.row_bytes} B, but C reads only whole blocks of {block:,} B "
                "from storage; solve with --parameters resident, or an optimizer with which tables stay whole"
            )
        listed[places.index[name]] = table
        if rows.ids and not rows.of:
            kept += runtime.row_numbers_bytes(count)
    return listed


def declared(tables: Mapping[int, ListedTable]) -> Iterator[str]:
    """Yield the declarations of the lists of rows, in C."""
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
    """Return the C call that moves the rows of a table."""
    table = tables[index]
    function = "po_rows_out" if out else "po_rows_in"
    blocks = table.row_bytes // table.block_bytes
    return f"{function}({table.identifier}, {block}u, {blocks}u, {address}, {table.row_bytes}u)"
