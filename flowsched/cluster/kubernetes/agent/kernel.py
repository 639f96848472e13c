"""What the kernel tells of traffic, read as text: network cards, network file systems, and what pods' control groups moved. Pure.

Whatever a file says, nothing here raises: a line that is not understood is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

#: Folder of a pod: `pod<uid>` (cgroupfs), or `kubepods-burstable-pod<uid with _>.slice` (systemd). A static pod's uid is a hash.
_POD: Final = re.compile(
    r"(?:.*-)?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?"
)
#: Folders on the way to pods: of the kubelet's root, and of the classes of pods.
_ABOVE_PODS: Final = re.compile(r".*kube.*|besteffort|burstable|guaranteed")
_DEFAULT_ROUTE: Final = "00000000"


def uid_of(folder: str) -> str | None:
    """The pod whose control group has a folder of this name."""
    found = _POD.fullmatch(folder)
    return None if found is None else found.group(1).replace("_", "-")


def leads_to_pods(folder: str) -> bool:
    """Whether control groups of pods may lie below a folder of this name."""
    return _ABOVE_PODS.fullmatch(folder) is not None


def pod_bytes(io_stat: str, numbers: Collection[str]) -> int:
    """Bytes that a control group (cgroup v2) has read from and written to a disk, by its `io.stat`.

    Args:
        io_stat: A line for each device: `254:0 rbytes=1 wbytes=2 rios=3 …`.
        numbers: major:minor of the disk; where a folder's device and the disk below it both have lines, the larger one counts.
    """
    found = 0
    for line in io_stat.splitlines():
        device, *fields = line.split() or [""]
        if device in numbers:
            said = dict(field.split("=", 1) for field in fields if "=" in field)
            found = max(found, _number(said.get("rbytes")) + _number(said.get("wbytes")))
    return found


def cpu_ms(cpu_stat: str) -> int:
    """CPU time of a control group, by its `cpu.stat`; 0 where it does not say."""
    for line in cpu_stat.splitlines():
        name, _, value = line.partition(" ")
        if name == "usage_usec":
            return _number(value) // 1000
    return 0


def cards(route: str) -> tuple[str, ...]:
    """The network cards that the default routes lead over, by /proc/net/route: what pods' own links and bridges are put on."""
    ways = [line.split() for line in route.splitlines()]
    return tuple(dict.fromkeys(way[0] for way in ways if len(way) > 7 and way[1] == way[7] == _DEFAULT_ROUTE))


def carried(dev: str, names: Collection[str]) -> tuple[int, int] | None:
    """Bytes that have come and gone over some network cards, by /proc/net/dev; None if none of them is there."""
    came, went, seen = 0, 0, False
    for line in dev.splitlines():
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if colon and name.strip() in names and len(fields) > 8:
            came, went, seen = came + _number(fields[0]), went + _number(fields[8]), True
    return (came, went) if seen else None


def mounts(mountstats: str) -> Mapping[str, tuple[int, int]]:
    """What NFS has read from and written to servers, by /proc/PID/mountstats: `server:/export` -> bytes.

    Mounts of one export share what they count, so the largest of them is it, not their sum.
    """
    found: dict[str, tuple[int, int]] = {}
    source = ""
    for line in mountstats.splitlines():
        fields = line.split()
        if fields[:1] == ["device"]:
            source = fields[1] if len(fields) > 7 and fields[7] in ("nfs", "nfs4") else ""
        elif source and fields[:1] == ["bytes:"] and len(fields) > 6:
            before = found.get(source, (0, 0))
            found[source] = max(before[0], _number(fields[5])), max(before[1], _number(fields[6]))
    return found


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
