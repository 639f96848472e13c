"""Pods of tests for hollow nodes: made, bound by hand as a scheduler does, and waited for."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from flowsched.cluster.kubernetes.api.client import Client

#: Far beyond what anything here takes, on a machine that is busy with other tests.
PATIENCE_S = 200.0


def container(name: str = "main", *command: str, **fields: Any) -> dict[str, Any]:
    """A container of some image that does not exist."""
    return {"name": name, "image": "none", "command": list(command), **fields}


def shell(script: str, name: str = "main", **fields: Any) -> dict[str, Any]:
    """A container that runs a script."""
    return container(name, "/bin/sh", "-c", script, **fields)


def python(script: str, name: str = "main", **fields: Any) -> dict[str, Any]:
    """A container that runs this interpreter."""
    return container(name, "python3", "-S", "-c", script, **fields)


async def create(
    client: Client,
    namespace: str,
    name: str,
    *containers: dict[str, Any],
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A pod that nobody schedules but the test."""
    document = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "it"}, "annotations": annotations or {}},
        "spec": {"schedulerName": "test", "restartPolicy": "Never", "containers": list(containers), **spec},
    }
    body = json.dumps(document).encode()
    answer = await client.call("POST", f"/api/v1/namespaces/{namespace}/pods", body=body)
    assert answer.status == 201, answer
    made: dict[str, Any] = json.loads(answer.body)
    return made


async def bind(client: Client, namespace: str, name: str, node: str) -> None:
    """Bind it; the server does not ask whether it fits."""
    document = {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}/binding"
    answer = await client.call("POST", path, body=json.dumps(document).encode())
    assert answer.status == 201, answer


async def bound(
    client: Client, namespace: str, name: str, node: str, *containers: dict[str, Any], **spec: Any
) -> dict[str, Any]:
    """Create and bind."""
    made = await create(client, namespace, name, *containers, **spec)
    await bind(client, namespace, name, node)
    return made


async def pod(client: Client, namespace: str, name: str) -> dict[str, Any] | None:
    """The pod as it is now; None if it is gone."""
    return await client.get(f"/api/v1/namespaces/{namespace}/pods/{name}", dict[str, Any])


async def until(
    client: Client, namespace: str, name: str, holds: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Wait until something holds of the pod."""
    end = time.monotonic() + PATIENCE_S
    while True:
        found = await pod(client, namespace, name)
        assert found is not None, f"{name} is gone"
        if holds(found):
            return found
        assert time.monotonic() < end, found["status"]
        await asyncio.sleep(0.05)


async def ended(client: Client, namespace: str, name: str) -> dict[str, Any]:
    """Wait for its end."""
    return await until(
        client, namespace, name, lambda found: found["status"]["phase"] in ("Succeeded", "Failed")
    )


async def running(client: Client, namespace: str, name: str) -> dict[str, Any]:
    """Wait until its main containers run."""
    return await until(
        client,
        namespace,
        name,
        lambda found: any("running" in one["state"] for one in found["status"].get("containerStatuses", [])),
    )


async def gone(client: Client, namespace: str, name: str) -> None:
    """Wait until there is no such pod any more."""
    end = time.monotonic() + PATIENCE_S
    while (found := await pod(client, namespace, name)) is not None:
        assert time.monotonic() < end, found
        await asyncio.sleep(0.05)


async def delete(client: Client, namespace: str, name: str, grace_s: int | None = None) -> None:
    """Ask for its deletion."""
    options = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
    path = f"/api/v1/namespaces/{namespace}/pods/{name}"
    answer = await client.call("DELETE", path, body=json.dumps(options).encode())
    assert answer.ok, answer


def terminated(found: dict[str, Any], name: str = "main") -> dict[str, Any]:
    """How a container ended."""
    every = [*found["status"].get("initContainerStatuses", []), *found["status"]["containerStatuses"]]
    state: dict[str, Any] = next(one["state"] for one in every if one["name"] == name)
    assert "terminated" in state, state
    end: dict[str, Any] = state["terminated"]
    return end
