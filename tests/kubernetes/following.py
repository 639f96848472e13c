"""Following a Reflector in tests: what it tells, applied to a picture of the collection that must never go back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from types import TracebackType
from typing import Any, Self

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.api.watch import Batch, Reflector
from flowsched.cluster.kubernetes.objects.pod import Pod
from tests.kubernetes.talk import PATIENCE_S


class Time:
    """A clock that runs only while somebody sleeps. Sleeping takes a real millisecond."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        self.waits.append(seconds)
        self.now += seconds
        await asyncio.sleep(0.001)


class Picture:
    """The pods as the batches tell them.

    Raises:
        AssertionError: Something went back: an older version, or an object that had ended.
    """

    def __init__(self) -> None:
        self.pods: dict[str, Pod] = {}  #: uid -> pod
        self.newest: dict[str, int] = {}
        self.ended: set[str] = set()

    @property
    def names(self) -> list[str]:
        """Sorted."""
        return sorted(pod.metadata.name for pod in self.pods.values())

    @property
    def versions(self) -> dict[str, str]:
        """Name -> version."""
        return {pod.metadata.name: pod.metadata.resource_version for pod in self.pods.values()}

    def apply(self, batch: Batch[Pod]) -> None:
        """Take a batch."""
        if batch.replaced is not None:
            there = {pod.metadata.uid: pod for pod in batch.replaced}
            self.ended |= self.pods.keys() - there.keys()
            assert not there.keys() & self.ended
            for uid, pod in there.items():
                assert int(pod.metadata.resource_version) >= self.newest.get(uid, 0)
                self.newest[uid] = int(pod.metadata.resource_version)
            self.pods = there
        for change, pod in batch.changed:
            uid, version = pod.metadata.uid, int(pod.metadata.resource_version)
            assert version > self.newest.get(uid, 0), f"{change} {pod.metadata.name} goes back"
            assert uid not in self.ended, f"{pod.metadata.name} comes back from its end"
            self.newest[uid] = version
            if change == "DELETED":
                self.pods.pop(uid, None)
                self.ended.add(uid)
            else:
                self.pods[uid] = pod


class Follower:
    """A reader of pods in a task of its own.

    Args:
        client: Of the API server.
        path: Of the pods.
        time: Its clock; None = the real one.
        settings: Of the Reflector.
    """

    def __init__(
        self, client: Client, path: str = "/api/v1/pods", time: Time | None = None, **settings: Any
    ) -> None:
        if time is not None:
            settings |= {"clock": time, "sleep": time.sleep}
        self.reflector = Reflector(client, path, Pod, jitter=lambda: 0.5, **settings)
        self.picture = Picture()
        self.batches: list[Batch[Pod]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def changes(self) -> list[tuple[str, str]]:
        """(type, name) of all changes, lists left out."""
        return [(change, pod.metadata.name) for batch in self.batches for change, pod in batch.changed]

    @property
    def lists(self) -> int:
        """How many complete lists came."""
        return sum(batch.replaced is not None for batch in self.batches)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._follow())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds. A reader that has failed fails this."""
        assert self._task is not None
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                if self._task.done():
                    self._task.result()
                await asyncio.sleep(0.002)

    async def _follow(self) -> None:
        async with aclosing(self.reflector.changes()) as batches:
            async for batch in batches:
                self.batches.append(batch)
                self.picture.apply(batch)
