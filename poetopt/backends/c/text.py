"""The emitted files: templates of `poetopt/backends/c/files`, filled in with a program's numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from string import Template

from poetopt.backends.c.calls import calls
from poetopt.backends.c.decoded import decoded
from poetopt.backends.c.names import comment, literal
from poetopt.backends.c.program import DeviceProgram, Row
from poetopt.backends.c.storage import BLOCK_BYTES
from poetopt.backends.c.tables import declared
from poetopt.step.places import input_offsets

CODE, TABLE = "code", "table"
SCHEDULES = (CODE, TABLE)
"""The plan as calls, or as bytes that are decoded."""
TEMPLATES = "poetopt.backends.c.files"


def fixed(name: str) -> str:
    """A file that is emitted as it is."""
    return files(TEMPLATES).joinpath(name).read_text(encoding="utf-8")


def filled(name: str, values: Mapping[str, object]) -> str:
    """A template with what is to be filled in."""
    return Template(fixed(name)).substitute(values)


def does(program: DeviceProgram) -> str:
    """What a step consists of, in words."""
    optimizer = program.graph.optimizer
    return "forward, loss and backward" + ("" if optimizer == "none" else f", and the update of {optimizer}")


def header(program: DeviceProgram) -> str:
    """po.h: what the user's program needs."""
    return filled(
        "po.h",
        {
            "model": comment(program.shown),
            "arena_bytes": program.arena_bytes,
            "resident_bytes": program.resident.nbytes,
            "flash_bytes": program.flash.nbytes,
            "block_bytes": BLOCK_BYTES,
            "blocks": program.storage.count,
            "inputs": len(program.inputs),
            "results": len(program.results),
            "parameters": len(program.parameters),
            "hyperparameters": len(program.hyperparameters),
            "does": does(program),
        },
    )


def code_schedule(program: DeviceProgram) -> str:
    """The plan as calls, one an instruction."""
    statements = "".join(
        f"    {line}\n" for line in calls(program.plan, program.operators, program.storage, program.tables)
    )
    return filled("po_calls.c", {"begin": begin(program), "statements": statements})


def table_schedule(program: DeviceProgram) -> str:
    """The plan as its compact form, and what decodes it."""
    return filled("po_decoder.c", {"begin": begin(program), **decoded(program)})


def begin(program: DeviceProgram) -> str:
    """What a step begins with: which rows of tables the batch uses."""
    fed = {row.name: row for row in program.inputs}

    def lines() -> Iterator[str]:
        for index, table in program.tables.items():
            if table.ids and table.of == index:
                row = fed[table.ids]
                at = _address(program, row)
                yield (
                    f"    po_rows_used_{row.tensor.dtype}({table.identifier}, {at}, {row.tensor.size}u, "
                    f"{table.whole.shape[0]}u);\n"
                )

    return "".join(lines())


def _address(program: DeviceProgram, row: Row) -> str:
    """Where a tensor lies that is in RAM between steps."""
    if row.place.root:
        return f"PO_RESIDENT({program.resident.offsets[row.place.root]}u)"
    return f"PO_ARENA({row.place.offset}u)"


def step(program: DeviceProgram, schedule: str = CODE) -> str:
    """po_step.c: operators, and the instructions of the plan that call them.

    schedule
        `code`, or `table`.
    """
    headers = dict.fromkeys(["po_rows.h"] if program.tables else [])
    headers |= dict.fromkeys(name for code in program.operators.values() for _, name in code.headers)
    by_table = schedule == TABLE
    return filled(
        "po_step.c",
        {
            "model": comment(program.shown),
            "includes": "".join(f'#include "{name}"\n' for name in headers),
            "operators": "\n".join(code.text for code in program.operators.values() if code.text),
            "rows": "".join(declared(program.tables)),
            "state": (
                "/* What kernels keep from step to step. */\n"
                f"#define po_state ((uint32_t *)PO_RESIDENT({program.resident.kept}u))\n\n"
                if any(code.state for code in program.operators.values())
                else ""
            ),
            "schedule": table_schedule(program) if by_table else code_schedule(program),
        },
    )


def tables(program: DeviceProgram) -> str:
    """po_tables.c: arena and resident region, and what lies where."""
    resident = program.resident.offsets
    carried = (
        f"    (void)memcpy(po_resident + {resident[old.place.root]}u, po_resident + {resident[new.place.root]}u, "
        f"{new.tensor.nbytes}u); /* {comment(old.name)} */\n"
        for new, old in program.carried
    )
    return filled(
        "po_tables.c",
        {
            "model": comment(program.shown),
            "inputs": _rows(program, program.inputs),
            "results": _rows(program, program.results),
            "parameters": _rows(program, program.parameters),
            "hyperparameters": _rows(program, program.hyperparameters),
            "carried": "".join(carried),
        },
    )


def _rows(program: DeviceProgram, rows: Sequence[Row]) -> str:
    def lines() -> Iterator[str]:
        for row in rows:
            root = row.place.root
            at = f"po_resident + {program.resident.offsets[root]}u" if root else f"po_arena + {row.place.offset}u"
            place = f"{at}, {row.tensor.nbytes}u, 0u" if row.block < 0 else f"0, {row.tensor.nbytes}u, {row.block}u"
            yield f'    {{{literal(row.name)}, "{row.tensor.dtype}", {place}}},\n'

    return "".join(lines()) or "    {0, 0, 0, 0u, 0u},\n"  # C99 has no empty arrays


def weights(program: DeviceProgram) -> str:
    """po_weights.c: how the resident region gets its first values."""
    spans = program.resident.given
    reads: list[str] = []
    copies: list[str] = []
    block = at = 0
    for span in spans:
        if program.weights:
            reads += _read(block, f"po_resident + {span.offset}u", span.nbytes)
            block += -(-span.nbytes // BLOCK_BYTES)
        else:
            copies.append(f"    (void)memcpy(po_resident + {span.offset}u, po_weights + {at}u, {span.nbytes}u);\n")
            at += span.nbytes
    offsets = input_offsets(program.plan)
    for index in program.plan.problem.lasting:
        tensor = program.plan.problem.tensors[index]
        reads += _read(program.storage.blocks[index], f"po_arena + {offsets[index]}u", tensor.nbytes, tensor.name)
    words = [word for code in program.operators.values() for word in code.state]
    if words:
        values_of = ", ".join(f"{word}u" for word in words)
        copies.append(f"    static const uint32_t kept[{len(words)}] = {{{values_of}}};\n")
        copies.append(f"    (void)memcpy(po_resident + {program.resident.kept}u, kept, sizeof kept);\n")
    values = {"model": comment(program.shown), "copies": "".join(copies), "reads": "".join(reads)}
    return filled("po_weights_storage.c" if program.weights else "po_weights.c", values)


def _read(block: int, address: str, nbytes: int, name: str = "") -> Iterator[str]:
    """Statements that read a first value, where none before has failed."""
    yield "    if (code == 0) {\n"
    yield f"        code = po_read({block}u, {address}, {nbytes}u);" + (f" /* {comment(name)} */\n" if name else "\n")
    yield "    }\n"


def flash(program: DeviceProgram) -> str:
    """po_flash.c: constants that stay in flash."""
    return filled("po_flash.c", {"model": comment(program.shown)})


def flash_bytes(program: DeviceProgram) -> bytes:
    """po_flash.bin: the constants, as they lie there."""
    return b"".join(program.graph.values[name].tobytes() for span in program.flash.given for name in span.names)


def storage_bytes(program: DeviceProgram) -> bytes:
    """po_storage.bin: what the storage holds before the first step, from its first block on."""
    data = bytearray(weight_bytes(program) if program.weights else b"")
    tensors = program.plan.problem.tensors
    for index in program.storage.first:
        name = tensors[index].name
        rows = program.graph.rows.get(name)
        if name in program.graph.values or rows is not None:
            data += (program.graph.values[name] if rows is None else rows.values).tobytes()
        else:  # an input
            data += bytes(tensors[index].nbytes)
        data += bytes(-len(data) % BLOCK_BYTES)
    return bytes(data)


def weight_bytes(program: DeviceProgram) -> bytes:
    """po_weights.bin: the first values, span by span; on storage each span starts with a block."""
    data = bytearray()
    for span in program.resident.given:
        for name in span.names:
            data += program.graph.values[name].tobytes()
        if program.weights:
            data += bytes(-len(data) % BLOCK_BYTES)
    return bytes(data)
