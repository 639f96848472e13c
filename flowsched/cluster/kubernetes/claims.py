"""Volumes that wait for their first consumer: a node is chosen, named on the claim, and the volume follows there.

As kube-scheduler does it: annotation `selected-node` on each such claim, then wait for the provisioner (or the volume binder). A
provisioner that cannot serve that node takes the annotation away again, and the pod is placed anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from flowsched.cluster.kubernetes.client import MERGE, Client
from flowsched.cluster.kubernetes.objects import PersistentVolumeClaim, Pod
from flowsched.cluster.kubernetes.volumes import SELECTED_NODE, Volumes

#: A provisioner takes so long at most (kube-scheduler's own limit).
CLAIM_S: Final = 600.0
_LOOK_S: Final = 0.1


class Claims:
    """Brings claims to their volumes.

    Args:
        client: Of the API server.
        volumes: What the watches show of claims.
    """

    def __init__(self, client: Client, volumes: Volumes) -> None:
        self._client = client
        self._volumes = volumes

    async def follow(self, pod: Pod, node: str) -> str:
        """Have a pod's unbound claims bound for a node. "" = all are bound; else why not."""
        waiting = self._volumes.unbound(pod)
        if not waiting:
            return ""
        for claim in waiting:
            path = (
                f"/api/v1/namespaces/{claim.metadata.namespace}/persistentvolumeclaims/{claim.metadata.name}"
            )
            body = msgspec.json.encode({"metadata": {"annotations": {SELECTED_NODE: node}}})
            answer = await self._client.call("PATCH", path, body=body, content_type=MERGE)
            if not answer.ok:
                return f"its volume claim {claim.metadata.name!r} cannot be told its node: {answer.message}"
        try:
            async with asyncio.timeout(CLAIM_S):
                return await self._bound(waiting, node)
        except TimeoutError:
            return f"its volume claims were not bound within {CLAIM_S:.0f} s"

    async def _bound(self, waiting: Sequence[PersistentVolumeClaim], node: str) -> str:
        told: set[str] = set()
        while True:
            left = [self._now(claim) for claim in waiting]
            if any(claim is None for claim in left):
                return "one of its volume claims is gone"
            if all(claim is not None and claim.spec.volume_name for claim in left):
                return ""
            for claim in left:
                if claim is None or claim.spec.volume_name:
                    continue
                if claim.metadata.annotations.get(SELECTED_NODE) == node:
                    told.add(claim.metadata.uid)
                elif claim.metadata.uid in told:
                    return f"no volume for its claim {claim.metadata.name!r} can be made for {node}"
            await asyncio.sleep(_LOOK_S)

    def _now(self, claim: PersistentVolumeClaim) -> PersistentVolumeClaim | None:
        return self._volumes.claims.get((claim.metadata.namespace, claim.metadata.name))
