"""A large gang is launched a few pods at a time, so that the event loop does something else in between."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import msgspec
import pytest

from flowsched.cluster.kubernetes.api.errors import Answer
from flowsched.cluster.kubernetes.lease import Lease
from flowsched.cluster.kubernetes.objects.podgroup import Form
from flowsched.cluster.kubernetes.pods import controller
from flowsched.cluster.kubernetes.pods.controller import PodController, PodTimeouts
from flowsched.cluster.kubernetes.pods.gang_objects import GangObjects
from flowsched.cluster.kubernetes.pods.pod_api import PodApi
from flowsched.executor.protocol import GangSeat, Roster
from tests.kubernetes import written as w


class Server:
    """Takes everything that it is asked for, and counts the passes of the event loop meanwhile."""

    def __init__(self) -> None:
        self.bound = 0
        self.passes = 0

    async def try_call(self, _method: str, path: str, body: bytes, **_: object) -> Answer:
        await asyncio.sleep(0)
        if path.endswith("/binding"):
            self.bound += 1
            return Answer(201, b"{}")
        metadata = {"name": json.loads(body)["metadata"]["name"], "uid": "u", "namespace": "lab"}
        return Answer(201, msgspec.json.encode({"metadata": metadata}))

    async def count(self) -> None:
        while True:
            self.passes += 1
            await asyncio.sleep(0)


async def nothing(_name: str) -> None:
    """No failpoint."""


async def test_members_of_a_gang_make_their_manifests_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their group is ready for all of them at one moment: 150 manifests at once would hold the loop. 32 in one pass do not."""
    server, made = Server(), Counter[int]()
    manifest = controller.pod_manifest

    def noted(*arguments: object) -> object:
        made[server.passes] += 1
        return manifest(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(controller, "pod_manifest", noted)
    lease = Lease(lambda: 0, nothing)
    pods = PodController(
        PodApi(server, w.SETTINGS),  # type: ignore[arg-type]
        GangObjects(server, w.SETTINGS, Form.NONE),  # type: ignore[arg-type]
        None,
        settings=w.SETTINGS,
        lease=lease,
        events=lambda _: None,
        has_node=lambda _: True,
        timeouts=PodTimeouts(),
    )
    roster = Roster((("worker", 0, 150),))
    counting = asyncio.create_task(server.count())
    pods.launch(
        [
            w.task(
                f"fs-w1-train-{n}-0", stage="train", index=n, gang=GangSeat("worker", n, n, n, roster, "t")
            )
            for n in range(150)
        ]
    )
    async with asyncio.timeout(60):
        while server.bound < 150:
            await asyncio.sleep(0.01)
    counting.cancel()
    await pods.close()
    assert made.total() == 150
    assert max(made.values()) <= 32
