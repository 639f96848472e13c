"""Objects of dynamic resource allocation (`resource.k8s.io/v1`) as they are read: slices, claims, classes. Pure.

Only the fields that somebody here needs, as in `objects`. Devices of one driver are told apart by pool and name.
"""

from __future__ import annotations

from typing import Any

from msgspec import field

from flowsched.cluster.kubernetes.metadata import Metadata, Read
from flowsched.cluster.kubernetes.pod import Present


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
    """What a driver publishes."""

    metadata: Metadata = Metadata()
    spec: ResourceSliceSpec = ResourceSliceSpec()


class Consumer(Read, frozen=True):
    """Who uses a claim: a pod is `resource` "pods" of no API group."""

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
    """What a claim was given."""

    devices: DeviceResults = DeviceResults()


class ResourceClaimStatus(Read, frozen=True):
    """What a claim was given, and who uses it."""

    allocation: Allocation | None = None
    reserved_for: tuple[Consumer, ...] = ()


class ResourceClaim(Read, frozen=True):
    """A claim on devices."""

    metadata: Metadata = Metadata()
    status: ResourceClaimStatus = ResourceClaimStatus()


class DeviceClassSpec(Read, frozen=True):
    """What drivers are told of every device of the class. Which devices are in it (CEL) is not looked at."""

    config: tuple[dict[str, Any], ...] = field(default_factory=tuple)


class DeviceClass(Read, frozen=True):
    """A kind of devices, as an administrator names it."""

    metadata: Metadata = Metadata()
    spec: DeviceClassSpec = DeviceClassSpec()
