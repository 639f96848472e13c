"""The GPUs of a dynamic resource allocation driver: which there are, which number means which, and the claims on them. Pure.

The engine numbers a node's GPUs from 0; a driver names devices in pools. One claim stands for one device of one node, and all
pods that the engine puts onto that device share it: the API lets a device be allocated to one claim only, and a claim be used
by many pods.

    number ── the claim of that number, if it is allocated: as long as pods use it, the number keeps its device
           └─ else the devices that nobody has, in the order of pool and name, get the numbers that are left, in order

Where others take devices, a number in use may be higher than there are devices; the numbers below it that mean none are told to
the engine as room that is taken.

What the watches show of them is kept in `devicebook`.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, NamedTuple

import msgspec

from flowsched.cluster.kubernetes.deviceobjects import Allocation, Consumer, ResourceClaim
from flowsched.cluster.kubernetes.marks import INSTANCE, MANAGED_BY, PREFIX, common_labels
from flowsched.cluster.kubernetes.names import label_value
from flowsched.cluster.kubernetes.release import ReleaseSettings
from flowsched.executor.protocol import Pod

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
    """A device of the one driver that is looked at."""

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
    if settings.gpu_fractions != "dra" or not pod.gpu_millis:
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
        pinned: Numbers whose claims are allocated: they keep their devices, and are lost with them.
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
    exactly = {"deviceClassName": settings.device_class, "allocationMode": "ExactCount", "count": 1}
    return msgspec.json.encode(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {
                "name": place.claim,
                "namespace": settings.namespace,
                "labels": common_labels(settings, "gpu"),
                "annotations": {**settings.annotations, NODE: place.node, NUMBER: str(place.number)},
                "finalizers": [FINALIZER],
            },
            "spec": {"devices": {"requests": [{"name": REQUEST, "exactly": exactly}]}},
        }
    )


def allocation_of(
    place: Place, device: DeviceId, settings: ReleaseSettings, config: Iterable[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """What kube-scheduler would write: the device, what its class tells the driver, and the node it can be used on."""
    result = {"request": REQUEST, "driver": settings.gpu_driver, "pool": device.pool, "device": device.name}
    devices: dict[str, Any] = {"results": [result]}
    told = [{"source": "FromClass", "requests": [REQUEST], **each} for each in config]
    if told:
        devices["config"] = told
    field = {"key": "metadata.name", "operator": "In", "values": [place.node]}
    return {
        "devices": devices,
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }


def status_patch(
    claim: ResourceClaim, consumers: Iterable[Consumer], allocation: Mapping[str, Any] | None = None
) -> bytes:
    """Who uses a claim from now on, and what it was given if it had nothing; with nobody left it has nothing any more.

    A merge patch, so that what drivers have written stays; of the version that was seen, which no other object has.
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
