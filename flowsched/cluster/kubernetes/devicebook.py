"""What the watches show of devices: those of one driver that can be had, and whose claims have them. No I/O.

Not supported, so that such devices do not count: slices for several nodes (`nodeSelector`, `allNodes`, one node per device),
parts of devices (`sharedCounters`), devices that are prepared after a pod has been placed (`bindingConditions`), devices that the
API itself divides (`allowMultipleAllocations`), and devices with a taint NoSchedule or NoExecute. A class's selectors are not
evaluated: it has to mean all of the driver's devices. Taints that others put on devices (DeviceTaintRule) are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from flowsched.cluster.kubernetes.deviceobjects import Device, ResourceClaim, ResourceSlice
from flowsched.cluster.kubernetes.devices import DeviceId, Place, device_of, numbered, place_of
from flowsched.cluster.kubernetes.release import ReleaseSettings
from flowsched.cluster.kubernetes.watch import Batch

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
        """Slices came, changed or went: the nodes whose devices may be others now."""
        pools: set[str] = set()
        if batch.replaced is not None:
            for name in self._slices.keys() - {each.metadata.name for each in batch.replaced}:
                pools |= self._drop(name)
            for each in batch.replaced:
                pools |= self._put(each)
        for change, each in batch.changed:
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
        self.settled(place)  # what was chosen before may be somebody else's by now
        numbers, pinned = self.devices(place.node), self._pinned(place.node)
        last = max((number for number in numbers if number not in pinned), default=place.number)
        device = numbers.get(place.number, numbers.get(last))
        if device is not None:
            self._chosen[place] = device
        return device

    def settled(self, place: Place) -> None:
        """What was chosen has been allocated, or will not be."""
        self._chosen.pop(place, None)

    def changed(self, batch: Batch[ResourceClaim]) -> set[str]:
        """Claims came, changed or went: the nodes whose devices may be others' now, or free."""
        nodes: set[str] = set()
        if batch.replaced is not None:
            here = {_key(each) for each in batch.replaced}
            for known in [each for each in self.ours.values() if _key(each) not in here]:
                nodes |= self.gone(known)
            for key in self._theirs.keys() - here:
                nodes |= self._give(key, ())
            for each in batch.replaced:
                nodes |= self.take(each)
        for change, each in batch.changed:
            nodes |= self.gone(each) if change == "DELETED" else self.take(each)
        return nodes

    def take(self, claim: ResourceClaim) -> set[str]:
        """A claim as it is now, or was: what is older than what is known is left out."""
        place = place_of(claim, self._settings)
        if place is None:
            known = self.ours.get(claim.metadata.name)
            lost = self.gone(known) if known is not None and _same(known, claim) else set()
            return lost | self._give(_key(claim), tuple(_devices(claim, self._settings.gpu_driver)))
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
                found = device_of(allocation, self._settings.gpu_driver)
                # What cannot be understood keeps the number, and is no device.
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
    """What somebody else's claim has; one with admin access only looks on."""
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
