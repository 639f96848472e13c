"""Tasks that no caller awaits: a fault in one is logged, and ends what waits for it."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from flowsched.background import BackgroundTasks, task_group

#: Where a task is awaited by the function that makes it, or looked at by a callback: file -> how often `create_task` stands there.
AWAITED = {
    "api/handlers/streams.py": 2,
    "api/routes.py": 1,
    "app.py": 1,
    "background.py": 1,
    "cli/demo.py": 1,
    "cli/following.py": 1,
    "cli/simulate.py": 1,
    "client/loop_thread.py": 1,
    "client/calls.py": 2,
    "cluster/kubernetes/agent/pods.py": 1,
    "cluster/kubernetes/agent/streams.py": 1,
    "cluster/kubernetes/agent/transfers.py": 1,
    "cluster/kubernetes/api/client.py": 2,
    "cluster/kubernetes/pods/gang_objects.py": 1,
    "cluster/local/images.py": 2,
    "control/leading/dispatch.py": 1,
    "control/leading/memoizer.py": 1,
    "miniwdl/following.py": 3,
    "store/writer.py": 1,
}


async def test_what_waits_for_a_task_that_raises_is_told() -> None:
    tasks, told = BackgroundTasks("a test"), asyncio.Event()

    async def breaks() -> None:
        raise ValueError("broken")

    tasks.begin(breaks(), failed=lambda _: told.set())
    async with asyncio.timeout(10):
        await told.wait()
    await tasks.close()


async def test_after_a_group_has_failed_its_parent_is_not_to_be_cancelled() -> None:
    """A timeout that expires in the parent is a TimeoutError, also with Python 3.11.2, where it was CancelledError."""

    async def breaks() -> None:
        raise ValueError("broken")

    async def lasts() -> None:
        await asyncio.sleep(100)

    async def fails() -> None:
        async with task_group() as group:
            group.create_task(lasts())
            group.create_task(breaks())

    parent = asyncio.current_task()
    assert parent is not None
    for _ in range(2):
        with pytest.raises(BaseExceptionGroup):
            await fails()
        assert parent.cancelling() == 0
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await lasts()


async def test_a_group_passes_on_a_cancel_of_its_parent() -> None:
    """Its tasks end, and the parent is cancelled."""

    async def lasts() -> None:
        await asyncio.sleep(100)

    async def parent() -> None:
        async with task_group() as group:
            group.create_task(lasts())

    task = asyncio.create_task(parent())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_loop_that_raises_begins_anew() -> None:
    """It stood still unseen: drains, profiles and plans were never looked at again."""
    tasks, begun, third = BackgroundTasks("a test"), [], asyncio.Event()

    async def loop() -> None:
        begun.append(1)
        if len(begun) < 3:
            raise ValueError("broken")
        third.set()
        await asyncio.Event().wait()

    tasks.keep(loop, "a loop")
    async with asyncio.timeout(30):
        await third.wait()
    await tasks.close()
    assert len(begun) == 3


def test_tasks_are_started_in_one_place_or_awaited_where_they_are_started() -> None:
    """A task that no caller awaits may fail unseen: start it by `BackgroundTasks`, or await it and say so above."""
    top = Path(__file__).parents[1] / "flowsched"
    started = {}
    for path in sorted(top.rglob("*.py")):
        found = re.findall(r"(?:asyncio|loop)\.(?:create_task|ensure_future)\(", path.read_text())
        if found:
            started[str(path.relative_to(top))] = len(found)
    assert started == AWAITED
