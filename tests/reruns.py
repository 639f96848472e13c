"""Failed tests get a second run, with nothing beside them, so that one flaky test does not cost a whole run of CI.

`FLOWSCHED_RERUN_FAILED=N` (`.ci/run` sets it) asks for it where tests of at most N groups fail (`tests/groups.py`: mostly a
group is a file). At the end of the session the failed tests of each group run again in one pytest process, one group after
the other: one slow cluster fails many tests of its group, and is made once for all of them. A test that passes then is
reported as FLAKY by name, and does not fail the run; a test that fails twice does. When tests of more than N groups fail, or
more than `MOST_TESTS`, the change is broken rather than the machine busy, and no test runs again.

`tests/conftest.py` imports the hooks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.groups import group_of

VARIABLE = "FLOWSCHED_RERUN_FAILED"
#: Names the file that a second run writes its reports into.
REPORTS = "FLOWSCHED_RERUN_REPORTS"
#: For each test of a group: longer than the timeout of one test and its fixtures, tests/kubernetes/nodes included.
AGAIN_S = 1500
#: For a group, however many of its tests failed.
MOST_S = 3600
#: How many tests run again; an engine that does not start fails all of tests/containers, which are fewer.
MOST_TESTS = 200
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


def _run_again(root: Path, nodes: list[str]) -> tuple[set[str], str]:
    """Run tests in a process of their own; which of them passed, and the end of what it printed.

    None has passed in a process that ends as no run of such tests does: what they left may have broken it.
    """
    within_s = min(AGAIN_S * len(nodes), MOST_S)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-rfE",
        "--color=no",
        "-p",
        "no:cacheprovider",
        "-p",
        __name__,
    ]
    environment = {k: v for k, v in os.environ.items() if k != VARIABLE and not k.startswith(OF_A_WORKER)}
    with tempfile.TemporaryDirectory(prefix="flowsched-rerun-") as folder:
        reports, output = Path(folder, "reports"), Path(folder, "output")
        reports.touch()
        with (
            output.open("wb") as out,
            subprocess.Popen(
                [*command, *nodes],
                cwd=root,
                env=environment | {REPORTS: str(reports)},
                stdout=out,
                stderr=out,
                start_new_session=True,
            ) as process,
        ):
            try:
                code = process.wait(within_s)
            except subprocess.TimeoutExpired:
                return set(), f"they did not end within {within_s} s"
            finally:
                if process.poll() is None:  # its cluster must not run beside the next group
                    os.killpg(process.pid, signal.SIGKILL)
        words = "\n".join(output.read_text(errors="replace").splitlines()[-SHOWN_LINES:])
        phases: dict[str, list[str]] = {}
        for node, phase in map(json.loads, reports.read_text().splitlines()):
            phases.setdefault(node, []).append(phase)
    passed = {node for node in nodes if phases.get(node) == ["passed"] * 3}
    if code not in ((0,) if len(passed) == len(nodes) else (0, 1)):
        return set(), f"{words}\nthe process of the second run ended with exit code {code}"
    return passed, words


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Tell the first run how a phase of a test ended. Only a second run has this module as a plugin."""
    with open(os.environ[REPORTS], "a") as reports:
        reports.write(json.dumps([report.nodeid, report.outcome]) + "\n")


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
    count = sum(map(len, failed.values()))
    if len(failed) > allowed or count > MOST_TESTS:
        many = f"tests of {len(failed)} files or folders failed, more than {allowed}"
        if len(failed) <= allowed:
            many = f"{count} tests failed, more than {MOST_TESTS}"
        reporter.write_line(f"{many}: none of them runs again")
        return
    flaky: set[str] = set()
    for nodes in failed.values():
        passed, output = _run_again(session.config.rootpath, nodes)
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
    if len(flaky) == count:
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
