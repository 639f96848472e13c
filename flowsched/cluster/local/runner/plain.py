"""A plain task, which the runner starts and sees through itself, beside many others.

The runner starts it without a copy of itself (`posix_spawn`), so it cannot act in the new process before the program does. What a
task must have from its first instruction it inherits: the runner takes the attempt's mark for the moment of the start. The rest
follows within microseconds: the control group, the priority, the rank for the kernel's memory killer.
"""

from __future__ import annotations

import errno
import os
import resource
import sys
import time

from . import cgroups, kin
from .attempt import ended, folder_of, usage_of
from .kin import signal
from .records import Record, wall_ms
from .task import StartError, Supervision, Task, complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: Rather a task than the service.
_OOM_SCORE = b"500"
_APPENDS = os.O_WRONLY | os.O_CREAT | os.O_APPEND
#: Python ignores these signals, and a program inherits that.
_DEFAULTS = (signal.SIGPIPE, signal.SIGXFSZ)
#: Between two looks at what has been killed.
_KILL_PAUSE_S = 0.002
_NO_IO = {"rchar": 0, "wchar": 0, "read_bytes": 0, "write_bytes": 0}


class Plain(Task):
    """A plain attempt.

    Args:
        order: See `orders.compose`.
        record: See `Task`. It may be called from another thread while outputs are published.
        orphans: The processes of the attempt whose parent is the runner now, by the attempt's mark.
    """

    def __init__(
        self, order: Record, record: Callable[[Record], None], orphans: Callable[[int], list[int]]
    ) -> None:
        super().__init__(folder_of(order), order, record)
        self.mark: int = order["mark"]  # type: ignore[assignment]
        self.turn = 0  #: number of the timer that is to look at it next
        self._orphans = orphans
        self._program = ""
        self._cpu_s = 0.0
        self._max_rss = 0
        self._blocks = (0, 0)
        self._io = dict(_NO_IO)
        self._kill_until = 0.0
        self._undead: list[int] = []

    def prepare_start(self) -> None:
        """Find the program and make the control group.

        Raises:
            StartError: There is no such program.
        """
        if not self.argv:
            raise StartError("", errno.ENOENT, ": the command is empty")
        self._program = self.program()
        if self.group and (why := cgroups.make(self.group)):
            complain(why)
            self.group = ""
        self.started_ms = wall_ms()

    def start(self, nice: int = 0) -> None:
        """Start the program. The caller lets this process bear the attempt's mark, and run on its cores.

        Args:
            nice: Its niceness.

        Raises:
            StartError: With the system's answer.
        """
        streams = (
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, f"{self.folder}/stdout", _APPENDS, 0o644),
            (os.POSIX_SPAWN_OPEN, 2, f"{self.folder}/stderr", _APPENDS, 0o644),
        )
        self.began = time.monotonic()
        try:
            os.chdir(self.work)
            self.pid = os.posix_spawn(
                self._program,
                self.argv,
                self.env,
                file_actions=streams,
                setsid=True,
                setsigmask=(),
                setsigdef=_DEFAULTS,
            )
        except OSError as error:
            raise StartError(self.argv[0], error.errno or errno.EIO, f" ({self._program})") from None
        except ValueError:  # a zero byte in the command or the environment
            raise StartError(self.argv[0], errno.EINVAL, f" ({self._program})") from None
        if self.group:
            cgroups.join(self.group, self.pid)  # fails for one that has ended already
        self._settle(nice)
        self._supervision = Supervision(self)

    def _settle(self, nice: int) -> None:
        """Let no program of the task raise the mark again, nor be before the service."""
        try:
            if hasattr(resource, "prlimit"):
                resource.prlimit(self.pid, resource.RLIMIT_RTTIME, (self.mark, self.mark))
        except (OSError, ValueError):
            pass  # it has ended already; or a lower limit is set, and then only the control group tells
        try:
            os.setpriority(os.PRIO_PROCESS, self.pid, nice)
            fd = os.open(f"/proc/{self.pid}/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(fd, _OOM_SCORE)
            finally:
                os.close(fd)
        except OSError:
            pass  # it has ended already; or this is not Linux

    def discard_group(self) -> None:
        """Remove the control group of a program that did not start."""
        if self.group:
            cgroups.remove(self.group)

    def count(self, io: dict[str, int], used: resource.struct_rusage) -> None:
        """Count what a process of it has used that was reaped, with all that this one had reaped."""
        self._cpu_s += used.ru_utime + used.ru_stime
        self._max_rss = max(self._max_rss, used.ru_maxrss)
        self._blocks = self._blocks[0] + used.ru_inblock, self._blocks[1] + used.ru_oublock
        for key in self._io:
            self._io[key] += io[key]

    def reap(self) -> bool:
        """Whether its process has ended, and all that it left. The runner reaps."""
        return self.status is not None and not self._orphans(self.mark)

    def left(self) -> list[int]:
        """The processes that its own one has left."""
        return kin.descendants(self._orphans(self.mark))

    def resident_bytes(self, limit: int) -> int:
        """The memory that it uses, with all that stems from it."""
        own = [self.pid] if self.status is None else []
        return kin.resident_bytes(kin.descendants(own + self._orphans(self.mark)), limit)

    def look(self) -> float | None:
        """Go on with it. Returns after how many seconds to look again; None: nothing of it lives, or what is left does not die."""
        if not self._kill_until:
            pause = self._supervision.look()
            if pause is not None:
                return pause
            if not sys.platform.startswith("linux"):
                kin.signal_group(self.pid, signal.SIGKILL)
            self._kill_until = time.monotonic() + kin.KILL_LIMIT_S
        if self._is_gone():
            return None
        left = self.left()
        if time.monotonic() > self._kill_until:
            self._undead = left
            return None
        if self.group:
            cgroups.kill(self.group)
        for pid in left:
            try:  # noqa: SIM105 - see kin
                os.kill(pid, signal.SIGKILL)
            except OSError:
                pass
        return _KILL_PAUSE_S

    def _is_gone(self) -> bool:
        """Whether nothing of it lives. Its control group goes with it."""
        if self._orphans(self.mark):
            return False
        if not self.group:
            return True
        try:
            os.rmdir(self.group)  # the kernel refuses while a process lives in it
        except FileNotFoundError:
            pass
        except OSError:
            return cgroups.remove(self.group)
        return True

    @property
    def publishes(self) -> bool:
        """Whether `end` moves files."""
        return bool(self.order["outputs"]) and not self.status and not self._supervision.reason

    def end(self) -> Record:
        """How it ended; its outputs are in place when this returns."""
        code, reason, message = self.judged(self._supervision.reason, self._supervision.message)
        used = usage_of(
            self,
            round(self._cpu_s * 1000),
            self._max_rss,
            self._blocks,
            kin.io_since(_NO_IO, self._io),
        )
        return ended(self, code, reason, message, self._undead, used)
