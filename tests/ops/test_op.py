"""Ops are declared once, by the names that ONNX has."""

from __future__ import annotations

import subprocess
import sys

import pytest
from onnx import helper
from onnx.defs import OpSchema, get_all_schemas_with_history

from poetopt.frontends.checks import check_settings
from poetopt.ops.op import Op, declare, op_of, ops
from poetopt.util.errors import ModelError


def test_onnx_has_each_op() -> None:
    assert ops().keys() <= {schema.name for schema in get_all_schemas_with_history() if not schema.domain}


FREE = {
    ("Einsum", "equation"), ("Constant", "value_string"), ("Cast", "to"), ("Cast", "round_mode"),
    ("CastLike", "round_mode"),
}  # fmt: skip
"""Texts with a check of their own, that no number comes of, of opset 1, or that only 8-bit floats ask for."""


def test_a_text_that_an_op_does_not_have_is_refused() -> None:
    """onnxruntime takes some of them for another text, and refuses others when a step is executed."""
    schemas = [one for one in get_all_schemas_with_history() if not one.domain and one.name in ops()]
    attributes = ((one.name, a) for one in schemas for a in one.attributes.values())
    texts = {(op, a.name) for op, a in attributes if a.type == OpSchema.AttrType.STRING}
    assert len(texts - FREE) > 20
    for op, name in texts - FREE:
        allowed = op_of(op).attributes.get(name)
        assert isinstance(allowed, tuple), (op, name)
        for text in allowed:
            check_settings("n", helper.make_node(op, ["x"], ["y"], **{name: text}))  # type: ignore[arg-type]
        with pytest.raises(ModelError, match=f"its {name} is 'UP'"):
            check_settings("n", helper.make_node(op, ["x"], ["y"], **{name: "UP"}))


def test_what_is_not_declared_is_nothing_special() -> None:
    assert op_of("Frobnicate") == Op()
    assert op_of("Conv").weights == (1, 2)


def test_an_op_is_declared_once() -> None:
    with pytest.raises(ModelError, match="Conv is declared already"):
        declare("Conv", op=Op())


def test_declarations_are_read_without_onnx() -> None:
    """The process that runs a plan asks them, and has no room for it."""
    program = "import sys; from poetopt.ops.op import op_of; op_of('Conv'); sys.exit('onnx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
