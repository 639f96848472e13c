"""The Lease of an installation: one process holds it, and leads. It keeps apart leaders of two databases in one cluster."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Final

import msgspec

from flowsched.cluster.kubernetes.api.client import Client, Connection
from flowsched.cluster.kubernetes.api.errors import Answer
from flowsched.cluster.kubernetes.api.watch import Watches
from flowsched.cluster.kubernetes.objects import core
from flowsched.cluster.kubernetes.objects.labels import PREFIX
from flowsched.cluster.kubernetes.objects.metadata import micro_timestamp
from flowsched.cluster.kubernetes.objects.names import dns_label
from flowsched.errors import FlowschedError, Unavailable

#: Annotation: the database of the process that holds the Lease.
DATABASE: Final = f"{PREFIX}database"
#: A request of the Lease is given up after this; two fit into the time that a holder has.
ANSWER_S: Final = 4.0
#: Between two reads of another's Lease: after a longer gap its holder is given its whole time again. A process that could not
#: read it does not know whether the holder wrote.
GAP_S: Final = 3.0
#: A write that another one was faster than is tried again so often.
TRIES: Final = 3


class LeaseObject:
    """The `coordination.k8s.io/v1` Lease of an installation, seen from one process: an `executor.protocol.LeaderLease`.

    Another's Lease has run out when this process has seen no change of it for its whole duration, by its own clock: times that
    other machines wrote are not compared (as in client-go's leaderelection). It has a client of its own, so that it waits for no
    other request.

    Args:
        connection: To the API server.
        namespace: Where the installation's pods are.
        instance: The installation, which gives it its name.
        wall: Wall-clock ms, for people who read the object.
        watches: Of this process. One that does not see the cluster does not lead there.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        instance: str,
        wall: Callable[[], int],
        watches: Watches,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.client = Client(connection, in_flight=1, timeout_s=ANSWER_S)
        self._name = dns_label(instance)
        self._place = f"{namespace}/{self._name}"
        self._collection = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._path = f"{self._collection}/{self._name}"
        self._wall = wall
        self._watches = watches
        self._clock = clock
        self._version = ""  #: of the object as it was read last
        self._unchanged_since = self._read_at = float("-inf")
        self._holder = ""  #: this process, once it has held it

    async def hold(self, holder: str, database: str, duration_s: float, *, unled: bool) -> str:
        """See `LeaderLease.hold`."""
        for _ in range(TRIES):
            found = await self._read()
            owner = (found.spec.holder_identity or "") if found is not None else ""
            if owner != holder:
                lasts_s = (found.spec.lease_duration_seconds if found is not None else 0) or duration_s
                if not (unled and not owner) and self._clock() - self._unchanged_since < lasts_s:
                    return owner or "no process"
            is_blind = self._watches.problem if owner != holder else self._watches.blind_s > 2 * duration_s
            if is_blind:
                raise Unavailable(f"the cluster cannot be watched: {self._watches.problem}")
            if await self._write(found, holder, database, duration_s):
                self._holder = holder
                return ""
        raise Unavailable(f"Lease {self._place}: other processes write it at the same time")

    async def give_back(self) -> None:
        """See `LeaderLease.give_back`."""
        try:
            with contextlib.suppress(FlowschedError):
                found = await self._read() if self._holder else None
                if found is not None and found.spec.holder_identity == self._holder:
                    await self._write(found, "", found.metadata.annotations.get(DATABASE, ""), 1)
        finally:
            await self.client.close()

    async def _read(self) -> core.Lease | None:
        """The object, or None. Notes since when it has not changed."""
        answer = await self.client.call("GET", self._path)
        now = self._clock()
        found = None
        if answer.status != 404:
            self._check(answer)
            found = msgspec.json.decode(answer.body, type=core.Lease)
        version = "" if found is None else found.metadata.resource_version
        if version != self._version or now - self._read_at > GAP_S:
            self._unchanged_since = now
        self._version, self._read_at = version, now
        return found

    async def _write(self, found: core.Lease | None, holder: str, database: str, duration_s: float) -> bool:
        """Write it as the successor of what was found. False: it is not that any more."""
        now = micro_timestamp(self._wall())
        metadata: dict[str, object] = {
            "name": self._name,
            "annotations": {DATABASE: database},
        }
        spec: dict[str, object] = {
            "holderIdentity": holder, "leaseDurationSeconds": math.ceil(duration_s), "acquireTime": now, "renewTime": now,
            "leaseTransitions": 0,
        }  # fmt: skip
        if found is not None:
            metadata["resourceVersion"] = found.metadata.resource_version
            passed = found.spec.holder_identity != holder
            spec["leaseTransitions"] = (found.spec.lease_transitions or 0) + passed
            spec["acquireTime"] = now if passed else found.spec.acquire_time
        body = msgspec.json.encode(
            {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        )
        if found is None:
            answer = await self.client.call("POST", self._collection, body=body)
        else:
            answer = await self.client.call("PUT", self._path, body=body)
        if answer.status in (404, 409):
            return False
        self._check(answer)
        return True

    def _check(self, answer: Answer) -> None:
        """Raise what a refusal means.

        Raises:
            Unavailable: It is one; the message says what to do.
        """
        if answer.status in (401, 403):
            raise Unavailable(
                f"the API server refuses Lease {self._place} ({answer.message}): without it two leaders could work in one "
                "cluster. Add to the service's Role in that namespace: apiGroups [coordination.k8s.io], resources [leases], "
                "verbs [get, create, update]"
            )
        if not answer.ok:
            raise Unavailable(f"Lease {self._place}: {answer.status} {answer.message}".rstrip())
