"""A failed test runs again alone: what passes then is flaky, what fails twice fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = "from tests.reruns import pytest_sessionfinish, pytest_terminal_summary\n"
#: Fails beside others (the first run leaves a file), passes afterwards.
FLAKY = """
from pathlib import Path
def test_flaky():
    seen = Path("seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("only the first time")
"""
BROKEN = "def test_broken():\n    raise AssertionError('each time')\n"
FLAKY_SETUP = FLAKY.replace("def test_flaky():", "import pytest\n@pytest.fixture\ndef room():") + (
    "def test_setup(room):\n    pass\n"
)
FINE = "def test_fine():\n    pass\n"
ROOT = Path(__file__).parents[2]


def run(folder: Path, *bodies: str, allowed: int = 5, xdist: bool = False) -> tuple[int, str]:
    """A pytest session of these test files in a folder of its own: its exit code, and what it printed.

    It has its own temporary folder, too: what other sessions left in the usual one would be warnings in its last line.
    """
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    for number, body in enumerate(bodies):
        (folder / f"test_{number}.py").write_text(body)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    environment |= {
        "PYTHONPATH": str(ROOT),
        "FLOWSCHED_RERUN_FAILED": str(allowed),
        "PYTEST_DEBUG_TEMPROOT": str(temporary),
    }
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = (
        "1"  # most of a session's start is plugins that these tests do not use
    )
    workers = ["-p", "xdist", "-n", "2"] if xdist else []
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *workers]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout


@pytest.mark.parametrize("xdist", [False, True])
def test_a_test_that_passes_alone_is_named_and_does_not_fail_the_run(tmp_path: Path, xdist: bool) -> None:
    """The name and the assertion stand right above pytest's own last line, which counts it."""
    code, printed = run(tmp_path, FLAKY, FINE, xdist=xdist)
    assert code == 0
    *_, name, place, why, last = printed.splitlines()
    assert name == "FLAKY test_0.py::test_flaky"
    assert place.startswith("E   ")
    assert place.endswith("test_0.py:7")
    assert why == "E   AssertionError: only the first time"
    assert "1 passed, 1 flaky" in last


def test_the_assertion_of_a_long_first_failure_is_among_the_last_lines(tmp_path: Path) -> None:
    """CI shows the ends of what it prints. Of a comparison of long values the assertion comes first, and is cut."""
    long = FLAKY.replace(
        'raise AssertionError("only the first time")',
        "assert {n: n for n in range(300)} == {n: 1 for n in range(300)}",
    )
    code, printed = run(tmp_path, long, FINE)
    assert code == 0
    end = "\n".join(printed.splitlines()[-14:])
    assert "assert {0: 0, 1: 1, 2: 2," in end
    assert len(end) < 5_000


def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    code, printed = run(tmp_path, FLAKY, BROKEN, FINE)
    assert code == 1
    assert "FLAKY test_0.py::test_flaky" in printed
    assert "FAILED test_1.py::test_broken" in printed
    assert "1 failed, 1 passed, 1 flaky" in printed.splitlines()[-1]


def test_a_setup_that_fails_once_is_flaky_too(tmp_path: Path) -> None:
    code, printed = run(tmp_path, FLAKY_SETUP)
    assert code == 0
    assert "FLAKY test_0.py::test_setup" in printed


def test_many_failures_are_a_broken_change_and_do_not_run_again(tmp_path: Path) -> None:
    code, printed = run(tmp_path, FLAKY, BROKEN, allowed=1)
    assert code == 1
    assert "2 tests failed, more than 1: none of them runs again" in printed
    assert "2 failed" in printed.splitlines()[-1]


def test_nothing_runs_again_unless_it_is_asked_for(tmp_path: Path) -> None:
    code, printed = run(tmp_path, FLAKY, allowed=0)
    assert code == 1
    assert "1 failed" in printed.splitlines()[-1]
