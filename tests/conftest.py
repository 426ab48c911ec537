"""What holds for all tests."""

from __future__ import annotations

import signal
from collections.abc import Generator, Iterable
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from tests import seeds, skips

if TYPE_CHECKING:
    from tests.support.cli import Runner


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Runner:
    """The command line in this process."""
    from tests.support.cli import runner

    return runner(capsys)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--seeds`: sixteen random cases of a suite at each change, all in `make bench`; `--present`: `tests.skips`."""
    parser.addoption(
        "--seeds",
        choices=("few", "all"),
        default="few",
        help=f"random cases of a suite: at most {seeds.AT_EACH_CHANGE} (few), or all that it has (all)",
    )
    parser.addoption(
        "--present",
        action="append",
        choices=skips.GROUPS,
        default=[],
        help="what may not be absent: a test that skips for want of it fails (may be given again)",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let a test fail that skips for a reason that nobody knows, or that isn't so."""
    report = yield
    if not hasattr(report, "wasxfail"):
        _judge(report, item.config, (mark.name for mark in item.iter_markers()))
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Let a whole file fail that skips for such a reason."""
    report = yield
    _judge(report, collector.config, ())
    return report


def _judge(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config, marks: Iterable[str]) -> None:
    if not report.skipped:
        return
    if fault := skips.fault(skips.reason_of(report.longrepr), config.getoption("--present"), marks):
        report.outcome, report.longrepr = "failed", fault


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the skips by reason."""
    reports = terminalreporter.getreports("skipped")
    for line in skips.counted(skips.reason_of(report.longrepr) for report in reports):
        terminalreporter.write_line(line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that import torch come last (see `tests.support.later`)."""
    items.sort(key=lambda item: item.get_closest_marker("torch") is not None)


def pytest_configure(config: pytest.Config) -> None:
    """Hear interrupts also where the shell that began the tests had them ignored (`make test &` in a script).

    Programs that tests start, and interrupt, would have inherited that.
    """
    seeds.run_all(config.getoption("--seeds") == "all")
    if find_spec("hypothesis"):  # which the lowest versions are tried without
        from hypothesis import HealthCheck, settings

        # A busy machine draws examples slowly, and takes long for each: neither is a fault.
        settings.register_profile(
            "busy", deadline=None, max_examples=seeds.examples(100), suppress_health_check=[HealthCheck.too_slow]
        )
        settings.load_profile("busy")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
