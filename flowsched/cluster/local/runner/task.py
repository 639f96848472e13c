"""The task's process: from its order to the program, and to its end."""

from __future__ import annotations

import errno
import os
import resource
import select
import signal
import stat
import time
from collections.abc import Callable
from contextlib import suppress

from . import kin
from .finishing import Finishing, Inode, inode_of, must_wait
from .outputs import Refused
from .records import Record, now_ms
from .safe_paths import Opened, Unsafe, kind_of, open_file, open_folder, write_all

TIMEOUT_GRACE_S = 5.0
#: Exit codes from 129 to here name the signal that killed a program: Linux has 64 signals. 255 is what `exit -1` gives.
LAST_SIGNAL_CODE = 128 + 64
FOREVER = float("inf")
#: The reason of an attempt that the service asked to leave, unless it has ended well within its grace.
RELEASED = "Released"
OUT_OF_MEMORY = "OOMKilled"


def link_inputs(work: str, inputs: list[Record]) -> list[str]:
    """Make the inputs visible in the working folder; returns the datasets that are not on this node."""
    lost: list[str] = []
    for record in inputs:
        files: list[tuple[str, str]] = record["files"]  # type: ignore[assignment]
        lost.extend(uri for uri, path in files if not os.path.lexists(path))
        if lost:
            continue
        target = f"{work}/{record['link']}"
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if record["manifest"]:
            with open(target, "w") as file:
                file.writelines(f"{path}\n" for _, path in files)
        else:
            os.symlink(files[0][1], target)
    return lost


#: A folder with more entries is not compared: the runner has other tasks to see to.
_MOST_ENTRIES = 1_000


def states_of(inputs: list[Record]) -> dict[str, object]:
    """The states of inputs, by dataset: of each file its inode, size and time of change. They differ after a write."""
    return {uri: _state(path) for record in inputs for uri, path in record["files"]}  # type: ignore[attr-defined]


def _state(path: str) -> object:
    try:
        status = os.stat(path)
        if not stat.S_ISDIR(status.st_mode):
            return status.st_ino, status.st_size, status.st_mtime_ns
        found = []
        for folder, _, names in os.walk(path):
            for name in names:
                status = os.lstat(f"{folder}/{name}")
                found.append((folder, name, status.st_ino, status.st_size, status.st_mtime_ns))
                if len(found) > _MOST_ENTRIES:
                    return None
        return sorted(found)
    except OSError:
        return "gone"


#: An error repeats a PATH of at most so many characters; a part of it would say nothing.
_PATH_SHOWN = 100


class StartError(Exception):
    """The program cannot be started; `exit_code` as in a shell: 127 not found, 126 not allowed."""

    def __init__(self, program: str, number: int, where: str) -> None:
        super().__init__(f"cannot start {program!r}: {os.strerror(number)}{where}")
        self.exit_code = 127 if number in (errno.ENOENT, errno.ENOTDIR) else 126


def program_path(name: str, path: str, work: str) -> str:
    """Where execvp would find a program."""
    if "/" in name:
        return os.path.join(work, name)
    for folder in path.split(os.pathsep):
        candidate = f"{folder}/{name}" if folder.startswith("/") else os.path.join(work, folder, name)
        if os.access(candidate, os.X_OK) and os.path.isfile(candidate):
            return candidate
    where = (
        f"PATH ({path})" if len(path) <= _PATH_SHOWN else f"the {path.count(os.pathsep) + 1} folders of PATH"
    )
    raise StartError(name, errno.ENOENT, f" in {where}")


class Task:
    """The task's process, from the side of the process that sees it through.

    Args:
        folder: Of the attempt.
        order: See `orders.compose`.
        record: Puts a record into the runner's journal; what `started` says is durable when it returns.
    """

    def __init__(self, folder: str, order: Record, record: Callable[[Record], None]) -> None:
        self.folder = folder
        self.order = order
        self.name = str(order["name"])
        self.record = record
        self.env: dict[str, str] = order["env"]  # type: ignore[assignment]
        self.argv: list[str] = order["argv"]  # type: ignore[assignment]
        self.work = f"{folder}/work"
        self.work_inode: set[Inode] = (
            set()
        )  #: of the working folder, before the task had it; empty if it has no outputs
        self.home_inode: set[Inode] = (
            set()
        )  #: of the folder of the node's attempts, as it was before the start
        self.pid = 0
        self.started_ms = 0
        self.status: int | None = None
        self.peak_bytes = 0
        self.outside_cpu_ms = 0  #: CPU time of processes that do not stem from the runner, as last measured
        self.began = 0.0  #: monotonic; a timeout counts from here
        self.timeout_s: float = order["timeout_ms"] / 1000 or FOREVER  # type: ignore[operator]
        self.finishing: Finishing | None = None  #: of what the process has left, once it has ended

    def remember_work(self) -> None:
        """Remember which folder the task is given: a runner has too many tasks to keep a descriptor of each one's open."""
        self.work_inode = inode_of(self.work)

    def open_work(self) -> Opened:
        """The working folder, if it still is the folder that the task was given. Raises Refused."""
        try:
            fd = open_folder(None, self.work)
        except (Unsafe, OSError):
            found = kind_of(None, self.work)
        else:
            if inode_of(fd) == self.work_inode:
                return Opened(fd)
            os.close(fd)
            found = "another folder"
        message = f"the task has replaced its working folder: {self.work} is {found} now, and no output is taken from there"
        raise Refused("OutputRefused", message)

    def program(self) -> str:
        """Where the program lies. Raises StartError."""
        return program_path(self.argv[0], self.env.get("PATH", ""), self.work)

    def start(self) -> None:
        """Fork, make `started` durable, let the child become the task.

        Raises:
            StartError: With exec's answer.
            Refused: The child refused to go on.
        """
        if not self.argv:
            raise StartError("", errno.ENOENT, ": the command is empty")
        program = self.program()
        go_read, go_write = os.pipe()
        failed_read, failed_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(go_write)
            self._become(program, go_read, failed_write)
        os.close(go_read)
        os.close(failed_write)
        self.forked()
        self.started_ms = self.started_ms or now_ms(self.order)
        self.began = self.began or time.monotonic()
        self.record({**started(self), "pid": self.pid, "runner": os.getpid(), **self.begun()})
        with suppress(BrokenPipeError):  # it could not go on, and has said why
            os.write(go_write, b"!")
        os.close(go_write)
        answer = os.read(failed_read, 4096)
        os.close(failed_read)
        if b"\n" in answer:
            reason, _, message = os.fsdecode(answer).partition("\n")
            raise Refused(reason, message)
        if answer:
            raise StartError(self.argv[0], int(answer), f" ({program})")

    def _become(self, program: str, go: int, failed: int) -> None:
        """In the child: its own session, the task's streams, limits and folder; then exec. Never returns."""
        try:
            os.setsid()
            kin.die_with_parent()
            self.connect()
            for number in (signal.SIGPIPE, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.nice(5)
            with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
                file.write("500")  # rather a task than the service
            self.settle()
            if os.read(go, 1):  # empty: the runner died before `started` was written
                self.execute(program)
        except Refused as refusal:
            os.write(failed, os.fsencode("\n".join(refusal.args))[:4096])
        except OSError as error:
            os.write(failed, b"%d" % (error.errno or errno.EIO))
        except ValueError:  # a zero byte in the command or the environment
            os.write(failed, b"%d" % errno.EINVAL)
        finally:
            os._exit(127)

    def connect(self) -> None:
        """In the child: the standard streams."""
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for number, stream in enumerate(("stdout", "stderr"), 1):
            log = open_log(self.folder, stream)
            os.set_blocking(log, True)
            os.dup2(log, number)

    def settle(self) -> None:
        """In the child: where it works."""
        os.chdir(self.work)

    def execute(self, program: str) -> None:
        """In the child: become the program. Raises OSError."""
        os.execve(program, self.argv, self.env)

    @property
    def lineage(self) -> str:
        """The process that all its processes stem from: this one."""
        return kin.identity(os.getpid())

    def begun(self) -> Record:
        """The fields of `started` beside its process."""
        return {}

    def forked(self) -> None:
        """In the runner: descriptors that only the child needs may be closed."""

    def resident_bytes(self, limit: int) -> int:
        """The memory that it uses, with all that stems from it."""
        return kin.resident_bytes(kin.descendants(), limit)

    def most_bytes(self, reaped: int) -> int:
        """The most memory that it has used; `reaped`: the most that one of its processes had, as the kernel counts."""
        return max(reaped, self.peak_bytes)

    def is_beyond(self, used: int, limit: int) -> bool:
        """Whether it is to be ended for the memory it uses; a limit of 0 is none."""
        return 0 < limit < used

    def judged(self, reason: str, message: str) -> tuple[int, str, str]:
        """(exit code, reason, message) of its end; the last two as `supervise` found them."""
        return 137 if reason == OUT_OF_MEMORY else self.exit_code, reason, message

    def rest(self, wake: int, seconds: float) -> None:
        """Sleep until a signal came or the time is over."""
        wait(wake, seconds)

    def kill_everything(self) -> list[int]:
        """Kill what is left of it; returns what would not die."""
        return kin.kill_everything(self.pid)

    def streams(self) -> set[tuple[int, int]]:
        """Device and inode of its standard output and error."""
        return inode_of(f"{self.folder}/stdout") | inode_of(f"{self.folder}/stderr")

    def reap(self) -> bool:
        """Collect what has ended; True when the task itself has, and all that it left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return False
                if pid == self.pid:
                    self.status = status
        except ChildProcessError:
            if self.status is None:
                self.status = 255 << 8  # another process reaped it, which should never happen
        return True

    def has_finished(self) -> bool:
        """Whether the task has ended, and nothing that it left may go on (see `finishing`)."""
        if self.reap():
            return True
        if self.status is None:
            return False
        if self.finishing is None:
            self.finishing = Finishing(self.streams())
        return not must_wait(self.finishing, self.left())

    def left(self) -> list[int]:
        """The processes that its own one has left."""
        return kin.descendants()

    def waits(self, why: str, reason: str = "OutputNoRoom") -> None:
        """Report what its results wait for; "" = for nothing any more. `reason`: as in `PodHeld`."""
        self.record({"kind": "waits", "name": self.name, "why": why, "reason": reason})

    @property
    def exit_code(self) -> int:
        """The exit code, or 128 + the signal that killed it."""
        status = self.status or 0
        return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def release_grace_s(folder: str) -> float | None:
    """The grace the service gives, or None if it has not asked for an end. A task can put anything at the path."""
    try:
        with Opened(open_file(None, f"{folder}/release")) as fd:
            return int(os.read(fd, 32) or 0) / 1000
    except (OSError, ValueError, Unsafe):
        return None


def open_log(folder: str, stream: str) -> int:
    """A descriptor that adds to a log of an attempt.

    Raises:
        Refused: The task has put something else there.
    """
    try:
        return open_file(None, f"{folder}/{stream}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    except Unsafe as error:
        raise Refused("StartFailed", f"the task has replaced its {stream}: {error}") from None


def amount(number: int) -> str:
    """An amount of memory for people: whole MiB, of few MiB with two places, or bytes where there are fewer."""
    if number >= 10 << 20:
        return f"{number >> 20} MiB"
    return f"{number / (1 << 20):.4g} MiB" if number >= 1 << 20 else f"{number} bytes"


def started(task: Task) -> Record:
    """The record that is durable before the task's first instruction."""
    return {
        "kind": "started",
        "name": task.name,
        "at_ms": task.started_ms,
        "shim": task.lineage,
    }


class Supervision:
    """Ends a task before it ends by itself. Time is monotonic and counted here, so a timeout and a release hold while the
    service is down.

    Args:
        task: It has begun.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._timeout_s = task.timeout_s
        self._memory: int = task.order["memory_bytes"]  # type: ignore[assignment]
        self._released = self._kill_at = FOREVER
        self._pause_left = 0.002
        self.reason = self.message = ""  #: both empty for an end of its own

    def check(self) -> float | None:
        """End what must not go on. Returns after how many seconds to check again, None at the end.

        The end includes what the task has left and what may finish.
        """
        task = self._task
        if task.has_finished():
            if self.reason == RELEASED and not task.exit_code:
                self.reason = ""  # it was asked to leave, and has done its work all the same
            self._over()
            return None
        now = time.monotonic()
        used = task.resident_bytes(self._memory)
        task.peak_bytes = max(task.peak_bytes, used)
        grace = release_grace_s(task.folder)
        if grace is not None:
            if self._released == FOREVER:
                self._released, self.reason = now, self.reason or RELEASED
                kin.signal_group(task.pid, signal.SIGTERM)
            self._kill_at = min(self._kill_at, self._released + grace)
        if not self.reason and now - task.began >= self._timeout_s:
            self.reason = "Timeout"
            self.message = f"it ran longer than its timeout of {self._timeout_s:g} s"
            kin.signal_group(task.pid, signal.SIGTERM)
            self._kill_at = now + TIMEOUT_GRACE_S
        if not self.reason and task.is_beyond(used, self._memory):
            self.reason = OUT_OF_MEMORY
            self.message = f"it used {amount(used)} of memory and may use {amount(self._memory)}"
            self._kill_at = now
        done = (
            self.reason == RELEASED and not task.exit_code and now < self._kill_at
        )  # what it left may finish
        if self.reason and task.status is not None and not done:
            self._over()  # nothing is left but what the caller ends
            return None
        if now >= self._kill_at:
            kin.signal_group(task.pid, signal.SIGKILL)
        pause = 0.2 if now - task.began < 2 else 0.5
        if task.status is not None:
            pause = self._pause_left = min(2 * self._pause_left, 0.1)
        due = self._kill_at if self.reason else task.began + self._timeout_s
        return min(pause, max(0.01, due - now))

    def _over(self) -> None:
        finishing = self._task.finishing
        if finishing is None or not finishing.cut_short:
            return
        try:
            add_line(
                self._task.folder,
                f"flowsched: ended the processes {finishing.cut_short}, which still read what the task had written: a task "
                "that needs them longer has to wait for them\n",
            )
        except (OSError, Refused) as error:
            complain(f"{self._task.name}: no room for a line about {finishing.cut_short}: {error}")


def supervise(task: Task, wake: int) -> tuple[str, str]:
    """Wait for the task's end, or bring it about: (reason, message), both empty for an end of its own."""
    supervision = Supervision(task)
    while (pause := supervision.check()) is not None:
        task.rest(wake, pause)
    return supervision.reason, supervision.message


def complain(text: str) -> None:
    """Write to the runner's log: the attempt goes on without what it is about."""
    os.write(2, f"flowsched: {text}\n".encode())


def add_line(folder: str, text: str) -> None:
    """Add a line to the standard error of an attempt. Raises OSError, Refused."""
    with Opened(open_log(folder, "stderr")) as fd:
        write_all(fd, text.encode(errors="replace"))


def wait(wake: int, seconds: float) -> None:
    """Sleep until a signal came or the time is over."""
    if select.select([wake], [], [], seconds)[0]:
        with suppress(BlockingIOError):
            os.read(wake, 512)
