"""Attempts on this machine, from the service's side: their folders, and the processes that belong to each. Everything here blocks.

    nodes/<node>/attempts/<pod>/   made exclusively: its maker may spawn the one runner it will ever have
        lock, started, exit.json, void, release, order   see `runner.attempt`, the runner's side
        waits                      what the results of a task that has ended wait for
        reserve                    room for exit.json or void, which it becomes
        pod.json                   what it is, for people and for `orphans`
        ended.json                 pod.json and exit.json or void, once nothing else is needed (`pack`)
        work/ stdout stderr runner.log

A pod's folder may be on any node, but there is one of a name: a folder found anywhere means "launched, or void". At most one
process tree ever runs for a name, because only the maker of the folder spawns; a runner does nothing without the lock, and
nothing after `started`, `exit.json` or `void` exist; only the holder of the lock writes `void`, and not before the last process
of the attempt is gone, also one that has detached itself from all that holds the lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from flowsched.cluster.local.runner import cgroups
from flowsched.cluster.local.runner.engine import ask
from flowsched.cluster.local.runner.kin import boot_id, start_time
from flowsched.cluster.local.runner.records import RESERVE, reserve, wall_ms, write_end, write_record
from flowsched.cluster.local.runner.room import WAITS
from flowsched.executor.protocol import (
    ContainerReport,
    DeliveredFile,
    PodEnded,
    PodGone,
    Published,
    StepEnd,
    Usage,
    UsedImage,
)

_PROC = Path("/proc")
#: Marks lie in [2^60, 2^61): as a limit on real-time CPU time, in µs, they are 36,000 years and more.
_LEAST_MARK = 1 << 60


def mark_of(path: Path) -> int:
    """The mark of an attempt or a root: a number that its folder gives, and no other folder of this machine."""
    digest = hashlib.blake2b(os.fsencode(path), digest_size=8).digest()
    return _LEAST_MARK | int.from_bytes(digest) % _LEAST_MARK


def removed(group: str) -> Mapping[str, Any]:
    """The stand-in for the `started` record when an attempt's folder is gone: no process group is known."""
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
    _signal_runner(folder, signal.SIGTERM)


def kill_runner(folder: Path) -> None:
    """Kill a runner that does not do its work."""
    _signal_runner(folder, signal.SIGKILL)


def _signal_runner(folder: Path, number: signal.Signals) -> None:
    pid = runner_of(folder)
    if pid is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_attempt(folder: Path, started: Mapping[str, Any] | None) -> None:
    """Kill the remaining processes of an attempt after its runner died. Does nothing if the task was never started."""
    if started is None:
        return
    if not (_PROC / "self/stat").exists():
        if started["pgid"] <= 0:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(started["pgid"], signal.SIGKILL)
        return
    if started.get("removal"):
        ask(
            started["removal"], started["engine_env"]
        )  # what an engine's daemon runs is below no process of ours
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


# ---- the folders ----


#: What is left of a finished attempt once its end is in SQL: the records of `_RECORDS` in one file.
PACKED: Final = "ended.json"
_RECORDS: Final = ("pod.json", "exit.json", "void")
#: How long a look waits for processes it has just killed, before it leaves them to the next look.
_DYING_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Sight:
    """The observed state of an attempt. `final` is None while it runs, or may."""

    started_ms: int | None = None
    final: PodEnded | PodGone | None = None
    waits: str = ""  #: what its results wait for


class Attempts:
    """The attempts under one root.

    Args:
        root: Of the cluster; `nodes/` lies in it.
        nodes: Names of the nodes, the first of which takes the tombstones of pods that were never launched.
    """

    def __init__(self, root: Path, nodes: list[str]) -> None:
        self.root = root
        self.nodes = nodes

    def open(self) -> None:
        """Make the folders. Nodes that the configuration no longer knows keep theirs, and are still looked at."""
        (self.root / "nodes").mkdir(mode=0o700, parents=True, exist_ok=True)
        for node in self.nodes:
            (self.root / "nodes" / node / "attempts").mkdir(parents=True, exist_ok=True)
        there = sorted(path.name for path in (self.root / "nodes").iterdir())
        self.nodes = self.nodes + [node for node in there if node not in self.nodes]

    def find(self, name: str) -> Path | None:
        """The folder of a pod, wherever it is."""
        paths = (self.root / "nodes" / node / "attempts" / name for node in self.nodes)
        return next((path for path in paths if path.is_dir()), None)

    def make(self, name: str, node: str) -> Path | None:
        """Make a pod's folder, with the room that its end will need; None if there is one of the name, on whatever node.

        Raises:
            OSError: There is no room. Then there is no folder either.
        """
        if self.find(name) is not None:
            return None
        folder = self.root / "nodes" / node / "attempts" / name
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            return None
        try:
            reserve(str(folder))
            (folder / "lock").touch(0o600)
        except OSError:
            remove_tree(folder)
            raise
        return folder

    def entomb(self, name: str, reason: str) -> PodGone:
        """Make sure that a pod without a folder will never run."""
        folder = self.make(name, self.nodes[0])
        if folder is None:
            raise FileExistsError(name)
        return write_void(folder, reason, started=False)

    def all(self) -> Iterator[Path]:
        """Every folder."""
        for node in self.nodes:
            with contextlib.suppress(FileNotFoundError), os.scandir(self._folder(node)) as items:
                yield from (Path(item.path) for item in items)

    def _folder(self, node: str) -> Path:
        return self.root / "nodes" / node / "attempts"


def look(folder: Path, runner_lives: bool = False, released: bool = False) -> Sight:
    """See how an attempt stands, and end what must not go on.

    If the runner is dead, this function ends the attempt: it kills the processes, takes the lock and writes `void`.

    Args:
        folder: Of the attempt.
        runner_lives: Known to be true of a runner that was just started, which has perhaps not locked yet.
        released: Its end was asked for, which is then the reason of a runner's death.
    """
    final = _final(folder)
    if final is not None:
        return final
    started = read_record(folder, "started")
    if runner_lives or runner_of(folder) is not None:
        return Sight(started["at_ms"] if started else None, waits=_waits(folder) if started else "")
    kill_attempt(folder, started)
    end = time.monotonic() + _DYING_S
    while True:
        with locked(folder) as mine:
            final = _final(folder) if mine else None
            if final is not None:  # the last thing the runner did, after our first glance
                return final
            if mine and not is_left(folder, started):
                reason = "Released" if released else "RunnerLost" if started else "NotStarted"
                return Sight(final=write_void(folder, reason, started=started is not None))
        if time.monotonic() > end:
            return Sight(started["at_ms"] if started else None)
        time.sleep(0.005)


def release(folder: Path, grace_ms: int) -> Sight | None:
    """Ask for an attempt's end, or make sure that it never begins. None: its end is under way."""
    final = _final(folder)
    if final is not None:
        return final
    with locked(folder) as mine:
        if mine:
            final = _final(folder)
            if final is not None:
                return final
            started = read_record(folder, "started")
            kill_attempt(folder, started)
            if is_left(folder, started):
                return None  # `look` ends it, once the last of its processes is gone
            return Sight(final=write_void(folder, "Released", started=started is not None))
    temporary = folder / "release.tmp"
    temporary.write_text(str(grace_ms))
    temporary.rename(folder / "release")
    wake_runner(folder)
    return None


def write_void(folder: Path, reason: str, *, started: bool) -> PodGone:
    """Record that an attempt is no more, for good. The caller holds its lock, or has just made its folder."""
    record = {"reason": reason, "started": started, "at_ms": wall_ms(), "lost_inputs": []}
    with contextlib.suppress(FileNotFoundError):
        (folder / "order").unlink()
    write_end(str(folder), "void", record)
    return _gone(folder.name, record)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Hold an attempt's lock, if it is free: then nothing of the attempt lives, and nothing will."""
    fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


def is_alive(folder: Path) -> bool:
    """Whether anything of the attempt lives: what holds its lock, or what has detached itself."""
    if not (folder / "lock").exists():
        return False
    with locked(folder) as mine:
        return not mine or is_left(folder, read_record(folder, "started"))


def read_record(folder: Path, name: str) -> dict[str, Any] | None:
    """A record of a folder, None if it is missing or unreadable (another program may have written there)."""
    try:
        record: dict[str, Any] | None = json.loads((folder / name).read_bytes())
    except (FileNotFoundError, ValueError):
        record = None
    if record is None and name != PACKED and (folder / PACKED).exists():
        packed = read_record(folder, PACKED)
        record = packed.get(name) if packed is not None else None
    return record


def pack(folder: Path) -> bool:
    """Leave of a finished attempt its folder, one record and the logs that are not empty: so its name stays taken, with 2 inodes
    in place of 8. May be stopped anywhere, and done again. False: it is not finished, or something of it still lives.
    """
    if not is_finished(folder):
        return False
    with locked(folder) as mine:
        if not mine:
            return False
    for name in (
        "lock",
        "started",
        "release",
        "release.tmp",
        "order",
        RESERVE,
        WAITS,
        "oom",
        "exit.json.tmp",
        "void.tmp",
    ):
        (folder / name).unlink(missing_ok=True)
    for noted in folder.glob("*.cid*"):
        noted.unlink(missing_ok=True)
    for name in ("stdout", "stderr", "runner.log"):
        with contextlib.suppress(FileNotFoundError):
            if (folder / name).stat().st_size == 0:
                (folder / name).unlink()
    if not (folder / PACKED).exists():
        records = {name: read_record(folder, name) for name in _RECORDS}
        write_record(str(folder), PACKED, {name: record for name, record in records.items() if record})
    for name in _RECORDS:
        (folder / name).unlink(missing_ok=True)
    return True


def workflow_of(folder: Path) -> str:
    """The workflow of an attempt: by its name, as the engine gives it; else by what its folder says of it."""
    parts = folder.name.split("-", 2)
    if len(parts) == 3 and parts[0] == "fs":
        return parts[1]
    return str((read_record(folder, "pod.json") or {}).get("workflow", ""))


def is_finished(folder: Path) -> bool:
    """Whether how it ended stands written."""
    return any((folder / name).exists() for name in ("exit.json", "void", PACKED))


def remove_tree(path: Path) -> None:
    """Remove a folder and all in it, also folders that a task has made read-only."""

    def open_up(_: object, failed: str, __: object) -> None:
        for folder in (os.path.dirname(failed), failed):
            with contextlib.suppress(OSError):
                if os.path.isdir(folder) and not os.path.islink(
                    folder
                ):  # a file may be an output too, by a link
                    os.chmod(folder, 0o700)
        with contextlib.suppress(OSError):
            shutil.rmtree(failed) if os.path.isdir(failed) else os.unlink(failed)

    shutil.rmtree(path, onerror=open_up)


def _final(folder: Path) -> Sight | None:
    record = read_record(folder, "exit.json")
    if record is not None:
        return Sight(record["started_ms"] or None, _ended(folder.name, record))
    record = read_record(folder, "void")
    if record is not None:
        return Sight(final=_gone(folder.name, record))
    return None


def _waits(folder: Path) -> str:
    if not (folder / WAITS).exists():
        return ""
    return str((read_record(folder, WAITS) or {}).get("why", ""))


def _ended(name: str, record: Mapping[str, Any]) -> PodEnded:
    outputs = tuple(
        Published(output["name"], output["uri"], output["size"], output["value"])
        for output in record["outputs"]
    )
    usage = Usage(**record["usage"])
    at_ms, code, reason, message = (record[key] for key in ("at_ms", "exit_code", "reason", "message"))
    return PodEnded(name, at_ms, code, reason, message, outputs, usage, _report(record))


def _report(record: Mapping[str, Any]) -> ContainerReport | None:
    said, images = record.get("container"), record.get("images") or ()
    if said is None and not images:
        return None
    said = said or {"steps": (), "outputs": ()}
    return ContainerReport(
        tuple(StepEnd(**step) for step in said["steps"]),
        tuple(DeliveredFile(file["path"], file["uri"], file["size"]) for file in said["outputs"]),
        said.get("returned"),
        tuple(UsedImage(name, digest) for name, digest in images),
    )


def _gone(name: str, record: Mapping[str, Any]) -> PodGone:
    lost = tuple(record["lost_inputs"])
    return PodGone(name, record["at_ms"], record["reason"], record["started"], lost)
