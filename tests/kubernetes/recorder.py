"""A scheduler extender that writes down which nodes kube-scheduler's own filters left for a pod, and lets them all pass.

kube-scheduler calls its extenders' filters with the nodes that passed all of its plugins, and only where there are any. Two
extenders in a row see the same question in both forms: whole Node objects, and names (`nodeCacheCapable`).
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

import msgspec
from aiohttp import web


class _Named(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _Object(msgspec.Struct):
    metadata: _Named


class _NodeList(msgspec.Struct):
    items: list[_Object] | None = None


class _Arguments(msgspec.Struct, rename="pascal"):
    """`ExtenderArgs` of kube-scheduler."""

    pod: _Object
    nodes: _NodeList | None = None
    node_names: list[str] | None = None


class Recorder:
    """Both extenders on one port of 127.0.0.1, from `async with` to its end.

    Attributes:
        objects: By UID of the pod, the names of the nodes that were given as objects; the last question counts.
        names: The same for nodes given by name.
        asked: How many questions were answered.
        refused: UIDs of pods that are let onto no node.
    """

    def __init__(self) -> None:
        self.objects: dict[str, list[str]] = {}
        self.names: dict[str, list[str]] = {}
        self.asked = 0
        self.refused: set[str] = set()
        self._came = asyncio.Condition()
        self._runner: web.AppRunner | None = None
        self._port = 0

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 26)
        app.router.add_post("/{form}/filter", self._filter)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def extenders(self) -> list[dict[str, Any]]:
        """`extenders` of a KubeSchedulerConfiguration."""
        return [
            {
                "urlPrefix": f"http://127.0.0.1:{self._port}/{form}",
                "filterVerb": "filter",
                "nodeCacheCapable": form == "names",
                "httpTimeout": "60s",
            }
            for form in ("objects", "names")
        ]

    async def question(self, uid: str) -> None:
        """Wait until both extenders have been asked about a pod, or the first one if it is refused."""
        async with self._came:
            await self._came.wait_for(
                lambda: uid in self.objects and (uid in self.names or uid in self.refused)
            )

    def forget(self, uid: str) -> None:
        """Drop what is known of a pod, to wait for the next question."""
        self.objects.pop(uid, None)
        self.names.pop(uid, None)

    async def _filter(self, request: web.Request) -> web.Response:
        body = await request.read()
        arguments = msgspec.json.decode(body, type=_Arguments)
        uid = arguments.pod.metadata.uid
        if request.match_info["form"] == "names":
            found = arguments.node_names or []
            self.names[uid] = sorted(found)
        else:
            items = (arguments.nodes.items if arguments.nodes else None) or []
            found = [node.metadata.name for node in items]
            self.objects[uid] = sorted(found)
        self.asked += 1
        if uid in self.refused:
            answer: dict[str, Any] = {"Nodes": {"items": []}, "NodeNames": []}
        elif request.match_info["form"] == "names":
            answer = {"NodeNames": found}
        else:  # the nodes as they came
            answer = {"Nodes": msgspec.json.decode(body)["Nodes"]}
        async with self._came:
            self._came.notify_all()
        return web.json_response(answer)
