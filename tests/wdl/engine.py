"""A real service and real runs of miniwdl, for the tests of the backend between them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import time
import tomllib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from flowsched.client import Client
from flowsched.workflow.views import TaskView, WorkflowView
from tests.forks import Forked

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = Path(__file__).parent / "documents"

T = TypeVar("T")


def entry_points(folder: Path) -> Path:
    """Write what an installed flowsched says of itself, from this checkout's pyproject.toml: what is installed may be older."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    info = folder / f"flowsched-{project['version']}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: flowsched\nVersion: {project['version']}\n")
    lines = []
    for group, found in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in found.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


@dataclass
class Service:
    """A service on a local cluster, which may be killed and started again on the same port."""

    root: Path
    port: int = 0
    process: Forked | None = None
    nodes: tuple[str, ...] = ("--nodes", "2", "--cpu", "4", "--memory", "4Gi")

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        words = ["serve", "--no-supervise", "--root", str(self.root), "--port", str(self.port), *self.nodes]
        self.root.mkdir(parents=True, exist_ok=True)
        log = self.root / "service.log"
        before = log.stat().st_size if log.exists() else 0
        with log.open("ab") as out:
            self.process = Forked(words, stdout=out, stderr=out)
        end = time.monotonic() + 200
        while time.monotonic() < end:
            assert self.process.poll() is None, log.read_text()
            found = re.search(rb"http://127\.0\.0\.1:(\d+)", log.read_bytes()[before:])
            if found is not None:
                self.port = int(found[1])
                if self.ask(lambda client: client.ready())[0]:
                    return
            time.sleep(0.1)
        raise AssertionError(f"the service did not start: {log.read_text()}")

    def kill(self) -> None:
        """As if the machine had taken it: no time to say anything."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(90)

    def ask(self, question: Callable[[Client], Awaitable[T]]) -> T:
        async def asked() -> T:
            async with Client(self.url) as client:
                return await question(client)

        return asyncio.run(asked())

    def runs(self) -> list[WorkflowView]:
        """What `flowsched ls` shows."""

        async def listed(client: Client) -> list[WorkflowView]:
            return [view async for view in client.list()]

        return self.ask(listed)

    def calls(self, run: Run) -> list[WorkflowView]:
        """The calls of a run, each a workflow."""

        async def listed(client: Client) -> list[WorkflowView]:
            return [view async for view in client.list(run=run_id)]

        (run_id,) = (view.id for view in self.runs() if view.id.startswith(run.name))
        return self.ask(listed)

    def states(self, run: Run) -> list[str]:
        """How its calls are, sorted."""
        return sorted(view.state for view in self.calls(run))

    def documents(self, run: Run) -> list[dict[str, Any]]:
        """What was submitted."""

        async def read(client: Client) -> list[dict[str, Any]]:
            return [json.loads(await client.document(view.id)) for view in found]

        found = self.calls(run)
        return self.ask(read)

    def tasks(self, run: Run) -> list[TaskView]:
        """The tasks of its calls, with all their attempts."""

        async def read(client: Client) -> list[TaskView]:
            return [
                await client.task(view.id, task.stage, task.index)
                for view in found
                async for task in client.tasks(view.id)
            ]

        found = self.calls(run)
        return self.ask(read)


@dataclass
class Run:
    """`miniwdl run`, started."""

    process: Forked
    folder: Path
    outputs: Path
    said: str = ""

    def end(self, timeout: float = 400) -> int:
        """Its exit code; what it said is in `said`."""
        self.said = self.process.communicate(timeout=timeout)[0]
        return self.process.returncode

    @property
    def name(self) -> str:
        """Of the folder that miniwdl has made for it."""
        (top,) = (path.name for path in self.folder.iterdir() if path.is_dir() and path.name != "_LAST")
        return top

    def result(self) -> Any:
        """Its outputs, with the text of each file in place of its path."""
        assert self.process.returncode == 0, self.said
        return with_texts(json.loads(self.outputs.read_text())["outputs"])

    def until(self, found: Callable[[], Sequence[T]], wanted: int = 1, within_s: float = 200) -> Sequence[T]:
        """Wait until so many are found while it runs."""
        end = time.monotonic() + within_s
        while len(seen := found()) < wanted:
            assert self.process.poll() is None, f"it has ended: {self.end()}, {self.said}"
            assert time.monotonic() < end, f"{len(seen)} of {wanted} after {within_s} s"
            time.sleep(0.1)
        return seen

    def log(self) -> str:
        """What it has logged so far."""
        return "".join(path.read_text() for path in files_below(self.folder, ".log"))


def files_below(folder: Path, ending: str) -> list[Path]:
    """Files whose names end so. (`rglob` fails where somebody removes a folder at the same time.)"""
    return sorted(
        Path(where, name) for where, _, names in os.walk(folder) for name in names if name.endswith(ending)
    )


def with_texts(value: Any) -> Any:
    match value:
        case dict():
            return {key: with_texts(inner) for key, inner in value.items()}
        case list():
            return [with_texts(inner) for inner in value]
        case str() if value.startswith("/") and os.path.isfile(value):
            return {"text": Path(value).read_text()}
        case _:
            return value


@dataclass
class Engine:
    """miniwdl, set up for a service."""

    service: Service
    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        entry_points(self.folder / "installed")

    def environment(self) -> dict[str, str]:
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("MINIWDL", "FLOWSCHED"))
        }
        return kept | {
            "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{self.folder / 'installed'}",
            "MINIWDL__SCHEDULER__CONTAINER_BACKEND": "flowsched",
            "MINIWDL__SCHEDULER__TASK_CONCURRENCY": "16",
            "MINIWDL__FLOWSCHED__URL": self.service.url,
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            **self.settings,
        }

    def run(self, document: str | Path, *more: str, name: str = "") -> Run:
        path = document if isinstance(document, Path) else DOCUMENTS / f"{document}.wdl"
        folder = self.folder / "runs" / (name or path.stem)
        folder.mkdir(parents=True)
        outputs = folder / "outputs.json"
        command = ["run", str(path), *more]
        command += ["--dir", str(folder), "-o", str(outputs)]
        inputs = path.with_name(f"{path.stem}.inputs.json")
        if inputs.exists():
            command += ["-i", str(inputs)]
        process = Forked(
            command,
            module="WDL",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self.environment(),
            cwd=DOCUMENTS,
        )
        run = Run(process, folder, outputs)
        self.runs.append(run)
        return run

    def close(self) -> None:
        for run in self.runs:
            if run.process.poll() is None:
                run.process.kill()
                run.process.wait(60)
