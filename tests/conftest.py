"""What all tests share: on CI hypothesis draws the same examples each time, so that a red run is about the change.

On a laptop it goes on exploring, and `HYPOTHESIS_PROFILE=explore` does so on CI too.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from tests import reruns
from tests.groups import group_of
from tests.house.second_ways import leave_out
from tests.reruns import pytest_sessionfinish

__all__ = ["pytest_sessionfinish"]

leave_out()

#: The name of the property with the lines that a test wants printed at the end of the run.
LINES = "lines for the end of the run"


@pytest.fixture
def tell(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Print lines at the end of the run, also those of an xdist worker; a line that several tests tell is printed once."""
    return lambda lines: record_property(LINES, lines)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have told, then the names of flaky tests."""
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    told = [value for report in reports for name, value in report.user_properties if name == LINES]
    for line in dict.fromkeys(line for lines in told for line in lines.splitlines()):
        terminalreporter.write_line(line)
    reruns.pytest_terminal_summary(terminalreporter)


#: How long an example takes, and how long it takes to draw one, says more of the machine than of the code.
PATIENT: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("ci", derandomize=True, **PATIENT)
settings.register_profile("explore", derandomize=False, **PATIENT)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "explore"))


#: Services announce their tokens there; those of tests do not belong among the user's.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="flowsched-tests-")
atexit.register(shutil.rmtree, os.environ["XDG_STATE_HOME"], ignore_errors=True)


#: Recorded clients name images that no test machine has: their tasks run with its own programs. tests/containers uses images.
os.environ["FLOWSCHED_IMAGES"] = "ignore"


#: Begun before all others: a worker that is left with one of them at the end works alone.
LONGEST = (
    "tests/kubernetes/nodes/",
    "tests/kubernetes/faults/test_pairs.py",
    "tests/kubernetes/faults/test_leaders.py",
    "tests/contract/test_own_contract.py",
    "tests/service/test_full_disk.py",
    "tests/cli/test_cli_run.py",
    "tests/crash/test_kills.py",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first."""

    def place(item: pytest.Item) -> int:
        found = (at for at, name in enumerate(LONGEST) if item.nodeid.startswith(name))
        return next(found, len(LONGEST))

    items.sort(key=place)


class FilesThatShare(LoadFileScheduling):
    """`--dist loadfile`, but the files of a folder that shares a cluster or an engine are one file (`tests/groups.py`)."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    """Only where files are asked for; they begin in the order of their collection, not with the one that has most tests."""
    config.option.loadscopereorder = False
    return FilesThatShare(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    """What was collected stays to the end: the collector need not look through it again and again (a quarter of the CPU time of
    tests that start no process, and half a second in which a loop that a test measures stands still).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 2, 1_000)


@pytest.fixture(autouse=True)
def _plain_logs() -> Iterator[None]:
    """What runs as a command sets up logs for a whole process; the next test in it reads its own."""
    yield
    structlog.reset_defaults()
