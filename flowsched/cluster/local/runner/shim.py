"""Shims: between the runner and what an attempt runs stands one process, the parent of all of it.

A shim is the subreaper of its attempt. A process that detaches itself, by whatever means, stays below the shim, and no process can
leave its ancestors. The runner therefore knows the processes of an attempt by lineage alone: it measures and kills what stems from
the shim, and the attempt is over when the shim has no child left.

- The shim of a plain task starts the program (`posix_spawn`), collects what ends, and reports. The runner gives it the next task
  when it has no child left, so that a task costs no fork of this process.
- The shim of a container task, or of a program in an image, carries one attempt out by itself (`attempt.see_through`). It hands its
  records over a pipe; the runner puts them into its journal and answers once they are durable.

A task can kill its shim. Its processes are then children of the runner, which has no children of its own but shims and the
process for uploads: it kills all others, and only then says that the attempt is lost. When the runner dies, each shim kills what
stems from it, and ends. If its task had ended by itself before, it publishes the results, and leaves the end in the folder of the
attempt, where the service looks.
"""

from __future__ import annotations

import marshal
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from resource import struct_rusage
from socket import socket

from . import cores, kin
from .attempt import folder_of, leave_end, see_through
from .records import LENGTH_BYTES, Record, receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_APPENDS = os.O_WRONLY | os.O_CREAT | os.O_APPEND
#: A shim ignores these signals, which a task may send to its parent.
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Python ignores the others. A program would inherit it.
_DEFAULTS = (signal.SIGPIPE, signal.SIGXFSZ, *_IGNORED)
#: Rather a task than the service.
_OOM_SCORE = b"500"
#: The signal that the kernel sends a shim at its runner's death, and the runner a shim whose attempt left undying processes.
_ORPHANED = signal.SIGUSR1
#: Between two tries to kill what does not die, for instance a process of another user.
_STUBBORN_S = 1.0


class Shim:
    """A shim, from the runner's side.

    Args:
        inherited: Descriptors that it must not keep.
        order: The attempt that it carries out by itself; None = it starts plain tasks.
        end: The end of a plain task, by what it was given and what it would report; None = the task is lost with its runner.
        mailbox: See `Uploads`; None where plain tasks are started.
    """

    def __init__(
        self,
        inherited: list[int],
        order: Record | None = None,
        end: Callable[[Record, Record], Record | None] = lambda *_: None,
        mailbox: socket | None = None,
    ) -> None:
        self.reading, theirs = os.pipe()
        os.set_blocking(self.reading, False)
        orders, self._writing = os.pipe()
        parent = os.getpid()
        try:
            self.pid = os.fork()
        except OSError:
            for fd in (self.reading, theirs, orders, self._writing):
                os.close(fd)
            raise
        if self.pid == 0:
            _become(
                Parent(orders, theirs, parent, end, mailbox), [*inherited, self.reading, self._writing], order
            )
        os.close(theirs)
        os.close(orders)
        self.identity = kin.identity(self.pid)
        self._data = b""
        self.is_shut = False  #: it reports nothing more: it is ending, or has ended

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that are open for it in the runner."""
        return [fd for fd in (self.reading, self._writing) if fd >= 0]

    def reports(self) -> list[Record]:
        """The reports since the last call."""
        try:
            block = os.read(self.reading, 1 << 16)
        except OSError:
            return []
        self.is_shut = not block
        self._data += block
        found: list[Record] = []
        while len(self._data) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._data[:LENGTH_BYTES], "big")
            if len(self._data) < end:
                break
            found.append(marshal.loads(self._data[LENGTH_BYTES:end]))
            self._data = self._data[end:]
        return found

    def give(self, order: Record) -> None:
        """Let it start a plain task. It may have been stopped by another process of this user."""
        self.signal(signal.SIGCONT)
        with suppress(OSError):  # it has died, which its parent hears
            send(self._writing, order)

    def durable(self) -> None:
        """Let it go on: its record is durable."""
        with suppress(OSError):  # it has died
            os.write(self._writing, b"!")

    def processes(self) -> list[int]:
        """The processes that stem from it: zombies too, until it collects them."""
        return [pid for pid in kin.descendants([self.pid]) if pid != self.pid] if self.pid else []

    def kill(self) -> None:
        """Kill what stems from it."""
        self.signal(signal.SIGCONT)
        for pid in self.processes():
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)

    def retire(self) -> None:
        """Let it kill for as long as anything stems from it, then end."""
        self.signal(signal.SIGCONT)
        self.signal(_ORPHANED)

    def signal(self, number: int) -> None:
        """Signal it, unless the runner has collected it: then its pid may be another's."""
        if self.pid:
            os.kill(self.pid, number)

    def shut(self) -> None:
        """Give it no more orders: without an attempt it ends. (Where its pipe is closed without this word, its runner has died.)"""
        self.give({})
        os.close(self._writing)
        self._writing = -1

    def close(self) -> None:
        """Let go of it when it has ended and was collected."""
        self.pid = 0
        for fd in self.descriptors:
            os.close(fd)


class Apart(Shim):
    """A shim that carries out one attempt by itself, and the attempt.

    Args:
        order: See `orders.compose`.
        inherited, mailbox: See `Shim`.
    """

    def __init__(self, order: Record, inherited: list[int], mailbox: socket) -> None:
        self.name, self.order = str(order["name"]), order
        self.folder = folder_of(order)
        super().__init__(inherited, order, mailbox=mailbox)
        self.started = self.is_over = False

    def records(self) -> list[Record]:
        """The records since the last call; `durable` answers each."""
        found = self.reports()
        for record in found:
            self.started = self.started or record["kind"] == "started"
            self.is_over = record["kind"] in ("ended", "void")
        return found


# ---- in the shim's process ----


def _become(parent: Parent, inherited: list[int], order: Record | None) -> NoReturn:
    """Be a shim."""
    code = 1
    try:
        os.setsid()
        kin.set_name(kin.SHIM)
        signal.set_wakeup_fd(-1)
        signal.signal(_ORPHANED, parent.orphaned)
        kin.die_with_parent(_ORPHANED)
        kin.become_subreaper()
        if os.getppid() != parent.runner:
            os._exit(code)
        for fd in inherited:
            os.close(fd)
        null = os.open(os.devnull, os.O_RDWR)
        errors = 2 if order is None else os.open(f"{folder_of(order)}/runner.log", _APPENDS, 0o600)
        for stream, fd in enumerate((null, null, errors)):
            os.dup2(fd, stream)
        if order is None:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for number in _IGNORED:
                signal.signal(number, signal.SIG_IGN)
            parent.serve()
        else:
            os.close(errors)
            cores.bind(cores.use(order)[0])
            parent.folder = folder_of(order)
            see_through(order, parent.hand_over, parent.mailbox)
        code = 0
    except BaseException:  # noqa: BLE001 - written down where people look, then the process ends
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(code)


class Parent:
    """The parent of an attempt's processes.

    Args:
        orders: The descriptor that orders, or the runner's answers, come from.
        reports: The descriptor that the runner reads.
        runner: Its process.
        end, mailbox: See `Shim`.
    """

    def __init__(
        self,
        orders: int,
        reports: int,
        runner: int,
        end: Callable[[Record, Record], Record | None],
        mailbox: socket | None,
    ) -> None:
        self.mailbox = mailbox
        self.orders, self._reports, self.runner = orders, reports, runner
        self._end = end
        self._cores = cores.machine()
        self.folder = ""  #: of the attempt
        self._is_counting = self._is_orphaned = False
        self._launch: Record = {}  #: the plain task that it has, or had last
        self._final: Record | None = None  #: how the attempt ended that it carries out by itself
        self._first = 0  #: the task's first process
        self._status: int | None = None
        self._cpu_s = 0.0
        self._most = 0
        self._blocks = (0, 0)
        self._io: dict[str, int] = {}

    def hand_over(self, record: Record) -> None:
        """Let the runner write a record, and wait until it is durable."""
        self._final = record if record["kind"] == "ended" else None
        try:
            send(self._reports, record)
            answer = os.read(self.orders, 1)
        except BrokenPipeError:
            answer = b""
        if not answer:
            self.end_all()

    def serve(self) -> None:
        """See plain tasks through until the runner needs no more, or has died: its pipes show that before the signal comes."""
        try:
            while order := receive(self.orders):
                self.see_through(order)
        except BrokenPipeError:
            order = None
        if order is None:
            self.end_all()

    def see_through(self, launch: Record) -> None:
        """Start a plain task, and collect what stems from it until nothing is left.

        Args:
            launch: See `Plain.start`.
        """
        order: Record = launch["order"]  # type: ignore[assignment]
        self._status, self._cpu_s, self._most, self._blocks, self._io = None, 0.0, 0, (0, 0), {}
        self.folder, self._launch = folder_of(order), launch
        if os.getppid() != self.runner:
            self.end_all()
        cores.bind(cores.use(order)[0] or self._cores)
        try:
            self._first = spawn(str(launch["program"]), order)
        except OSError as error:
            send(self._reports, {"kind": "failed", "errno": error.errno or 0})
            return
        except ValueError:  # a zero byte in the command or the environment
            send(self._reports, {"kind": "failed", "errno": 0})
            return
        send(self._reports, {"kind": "running", "pid": self._first})
        _settle(self._first, int(launch["nice"]))  # type: ignore[call-overload]
        self._collect()

    def _collect(self) -> None:
        """Collect all children, and report when the first has ended and when the last has."""
        reported = False
        while True:
            try:
                found = _next_ended(block=reported or self._status is None)
            except ChildProcessError:
                break
            if found is None:  # the task's own process has ended, and others live
                self._report(is_last=False)
                reported = True
                continue
            self._count(*found)
        self._first = 0
        self._report(is_last=True)

    def _count(self, pid: int, done: tuple[int, struct_rusage] | None) -> None:
        """Collect a child that has ended. `done`: as `_next_ended` has it. A signal waits: the status is known here alone."""
        self._is_counting = True
        io = kin.io_counts(pid)
        status, used = done or os.wait4(pid, 0)[1:]
        if pid == self._first:
            self._status = status
        self._cpu_s += used.ru_utime + used.ru_stime
        self._most = max(self._most, used.ru_maxrss)
        self._blocks = self._blocks[0] + used.ru_inblock, self._blocks[1] + used.ru_oublock
        self._io = {key: self._io.get(key, 0) + count for key, count in io.items()}
        self._is_counting = False
        if self._is_orphaned:
            self.end_all()

    def _report(self, *, is_last: bool) -> None:
        send(self._reports, self._end_report(is_last=is_last))

    def _end_report(self, *, is_last: bool) -> Record:
        return {
            "kind": "ended",
            "status": self._status,
            "is_last": is_last,
            "cpu_s": self._cpu_s,
            "max_rss": self._most,
            "blocks": self._blocks,
            "io": self._io,
        }

    def orphaned(self, *_: object) -> None:
        """The signal."""
        self._is_orphaned = True
        if not self._is_counting:
            self.end_all()

    def end_all(self) -> NoReturn:
        """Kill what stems from this process until nothing does, leave the end of a task that had ended by itself, and end."""
        signal.signal(_ORPHANED, signal.SIG_IGN)
        self._is_orphaned = False
        try:
            while (found := _next_ended(block=False)) is not None:
                self._count(*found)
        except ChildProcessError:
            is_over = self._status is not None  # nothing that the task has left could still be at work
        else:
            is_over = False
        while kin.kill_everything(self._first):
            time.sleep(_STUBBORN_S)
        try:
            if is_over:
                self._final = self._end(self._launch, self._end_report(is_last=True))
            if self._final is not None:
                leave_end(self.folder, self._final)
        except BaseException:  # noqa: BLE001 - the attempt is lost with its runner
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(1)


def spawn(program: str, order: Record) -> int:
    """Start the program of a plain task, in its folder. Raises OSError, ValueError."""
    folder = folder_of(order)
    streams = (
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, f"{folder}/stdout", _APPENDS, 0o644),
        (os.POSIX_SPAWN_OPEN, 2, f"{folder}/stderr", _APPENDS, 0o644),
    )
    os.chdir(f"{folder}/work")
    try:
        return os.posix_spawn(
            program,
            order["argv"],  # type: ignore[arg-type]
            order["env"],  # type: ignore[arg-type]
            file_actions=streams,
            setsid=True,
            setsigmask=(),
            setsigdef=_DEFAULTS,
        )
    finally:
        os.chdir("/")


def _settle(pid: int, nice: int) -> None:
    """Let a program that runs already not be before the service."""
    with suppress(OSError):  # it has ended already; or this is not Linux
        os.setpriority(os.PRIO_PROCESS, pid, nice)
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, _OOM_SCORE)
        finally:
            os.close(fd)


def _next_ended(*, block: bool) -> tuple[int, tuple[int, struct_rusage] | None] | None:
    """A child that has ended and is not collected yet, or (on macOS) has been, with what that told; None: none has ended.

    Raises:
        ChildProcessError: There is no child.
    """
    flags = 0 if block else os.WNOHANG
    if not hasattr(os, "waitid"):
        pid, status, used = os.wait4(-1, flags)
        return (pid, (status, used)) if pid else None
    found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | flags)
    return None if found is None else (int(found.si_pid), None)
