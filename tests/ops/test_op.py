"""Ops are declared once, by the names that ONNX has."""

from __future__ import annotations

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
