"""How runs end that do not end well, and how those go on whose service did not: nothing is left running, nothing runs twice."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.wdl.engine import Engine, Run, Service, files_below

pytestmark = pytest.mark.slow


def works(run: Run) -> list[Path]:
    """The folders of tasks that have begun."""
    return [path.parent for path in files_below(run.folder, "starts") if path.name == "starts"]


def processes_in(folders: list[Path]) -> list[int]:
    """Processes of this machine that work in one of them, whatever they see it as."""
    wanted = {(found.st_dev, found.st_ino) for found in (folder.stat() for folder in folders)}
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            where = path.stat()
        except OSError:
            continue  # it has ended meanwhile
        if (where.st_dev, where.st_ino) in wanted:
            found.append(int(path.parent.name))
    return found


def test_a_failed_task_fails_the_run_and_ends_the_others(engine: Engine, service: Service) -> None:
    """The exit code and where its last words are is told; the task that would run for minutes is cancelled."""
    run = engine.run("failing")
    assert run.end() != 0
    assert "task command failed with exit status 3" in run.said
    (words,) = run.folder.rglob("call-bad/stderr.txt")
    assert words.read_text() == "the file is truncated\n"
    assert service.states(run) == ["CANCELLED", "FAILED"]
    assert shown(run, service) == ("FAILED", {"CANCELLED": 1, "FAILED": 1})
    assert processes_in([*run.folder.rglob("call-*/work")]) == []


def shown(run: Run, service: Service) -> tuple[str, dict[str, int]]:
    """How the service shows a run: its state, and its tasks by theirs."""
    (view,) = (view for view in service.runs() if view.id.startswith(run.name))
    return view.state, view.counts


def test_a_return_code_that_the_wdl_allows_is_a_success(engine: Engine, service: Service) -> None:
    """The task has succeeded, too, with its code beside it; the run has ended as miniwdl says."""
    run = engine.run("return_codes", name="allowed")
    assert run.end() == 0, run.said
    (view,) = (view for view in service.runs() if view.id.startswith(run.name))
    assert (view.state, view.counts, view.returned) == ("SUCCEEDED", {"SUCCEEDED": 1}, {"7": 1})


def test_a_task_in_scatters_inside_each_other_is_a_task_of_its_own(engine: Engine, service: Service) -> None:
    """As many as miniwdl ran, whatever the depth."""
    run = engine.run("nested_scatter", name="nested")
    assert run.end() == 0, run.said
    ran = len([*run.folder.rglob("task.log")])
    assert shown(run, service) == ("SUCCEEDED", {"SUCCEEDED": ran})


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_miniwdl_cancels_what_runs(number: int, engine: Engine, service: Service) -> None:
    """When miniwdl has ended, no task of it runs any more."""
    run = engine.run("waiting", "width=3", name=f"signal-{number}")
    begun = run.until(lambda: works(run), 3)
    assert len(processes_in(list(begun))) >= 3
    run.process.send_signal(number)
    assert run.end() != 0
    assert processes_in(list(begun)) == []
    assert service.states(run) == ["CANCELLED", "CANCELLED", "CANCELLED"]


def test_a_task_that_takes_too_much_memory_is_told_so(engine: Engine) -> None:
    """Exit code 137, as miniwdl and WDL authors know it, and flowsched's own words in the log."""
    run = engine.run("greedy")
    assert run.end() != 0
    assert (
        "task command failed with exit status 137, a possible indication that it ran out of memory"
        in run.said
    )
    assert "OOMKilled" in run.said


def test_stderr_is_in_the_log_while_the_task_runs(engine: Engine) -> None:
    """`--verbose`, as with any other backend."""
    run = engine.run("waiting", "width=1", "--verbose", name="verbose")
    (work,) = run.until(lambda: works(run))
    run.until(lambda: re.findall("stderr.*waiting 0", run.log()))
    (work / "go").touch()
    assert run.end() == 0, run.said
    assert "waiting 0" in run.said


def test_all_calls_of_a_run_say_so(engine: Engine, service: Service) -> None:
    """One run, a node for each call whatever its shard, and whose outputs it reads."""
    run = engine.run("subworkflows", name="grouped")
    assert run.end() == 0, run.said
    (shown,) = (view for view in service.runs() if view.id.startswith(run.name))
    assert (shown.name, shown.state, shown.source) == ("subworkflows", "SUCCEEDED", "miniwdl")
    calls = [document["call"] for document in service.documents(run)]
    assert {call["run"] for call in calls} == {shown.id}
    found: dict[str, Any] = {}
    for call in calls:
        found.setdefault(call["node"], []).append((call.get("shard"), tuple(call["after"])))
    assert {node: sorted(entries, key=str) for node, entries in found.items()} == {
        "a.first": [(None, ())],
        "a.second": [(None, ("a.first",))],
        "b.first": [(None, ("a.second",))],
        "b.second": [(None, ("b.first",))],
        "each.first": [(0, ()), (1, ())],
        "each.second": [(0, ("each.first",)), (1, ("each.first",))],
        "last": [(None, ("b.second",))],
    }


def test_a_run_survives_a_service_that_is_killed(engine: Engine, service: Service) -> None:
    """One task ends while nobody is there, one after the restart: both are found, and no command has run twice."""
    run = engine.run("waiting", name="killed")
    first, second = run.until(lambda: works(run), 2)
    service.kill()
    (first / "go").touch()
    run.until(lambda: re.findall(r"^1$", (first.parent / "stdout.txt").read_text(), re.M))
    service.start()
    (second / "go").touch()
    assert run.end() == 0, run.said
    assert run.result() == {"waiting.starts": [1, 1], "waiting.sum": 2}
    assert [(path / "starts").read_text() for path in works(run)] == ["start\n"] * 3
    attempts = [[attempt.attempt for attempt in task.attempts] for task in service.tasks(run)]
    assert attempts == [[0], [0], [0]]


def test_a_run_waits_for_a_service_that_is_not_there_yet(engine: Engine, service: Service) -> None:
    """It says so, goes on by itself when the service comes, and nothing is submitted twice."""
    service.kill()
    run = engine.run("conditionals", name="early")
    run.until(lambda: re.findall("flowsched does not answer", run.log()))
    service.start()
    assert run.end() == 0, run.said
    assert service.states(run) == ["SUCCEEDED", "SUCCEEDED"]
    assert run.result()["conditionals.taken"] == "it is long"


def test_a_run_can_be_cancelled_in_flowsched(engine: Engine, service: Service) -> None:
    """`flowsched cancel RUN`: its calls are gone, miniwdl tries none of them again, and ends."""
    run = engine.run("waiting", "width=2", name="cancelled")
    begun = run.until(lambda: works(run), 2)
    (ident,) = (view.id for view in service.runs() if view.id.startswith(run.name))
    service.ask(lambda client: client.cancel(ident))
    assert run.end() != 0
    assert "the task was cancelled in flowsched" in run.said
    assert processes_in(list(begun)) == []
    assert service.states(run) == ["CANCELLED", "CANCELLED"]


def test_a_task_that_is_lost_runs_again_in_a_fresh_folder(engine: Engine, service: Service) -> None:
    """Its runner is killed, as by a machine that dies: not flowsched tries again, among the leftovers, but miniwdl, beside them."""
    run = engine.run("waiting", "width=1", name="lost")
    (first,) = run.until(lambda: works(run))
    for process in runners_of(first, service):
        with contextlib.suppress(ProcessLookupError):  # a `sleep` of the task's may have ended
            os.kill(process, signal.SIGKILL)
    again = run.until(lambda: [work for work in works(run) if work != first])[0]
    (again / "go").touch()
    assert run.end() == 0, run.said
    assert (first.name, again.name) == ("work", "work2")
    assert "interrupted task will be retried" in run.said
    assert run.result() == {"waiting.starts": [1], "waiting.sum": 1}
    ends = [(task.stage, [attempt.reason for attempt in task.attempts]) for task in service.tasks(run)]
    assert sorted(ends) == [("join", [""]), ("wait", [""]), ("wait", ["RunnerLost"])]


def runners_of(work: Path, service: Service) -> list[int]:
    """The runner and all below it that runs in a folder; not what starts runners, the child of the service above it."""
    assert service.process is not None
    while (
        True
    ):  # until one of them, such as a `sleep` of 0.2 s, does not end while we go from it to its parents
        with contextlib.suppress(FileNotFoundError, IndexError):
            found, process = [], processes_in([work])[0]
            while process not in (service.process.pid, 1):
                found.insert(0, process)
                stat = Path(f"/proc/{process}/stat").read_text()
                process = int(stat.rpartition(")")[2].split()[1])
            return found[1:]


def test_after_a_kill_of_miniwdl_its_call_cache_knows_what_had_ended(
    engine: Engine, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed run's task goes on until it is cancelled here; the next run runs only what had not ended."""
    for name, value in (("PUT", "true"), ("GET", "true"), ("DIR", str(tmp_path / "cache"))):
        monkeypatch.setitem(engine.settings, f"MINIWDL__CALL_CACHE__{name}", value)
    dead = engine.run("waiting", "width=2", name="dead")
    first, second = dead.until(lambda: works(dead), 2)
    (first / "go").touch()
    dead.until(lambda: list((tmp_path / "cache").rglob("*.json")))
    dead.process.kill()
    dead.end()
    assert service.states(dead) == ["RUNNING", "SUCCEEDED"]
    (ident,) = (view.id for view in service.runs() if view.id.startswith(dead.name))
    service.ask(lambda client: client.cancel(ident))
    run = engine.run("waiting", "width=2", name="alive")
    (again,) = run.until(lambda: works(run))
    assert again.parent.name == second.parent.name
    (again / "go").touch()
    assert run.end() == 0, run.said
    assert run.result() == {"waiting.starts": [1, 1], "waiting.sum": 2}
    assert len(service.states(run)) == 2
