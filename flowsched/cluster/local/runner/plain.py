"""A plain task, which the runner sees through itself, beside many others. A shim starts it and collects its processes."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable

from . import kin
from .attempt import ended, folder_of, usage_of
from .records import Record, now_ms
from .task import StartError, Supervision, Task

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .shim import Shim

#: Between two looks at what has been killed.
_KILL_PAUSE_S = 0.002
#: Passes over the processes of an attempt in one check: the next pass meets at once a process that forks all the time.
_KILL_PASSES = 5
_NO_IO = {"rchar": 0, "wchar": 0, "read_bytes": 0, "write_bytes": 0}


class Plain(Task):
    """A plain attempt.

    Args:
        order: See `orders.compose`.
        record: See `Task`. It may be called from another thread while outputs are published.
    """

    shim: Shim  #: from before `started` is written

    def __init__(self, order: Record, record: Callable[[Record], None]) -> None:
        super().__init__(folder_of(order), order, record)
        self.turn = 0  #: number of the timer that is to look at it next
        self._program = ""
        self._is_empty = False  #: nothing of it lives
        self._used: Record = {}
        self._kill_until = 0.0
        self.undead: list[int] = []

    def prepare_start(self) -> None:
        """Find the program.

        Raises:
            StartError: There is no such program.
        """
        if not self.argv:
            raise StartError("", errno.ENOENT, ": the command is empty")
        self._program = self.program()
        self.started_ms = now_ms(self.order)

    def start(self, nice: int = 0) -> None:
        """Let its shim start the program, which reports `running` or `failed`.

        Args:
            nice: Its niceness.
        """
        self.began = time.monotonic()
        self.shim.give(
            {
                "program": self._program,
                "nice": nice,
                "order": self.order,
                "work_inode": self.work_inode,
                "started_ms": self.started_ms,
            }
        )

    def runs(self, pid: int) -> None:
        """Its program runs."""
        self.pid = pid
        self._supervision = Supervision(self)

    def failed(self, number: int) -> StartError:
        """Its program does not run, with the system's error."""
        return StartError(self.argv[0], number or errno.EINVAL, f" ({self._program})")

    def count(self, report: Record) -> None:
        """Count the usage of ended processes that its shim reports."""
        self.status = report["status"]  # type: ignore[assignment]
        self._used = report
        self._is_empty = bool(report["is_last"])

    @property
    def is_over(self) -> bool:
        """Whether nothing of it lives."""
        return self._is_empty

    def bereave(self) -> bool:
        """Its shim was killed, and then all that had stemmed from it.

        Returns:
            Whether it is lost: the runner had not been ending it.
        """
        self._is_empty = True
        if self.status is None:
            self.status = int(signal.SIGKILL)
        return not (self.pid and self._supervision.reason)

    def reap(self) -> bool:
        """Whether its process has ended, and all that it left. Its shim reaps."""
        return self.status is not None and self._is_empty

    def left(self) -> list[int]:
        """The processes that its own one has left."""
        return self.shim.processes()

    def resident_bytes(self, limit: int) -> int:
        """The memory that it uses, with all that stems from it."""
        return kin.resident_bytes(self.shim.processes(), limit)

    def check(self) -> float | None:
        """Go on with it. Returns after how many seconds to check again; None: nothing of it lives, or what is left does not die."""
        self.shim.signal(signal.SIGCONT)  # another process of this user may have stopped it
        if not self._kill_until:
            pause = self._supervision.check()
            if pause is not None:
                return pause
            self._kill_until = time.monotonic() + kin.KILL_LIMIT_S
        if self._is_empty:
            return None
        if time.monotonic() > self._kill_until:
            self.undead = self.left()
            return None
        self.kill()
        return _KILL_PAUSE_S

    def kill(self) -> None:
        """Kill what is left of it."""
        if not sys.platform.startswith("linux"):
            kin.signal_group(self.pid, signal.SIGKILL)
        for _ in range(_KILL_PASSES):
            self.shim.kill()

    @property
    def lineage(self) -> str:
        """The process that all its processes stem from."""
        return self.shim.identity

    @property
    def publishes(self) -> bool:
        """Whether `end` moves files."""
        return bool(self.order["outputs"]) and not self.status and not self._supervision.reason

    def end(self) -> Record:
        """How it ended; its outputs are in place when this returns."""
        code, reason, message = self.judged(self._supervision.reason, self._supervision.message)
        used = usage_of(
            self,
            round(self._used.get("cpu_s", 0.0) * 1000),  # type: ignore[operator]
            self._used.get("max_rss", 0),  # type: ignore[arg-type]
            self._used.get("blocks", (0, 0)),  # type: ignore[arg-type]
            kin.io_since(_NO_IO, {**_NO_IO, **self._used.get("io", {})}),  # type: ignore[dict-item]
        )
        return ended(self, code, reason, message, self.undead, used)


def end_alone(launch: Record, report: Record) -> Record | None:
    """The end of a task that ended by itself and of whose end its runner has not heard before it died. In the task's shim.

    Args:
        launch: The record that the shim got, see `Plain.start`.
        report: The report that it would send.

    Returns:
        None if the task was killed, or its results cannot be had (the runner may have begun to move them): it is lost.
    """
    if os.WIFSIGNALED(report["status"]):  # type: ignore[arg-type]
        return None
    task = Plain(launch["order"], lambda _: None)  # type: ignore[arg-type]
    task.work_inode, task.started_ms = launch["work_inode"], launch["started_ms"]  # type: ignore[assignment]
    task.runs(0)
    task.count(report)
    record = task.end()
    return None if record["reason"] else record
