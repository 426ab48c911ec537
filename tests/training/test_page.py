"""What docs/train.md shows works as it stands: a network of torch's, on arrays, in Python and by three commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from poetopt.cli.app import invoke
from tests.test_docs import ELSEWHERE, ROOT, text, typed

PAGE = ROOT / "docs" / "train.md"


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    first, *others = re.findall(r"^```python\n(.*?)^```", text(PAGE), re.DOTALL | re.MULTILINE)
    assert len([line for line in first.splitlines() if line.strip()]) <= 25
    torch.manual_seed(0)
    space: dict[str, Any] = {}
    for code in (first, *others):
        exec(compile(code, "train.md", "exec"), space)
    ended, report, net = space["ended"], space["report"], space["net"]
    assert ended.losses[-1] < ended.losses[0] / 2
    assert ended.accuracy > 0.5
    assert report.plan.problem.graph.optimizer == "none"
    session = onnxruntime.InferenceSession("trained.onnx", providers=["CPUExecutionProvider"])
    batch = space["images"][:32]
    np.testing.assert_allclose(
        session.run(None, {"image": batch})[0], net(torch.tensor(batch)).detach().numpy(), rtol=1e-4, atol=1e-4
    )
    commands = [command for command in typed(PAGE) if ELSEWHERE[command] == "tests/training/test_page.py"]
    for command in (*commands, commands[-1]):
        assert invoke(shlex.split(command)[1:]) == 0
    by_command = {proto.name: proto for proto in onnx.load("out.onnx").graph.initializer}
    for name, parameter in net.state_dict().items():
        np.testing.assert_array_equal(numpy_helper.to_array(by_command[name]), parameter.numpy())
