"""Reads what pods refer to: Secrets, ConfigMaps, and tokens of service accounts."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

import msgspec

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.api.errors import Refused
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
        held = await (_token(client, pod, name) if kind == "tokens" else _held(client, pod, kind, name))
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


async def _token(client: Client, pod: Pod, name: str) -> dict[str, bytes] | None:
    """A token of the pod's service account, bound to the pod."""
    seconds, _, audience = name.partition(" ")
    account = pod.spec.service_account_name or "default"
    bound = {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
    spec: dict[str, Any] = {"expirationSeconds": int(seconds), "boundObjectRef": bound}
    spec["audiences"] = [audience] if audience else []
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"/api/v1/namespaces/{pod.metadata.namespace}/serviceaccounts/{account}/token"
    answer = await client.call("POST", path, body=msgspec.json.encode(body))
    if answer.status == 404:
        return None
    if not answer.ok:
        raise Refused(f"POST {path}", answer)
    return {"token": msgspec.json.decode(answer.body)["status"]["token"].encode()}
