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
import signal
import socket
import sys
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from operator import itemgetter

from . import cores, kin
from .attempt import admit, end_of, folder_of, is_apart, listen, prepare, refusal_of, unprepared, void_of
from .journal import Journal
from .outputs import Refused
from .plain import Plain, end_alone
from .records import LENGTH_BYTES, Record, is_full
from .room import is_away
from .shim import Apart, Shim
from .task import FOREVER, StartError, complain, release_grace_s, started
from .uploads import Uploader

_BLOCK = 1 << 18
#: Orders that one turn takes: news of running attempts wait meanwhile.
_ORDERS = 32
#: The first check of a task. Only the kernel has measured a task that ends before.
_FIRST_CHECK_S = 0.2
#: An end is durable so long after it was written, or before the next start. A power failure within that time is like one a moment
#: before the end.
_SYNC_S = 0.05
#: The service is told of starts so late, unless there is other news before: the start and the end of a short task are one message.
_STARTS_S = 0.02
#: A task's niceness above that of the runner.
_NICER = 5
#: Between two attempts to write records that found no room, and to start what has no folder for a while.
_FULL_S = 1.0
#: Shims without a task that stay for the next ones; while more tasks than that run, as many as these.
_IDLE_SHIMS = 4
#: Between two looks at what the tasks of a killed shim have left.
_STRAYS_S = 0.002


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
        self._journal = Journal(f"{root}/runners/{name}", self._note_end)
        self._wake, self._waker = listen()
        self._poll = select.poll()
        self._uploader = Uploader()
        for fd in (0, self._wake, self._uploader.fileno()):
            self._poll.register(fd, select.POLLIN)
        self._data = b""
        self._closed = False
        self._orders: deque[Record] = deque()
        self._ahead: dict[str, list[Record]] = {}  #: by pipeline: orders that were sent ahead, in order
        self._pipeline_of: dict[str, str] = {}  #: by attempt
        self._ended: Counter[str] = Counter()  #: by pipeline: attempts that have ended
        self._open: dict[str, Plain | Apart] = {}
        self._shims: dict[
            int, Shim
        ] = {}  #: by pid: all children of this process but the one that uploads, and strays
        self._heard: dict[int, Shim] = {}  #: by descriptor
        self._idle: list[Shim] = []  #: shims without an attempt
        self._plain: dict[Shim, Plain] = {}  #: that it is the shim of
        self._running: list[Record] = []  #: records that are no news for the service
        self._starts = 0  #: of the journal's records that are not written yet
        self._tell_at = FOREVER  #: when the service is told of starts
        self._stranded: list[Plain | Apart] = []  #: their shims were killed
        self._starting: list[Plain] = []  #: to be started once their records are durable
        self._answers: list[Apart] = []
        self._due: list[tuple[float, int, Plain]] = []
        self._turns = 0
        self._posted: deque[tuple[Plain, Record]] = deque()  #: from threads
        self._poke = _Poke()
        self._nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + _NICER)
        self._sync_at = 0.0

    def serve(self) -> None:
        """Work until there is nothing left to do."""
        kin.become_subreaper()
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        while self._open or self._orders or self._ahead or not self._closed or not self._journal.is_flushed:
            self._turn()
        for shim in self._idle:
            shim.shut()
        self._journal.close()

    def _turn(self) -> None:
        ready = self._wait()
        if 0 in ready:
            self._read()
        if self._wake in ready:
            self._hear_signals()
        if self._uploader.fileno() in ready and self._uploader.start(self._descriptors()):
            self._poll.unregister(self._uploader.fileno())
        for fd in ready & self._heard.keys():
            self._hear(self._heard[fd])
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, turn, plain = heapq.heappop(self._due)
            if plain.turn == turn:
                self._check(plain)
        if self._tell_at <= now:
            self._tell()
        self._accept_some()
        if self._stranded:
            self._end_strays()
        if not self._flush():
            return
        if self._starting or self._answers or (not self._journal.is_durable and now >= self._sync_at):
            self._journal.sync()
        for apart in self._answers:
            apart.durable()
        self._answers.clear()
        if self._starting:
            self._start()

    def _wait(self) -> set[int]:
        if self._orders:
            pause: float | None = 0
        elif self._stranded:
            pause = _STRAYS_S
        elif self._starting or not self._journal.is_flushed:
            pause = _FULL_S
        else:
            due = [self._due[0][0]] if self._due else []
            due += [] if self._journal.is_durable else [self._sync_at]
            due += [] if self._tell_at == FOREVER else [self._tell_at]
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
            pending += [str(order["name"]) for order in (*self._orders, *chain(*self._ahead.values()))]
            self._journal.add({"kind": "closed", "pending": pending})
            return
        data = self._data + block
        at = 0
        while len(data) - at >= LENGTH_BYTES:
            end = at + LENGTH_BYTES + int.from_bytes(data[at : at + LENGTH_BYTES], "big")
            if len(data) < end:
                break
            self._orders.append(marshal.loads(data[at + LENGTH_BYTES : end]))
            at = end
        self._data = data[at:]

    def _accept_some(self) -> None:
        """Accept orders; those that were sent ahead once enough attempts of their pipeline have ended."""
        for _ in range(min(_ORDERS, len(self._orders))):
            order = self._orders.popleft()
            key = str(order["pipeline"])
            if key:
                self._pipeline_of[str(order["name"])] = key
            if order["after"] and release_grace_s(folder_of(order)) is None:
                waiting = self._ahead.setdefault(key, [])
                waiting.append(order)
                waiting.sort(key=itemgetter("after"))  # threads of the service gave them
            else:
                self._accept(order)
        for key, waiting in list(self._ahead.items()):
            while waiting and self._ended[key] >= waiting[0]["after"]:  # type: ignore[operator]
                self._accept(waiting.pop(0))
            if not waiting:
                del self._ahead[key]

    def _note_end(self, name: str) -> None:
        """An attempt has ended, or never runs."""
        key = self._pipeline_of.pop(name, None)
        if key is not None:
            self._ended[key] += 1

    def _accept(self, order: Record) -> None:
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
            apart = self._forked(order, lambda inherited: Apart(order, inherited, self._uploader.mailbox))
            if isinstance(apart, Apart):
                self._open[apart.name] = apart
            return
        plain = Plain(order, lambda record: self._post(plain, record))
        try:
            void = prepare(plain)
            if void is not None:
                self._journal.add(void)
                return
            admit(plain)
            plain.prepare_start()
            shim = (
                self._idle.pop() if self._idle else self._forked(order, lambda fds: Shim(fds, end=end_alone))
            )
        except Refused as refusal:
            self._journal.add(refusal_of(plain, *refusal.args))
        except StartError as error:
            self._journal.add(end_of(plain, error.exit_code, "StartFailed", str(error)))
        except OSError as error:  # reported as the task's failure: a fault that stays would be tried for ever
            self._journal.add(unprepared(plain, error))
        except Exception as error:  # noqa: BLE001 - the other attempts must not pay for it
            sys.excepthook(*sys.exc_info())
            self._journal.add(refusal_of(plain, "StartFailed", f"cannot be prepared: {error!r}"))
        else:
            if shim is None:
                plain.failed(0)
                return
            plain.shim = shim
            self._plain[shim] = plain
            self._journal.add(started(plain))
            self._starts += 1
            self._open[plain.name] = plain
            self._starting.append(plain)

    def _forked(self, order: Record, make: Callable[[list[int]], Shim]) -> Shim | None:
        """A new shim; None: there is none, which is reported."""
        try:
            shim = make([*self._descriptors(), self._uploader.fileno()])
        except OSError as error:  # no process: only this attempt pays for it
            complain(f"{order['name']}: no process for it: {error}")
            self._journal.add(void_of(order, "NotStarted"))
            return None
        self._shims[shim.pid] = self._heard[shim.reading] = shim
        self._poll.register(shim.reading, select.POLLIN)
        return shim

    def _descriptors(self) -> list[int]:
        """The descriptors that no other process must keep."""
        heard = [fd for each in self._heard.values() for fd in each.descriptors]
        return [*heard, self._lock, self._root, self._wake, self._waker, *self._journal.descriptors]

    def _start(self) -> None:
        """Start what is durable."""
        starting, self._starting = self._starting, []
        for plain in starting:
            if is_away(plain):
                self._starting.append(plain)
            elif plain.shim.pid:
                plain.start(self._nice)

    # ---- what the tasks do ----

    def _hear_signals(self) -> None:
        """Signals that have come, and records from threads."""
        came = os.read(self._wake, 4096)
        if signal.SIGTERM in came:  # it only wakes: `release` decides
            for waiting in self._ahead.values():
                for order in [each for each in waiting if release_grace_s(folder_of(each)) is not None]:
                    waiting.remove(order)
                    self._accept(order)  # as void
            for attempt in list(self._open.values()):
                if release_grace_s(attempt.folder) is None:
                    continue
                if isinstance(attempt, Apart):
                    attempt.signal(signal.SIGCONT)
                    attempt.signal(signal.SIGTERM)
                elif attempt.pid and attempt.turn:
                    self._check(attempt)
                elif attempt.is_over:
                    self._journal.add(_publishes(attempt))
        self._reap()
        self._uploader.go_on()
        while self._posted:
            plain, record = self._posted.popleft()
            if record["kind"] == "waits":
                self._journal.add(record)
            else:
                self._end(plain, record)

    def _reap(self) -> None:
        """Bury the shims that have ended, the process that uploads, and strays."""
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            shim = self._shims.pop(pid, None)
            if shim is not None:
                self._bury(shim)
            elif pid == self._uploader.pid:
                self._uploader.pid = 0
                self._poll.register(self._uploader.fileno(), select.POLLIN)

    def _bury(self, shim: Shim) -> None:
        """Let go of a shim that has ended, and note its attempt if that has no end."""
        if not shim.is_shut:
            self._hear(shim)
        if not shim.is_shut:
            self._poll.unregister(shim.reading)
        del self._heard[shim.reading]
        plain = self._plain.pop(shim, None)
        if plain is not None and not plain.is_over:
            plain.turn = 0
            self._stranded.append(plain)
        elif isinstance(shim, Apart) and not shim.is_over:
            self._stranded.append(shim)
        self._idle = [each for each in self._idle if each is not shim]
        self._answers = [each for each in self._answers if each is not shim]
        shim.close()

    def _end_strays(self) -> None:
        """Kill the children of this process that it has not forked: attempts whose shims were killed are over when none is left."""
        strays = [pid for pid in kin.children() if pid not in self._shims and pid != self._uploader.pid]
        for pid in kin.descendants(strays):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        stranded = [] if strays else self._stranded
        self._stranded = self._stranded if strays else []
        for attempt in stranded:
            if isinstance(attempt, Plain) and not attempt.bereave():
                self._check(attempt)
            else:
                self._journal.add({"kind": "lost", "name": attempt.name})
                self._open.pop(attempt.name, None)

    def _check(self, plain: Plain) -> None:
        pause = plain.check()
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
            sys.excepthook(*sys.exc_info())
            record = end_of(plain, 0, "OutputFailed", f"cannot publish: {error!r}")
        self._post(plain, record)

    def _post(self, plain: Plain, record: Record) -> None:
        """From a thread: a record for the journal."""
        self._posted.append((plain, record))
        with suppress(BlockingIOError):  # it is full: the loop wakes
            os.write(self._waker, b"\0")

    def _end(self, plain: Plain, record: Record) -> None:
        self._journal.add(record)
        del self._open[plain.name]
        if self._plain.pop(plain.shim, None) is None:
            return  # it has died
        if plain.undead:
            plain.shim.retire()
        elif len(self._idle) < max(_IDLE_SHIMS, len(self._plain)):
            self._idle.append(plain.shim)
        else:
            plain.shim.shut()

    def _hear(self, shim: Shim) -> None:
        was_shut = shim.is_shut
        if isinstance(shim, Apart):
            for record in shim.records():
                self._journal.add(record)
                self._answers.append(shim)
            if shim.is_over:
                self._open.pop(shim.name, None)
        else:
            for report in shim.reports():
                if shim in self._plain:
                    self._hear_of(self._plain[shim], report)
        if shim.is_shut and not was_shut:  # it would be ready in every turn until the process can be reaped
            self._poll.unregister(shim.reading)

    def _hear_of(self, plain: Plain, report: Record) -> None:
        """Handle a shim's report of its plain task."""
        if report["kind"] == "running":
            plain.runs(int(report["pid"]))  # type: ignore[call-overload]
            self._running.append({"kind": "running", "name": plain.name, "pid": plain.pid})
            self._set_timer(plain, min(_FIRST_CHECK_S, plain.timeout_s))
        elif report["kind"] == "failed":
            error = plain.failed(int(report["errno"]))  # type: ignore[call-overload]
            self._end(plain, end_of(plain, error.exit_code, "StartFailed", str(error)))
        else:
            plain.count(report)
            if plain.turn:
                self._check(plain)

    # ---- writing ----

    def _set_timer(self, plain: Plain, pause: float) -> None:
        self._turns += 1
        plain.turn = self._turns
        heapq.heappush(self._due, (time.monotonic() + pause, plain.turn, plain))

    def _flush(self) -> bool:
        """Write the records and tell the service; False if there is no room for them yet."""
        is_news = self._journal.records > self._starts
        for record in self._running:
            self._journal.add(record)
        self._running.clear()
        if self._journal.is_flushed:
            return True
        try:
            self._journal.flush()
        except OSError as error:
            if not is_full(error):
                raise
            return False
        now = time.monotonic()
        self._sync_at = now + _SYNC_S
        if is_news:
            self._tell()
        elif self._starts:
            self._tell_at = min(self._tell_at, now + _STARTS_S)
        self._starts = 0
        return True

    def _tell(self) -> None:
        """Tell the service that there is news."""
        self._tell_at = FOREVER
        self._poke.send(self._name)


def main(root: str, name: str) -> None:
    """Be the runner of this name; its lock is the standard output."""
    lock = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
    os.ftruncate(lock, 0)
    os.pwrite(lock, kin.identity(os.getpid()).encode(), 0)
    try:
        Runner(root, name, lock).serve()
    except BaseException:  # written down where people look, then the process ends
        sys.excepthook(*sys.exc_info())
        raise


class _Poke:
    """Tells the service to look at a journal now. It looks anyway, so nothing depends on it. The working folder is the root."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def send(self, name: str) -> None:
        with suppress(OSError):  # no service listens; or its queue is full, and it will look
            self._socket.sendto(os.fsencode(name), "poke.sock")


def _publishes(plain: Plain) -> Record:
    """The record of an attempt that was asked to leave and has ended well: only its results are under way."""
    return {"kind": "publishes", "name": plain.name}
