"""The processes that a step leaves running when its own process ends, and how long they may go on.

A process that reads a pipe without writers holds a part of the step's result, and ends by itself once it has passed it on: the
``tee`` behind a named pipe in Cromwell's script, which no shell waits for, or a shell's ``>(gzip > x)``. It may finish. A
process that only holds the step's standard output or error may still write to it: it gets a short grace. The runner ends every
other process at once, such as a daemon, as a container runtime does when the first process of a container ends.
"""

from __future__ import annotations

import os
import stat
import time

from . import kin

#: The grace of a process that may still write to the step's standard output or error. Seconds of waiting for a CPU do not count.
GRACE_S = 2.0
#: A reader that gets neither a CPU nor bytes for so long will not finish.
IDLE_S = 30.0
#: The runner ends a reader that is still at work so long after the step's end. A task that needs more waits for it by itself.
LIMIT_S = 600.0

Inode = tuple[int, int]


class Process:
    """One process that the step left.

    Args:
        pid: Its process id.
        state: Its letter in /proc/PID/stat: R runs or waits for a CPU, D waits for a device, S sleeps.
        cpu: How long it has run, in any unit that grows.
        reads: Pipes and named pipes that it has open for reading.
        writes: Pipes, named pipes and streams of the step that it has open for writing.
    """

    __slots__ = ("cpu", "pid", "reads", "state", "writes")

    def __init__(self, pid: int, state: str, cpu: int, reads: set[Inode], writes: set[Inode]) -> None:
        self.pid, self.state, self.cpu = pid, state, cpu
        self.reads, self.writes = reads, writes


class Finishing:
    """The clocks of the processes that one step has left.

    Args:
        streams: Device and inode of the step's standard output and error.
    """

    def __init__(self, streams: set[Inode]) -> None:
        self.streams = streams
        self.cut_short: list[int] = []  #: readers that the runner no longer waits for
        self._ended_at = self._checked_at = -1.0
        self._grace = self._idle = 0.0
        self._cpu: dict[int, int] = {}

    def goes_on(self, processes: list[Process], now: float) -> bool:
        """Whether the runner waits for the processes that are left.

        Args:
            processes: The step's live processes without its own one.
            now: Monotonic seconds. The first call is at the end of the step's own process.
        """
        first = self._ended_at < 0
        if first:
            self._ended_at = self._checked_at = now
        passed, self._checked_at = now - self._checked_at, now
        ran = [process for process in processes if self._cpu.get(process.pid) != process.cpu]
        # A reader may still be inside of open(), woken by a writer that is gone. It shows no pipe before it runs.
        starved = any(process.state == "R" and (first or process not in ran) for process in processes)
        self._cpu = {process.pid: process.cpu for process in processes}
        readers = draining(processes)
        if readers:
            busy = ran or any(process.state in "RD" for process in processes)
            self._idle = 0.0 if busy else self._idle + passed
            if self._idle < IDLE_S and now - self._ended_at < LIMIT_S:
                return True
            self.cut_short = sorted(process.pid for process in readers)
            return False
        if starved:
            return now - self._ended_at < LIMIT_S
        self._grace += passed
        writes = any(process.writes & self.streams for process in processes)
        return writes and self._grace < GRACE_S


def draining(processes: list[Process]) -> list[Process]:
    """The processes that read a pipe without any other writers than such processes."""
    found: list[Process] = []
    while True:
        others = [process for process in processes if process not in found]
        written = set().union(*(process.writes for process in others))
        more = [process for process in others if process.reads - written - process.writes]
        if not more:
            return found
        found += more


def left_of(streams: set[Inode], pids: list[int]) -> list[Process]:
    """The live ones among the processes that a step has left. Processes that end meanwhile are left out."""
    found = []
    for pid in pids:
        try:
            fields = kin.stat_of(pid)
            state = fields[0].decode()
            if state in "ZX":
                continue
            reads, writes = open_pipes(pid, streams)
            cpu = kin.number_in(f"/proc/{pid}/schedstat", 0) or int(fields[11]) + int(fields[12])
        except (OSError, ValueError, IndexError):
            continue
        found.append(Process(pid, state, cpu, reads, writes))
    return found


def open_pipes(pid: int, streams: set[Inode]) -> tuple[set[Inode], set[Inode]]:
    """The pipes that a process has open for reading, and the pipes and `streams` it has open for writing."""
    reads: set[Inode] = set()
    writes: set[Inode] = set()
    folder = f"/proc/{pid}/fd"
    try:
        names = os.listdir(folder)
    except PermissionError:  # a program with another user's rights does not show its files
        return reads, writes
    for name in names:
        try:
            status = os.stat(f"{folder}/{name}")
            inode = (status.st_dev, status.st_ino)
            if not stat.S_ISFIFO(status.st_mode) and inode not in streams:
                continue
            mode = os.lstat(f"{folder}/{name}").st_mode  # of the link: how it was opened
        except OSError:
            continue
        if mode & 0o400 and stat.S_ISFIFO(status.st_mode):
            reads.add(inode)
        if mode & 0o200:
            writes.add(inode)
    return reads, writes


def inode_of(path: str | int) -> set[Inode]:
    """Device and inode of a path or descriptor, as a set; empty if there is nothing."""
    try:
        status = os.stat(path)
    except OSError:
        return set()
    return {(status.st_dev, status.st_ino)}


def must_wait(finishing: Finishing, pids: list[int]) -> bool:
    """Whether the runner still waits for the processes that a step has left; never where the system shows no processes' files."""
    return os.path.isdir("/proc/self/fd") and finishing.goes_on(
        left_of(finishing.streams, pids), time.monotonic()
    )
