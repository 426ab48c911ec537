"""Writes `docs/ops.md` from the registry of rules: `python docs/ops_table.py [random configurations an op]`.

What backward reads and its workspace are taken from the operators that the rule emits for the op's rows in
`tests/support/autodiff/table.py`; errors are the worst of these rows and of random configurations. Takes a few minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from poetopt.autodiff import differentiate  # noqa: E402
from poetopt.autodiff.emit import GraphBuilder  # noqa: E402
from poetopt.autodiff.registry import nondifferentiable, registered  # noqa: E402
from poetopt.graph import Tensor  # noqa: E402
from poetopt.ops.losses.vjp import ATTACHED  # noqa: E402
from poetopt.ops.recurrent.steps import DEFAULTS  # noqa: E402
from poetopt.ops.runtimes.onnxruntime import runtime  # noqa: E402
from tests.support.autodiff.errors import finite_difference_error  # noqa: E402
from tests.support.autodiff.random_specs import RANDOM, specs  # noqa: E402
from tests.support.autodiff.specs import Spec, graph_of  # noqa: E402
from tests.support.autodiff.table import ROWS  # noqa: E402

HEAD = """\
# Operators with a gradient rule

Written by `docs/ops_table.py` from the registry; a test holds that it lists every rule.

- *Since*: the opset from which a rule is valid. Files from opset 9 on are converted to 16 or later first.
- *Reads*: what backward operators read of the forward operator, besides the gradients of the outputs, in the rows of
  `tests/support/autodiff/table.py`: i0, i1, ... inputs, y0, y1, ... outputs, + what the forward operator writes in addition for them. Where
  there are two answers, it is the one that the backward pass of the graph reads anyway.
- *Workspace*: the most that one operator's temporaries take, in multiples of the largest tensor that the forward operator reads or
  writes (these are small, and buffers are rounded up to 64 bytes). What kernels allocate themselves is in `poetopt/ops/runtimes/onnxruntime/kernels.py`.
- *Errors*: the worst, relative to the larger of the gradient's norm and one, in float64: against finite differences over
  the rows and {examples} random configurations (shapes, attributes, broadcasting).

| op | since | rule | reads | workspace | finite differences |
|---|---|---|---|---|---|
"""  # noqa: E501

REGIONS = """
## Composite regions and quantizers

Nodes that exporters write in place of one op, recognised by their values or structure (`poetopt.autodiff.regions`);
held against the same network without regions by `tests/autodiff/test_regions.py`. QuantizeLinear and
DequantizeLinear stand here as they are for `--with straight-through` (`poetopt.autodiff.quantization`).

| region | rule |
|---|---|
"""


RECURRENT = """
## Recurrent layers

LSTM, GRU and RNN, of one direction or two, with sequences that end early, on these activations: {names}.
Names may be in any case for LSTM and GRU, and are as ONNX writes them for RNN, since onnxruntime takes them so. Alphas
and betas that aren't given are onnxruntime's (`poetopt.ops.recurrent.steps`). Refused are other
activations, each by its name, peepholes, clipping (`clip`), coupled gates (`input_forget`), `layout` 1, and more than
4,096 steps.
"""


QUANTIZED = """
## Quantized weights

A weight of two axes or more that the file stores as integers (int8, uint8, int16, uint16; int4 and uint4 from opset 21 on;
one scale, one for each channel, or one for each block) and that nobody trains keeps its type on storage, in flash and in RAM.
What reads it dequantizes it, each time that it runs: in C a product or a convolution does so a few columns or channels at
a time, and on onnxruntime what streams a weight from storage (of 2 MiB or more) chunk by chunk; elsewhere the floats are there while it runs. Gradients pass to the layer's input by the same floats, bit for bit, and none to
integers, scales and zero points; to train such a weight, give the file from before quantization. Biases are folded to floats.

`MatMulNBits` and `GatherBlockQuantized` (4 and 8 bits) are read into this form, a Transpose of a weight goes to its
integers, and of a table rows are picked first. Sessions run without onnxruntime's optimizations: these
would multiply in eight bits.

## Heads of language models

Where cross-entropy is put on what a layer writes (MatMul, Gemm; frozen floats or integers of 8 or 4 bits, or trained, with
a row for each class; labels may be left out of a whole batch, but classes neither weighted nor smoothed), and its scores take more than those
of 2,048 classes with their rows of the weight (trained: than the weight), layer and loss are one operator: loss and gradient in one pass over such
chunks, and never all scores at once. A trained weight's gradient computes them again, a third more work, chunk by chunk. A weight on storage is
read once a pass, and a table that is tied to it is held once. Predictions and the trained file have scores.
"""  # noqa: E501


def main() -> None:
    """Write the table."""
    examples = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    lines = [row(op, {n: r.__module__.split(".")[2] for n, r in rules.items()}, examples)
             for (domain, op), rules in registered().items() if not domain and op not in ATTACHED]  # fmt: skip
    regions = [f"| {op} | {next(iter(rules.values())).__module__.rpartition('.')[2]} |"
               for (domain, op), rules in registered().items() if domain]  # fmt: skip
    text = (
        HEAD.format(examples=examples)
        + "\n".join(lines)
        + "\n"
        + REGIONS
        + "\n".join(regions)
        + "\n"
        + QUANTIZED
        + recurrent()
        + blocked()
    )
    (ROOT / "docs" / "ops.md").write_text(text, encoding="utf-8")


def recurrent() -> str:
    """Activations that have a rule, and what has none."""
    return RECURRENT.format(names=", ".join(DEFAULTS))


def blocked() -> str:
    """What nothing flows back through."""
    ops = [op for (_, op), inputs in nondifferentiable().items() if inputs is None]
    return "\n## Without a gradient\n\nNothing flows back through " + ", ".join(ops) + ".\n"


def row(op: str, rules: dict[int, str], examples: int) -> str:
    """One line of the table."""
    own = [spec for spec in ROWS if spec.op == op]
    found = [finite_difference_error(spec) for spec in own]
    if op in RANDOM:
        found += list(drawn(op, examples))
    reads, workspace = emitted(own)
    cells = (op, ", ".join(map(str, rules)), ", ".join(dict.fromkeys(rules.values())), reads, f"{workspace:.1f}",
             f"{max(found):.0e}")  # fmt: skip
    sys.stderr.write(f"{op}: {max(found):.1e}\n")
    return "| " + " | ".join(cells) + " |"


def drawn(op: str, examples: int) -> Iterator[float]:
    """Errors of random configurations."""
    found: list[float] = []

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.data())
    def check(data: st.DataObject) -> None:
        found.append(finite_difference_error(data.draw(specs(op)), directions=1))

    check()
    yield from found


def emitted(own: list[Spec]) -> tuple[str, float]:
    """What backward reads of the forward operator, and its workspace against the largest tensor there."""
    answers: dict[str, None] = {}
    workspace = 0.0
    for there in ("", "y0", "i0"):
        reads: set[str] = set()
        with patch.object(GraphBuilder, "kept", lambda builder, tensor, there=there: _asked(builder, tensor, there)):
            for spec in own:
                step = differentiate(graph_of(spec, "float32"), loss="none")
                forward = next(o for o in step.operators if o.name == "op")
                known = {*forward.inputs, *forward.outputs}
                largest = max(64, *(step.tensors[n].nbytes for n in known))
                for operator in step.operators:
                    if not operator.backward or not operator.name.startswith("op."):
                        continue
                    reads.update(shown(n) for n in operator.inputs if n in known and not n.startswith("const."))
                    layout = runtime.workspace(operator, step.tensors)
                    workspace = max(workspace, layout.temporaries_bytes / largest)
        answers[", ".join(sorted(reads)) or "nothing"] = None
    return " or ".join(answers), workspace


def _asked(builder: GraphBuilder, tensor: Tensor, there: str) -> bool:
    builder.asked = True
    return tensor.name == there


def shown(name: str) -> str:
    """Inputs and outputs by place, what the forward operator writes in addition by its purpose."""
    return name if name[0] in "iy" and name[1:].isdigit() else "+" + name.rpartition(".")[2]


if __name__ == "__main__":
    main()
