"""Names a test as soon as it fails, and counts skipped tests by reason at the end of a run.

A run that is ended before its summary has named what failed all the same.
"""

from __future__ import annotations

from collections import Counter

import pytest


class FailureLines:
    """Writes one line for each failure, with the last line of its error."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            lines = report.longreprtext.strip().splitlines()
            error = next((line for line in lines if line.startswith("E ")), lines[-1] if lines else "")
            self._terminal.ensure_newline()
            self._terminal.line(
                f"FAILED in {report.when}: {report.nodeid}: {error.removeprefix('E').strip()}"
            )


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None and config.get_verbosity() < 0:
        config.pluginmanager.register(FailureLines(terminal))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(
        str(report.longrepr[2]).removeprefix("Skipped: ")
        for report in reports
        if isinstance(report.longrepr, tuple)
    )
    if reasons:
        terminalreporter.section("skipped tests by reason")
    for reason, count in reasons.most_common():
        terminalreporter.line(f"{count:4}  {reason}")
