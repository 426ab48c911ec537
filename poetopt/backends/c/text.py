"""Text of the emitted files: the step as calls, its data, the example."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING

from poetopt.backends.c.generations import (
    blocks,
    copy_at,
    first_checksum,
    first_copy,
    kept,
    network_of,
    partly_stored,
    saved_blocks,
)
from poetopt.backends.c.operators import OperatorCode, comment, literal
from poetopt.backends.c.program import DeviceProgram, Routine, TableRow
from poetopt.backends.c.storage import declared
from poetopt.backends.onnxruntime.batch import TRUTH, InputLimits, limits
from poetopt.backends.step.places import Moment, moments
from poetopt.graph import TrainingGraph
from poetopt.ops.runtimes.c.kernel import C_TYPES
from poetopt.plan.instructions import Action
from poetopt.plan.layout import lasting_at

if TYPE_CHECKING:
    from poetopt.backends.c.golden import Drawn, Golden, SignedSum


def calls(routine: Routine) -> Iterator[tuple[int, str, str]]:
    """Yield each instruction that does something: its number, its call, and a comment that names its operand."""
    problem = routine.plan.problem
    for moment in moments(routine.plan):
        action, target = moment.instruction.action, moment.instruction.target
        if action is Action.COMPUTE:
            code = routine.operators[target, moment.instruction.variant]
            given = [*operands(moment, code), *routine.stored(code)]
            call = f"{code.function}({', '.join(given)})"
            yield moment.number, f"PO_TRY({call})" if code.stored else call, f" /* {comment(code.name)} */"
        elif action is not Action.FREE:
            call = routine.paged(target, f"PO_ARENA({moment.at[target]}u)", out=action is Action.PAGE_OUT)
            verb = "write" if action is Action.PAGE_OUT else "read"
            yield moment.number, f"PO_TRY({call})", f" /* {verb} {comment(problem.tensors[target].name)} */"


def statements(routine: Routine, before: str) -> str:
    """Return the statements of `calls`, each after `before`, which decides whether it runs."""
    made = (f"    {before.format(number=number)} {call};{said}\n" for number, call, said in calls(routine))
    return "".join(made)


def operands(moment: Moment, code: OperatorCode) -> Iterator[str]:
    """Yield the arguments of an operator's function at `moment`."""
    yield from code.given
    for index in code.tensors:
        yield f"PO_ARENA({moment.at[index]}u)"
    if code.workspace:
        yield f"PO_ARENA({moment.workspace}u)"
    if code.state:
        yield f"po_state + {code.state_at}"


RUN, LAST = "static int po_run(uint32_t part)", "static int po_last(void)"
"""Functions of a split batch: for each part, and for the update phase."""


def fixed(name: str) -> str:
    """Return a file that is emitted unchanged."""
    return files("poetopt.backends.c.files").joinpath(name).read_text(encoding="utf-8")


def filled(name: str, values: Mapping[str, object]) -> str:
    """Return a template with its values filled in."""
    return Template(fixed(name)).substitute(values)


def does(program: DeviceProgram) -> str:
    """Return a description of a step."""
    if program.graph.forward_only:
        return "the forward pass, whose outputs are its results"
    optimizer = program.graph.optimizer
    return "forward, loss and backward" + ("" if optimizer == "none" else f", and the updates by {optimizer}")


def header(program: DeviceProgram) -> str:
    """Return po.h, the interface for the user's program."""
    return filled(
        "po.h",
        {
            "model": comment(program.shown),
            "arena_bytes": program.arena_bytes,
            "resident_bytes": program.resident.nbytes,
            "flash_bytes": program.flash.nbytes,
            "block_bytes": program.storage.block_bytes,
            "blocks": blocks(program),
            "copies": copy_at(program, 0),
            "inputs": len(program.inputs),
            "results": len(program.results),
            "parameters": len(program.parameters),
            "hyperparameters": len(program.hyperparameters),
            "parts": program.graph.parts,
            "fed": "step" if program.graph.parts == 1 else "micro-batch",
            "asked": len(program.asked),
            "outputs": len(program.outputs),
            "steps": _functions(program.graph),
            "predicts": fixed("po_predict.h") if program.predicts is not None else "",
            "selftest": fixed("po_selftest.h") if program.golden is not None else "",
            "does": does(program),
        },
    )


def _functions(graph: TrainingGraph) -> str:
    """Return the declarations of a step's functions in po.h, without the last one."""
    if graph.parts == 1:
        return fixed("po_step.h")
    return filled("po_part.h", {"last": "" if graph.closing is None else "the updates of the parameters, and "})


def schedules(program: DeviceProgram) -> str:
    """Return the functions of po_step.c that run plans."""
    first, routines = begin(program), program.routines
    if program.graph.parts == 1:
        given = {"begin": f"    if (from == 0u) {{\n{first}    }}\n" if first else "", "end": counting(program)}
        return filled("po_whole.c", {**given, "statements": statements(routines[0], "PO_DUE({number}u)")})
    parts = _calls(RUN, f"{first}    (void)part;\n", routines[0])
    last = "".join(f"\n{_calls(LAST, '', routine)}" for routine in routines[1:])
    return parts + last + _parts(program)


def _calls(head: str, first: str, routine: Routine) -> str:
    return filled(
        "po_calls.c", {"head": head, "begin": first, "statements": statements(routine, "PO_NEXT({number}u);")}
    )


def _parts(program: DeviceProgram) -> str:
    """Return the functions that run a split batch."""
    graph, resident, plan = program.graph, program.resident, program.plan
    at = {name: f"PO_ARENA({offset}u)" for name, (offset, _) in lasting_at(plan).items()}
    at |= {name: f"PO_RESIDENT({offset}u)" for name, offset in resident.offsets.items()}
    sums = [graph.tensors[name] for name in graph.sums.values() if name in at]
    empty = "".join(f"        (void)memset({at[t.name]}, 0, {t.nbytes}u); /* {comment(t.name)} */\n" for t in sums)
    return filled(
        "po_parts.c",
        {
            "type": C_TYPES[graph.tensors[graph.loss].dtype],
            "loss": resident.offsets[graph.root(graph.loss)],
            "losses": program.losses_at,
            "begin": f"    if (part == 0u) {{\n{empty}    }}\n" if empty else "",
            "last": "    PO_PASS(po_last());\n" if len(program.routines) > 1 else "",
            "end": counting(program),
        },
    )


def counting(program: DeviceProgram) -> str:
    """Return the end of a step, which increments the optimizer's step count; "" where it has none."""
    row = next((row for row in program.hyperparameters if row.name == "step"), None)
    if row is None:
        return ""
    at, kind = _address(program, row), C_TYPES[row.tensor.dtype]
    return (
        f"    {{\n        {kind} step; /* the number of the next step, for the optimizer */\n"
        f"        (void)memcpy(&step, {at}, sizeof step);\n"
        f"        step++;\n        (void)memcpy({at}, &step, sizeof step);\n    }}\n"
    )


def begin(program: DeviceProgram) -> str:
    """Return the beginning of a plan: a check of the inputs, and the rows of tables that the batch uses."""
    fed = {row.name: row for row in program.inputs}

    def lines() -> Iterator[str]:
        if any(_limited(program, program.inputs)):
            yield "    PO_PASS(po_checked());\n"
        for index, table in program.routines[0].tables.items():
            if table.ids and table.of == index:
                row = fed[table.ids]
                at = _address(program, row)
                yield (
                    f"    po_rows_used_{row.tensor.dtype}({table.identifier}, {at}, {row.tensor.size}u, "
                    f"{table.whole.shape[0]}u);\n"
                )

    return "".join(lines())


def _limited(program: DeviceProgram, rows: Sequence[TableRow]) -> Iterator[tuple[TableRow, InputLimits]]:
    for row in rows:
        found = limits(program.graph, row.name)
        if found is not None:
            yield row, found


PIECE = """\
    for (uint32_t at = 0; at < {nbytes}u; at += PO_BLOCK_BYTES) {{ /* {name} */
        unsigned char piece[PO_BLOCK_BYTES];
        const uint32_t bytes = {nbytes}u - at < PO_BLOCK_BYTES ? {nbytes}u - at : PO_BLOCK_BYTES;
        PO_TRY(po_read({block}u + at / PO_BLOCK_BYTES, piece, bytes));
        if ({beyond}) {{
            return PO_DATA;
        }}
    }}
"""


def checks(program: DeviceProgram) -> str:
    """Return the functions that check inputs before anything changes; "" where no input has a range."""
    kinds: dict[str, None] = {}
    functions = ""
    for name, rows in (("po_checked", program.inputs), ("po_asked", program.asked)):
        limited = list(_limited(program, rows))
        for row, found in limited:
            which = "UNTRUE" if found.what == TRUTH else "BEYOND"
            kinds[f"PO_{which}({C_TYPES[row.tensor.dtype]})\n"] = None
        if limited:
            body = "".join(_check(program, row, found) for row, found in limited)
            functions += f"PO_ALONE int {name}(void)\n{{\n{body}    return PO_DONE;\n}}\n\n"
    said = "/* Checks the ranges of labels, indices and targets before anything changes. */\n"
    return f"{''.join(kinds)}\n{said}{functions}" if functions else ""


def _check(program: DeviceProgram, row: TableRow, found: InputLimits) -> str:
    kind = C_TYPES[row.tensor.dtype]
    ignored = min(found.ignored, default=found.least)
    more = "" if found.what == TRUTH else f", {found.least}, {found.most}, {ignored}"
    which = "untrue" if found.what == TRUTH else "beyond"
    call = f"po_{which}_{kind}"
    if row.block >= 0:
        beyond = f"{call}(piece, bytes / (uint32_t)sizeof({kind}){more})"
        values = {"nbytes": row.tensor.nbytes, "name": comment(row.name), "block": row.block, "beyond": beyond}
        return PIECE.format(**values)
    beyond = f"{call}({_address(program, row)}, {row.tensor.size}u{more})"
    return f"    if ({beyond}) {{ /* {comment(row.name)} */\n        return PO_DATA;\n    }}\n"


def predicting(program: DeviceProgram) -> str:
    """Return po_predict; "" where the program has none."""
    if program.predicts is None:
        return ""
    checked = "    PO_PASS(po_asked());\n" if any(_limited(program, program.asked)) else ""
    return "\n" + _calls("int po_predict(void)", f"{checked}    po_carry();\n", program.predicts)


def _address(program: DeviceProgram, row: TableRow) -> str:
    """Return the C address of a tensor that is in RAM between steps."""
    if row.place.root:
        return f"PO_RESIDENT({program.resident.offsets[row.place.root]}u)"
    return f"PO_ARENA({row.place.offset}u)"


def step(program: DeviceProgram) -> str:
    """Return po_step.c: operators, and the instructions of the plan that call them."""
    checked = checks(program)
    headers = dict.fromkeys([*(["po_check.h"] if checked else []), *(["po_rows.h"] if program.tabled else [])])
    headers |= dict.fromkeys(name for code in program.codes for _, name in code.headers)
    return filled(
        "po_step.c",
        {
            "model": comment(program.shown),
            "includes": "".join(f'#include "{name}"\n' for name in headers),
            "operators": "\n".join(code.text for code in program.codes if code.text),
            "rows": "".join(declared(program.routines[0].tables)),
            "state": (
                "/* Data that kernels keep between steps. */\n"
                f"#define po_state ((uint32_t *)PO_RESIDENT({program.resident.kept}u))\n\n"
                if any(code.state for code in program.codes)
                else ""
            ),
            "schedule": checked + schedules(program),
            "predicts": predicting(program),
        },
    )


def tables(program: DeviceProgram) -> str:
    """Return po_tables.c: arena and resident region, and the addresses of tensors."""
    carried = (_copied(program, old, new) for old, new in program.carried)
    return filled(
        "po_tables.c",
        {
            "model": comment(program.shown),
            "inputs": _rows(program, program.inputs),
            "results": _rows(program, program.results),
            "parameters": _rows(program, program.parameters),
            "hyperparameters": _rows(program, program.hyperparameters),
            "carried": "".join(carried),
            "predicts": (
                f"const po_tensor po_predict_inputs[] = {{\n{_rows(program, program.asked)}}};\n\n"
                f"const po_tensor po_outputs[] = {{\n{_rows(program, program.outputs)}}};\n\n"
                if program.predicts is not None
                else ""
            ),
        },
    )


def _rows(program: DeviceProgram, rows: Sequence[TableRow]) -> str:
    def lines() -> Iterator[str]:
        for row in rows:
            root = row.place.root
            at = f"po_resident + {program.resident.offsets[root]}u" if root else f"po_arena + {row.place.offset}u"
            place = f"{at}, {row.tensor.nbytes}u, 0u" if row.block < 0 else f"0, {row.tensor.nbytes}u, {row.block}u"
            yield f'    {{{literal(row.name)}, "{row.tensor.dtype}", {place}}},\n'

    return "".join(lines()) or "    {0, 0, 0, 0u, 0u},\n"  # C99 has no empty arrays


def data(name: str, content: bytes, *, array: bool) -> str:
    """Return the bytes of po_weights.bin or po_flash.bin in C: an array, or an include by the assembler."""
    if not array:
        return filled("po_data.c", {"name": name})
    content = content or b"\0"  # an array has at least one element
    rows = (content[at : at + 32] for at in range(0, len(content), 32))
    numbers = "".join(f"    {', '.join(map(str, row))},\n" for row in rows)
    return f"const PO_ALIGNED unsigned char po_{name}[] = {{\n{numbers}}};\n"


def weights(program: DeviceProgram, embedded: str) -> str:
    """Return po_weights.c: the first values of the resident region, from the storage or from `embedded`."""
    spans = program.resident.given
    reads: list[str] = []
    copies: list[str] = []
    block = at = 0
    for span in spans:
        if program.weights:
            reads += _read(block, f"po_resident + {span.offset}u", span.nbytes)
            block += -(-span.nbytes // program.storage.block_bytes)
        else:
            copies.append(f"    (void)memcpy(po_resident + {span.offset}u, po_weights + {at}u, {span.nbytes}u);\n")
            at += span.nbytes
    for name, (offset, nbytes) in lasting_at(program.plan).items():
        if name not in program.graph.sums.values():
            reads += _read(program.storage.blocks[name], f"po_arena + {offset}u", nbytes, name)
    words = [word for code in program.codes for word in code.state]
    if words:
        values_of = ", ".join(f"{word}u" for word in words)
        copies.append(f"    static const uint32_t kept[{len(words)}] = {{{values_of}}};\n")
        copies.append(f"    (void)memcpy(po_resident + {program.resident.kept}u, kept, sizeof kept);\n")
    if partly_stored(program):  # an interrupted step may have changed the storage
        reads = ["    code = po_restore();\n"]
    reads += (_copied(program, new, old) for old, new in program.carried)
    values = {"model": comment(program.shown), "copies": "".join(copies), "reads": "".join(reads), "data": embedded}
    return filled("po_weights_storage.c" if program.weights else "po_weights.c", values)


def _copied(program: DeviceProgram, to: TableRow, of: TableRow) -> str:
    """Return a statement that copies a tensor of the resident region over another."""
    at = program.resident.offsets
    places = f"po_resident + {at[to.place.root]}u, po_resident + {at[of.place.root]}u"
    return f"    (void)memcpy({places}, {of.tensor.nbytes}u); /* {comment(of.name)} */\n"


def _read(block: int, address: str, nbytes: int, name: str = "") -> Iterator[str]:
    """Yield statements that read a first value, if none before has failed."""
    yield "    if (code == 0) {\n"
    yield f"        code = po_read({block}u, {address}, {nbytes}u) == 0 ? PO_DONE : PO_STORAGE;"
    yield f" /* {comment(name)} */\n" if name else "\n"
    yield "    }\n"


def saving(program: DeviceProgram) -> str:
    """Return po_save.c: complete generations of lasting values, in two copies after all else on the storage."""
    found, network, golden = kept(program), network_of(program), program.golden
    lines = (f"    {{{one.address or 0}, {one.nbytes}u, {one.block}u}},\n" for one in found)
    return filled(
        "po_save.c",
        {
            "model": comment(program.shown),
            "first": copy_at(program, 0),
            "blocks": copy_at(program, 1) - copy_at(program, 0),
            "data": saved_blocks(program) - 1,
            "count": len(found),
            "kept": "".join(lines),
            "network": ", ".join(f"0x{int.from_bytes(network[k : k + 4], 'little'):08x}u" for k in range(0, 16, 4)),
            "selftest": "" if golden is None else _selftest(program, golden),
        },
    )


def _selftest(program: DeviceProgram, golden: Golden) -> str:
    values = {name: _drawn(getattr(golden, name)) for name in ("inputs", "asked")}
    values |= {name: _sums(getattr(golden, name)) for name in ("results", "parameters", "outputs")}
    first, flash = first_checksum(program), zlib.crc32(flash_bytes(program))
    return filled("po_selftest.c", {**values, "first": first, "flash": flash})


def _drawn(found: Sequence[Drawn]) -> str:
    rows = (f"    {{{d.least}, {d.span}u, {d.unit!r}f, {d.later}u}},\n" for d in found)
    return "".join(rows) or "    {0, 1u, 0.0f, 0u},\n"


def _sums(found: Sequence[SignedSum | None]) -> str:
    rows = (f"    {{{one.total!r}, {one.most!r}}},\n" if one else "    {0.0, -1.0},\n" for one in found)
    return "".join(rows) or "    {0.0, -1.0},\n"


def flash(program: DeviceProgram, embedded: str) -> str:
    """Return po_flash.c: constants that stay in flash."""
    return filled("po_flash.c", {"model": comment(program.shown), "data": embedded})


def flash_bytes(program: DeviceProgram) -> bytes:
    """Return po_flash.bin: the constants in their order in flash."""
    values = program.graph.joint.values
    return b"".join(values[name].tobytes() for span in program.flash.given for name in span.names)


def storage_bytes(program: DeviceProgram) -> bytes:
    """Return po_storage.bin: the storage before the first step, from its first block on.

    Where trained values are on storage, it has the first of the two copies of `po_save`: an interrupted step starts
    again
    from it.
    """
    data = bytearray(weight_bytes(program) if program.weights else b"")
    values = program.graph.joint.values
    for name, nbytes in program.storage.first.items():
        data += bytes(program.storage.blocks[name] * program.storage.block_bytes - len(data))
        rows = program.graph.rows.get(name)
        if name in values or rows is not None:
            data += (values[name] if rows is None else rows.values).tobytes()
        else:  # an input
            data += bytes(nbytes)
    data += bytes(-len(data) % program.storage.block_bytes)
    if partly_stored(program):
        data += bytes(copy_at(program, 0) * program.storage.block_bytes - len(data)) + first_copy(program)
    return bytes(data)


def weight_bytes(program: DeviceProgram) -> bytes:
    """Return po_weights.bin: the first values, span by span; on storage each span starts with a block."""
    data = bytearray()
    for span in program.resident.given:
        for name in span.names:
            data += program.graph.joint.values[name].tobytes()
        if program.weights:
            data += bytes(-len(data) % program.storage.block_bytes)
    return bytes(data)
