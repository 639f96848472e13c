"""Pods, and an ear that hears what a cluster says of them."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flowsched.cluster.local.executor import LocalCluster
from flowsched.executor.protocol import (
    ClusterEvent,
    InputFile,
    OutputFile,
    Pod,
    PodEnded,
    PodGone,
    PodStarted,
    TransferDone,
    TransferFailed,
)
from flowsched.workflow.spec import Container, Step
from tests.cluster.fake import Outcome

PATIENCE_S = 60


def pod(name: str = "fs-wf-s-0-1", *command: str, **changes: Any) -> Pod:
    """A pod on node-0 that runs a command, by default one that succeeds."""
    plain = Pod(
        name=name,
        workflow="wf",
        stage="s",
        index=0,
        shard=0,
        attempt=1,
        epoch=1,
        node="node-0",
        command=command or ("true",),
        env={},
        image=None,
        cpu_millicores=100,
        memory_bytes=1 << 30,
        gpu_millis=0,
    )
    return replace(plain, **changes)


def shell(name: str, script: str, **changes: Any) -> Pod:
    """A pod that runs a shell script."""
    return pod(name, "/bin/sh", "-c", script, **changes)


def program(name: str, steps: str, **changes: Any) -> Pod:
    """A pod that means the same to real and to fake processes: `sleep 9; write bam 12; exit 3`, in this order."""
    lines = []
    outputs = []
    for step in steps.split(";"):
        word, *rest = shlex.split(step)
        if word == "write":
            lines.append(f'head -c {rest[1]} /dev/zero > "$FLOWSCHED_OUTPUT_{rest[0].upper()}"')
        elif word == "say":
            lines.append(f"echo {rest[0]}")
        else:
            lines.append(step)
        if word in ("write", "promise"):
            outputs.append(OutputFile(rest[0], f"{rest[0]}.dat", f"flowsched:{name}/{rest[0]}"))
    script = "\n".join(line for line in lines if not line.strip().startswith("promise"))
    return shell(name, script, outputs=tuple(outputs), **{"env": {"STEPS": steps}, **changes})


def contained(name: str, *scripts: str, **changes: Any) -> Pod:
    """A container task whose steps are shell scripts: `sleep 9`, `exit 3` mean the same to fake processes."""
    files = {
        key: changes.pop(key) for key in ("inputs", "outputs", "mounts", "volumes", "leave") if key in changes
    }
    steps = tuple(Step(("/bin/sh", "-c", script)) for script in scripts)
    changes.setdefault("env", {"STEPS": ";".join(s for s in scripts if s.startswith(("sleep", "exit")))})
    return pod(name, container=Container(changes.pop("steps", steps), **files), **changes)


def scripted(what: Pod) -> Outcome:
    """What a `program` does in a world of fakes."""
    exit_code, runtime_ms, sizes, missing = 0, 5, {}, set()
    for step in what.env.get("STEPS", "").split(";"):
        word, *rest = shlex.split(step) or [""]
        if word == "sleep":
            runtime_ms = round(float(rest[0]) * 1000)
        elif word == "exit":
            exit_code = int(rest[0])
        elif word == "write":
            sizes[rest[0]] = int(rest[1])
        elif word == "promise":
            missing.add(rest[0])
    return Outcome(exit_code, runtime_ms=runtime_ms, sizes=sizes, missing=frozenset(missing))


def reads(uri: str, name: str = "data") -> dict[str, Any]:
    """The field of a pod that reads one dataset."""
    return {"inputs": (InputFile(name, (uri,)),)}


class Ear:
    """Hears everything a cluster reports."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.heard: list[ClusterEvent] = []
        self._news = asyncio.Event()
        self._task = asyncio.create_task(self._listen(cluster))

    async def _listen(self, cluster: LocalCluster) -> None:
        async for batch in cluster.events():
            self.heard.extend(batch)
            self._news.set()

    def of(self, name: str) -> list[ClusterEvent]:
        """All about one pod."""
        return [event for event in self.heard if getattr(event, "name", None) == name]

    async def until(self, holds: Callable[[], Any]) -> Any:
        """Wait for something to have been heard."""
        async with asyncio.timeout(PATIENCE_S):
            while not (found := holds()):
                self._news.clear()
                await self._news.wait()
        return found

    async def started(self, name: str) -> PodStarted:
        return await self.until(lambda: next((e for e in self.of(name) if isinstance(e, PodStarted)), None))

    async def final(self, name: str) -> PodEnded | PodGone:
        return await self.until(
            lambda: next((e for e in self.of(name) if isinstance(e, PodEnded | PodGone)), None)
        )

    async def ended(self, name: str) -> PodEnded:
        event = await self.final(name)
        assert isinstance(event, PodEnded), event
        return event

    async def gone(self, name: str) -> PodGone:
        event = await self.final(name)
        assert isinstance(event, PodGone), event
        return event

    def finals(self, name: str) -> list[ClusterEvent]:
        return [event for event in self.of(name) if isinstance(event, PodEnded | PodGone)]

    async def transferred(self, count: int = 1) -> list[TransferDone | TransferFailed]:
        """The first transfers that came to an end."""

        def done() -> list[TransferDone | TransferFailed] | None:
            ends = [event for event in self.heard if isinstance(event, TransferDone | TransferFailed)]
            return ends if len(ends) >= count else None

        return await self.until(done)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
