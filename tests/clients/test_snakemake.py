"""Snakemake 9 with its TES plugin: real rules, as tasks of a real service, at the paths of Snakemake's container.

Both workflows run side by side: before its plugin looks at a task for the first time it waits for 40 seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients.environments import environment
from tests.clients.live import LiveService
from tests.crash.harness import Nursery
from tests.forks import Forked

HERE = Path(__file__).parent
#: Snakemake's jobs own /tmp of their container: what all of them see must be elsewhere.
SHARED = "/var/tmp"
pytestmark = [pytest.mark.clients, pytest.mark.slow]


@dataclass(frozen=True)
class Run:
    """One Snakemake that runs: its folder has `work`, where it was started, `storage`, and what it said."""

    folder: Path
    service: LiveService
    process: subprocess.Popen[bytes]

    def ended(self, within_s: float = 500.0) -> tuple[int, str]:
        """Its exit code, and what it said."""
        code = self.process.wait(within_s)
        return code, (self.folder / "said").read_text(errors="replace")

    def stored(self, name: str) -> str | None:
        """What a file of its storage holds; None if there is none."""
        path = self.folder / "storage" / name
        return path.read_text() if path.exists() else None

    def tasks(self) -> dict[str, dict[str, Any]]:
        """Its tasks on the service, by name."""
        with urllib.request.urlopen(f"{self.service.url}/v1/tasks?view=FULL", timeout=60) as answer:
            found = json.load(answer)["tasks"]
        mine = str(self.folder / "storage")
        return {task["name"]: task for task in found if mine in task["inputs"][-1]["content"]}

    def asked(self, what: str) -> Any:
        """What the service's own API answers."""
        with urllib.request.urlopen(f"{self.service.url}/api/v1/{what}", timeout=60) as answer:
            return json.load(answer)

    def failures(self) -> str:
        """What became of tasks that failed, for a failing test."""
        failed = {name: task for name, task in self.tasks().items() if task["state"] != "COMPLETE"}
        return json.dumps(
            {name: [task["state"], task.get("logs")] for name, task in failed.items()}, indent=1
        )


@contextmanager
def snakemake(venv: Path, service: LiveService, folder: Path, *arguments: str) -> Iterator[Run]:
    """Start Snakemake, with storage of its own."""
    (folder / "work").mkdir(parents=True)
    (folder / "storage").mkdir()
    shutil.copy(HERE / "snakemake" / "fan.smk", folder / "work" / "Snakefile")
    # Version 0.1.3 of the plugin reads this file, left from its own tests, when a task fails: without it, it breaks down.
    (folder / "funnel.log").touch()
    # Each job installs the storage plugin: from the wheel that is there, without asking an index.
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_FIND_LINKS": str(venv / "wheels")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [
        *(str(venv / "bin" / "snakemake"), "--executor", "tes", "--tes-url", service.url, "--jobs", "4"),
        *("--default-storage-provider", "fs", "--default-storage-prefix", str(folder / "storage")),
        *("--seconds-between-status-checks", "2", "--envvars", *offline),
        # The image of a task is ignored on a local cluster: its Snakemake is this one.
        *("--precommand", f"export PATH={venv}/bin:$PATH", *arguments),
    ]
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            command, cwd=folder / "work", stdout=said, stderr=said,
            env=kept | offline | {"GITHUB_WORKSPACE": str(folder), "PATH": f"{venv}/bin:{kept['PATH']}"},
        )  # fmt: skip
    try:
        yield Run(folder, service, process)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def headed() -> Iterator[Forked]:
    """`flowsched run Snakefile`, on a service of its own, at the same time."""
    venv = environment("snakemake-9")
    with tempfile.TemporaryDirectory(prefix="flowsched-snakemake-", dir=SHARED) as name:
        shutil.copy(HERE / "snakemake" / "fan.smk", Path(name) / "Snakefile")
        offline = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_FIND_LINKS": str(venv / "wheels")}
        command = [
            "run",
            "Snakefile",
            "--root",
            f"{name}/root",
            "--nodes",
            "1",
            "--cpu",
            "4",
            "--memory",
            "16Gi",
        ]
        process = Forked(
            [*command, "--images", "ignore", "-o", "json", "--", "--envvars", *offline],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=Path(name),
            env=os.environ | offline | {"PATH": f"{venv}/bin:{os.environ['PATH']}"},
        )  # fmt: skip
        yield process
        process.kill()


@pytest.fixture(scope="module")
def runs(nursery: Nursery) -> Iterator[dict[str, Run]]:
    """Two Snakemakes at once, on one service."""
    venv = environment("snakemake-9")
    with tempfile.TemporaryDirectory(prefix="flowsched-snakemake-", dir=SHARED) as name, ExitStack() as stack:
        service = LiveService(Path(name), nursery)
        stack.callback(lambda: asyncio.run(service.end()))
        service.start()
        asyncio.run(service.ready())
        yield {
            run: stack.enter_context(snakemake(venv, service, Path(name, run), *arguments))
            for run, *arguments in (("fan",), ("broken", "--config", "broken=b"))
        }


@pytest.fixture(autouse=True)
def told(snakemake_9: Path) -> None:
    """The versions are told at the end."""


def test_a_rule_that_fails_is_named(runs: dict[str, Run]) -> None:
    """Snakemake ends with an error that names the rule and the task; the task says why."""
    run = runs["broken"]
    code, said = run.ended()
    assert code == 1
    failed = {name: task for name, task in run.tasks().items() if task["state"] != "COMPLETE"}
    assert [(name.split(".")[1], task["state"]) for name, task in failed.items()] == [
        ("count", "EXECUTOR_ERROR")
    ]
    (task,) = failed.values()
    assert "Error in rule count" in said
    assert task["id"] in said
    (log,) = task["logs"][-1]["logs"]
    assert log["exit_code"] == 1
    assert "part b is broken" in log["stderr"]
    assert run.stored("total.txt") is None
    assert run.stored("b.count") is None


def test_a_fan_of_jobs_makes_the_right_files(runs: dict[str, Run]) -> None:
    """Five jobs on the service, three of them side by side."""
    run = runs["fan"]
    code, said = run.ended()
    assert code == 0, run.failures() + said[-3000:]
    assert run.stored("total.txt") == "6\n"
    assert {name: run.stored(f"{name}.count") for name in "abc"} == {"a": "1\n", "b": "2\n", "c": "3\n"}
    tasks = run.tasks()
    rules = sorted(name.split(".")[1] for name in tasks)
    assert rules == ["count", "count", "count", "split", "total"]
    assert {task["state"] for task in tasks.values()} == {"COMPLETE"}


def test_jobs_of_one_rule_are_shards_of_one_stage(runs: dict[str, Run]) -> None:
    """Each has its own log, by the number that Snakemake's log names."""
    run = runs["fan"]
    code, said = run.ended()
    assert code == 0, said
    named = run.tasks()
    (ident,) = {run.asked(f"workflows/{task['id']}")["run"] for task in named.values()}
    stages = {stage["name"]: stage["width"] for stage in run.asked(f"workflows/{ident}/stages")}
    assert stages == {"split": 1, "count": 3, "total": 1}
    numbers = {name.split(".")[2] for name in named if name.split(".")[1] == "count"}
    tasks = run.asked(f"workflows/{ident}/tasks?stage=count")["tasks"]
    assert {str(task["index"]) for task in tasks} == numbers
    assert run.asked(f"workflows/{ident}")["counts"] == {"SUCCEEDED": 5}


def test_flowsched_run_starts_snakemake_as_the_first_task_of_its_run(
    headed: Forked, runs: dict[str, Run]
) -> None:
    """Its jobs find the run by their endpoint. The folder of the Snakefile is the storage."""
    said, _ = headed.communicate(500)
    assert headed.returncode == 0, said
    found = json.loads(said[said.index("{") :])
    assert found["workflow"]["state"] == "SUCCEEDED"
    assert found["workflow"]["counts"] == {"SUCCEEDED": 6}
    stages = {stage["name"]: stage["width"] for stage in found["stages"]}
    assert stages == {"snakemake": 1, "split": 1, "count": 3, "total": 1}
