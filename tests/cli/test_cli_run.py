"""`flowsched run` with its own service, as a process: nothing is faked."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flowsched.cli.app import app
from flowsched.client import session
from flowsched.workflow.run.states import TaskState
from tests.forks import Forked
from tests.serving.processes import served

SUM = {
    "name": "sum",
    "stages": [
        {
            "name": "part",
            "scatter": {"count": 3},
            "command": ["/bin/sh", "-c", "echo $FLOWSCHED_INDEX > $FLOWSCHED_OUTPUT_N"],
            "outputs": [{"name": "n", "path": "n"}],
        },
        {
            "name": "total",
            "inputs": [{"name": "ns", "from": "part.n", "match": "all"}, {"name": "base", "uri": "base.txt"}],
            "command": [
                "/bin/sh",
                "-c",
                "cat $(cat $FLOWSCHED_INPUT_NS) $FLOWSCHED_INPUT_BASE | awk '{s+=$1} END {print s}'"
                " > $FLOWSCHED_OUTPUT_SUM",
            ],
            "outputs": [{"name": "sum", "path": "sum", "value": True}],
        },
    ],
}


#: No service listens there.
NOWHERE = ("--server", "http://127.0.0.1:9")


def start(document: object, folder: Path, *args: str) -> Forked:
    (folder / "base.txt").write_text("100\n")
    (folder / "document.json").write_text(json.dumps(document))
    environment = {**os.environ, "FLOWSCHED_SERVER": "", "XDG_DATA_HOME": str(folder)}
    words = ["run", str(folder / "document.json"), *args]
    return Forked(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def test_a_workflow_runs_without_a_server(tmp_path: Path) -> None:
    """Real tasks, a relative input, the value of the output, exit code 0; data in the user's folder."""
    process = start(SUM, tmp_path, "-o", "json")
    out, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    found = json.loads(out)
    assert found["workflow"]["state"] == "SUCCEEDED"
    assert [output["value"].strip() for output in found["outputs"]] == ["103"]
    assert (tmp_path / "flowsched" / "flowsched.db").exists()


#: What a `run` on SQLite and this machine needs nothing of: it asks its service without HTTP.
NOT_LOADED = (
    "aiohttp", "alembic", "flowsched.api", "flowsched.cluster.kubernetes.api", "flowsched.cluster.kubernetes.executor",
    "fsspec", "kubernetes_asyncio",
    "networkx", "numpy.ma.", "opentelemetry", "pygments",
    "prometheus_client", "pydantic", "sqlalchemy.dialects.postgresql", "structlog",
    "WDL", "yaml",
)  # fmt: skip


def test_a_run_loads_only_what_it_needs_and_collects_none_of_it(tmp_path: Path) -> None:
    """Loading is most of what a short run costs; a look of the garbage collector at all that is loaded takes 0.05 s more."""
    (tmp_path / "base.txt").write_text("100\n")
    (tmp_path / "document.json").write_text(json.dumps(SUM))
    program = (
        "import atexit, gc, json, sys\nlooks = [0]\n"
        "gc.callbacks.append(lambda phase, _: looks.append(len(gc.get_objects())) if phase == 'start' else None)\n"
        "atexit.register(lambda: print(json.dumps([max(looks), sorted(sys.modules)]), file=sys.stderr))\n"
        "from flowsched.__main__ import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "run", str(tmp_path / "document.json")],
        env={**os.environ, "FLOWSCHED_SERVER": "", "XDG_DATA_HOME": str(tmp_path)},
        text=True, capture_output=True, timeout=200, check=True,
    )  # fmt: skip
    looked_at, loaded = json.loads(done.stderr.splitlines()[-1])
    assert [name for name in loaded if name.startswith(NOT_LOADED)] == []
    assert looked_at < 50_000


def test_a_run_resumes_the_one_before(tmp_path: Path) -> None:
    """Killed processes, services and folders of before do not matter: the results of the first run are taken, and the stage whose
    command has changed runs. Without an earlier run all of it runs.
    """
    out, said = start(SUM, tmp_path, "--resume", "-o", "json").communicate(timeout=200)
    assert "there is no earlier run of 'sum' here: all of it runs" in said
    assert [stage["cached"] for stage in json.loads(out)["stages"]] == [0, 0]
    first = json.loads(out)["workflow"]["id"]
    part, total = SUM["stages"]
    changed = {**SUM, "stages": [part, {**total, "env": {"LEVEL": "2"}}]}
    out, said = start(changed, tmp_path, "--resume", "-o", "json").communicate(timeout=200)
    assert f"resumes {first} (SUCCEEDED" in said
    found = json.loads(out)
    assert [stage["cached"] for stage in found["stages"]] == [3, 0]
    assert [output["value"].strip() for output in found["outputs"]] == ["103"]


def test_a_second_run_beside_one_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both need the same folder: it waits for the end of the other, or a service takes both."""
    stage = {"name": "a", "command": ["/bin/sh", "-c", f"touch {tmp_path}/begun; sleep 600"]}
    (tmp_path / "long.json").write_text(json.dumps({"name": "long", "stages": [stage]}))
    first = subprocess.Popen(  # other commands know it by its command line
        [sys.executable, "-m", "flowsched", "run", str(tmp_path / "long.json")],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, "FLOWSCHED_SERVER": "", "XDG_DATA_HOME": str(tmp_path)},
    )  # fmt: skip
    try:
        while not (tmp_path / "begun").exists():
            assert first.poll() is None, "it has ended"
            time.sleep(0.05)
        second = start({"name": "long", "stages": [stage]}, tmp_path)
        _, said = second.communicate(timeout=100)
        assert second.returncode == 2
        assert f"flowsched.db is in use by process {first.pid} on " in said
        assert "if it is another `flowsched run`, wait for its end" in said
        assert "a service takes several runs at once: `flowsched serve`" in said
        monkeypatch.setattr(session, "START_S", 3600.0)  # it does not wait for a service that may be starting
        monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
        for command, code in ((["ls"], 3), (["show", "long"], 3), (["logs", "long"], 2)):
            asked = CliRunner().invoke(app, command)
            assert asked.exit_code == code, asked.stderr
            if code == 3:
                assert f"`flowsched run` (process {first.pid}) has {tmp_path}/flowsched" in asked.stderr
                assert "next: `flowsched logs RUN STAGE` reads its files meanwhile" in asked.stderr
    finally:
        first.send_signal(signal.SIGINT)
        first.communicate(timeout=100)


def succeeded(folder: Path) -> int:
    """The tasks that have succeeded, as the database of a run without a server has them."""
    file = folder / "flowsched" / "flowsched.db"
    if not file.exists():
        return 0
    with (
        contextlib.suppress(sqlite3.OperationalError),
        contextlib.closing(sqlite3.connect(file)) as connection,
    ):
        found = connection.execute("SELECT count(*) FROM tasks WHERE state = ?", (int(TaskState.SUCCEEDED),))
        return int(found.fetchone()[0])
    return 0  # no tables yet


def test_a_run_that_was_killed_is_resumed(tmp_path: Path) -> None:
    """Kill -9 at half of 38 tasks: the next run cancels what was left behind, takes the 19 results and runs the rest."""
    waits = "{ touch %s/waits-$FLOWSCHED_INDEX; sleep 600; }"
    script = f"test $FLOWSCHED_INDEX -lt 19 || test -e %s/go || {waits}; echo $FLOWSCHED_INDEX > n"
    wide = {
        "name": "wide", "scatter": {"count": 38}, "resources": {"cpu": "50m", "memory": "8Mi"},
        "command": ["/bin/sh", "-c", script % (tmp_path, tmp_path)], "outputs": [{"name": "n", "path": "n"}],
    }  # fmt: skip
    process = start({"name": "wide", "stages": [wide]}, tmp_path)
    while succeeded(tmp_path) < 19 or len(list(tmp_path.glob("waits-*"))) < 19:
        assert process.poll() is None, "it has ended"
        time.sleep(0.05)
    process.kill()
    process.communicate()
    (tmp_path / "go").touch()
    out, said = start({"name": "wide", "stages": [wide]}, tmp_path, "--resume", "-o", "json").communicate(
        timeout=200
    )
    found = json.loads(out)
    assert "was left behind: it is cancelled, and its results are kept" in said
    assert (found["workflow"]["state"], found["stages"][0]["cached"]) == ("SUCCEEDED", 19)


def test_a_run_says_which_images_it_ignored(tmp_path: Path) -> None:
    """Two stages name one image: it is told once. `show` says the same."""
    stages = [
        {"name": name, "command": ["true"], "container": {"image": "docker.io/library/none:1"}}
        for name in "ab"
    ]
    process = start(
        {"name": "x", "stages": stages}, tmp_path, "--root", str(tmp_path / "r"), "--images", "ignore"
    )
    out, said = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert out.count("image docker.io/library/none:1 ignored") == 1, out


def test_a_run_that_no_node_can_take_ends_at_once(tmp_path: Path) -> None:
    """It names the stage, what is asked for and what would help; with --wait-for-nodes it waits until it is cancelled."""
    stages = [
        {"name": "prepare", "command": ["sleep", "300"]},
        {"name": "align", "command": ["true"], "resources": {"cpu": 64}},
    ]
    given = ({"name": "x", "stages": stages}, tmp_path, "--root", str(tmp_path / "r"), "--cpu", "2")
    process = start(*given)
    _, said = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "error: stage align can run on no node" in said
    assert "task needs 64 CPU" in said
    assert "--wait-for-nodes" in said
    process = start(*given, "--wait-for-nodes")
    assert process.stderr is not None
    line = ""
    while "align: QUEUED" not in line:
        line = process.stderr.readline()
        assert line, "it has ended"
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=200)
    assert process.returncode == 130


def test_a_failed_run_is_exit_code_1(tmp_path: Path) -> None:
    """With the task's last words."""
    command = ["/bin/sh", "-c", "echo no such reads >&2; exit 3"]
    process = start(
        {"name": "x", "stages": [{"name": "a", "command": command}]}, tmp_path, "--root", str(tmp_path / "r")
    )
    out, said = process.communicate(timeout=200)
    assert process.returncode == 1, said
    assert "a[0] failed, exit code 3" in said
    assert "| no such reads" in said
    assert "FAILED" in out


def test_faults_are_exit_code_2(tmp_path: Path) -> None:
    """Named one by one, before anything runs."""
    process = start({"name": "x", "stages": [{"name": "a"}]}, tmp_path, "--root", str(tmp_path / "r"))
    _, said = process.communicate(timeout=200)
    assert process.returncode == 2
    assert "document.json:1: stages[0].command: found nothing" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_interruption_cancels(tmp_path: Path, number: signal.Signals) -> None:
    """The workflow is cancelled, its task is gone, and then the process ends with 130."""
    marker = tmp_path / "pid"
    command = ["/bin/sh", "-c", f"echo $$ > {marker}; exec sleep 60"]
    process = start(
        {"name": "x", "stages": [{"name": "a", "command": command}]}, tmp_path, "--root", str(tmp_path / "r")
    )
    end = time.monotonic() + 120
    while not (marker.exists() and marker.read_text().strip()):
        assert time.monotonic() < end, "the task has not begun"
        time.sleep(0.1)
    process.send_signal(number)
    _, said = process.communicate(timeout=200)
    assert process.returncode == 130
    assert "press Ctrl-C again" in said
    with pytest.raises(ProcessLookupError):
        os.kill(int(marker.read_text()), 0)


def test_logs_are_read_without_a_service(tmp_path: Path) -> None:
    """A run that failed says where its logs lie; `logs` finds them by the name of the workflow, and says what it read."""
    command = ["sh", "-c", "echo out; echo err >&2; exit 3"]
    stage = {"name": "a", "command": command, "scatter": {"items": ["S1"]}}
    process = start({"name": "fails", "stages": [stage]}, tmp_path, "--root", str(tmp_path / "r"))
    _, said = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "a[0] (S1) failed, exit code 3" in said
    logs = [Path(line.removeprefix("  log: ")) for line in said.splitlines() if line.startswith("  log: ")]
    assert [path.read_text() for path in logs] == ["err\n", "out\n"]

    def asked(*args: str) -> Result:
        return CliRunner().invoke(app, [*NOWHERE, "logs", *args, "--root", str(tmp_path / "r")])

    found = asked("fails", "a", "--stderr")
    assert (found.exit_code, found.stdout) == (0, "err\n")
    assert found.stderr.startswith("no service answers; read from")
    assert f"read from {logs[0]} (attempt 0 of a[0]" in found.stderr
    assert asked("fails", "a", "--stderr", "--tail", "1").stdout == "err\n"
    assert asked("fails", "a", "--tail", "0").stdout == ""
    assert asked("fails", "a", "--path").stdout == f"{logs[1]}\n"
    assert asked("fails", "--path").stdout == asked("fails", "a", "S1", "--path").stdout == f"{logs[1]}\n"
    assert "there is no item 'S2'; there is S1" in asked("fails", "a", "S2").stderr
    wrong = asked("fails", "b")
    assert wrong.exit_code == 2
    assert "there is no stage 'b'; there is a" in wrong.stderr


def test_a_task_without_a_log_is_told_alike_with_and_without_a_service(tmp_path: Path) -> None:
    """One that took its result from another run, and one that was skipped: the same text, the same exit code."""
    cached = {"name": "a", "cache": True, "command": ["true"], "scatter": {"items": ["S1"]}}
    document = {"name": "twice", "stages": [cached, {"name": "b", "command": ["false"], "needs": ["a"]},
                                            {"name": "c", "command": ["true"], "needs": ["b"]}]}  # fmt: skip
    root = str(tmp_path / "r")
    for _ in range(2):
        start(document, tmp_path, "--root", root).communicate(timeout=200)

    def asked(*args: str) -> tuple[int, str]:
        done = CliRunner().invoke(app, args)
        return done.exit_code, done.stderr.splitlines()[-1]

    without = [asked(*NOWHERE, "logs", "twice", *task, "--root", root) for task in (("a", "0"), ("c",))]
    assert [code for code, _ in without] == [1, 1]
    assert "error: a[0] (S1) has not run: it took the result of w" in without[0][1]
    assert "error: c[0] has not run: it is SKIPPED; 'b' did not succeed" in without[1][1]
    with served(Path(root)) as running:
        running.ready()
        there = ("--server", running.url)
        assert [asked(*there, "logs", "twice", *task) for task in (("a", "0"), ("c",))] == without


def test_an_input_that_was_edited_is_read_anew(tmp_path: Path) -> None:
    """By its size, or by its time; also where the document names it by its item. The copy on the node is dropped."""
    stage = {
        "name": "a", "scatter": {"items": ["x", "y"]}, "command": ["sh", "-c", "cat $FLOWSCHED_INPUT_I $FLOWSCHED_INPUT_P > o"],
        "inputs": [{"name": "i", "uri": "{item}.txt"}, {"name": "p", "uri": "program.sh"}],
        "outputs": [{"name": "o", "path": "o", "value": True}],
    }  # fmt: skip
    for program, item in (("one", "1"), ("longer", "1"), ("longer", "2")):
        for name, text in (("program.sh", program), ("x.txt", item), ("y.txt", "y")):
            if not (tmp_path / name).exists() or (tmp_path / name).read_text() != text:
                (tmp_path / name).write_text(text)
        ran = start(
            {"name": "edited", "stages": [stage]}, tmp_path, "--root", str(tmp_path / "r"), "-o", "json"
        )
        out, said = ran.communicate(timeout=200)
        assert ran.returncode == 0, said
        assert [output["value"] for output in json.loads(out)["outputs"]] == [item + program, "y" + program]
