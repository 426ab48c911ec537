"""Writes `docs/ops.md` from the registry of rules: `python docs/ops_table.py [random configurations an op]`.

What backward reads and its workspace are taken from the operators that the rule emits for the op's rows in
`tests/support/autodiff/table.py`; errors are the worst of these rows and of random configurations. Takes a few minutes.
"""

from __future__ import annotations

import sys
import textwrap
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

Training can go through every operator of this table. `docs/ops_table.py` writes the
page from the registry, and a test checks that it lists every rule.

- *Since*: the opset from which a rule is valid. Files from opset 9 on are converted to
  16 or later first.
- *Reads*: the tensors of the forward operator that its backward operators read, besides
  the gradients of the outputs. i0, i1, ... are inputs, y0, y1, ... outputs; + marks an
  additional output that the forward operator writes for them. After *or* stands the set
  that is read if the graph's backward pass reads those tensors anyway. The cases are
  the rows of `tests/support/autodiff/table.py`.
- *Workspace*: the most that the temporaries of one operator take, in multiples of the
  largest tensor that the forward operator reads or writes. (These tensors are small,
  and buffers are rounded up to 64 bytes.) The memory that kernels allocate is in
  `poetopt/ops/runtimes/onnxruntime/kernels.py`.
- *Finite differences*: the worst error against them in float64, relative to the larger
  of the gradient's norm and one. It covers the rows and {examples} random
  configurations (shapes, attributes, broadcasting).

| op | since | rule | reads | workspace | finite differences |
|---|---|---|---|---|---|
"""

REGIONS = """
## Composite regions and quantizers

Exporters write several nodes in place of one op. poetopt recognises them by their
values or structure (`poetopt.autodiff.regions`). `tests/autodiff/test_regions.py`
compares them with the same network without regions. QuantizeLinear and DequantizeLinear
have the rules of `--straight-through` (`poetopt.autodiff.quantization`).

| region | rule |
|---|---|
"""


RECURRENT = """
## Recurrent layers

LSTM, GRU and RNN have rules in one direction or two, also with sequences that end early.
{activations}

LSTM and GRU take these names in any case. RNN takes them only as ONNX writes them, as
onnxruntime does. Missing alphas and betas have onnxruntime's values
(`poetopt.ops.recurrent.steps`). Refused are other activations, each by its name,
peepholes, clipping (`clip`), coupled gates (`input_forget`), `layout` 1, and more than
4,096 steps.
"""


QUANTIZED = """
## Quantized weights

A weight may be stored as integers: int8, uint8, int16, uint16; int4 and uint4 from
opset 21 on; with one scale, one for each channel, or one for each block. If it has two
axes or more and isn't trained, it keeps this type on storage, in flash and in RAM. Its
readers dequantize it each time that they run.

- In C a product or a convolution does so a few columns or channels at a time.
- On onnxruntime, an operator that streams a weight of 2 MiB or more from storage does
  so chunk by chunk.
- Elsewhere the floats exist while the reader runs.

Gradients pass to the layer's input by the same floats, bit for bit. Integers, scales
and zero points get none. To train such a weight, give the file from before
quantization. Biases are folded to floats.

`MatMulNBits` and `GatherBlockQuantized` (4 and 8 bits) are read into this form. A
Transpose of a weight is applied to its integers, and rows of a table are selected
first. Sessions run without onnxruntime's optimizations, as these would multiply in
eight bits.

## Heads of language models

A last layer and its cross-entropy become one operator if the scores of all classes
would take much memory. The layer is a MatMul or Gemm with a row for each class; its
weight is trained, or frozen as floats or as integers of 8 or 4 bits. Labels may be left
out for a whole batch, but classes may be neither weighted nor smoothed. For a frozen
weight, the scores must take more than the scores of 2,048 classes and their rows of the
weight. For a trained one, they must take more than the weight.

The operator computes loss and gradient in one pass over chunks of classes, and never
holds all scores at once. A trained weight's gradient computes the scores again, chunk
by chunk: a third more work. A weight on storage is read once a pass, and a table that
is tied to it is held once. Predictions and the trained file have scores.
"""


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
    return RECURRENT.format(activations=filled(f"Their activations are {', '.join(DEFAULTS)}."))


def blocked() -> str:
    """What nothing flows back through."""
    ops = [op for (_, op), inputs in nondifferentiable().items() if inputs is None]
    return f"\n## Without a gradient\n\n{filled('No gradient flows through ' + ', '.join(ops) + '.')}\n"


def filled(text: str) -> str:
    """A paragraph in lines that people can edit."""
    return textwrap.fill(text, 88, break_on_hyphens=False, break_long_words=False)


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
        with patch.object(GraphBuilder, "kept", lambda builder, tensor, there=there: _keeps(builder, tensor, there)):
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


def _keeps(builder: GraphBuilder, tensor: Tensor, there: str) -> bool:
    builder.is_queried = True
    return tensor.name == there


def shown(name: str) -> str:
    """Inputs and outputs by place, what the forward operator writes in addition by its purpose."""
    return name if name[0] in "iy" and name[1:].isdigit() else "+" + name.rpartition(".")[2]


if __name__ == "__main__":
    main()
