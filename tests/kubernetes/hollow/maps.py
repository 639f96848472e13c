"""Reads what pods refer to: Secrets and ConfigMaps."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from flowsched.cluster.kubernetes.api.client import Client
from tests.kubernetes.hollow.spec import Pod


async def fetched(
    client: Client, pod: Pod, keys: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], dict[str, bytes]]:
    """The objects of `keys` as `environment.Maps`; what is not there is left out.

    Raises:
        Refused: The API server does not let us read one.
        Unreachable: No answer.
    """
    found = {}
    for kind, name in sorted(set(keys)):
        held = await _held(client, pod, kind, name)
        if held is not None:
            found[kind, name] = held
    return found


async def _held(client: Client, pod: Pod, kind: str, name: str) -> dict[str, bytes] | None:
    path = f"/api/v1/namespaces/{pod.metadata.namespace}/{kind}/{name}"
    document = await client.get(path, dict[str, Any])
    if document is None:
        return None
    coded = document.get("data") if kind == "secrets" else document.get("binaryData")
    plain = {} if kind == "secrets" else document.get("data") or {}
    held = {key: value.encode() for key, value in plain.items()}
    return held | {key: base64.b64decode(value) for key, value in (coded or {}).items()}
