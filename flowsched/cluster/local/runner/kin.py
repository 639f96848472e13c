"""The processes of an attempt, as its runner sees them: finding, measuring and ending them.

Where Linux allows it, all of them stem from one process, however they detach themselves (see `shim`). Elsewhere only the task's
process group is known.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from contextlib import suppress

#: How long to go on killing what does not die (uninterruptible sleep), before giving the rest up.
KILL_LIMIT_S = 5.0
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
#: The name of the processes that a runner forks beside tasks; of at most 15 bytes.
SHIM = "flowsched-shim"


def _read(path: str) -> bytes:
    """A file of /proc, in half the time that a file object takes."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        blocks = [os.read(fd, 1 << 16)]
        while blocks[-1]:
            blocks.append(os.read(fd, 1 << 16))
    finally:
        os.close(fd)
    return b"".join(blocks)


def stat_of(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat after the name (which may hold anything); none if there is no such process."""
    try:
        return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return []


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot: with the pid it names it for good. 0 if unknown."""
    fields = stat_of(pid)
    return int(fields[19]) if fields else 0


def state_of(pid: int) -> str:
    """The letter of a process's state; X: there is none."""
    fields = stat_of(pid)
    return fields[0].decode() if fields else "X"


def is_running(pid: int, start: int) -> bool:
    """Whether the process lives that had this pid and start time."""
    if not start:  # this system does not tell when a process started
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return True
    fields = stat_of(pid)
    return bool(fields) and fields[0] not in (b"Z", b"X") and int(fields[19]) == start


def boot_id() -> str:
    """Which boot of this machine it is: start times and pids mean nothing beyond it."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return "-"


def prctl(option: int, value: int) -> None:
    """Set an attribute of this process, where there is such a call."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def set_name(name: str) -> None:
    """Name this process. A forked one has the command line of its runner; its name tells them apart, which no other process can
    change.
    """
    try:
        fd = os.open("/proc/self/comm", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:  # this is not Linux
        return
    os.write(fd, name.encode())
    os.close(fd)


def become_subreaper() -> None:
    """Make orphans among the descendants of this process its children."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Get a signal when the parent dies."""
    prctl(PR_SET_PDEATHSIG, number)


def identity(pid: int) -> str:
    """The lasting name of a process: its pid, when it started, and the boot of this machine."""
    return f"{pid} {start_time(pid)} {boot_id()}"


def living(identity: str) -> int:
    """The pid of a process with this identity, if it lives; 0 if not."""
    pid, start, boot = identity.split() if identity.count(" ") == 2 else ("0", "0", "")
    return int(pid) if boot == boot_id() and is_running(int(pid), int(start)) else 0


def children() -> list[int]:
    """The processes whose parent is this one's first thread, which alone starts any: also those whose own parent has ended."""
    try:
        return list(map(int, _read(f"/proc/self/task/{os.getpid()}/children").split()))
    except OSError:
        return _children_by_parent().get(os.getpid(), [])


def descendants(of: list[int] | None = None) -> list[int]:
    """Every process that stems from this one, also those that left its session (it is their subreaper).

    Args:
        of: Only these processes, and what stems from them.
    """
    if not os.path.exists(f"/proc/self/task/{os.getpid()}/children"):
        return _descendants_by_parent(of)
    found: list[int] = []
    unseen = [os.getpid()] if of is None else list(of)
    while unseen:
        pid = unseen.pop()
        with suppress(OSError):  # it ended meanwhile
            for thread in os.listdir(f"/proc/{pid}/task"):
                unseen.extend(map(int, _read(f"/proc/{pid}/task/{thread}/children").split()))
        if pid != os.getpid():
            found.append(pid)
    return found


def _descendants_by_parent(of: list[int] | None = None) -> list[int]:
    """The same where the kernel keeps no lists of children: each process names its parent."""
    parents = _children_by_parent()
    found = list(parents.get(os.getpid(), [])) if of is None else list(of)
    for pid in found:  # grows meanwhile
        found.extend(parents.get(pid, ()))
    return found


def _children_by_parent() -> dict[int, list[int]]:
    parents: dict[int, list[int]] = {}
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return {}
    for pid in pids:
        if fields := stat_of(pid):
            parents.setdefault(int(fields[1]), []).append(pid)
    return parents


def resident_bytes(pids: list[int], limit: int) -> int:
    """The memory of processes: resident pages; if these exceed the limit, shared pages count once (PSS)."""
    page = resource.getpagesize()
    resident = sum(number_in(f"/proc/{pid}/statm", 1) * page for pid in pids)
    if resident <= limit or not limit:
        return resident
    shares = sum(_pss_kb(pid) for pid in pids) * 1024
    return min(resident, shares or resident)


def number_in(path: str, field: int) -> int:
    """A number in a file of /proc; 0 if there is none."""
    try:
        with open(path, "rb") as file:
            return int(file.read().split()[field])
    except (OSError, ValueError, IndexError):
        return 0


def _pss_kb(pid: int) -> int:
    with suppress(OSError, ValueError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
        for line in file:
            if line.startswith(b"Pss:"):
                return int(line.split()[1])
    return 0


def io_counts(pid: int | str = "self") -> dict[str, int]:
    """Bytes that a process and all it has reaped have read and written, by the kernel's names: `rchar` and `wchar`
    from the page cache or not, `read_bytes` and `write_bytes` from and to disks. Zeros where the kernel does not tell.

    Args:
        pid: It; it may have ended, if it is not reaped yet.
    """
    counts = {"rchar": 0, "wchar": 0, "read_bytes": 0, "write_bytes": 0}
    with suppress(OSError, ValueError):
        for line in _read(f"/proc/{pid}/io").splitlines():
            key, _, number = line.partition(b":")
            counts[key.decode()] = int(number)
    return counts


def io_since(before: dict[str, int], after: dict[str, int]) -> tuple[int, int, int]:
    """Bytes read and written between two readings, and the part of both that was a disk's.

    Bytes that a program maps into memory count as read from the disk alone, bytes from the page cache as `rchar` alone:
    each is a difference of its own, and the larger one is the bytes read. (The runner itself has mapped more than it read.)
    """
    read, written, from_disk, to_disk = (
        max(0, after[key] - before[key]) for key in ("rchar", "wchar", "read_bytes", "write_bytes")
    )
    return max(read, from_disk), max(written, to_disk), from_disk + to_disk


def signal_group(pid: int, number: int) -> None:
    """Signal the task's process group, and the task itself should it not lead one yet."""
    for send in (os.killpg, os.kill):
        with suppress(OSError):
            send(pid, number)


def kill_everything(task: int) -> list[int]:
    """Kill and reap until nothing of the attempt is left; returns what would not die.

    Args:
        task: The task's process, 0 for none; its group is signalled where descendants are not known. It may have been reaped.
    """
    end = time.monotonic() + KILL_LIMIT_S
    pause = 0.0005
    while True:
        if task and not sys.platform.startswith("linux"):
            signal_group(task, signal.SIGKILL)
        left = descendants()
        for pid in left:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return []
        if time.monotonic() > end:
            return left
        time.sleep(pause)
        pause = min(pause * 2, 0.02)
