"""A control group for each attempt: the service finds and kills its processes however they detach themselves.

A process may start in a session of its own, with another environment and without open files. After its runner's death only its
control group still leads to it. Version 2 (`cgroup.kill`) and the freezer of version 1 kill a whole group, even while its processes
fork. The runner, the service and `flowsched doctor` use this module, which needs the standard library only. It needs a folder of
control groups that this process may write to: its own group, as root or by delegation.
"""

from __future__ import annotations

import os
import sys
import time

#: The name of a group begins with this; the rest identifies the root and the attempt.
PREFIX = "flowsched-"
#: `find_base` tries these hierarchies of version 1, the best first: the freezer stops a group during the kill.
_VERSION_1 = ("freezer", "pids", "name=systemd")
#: `sweep` removes an empty group of any root at this age: a kill has ended its runner and its service.
_STALE_S = 3600.0
#: A trial lasts at most `_TRIAL_S`, so a kill has ended the service with an older group. The same holds for a younger group if the
#: service's process is gone. A service in another PID namespace only looks gone: its trial gets `_TRIAL_OF_THE_DEAD_S`.
_TRIAL_STALE_S = 60.0
_TRIAL_OF_THE_DEAD_S = 0.5
_TRIAL_S = 5.0
_TRIAL = "trial-"
_SIGKILL = 9
#: The program that a trial kills. If a kill ends the service first, the program ends by itself, and `sweep` can remove the group.
_WAITS = f"""
import os, time
service, end = os.getppid(), time.monotonic() + {2 * _TRIAL_S}
while os.getppid() == service and time.monotonic() < end:
    time.sleep(0.05)
"""


class Base:
    """The folder for the groups of attempts.

    Args:
        folder: A folder of control groups; "" if there is none, and then no attempt has a group.
        kind: For people: `version 2`, `version 1, freezer` …
        why_not: Reasons against the other hierarchies, or against all.
    """

    __slots__ = ("folder", "kind", "why_not")

    def __init__(self, folder: str, kind: str, why_not: list[str]) -> None:
        self.folder, self.kind, self.why_not = folder, kind, why_not

    def group(self, mark: int, name: str) -> str:
        """The group of an attempt; "" where there are none.

        Args:
            mark: Of the root.
            name: Of the attempt.
        """
        return f"{self.folder}/{PREFIX}{mark:016x}-{name}" if self.folder else ""

    def groups(self, mark: int) -> dict[str, str]:
        """Name of the attempt -> its group, of one root."""
        prefix = f"{PREFIX}{mark:016x}-"
        return {
            name.removeprefix(prefix): f"{self.folder}/{name}"
            for name in self._names()
            if name.startswith(prefix)
        }

    def sweep(self) -> None:
        """Remove empty groups that killed services have left, of every root."""
        for name in self._names():
            path = f"{self.folder}/{name}"
            stale_s = _stale_s(name)
            try:
                if time.time() - os.stat(path).st_mtime > stale_s:
                    os.rmdir(path)  # the kernel refuses while a process lives in it
            except OSError:
                pass

    def _names(self) -> list[str]:
        if not self.folder:
            return []
        try:
            return [name for name in os.listdir(self.folder) if name.startswith(PREFIX)]
        except OSError:
            return []


def _stale_s(name: str) -> float:
    """The age at which `sweep` removes an empty group of this name."""
    trial, _, rest = name.removeprefix(PREFIX).partition("-")
    if trial + "-" != _TRIAL:
        return _STALE_S
    return _TRIAL_STALE_S if os.path.exists(f"/proc/{rest.partition('-')[0]}") else _TRIAL_OF_THE_DEAD_S


def find_base() -> Base:
    """The first folder of control groups that passes a trial with a real process."""
    why_not: list[str] = []
    for kind, folder in own_groups():
        why = trial(folder)
        if not why:
            return Base(folder, kind, why_not)
        why_not.append(f"{kind}: {why}")
    return Base("", "", why_not or ["no hierarchy of control groups is mounted"])


def own_groups() -> list[tuple[str, str]]:
    """(kind, folder) of the control groups that this process is in, the preferred one first."""
    try:
        with open("/proc/self/cgroup") as file:
            mine = [line.rstrip("\n").split(":", 2) for line in file]
        with open("/proc/self/mountinfo") as file:
            mounts = [line.split() for line in file]
    except OSError:
        return []
    paths = {names: path for _, names, path in mine}  # "" is version 2
    found: list[tuple[str, str]] = []
    for wanted in ("", *_VERSION_1):
        names = next((key for key in paths if wanted in (key.split(",") if wanted else [key])), None)
        if names is None:
            continue
        for fields in mounts:
            kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
            if kind != ("cgroup" if wanted else "cgroup2") or (wanted and wanted not in options):
                continue
            inner = _below(paths[names], _plain(fields[3]))
            if inner is not None:
                said = f"version 1, {wanted}" if wanted else "version 2"
                found.append((said, _plain(fields[4]) + inner))
                break
    return found


def _below(path: str, top: str) -> str | None:
    """The path of a group below a mount of `top`, with a slash before it; None if the mount does not show the group."""
    if path.startswith("/.."):
        return None
    path, top = path.rstrip("/"), top.rstrip("/")
    return path[len(top) :] if path == top or path.startswith(top + "/") else None


def _plain(text: str) -> str:
    """A path of /proc/self/mountinfo, which writes blanks as \\040."""
    return text.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def trial(folder: str) -> str:
    """Why attempts cannot have groups in a folder, "" if they can. The trial moves a process into a group and kills the group."""
    path = f"{folder}/{PREFIX}{_TRIAL}{os.getpid()}-{time.monotonic_ns()}"
    try:
        os.mkdir(path)
    except OSError as error:
        return f"{folder}: {error.strerror}"
    pid = os.posix_spawn(sys.executable, (sys.executable, "-I", "-S", "-c", _WAITS), {})
    why = join(path, pid)
    end = time.monotonic() + _TRIAL_S
    killed = False
    while not why and not killed and time.monotonic() < end:
        kill(path)
        killed = os.waitpid(pid, os.WNOHANG)[0] == pid
        time.sleep(0.001)
    if not killed:
        os.kill(pid, _SIGKILL)
        os.waitpid(pid, 0)
    gone = remove(path)
    if why or (killed and gone):
        return why
    return f"{folder}: a process in a group of it was not killed with the group"


def make(path: str) -> str:
    """Make a group, or use the one that is there; "" if that worked, or why not."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        return f"cannot make the control group {path}: {error.strerror}"
    return ""


def join(path: str, pid: int = 0) -> str:
    """Move a process, by default this one, into a group; "" if that worked, or why not."""
    try:
        fd = os.open(f"{path}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, b"%d" % pid)
        finally:
            os.close(fd)
    except OSError as error:
        return f"cannot join the control group {path}: {error.strerror}"
    return ""


def members(path: str) -> list[int]:
    """The processes of a group and of the groups in it; 0 stands for one that this process cannot see."""
    found: list[int] = []
    for folder, _, _ in os.walk(path):
        try:
            with open(f"{folder}/cgroup.procs") as file:
                found += [int(line) for line in file]
        except (OSError, ValueError):
            pass
    return found


def is_empty(path: str) -> bool:
    """Whether no process lives in a group: zombies do not count. True for one that is not there."""
    try:
        with open(f"{path}/cgroup.events") as file:
            return "populated 1" not in file.read()
    except OSError:
        return not members(path)


def kill(path: str) -> None:
    """Kill every process of a group. They are gone when `is_empty` is true; without `cgroup.kill` call this until then."""
    if _write(f"{path}/cgroup.kill", "1"):
        return
    freeze = next(
        (
            (f"{path}/{name}", on, off)
            for name, on, off in (("cgroup.freeze", "1", "0"), ("freezer.state", "FROZEN", "THAWED"))
            if os.path.exists(f"{path}/{name}")
        ),
        None,
    )
    if freeze is not None:
        _write(freeze[0], freeze[1])  # stopped processes do not fork while this loop reads their pids
    try:
        for pid in filter(None, members(path)):
            try:  # noqa: SIM105 - as in kin
                os.kill(pid, _SIGKILL)
            except OSError:
                pass
    finally:
        if freeze is not None:
            _write(freeze[0], freeze[2])  # a process that the freezer of version 1 has stopped dies only now


def remove(path: str) -> bool:
    """Remove an empty group, with the groups that a task has made in it; returns whether it is gone."""
    for folder, _, _ in os.walk(path, topdown=False):
        try:  # noqa: SIM105 - as in kin
            os.rmdir(folder)
        except OSError:
            pass
    return not os.path.isdir(path)


def _write(path: str, text: str) -> bool:
    try:
        fd = os.open(path, os.O_WRONLY)
    except OSError:
        return False
    try:
        os.write(fd, text.encode())
    except OSError:
        return False
    finally:
        os.close(fd)
    return True
