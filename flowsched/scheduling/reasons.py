"""Reasons: why a group is not placed, with the numbers, and the change that would help.

Facts come from the same arrays as the decision. Messages are for people; programs read the code and the
numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import structs

from flowsched.executor.nodes import ALIGNED
from flowsched.executor.quotas import QuotaLimit
from flowsched.scheduling.placement.capacity import Capacity
from flowsched.scheduling.placement.cost_table import PlacementRequest
from flowsched.scheduling.placement.gang import CostTable, Ints, copies_of
from flowsched.scheduling.placement.one_by_one import reach
from flowsched.scheduling.plan import Reason, ReasonCode
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.queues.ordering import minimum_of
from flowsched.scheduling.queues.quotas import Quotas
from flowsched.scheduling.queues.tree import QueueTree, Shares
from flowsched.scheduling.state.gpus import DEVICES, GPU, copies_by_device
from flowsched.scheduling.state.snapshot import IO, PODS, Snapshot
from flowsched.workflow.resources import format_cpu

#: The service on one machine does not look for GPUs: the user gives their number.
_NO_GPU: Final = "no node has a GPU (on one machine `flowsched serve --gpus N` says how many there are)"
#: How a GPU is called among the extended resources of Kubernetes, as nvidia.com/gpu.
_GPU_OF_A_VENDOR: Final = "/gpu"
_WORDS = {"cpu": "CPU", "memory": "memory", "disk": "disk", "gpu": "GPU", "io": "disk bandwidth"}
#: Axes that only count pods, of one kind or all.
_MARKS = (PODS, ALIGNED)
#: A reason lists so many devices of a node, at most.
_SHOWN = 8
_BINARY = (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10))


def why_not(request: PlacementRequest, room: Capacity, snapshot: Snapshot, profile: Profile) -> Reason:
    """Why a group that was tried has no room: never, not in one rack, or not now.

    Args:
        request: The group as it was tried.
        room: The free capacity now.
        snapshot: The nodes.
        profile: For trying again without the rules that may be in the way.
    """
    shut, request = request, _with_cache(request)
    with_others, request = request, request.alone()
    zoned = with_others.without_zones()
    never = _never(request, room, snapshot, profile)
    if never is not None:
        return never
    rows = [room.hard(axis) for axis in request.axes]
    if shut.group.shut and with_others.place(rows, room, snapshot, profile) is not None:
        nodes = len(shut.group.shut)
        if shut.group.part_of:
            text = f"{_nodes(nodes)} with a member of its gang, or in another rack, are not for it"
            return Reason(request.group.key, ReasonCode.NEIGHBOURS, text, {"nodes": nodes})
        closing = [info for at in shut.group.shut if (info := snapshot.info(at)).trouble]
        if closing:
            more = f" (and {_nodes(len(closing) - 1)} more)" if len(closing) > 1 else ""
            known = "by its timeout or learned runtime (neither is known: a day)"
            text = f"it may not have ended before a maintenance, {known}: {closing[0].trouble}{more}"
            return Reason(request.group.key, ReasonCode.MAINTENANCE, text, {"nodes": len(closing)})
        text = f"caches of {nodes} {'nodes' if nodes != 1 else 'node'} have no room for its data"
        return Reason(request.group.key, ReasonCode.CACHE_FULL, text, {"nodes": nodes})
    if with_others is not request and request.place(rows, room, snapshot, profile) is not None:
        if zoned is not with_others and zoned.place(rows, room, snapshot, profile) is not None:
            return _no_zone(with_others, rows, snapshot)
        return _refused_by_rules(zoned, rows, room, snapshot, profile)
    code = ReasonCode.INSUFFICIENT
    fits = _fit_together(rows, request)
    wanted = sum(table.minimum for table in request.tables)
    if request.group.gang and sum(fits) > 0 and wanted > 1:
        code = ReasonCode.GANG_INCOMPLETE
    if request.rack == "required" and request.without_rack().place(rows, room, snapshot, profile) is not None:
        code = ReasonCode.RACK
    elif IO in request.axes and request.without(IO).place(rows, room, snapshot, profile) is not None:
        code = ReasonCode.IO_BUDGET
    text, numbers = _shortage(request, rows, room, snapshot, fits)
    head = f"{sum(fits)} of {wanted} members fit" if request.group.gang and wanted > 1 else "no node has room"
    if code is ReasonCode.RACK:
        head = "the members fit, but not in one rack"
    numbers = {"fit": sum(fits), "wanted": wanted, **numbers}
    return Reason(request.group.key, code, f"{head}; {text}" if text else head, numbers)


def none_ready(snapshot: Snapshot) -> str:
    """The message for a cluster in which no node accepts new pods."""
    text = "the only node is not ready" if len(snapshot) == 1 else f"none of {len(snapshot)} nodes is ready"
    return f"{text}: {snapshot.troubles}" if snapshot.troubles else text


def _with_cache(request: PlacementRequest) -> PlacementRequest:
    """The request as if all caches had room."""
    if not request.group.shut:
        return request
    masks = [a.mask for a in request.allowed] if request.affinity is None else request.affinity.masks
    tables = tuple(structs.replace(t, allowed=mask) for t, mask in zip(request.tables, masks, strict=True))
    return structs.replace(request, group=structs.replace(request.group, shut=()), tables=tables)


def _no_zone(request: PlacementRequest, rows: Sequence[Ints], snapshot: Snapshot) -> Reason:
    """Nodes have room for its pods, but not in one NUMA zone for each."""
    fits = [min(_fits(rows, request, at), table.minimum) for at, table in enumerate(request.tables)]
    at = next((at for at, table in enumerate(request.tables) if fits[at] < table.minimum), 0)
    table, role = request.tables[at], request.group.roles[request.order[at]]
    roomy = copies_of(rows, structs.replace(table, most=None), 1) > 0
    full = int((roomy & (copies_of(rows, table, 1) == 0)).sum())
    wanted = sum(table.minimum for table in request.tables)
    asked = zip(snapshot.axes, role.shape.requests, strict=False)
    needs = " and ".join(quantity(axis, need) for axis, need in asked if need and axis not in _MARKS)
    head = f"{sum(fits)} of {wanted} members fit NUMA zones" if wanted > 1 else "no NUMA zone has room"
    facts = (
        f"of {_nodes(int(roomy.sum()))} with room {full} {'has' if full == 1 else 'have'} it in no single one"
    )
    message = f"{head}; {role.name} needs {needs} in one zone: {facts}"
    numbers = {"fit": sum(fits), "wanted": wanted, "nodes": int(roomy.sum()), "zones_full": full}
    return Reason(request.group.key, ReasonCode.ZONES, message, numbers)


def _refused_by_rules(
    request: PlacementRequest, rows: Sequence[Ints], room: Capacity, snapshot: Snapshot, profile: Profile
) -> Reason:
    """There is room, but rules between pods leave too little of it."""
    affinity, problem = request.affinity, request.problem(rows, room, snapshot, profile)
    fits = [min(_fits(rows, request, at), table.minimum) for at, table in enumerate(request.tables)]
    at = next((at for at, table in enumerate(request.tables) if fits[at] < table.minimum), 0)
    refusals = affinity.refusals[at] if affinity is not None else ()
    if problem is not None:
        reached = reach(problem)
        fits, at = [len(chosen.nodes) for chosen in reached.node_choices], reached.stuck or 0
        refusals = reached.refusals
    wanted = sum(table.minimum for table in request.tables)
    nodes = request.allowed[at].count
    facts = ", ".join(f"{count} {'nodes' if count != 1 else 'node'} {why}" for why, count in refusals)
    head = (
        f"{sum(fits)} of {wanted} members fit beside other pods"
        if wanted > 1
        else "kept from nodes with room"
    )
    message = f"{head}; {request.group.roles[request.order[at]].name}: of {_nodes(nodes)} {facts}"
    numbers = {"fit": sum(fits), "wanted": wanted, "nodes": nodes, "apart": sum(n for _, n in refusals)}
    return Reason(request.group.key, ReasonCode.NEIGHBOURS, message, numbers)


def _never(request: PlacementRequest, room: Capacity, snapshot: Snapshot, profile: Profile) -> Reason | None:
    """A reason that no waiting will change, only other nodes."""
    key = request.group.key
    nodes = int(snapshot.ready.sum())
    whole = [room.allocatable(axis) for axis in request.axes]
    for at, allowed in enumerate(request.allowed):
        role = request.group.roles[request.order[at]]
        if not allowed.count:
            facts = ", ".join(
                f"{count} {'nodes' if count != 1 else 'node'} {why}" for why, count in allowed.refusals
            )
            message = f"no node allows {role.name}: of {nodes} ready nodes {facts}"
            return Reason(key, ReasonCode.NO_MATCHING_NODE, message, {"nodes": nodes})
        if not _fits(whole, request, at):
            text, numbers = _shortage(request, whole, room, snapshot, [0] * len(request.tables), at)
            return Reason(key, ReasonCode.LARGER_THAN_NODE, f"larger than any node; {text}", numbers)
    if not request.group.gang and request.group.min_resources is None:
        return None  # one pod of it fits a node, as was found above
    if request.place(whole, room, snapshot, profile) is not None:
        return None
    fits = _fit_together(whole, request)
    wanted = sum(table.minimum for table in request.tables)
    if (
        request.rack == "required"
        and request.without_rack().place(whole, room, snapshot, profile) is not None
    ):
        message = f"no single rack is large enough for its {wanted} members, even when empty"
        return Reason(key, ReasonCode.RACK, message, {"wanted": wanted})
    text, numbers = _shortage(request, whole, room, snapshot, fits)
    message = f"{sum(fits)} of {wanted} members fit an empty cluster; {text}"
    return Reason(
        key, ReasonCode.LARGER_THAN_CLUSTER, message, {"fit": sum(fits), "wanted": wanted, **numbers}
    )


def _fit_together(rows: Sequence[Ints], request: PlacementRequest) -> list[int]:
    """How many pods of each role find room beside those of the others, up to its minimum; the role that fits most often first.

    Args:
        rows: For each axis, (N,) what is free. Not modified.
        request: The gang.
    """
    alone = [_fits(rows, request, at) for at in range(len(request.tables))]
    if sum(table.minimum > 0 for table in request.tables) <= 1:
        return [min(fits, table.minimum) for fits, table in zip(alone, request.tables, strict=True)]
    left, fits = [row.copy() for row in rows], [0] * len(request.tables)
    for at in sorted(range(len(alone)), key=lambda at: -alone[at]):
        table = request.tables[at]
        copies = copies_of(left, table, 1 if request.one_per_node else max(table.minimum, 1))
        taken = np.diff(np.minimum(np.cumsum(copies), table.minimum), prepend=0).astype(np.int64)
        fits[at] = int(taken.sum())
        for row, need in zip(left, table.needs, strict=True):
            if row.ndim == 1:
                row -= taken * need
    return fits


def _fits(rows: Sequence[Ints], request: PlacementRequest, at: int) -> int:
    table = request.tables[at]
    limit = 1 if request.one_per_node else max(table.count, table.minimum, 1)
    return int(copies_of(rows, table, limit).sum())


def _shortage(
    request: PlacementRequest,
    rows: Sequence[Ints],
    room: Capacity,
    snapshot: Snapshot,
    fits: Sequence[int],
    role_at: int | None = None,
) -> tuple[str, Mapping[str, int]]:
    """The request of the role that fits worst, and the number of nodes that lack each resource of it."""
    short = [at for at, table in enumerate(request.tables) if fits[at] < table.minimum]
    at = role_at if role_at is not None else (short or [0])[0]
    table, role = request.tables[at], request.group.roles[request.order[at]]
    asked: list[str] = []
    lacking: list[str] = []
    numbers: dict[str, int] = {"nodes": request.allowed[at].count}
    worst: tuple[int, str] | None = None
    for axis, row, need in zip(request.axes, rows, table.needs, strict=True):
        if isinstance(need, int) and need == 0:
            continue
        if axis == DEVICES:
            lack, words = _in_pieces(table, rows[request.axes.index(GPU)], row, snapshot)
            numbers["nodes_lacking_gpu_device"] = lack
            lacking.extend(
                [f"{lack} ha{'s' if lack == 1 else 've'} GPUs free in pieces only"] if lack else ()
            )
            worst = (lack, words) if lack and (worst is None or lack > worst[0]) else worst
            continue
        name = snapshot.axes[axis]
        lack = int((table.allowed & (row < need)).sum())
        wants = need if isinstance(need, int) else int(role.shape.requests[axis])
        numbers[f"need_{name}"] = wants
        numbers[f"nodes_lacking_{name}"] = lack
        if name != ALIGNED and (lack or axis != IO):  # disk bandwidth is mostly learned: users asked for none
            asked.append(quantity(name, wants))
        if lack:
            lacking.append(f"{lack} lack{'s' * (lack == 1)} {_WORDS.get(name, name)}")
        if axis == GPU and lack and not room.allocatable(axis).any():
            worst = (len(snapshot) + 1, _NO_GPU)  # says more than any other lack
        elif name.endswith(_GPU_OF_A_VENDOR) and lack and not room.allocatable(axis).any():
            worst = (len(snapshot) + 1, f'no node offers {name} under that name: ask for "gpu" instead')
        elif lack and (worst is None or lack > worst[0]):
            best = int(np.argmax(np.where(table.allowed, row, -1)))
            free, whole = int(row[best]), int(room.allocatable(axis)[best])
            numbers[f"best_free_{name}"] = free
            has = quantity(name, max(free, 0))
            worst = (
                lack,
                f"the best node, {snapshot.names[best]}, has {has} free of {quantity(name, whole)}",
            )
    parts = [f"{role.name} needs {' and '.join(asked)}" if asked else ""]
    parts.append(worst[1] if worst is not None else "")
    parts.append(f"of {_nodes(request.allowed[at].count)} {', '.join(lacking)}" if lacking else "")
    if worst is None and role_at is None:
        together, more = _together(request, rows, snapshot)
        parts.append(together)
        numbers |= more
    return "; ".join(part for part in parts if part), numbers


def _together(
    request: PlacementRequest, rows: Sequence[Ints], snapshot: Snapshot
) -> tuple[str, Mapping[str, int]]:
    """The resources of which all members together need more than all nodes have, although each node has room for one."""
    allowed = np.logical_or.reduce([table.allowed for table in request.tables])
    members = sum(table.minimum for table in request.tables)
    lacking: list[str] = []
    numbers: dict[str, int] = {}
    for place, axis in enumerate(request.axes):
        if axis == DEVICES or snapshot.axes[axis] == ALIGNED:
            continue
        name = snapshot.axes[axis]
        needs = sum(
            table.minimum * int(request.group.roles[request.order[at]].shape.requests[axis])
            for at, table in enumerate(request.tables)
        )
        free = int(np.maximum(rows[place][allowed], 0).sum())
        if needs > free:
            lacking.append(f"{quantity(name, needs)}, the nodes have {quantity(name, free)}")
            numbers |= {f"need_together_{name}": needs, f"free_together_{name}": free}
    return (f"{members} members need together {'; '.join(lacking)}" if lacking else "", numbers)


def _in_pieces(table: CostTable, sums: Ints, free: Ints, snapshot: Snapshot) -> tuple[int, str]:
    """How many nodes have enough of their GPUs free, but no device (or not as many) as a pod needs; and the best of them in words.

    Args:
        table: The role.
        sums: (N,) what is free of all GPUs of a node.
        free: (N, D) the same by device.
        snapshot: For names.
    """
    need = table.needs[-1]
    if not isinstance(need, int):
        return 0, ""
    pieces = table.allowed & (sums >= need) & (copies_by_device(free, need) == 0)
    if not pieces.any():
        return 0, ""
    best = int(np.argmax(np.where(pieces, free.max(axis=1) * (1 << 30) + sums, -1)))
    devices = ", ".join(
        format_cpu(left) for left in sorted(free[best].tolist(), reverse=True)[:_SHOWN] if left > 0
    )
    return int(
        pieces.sum()
    ), f"{snapshot.names[best]} has {quantity('gpu', int(sums[best]))} free, by device {devices}"


def over_cap(group: PodGroup, shares: Shares, queues: QueueTree, snapshot: Snapshot) -> Reason | None:
    """The cap that forbids the smallest start of a group."""
    if not shares.limited(group.queue):
        return None
    least = minimum_of(group, len(snapshot.axes))
    capped = shares.capped_by(group.queue, least)
    if capped is None:
        return None
    forbidden = larger_than_cap(group.queue, least, queues, snapshot.axes)
    if forbidden is not None:
        return Reason(group.key, ReasonCode.LARGER_THAN_QUEUE, *forbidden)
    queue, axis = capped
    name, used = snapshot.axes[axis], shares.usage(queue)[axis]
    cap = (queues.get(queue).cap or ())[axis]
    text = (
        f"queue {queue} may have {quantity(name, cap)}; it has {quantity(name, used)}, "
        f"and this needs {quantity(name, least[axis])}"
    )
    numbers = {f"cap_{name}": cap, f"used_{name}": used, f"need_{name}": least[axis]}
    return Reason(group.key, ReasonCode.QUEUE_LIMIT, text, numbers)


def larger_than_cap(
    queue: str, least: Sequence[int], queues: QueueTree, axes: Sequence[str]
) -> tuple[str, dict[str, int]] | None:
    """The cap that forbids an amount even to a queue that holds nothing, in words and numbers.

    Args:
        queue: Its name. The caps of the queues above it count too.
        least: (R,) what is to start, in the units of `axes`.
        queues: Not modified.
        axes: (R,) names of the resources.
    """
    for above in queues.path(queue):
        for axis, cap in enumerate((above.cap or ())[: len(least)]):
            if 0 <= cap < least[axis]:
                name = axes[axis]
                may = f"queue {above.name} may never have more than {quantity(name, cap)}"
                numbers = {f"cap_{name}": cap, f"need_{name}": least[axis]}
                return f"{may}, and this needs {quantity(name, least[axis])}", numbers
    return None


def over_quota(
    group: PodGroup, quotas: Quotas, snapshot: Snapshot, least: Sequence[int] = ()
) -> Reason | None:
    """The quota that forbids the smallest start of a group. `least`: (R,) that start, where it is not the group's minimum."""
    if not group.in_quota or not snapshot.quotas:
        return None
    least = least or minimum_of(group, len(snapshot.axes))
    forbidden = larger_than_quota(least, snapshot.quotas, snapshot.axes)
    if forbidden is not None:
        return Reason(group.key, ReasonCode.LARGER_THAN_QUOTA, *forbidden)
    found = quotas.exceeded(least)
    if found is None:
        return None
    limit, axis = found.limit, found.limit.axis
    text = (
        f"{_allows(found.quota, limit)}; tasks have {quantity(axis, found.used)}, other pods "
        f"{quantity(axis, limit.others)}, and this needs {quantity(axis, found.need)}"
    )
    amounts = {"hard": limit.hard, "used": found.used, "others": limit.others, "need": found.need}
    numbers = {f"{what}_{limit.resource}": amount for what, amount in amounts.items()}
    return Reason(group.key, ReasonCode.QUOTA_EXCEEDED, text, numbers)


def larger_than_quota(
    least: Sequence[int], quotas: Mapping[str, Sequence[QuotaLimit]], axes: Sequence[str]
) -> tuple[str, dict[str, int]] | None:
    """The quota that forbids an amount even to a namespace without pods, as `larger_than_cap`."""
    needs = dict(zip(axes, least, strict=False))
    for name, limits in sorted(quotas.items()):
        for limit in limits:
            need = needs.get(limit.axis, 0)
            if need > limit.hard:
                numbers = {f"hard_{limit.resource}": limit.hard, f"need_{limit.resource}": need}
                return (
                    f"{_allows(name, limit, 'never ')}, and this needs {quantity(limit.axis, need)}",
                    numbers,
                )
    return None


def _allows(quota: str, limit: QuotaLimit, ever: str = "") -> str:
    named = "" if limit.resource == limit.axis else f" ({limit.resource})"
    return f"ResourceQuota {quota} {ever}allows {'more than ' if ever else ''}{quantity(limit.axis, limit.hard)}{named}"


def quantity(axis: str, amount: int) -> str:
    """An amount of a resource for people: 1.5 CPU, 4 CPU, 2 GiB memory, 100 MB/s disk bandwidth."""
    word = _WORDS.get(axis, axis)
    if axis in ("cpu", "gpu"):
        return f"{format_cpu(amount)} {word}"
    if axis in ("memory", "disk"):
        for unit, bits in _BINARY:
            if amount >> bits:
                tenths = (amount * 10) >> bits
                return f"{tenths // 10}{f'.{tenths % 10}' if tenths % 10 else ''} {unit} {word}"
        return f"{amount} B {word}"
    if axis == "io":
        return f"{amount // 1_000_000} MB/s {word}"
    return f"{amount} {word}"


def _nodes(number: int) -> str:
    return f"{number} node{'s' * (number != 1)}"


# ---- refusals that are remembered ----
#
# Most steps start and end no pod, so every group that waits gets the same reason again. It is remembered as long as no claim and
# no node changes. A cycle that has placed a pod looks nothing up.


_KEY: Final = "refusals"


class Refusals:
    """Refusals of one cycle, and of those before it in which the nodes were as full."""

    def __init__(self, snapshot: Snapshot, room: Capacity, profile: Profile) -> None:
        self._snapshot, self._room, self._profile = snapshot, room, profile
        self._known: dict[object, Reason] | None = None

    def why(self, request: PlacementRequest, family: object) -> Reason:
        """As `why_not`. `family`: the traits of requests that the same lack of room refuses."""
        group = request.group
        unlike = group.gang or group.shut or group.min_resources is not None or self._room.changes
        ruled = request.affinity is not None or request.rack is not None or request.tables[0].most is not None
        if unlike or ruled:
            return why_not(request, self._room, self._snapshot, self._profile)
        known = self._remembered()
        key = (family, request.axes, group.roles[0].name)
        reason = known.get(key)
        if reason is None:
            reason = known[key] = why_not(request, self._room, self._snapshot, self._profile)
        return reason if reason.group == group.key else reason.of(group.key)

    def _remembered(self) -> dict[object, Reason]:
        if self._known is None:
            # Versions only grow while nothing is undone, and undoing a step empties the cache.
            stamp = int(self._snapshot.version.sum())
            cached = self._snapshot.cache.get(_KEY)
            if cached is None or cached[0] != stamp:
                cached = self._snapshot.cache[_KEY] = (stamp, {})
            self._known = cached[1]
        return self._known
