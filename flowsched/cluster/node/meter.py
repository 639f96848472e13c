"""Measurement: what a node's disk, network card and network file systems carry, and each pod's part of it."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from flowsched.cluster.local.runner.kin import descendants, io_counts
from flowsched.executor.nodes import Load, LoadMeasured

#: Folder of a pod: `pod<uid>` (cgroupfs), or `kubepods-burstable-pod<uid with _>.slice` (systemd). A static pod's uid is a hash.
_POD: Final = re.compile(
    r"(?:.*-)?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?"
)
#: Folders on the way to pods: of the kubelet's root, and of the classes of pods.
_ABOVE_PODS: Final = re.compile(r".*kube.*|besteffort|burstable|guaranteed")
_DEFAULT_ROUTE: Final = "00000000"


def uid_of(folder: str) -> str | None:
    """The UID of the pod that a control group folder of this name belongs to; None for other names."""
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
            counts = dict(field.split("=", 1) for field in fields if "=" in field)
            found = max(found, _number(counts.get("rbytes")) + _number(counts.get("wbytes")))
    return found


def cpu_ms(cpu_stat: str) -> int:
    """CPU time of a control group, by its `cpu.stat`; 0 where it does not say."""
    for line in cpu_stat.splitlines():
        name, _, value = line.partition(" ")
        if name == "usage_usec":
            return _number(value) // 1000
    return 0


def used_memory_bytes(memory_stat: str) -> int:
    """Memory of a control group that the kernel cannot take back by itself, by its `memory.stat`; 0 where it does not say.

    That is anonymous memory and shared memory, without the cache of files.
    """
    counts = dict(line.partition(" ")[::2] for line in memory_stat.splitlines())
    return _number(counts.get("anon")) + _number(counts.get("shmem"))


def cards(route: str) -> tuple[str, ...]:
    """The network cards that the default routes lead over, by /proc/net/route: pods' own links and bridges lie on these."""
    ways = [line.split() for line in route.splitlines()]
    return tuple(dict.fromkeys(way[0] for way in ways if len(way) > 7 and way[1] == way[7] == _DEFAULT_ROUTE))


def carried(dev: str, names: Collection[str]) -> tuple[int, int] | None:
    """Bytes that have come and gone over some network cards, by /proc/net/dev; None if none of them is there."""
    came, went, found = 0, 0, False
    for line in dev.splitlines():
        name, colon, rest = line.partition(":")
        fields = rest.split()
        if colon and name.strip() in names and len(fields) > 8:
            came, went, found = came + _number(fields[0]), went + _number(fields[8]), True
    return (came, went) if found else None


def mounts(mountstats: str) -> Mapping[str, tuple[int, int]]:
    """The bytes that NFS has read from and written to servers, by /proc/PID/mountstats: `server:/export` -> bytes.

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


# ---- the disk of this machine, for the executor of one machine ----
#
# A folder's disk is the block device that `stat` names, or the one that this is a partition of, if the kernel counts it
# (/proc/diskstats); a folder on tmpfs, an overlay or a network file system has none, and then nothing is measured. All virtual
# nodes share it: the use by other programs is divided evenly.


#: s between two measurements: long enough for a mean, short beside what a task takes that disks matter to.
INTERVAL_S: Final = 5.0
_SECTOR: Final = 512


class DiskMeter(msgspec.Struct):
    """The disk of one folder.

    Args:
        folder: Where the cluster's caches and working folders are.
        nodes: Names of the nodes that share it.
        proc: Where the kernel tells of itself.
    """

    folder: Path
    nodes: tuple[str, ...]
    proc: Path = Path("/proc")
    _total: int | None = None
    _by_attempt: dict[str, int] = msgspec.field(default_factory=dict)

    def measure(self, attempts: Iterable[tuple[str, str, int]], seconds: float) -> LoadMeasured | None:
        """Measure the load since the last call; None the first time, and where nothing can be measured.

        Args:
            attempts: (name, node, process) of each that runs.
            seconds: Since the last measurement.
        """
        disk = disk_of(self.folder, self.proc)
        before, self._total = self._total, disk.carried if disk is not None else None
        ours = dict.fromkeys(self.nodes, 0)
        totals: dict[str, int] = {}
        for name, node, pid in attempts if self._total is not None else ():
            counts = [io_counts(each) for each in descendants([pid])]
            totals[name] = sum(each["read_bytes"] + each["write_bytes"] for each in counts)
            ours[node] = ours.get(node, 0) + max(0, totals[name] - self._by_attempt.get(name, 0))
        self._by_attempt = totals
        if before is None or self._total is None or seconds <= 0:
            return None
        others = max(0, self._total - before - sum(ours.values())) // max(1, len(self.nodes))
        return LoadMeasured(
            tuple(
                Load(node, int((ours[node] + others) / seconds), int(ours[node] / seconds))
                for node in self.nodes
            )
        )


class Disk(NamedTuple):
    """A disk, and the bytes that it has read and written since the machine started.

    `numbers`: major:minor of the device that a folder is on and of the disk that this is a partition of, if it is one.
    """

    numbers: tuple[str, ...]
    carried: int


def disk_of(folder: Path, proc: Path) -> Disk | None:
    """The disk that a folder lies on; None where the kernel counts none (an overlay, tmpfs, a network file system)."""
    try:
        device = os.stat(folder).st_dev
        return parse_diskstats((proc / "diskstats").read_text(), os.major(device), os.minor(device))
    except (OSError, ValueError):
        return None


def parse_diskstats(text: str, major: int, minor: int) -> Disk | None:
    """The disk with these numbers: of a partition the whole disk, since its partitions share what it can carry."""
    lines = {fields[2]: fields for line in text.splitlines() if len(fields := line.split()) > 9}
    name = next((name for name, at in lines.items() if at[:2] == [str(major), str(minor)]), None)
    if name is None:
        return None
    whole = re.fullmatch(r"(.*\d)p\d+|(.*\D)\d+", name)
    disk = next((each for each in (whole.groups() if whole else ()) if each in lines), name)
    fields = lines[disk]
    numbers = tuple(dict.fromkeys(":".join(lines[each][:2]) for each in (name, disk)))
    return Disk(numbers, (int(fields[5]) + int(fields[9])) * _SECTOR)


# ---- a whole node, for the node agent ----
#
# The agent's own /proc tells of its own network and mounts only, so the host's files are mounted below a folder of their own
# (`host`): proc/diskstats, proc/1/net/{dev,route}, proc/1/mountstats, and sys/fs/cgroup (cgroup v2). A value that is not
# there, or that this kernel does not count, is None, never 0.


#: Control groups of pods lie so deep at the most: kubelet's root, kubepods, the class, the pod.
_DEEPEST: Final = 5

Pair = tuple[int, int]


class _Reading(msgspec.Struct, frozen=True):
    """The values of the counters at one moment."""

    disk: Disk | None
    pods: Mapping[str, int] | None
    card: Pair | None
    copied: Pair
    mounts: Mapping[str, Pair]


class Meter(msgspec.Struct):
    """Measures one node. Everything blocks; one thread at a time calls `measure`.

    Args:
        cache: A folder on the disk that is measured.
        host: Below which the host's files are.
    """

    cache: Path
    host: Path
    _before: _Reading | None = None
    _reported: dict[str, int] = msgspec.field(default_factory=dict)  #: uid -> bytes in all, as last reported
    _folders: dict[str, Path] = msgspec.field(default_factory=dict)
    _peaks: dict[str, int] = msgspec.field(default_factory=dict)  #: uid -> the most memory that was measured

    def measure(self, copied: Pair, over_ms: int) -> dict[str, Any] | None:
        """Measure the load since the last call; None the first time.

        Args:
            copied: Bytes that this agent's copies have brought and given away so far.
            over_ms: Since the last measurement.

        Returns:
            `over_ms`, and where it can be told: `disk_bytes`; `pods`, uid -> [bytes of that, bytes in all, CPU ms in all] of those
            of which something is new; `card`, bytes that came and went; `copied`, what of that was copies; `mounts`,
            server:/export -> bytes read and written.
        """
        before, now = self._before, self._read(copied)
        self._before = now
        if before is None or over_ms <= 0:
            return None
        load: dict[str, Any] = {"over_ms": over_ms}
        if before.disk is not None and now.disk is not None and before.disk.numbers == now.disk.numbers:
            load["disk_bytes"] = max(0, now.disk.carried - before.disk.carried)
            if now.pods is not None and before.pods is not None:
                load["pods"] = self._grown(before.pods, now.pods)
        if before.card is not None and now.card is not None:
            load["card"], load["copied"] = _since(before.card, now.card), _since(before.copied, now.copied)
        mounts = {
            name: _since(before.mounts[name], pair)
            for name, pair in now.mounts.items()
            if name in before.mounts
        }
        return load | ({"mounts": mounts} if mounts else {})

    def _grown(self, before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, tuple[int, int, int]]:
        """Of pods of which something new is to be told: bytes since the last time, bytes and ms of CPU time in all."""
        news = {uid: total for uid, total in now.items() if total != self._reported.get(uid, 0)}
        self._reported = dict(now)
        return {
            uid: (max(0, total - before.get(uid, 0)), total, self._cpu_ms(uid)) for uid, total in news.items()
        }

    def used(self, uid: str) -> dict[str, int]:
        """The usage of a pod so far: `disk_bytes`, `cpu_ms` and `max_rss_bytes`; empty where its control group cannot be read.

        The memory is the most that `measure` and this call have seen; a peak between two measurements is missed.
        """
        disk, folder = disk_of(self.cache, self.host / "proc"), self._folder(uid)
        measured: dict[str, int] = {}
        if folder is None:
            return measured
        stat, cpu_ms = _text(folder / "io.stat"), self._cpu_ms(uid)
        if stat is not None and disk is not None:
            measured["disk_bytes"] = pod_bytes(stat, disk.numbers)
        if cpu_ms:
            measured["cpu_ms"] = cpu_ms
        if memory := max(self._peaks.get(uid, 0), _used_memory(folder)):
            measured["max_rss_bytes"] = memory
        return measured

    def _cpu_ms(self, uid: str) -> int:
        """CPU time of a pod so far; 0 where it cannot be told."""
        folder = self._folders.get(uid)
        return 0 if folder is None else cpu_ms(_text(folder / "cpu.stat") or "")

    def _read(self, copied: Pair) -> _Reading:
        disk = disk_of(self.cache, self.host / "proc")
        network = self.host / "proc" / "1" / "net"
        route, dev = _text(network / "route"), _text(network / "dev")
        card = carried(dev, cards(route)) if route is not None and dev is not None else None
        carried_by_mounts = mounts(_text(self.host / "proc" / "1" / "mountstats") or "")
        pods = self._pods(disk) if disk is not None else None
        return _Reading(disk, pods, card, copied, carried_by_mounts)

    def _pods(self, disk: Disk) -> Mapping[str, int] | None:
        """Bytes that each pod has moved so far; None where control groups (v2) are not there, or do not count IO."""
        if not self._find():
            return None
        found = {}
        for uid, folder in self._folders.items():
            stat = _text(folder / "io.stat")
            if stat is not None:
                found[uid] = pod_bytes(stat, disk.numbers)
        self._peaks = {uid: max(self._peaks.get(uid, 0), _used_memory(self._folders[uid])) for uid in found}
        return found

    def _folder(self, uid: str) -> Path | None:
        if uid not in self._folders:
            self._find()
        return self._folders.get(uid)

    def _find(self) -> bool:
        """Find the pods of this node; False where control groups do not count IO."""
        top = self.host / "sys" / "fs" / "cgroup"
        if "io" not in (_text(top / "cgroup.controllers") or "").split():
            self._folders = {}
            return False
        found: dict[str, Path] = {}
        unseen = [(top, 0)]
        while unseen:
            folder, depth = unseen.pop()
            for name in _folders(folder):
                uid = uid_of(name)
                if uid is not None:
                    found[uid] = folder / name
                elif depth < _DEEPEST and leads_to_pods(name):
                    unseen.append((folder / name, depth + 1))
        self._folders = found
        return True


def _since(before: Pair, now: Pair) -> Pair:
    return max(0, now[0] - before[0]), max(0, now[1] - before[1])


def _used_memory(folder: Path) -> int:
    return used_memory_bytes(_text(folder / "memory.stat") or "")


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def _folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []  # it is gone meanwhile
