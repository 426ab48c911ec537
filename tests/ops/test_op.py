"""Ops are declared once, by the names that ONNX has."""

from __future__ import annotations

import subprocess
import sys

import pytest
from onnx.defs import get_all_schemas_with_history

from poetopt.ops.op import Op, declare, op_of, ops
from poetopt.util.errors import ModelError


def test_onnx_has_each_op() -> None:
    assert ops().keys() <= {schema.name for schema in get_all_schemas_with_history() if not schema.domain}


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
