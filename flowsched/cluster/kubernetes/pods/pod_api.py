"""The requests about this installation's own pods, each repeated until the API server has answered."""

from __future__ import annotations

from flowsched.background import Backoff, Explain
from flowsched.cluster.kubernetes.api.client import Client, decoded
from flowsched.cluster.kubernetes.api.errors import Answer, Malformed, Refused, Unreachable
from flowsched.cluster.kubernetes.objects.core import Node
from flowsched.cluster.kubernetes.objects.labels import GATE
from flowsched.cluster.kubernetes.objects.metadata import Metadata, Read
from flowsched.cluster.kubernetes.objects.names import pod_name
from flowsched.cluster.kubernetes.objects.pod import Pod as PodObject
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings
from flowsched.cluster.kubernetes.objects.request_bodies import STRATEGIC, binding, deletion, opened_gate
from flowsched.log_lines import get_logger

log = get_logger(__name__)


class _Spec(Read, frozen=True):
    node_name: str = ""


class _ObservedPod(Read, frozen=True):
    """As much of a pod as its deletion needs."""

    metadata: Metadata = Metadata()
    spec: _Spec = _Spec()


class PodApi:
    """The calls to the API server about pods of one namespace.

    Args:
        client: Of the API server.
        settings: Their namespace, and which scheduler places them.
    """

    def __init__(self, client: Client, settings: ReleaseSettings) -> None:
        self._client = client
        self._settings = settings
        self._path = f"/api/v1/namespaces/{settings.namespace}/pods"

    async def create(self, body: bytes, explain: Explain) -> Answer | None:
        """Create a pod, once. None: it is not known whether the pod was made."""
        return await self._client.try_call("POST", self._path, body, explain=explain)

    async def bind(self, name: str, uid: str, node: str, explain: Explain) -> Answer | None:
        """Bind a pod to a node, or open its gate where another scheduler binds it, once. No pod runs before.

        Returns:
            The answer; None: it is not known whether that was done.
        """
        path = f"{self._path}/{pod_name(name)}"
        if self._settings.hand_over is None:
            body = binding(pod_name(name), self._settings.namespace, uid, node)
            return await self._client.try_call("POST", f"{path}/binding", body, explain=explain)
        return await self._client.try_call("PATCH", path, opened_gate(uid, GATE), STRATEGIC, explain)

    async def read(self, name: str, explain: Explain) -> PodObject | None:
        """A pod (by its engine name) as the server has it; waits until the server answers."""
        backoff = Backoff()
        while True:
            answer = await self._client.try_call("GET", f"{self._path}/{pod_name(name)}", explain=explain)
            if answer is not None and answer.status == 404:
                return None
            if answer is not None and answer.ok:
                return decoded(answer.body, PodObject, name)
            await backoff.wait()

    async def delete(self, obj: PodObject, grace_s: int | None) -> bool:
        """Ask until the server has accepted it; the watch shows when the pod is gone.

        Where the pod shall have a grace, or was not bound when it was read, the version that was just read is a precondition. An
        API server tries a DELETE on its cache first; where that does not show a binding yet, it settles on no grace at all, and
        the object is gone while the containers are still being stopped, so that the next attempt would run beside them. A pod
        without a node that has one meanwhile gets its own grace, for its containers may run.

        Returns:
            Whether the pod is gone already.
        """
        backoff = Backoff()
        path = f"/api/v1/namespaces/{obj.metadata.namespace}/pods/{obj.metadata.name}"
        while True:
            try:
                version = ""
                if grace_s != 0 or not obj.spec.node_name:
                    observed = await self._client.get(path, _ObservedPod)
                    if observed is None or observed.metadata.uid != obj.metadata.uid:
                        return True
                    version = observed.metadata.resource_version
                    if grace_s == 0 and observed.spec.node_name:
                        grace_s = None
                body = deletion(obj.metadata.uid, grace_s, version)
                answer = await self._client.call("DELETE", path, body=body)
                if answer.ok:
                    return grace_s == 0
                if answer.status == 404 or (answer.status == 409 and not version):
                    return True
                if answer.status != 409:  # else it has changed meanwhile
                    log.warning("pod not deleted", pod=obj.metadata.name, why=answer.message)
            except (Refused, Unreachable, Malformed) as error:
                log.debug("pod not deleted", pod=obj.metadata.name, why=str(error))
            await backoff.wait()

    async def is_node(self, name: str) -> bool:
        """Whether the server has such a node, whatever the watch has shown so far. Raises as `Client.list`."""
        nodes, _ = await self._client.list(
            "/api/v1/nodes", Node, params={"fieldSelector": f"metadata.name={name}"}
        )
        return bool(nodes)
