"""A skip for a reason that nobody knows, or that isn't so, fails a run, as does one of what may not be absent."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.skips import KNOWN, ROOT, fault

FILE = """
import pytest
def test_unknown(): pytest.skip("it is Sunday")
@pytest.mark.skipif(True, reason="QEMU for ARM isn't installed")
def test_lacking(): pass
@pytest.mark.xfail(reason="it is Monday")
def test_expected(): assert False
def test_sound(): pass
"""


def test_a_skip_of_an_unknown_reason_fails_the_run(tmp_path: Path) -> None:
    """Also of a whole file, also in a process of its own."""
    (tmp_path / "test_it.py").write_text(FILE, encoding="utf-8")
    (tmp_path / "test_whole.py").write_text("import pytest\npytest.skip('it is dark', allow_module_level=True)")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider"]
    command += ["-n1", "--continue-on-collection-errors"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": ""}
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False).stdout
    assert "1 failed, 1 passed, 1 skipped, 1 xfailed, 1 error" in said
    assert all(f"skipped ({reason})" in said for reason in ("it is Sunday", "it is dark"))
    assert "1 skipped: QEMU for ARM isn't installed\n" in said


def test_a_known_reason_holds_where_it_is_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    for reason, group in (("no C compiler", "system"), ("backend 'cbc' is not installed", "packages")):
        assert not fault(reason, (), ())
        assert fault(reason, (group,), ())
    assert fault("could not import 'onnxruntime': for another reason", (), ())
    assert fault("torch is not installed", (), ())  # without the mark, `make torch` wouldn't run it
    assert fault("torch is not installed", ("torch",), ("torch",))


def test_each_reason_in_the_tests_is_known_and_no_other_is() -> None:
    """Those of backends are the backends' own."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")]
    told = {reason for text in texts for reason in re.findall(r'(?:\bskip\(|\breason=)f?"(\w[^"]+|{path}[^"]+)"', text)}
    told |= {f"could not import '{name}." for text in texts for name in re.findall(r'importorskip\("(\w+)', text)}
    known = [words for one in KNOWN for words in re.split(r"\|(?![^(]*\))", one.words)]
    unknown = {reason for reason in told if not any(re.match(words, reason) for words in known)}
    assert all(reason.startswith("it is ") for reason in unknown), unknown  # those above
    unused = {words for words in known if not any(re.match(words, reason) for reason in told)}
    assert all(words.startswith("backend ") for words in unused), unused
