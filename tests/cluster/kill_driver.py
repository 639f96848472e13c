"""A service in small: runs tasks to their end over a LocalCluster, with a journal for SQL. It is killed -9 at any moment.

    python kill_driver.py ROOT TASKS

With FLOWSCHED_TEST_TASK_IMAGE every task runs in containers of that image, by the engine that FLOWSCHED_TEST_ENGINE names.

The journal holds, each line synced before anything follows from it, `service PID`, `intent NAME` and
`final NAME KIND STARTED CODE`.
Attempt n+1 of a task is intended when attempt n is gone. The process exits with 0 when all tasks have ended.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

from msgspec import structs

from flowsched.cluster.local.executor import LocalCluster
from flowsched.cluster.local.images import ContainerSettings
from flowsched.cluster.local.virtual_nodes import virtual_nodes
from flowsched.executor.protocol import ClusterEvent, ContainerReport, Pod, PodEnded, PodGone
from flowsched.workflow.spec import Container, Delivered, Mount, Step
from tests.executors.executor_contract import pod

#: Appends a line to a file that only this task writes, while it holds a lock that only this task takes.
#: Every second task is a container task, which runs it as its first step.
TASK = """
import fcntl, os, sys, time
folder, attempt = sys.argv[1:]
lock = open(folder + "/lock", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    open(folder + "/overlap", "a").write(attempt + "\\n")
    raise
fd = os.open(folder + "/starts", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
os.write(fd, (attempt + "\\n").encode())
time.sleep(0.2 + int.from_bytes(os.urandom(1)) / 256)
"""


#: Attempts under way at once, so that a kill finds some in every state.
WINDOW = 8


class Driver:
    def __init__(self, root: Path, tasks: int) -> None:
        self.root, self.tasks = root, tasks
        self.journal = os.open(root / "journal", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.open: dict[str, Pod] = {}
        self.done: set[int] = set()

    def write(self, *words: object) -> None:
        os.write(self.journal, (" ".join(map(str, words)) + "\n").encode())
        os.fsync(self.journal)

    def make(self, task: int, attempt: int) -> Pod:
        folder = self.root / f"task-{task}"
        folder.mkdir(exist_ok=True)
        name = f"fs-wf-s-{task}-{attempt}"
        command = ("python", "-c", TASK, str(folder), str(attempt))
        image = os.environ.get("FLOWSCHED_TEST_TASK_IMAGE")
        made = pod(name, *command, index=task, attempt=attempt, node=f"node-{attempt % 2}", image=image)
        if (task % 2 == 0 and image is None) or not sys.platform.startswith("linux"):
            return made
        steps = (Step(command, image), Step(("sh", "-c", "echo done > /out/result"), image))
        outputs = (Delivered("/out/result", f"{folder}/result"),)
        mounts = () if image is None else (Mount(str(folder), str(folder)),)
        return structs.replace(made, container=Container(steps, outputs=outputs, mounts=mounts))

    def recover(self) -> dict[int, int]:
        """Attempts by task; fills `open` with what has an intent and no end, `done` with what succeeded."""
        attempts: dict[int, int] = {}
        for line in (self.root / "journal").read_text().splitlines():
            kind, name, *rest = line.split()
            if kind == "service":
                continue
            task, attempt = map(int, name.split("-")[3:])
            if kind == "intent":
                attempts[task] = attempt
                self.open[name] = self.make(task, attempt)
                continue
            self.open.pop(name)
            if rest[0] == "PodEnded":
                self.done.add(task)
        return attempts

    async def run(self) -> None:
        self.attempts = self.recover()
        self.write("service", os.getpid())
        containers = ContainerSettings(os.environ.get("FLOWSCHED_TEST_ENGINE", "auto"))
        cluster = LocalCluster(self.root / "cluster", virtual_nodes(2), containers=containers)
        await cluster.start()
        await cluster.adopt(list(self.open.values()))
        await cluster.launch(self.next())
        # An earlier life may have done it all: then nothing is left that could be heard.
        async for batch in cluster.events() if len(self.done) < self.tasks else nothing():
            for event in batch:
                if not isinstance(event, PodEnded | PodGone) or event.name not in self.open:
                    continue
                ended = self.open.pop(event.name)
                code, started = (
                    (judged(event, ended), True) if isinstance(event, PodEnded) else (-1, event.started)
                )
                if isinstance(event, PodEnded) and code:
                    print(event, file=sys.stderr, flush=True)  # why the test fails
                self.write("final", event.name, type(event).__name__, int(started), code)
                if isinstance(event, PodEnded):
                    self.done.add(ended.index)
            await cluster.launch(self.next())
            if len(self.done) == self.tasks:
                break
        await cluster.stop()

    def next(self) -> list[Pod]:
        """Intend as many attempts as the window has room for."""
        busy = {pod.index for pod in self.open.values()} | self.done
        free = [task for task in range(self.tasks) if task not in busy]
        pods = []
        for task in free[: WINDOW - len(self.open)]:
            self.attempts[task] = self.attempts.get(task, 0) + 1
            made = self.make(task, self.attempts[task])
            self.write("intent", made.name)
            self.open[made.name] = made
            pods.append(made)
        return pods


def judged(end: PodEnded, of: Pod) -> int:
    """The exit code; -2 if a container task has ended without its report, or before its file was in place."""
    if of.container is None:
        return end.exit_code
    report = end.container or ContainerReport()
    told = [file.uri for file in report.outputs] == [output.uri for output in of.container.outputs]
    whole = told and len(report.steps) == 2 and Path(report.outputs[0].uri).read_text() == "done\n"
    return end.exit_code if whole else -2


async def nothing() -> AsyncIterator[Sequence[ClusterEvent]]:
    """No events at all."""
    return
    yield


if __name__ == "__main__":
    asyncio.run(Driver(Path(sys.argv[1]), int(sys.argv[2])).run())
