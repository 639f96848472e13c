"""Real engines on one real service: a pipeline with a retry, one that fails, one that is cancelled, and a restart in their middle.

`flowsched run` starts some of them, too, as the head of a run that is cancelled and run again. All of it runs side by side;
`engines/part.sh` is the program of the tasks.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.request import Request, urlopen

import pytest

from tests.clients.environments import environment, home, installed, versions
from tests.clients.live import LiveService
from tests.crash.harness import Nursery
from tests.forks import Forked

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
    (order.folder / "inputs" / "file").mkdir(parents=True)
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
    forgets: bool = False  #: whether a Ctrl-C leaves tasks behind of which it asks the state at that moment


ENGINES: Final = {
    "toil-7": Conduct(toil),
    "cwl-tes-0.3": Conduct(cwl_tes, retries=False, interrupts=0),
    "snakemake-9": Conduct(snakemake, forgets=True),
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

    def _asks(self) -> bool:
        """Whether it waits for an answer of the service: each question has a connection of its own."""
        sockets = set()
        for file in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(OSError):  # closed meanwhile
                sockets.add(os.readlink(file))
        connections = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        served = f":{self.service.port:04X}"
        return any(words[2].endswith(served) and f"socket:[{words[9]}]" in sockets for words in connections)

    def interrupt(self) -> None:
        """Ctrl-C, as often as its engine needs, and at a moment at which it forgets no task."""
        for number in range(self.conduct.interrupts or 1):
            if self.conduct.forgets:
                until(lambda: self.process.poll() is not None or not self._asks())
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


class Headed(NamedTuple):
    """How `flowsched run` starts an engine: the workflow, the name of its copy in the folder, and what stands behind it."""

    workflow: str
    copy: str
    words: Callable[[Order], list[str]]


def headed_toil(order: Order) -> list[str]:
    return ["--", "--no-container", "--defaultMemory", "256Mi", "--defaultCores", "1", *order.cwl[1:]]


def headed_snakemake(order: Order) -> list[str]:
    config = (f"parts={' '.join(order.parts)}", f"script={HERE}/part.sh", f"folder={order.folder}")
    return ["--", "--envvars", "PIP_NO_INDEX", "PIP_NO_DEPS", "PIP_FIND_LINKS", "--config", *config]


def headed_nextflow(order: Order) -> list[str]:
    (order.folder / "nextflow.config").write_text("process.container = 'ubuntu:24.04'")
    return ["--", "--parts", " ".join(order.parts), *order.options]


def headed_sprocket(order: Order) -> list[str]:
    inputs = (("parts", order.parts[0]), ("script", f"{HERE}/part.sh"), ("folder", order.folder))
    return ["--engine", "sprocket", "--", *(f"parts.{key}={value}" for key, value in inputs)]


HEADED: Final = {
    "toil-7": Headed("parts.cwl", "parts.cwl", headed_toil),
    "snakemake-9": Headed("parts.smk", "Snakefile", headed_snakemake),
    "nextflow": Headed("parts.nf", "main.nf", headed_nextflow),
    "sprocket": Headed("parts.wdl", "parts.wdl", headed_sprocket),
}


class HeadedRun:
    """`flowsched run`: cancelled by Ctrl-C while its part runs, then run again to its end. All in a thread."""

    def __init__(self, name: str, above: Path) -> None:
        self.folder, self.how, self.programs = above / f"{name}-headed", HEADED[name], home() / name / "bin"
        self.folder.mkdir()
        shutil.copy(HERE / self.how.workflow, self.folder / self.how.copy)
        wheels = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_FIND_LINKS": f"{home() / name / 'wheels'}"}
        plugins = {"NXF_OFFLINE": "true", "NXF_PLUGINS_DIR": f"{home() / name / 'plugins'}"}
        self.env = os.environ | wheels | plugins | {"PATH": f"{self.programs}:{os.environ['PATH']}"}
        self.ends: Future[list[tuple[int, str]]] = Future()
        self.left: list[str] = []  #: processes of the run after it was cancelled
        self.process: Forked | None = None
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        try:
            self.ends.set_result(self._both())
        except Exception as error:  # noqa: BLE001 # the test raises it
            self.ends.set_exception(error)

    def _both(self) -> list[tuple[int, str]]:
        first = self._start()
        until(lambda: (self.folder / "runs").exists() or first.poll() is not None)
        first.send_signal(signal.SIGINT)
        cancelled = first.wait(PATIENCE_S), self.said()
        self.left = self._processes()
        (self.folder / "go").touch()
        return [cancelled, (self._start().wait(PATIENCE_S), self.said())]

    def _start(self) -> Forked:
        order = Order(self.programs, "", self.folder, ("slow",))
        service = (
            "--root",
            f"{self.folder}/root",
            "--nodes",
            "1",
            "--cpu",
            "4",
            "--memory",
            "16Gi",
            "--images",
            "ignore",
        )
        words = ["run", self.how.copy, *service, "-o", "json", *self.how.words(order)]
        with (self.folder / "said").open("wb") as said:
            self.process = Forked(words, stdout=said, stderr=subprocess.STDOUT, cwd=self.folder, env=self.env)
        return self.process

    def said(self) -> str:
        return (self.folder / "said").read_text(errors="replace")

    def _processes(self) -> list[str]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
        return [line for line in found if f"{self.folder}" in line]

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()


@pytest.fixture(scope="module")
def headed(request: pytest.FixtureRequest) -> Iterator[dict[str, HeadedRun]]:
    """A run by `flowsched run` of each engine that a test asks for and that is installed, beside all others."""
    with tempfile.TemporaryDirectory(prefix="flowsched-headed-", dir=SHARED) as name, ExitStack() as stack:
        engines = filter(installed, wanted(request, heads=True))
        made = {engine: HeadedRun(engine, Path(name)) for engine in engines}
        for run in made.values():
            stack.callback(run.end)
        yield made


def wanted(request: pytest.FixtureRequest, *, heads: bool = False) -> set[str]:
    """The engines of the tests that are to run. `heads`: of those that ask for a run by `flowsched run`."""
    own = (item for item in request.session.items if item.path == request.path)
    return {
        item.callspec.params["name"]  # type: ignore[attr-defined]
        for item in own
        if not heads or "headed" in item.function.__code__.co_varnames  # type: ignore[attr-defined]
    }


@pytest.fixture(scope="module")
def runs(
    nursery: Nursery, request: pytest.FixtureRequest, headed: dict[str, HeadedRun]
) -> Iterator[dict[tuple[str, str], Run]]:
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
        made = {
            (engine, scenario): Run(engine, scenario, service, folder)
            for engine in filter(installed, wanted(request))
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


@pytest.mark.parametrize("name", HEADED, indirect=True)
def test_flowsched_run_is_cancelled_with_its_tasks_and_runs_again(
    name: str, headed: dict[str, HeadedRun], runs: dict[tuple[str, str], Run]
) -> None:
    """Ctrl-C ends the engine and its task. The same command then finds a folder in which it can work, and its result is there."""
    run = headed[name]
    (cancelled, first), (again, said) = run.ends.result(2 * PATIENCE_S)
    assert (cancelled, run.left) == (130, []), first
    assert again == 0, said
    found = json.loads(said[said.index("\n{") :])
    assert (found["workflow"]["state"], found["workflow"]["counts"]) == ("SUCCEEDED", {"SUCCEEDED": 3})
    made = next(run.folder.rglob("all.txt"), None)
    assert made is not None, said
    assert made.read_text() == "slow\n"
