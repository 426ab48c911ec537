"""The C program that runs calls of kernels on the machine's own compiler, with its sanitizers where it has them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from poetopt.backends.c.targets import LINUX, TARGETS, compiler
from poetopt.graph import TOGETHER
from poetopt.ops.runtimes.c.kernel import FLAGS, UPDATE, Arguments
from poetopt.ops.runtimes.c.steps import KernelStep
from poetopt.testing.contract import ContractError

if TYPE_CHECKING:
    from poetopt.graph import Array

WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror")
ADDRESS = "-fsanitize=address"
WRONG = {
    ADDRESS: "#include <stdlib.h>\nint main(int n, char **v) { volatile char *a = malloc(n); a[n] = **v; return 0; }\n",
    "-fsanitize=undefined": "int main(int n, char **v) { return v == 0 || n + 2147483647 == 0; }\n",
}
"""The sanitizers, and a program that each has to stop."""
STOPPING = "-fno-sanitize-recover=all"
POISON = (0xFF, 0x7B)
"""What outputs and scratch are filled with: floats that are no numbers, and large ones."""


@dataclass(frozen=True, slots=True)
class KernelTrial:
    """A call to run: with what inputs, by name, what should come out, and how messages call it."""

    step: KernelStep
    given: Mapping[str, Array]
    expected: Mapping[str, Array]
    where: str


@dataclass(frozen=True, slots=True)
class KernelOutputs:
    """Outputs of a call by name: with either poison, and lying on inputs in each way that is allowed, said in words."""

    first: Mapping[str, Array]
    second: Mapping[str, Array]
    over: Mapping[str, Mapping[str, Array]]


def run(trials: Sequence[KernelTrial], folder: Path, optimize: str) -> tuple[list[KernelOutputs], bool]:
    """Compile and run all trials in `folder`; what came out, and whether the sanitizers watched.

    Raises ContractError where the compiler complains or the program fails, BackendUnavailableError without a compiler.
    """
    command = compiler(TARGETS[LINUX]).command
    watching = sanitizers(command)
    for trial in trials:
        kernel = trial.step.kernel
        for header in files(kernel.include).iterdir():
            if header.name.endswith(".h"):
                (folder / header.name).write_bytes(header.read_bytes())
    (folder / "trials.c").write_text(_program(trials), encoding="ascii")
    (folder / "inputs.bin").write_bytes(b"".join(_inputs(trial) for trial in trials))
    command = (*command, *FLAGS, optimize, *WARNINGS, *watching, "-I.", "trials.c", "-o", "trials", "-lm")
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    if built.returncode:
        raise ContractError(f"{trials[0].where}: the compiler refuses it:\n{_shown(built.stderr)}")
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    ended = subprocess.run(
        ["./trials"], cwd=folder, capture_output=True, text=True, errors="replace", check=False, env=environment
    )
    if ended.returncode:
        reached = ended.stdout.split()
        where = trials[int(reached[-1])].where if reached and reached[-1].isdigit() else trials[0].where
        raise ContractError(f"{where}: it fails:\n{_shown(ended.stderr)}")
    data = (folder / "outputs.bin").read_bytes()
    found, place = [], 0
    for trial in trials:
        ran, place = _read(trial, data, place)
        found.append(ran)
    return found, set(WRONG) <= set(watching)


@cache
def sanitizers(command: tuple[str, ...]) -> tuple[str, ...]:
    """The flags of those sanitizers that stop what is wrong: `zig cc` takes that of addresses, and links none."""
    import tempfile

    def stops(flag: str, program: str) -> bool:
        with tempfile.TemporaryDirectory(prefix="poetopt-") as folder:
            Path(folder, "wrong.c").write_text(program, encoding="ascii")
            line = [*command, flag, STOPPING, "wrong.c", "-o", "wrong"]
            if subprocess.run(line, cwd=folder, capture_output=True, check=False).returncode:
                return False
            return subprocess.run(["./wrong"], cwd=folder, capture_output=True, check=False).returncode != 0

    found = tuple(flag for flag, program in WRONG.items() if stops(flag, program))
    return (*found, STOPPING) if found else ()


def overlaps(trial: KernelTrial) -> Mapping[str, Sequence[int]]:
    """The ways in which outputs may lie on inputs: in words, and for each output which input, -1 for none."""
    call, kernel = trial.step.call, trial.step.kernel
    if not call.outputs or call.outputs[0] is None:
        return {}
    size, rest = call.output().nbytes, [-1] * (len(call.outputs) - 1)
    found = {
        f"output 0 lies on input {k}": [k, *rest]
        for k in kernel.in_place
        if call.has(k) and call.input(k).nbytes == size
    }
    if rest and kernel.op_type.endswith(UPDATE):  # parameter, gradient, states; or operands of the gradient first
        states = range(kernel.in_place[0] + 1 if TOGETHER in kernel.op_type else 2, 2 + len(call.inputs))
        found["new states lie on the old ones"] = [kernel.in_place[0], *states[: len(rest)]]
    return found


def _shown(text: str) -> str:
    # lines of a compiler's or sanitizer's complaint that are shown
    return "\n".join(text.strip().splitlines()[:15])


def _inputs(trial: KernelTrial) -> bytes:
    there = [t for t in trial.step.call.inputs if t is not None]
    return b"".join(np.ascontiguousarray(trial.given[tensor.name], tensor.dtype).tobytes() for tensor in there)


def _read(trial: KernelTrial, data: bytes, place: int) -> tuple[KernelOutputs, int]:
    rounds: list[dict[str, Array]] = []
    for _ in range(2 + len(overlaps(trial))):
        found: dict[str, Array] = {}
        for tensor in trial.step.call.outputs:
            if tensor is not None:
                array = np.frombuffer(data, tensor.dtype, tensor.size, place)
                found[tensor.name] = array.reshape(tensor.shape)
                place += tensor.nbytes
        rounds.append(found)
    return KernelOutputs(rounds[0], rounds[1], dict(zip(overlaps(trial), rounds[2:], strict=True))), place


def _program(trials: Sequence[KernelTrial]) -> str:
    headers = sorted({header for trial in trials for header in trial.step.kernel.headers})
    functions = "\n\n".join(_function(k, trial) for k, trial in enumerate(trials))
    calls = "\n".join(_call(k, trial) for k, trial in enumerate(trials))
    includes = "\n".join(f'#include "{header}"' for header in headers)
    return f"""#include <stdio.h>
#include <stdlib.h>
{includes}

static FILE *po_in, *po_out;

{functions}

static void *po_new(size_t size, int byte)
{{
    void *made = malloc(size == 0 ? 1 : size);
    if (made == NULL) {{
        exit(3);
    }}
    memset(made, byte, size);
    return made;
}}

typedef void (*po_function)(void **in, void **out, void *scratch, void *state);

static void po_trial(int number, po_function run, int ins, const size_t *in_sizes, int outs, const size_t *out_sizes,
                     size_t scratch_size, int overs, const int *over, const uint32_t *first, size_t states)
{{
    void *in[40], *kept[40], *out[40];
    int own[40], round, k, j, changes;
    printf("%d\\n", number);
    fflush(stdout);
    for (k = 0; k < ins; ++k) {{
        kept[k] = po_new(in_sizes[k], 0);
        if (fread(kept[k], 1, in_sizes[k], po_in) != in_sizes[k]) {{
            exit(4);
        }}
    }}
    for (round = 0; round < 2 + overs; ++round) {{
        const int byte = round == 1 ? {POISON[1]} : {POISON[0]};
        void *scratch = po_new(scratch_size, byte), *state = po_new(states, byte);
        memcpy(state, first, states);
        for (k = 0; k < ins; ++k) {{
            in[k] = po_new(in_sizes[k], 0);
            memcpy(in[k], kept[k], in_sizes[k]);
        }}
        for (k = 0; k < outs; ++k) {{
            const int on = round < 2 ? -1 : over[(round - 2) * outs + k];
            own[k] = on < 0;
            out[k] = own[k] ? po_new(out_sizes[k], byte) : in[on];
        }}
        run(in, out, scratch, state);
        for (k = 0; k < outs; ++k) {{
            if (fwrite(out[k], 1, out_sizes[k], po_out) != out_sizes[k]) {{
                exit(5);
            }}
        }}
        for (k = 0; k < ins; ++k) {{
            for (j = 0, changes = 0; j < outs; ++j) {{
                changes = changes || out[j] == in[k];
            }}
            if (!changes && memcmp(in[k], kept[k], in_sizes[k]) != 0) {{
                fprintf(stderr, "it writes over its input %d\\n", k);
                exit(6);
            }}
        }}
        for (k = 0; k < ins; ++k) {{
            free(in[k]);
        }}
        for (k = 0; k < outs; ++k) {{
            if (own[k]) {{
                free(out[k]);
            }}
        }}
        free(scratch);
        free(state);
    }}
    for (k = 0; k < ins; ++k) {{
        free(kept[k]);
    }}
}}

int main(void)
{{
    po_in = fopen("inputs.bin", "rb");
    po_out = fopen("outputs.bin", "wb");
    if (po_in == NULL || po_out == NULL) {{
        return 2;
    }}
{calls}
    return fclose(po_out);
}}
"""


def _function(number: int, trial: KernelTrial) -> str:
    call, step = trial.step.call, trial.step
    there = iter(range(len(call.inputs)))
    inputs = tuple(f"po_ins[{next(there)}]" if tensor is not None else "" for tensor in call.inputs)
    there = iter(range(len(call.outputs)))
    outputs = tuple(f"po_outs[{next(there)}]" if tensor is not None else "" for tensor in call.outputs)
    states = step.kernel.state(call)
    arguments = Arguments(inputs, outputs, "po_scratch" if step.scratch_bytes else "", "po_state" if states else "")
    text = step.kernel.code(call, arguments)
    return (
        f"static void po_run_{number}(void **po_ins, void **po_outs, void *po_scratch, void *po_state)\n{{\n"
        f"    (void)po_ins;\n    (void)po_scratch;\n    (void)po_state;\n{text}\n}}"
    )


def _call(number: int, trial: KernelTrial) -> str:
    call, step = trial.step.call, trial.step

    def listed(values: Sequence[int]) -> str:
        return ", ".join(map(str, values)) or "0"

    ins = [tensor.nbytes for tensor in call.inputs if tensor is not None]
    outs = [tensor.nbytes for tensor in call.outputs if tensor is not None]
    states, ways = step.kernel.state(call), overlaps(trial)
    positions = [k for k, tensor in enumerate(call.inputs) if tensor is not None]
    written = [k for k, tensor in enumerate(call.outputs) if tensor is not None]
    places = [positions.index(way[k]) if way[k] >= 0 else -1 for way in ways.values() for k in written]
    return (
        f"    {{\n        static const size_t ins[] = {{{listed(ins)}}}, outs[] = {{{listed(outs)}}};\n"
        f"        static const int over[] = {{{listed(places)}}};\n"
        f"        static const uint32_t first[] = {{{listed(states)}}};\n"
        f"        po_trial({number}, po_run_{number}, {len(ins)}, ins, {len(outs)}, outs, {step.scratch_bytes}, "
        f"{len(ways)}, over, first, {4 * len(states)});\n    }}"
    )
