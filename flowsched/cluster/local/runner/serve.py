"""The runner: one process that starts the tasks of a service and sees them through, also when the service has died.

It reads orders from its standard input (a length in 4 bytes, then marshal: read at once by the same interpreter, needs no import)
until the service closes it, and writes what happens into its journal. One turn of its loop: hear what happened; take orders; write
all records at once, and tell the service that there is news; make them durable, and start what was ordered. It ends when no more
orders come and its last attempt has ended.

It decides alone about its attempts: whether an attempt of a living runner has begun, or will, only its journal says.
"""

from __future__ import annotations

import _thread
import heapq
import marshal
import os
import resource
import select
import sys
import time
import traceback
from collections import deque

from . import cores, kin
from .apart import Apart
from .attempt import admit, end_of, is_apart, listen, prepare, refusal_of, unprepared, void_of
from .journal import Journal
from .kin import signal
from .outputs import Refused
from .plain import Plain
from .records import Record, is_full
from .room import is_away
from .task import StartError, release_grace_s, started

_LENGTH_BYTES = 4
_BLOCK = 1 << 18
#: Orders that one turn takes: news of running attempts wait meanwhile.
_ORDERS = 32
#: The first look at a task. What ends before was not measured but by the kernel.
_FIRST_LOOK_S = 0.2
#: An end is durable so long after it was written, or before the next start. A power failure within that time is like one a moment
#: before the end.
_SYNC_S = 0.05
#: What a task's niceness is above that of the runner.
_NICER = 5
#: Between two attempts to write records that found no room, and to start what has no folder for a while.
_FULL_S = 1.0


class Runner:
    """The runner's loop.

    Args:
        root: Of the cluster.
        name: Of this runner; its folder is `runners/<name>` in the root.
        lock: The descriptor that holds the folder's lock.
    """

    def __init__(self, root: str, name: str, lock: int) -> None:
        os.chdir(root)
        self._cores = cores.machine()
        self._root = os.open(root, os.O_RDONLY | os.O_CLOEXEC)  # its path may lead nowhere for a while
        self._name, self._lock = name, lock
        self._journal = Journal(f"{root}/runners/{name}")
        self._wake, self._waker = listen()
        self._poll = select.poll()
        for fd in (0, self._wake):
            self._poll.register(fd, select.POLLIN)
        self._data = b""
        self._closed = False
        self._orders: deque[Record] = deque()
        self._open: dict[str, Plain | Apart] = {}
        self._plain: dict[int, Plain] = {}  #: by pid, until it is reaped
        self._marked: dict[int, Plain] = {}
        self._apart: dict[int, Apart] = {}  #: by pid
        self._heard: dict[int, Apart] = {}  #: by descriptor
        self._starting: list[Plain] = []  #: to be started once their records are durable
        self._answers: list[Apart] = []
        self._due: list[tuple[float, int, Plain]] = []
        self._turns = 0
        self._posted: deque[tuple[Plain, Record]] = deque()  #: from threads
        self._orphans: dict[int, list[int]] | None = None  #: by mark, as they are in this turn
        self._poke = _Poke()
        self._limit = _own_limit()
        self._nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICER)
        self._sync_at = 0.0

    def serve(self) -> None:
        """Work until there is nothing left to do."""
        kin.become_subreaper()
        try:  # noqa: SIM105 - see kin
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        except (OSError, ValueError):
            pass
        while self._open or self._orders or not self._closed or not self._journal.is_flushed:
            self._turn()
        self._journal.close()

    def _turn(self) -> None:
        ready = self._wait()
        self._orphans = None
        if 0 in ready:
            self._read()
        if self._wake in ready:
            self._hear_signals()
        for fd in ready & self._heard.keys():
            self._hear(self._heard[fd])
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, turn, plain = heapq.heappop(self._due)
            if plain.turn == turn:
                self._look(plain)
        for _ in range(min(_ORDERS, len(self._orders))):
            self._take(self._orders.popleft())
        if not self._flush():
            return
        if self._starting or self._answers or (not self._journal.is_durable and now >= self._sync_at):
            self._journal.sync()
        for apart in self._answers:
            apart.durable()
        self._answers.clear()
        if self._starting:
            self._flush(is_news=self._start())

    def _wait(self) -> set[int]:
        if self._orders:
            pause: float | None = 0
        elif self._starting or not self._journal.is_flushed:
            pause = _FULL_S
        else:
            due = [self._due[0][0]] if self._due else []
            due += [] if self._journal.is_durable else [self._sync_at]
            pause = max(0.0, min(due) - time.monotonic()) if due else None
        return {fd for fd, _ in self._poll.poll(None if pause is None else -int(-pause * 1000 // 1))}

    # ---- what the service says ----

    def _read(self) -> None:
        block = os.read(0, _BLOCK)
        if not block:
            self._closed = True
            self._poll.unregister(0)
            pending = [
                each.name for each in self._open.values() if isinstance(each, Apart) and not each.started
            ]
            pending += [str(order["name"]) for order in self._orders]
            self._journal.add({"kind": "closed", "pending": pending})
            return
        data = self._data + block
        at = 0
        while len(data) - at >= _LENGTH_BYTES:
            end = at + _LENGTH_BYTES + int.from_bytes(data[at : at + _LENGTH_BYTES], "big")
            if len(data) < end:
                break
            self._orders.append(marshal.loads(data[at + _LENGTH_BYTES : end]))
            at = end
        self._data = data[at:]

    def _take(self, order: Record) -> None:
        """Prepare an attempt. It starts once that is durable."""
        try:
            self._journal.reserve(len(self._open) + 1)
        except OSError as error:
            if not is_full(error):
                raise
            self._journal.add(void_of(order, "DiskFull"))
            return
        in_use = [cores.use(each.order) for each in self._open.values()]
        order["cores"] = cores.choose(self._cores, in_use, cores.use(order)[1])
        if is_apart(order):
            self._fork(order)
            return
        plain = Plain(order, lambda record: self._post(plain, record), self._orphans_of)
        try:
            void = prepare(plain)
            if void is not None:
                self._journal.add(void)
                return
            admit(plain)
            plain.prepare_start()
        except Refused as refusal:
            self._journal.add(refusal_of(plain, *refusal.args))
        except StartError as error:
            self._journal.add(end_of(plain, error.exit_code, "StartFailed", str(error)))
        except OSError as error:  # told as the task's failure, or a fault that stays would be tried for ever
            self._journal.add(unprepared(plain, error))
        except Exception as error:  # noqa: BLE001 - the other attempts must not pay for it
            traceback.print_exc(file=sys.stderr)
            self._journal.add(refusal_of(plain, "StartFailed", f"cannot be prepared: {error!r}"))
        else:
            self._journal.add(started(plain))
            self._open[plain.name] = self._marked[plain.mark] = plain
            self._starting.append(plain)

    def _fork(self, order: Record) -> None:
        others = [fd for each in self._heard.values() for fd in each.descriptors]
        own = [self._lock, self._root, self._wake, self._waker, *self._journal.descriptors]
        try:
            apart = Apart(order, [*own, *others])
        except (
            OSError,
            ImportError,
        ) as error:  # no process, or the modules are gone: only this attempt pays for it
            complain_of(order, error)
            self._journal.add(void_of(order, "NotStarted"))
            return
        self._open[apart.name] = self._apart[apart.pid] = self._heard[apart.reading] = apart
        self._poll.register(apart.reading, select.POLLIN)

    def _start(self) -> bool:
        """Start what is durable. Returns whether a program did not start, which is news for the service."""
        failed = False
        starting, self._starting = self._starting, []
        for plain in starting:
            if is_away(plain):
                self._starting.append(plain)
                continue
            _bear(plain.mark, self._limit)
            cores.bind(cores.use(plain.order)[0] or self._cores)  # a program may ask for its cores at once
            try:
                plain.start(self._nice)
            except StartError as error:
                failed = True
                plain.discard_group()
                self._end(plain, end_of(plain, error.exit_code, "StartFailed", str(error)))
                continue
            self._plain[plain.pid] = plain
            self._journal.add({"kind": "running", "name": plain.name, "pid": plain.pid})
            first = min(_FIRST_LOOK_S, plain.timeout_s)
            self._set_timer(plain, first)
        _bear(0, self._limit)
        cores.bind(self._cores)
        os.chdir(self._root)
        return failed

    # ---- what the tasks do ----

    def _hear_signals(self) -> None:
        """Signals that have come, and records from threads."""
        came = os.read(self._wake, 4096)
        if signal.SIGTERM in came:  # it only wakes: `release` decides
            for attempt in list(self._open.values()):
                if release_grace_s(attempt.folder) is None:
                    continue
                if isinstance(attempt, Apart):
                    os.kill(attempt.pid, signal.SIGTERM)
                elif attempt.pid and attempt.turn:
                    self._look(attempt)
                elif attempt.pid:
                    self._journal.add(_publishes(attempt))
        self._reap()
        while self._posted:
            plain, record = self._posted.popleft()
            if record["kind"] == "waits":
                self._journal.add(record)
            else:
                self._end(plain, record)

    def _reap(self) -> None:
        """Count and bury the processes that have ended, and go on with their attempts."""
        concerned: dict[str, Plain] = {}
        while True:
            pid, done = _next_ended()
            if pid == 0:
                break
            plain = self._plain.pop(pid, None)
            owner = plain or (None if pid in self._apart else self._marked.get(kin.mark_of_process(pid)))
            io = kin.io_counts(pid) if owner is not None else {}
            status, used = done or os.wait4(pid, 0)[1:]
            if plain is not None:
                plain.status = status
            if owner is not None:
                owner.count(io, used)
                concerned[owner.name] = owner
            elif pid in self._apart:
                self._lose(self._apart.pop(pid))
        self._orphans = None  # what was the child of one that has ended is ours now
        for owner in concerned.values():
            if owner.status is not None and owner.turn:
                self._look(owner)

    def _look(self, plain: Plain) -> None:
        pause = plain.look()
        if pause is not None:
            self._set_timer(plain, pause)
        elif plain.publishes:
            plain.turn = 0
            if release_grace_s(plain.folder) is not None:
                self._journal.add(_publishes(plain))
            try:
                _thread.start_new_thread(self._publish, (plain,))
            except RuntimeError:  # the system has no room for a thread: the others wait
                self._publish(plain)
        else:
            plain.turn = 0
            self._end(plain, plain.end())

    def _publish(self, plain: Plain) -> None:
        """In a thread: files move, and are made durable."""
        try:
            record = plain.end()
        except Exception as error:  # noqa: BLE001 - the attempt would never end
            traceback.print_exc(file=sys.stderr)
            record = end_of(plain, 0, "OutputFailed", f"cannot publish: {error!r}")
        self._post(plain, record)

    def _post(self, plain: Plain, record: Record) -> None:
        """From a thread: a record for the journal."""
        self._posted.append((plain, record))
        try:  # noqa: SIM105 - see kin
            os.write(self._waker, b"\0")
        except BlockingIOError:
            pass  # it is full: the loop wakes

    def _end(self, plain: Plain, record: Record) -> None:
        self._journal.add(record)
        del self._open[plain.name], self._marked[plain.mark]

    def _hear(self, apart: Apart) -> None:
        was_shut = apart.is_shut
        for record in apart.records():
            self._journal.add(record)
            self._answers.append(apart)
        if apart.is_shut and not was_shut:  # it would be ready in every turn until the process can be reaped
            self._poll.unregister(apart.reading)
        if apart.is_over:
            self._open.pop(apart.name, None)

    def _lose(self, apart: Apart) -> None:
        """Bury the process of an attempt; without an end from it the service ends what it has left."""
        self._hear(apart)
        if not apart.is_shut:
            self._poll.unregister(apart.reading)
        del self._heard[apart.reading]
        if not apart.is_over:
            self._journal.add({"kind": "lost", "name": apart.name})
            self._open.pop(apart.name, None)
        self._answers = [each for each in self._answers if each is not apart]
        apart.close()

    def _orphans_of(self, mark: int) -> list[int]:
        """The children of this process that bear a mark and are not the first process of an attempt."""
        if self._orphans is None:
            self._orphans = {}
            for pid in kin.children():
                if pid not in self._plain and pid not in self._apart:
                    self._orphans.setdefault(kin.mark_of_process(pid), []).append(pid)
        return self._orphans.get(mark, [])

    # ---- writing ----

    def _set_timer(self, plain: Plain, pause: float) -> None:
        self._turns += 1
        plain.turn = self._turns
        heapq.heappush(self._due, (time.monotonic() + pause, plain.turn, plain))

    def _flush(self, *, is_news: bool = True) -> bool:
        """Write the records and tell the service; False if there is no room for them yet."""
        if self._journal.is_flushed:
            return True
        try:
            self._journal.flush()
        except OSError as error:
            if not is_full(error):
                raise
            return False
        self._sync_at = time.monotonic() + _SYNC_S
        if is_news:
            self._poke.send(self._name)
        return True


def main(root: str, name: str) -> None:
    """Be the runner of this name; its lock is the standard output."""
    lock = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()} {kin.start_time(os.getpid())} {kin.boot_id()}".encode(), 0)
    try:
        Runner(root, name, lock).serve()
    except BaseException:  # written down where people look, then the process ends
        traceback.print_exc(file=sys.stderr)
        raise


class _Poke:
    """Tells the service to look at a journal now. It looks anyway, so nothing depends on it. The working folder is the root."""

    def __init__(self) -> None:
        import _socket  # without the selectors and enums of `socket`

        self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def send(self, name: str) -> None:
        try:  # noqa: SIM105 - see kin
            self._socket.sendto(os.fsencode(name), "poke.sock")
        except OSError:
            pass  # no service listens; or its queue is full, and it will look


def complain_of(order: Record, error: Exception) -> None:
    """Write to the runner's log."""
    os.write(2, f"flowsched: {order['name']}: no process for it: {error}\n".encode())


def _publishes(plain: Plain) -> Record:
    """The record of an attempt that was asked to leave and has ended well: only its results are under way."""
    return {"kind": "publishes", "name": plain.name}


def _next_ended() -> tuple[int, tuple[int, resource.struct_rusage] | None]:
    """A child that has ended; 0 if there is none. It is not reaped yet, or (on macOS) here is what reaping told."""
    try:
        if not hasattr(os, "waitid"):
            pid, status, used = os.wait4(-1, os.WNOHANG)
            return pid, (status, used)
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return 0, None
    return (0 if found is None else int(found.si_pid)), None


def _own_limit() -> tuple[int, int]:
    """The limit of this process on real-time CPU time."""
    kind = getattr(resource, "RLIMIT_RTTIME", None)
    return (-1, -1) if kind is None else resource.getrlimit(kind)


def _bear(mark: int, own: tuple[int, int]) -> None:
    """Bear a mark that is inherited, see `kin.set_mark`; 0 = none any more."""
    try:  # noqa: SIM105 - see kin
        resource.setrlimit(resource.RLIMIT_RTTIME, (mark, own[1]) if mark else own)
    except (AttributeError, ValueError, OSError):
        pass  # no Linux, or a lower limit is set
