"""What an API server serves."""

from __future__ import annotations

import msgspec

from flowsched.cluster.kubernetes.client import Client


async def served(client: Client, version: str) -> set[str] | None:
    """The kinds of a group and version (`resource.k8s.io/v1`); None if it is not served.

    Raises:
        Unreachable: No answer.
    """
    answer = await client.call("GET", f"/apis/{version}")
    if not answer.ok:
        return None
    return {each.kind for each in msgspec.json.decode(answer.body, type=_Resources).resources}


class _Resource(msgspec.Struct):
    kind: str


class _Resources(msgspec.Struct):
    resources: list[_Resource]
