"""Failed tests get a second run, with nothing beside them, so that one flaky test does not cost a whole run of CI.

`FLOWSCHED_RERUN_FAILED=N` (`.ci/run` sets it) asks for it where tests of at most N groups fail (`tests/groups.py`: mostly a
group is a file). At the end of the session the failed tests of each group run again in one pytest process, one group after
the other: one slow cluster fails many tests of its group, and is made once for all of them. A test that passes then is
reported as FLAKY by name, and does not fail the run; a test that fails twice does. When tests of more than N groups fail,
the change is broken rather than the machine busy, and no test runs again.

`tests/conftest.py` imports the hooks.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.groups import group_of

VARIABLE = "FLOWSCHED_RERUN_FAILED"
#: For each test of a group: longer than the timeout of one test and its fixtures, tests/kubernetes/nodes included.
AGAIN_S = 1500
SHOWN_LINES = 60
#: Of a first failure, right before pytest's last line: CI shows the ends of what it prints, and cuts the middle out.
ASSERTED_LINES, ASSERTED_CHARACTERS = 12, 300
#: Variables that a worker of pytest-xdist and a running test set; a process of its own starts without them.
OF_A_WORKER = ("PYTEST_XDIST_", "PYTEST_CURRENT_TEST")


def _failures(reporter: pytest.TerminalReporter) -> dict[str, list[str]]:
    """By group, the node ids that failed or could not be set up, once each, in the order of their reports."""
    reports = [*reporter.stats.get("failed", []), *reporter.stats.get("error", [])]
    groups: dict[str, list[str]] = {}
    for node in dict.fromkeys(report.nodeid for report in reports):
        groups.setdefault(group_of(node), []).append(node)
    return groups


def _run_again(config: pytest.Config, nodes: list[str]) -> tuple[set[str], str]:
    """Run tests in a process of their own; which of them passed, and the end of what it printed."""
    environment = {k: v for k, v in os.environ.items() if k != VARIABLE and not k.startswith(OF_A_WORKER)}
    command = [sys.executable, "-m", "pytest", "-q", "-rfEp", "--color=no", "-p", "no:cacheprovider", *nodes]
    within_s = AGAIN_S * len(nodes)
    try:
        done = subprocess.run(
            command,
            cwd=config.rootpath,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=within_s,
        )
    except subprocess.TimeoutExpired:
        return set(), f"they did not end within {within_s} s"
    lines = (done.stdout + done.stderr).splitlines()
    undone = {node for node in nodes if any(f"{line} ".startswith(f"ERROR {node} ") for line in lines)}
    return {node for node in nodes if f"PASSED {node}" in lines} - undone, "\n".join(lines[-SHOWN_LINES:])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Run what failed again, and take what passes then out of the failures."""
    allowed = int(os.environ.get(VARIABLE) or 0)
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not allowed or reporter is None or hasattr(session.config, "workerinput"):
        return
    failed = _failures(reporter)
    if not failed or session.exitstatus != pytest.ExitCode.TESTS_FAILED:
        return
    reporter.ensure_newline()
    if len(failed) > allowed:
        reporter.write_line(
            f"tests of {len(failed)} files or folders failed, more than {allowed}: none of them runs again"
        )
        return
    flaky: set[str] = set()
    for nodes in failed.values():
        passed, output = _run_again(session.config, nodes)
        for node in nodes:
            reporter.write_line(f"run again: {node} {'passed: FLAKY' if node in passed else 'FAILED again'}")
        if len(passed) < len(nodes):
            reporter.write_line(output)
        flaky |= passed
    for kind in ("failed", "error"):
        reports = reporter.stats.get(kind, [])
        reporter.stats.setdefault("flaky", []).extend(r for r in reports if r.nodeid in flaky)
        reporter.stats[kind] = [r for r in reports if r.nodeid not in flaky]
        if not reporter.stats[kind]:
            del reporter.stats[kind]
    if len(flaky) == sum(map(len, failed.values())):
        session.exitstatus = pytest.ExitCode.OK


def _asserted(report: pytest.TestReport) -> list[str]:
    """Where and how a test failed: the place, and the lines that pytest marks with E, the assertion first."""
    text = report.longreprtext.splitlines()
    crash = getattr(report.longrepr, "reprcrash", None)
    found = [f"{crash.path}:{crash.lineno}", *crash.message.splitlines()] if crash else text[-ASSERTED_LINES:]
    return [f"E   {line[:ASSERTED_CHARACTERS]}" for line in found[:ASSERTED_LINES]]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the flaky tests right before pytest's last line, each with how it failed the first time.

    The whole failures come before: a long one must not push the names and the assertions out of what CI shows.
    """
    reports = terminalreporter.stats.get("flaky", [])
    for report in reports:
        terminalreporter.write_sep("_", f"first failure of {report.nodeid}")
        terminalreporter.write_line(str(report.longrepr))
    if reports:
        terminalreporter.write_sep(
            "=", "flaky tests: failed among the others, passed with nothing beside them"
        )
    for node in dict.fromkeys(report.nodeid for report in reports):
        terminalreporter.write_line(f"FLAKY {node}")
        for line in [line for report in reports if report.nodeid == node for line in _asserted(report)]:
            terminalreporter.write_line(line)
