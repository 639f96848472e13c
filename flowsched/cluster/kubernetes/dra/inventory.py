"""Devices as the watches show them: the GPUs of one driver, their numbers on each node, and the claims that have them. No I/O.

Not supported, so that such devices do not count: slices for several nodes (`nodeSelector`, `allNodes`, one node per device),
parts of devices (`sharedCounters`), devices that are prepared after a pod has been placed (`bindingConditions`), devices that
the API itself divides (`allowMultipleAllocations`), and devices with a taint NoSchedule or NoExecute. A class's selectors are
not evaluated: it has to mean all of the driver's devices. Taints that others put on devices (DeviceTaintRule) are not read.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import field

from flowsched.cluster.kubernetes.api.watch import Batch
from flowsched.cluster.kubernetes.objects.labels import INSTANCE, MANAGED_BY, PREFIX, common_labels
from flowsched.cluster.kubernetes.objects.metadata import Metadata, Read
from flowsched.cluster.kubernetes.objects.names import label_value
from flowsched.cluster.kubernetes.objects.pod import Present
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings
from flowsched.executor.protocol import Pod


class DeviceTaint(Read, frozen=True):
    """Why a device should not be given away: None (only told), NoSchedule, NoExecute."""

    key: str = ""
    value: str = ""
    effect: str = ""


class Device(Read, frozen=True):
    """A device of a node."""

    name: str = ""
    taints: tuple[DeviceTaint, ...] = ()
    consumes_counters: tuple[Present, ...] = ()
    binding_conditions: tuple[str, ...] = ()
    allow_multiple_allocations: bool = False


class ResourcePool(Read, frozen=True):
    """The pool that a slice belongs to, and of how many slices it is made in this generation."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(Read, frozen=True):
    """A part of a pool. `node_name` is "" where nodes are said in another way."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str = ""
    devices: tuple[Device, ...] = ()


class ResourceSlice(Read, frozen=True):
    """Devices that a driver publishes."""

    metadata: Metadata = Metadata()
    spec: ResourceSliceSpec = ResourceSliceSpec()


class Consumer(Read, frozen=True):
    """A user of a claim: a pod is `resource` "pods" of no API group."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""

    @property
    def is_pod(self) -> bool:
        """Whether it is a pod."""
        return self.resource == "pods" and not self.api_group


class DeviceResult(Read, frozen=True):
    """A device that a request of a claim was given."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False  #: looks at the device, and does not take it


class DeviceResults(Read, frozen=True):
    """All of them."""

    results: tuple[DeviceResult, ...] = ()


class Allocation(Read, frozen=True):
    """The devices that a claim has."""

    devices: DeviceResults = DeviceResults()


class ResourceClaimStatus(Read, frozen=True):
    """The allocation of a claim, and its users."""

    allocation: Allocation | None = None
    reserved_for: tuple[Consumer, ...] = ()


class ResourceClaim(Read, frozen=True):
    """A claim on devices."""

    metadata: Metadata = Metadata()
    status: ResourceClaimStatus = ResourceClaimStatus()


class DeviceClassSpec(Read, frozen=True):
    """The configuration that drivers get for devices of the class. Its selectors (CEL) are not read."""

    config: tuple[dict[str, Any], ...] = field(default_factory=tuple)


class DeviceClass(Read, frozen=True):
    """A kind of devices, as an administrator names it."""

    metadata: Metadata = Metadata()
    spec: DeviceClassSpec = DeviceClassSpec()


# ---- numbers: which number means which device, and the claims on them ----
#
# The engine numbers a node's GPUs from 0; a driver names devices in pools. One claim stands for one device of one node, and all
# pods that the engine puts onto that device share it: the API lets a device be allocated to one claim only, and a claim be used
# by many pods.
#
#     number ── the claim of that number, if it is allocated: as long as pods use it, the number keeps its device
#            └─ else the devices without a claim, in the order of pool and name, get the numbers that are left, in order
#
# If other claims take devices, a number in use may be higher than there are devices. The numbers below it that mean none are
# reported to the engine as room that is taken.


API: Final = "/apis/resource.k8s.io/v1"
#: Keeps an allocated claim: kube-scheduler sets it before it allocates, and the API server's own controller takes it away.
FINALIZER: Final = "resource.kubernetes.io/delete-protection"
#: The one request of a claim of ours.
REQUEST: Final = "gpu"
#: The API's own limit of pods that share a claim.
MOST_CONSUMERS: Final = 256
#: Annotations of our claims.
NODE: Final = f"{PREFIX}node"
NUMBER: Final = f"{PREFIX}gpu"
_HASH_LENGTH: Final = 15


class DeviceId(NamedTuple):
    """A device of the one driver that the inventory follows."""

    pool: str
    name: str

    def __str__(self) -> str:
        return f"{self.pool}/{self.name}"


@dataclass(frozen=True, slots=True)
class Place:
    """A GPU of a node, as the engine counts them, and the claim that stands for it."""

    node: str
    number: int
    claim: str


def claim_name(node: str, number: int, settings: ReleaseSettings) -> str:
    """The one name of the claim on a node's GPU of a number; installations in one namespace do not meet."""
    digest = hashlib.sha256(f"{settings.instance}\n{node}".encode()).digest()
    return f"fs-gpu-{base64.b32encode(digest).decode().lower()[:_HASH_LENGTH]}-{number}"


def places_of(pod: Pod, settings: ReleaseSettings) -> list[Place]:
    """The claims that a pod of ours shares; none unless GPUs are claimed in this installation."""
    if settings.gpu.fractions != "dra" or not pod.gpu_millis:
        return []
    return [
        Place(pod.node, number, claim_name(pod.node, number, settings)) for number in sorted(set(pod.gpu_ids))
    ]


def numbered(
    devices: Sequence[DeviceId], pinned: Mapping[int, DeviceId], taken: Iterable[DeviceId]
) -> dict[int, DeviceId]:
    """Number -> device of a node, for all that can be had.

    Args:
        devices: That the node has, in order.
        pinned: Numbers with an allocated claim: they keep their devices, and are lost with them.
        taken: By others.
    """
    gone = {*pinned.values(), *taken}
    free = iter([device for device in devices if device not in gone])
    here = set(devices)
    numbers = {number: device for number, device in pinned.items() if device in here}
    numbers |= dict(zip((number for number in count() if number not in pinned), free, strict=False))
    return numbers


def place_of(claim: ResourceClaim, settings: ReleaseSettings) -> Place | None:
    """Which GPU a claim stands for, if this installation has made it; by all its marks, as with pods."""
    meta = claim.metadata
    node, number = meta.annotations.get(NODE, ""), meta.annotations.get(NUMBER, "")
    ours = (
        meta.labels.get(MANAGED_BY) == "flowsched"
        and meta.labels.get(INSTANCE) == label_value(settings.instance)
        and meta.namespace == settings.namespace
    )
    if not ours or not node or not (number.isascii() and number.isdigit()):
        return None
    place = Place(node, int(number), claim_name(node, int(number), settings))
    return place if place.claim == meta.name else None


def device_of(allocation: Allocation, driver: str) -> DeviceId | None:
    """The one device of an allocation of ours; None if it is anything else."""
    results = allocation.devices.results
    if len(results) != 1 or results[0].driver != driver or results[0].request != REQUEST:
        return None
    return DeviceId(results[0].pool, results[0].device)


# --- what is written -----------------------------------------------------------------------------------------


def claim_manifest(place: Place, settings: ReleaseSettings) -> bytes:
    """A claim on one device of the class, protected from the start: it is made to be allocated."""
    exactly = {"deviceClassName": settings.gpu.claimed_class, "allocationMode": "ExactCount", "count": 1}
    return msgspec.json.encode(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "name": place.claim,
                "namespace": settings.namespace,
                "labels": common_labels(settings, "gpu"),
                "annotations": {NODE: place.node, NUMBER: str(place.number)},
                "finalizers": [FINALIZER],
            },
            "spec": {"devices": {"requests": [{"name": REQUEST, "exactly": exactly}]}},
        }
    )


def allocation_of(
    place: Place, device: DeviceId, settings: ReleaseSettings, config: Iterable[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """The allocation that kube-scheduler would write: the device, its class's configuration, and the node it is on."""
    result = {"request": REQUEST, "driver": settings.gpu.driver, "pool": device.pool, "device": device.name}
    devices: dict[str, Any] = {"results": [result]}
    from_class = [{"source": "FromClass", "requests": [REQUEST], **each} for each in config]
    if from_class:
        devices["config"] = from_class
    field = {"key": "metadata.name", "operator": "In", "values": [place.node]}
    return {
        "devices": devices,
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }


def status_patch(
    claim: ResourceClaim, consumers: Iterable[Consumer], allocation: Mapping[str, Any] | None = None
) -> bytes:
    """The new users of a claim, and its allocation if it had none. Without users, the claim is deallocated.

    A merge patch, so that drivers' fields stay; of the version that was read, which no other object has.
    """
    users = list(consumers)
    status: dict[str, Any] = {"reservedFor": users or None}
    if allocation is not None:
        status["allocation"] = allocation
    elif not users:
        status["allocation"] = None
    return msgspec.json.encode({"metadata": _precondition(claim), "status": status})


def finalizers_patch(claim: ResourceClaim, *, protected: bool) -> bytes:
    """Protect a claim, or do so no more; of the version that was seen, and others' finalizers stay."""
    rest = [each for each in claim.metadata.finalizers if each != FINALIZER]
    finalizers = [*rest, FINALIZER] if protected else rest
    return msgspec.json.encode({"metadata": {**_precondition(claim), "finalizers": finalizers or None}})


def _precondition(claim: ResourceClaim) -> dict[str, str]:
    return {"resourceVersion": claim.metadata.resource_version}


# ---- the books: the state that the watches show ----


#: Taints of devices that are not given away.
_SHUNNED: Final = ("NoSchedule", "NoExecute")


class Inventory:
    """The devices of one driver, as its slices say.

    Args:
        driver: Its name.
    """

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._slices: dict[str, ResourceSlice] = {}  #: by name, those of the driver
        self._pools: dict[str, set[str]] = {}  #: pool -> names of its slices
        self._nodes: dict[str, dict[str, tuple[DeviceId, ...]]] = {}  #: node -> pool -> devices
        self._where: dict[str, set[str]] = {}  #: pool -> nodes

    def of(self, node: str) -> list[DeviceId]:
        """A node's devices in order: by pool, then by name."""
        return sorted(device for found in self._nodes.get(node, {}).values() for device in found)

    def nodes_of(self, pool: str) -> set[str]:
        """The nodes that devices of a pool are on."""
        return self._where.get(pool, set())

    def changed(self, batch: Batch[ResourceSlice]) -> set[str]:
        """Apply slices that came, changed or went. Returns the nodes that may have other devices now."""
        pools: set[str] = set()
        if batch.replaced is not None:
            for name in self._slices.keys() - {each.metadata.name for each in batch.replaced}:
                pools |= self._drop(name)
        for change, each in batch.items():
            pools |= self._drop(each.metadata.name) if change == "DELETED" else self._put(each)
        return {node for pool in pools for node in self._count(pool)}

    def _put(self, each: ResourceSlice) -> set[str]:
        if each.spec.driver != self._driver:
            return set()
        name, pool = each.metadata.name, each.spec.pool.name
        touched = self._drop(name)
        self._slices[name] = each
        self._pools.setdefault(pool, set()).add(name)
        return touched | {pool}

    def _drop(self, name: str) -> set[str]:
        known = self._slices.pop(name, None)
        if known is None:
            return set()
        self._pools[known.spec.pool.name].discard(name)
        return {known.spec.pool.name}

    def _count(self, pool: str) -> set[str]:
        """Count a pool anew: the nodes that it was on, and those that it is on."""
        names = self._pools.get(pool, set())
        if not names:
            self._pools.pop(pool, None)
        before = self._where.pop(pool, set())
        found = _of_pool([self._slices[name] for name in names])
        if found:
            self._where[pool] = set(found)
        for node in before - found.keys():
            del self._nodes[node][pool]
        for node, devices in found.items():
            self._nodes.setdefault(node, {})[pool] = tuple(devices)
        return before | found.keys()


def _of_pool(slices: Sequence[ResourceSlice]) -> dict[str, list[DeviceId]]:
    """Node -> usable devices of one pool: of its newest generation, and only once that is complete and makes sense."""
    newest = max((each.spec.pool.generation for each in slices), default=0)
    latest = [each for each in slices if each.spec.pool.generation == newest]
    if not latest or len(latest) != latest[0].spec.pool.resource_slice_count:
        return {}
    names = [device.name for each in latest for device in each.spec.devices]
    if len(names) != len(set(names)):
        return {}
    found: dict[str, list[DeviceId]] = {}
    for each in latest:
        if each.spec.node_name:
            ids = [
                DeviceId(each.spec.pool.name, device.name) for device in each.spec.devices if _usable(device)
            ]
            found.setdefault(each.spec.node_name, []).extend(ids)
    return {node: devices for node, devices in found.items() if devices}


def _usable(device: Device) -> bool:
    shunned = any(taint.effect in _SHUNNED for taint in device.taints)
    divided = device.consumes_counters or device.allow_multiple_allocations
    return not shunned and not divided and not device.binding_conditions


class ClaimBook:
    """All claims of the cluster, as far as they are about the devices of one driver: ours whole, of others what they have.

    Args:
        settings: Which claims are ours; the driver.
        inventory: The devices.
    """

    def __init__(self, settings: ReleaseSettings, inventory: Inventory) -> None:
        self._settings = settings
        self._inventory = inventory
        self.ours: dict[str, ResourceClaim] = {}  #: by name
        self.others: dict[DeviceId, set[str]] = {}  #: device -> namespace/name of others' claims that have it
        self._theirs: dict[str, tuple[DeviceId, ...]] = {}  #: namespace/name -> devices
        self._chosen: dict[Place, DeviceId] = {}  #: about to be allocated
        self._places: dict[str, dict[int, str]] = {}  #: node -> number -> our claim

    def devices(self, node: str) -> dict[int, DeviceId]:
        """Number -> device of a node."""
        return numbered(self._inventory.of(node), self._pinned(node), self.others)

    def count(self, node: str) -> tuple[int, int]:
        """How many numbers a node has, and how many of them are no device that is ours to give: where others have taken devices,
        numbers in use may be higher than there are devices.
        """
        numbers = self.devices(node)
        most = max(numbers, default=-1) + 1
        return most, most - len(numbers)

    def choose(self, place: Place) -> DeviceId | None:
        """The device that a number shall mean, to be allocated now; `settled` is called when it has been, or has not.

        A number that has lost its device since the engine chose it (the last pod that used it has ended) gets one that is free.
        """
        self.settled(place)  # another claim may have the device that was chosen before
        numbers, pinned = self.devices(place.node), self._pinned(place.node)
        last = max((number for number in numbers if number not in pinned), default=place.number)
        device = numbers.get(place.number, numbers.get(last))
        if device is not None:
            self._chosen[place] = device
        return device

    def settled(self, place: Place) -> None:
        """Forget the choice of a device: it has been allocated, or will not be."""
        self._chosen.pop(place, None)

    def changed(self, batch: Batch[ResourceClaim]) -> set[str]:
        """Apply changes of claims. Returns the nodes with devices that others may have now, or that are free."""
        nodes: set[str] = set()
        if batch.replaced is not None:
            here = {_key(each) for each in batch.replaced}
            for known in [each for each in self.ours.values() if _key(each) not in here]:
                nodes |= self.gone(known)
            for key in self._theirs.keys() - here:
                nodes |= self._give(key, ())
        for change, each in batch.items():
            nodes |= self.gone(each) if change == "DELETED" else self.record(each)
        return nodes

    def record(self, claim: ResourceClaim) -> set[str]:
        """Record a claim; a state that is older than the known one is left out."""
        place = place_of(claim, self._settings)
        if place is None:
            known = self.ours.get(claim.metadata.name)
            lost = self.gone(known) if known is not None and _same(known, claim) else set()
            return lost | self._give(_key(claim), tuple(_devices(claim, self._settings.gpu.driver)))
        known = self.ours.get(place.claim)
        if known is not None and _version(claim) < _version(known):
            return set()
        self.ours[place.claim] = claim
        self._places.setdefault(place.node, {})[place.number] = place.claim
        return {place.node}

    def gone(self, claim: ResourceClaim) -> set[str]:
        """A claim is no more."""
        place = place_of(claim, self._settings)
        if place is None:
            return self._give(_key(claim), ())
        known = self.ours.get(place.claim)
        if known is None or not _same(known, claim):
            return set()
        del self.ours[place.claim]
        del self._places[place.node][place.number]
        return {place.node}

    def _pinned(self, node: str) -> dict[int, DeviceId]:
        pinned = {place.number: device for place, device in self._chosen.items() if place.node == node}
        for number, name in self._places.get(node, {}).items():
            allocation = self.ours[name].status.allocation
            if allocation is not None:
                found = device_of(allocation, self._settings.gpu.driver)
                # An allocation that cannot be understood keeps the number, and is no device.
                pinned[number] = found if found is not None else DeviceId("", name)
        return pinned

    def _give(self, key: str, devices: tuple[DeviceId, ...]) -> set[str]:
        before = self._theirs.get(key, ())
        if before == devices:
            return set()
        for device in before:
            self.others[device].discard(key)
            if not self.others[device]:
                del self.others[device]
        for device in devices:
            self.others.setdefault(device, set()).add(key)
        if devices:
            self._theirs[key] = devices
        else:
            del self._theirs[key]
        pools = {device.pool for device in (*before, *devices)}
        return {node for pool in pools for node in self._inventory.nodes_of(pool)}


def _devices(claim: ResourceClaim, driver: str) -> Iterator[DeviceId]:
    """The devices that a foreign claim has. A claim with admin access has none: it shares them."""
    if claim.status.allocation is not None:
        for result in claim.status.allocation.devices.results:
            if result.driver == driver and not result.admin_access:
                yield DeviceId(result.pool, result.device)


def _key(claim: ResourceClaim) -> str:
    return f"{claim.metadata.namespace}/{claim.metadata.name}"


def _same(one: ResourceClaim, other: ResourceClaim) -> bool:
    return one.metadata.uid == other.metadata.uid


def _version(claim: ResourceClaim) -> int:
    return int(claim.metadata.resource_version)
