"""The claims on GPUs that our pods share: made and reserved before a pod is bound, given back when it has ended.

Every write carries the version that was read; if it comes too late, the claim is read again and the decision made anew. The
sweep removes claims of pods that are gone, and claims without a user. `inventory` makes the content of each claim.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final

from flowsched.background import (
    BackgroundTasks,
    Backoff,
    Explain,
)
from flowsched.cluster.kubernetes.api.client import Client, decoded, served
from flowsched.cluster.kubernetes.api.errors import Answer, Permanent, judge
from flowsched.cluster.kubernetes.api.watch import Batch
from flowsched.cluster.kubernetes.dra.inventory import (
    API,
    FINALIZER,
    MOST_CONSUMERS,
    ClaimBook,
    Consumer,
    DeviceClass,
    DeviceId,
    Inventory,
    Place,
    ResourceClaim,
    ResourceSlice,
    allocation_of,
    claim_manifest,
    device_of,
    finalizers_patch,
    place_of,
    places_of,
    status_patch,
)
from flowsched.cluster.kubernetes.objects.names import pod_name
from flowsched.cluster.kubernetes.objects.pod import Pod as PodObject
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings
from flowsched.cluster.kubernetes.objects.request_bodies import MERGE, deletion
from flowsched.errors import ConfigurationError
from flowsched.executor.protocol import Pod
from flowsched.log_lines import get_logger

log = get_logger(__name__)

#: A claim that cannot be written for so long is a reason to place its pod anew.
CLAIM_S: Final = 60.0
#: A number that means no device is waited for so long: a claim that is being given back may have kept it from its device.
DEVICE_S: Final = 3.0
#: A DeviceClass is read again after so long.
CLASS_S: Final = 30.0
_ENDED: Final = ("Succeeded", "Failed")
#: (path, kind, handler) of a watch.
Watched = tuple[str, type[Any], Callable[[Any], None]]


class _Denied(Exception):
    """A pod cannot have its device."""


class _Absent(_Denied):
    """There is no such device at present."""


class DeviceClaims:
    """The claims of this installation.

    Args:
        client: Of the API server.
        settings: Driver, class and namespace.

    Attributes:
        changed: Called with a node after its `gpus` may have changed. The cluster view sets it.
    """

    def __init__(self, client: Client, settings: ReleaseSettings) -> None:
        self._client = client
        self._settings = settings
        self.changed: Callable[[str], None] = lambda node: None
        self._inventory = Inventory(settings.gpu.driver)
        self._book = ClaimBook(settings, self._inventory)
        self._path = f"{API}/namespaces/{settings.namespace}/resourceclaims"
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._suspects: dict[str, tuple[str, frozenset[str]]] = {}
        self._class: tuple[float, DeviceClass] | None = None
        self._background = BackgroundTasks("a claim")

    async def close(self) -> None:
        """Stop working; claims stay as they are."""
        await self._background.close()

    # --- what the watches show -------------------------------------------------------------------------------

    def watched(self) -> Sequence[Watched]:
        """The resources to watch, in the order in which they are listed."""
        return (
            (f"{API}/resourceslices", ResourceSlice, partial(self._taken_in, self._inventory.changed)),
            (f"{API}/resourceclaims", ResourceClaim, partial(self._taken_in, self._book.changed)),
        )

    def gpus(self, node: str) -> tuple[int, int]:
        """The GPUs that the engine counts on a node, and how many of these it cannot give away; both in thousandths."""
        most, gaps = self._book.count(node)
        return 1000 * most, 1000 * gaps

    def _taken_in(self, changed: Callable[[Batch[Any]], set[str]], batch: Batch[Any]) -> None:
        for node in changed(batch):
            self.changed(node)

    # --- before a pod is bound -------------------------------------------------------------------------------

    async def reserve(self, order: Pod, uid: str, explain: Explain) -> str:
        """See to it that a pod's claims are there, allocated, and reserved for it.

        Args:
            order: The pod; its node and the numbers of its GPUs have been chosen.
            uid: Of its object.
            explain: Is told what takes long.

        Returns:
            "" = all of them are; else why that cannot be: the pod has to be placed anew.
        """
        user = Consumer(resource="pods", name=pod_name(order.name), uid=uid)
        places = places_of(order, self._settings)
        found = await asyncio.gather(*(self._reserve(place, user, explain) for place in places))
        problem = next(filter(None, found), "")
        if problem:
            log.info("a pod does not get its GPUs", pod=order.name, node=order.node, why=problem)
        return problem

    async def _reserve(self, place: Place, user: Consumer, explain: Explain) -> str:
        backoff = Backoff()
        async with self._locks[place.claim]:
            patience = asyncio.get_running_loop().time() + DEVICE_S
            try:
                async with asyncio.timeout(CLAIM_S):
                    while True:
                        try:
                            if await self._step(place, user, explain):
                                return ""
                        except _Absent:
                            if asyncio.get_running_loop().time() > patience:
                                raise
                        await backoff.wait()
            except TimeoutError:
                return f"the claim {place.claim!r} could not be written within {CLAIM_S:.0f} s"
            except _Denied as denied:
                return str(denied)
            finally:
                self._book.settled(place)

    async def _step(self, place: Place, user: Consumer, explain: Explain) -> bool:
        """Take one step towards the desired claim. True: the claim is as it should be; False: call again.

        Raises:
            _Denied: It will not be.
        """
        claim = self._book.ours.get(place.claim) or await self._make(place, explain)
        if claim is None:
            return False
        status = claim.status
        if claim.metadata.deletion_timestamp is not None:
            if status.reserved_for:
                raise _Denied(f"the claim {place.claim!r} is being deleted, and still in use")
            await self._remove(claim, explain)
            return False
        device = self._device(place, claim)
        if status.allocation is not None and any(each.uid == user.uid for each in status.reserved_for):
            return True
        if len(status.reserved_for) >= MOST_CONSUMERS:
            raise _Denied(f"{MOST_CONSUMERS} pods share the claim {place.claim!r}: the API allows no more")
        allocation = None
        if status.allocation is None:
            config = await self._config(explain)
            if config is None:
                return False
            allocation = allocation_of(place, device, self._settings, config)
            if FINALIZER not in claim.metadata.finalizers:
                written = await self._write(claim, "", finalizers_patch(claim, protected=True), explain)
                if written is None:
                    return False
                claim = written
        body = status_patch(claim, [*status.reserved_for, user], allocation)
        return await self._write(claim, "/status", body, explain) is not None

    def _device(self, place: Place, claim: ResourceClaim) -> DeviceId:
        """The device that a claim is allocated to, or shall be.

        Raises:
            _Denied: It is not to be had.
        """
        what = f"GPU {place.number} of {place.node}"
        allocation = claim.status.allocation
        if allocation is None:
            device = self._book.choose(place)
            if device is None:
                raise _Absent(f"{what}: the node has no such device, or another workload's claim has it")
            return device
        device = device_of(allocation, self._settings.gpu.driver)
        if device is None:
            raise _Denied(f"{what}: the claim {place.claim!r} is allocated to something else")
        if self._book.devices(place.node).get(place.number) != device:
            raise _Denied(f"{what}: its driver does not offer {device} any more")
        if device in self._book.others:
            claims = ", ".join(sorted(self._book.others[device]))
            raise _Denied(f"{what}: {device} is allocated to {claims}, too")
        return device

    async def _config(self, explain: Explain) -> Sequence[Mapping[str, Any]] | None:
        """The driver configuration of the device class; None: not known yet (no answer, or none that is final).

        Raises:
            _Denied: There is no such class.
        """
        now = asyncio.get_running_loop().time()
        if self._class is None or now - self._class[0] > CLASS_S:
            name = self._settings.gpu.claimed_class
            path = f"{API}/deviceclasses/{name}"
            answer = await self._client.try_call("GET", path, explain=explain)
            if answer is not None and answer.status == 404:
                raise _Denied(f"there is no DeviceClass {name!r}")
            if answer is None or not answer.ok:
                if answer is not None:
                    explain(judge(answer).reason, answer.message)
                return None
            self._class = (now, decoded(answer.body, DeviceClass, path))
        return self._class[1].spec.config

    # --- after it has ended ----------------------------------------------------------------------------------

    def left(self, obj: PodObject) -> None:
        """A pod of ours has ended, or is gone: its devices are not its any more."""
        uid = obj.metadata.uid
        for each in obj.spec.resource_claims:
            name = each.resource_claim_name or ""
            known = self._book.ours.get(name)
            used = known is not None and any(user.uid == uid for user in known.status.reserved_for)
            if used or (name in self._locks and self._locks[name].locked()):
                self._background.begin(self._free(name, {uid}))

    async def sweep(self, living: Set[str], named: Set[str]) -> None:
        """Clean up what was missed: users that are gone, claims that no pod uses.

        Args:
            living: Uids of our pods that have not ended.
            named: Claims that such pods name.
        """
        suspects: dict[str, tuple[str, frozenset[str]]] = {}
        for name, claim in self._book.ours.items():
            users = claim.status.reserved_for
            dead = frozenset(user.uid for user in users if user.is_pod and user.uid not in living)
            if dead or not (users or name in named):
                suspects[name] = (claim.metadata.uid, dead)
        # Watches are not in step: a pod that is there may be seen after the claim that is reserved for it.
        again = [name for name, suspicion in suspects.items() if self._suspects.get(name) == suspicion]
        self._suspects = suspects
        for name in again:
            _, dead = suspects[name]
            users = self._book.ours[name].status.reserved_for if name in self._book.ours else ()
            gone = {user.uid for user in users if user.uid in dead and await self._is_gone(user)}
            if gone or not dead:
                self._background.begin(self._free(name, gone))

    async def _is_gone(self, user: Consumer) -> bool:
        """Whether the server says that a pod has ended, or is no more."""
        path = f"/api/v1/namespaces/{self._settings.namespace}/pods/{user.name}"
        answer = await self._client.try_call("GET", path, explain=_unheard)
        if answer is None or not (answer.ok or answer.status == 404):
            return False
        if answer.status == 404:
            return True
        obj = decoded(answer.body, PodObject, path)
        return obj.metadata.uid != user.uid or obj.status.phase in _ENDED

    async def _free(self, name: str, uids: Set[str]) -> None:
        """Remove users from a claim; with the last of them it goes."""
        backoff = Backoff()
        async with self._locks[name]:
            try:
                async with asyncio.timeout(CLAIM_S):
                    while (claim := self._book.ours.get(name)) is not None:
                        users = claim.status.reserved_for
                        rest = [user for user in users if user.uid not in uids]
                        if rest and len(rest) == len(users):
                            return
                        if not rest:
                            await self._remove(claim, _unheard)
                        else:
                            await self._write(claim, "/status", status_patch(claim, rest), _unheard)
                        if self._book.ours.get(name) is claim:
                            await backoff.wait()
            except (TimeoutError, _Denied) as why:  # the sweep comes round again
                log.warning("a claim was not given back", claim=name, why=str(why))

    async def _remove(self, claim: ResourceClaim, explain: Explain) -> None:
        """Deallocate a claim that no pod uses, and delete it: each step only if the claim has not changed since."""
        if claim.status.allocation is not None or claim.status.reserved_for:
            written = await self._write(claim, "/status", status_patch(claim, ()), explain)
            if written is None:
                return
            claim = written
        if FINALIZER in claim.metadata.finalizers:
            written = await self._write(claim, "", finalizers_patch(claim, protected=False), explain)
            if written is None:
                return
            claim = written
        body = deletion(claim.metadata.uid, resource_version=claim.metadata.resource_version)
        answer = await self._client.try_call(
            "DELETE", f"{self._path}/{claim.metadata.name}", body, explain=explain
        )
        if answer is not None and (answer.ok or answer.status == 404):
            self._book.gone(claim)
        elif answer is not None and answer.status == 409:
            await self._read(claim.metadata.name, explain)

    # --- calls -----------------------------------------------------------------------------------------------

    async def _make(self, place: Place, explain: Explain) -> ResourceClaim | None:
        """Create a claim, or read the one that is there; None: not known yet (no answer, or none that is final).

        Raises:
            _Denied: It will never be ours.
        """
        answer = await self._client.try_call(
            "POST", self._path, claim_manifest(place, self._settings), explain=explain
        )
        if answer is not None and answer.reason == "AlreadyExists":
            return await self._read(place.claim, explain)
        return self._taken(answer, place.claim, explain)

    async def _write(
        self, claim: ResourceClaim, part: str, body: bytes, explain: Explain
    ) -> ResourceClaim | None:
        """Patch a claim; None if it has changed since (then it has been read again), or the outcome is not known.

        Raises:
            _Denied: The server will never take it.
        """
        name = claim.metadata.name
        answer = await self._client.try_call("PATCH", f"{self._path}/{name}{part}", body, MERGE, explain)
        if answer is not None and answer.status in (404, 409):
            await self._read(name, explain)
            return None
        return self._taken(answer, name, explain)

    async def _read(self, name: str, explain: Explain) -> ResourceClaim | None:
        """Read a claim; None: there is none, or it is not known yet (no answer, or none that is final).

        Raises:
            _Denied: It is not ours.
        """
        answer = await self._client.try_call("GET", f"{self._path}/{name}", explain=explain)
        if answer is not None and answer.status == 404:
            known = self._book.ours.get(name)
            if known is not None:
                self._book.gone(known)
            return None
        return self._taken(answer, name, explain)

    def _taken(self, answer: Answer | None, name: str, explain: Explain) -> ResourceClaim | None:
        if answer is None:
            return None
        if not answer.ok:
            verdict = judge(answer)
            if isinstance(verdict, Permanent):
                raise _Denied(f"the claim {name!r}: {verdict.message}")
            explain(verdict.reason, f"the claim {name!r}: {verdict.message}")
            return None
        claim = decoded(answer.body, ResourceClaim, name)
        self._book.record(claim)
        if place_of(claim, self._settings) is None:
            raise _Denied(f"a claim {name!r} exists and is not flowsched's; it is left alone")
        return self._book.ours.get(name)


async def claimed_devices(client: Client, settings: ReleaseSettings) -> DeviceClaims | None:
    """The claims, where GPUs are claimed; None where they are not.

    Raises:
        ConfigurationError: They shall be, and the API server does not serve claims.
    """
    if settings.gpu.fractions != "dra":
        return None
    kinds = await served(client, API.removeprefix("/apis/")) or set()
    if not {"ResourceClaim", "ResourceSlice"} <= kinds:
        raise ConfigurationError(
            "GPUs shall be claimed (dra), and the API server serves no ResourceClaim of resource.k8s.io/v1: Kubernetes 1.34 does"
        )
    return DeviceClaims(client, settings)


def _unheard(reason: str, message: str) -> None:
    log.info("a claim waits", reason=reason, message=message)
