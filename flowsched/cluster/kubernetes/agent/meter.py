"""What this node's disk, network card and network file systems carry, measured every few seconds, and which pod moved how much.

The agent's own /proc tells of its own network and mounts only, so the host's files are mounted below a folder of their own
(`host`): proc/diskstats, proc/1/net/{dev,route}, proc/1/mountstats, and sys/fs/cgroup (cgroup v2). What is not there, or is
not counted by this kernel, is not told: None, never 0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from flowsched.cluster.kubernetes.agent import kernel
from flowsched.cluster.measuring import Disk, disk_of

#: Control groups of pods lie so deep at the most: kubelet's root, kubepods, the class, the pod.
_DEEPEST: Final = 5

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Reading:
    """What counters said at one moment."""

    disk: Disk | None
    pods: Mapping[str, int] | None
    card: Pair | None
    copied: Pair
    mounts: Mapping[str, Pair]


@dataclass(slots=True)
class Meter:
    """Measures one node. Everything blocks; one thread at a time calls `measure`.

    Args:
        cache: A folder on the disk that is measured.
        host: Below which the host's files are.
    """

    cache: Path
    host: Path
    _before: _Reading | None = None
    _told: dict[str, int] = field(default_factory=dict)  #: uid -> bytes in all, as they were last told
    _folders: dict[str, Path] = field(default_factory=dict)

    def measure(self, copied: Pair, over_ms: int) -> dict[str, Any] | None:
        """What was carried since the last time, so many ms ago; None the first time.

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
        told: dict[str, Any] = {"over_ms": over_ms}
        if before.disk is not None and now.disk is not None and before.disk.numbers == now.disk.numbers:
            told["disk_bytes"] = max(0, now.disk.carried - before.disk.carried)
            if now.pods is not None and before.pods is not None:
                told["pods"] = self._grown(before.pods, now.pods)
        if before.card is not None and now.card is not None:
            told["card"], told["copied"] = _since(before.card, now.card), _since(before.copied, now.copied)
        mounts = {
            name: _since(before.mounts[name], pair)
            for name, pair in now.mounts.items()
            if name in before.mounts
        }
        return told | ({"mounts": mounts} if mounts else {})

    def _grown(self, before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, tuple[int, int, int]]:
        """Of pods of which something new is to be told: bytes since the last time, bytes and ms of CPU time in all."""
        news = {uid: total for uid, total in now.items() if total != self._told.get(uid, 0)}
        self._told = dict(now)
        return {
            uid: (max(0, total - before.get(uid, 0)), total, self._cpu_ms(uid)) for uid, total in news.items()
        }

    def used(self, uid: str) -> dict[str, int]:
        """What a pod has used so far: `disk_bytes` and `cpu_ms`; nothing where its control group cannot be read."""
        disk, folder = disk_of(self.cache, self.host / "proc"), self._folder(uid)
        told: dict[str, int] = {}
        if folder is None:
            return told
        stat, cpu_ms = _text(folder / "io.stat"), self._cpu_ms(uid)
        if stat is not None and disk is not None:
            told["disk_bytes"] = kernel.pod_bytes(stat, disk.numbers)
        if cpu_ms:
            told["cpu_ms"] = cpu_ms
        return told

    def _cpu_ms(self, uid: str) -> int:
        """CPU time of a pod so far; 0 where it cannot be told."""
        folder = self._folders.get(uid)
        return 0 if folder is None else kernel.cpu_ms(_text(folder / "cpu.stat") or "")

    def _read(self, copied: Pair) -> _Reading:
        disk = disk_of(self.cache, self.host / "proc")
        network = self.host / "proc" / "1" / "net"
        route, dev = _text(network / "route"), _text(network / "dev")
        card = kernel.carried(dev, kernel.cards(route)) if route is not None and dev is not None else None
        carried_by_mounts = kernel.mounts(_text(self.host / "proc" / "1" / "mountstats") or "")
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
                found[uid] = kernel.pod_bytes(stat, disk.numbers)
        return found

    def _folder(self, uid: str) -> Path | None:
        if uid not in self._folders:
            self._find()
        return self._folders.get(uid)

    def _find(self) -> bool:
        """Look which pods there are; False where control groups do not count IO."""
        top = self.host / "sys" / "fs" / "cgroup"
        if "io" not in (_text(top / "cgroup.controllers") or "").split():
            self._folders = {}
            return False
        found: dict[str, Path] = {}
        unseen = [(top, 0)]
        while unseen:
            folder, depth = unseen.pop()
            for name in _folders(folder):
                uid = kernel.uid_of(name)
                if uid is not None:
                    found[uid] = folder / name
                elif depth < _DEEPEST and kernel.leads_to_pods(name):
                    unseen.append((folder / name, depth + 1))
        self._folders = found
        return True


def _since(before: Pair, now: Pair) -> Pair:
    return max(0, now[0] - before[0]), max(0, now[1] - before[1])


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
