"""In CI a skipped test is a failed test: what was not tried must not look green."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

ENABLED = os.environ.get("CI", "").lower() not in {"", "0", "false"}


class SkipsAreFailures:
    """A plugin that turns skips, of tests and of whole modules, into failures; xfail stays what it is."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if not hasattr(report, "wasxfail"):
            _refuse(report)
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        _refuse(report)
        return report


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        report.outcome = "failed"
        report.longrepr = f"{reason}\nCI is set, and in CI a skip is a failure."
