"""`flowsched run x.wdl`: the real miniwdl is the first task of the run that it makes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flowsched.workflow.views import WorkflowView
from tests.forks import Forked
from tests.wdl.engine import DOCUMENTS, Service, files_below

pytestmark = pytest.mark.slow


def until(found: Callable[[], bool], within_s: float = 200) -> None:
    end = time.monotonic() + within_s
    while not found():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture
def started(service: Service, tmp_path: Path) -> Iterator[Callable[..., Forked]]:
    """Start `flowsched run` in a folder of its own, on the service or on one of its own."""
    made: list[Forked] = []

    def start(document: str, *words: str, own: bool = False) -> Forked:
        where = ["--root", str(tmp_path / "root"), "--cpu", "1"] if own else ["--server", service.url]
        command = ["run", str(DOCUMENTS / f"{document}.wdl"), *where, "--", *words]
        made.append(Forked(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path))
        return made[-1]

    yield start
    for each in made:
        each.kill()


def run_of(service: Service, name: str) -> WorkflowView | None:
    """The newest run of the name; there is one line of it."""
    return next((view for view in service.runs() if view.name == name), None)


def begun(folder: Path) -> list[Path]:
    """The folders of tasks that have begun."""
    return [path.parent for path in files_below(folder, "starts") if path.name == "starts"]


def test_a_run_goes_on_while_its_service_is_killed_and_started_again(
    service: Service, started: Callable[..., Forked], tmp_path: Path
) -> None:
    """From its first second it is one run, under the name of its file; engine and tasks go on without the service."""
    process = started("waiting", "width=2")
    until(lambda: run_of(service, "waiting") is not None)
    until(lambda: len(begun(tmp_path)) == 2)
    service.kill()
    service.start()
    for work in begun(tmp_path):
        (work / "go").touch()
    said, _ = process.communicate(400)
    view = run_of(service, "waiting")
    assert process.returncode == 0, said
    assert view is not None
    assert (view.state, view.counts, view.stages) == ("SUCCEEDED", {"SUCCEEDED": 4}, 3)
    assert re.search(r"miniwdl \d\S* runs \S*waiting\.wdl", said)
    assert '"waiting.sum": 2' in said
    assert [each.name for each in service.runs()].count("waiting") == 1


def test_a_failed_engine_fails_its_run_and_its_last_lines_are_shown(
    service: Service, started: Callable[..., Forked], tmp_path: Path
) -> None:
    """The task that failed first is named first; the one that runs for minutes is cancelled."""
    process = started("failing")
    said, _ = process.communicate(400)
    view = run_of(service, "failing")
    assert process.returncode == 1, said
    assert view is not None
    assert (view.state, view.counts) == ("FAILED", {"FAILED": 2, "CANCELLED": 1})
    assert view.reason.startswith("bad: task 0 failed: exit code 3")
    assert said.index("| the file is truncated") < said.index("miniwdl[0] failed")
    assert "call failure propagating" in said


def engines_in(folder: Path) -> list[int]:
    """Processes of miniwdl that work there."""
    return [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cwd")
        if os.path.realpath(path) == str(folder) and b"miniwdl" in path.with_name("cmdline").read_bytes()
    ]


@pytest.mark.parametrize("killed", [False, True])
def test_the_end_of_an_engine_leaves_nothing_behind(
    killed: bool, service: Service, started: Callable[..., Forked], tmp_path: Path
) -> None:
    """A cancel ends it with its tasks. So does an engine that is killed, which cancels none itself."""
    process = started("waiting", "width=2")
    until(lambda: len(begun(tmp_path)) == 2)
    view = run_of(service, "waiting")
    assert view is not None
    if killed:
        for pid in engines_in(tmp_path):
            os.kill(pid, signal.SIGKILL)
    else:
        service.ask(lambda client: client.cancel(view.id))
    said, _ = process.communicate(400)
    view = run_of(service, "waiting")
    assert process.returncode == 1, said
    assert view is not None
    assert view.state == ("FAILED" if killed else "CANCELLED")
    assert view.counts == {"CANCELLED": 2, "FAILED": 1} if killed else {"CANCELLED": 3}
    assert engines_in(tmp_path) == []


def test_an_engine_leaves_a_whole_node_to_its_tasks_and_ctrl_c_ends_both(
    started: Callable[..., Forked], tmp_path: Path
) -> None:
    """On a service of its own, with one core, that one task needs."""
    process = started("waiting", "width=1", own=True)
    until(lambda: len(begun(tmp_path)) == 1)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(400)
    assert process.returncode == 130, said
    assert "wait: CANCELLED" in said
    assert engines_in(tmp_path) == []


def test_an_engine_runs_beside_its_service(started: Callable[..., Forked], tmp_path: Path) -> None:
    """A service on another machine cannot start it on the files of this one."""
    command = ["run", str(DOCUMENTS / "waiting.wdl"), "--server", "http://192.0.2.1:8470"]
    process = Forked(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=tmp_path)
    said, _ = process.communicate(60)
    assert process.returncode == 2
    assert "no service of yours on this machine" in said
    assert "http://192.0.2.1:8470/ga4gh/wes/v1" in said
