"""The processes of an attempt, as the service sees them once its runner may be dead.

A pid alone is never signalled: it may belong to somebody else by now. A process is of an attempt if its environment
names the attempt's folder, if it has the attempt's lock open, or if it is in the task's process group and not older than
the task. Without /proc only a group whose lock is still held is signalled: then something of the attempt lives.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flowsched.cluster.running.kin import boot_id, start_time

_PROC = Path("/proc")

#: The `started` record of an attempt whose folder somebody has removed: no group is known.
UNKNOWN: Mapping[str, Any] = {"pgid": -1, "start": 0, "boot": ""}


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
    for pid in _members(folder, started):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


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


def _members(folder: Path, started: Mapping[str, Any]) -> Iterator[int]:
    mark = b"FLOWSCHED_FOLDER=" + os.fsencode(folder)
    lock = str(folder / "lock")
    for item in os.listdir(_PROC):
        if not item.isdigit() or int(item) == os.getpid():
            continue
        pid = int(item)
        if _in_group(pid, started) or _marked(pid, mark) or _has_open(pid, lock):
            yield pid


def _in_group(pid: int, started: Mapping[str, Any]) -> bool:
    try:
        if os.getpgid(pid) != started["pgid"]:
            return False
    except OSError:
        return False
    return start_time(pid) >= int(started["start"]) and boot_id() == started["boot"]


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
