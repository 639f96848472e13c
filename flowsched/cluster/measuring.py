"""What the disk of this machine carries, and what of that is tasks': read from /proc, every few seconds.

A folder's disk is the block device that `stat` names, or the one that this is a partition of, if the kernel counts it
(/proc/diskstats); a folder on tmpfs, an overlay or a network file system has none, and then nothing is measured. All virtual
nodes share it: what others use is divided evenly.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from flowsched.executor.nodes import Load, LoadMeasured

#: s between two measurements: long enough for a mean, short beside what a task takes that disks matter to.
INTERVAL_S: Final = 5.0
_SECTOR: Final = 512


@dataclass(slots=True)
class DiskMeter:
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
    _by_attempt: dict[str, int] = field(default_factory=dict)

    def measure(self, attempts: Iterable[tuple[str, str, int]], seconds: float) -> LoadMeasured | None:
        """What was carried since the last time, so many seconds ago; None the first time, and where nothing can be told.

        Args:
            attempts: (name, node, process) of each that runs.
            seconds: Since the last measurement.
        """
        before, self._total = self._total, self._carried()
        ours = dict.fromkeys(self.nodes, 0)
        seen: dict[str, int] = {}
        for name, node, pid in attempts if self._total is not None else ():
            seen[name] = _moved_by_tree(self.proc, pid)
            ours[node] = ours.get(node, 0) + max(0, seen[name] - self._by_attempt.get(name, 0))
        self._by_attempt = seen
        if before is None or self._total is None or seconds <= 0:
            return None
        others = max(0, self._total - before - sum(ours.values())) // max(1, len(self.nodes))
        return LoadMeasured(tuple(_load(node, ours, others, seconds) for node in self.nodes))

    def _carried(self) -> int | None:
        """Bytes read and written since the machine started; None where the folder is on no disk."""
        disk = disk_of(self.folder, self.proc)
        return None if disk is None else disk.carried


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


def _load(node: str, ours: Mapping[str, int], others: int, seconds: float) -> Load:
    return Load(node, int((ours[node] + others) / seconds), int(ours[node] / seconds))


def _moved_by_tree(proc: Path, pid: int) -> int:
    """Bytes of disks that a process, those that stem from it, and those it has reaped, have read and written."""
    moved, unseen = 0, [pid]
    while unseen:
        folder = proc / str(unseen.pop())
        try:
            for line in (folder / "io").read_text().splitlines():
                key, _, number = line.partition(":")
                moved += int(number) if key in ("read_bytes", "write_bytes") else 0
            for thread in (folder / "task").iterdir():
                unseen.extend(map(int, (thread / "children").read_text().split()))
        except (OSError, ValueError):
            continue  # it ended meanwhile, or is another user's
    return moved
