"""Attempts that need a process of their own: container steps, and programs in images.

The runner forks that process. It carries the attempt out (`attempt.see_through`) and hands its records over a pipe; the runner puts
them into its journal and answers once they are durable. The process dies with the runner. If it dies itself, the journal says so
(`lost`), and the service ends what it has left.
"""

from __future__ import annotations

import marshal
import os
import sys
import traceback

from . import cores, kin
from .attempt import folder_of, load_modules, see_through
from .kin import signal
from .records import Record

_LENGTH_BYTES = 4


class Apart:
    """Such an attempt, from the runner's side.

    Args:
        order: See `orders.compose`.
        inherited: Descriptors that its process must not keep.
    """

    def __init__(self, order: Record, inherited: list[int]) -> None:
        self.name, self.order = str(order["name"]), order
        self.folder = folder_of(order)
        load_modules(order)
        self.reading, theirs = os.pipe()
        os.set_blocking(self.reading, False)
        answers, self._answering = os.pipe()
        parent = os.getpid()
        try:
            self.pid = os.fork()
        except OSError:
            for fd in (self.reading, theirs, answers, self._answering):
                os.close(fd)
            raise
        if self.pid == 0:
            _become(order, parent, answers, theirs, [*inherited, self.reading, self._answering])
        os.close(theirs)
        os.close(answers)
        self._data = b""
        self.started = self.is_over = False
        self.is_shut = False  #: no more records come: the process is ending, or has ended

    @property
    def descriptors(self) -> list[int]:
        """What is open for it in the runner."""
        return [self.reading, self._answering]

    def records(self) -> list[Record]:
        """What it has handed over since; each is answered by `durable`."""
        try:
            block = os.read(self.reading, 1 << 16)
        except OSError:
            return []
        self.is_shut = not block
        self._data += block
        found: list[Record] = []
        while len(self._data) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._data[:_LENGTH_BYTES], "big")
            if len(self._data) < end:
                break
            record = marshal.loads(self._data[_LENGTH_BYTES:end])
            self.started = self.started or record["kind"] == "started"
            self.is_over = record["kind"] in ("ended", "void")
            found.append(record)
            self._data = self._data[end:]
        return found

    def durable(self) -> None:
        """Let it go on: its record is durable."""
        try:  # noqa: SIM105 - see kin
            os.write(self._answering, b"!")
        except OSError:
            pass  # it has died

    def close(self) -> None:
        """Forget a process that has been reaped."""
        os.close(self.reading)
        os.close(self._answering)


def _become(order: Record, runner: int, answers: int, to_runner: int, inherited: list[int]) -> None:
    """In the process of the attempt. Never returns."""
    code = 1
    try:
        os.setsid()
        kin.die_with_parent()
        if os.getppid() != runner:
            os._exit(code)
        signal.set_wakeup_fd(-1)
        for fd in inherited:
            os.close(fd)
        null = os.open(os.devnull, os.O_RDWR)
        errors = os.open(f"{folder_of(order)}/runner.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for stream, fd in enumerate((null, null, errors)):
            os.dup2(fd, stream)
        os.close(null)
        os.close(errors)
        kin.become_subreaper()
        cores.bind(cores.use(order)[0])

        def hand_over(record: Record) -> None:
            data = marshal.dumps(record)
            data = len(data).to_bytes(_LENGTH_BYTES, "big") + data
            while data:
                data = data[os.write(to_runner, data) :]
            if not os.read(answers, 1):
                os._exit(1)  # the runner has died

        see_through(order, hand_over)
        code = 0
    except BaseException:  # noqa: BLE001 - written down where people look, then the process ends
        traceback.print_exc(file=sys.stderr)
        sys.stderr.flush()
    finally:
        os._exit(code)
