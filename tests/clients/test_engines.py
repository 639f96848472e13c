"""Real engines on one real service: a pipeline with a retry, one that fails, one that is cancelled, and a restart in their middle.

All engines run side by side, three runs each; `engines/part.sh` is the program of their tasks.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.request import Request, urlopen

import pytest

from tests.clients.environments import environment, home, installed, versions
from tests.clients.live import LiveService
from tests.crash.harness import Nursery

HERE = Path(__file__).parent / "engines"
#: Jobs own /tmp of their container: the files that all of them read must be elsewhere.
SHARED: Final = "/var/tmp"
#: How long an engine may take for one step of a test on a busy machine.
PATIENCE_S: Final = 300.0
#: The parts of each run. The service restarts while `slow` runs. `flaky` fails in its first try, `broken` in each.
SCENARIOS: Final = {"good": ("plain", "flaky", "slow"), "bad": ("plain", "broken"), "cancelled": ("slow",)}
pytestmark = [pytest.mark.clients, pytest.mark.slow]


class Order(NamedTuple):
    """An order to an engine to run the pipeline on the service at this URL, in a folder of the run's own."""

    programs: Path
    url: str
    folder: Path
    parts: tuple[str, ...]

    @property
    def options(self) -> tuple[str, ...]:
        """The inputs of the pipeline but for its parts."""
        return "--script", f"{HERE}/part.sh", "--folder", f"{self.folder}"

    @property
    def cwl(self) -> tuple[str, ...]:
        """The pipeline in CWL, and its inputs."""
        parts = (word for part in self.parts for word in ("--parts", part))
        return f"{HERE}/parts.cwl", *parts, *self.options


def toil(order: Order) -> list[str]:
    """Toil tries a failed job once more."""
    return [
        *(f"{order.programs}/toil-cwl-runner", "--batchSystem", "tes", "--tesEndpoint", order.url, "--no-container"),
        *("--jobStore", f"{order.folder}/store", "--defaultMemory", "256Mi", "--defaultCores", "1"),
        *("--retryCount", "1", "--outdir", f"{order.folder}", *order.cwl),
    ]  # fmt: skip


def cwl_tes(order: Order) -> list[str]:
    """Without `--leave-tmpdir`, cwl-tes 0.3.0 deletes /tmp of this machine after each task with a container."""
    return [
        *(f"{order.programs}/cwl-tes", "--leave-tmpdir", "--tes", order.url, "--parallel"),
        *("--outdir", f"{order.folder}", "--tmp-outdir-prefix", f"{order.folder}/", "--default-container", "alpine"),
        *("--remote-storage-url", f"file://{order.folder}", *order.cwl),
    ]  # fmt: skip


def snakemake(order: Order) -> list[str]:
    """Each job installs the storage plugin: from the wheel that is there, without a package index."""
    shutil.copy(HERE / "parts.smk", order.folder / "Snakefile")
    return [
        *(f"{order.programs}/snakemake", "--executor", "tes"),
        *("--tes-url", order.url, "--jobs", "4", "--retries", "1", "--seconds-between-status-checks", "2"),
        *("--default-storage-provider", "fs", "--default-storage-prefix", f"{order.folder}/storage"),
        *("--envvars", "PIP_NO_INDEX", "PIP_NO_DEPS", "PIP_FIND_LINKS"),
        *("--precommand", f"export PATH={order.programs}:$PATH"),
        *("--config", f"parts={' '.join(order.parts)}", f"script={HERE}/part.sh", f"folder={order.folder}"),
    ]  # fmt: skip


def nextflow(order: Order) -> list[str]:
    """The tag names the run. Without a network, Nextflow wants the version of each plug-in."""
    (plugin,) = (order.programs.parent / "plugins").glob("nf-ga4gh-*")
    (order.folder / "nextflow.config").write_text(
        f"""
        plugins {{ id 'nf-ga4gh@{plugin.name.removeprefix("nf-ga4gh-")}' }}
        process.executor = 'tes'
        process.container = 'ubuntu:24.04'
        tes.endpoint = '{order.url}'
        tes.tags = [workflow_id: '{order.folder.name}']
        tes.timeout = 60
        """
    )
    return [
        *(f"{order.programs}/nextflow", "run", f"{HERE}/parts.nf", "-ansi-log", "false"),
        *("-work-dir", f"{order.folder}/work", "--parts", " ".join(order.parts), *order.options),
    ]  # fmt: skip


def sprocket(order: Order) -> list[str]:
    """Sprocket waits for its tasks after the first Ctrl-C, and cancels them after the second."""
    (order.folder / "sprocket.toml").write_text(
        f"""
        [run.backends.default]
        type = "tes"
        url = "{order.url}"
        insecure = true
        interval = 1
        retries = 3
        inputs = "file://{order.folder}/inputs/"
        outputs = "file://{order.folder}/outputs/"
        """
    )
    inputs = {"parts": order.parts, "script": f"{HERE}/part.sh", "folder": f"{order.folder}"}
    (order.folder / "inputs.json").write_text(json.dumps(inputs))
    return [
        *(f"{order.programs}/sprocket", "--config", "sprocket.toml", "--skip-config-search", "run", f"{HERE}/parts.wdl"),
        *("--target", "parts", "--output-dir", f"{order.folder}/run", "--no-call-cache", "@inputs.json"),
    ]  # fmt: skip


class Conduct(NamedTuple):
    """One engine: its command, and its conduct."""

    command: Callable[[Order], list[str]]
    retries: bool = True  #: whether it tries a failed task again
    judges: bool = (
        False  #: whether it sends tasks that are complete with any return code, and judges the code itself
    )
    interrupts: int = 1  #: after so many Ctrl-C it cancels its tasks; 0 = it leaves them behind


ENGINES: Final = {
    "toil-7": Conduct(toil),
    "cwl-tes-0.3": Conduct(cwl_tes, retries=False, interrupts=0),
    "snakemake-9": Conduct(snakemake),
    "nextflow": Conduct(nextflow),
    "sprocket": Conduct(sprocket, judges=True, interrupts=2),
}


class Run:
    """A run of an engine, from its start."""

    def __init__(self, name: str, scenario: str, service: LiveService, above: Path) -> None:
        self.service, self.scenario, self.conduct = service, scenario, ENGINES[name]
        self.folder = above / f"{name}-{scenario}"
        self.folder.mkdir()
        programs = home() / name / "bin"
        parts = SCENARIOS[scenario]
        if not self.conduct.retries:
            parts = tuple(part for part in parts if part != "flaky")
        command = self.conduct.command(Order(programs, service.url, self.folder, parts))
        own = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        own |= {"PATH": f"{programs}:{own['PATH']}", "GITHUB_WORKSPACE": str(self.folder)}
        own |= {
            "PIP_NO_INDEX": "1",
            "PIP_NO_DEPS": "1",
            "PIP_FIND_LINKS": str(home() / name / "wheels"),
        }
        (self.folder / "funnel.log").touch()  # the plugin of Snakemake reads it when a task fails
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, env=own)

    @property
    def log(self) -> Path:
        return self.folder / "engine.log"

    def tasks(self) -> list[dict[str, Any]]:
        """Its tasks, the oldest first: those that name its folder."""
        with urlopen(f"{self.service.url}/v1/tasks?view=FULL&page_size=2000", timeout=60) as answer:
            found = json.load(answer)["tasks"]
        mine = f"{self.folder}/"
        return [task for task in reversed(found) if mine in json.dumps(task)]

    def slow(self) -> bool:
        """Whether its slow part runs."""
        return (self.folder / "runs").exists()

    def interrupt(self) -> None:
        """Ctrl-C, as often as its engine needs."""
        for number in range(self.conduct.interrupts or 1):
            time.sleep(2 * number)
            self.process.send_signal(signal.SIGINT)

    def ended(self) -> int:
        """Its exit code."""
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it goes on\n{self.tail()}") from None

    def tail(self) -> str:
        """The ends of its log and of its tasks', for a failing test."""
        states = [(task["name"], task["state"], task["logs"][-1:]) for task in self.tasks()]
        return f"{self.log.read_text(errors='replace')[-3000:]}\n{json.dumps(states, indent=1)[-3000:]}"

    def workflow(self) -> dict[str, Any]:
        """Its one line in the list."""
        with urlopen(f"{self.service.url}/api/v1/workflows?limit=100", timeout=60) as answer:
            lines = json.load(answer)["workflows"]
        idents = {self.run_of(task["id"]) for task in self.tasks()}
        (line,) = [line for line in lines if line["id"] in idents]
        return dict(line)

    def run_of(self, ident: str) -> str:
        with urlopen(f"{self.service.url}/api/v1/workflows/{ident}", timeout=60) as answer:
            return str(json.load(answer)["run"])

    def cancel(self) -> None:
        """Cancel it on the service, as `flowsched cancel` does."""
        run = self.workflow()["id"]
        urlopen(
            Request(f"{self.service.url}/api/v1/workflows/{run}/cancel", method="POST"), timeout=60
        ).close()


@pytest.fixture(scope="module")
def runs(nursery: Nursery, request: pytest.FixtureRequest) -> Iterator[dict[tuple[str, str], Run]]:
    """Three runs of each engine that a test asks for and that is installed. The service restarts once their slow parts run."""
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    ):  # as below a script in the background, whose children hear no Ctrl-C
        signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="flowsched-engines-", dir=SHARED) as name, ExitStack() as stack:
        folder = Path(name)
        service = LiveService(folder, nursery, path=str(home() / "toil-7" / "bin"))
        stack.callback(lambda: asyncio.run(service.end()))
        service.start()
        asyncio.run(service.ready())
        own = (item for item in request.session.items if item.path == request.path)
        wanted = {item.callspec.params["name"] for item in own}  # type: ignore[attr-defined]
        made = {
            (engine, scenario): Run(engine, scenario, service, folder)
            for engine in filter(installed, wanted)
            for scenario in SCENARIOS
        }
        for run in made.values():
            stack.callback(run.process.wait)
            stack.callback(run.process.kill)
        slow = [run for run in made.values() if run.scenario != "bad"]
        until(lambda: all(run.slow() or run.process.poll() is not None for run in slow))
        asyncio.run(service.restart())
        for run in slow:
            if run.scenario == "cancelled":
                run.interrupt()
            else:
                (run.folder / "go").touch()
        yield made


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds, or for long; the tests find the cause."""
    end = time.monotonic() + PATIENCE_S
    while not holds() and time.monotonic() < end:
        time.sleep(0.2)


@pytest.fixture(params=ENGINES)
def name(request: pytest.FixtureRequest, tell: Callable[[str], None]) -> str:
    """An engine that is installed; its versions are printed at the end."""
    tell(versions(environment(request.param)))
    return str(request.param)


def test_a_run_with_a_retry_outlives_a_restart_of_the_service(
    name: str, runs: dict[tuple[str, str], Run]
) -> None:
    """The file is right, the failed try is no failure of the run, and no task ran once more."""
    run, conduct = runs[name, "good"], ENGINES[name]
    assert run.ended() == 0, run.tail()
    parts = {"plain", "slow"} | ({"flaky"} if conduct.retries else set())
    made = next(run.folder.rglob("all.txt"), None)
    assert made is not None, run.tail()
    assert set(made.read_text().split()) == parts
    line = run.workflow()
    assert (line["state"], line["stages"], line["counts"]) == ("ENGINE", 2, {"SUCCEEDED": len(parts) + 1})
    assert len(run.tasks()) == len(parts) + 1 + conduct.retries


def test_a_run_that_fails_is_one_failed_workflow(name: str, runs: dict[tuple[str, str], Run]) -> None:
    """Its engine ends with an error. The failed task counts once, whatever the number of its tries."""
    run, conduct = runs[name, "bad"], ENGINES[name]
    assert run.ended() != 0
    line = run.workflow()
    ended = ("ENGINE", {"SUCCEEDED": 2}) if conduct.judges else ("FAILED", {"SUCCEEDED": 1, "FAILED": 1})
    assert (line["state"], line["counts"]) == ended, run.tail()
    codes = [task["logs"][-1]["logs"][-1]["exit_code"] for task in run.tasks()]
    assert sum(code != 0 for code in codes) == 1 + conduct.retries


def test_ctrl_c_cancels_the_tasks(name: str, runs: dict[tuple[str, str], Run]) -> None:
    """Its run is cancelled. An engine that leaves its tasks behind says so; a user cancels its run then."""
    run = runs[name, "cancelled"]
    assert run.ended() != 0
    if not ENGINES[name].interrupts:
        assert [task["state"] for task in run.tasks()] == ["RUNNING"], run.tail()
        run.cancel()
    until(lambda: run.tasks()[-1]["state"] not in ("QUEUED", "INITIALIZING", "RUNNING"))
    assert [task["state"] for task in run.tasks()] == ["CANCELED"], run.tail()
    assert run.workflow()["state"] == "CANCELLED"
