"""The processes of an attempt, as the service sees them once its runner may be dead.

A pid alone is never signalled: it may belong to another program by now. A process is of an attempt if it is in the attempt's
control group, if its limits bear the attempt's mark, if its environment names the attempt's folder, or if it has the
attempt's lock open. Without /proc only a process group whose lock is still held is signalled: then something of the attempt lives.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flowsched.cluster.running import cgroups
from flowsched.cluster.running.kin import boot_id, start_time

_PROC = Path("/proc")
#: Marks lie in [2^60, 2^61): as a limit on real-time CPU time, in µs, they are 36,000 years and more.
_LEAST_MARK = 1 << 60


def mark_of(path: Path) -> int:
    """The mark of an attempt or a root: a number that its folder gives, and no other folder of this machine."""
    digest = hashlib.blake2b(os.fsencode(path), digest_size=8).digest()
    return _LEAST_MARK | int.from_bytes(digest) % _LEAST_MARK


def removed(group: str) -> Mapping[str, Any]:
    """What stands for the `started` record of an attempt whose folder is gone: no process group is known."""
    return {"pgid": -1, "cgroup": group}


def runner_of(folder: Path) -> int | None:
    """The pid of an attempt's runner, if it lives."""
    try:
        pid, start, boot = (folder / "lock").read_text().split()
    except (OSError, ValueError):
        return None
    return int(pid) if boot == boot_id() and lives(int(pid), int(start)) else None


def wake_runner(folder: Path) -> None:
    """Let a runner look at its folder now (SIGTERM only wakes it)."""
    pid = runner_of(folder)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def kill_runner(folder: Path) -> None:
    """Kill a runner that does not do its work."""
    pid = runner_of(folder)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_attempt(folder: Path, started: Mapping[str, Any] | None) -> None:
    """Kill what is left of an attempt whose runner is dead. Nothing to do if its task was never started."""
    if started is None:
        return
    if not (_PROC / "self/stat").exists():
        if started["pgid"] <= 0:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(started["pgid"], signal.SIGKILL)
        return
    if started.get("cgroup"):
        cgroups.kill(started["cgroup"])
    for pid in _members(folder):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def is_left(folder: Path, started: Mapping[str, Any] | None) -> bool:
    """Whether a process of an attempt lives, its runner aside. Its group is removed once none does."""
    if started is None or not (_PROC / "self/stat").exists():
        return False
    group = started.get("cgroup")
    if (group and not cgroups.is_empty(group)) or _members(folder):
        return True
    if group:
        cgroups.remove(group)
    return False


def lives(pid: int, start: int) -> bool:
    """Whether the process lives that had this pid and start time."""
    if not start:  # this system does not tell when a process started
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return True
    try:
        state = (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in (b"Z", b"X") and start_time(pid) == start


def _members(folder: Path) -> list[int]:
    variable = b"FLOWSCHED_FOLDER=" + os.fsencode(folder)
    limit = b"%d" % mark_of(folder)
    lock = str(folder / "lock")
    found = []
    for item in os.listdir(_PROC):
        if not item.isdigit() or int(item) == os.getpid():
            continue
        pid = int(item)
        if (_limited(pid, limit) or _marked(pid, variable) or _has_open(pid, lock)) and not _is_dead(pid):
            found.append(pid)
    return found


def _limited(pid: int, mark: bytes) -> bool:
    try:
        return mark in (_PROC / str(pid) / "limits").read_bytes()
    except OSError:
        return False


def _is_dead(pid: int) -> bool:
    try:
        return (_PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()[0] in (b"Z", b"X")
    except (OSError, IndexError):
        return True


def _marked(pid: int, mark: bytes) -> bool:
    try:
        return mark in (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _has_open(pid: int, path: str) -> bool:
    with contextlib.suppress(OSError):
        for fd in os.scandir(_PROC / str(pid) / "fd"):
            with contextlib.suppress(OSError):
                if os.readlink(fd.path) == path:
                    return True
    return False
