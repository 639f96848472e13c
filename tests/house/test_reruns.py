"""The failed tests of a file run again alone: what passes then is flaky, what fails twice fails the run."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tests import reruns
from tests.groups import group_of

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
#: A fixture of the session that fails the first time, as a cluster on a busy machine, for all tests of the file.
CLUSTER = """
from pathlib import Path
import pytest
@pytest.fixture(scope="session")
def cluster():
    with Path("starts").open("a+") as starts:
        starts.write("x")
        starts.seek(0)
        assert starts.read() != "x", "only the first time"
"""
FLAKY_SETUPS = CLUSTER + "def test_one(cluster): pass\ndef test_two(cluster): pass\ndef test_fine(): pass\n"
#: Beside a test that is flaky, one that fails each time and one whose cleaning up does.
MIXED = (
    FLAKY
    + """
import pytest
def test_broken():
    raise AssertionError("each time")
@pytest.fixture
def room():
    yield
    raise AssertionError("each time")
def test_room(room):
    pass
"""
)
#: Passes the second time, in a process that does not end as one does whose tests pass.
BAD_END = (
    FLAKY
    + """
    else:
        import atexit, os, sys
        atexit.register(lambda: (sys.stdout.flush(), END))
"""
)
#: Says that it passes, as the summary of pytest would.
LIAR = """
def test_liar():
    print("PASSED test_0.py::test_liar")
    raise AssertionError("each time")
"""
ODD = ["a b", "p - q", "x[y]", "]", "c::d", "\n", "\N{SNOWMAN}"]
#: Each of them fails the first time, under a name that the output of pytest is hard to read by.
ODD_NAMES = f"""
from pathlib import Path
import pytest
ODD = {ODD!a}
@pytest.mark.parametrize("odd", ODD)
def test_odd(odd):
    seen = Path(str(ODD.index(odd)))
    if not seen.exists():
        seen.touch()
        raise AssertionError("only the first time")
"""
FINE = "def test_fine():\n    pass\n"
ROOT = Path(__file__).parents[2]


def run(folder: Path, *bodies: str, allowed: int = 5, xdist: bool = False) -> tuple[int, list[str]]:
    """A pytest session of these test files in a folder of its own: its exit code, and the lines that it printed.

    It has its own temporary folder, too: what other sessions left in the usual one would be warnings in its last line. Plugins
    that these tests do not use would be most of its start.
    """
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    for number, body in enumerate(bodies):
        (folder / f"test_{number}.py").write_text(body)
    temporary = folder / "tmp"
    temporary.mkdir()
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")} | {
        "PYTHONPATH": str(ROOT),
        "FLOWSCHED_RERUN_FAILED": str(allowed),
        "PYTEST_DEBUG_TEMPROOT": str(temporary),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    workers = ["-p", "xdist", "-n", "1"] if xdist else []
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *workers]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("xdist", [False, True])
def test_a_test_that_passes_alone_is_named_and_does_not_fail_the_run(tmp_path: Path, xdist: bool) -> None:
    """The name and the assertion stand right above pytest's own last line, which counts it."""
    code, printed = run(tmp_path, FLAKY, FINE, xdist=xdist)
    assert code == 0
    *_, name, place, why, last = printed
    assert name == "FLAKY test_0.py::test_flaky"
    assert place.startswith("E   ")
    assert place.endswith("test_0.py:7")
    assert why == "E   AssertionError: only the first time"
    assert "1 passed, 1 flaky" in last


def test_failed_tests_of_a_file_share_the_process_of_their_second_run(tmp_path: Path) -> None:
    """Their cluster is made once for all of them, and one file is one of those that may fail."""
    code, printed = run(tmp_path, FLAKY_SETUPS, allowed=1)
    assert code == 0
    assert {line for line in printed if line.startswith("FLAKY")} == {
        "FLAKY test_0.py::test_one",
        "FLAKY test_0.py::test_two",
    }
    assert (tmp_path / "starts").read_text() == "xx"


def test_each_test_of_a_file_is_judged_for_itself(tmp_path: Path) -> None:
    """A test that fails twice fails the run, also while it is torn down.

    CI shows the ends of what it prints. Of a comparison of long values the assertion comes first, and is cut.
    """
    long = MIXED.replace(
        'raise AssertionError("only the first time")',
        "assert {n: n for n in range(300)} == {n: 1 for n in range(300)}",
    )
    code, printed = run(tmp_path, long, FINE)
    assert code == 1
    again = [line for line in printed if line.startswith("run again: ")]
    assert again == [
        "run again: test_0.py::test_flaky passed: FLAKY",
        "run again: test_0.py::test_broken FAILED again",
        "run again: test_0.py::test_room FAILED again",
    ]
    assert any(line.startswith("FAILED test_0.py::test_broken") for line in printed)
    assert any(line.startswith("ERROR test_0.py::test_room") for line in printed)
    assert "1 failed, 2 passed, 1 error, 1 flaky" in printed[-1]
    end = "\n".join(printed[-20:])
    assert "assert {0: 0, 1: 1, 2: 2," in end
    assert len(end) < 5_000


@pytest.mark.parametrize("end", ["os._exit(3)", "os._exit(1)", "os.kill(os.getpid(), 11)"])
def test_a_process_that_ends_badly_has_passed_nothing(tmp_path: Path, end: str) -> None:
    """Its tests passed, and what they left made it fail: alone, as beside others."""
    code, printed = run(tmp_path, BAD_END.replace("END", end))
    assert code == 1
    assert [line for line in printed if line.startswith("run again: ")] == [
        "run again: test_0.py::test_flaky FAILED again"
    ]
    number = {"os._exit(3)": 3, "os._exit(1)": 1}.get(end, -11)
    assert f"the process of the second run ended with exit code {number}" in printed


def test_no_test_says_by_itself_that_it_passed(tmp_path: Path) -> None:
    code, printed = run(tmp_path, LIAR)
    assert code == 1
    assert "run again: test_0.py::test_liar FAILED again" in printed


def test_tests_of_any_name_are_judged(tmp_path: Path) -> None:
    code, printed = run(tmp_path, ODD_NAMES)
    assert code == 0
    assert f"{len(ODD)} flaky" in printed[-1]


def test_what_a_group_leaves_ends_with_the_time_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of its cluster would run beside the next group. It holds a pipe open, in place of pytest."""
    held, program = tmp_path / "held", tmp_path / "python"
    os.mkfifo(held)
    program.write_text(f"#!/bin/sh\nexec 9>{held}\necho up >&9\nsleep 1000 &\nwait\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(reruns, "MOST_S", 3)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    try:
        passed, words = reruns._run_again(tmp_path, ["test_a.py::test_a"] * 4)
        assert (passed, words) == (set(), "they did not end within 3 s")
        assert os.read(reader, 100) == b"up\n"
        assert select.select([reader], [], [], 30)[0], "a program of it still runs"
    finally:
        os.close(reader)


def test_many_failures_of_one_file_do_not_run_again(tmp_path: Path) -> None:
    many = "import pytest\n@pytest.mark.parametrize('n', range(201))\ndef test_n(n): assert not 'each time'\n"
    code, printed = run(tmp_path, many)
    assert code == 1
    assert "201 tests failed, more than 200: none of them runs again" in printed


def test_failures_in_many_files_are_a_broken_change_and_do_not_run_again(tmp_path: Path) -> None:
    code, printed = run(tmp_path, FLAKY, BROKEN, allowed=1)
    assert code == 1
    assert "tests of 2 files or folders failed, more than 1: none of them runs again" in printed
    assert "2 failed" in printed[-1]


def test_nothing_runs_again_unless_it_is_asked_for(tmp_path: Path) -> None:
    code, printed = run(tmp_path, FLAKY, allowed=0)
    assert code == 1
    assert "1 failed" in printed[-1]


def test_a_folder_that_shares_a_cluster_is_one_group() -> None:
    """Of the two that the workers of a run do not divide; elsewhere each file is one."""
    nodes = [
        "tests/kubernetes/nodes/test_demo.py::test_a",
        "tests/kubernetes/nodes/test_shared.py::test_b[x::y]",
        "tests/kubernetes/test_client.py::test_c",
    ]
    assert [group_of(node) for node in nodes] == [
        "tests/kubernetes/nodes/",
        "tests/kubernetes/nodes/",
        "tests/kubernetes/test_client.py",
    ]
