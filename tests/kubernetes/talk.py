"""Talking JSON to an API server, for tests: documents in, (status, document) out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.api.watch import Lines
from flowsched.cluster.kubernetes.objects.request_bodies import MERGE, STRATEGIC

#: Long enough for an overloaded machine: nothing waits for so long where all is well.
PATIENCE_S = 200.0


def pod(name: str, *, metadata: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A small pod."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **(metadata or {})},
        "spec": {"containers": [{"name": "main", "image": "busybox:1"}], **spec},
    }


def binding(name: str, node: str, **metadata: Any) -> dict[str, Any]:
    """A binding of a pod to a node."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, **metadata},
        "target": {"kind": "Node", "name": node},
    }


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.005)


class Talk:
    """A client that speaks in documents.

    Args:
        client: Of the API server.
        namespace: Of the pods.
    """

    def __init__(self, client: Client, namespace: str) -> None:
        self.client = client
        self.namespace = namespace
        self.here = f"/api/v1/namespaces/{namespace}"
        self.pods = f"{self.here}/pods"

    async def ask(
        self,
        method: str,
        path: str,
        document: Any = None,
        *,
        content_type: str = "application/json",
        **params: str,
    ) -> tuple[int, dict[str, Any]]:
        """One request."""
        body = None if document is None else json.dumps(document).encode()
        answer = await self.client.call(method, path, body=body, content_type=content_type, params=params)
        told = json.loads(answer.body) if answer.body.startswith(b"{") else {}
        return answer.status, told

    async def get(self, path: str, **params: str) -> tuple[int, dict[str, Any]]:
        """GET."""
        return await self.ask("GET", path, **params)

    async def post(self, path: str, document: Any, **params: str) -> tuple[int, dict[str, Any]]:
        """POST."""
        return await self.ask("POST", path, document, **params)

    async def put(self, path: str, document: Any) -> tuple[int, dict[str, Any]]:
        """PUT."""
        return await self.ask("PUT", path, document)

    async def merge(self, path: str, patch: Any) -> tuple[int, dict[str, Any]]:
        """PATCH with a merge patch."""
        return await self.ask("PATCH", path, patch, content_type=MERGE)

    async def strategic(self, path: str, patch: Any) -> tuple[int, dict[str, Any]]:
        """PATCH with a strategic merge patch."""
        return await self.ask("PATCH", path, patch, content_type=STRATEGIC)

    async def delete(self, path: str, options: Any = None, **params: str) -> tuple[int, dict[str, Any]]:
        """DELETE."""
        return await self.ask("DELETE", path, options, **params)

    async def new_pod(
        self, name: str, *, metadata: Mapping[str, Any] | None = None, **spec: Any
    ) -> dict[str, Any]:
        """Create a pod; returns it."""
        status, created = await self.post(self.pods, pod(name, metadata=metadata, **spec))
        assert status == 201, created
        return created

    async def pod(self, name: str) -> dict[str, Any]:
        """Read a pod."""
        status, found = await self.get(f"{self.pods}/{name}")
        assert status == 200, found
        return found

    async def until_cached(self, name: str, holds: Callable[[dict[str, Any]], Any]) -> None:
        """Wait until the server's cache of pods has it. The first try of a DELETE takes a pod from there, and where that one is not
        bound yet, the grace of 0 that it settles on stays, also when the newer pod is looked at.
        """
        async with asyncio.timeout(PATIENCE_S):
            while not holds((await self.get(f"{self.pods}/{name}", resourceVersion="0"))[1]):
                await asyncio.sleep(0.005)

    async def bind(
        self, name: str, node: str, *, params: Mapping[str, str] | None = None, **metadata: Any
    ) -> tuple[int, dict[str, Any]]:
        """Bind a pod."""
        return await self.post(
            f"{self.pods}/{name}/binding", binding(name, node, **metadata), **(params or {})
        )

    async def names(self, path: str, **params: str) -> list[str]:
        """Names in a list."""
        status, found = await self.get(path, **params)
        assert status == 200, found
        return [item["metadata"]["name"] for item in found["items"]]

    async def version(self, path: str) -> str:
        """The version of a list."""
        _, found = await self.get(path)
        return str(found["metadata"]["resourceVersion"])

    async def events(self, path: str, **params: str) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """The events of a watch, to its end."""
        lines = Lines()
        stream = self.client.stream(path, params={"watch": "1", **params}, idle_s=PATIENCE_S)
        async with aclosing(stream) as pieces:
            async for piece in pieces:
                for line in lines.feed(piece):
                    event = json.loads(line)
                    yield event["type"], event["object"]

    async def next_events(self, count: int, path: str, **params: str) -> list[tuple[str, dict[str, Any]]]:
        """So many events of a watch."""
        found: list[tuple[str, dict[str, Any]]] = []
        async with asyncio.timeout(PATIENCE_S), aclosing(self.events(path, **params)) as events:
            async for event in events:
                found.append(event)
                if len(found) == count:
                    return found
        return found

    async def served(self, path: str) -> None:
        """Wait until a path is served: that of a new kind is so a second after its definition."""
        async with asyncio.timeout(PATIENCE_S):
            while (await self.get(path))[0] != 200:
                await asyncio.sleep(0.1)


def told(events: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, str]]:
    """Type and name of events."""
    return [(kind, found["metadata"].get("name", "")) for kind, found in events]
