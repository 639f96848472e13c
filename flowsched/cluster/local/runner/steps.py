"""The steps of a container task: run one after the other by the attempt's runner, each in the paths of the container.

The standard streams of a step go to the attempt's own `stdout` and `stderr`, where people look, and also to the files
that the step names. The attempt empties such a file when its first step opens it, since an earlier attempt may have written
there; later steps add to it. The program may write it itself: Cromwell's script tees its output into the very file that is
asked of us, which truncates it and leaves both to write the same bytes.
"""

from __future__ import annotations

import errno
import os
import select
import stat
import time

from . import kin
from .bounds import STREAMS
from .finishing import Inode, inode_of
from .namespace import Mount, enter
from .outputs import Refused
from .places import Places
from .records import Record, fullness, is_full, now_ms
from .safe_paths import Opened, Unsafe, open_file, parent
from .task import RELEASED, StartError, Task, add_line, complain, open_log, release_grace_s, supervise, wait

TAIL_BYTES = 10 << 10
_BLOCK = 1 << 16
#: Bytes before our place in a file that show whether it has been written anew.
_KNOWN = 4 << 10


class Appended:
    """A file that is added to while its program may write it too.

    Bytes that the program has written already at our place are not written again: then both have the same stream. If it
    has written something else, ours comes after it. If it has emptied the file, we begin anew with it.

    Args:
        path: Of this machine.
        fresh: Empty it: it is the first time that this attempt opens it.
    """

    def __init__(self, path: str, *, fresh: bool) -> None:
        self.path = path
        self.at = 0
        self._last = b""  #: the bytes before our place, as we know them
        self._fd, self._end = (open_stream(path, os.O_RDWR | os.O_CREAT | more) for more in (0, os.O_APPEND))
        if not os.path.sameopenfile(self._fd, self._end):
            raise OSError(errno.EAGAIN, f"{path} was replaced while it was opened")
        if fresh and stat.S_ISREG(os.fstat(self._fd).st_mode):
            os.ftruncate(self._fd, 0)
        self._settle(os.fstat(self._fd).st_size)

    @property
    def inode(self) -> Inode:
        """Which file it is."""
        status = os.fstat(self._fd)
        return status.st_dev, status.st_ino

    def write(self, block: bytes) -> None:
        """Add bytes."""
        if self._emptied():
            self.at = 0
        self._write(block)
        self._settle(self.at)

    def _settle(self, at: int) -> None:
        """Remember our place, and what lies before it."""
        self.at = at
        start = max(0, at - _KNOWN)
        self._last = os.pread(self._fd, at - start, start)

    def _emptied(self) -> bool:
        """Whether the program has truncated the file since: it is shorter, or has other bytes before our place.

        Its size alone does not tell: the program may have written as much again before we look.
        """
        size = os.fstat(self._fd).st_size
        return size < self.at or os.pread(self._fd, len(self._last), self.at - len(self._last)) != self._last

    def _write(self, block: bytes) -> None:
        there = os.pread(self._fd, len(block), self.at)
        if block.startswith(there):
            while block:
                written = os.pwrite(self._fd, block, self.at)
                self.at, block = self.at + written, block[written:]
            return
        while block:
            block = block[os.write(self._end, block) :]
        self.at = os.fstat(self._fd).st_size

    def close(self) -> None:
        """Let go of it."""
        os.close(self._fd)
        os.close(self._end)


def open_stream(path: str, flags: int) -> int:
    """Open a file of this machine that a step names for a stream, over no link: its links have been followed. Raises OSError."""
    if path in STREAMS:
        return os.open(path, flags | os.O_CLOEXEC)
    flags |= os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    try:
        with parent(path) as at:
            return os.open(os.path.basename(path), flags, 0o644, dir_fd=at)
    except Unsafe as error:
        raise OSError(errno.ELOOP, str(error)) from None


class Pump:
    """One standard stream of a step: from its pipe to the attempt's log and to its file."""

    def __init__(self, folder: str, stream: str, file: Appended) -> None:
        self.reading, self.writing = os.pipe()
        os.set_blocking(self.reading, False)
        self._log = open_log(folder, stream)
        self._file = file
        self._paths = (f"{folder}/{stream}", file.path)
        self.error = ""  #: why not all could be written

    def move(self) -> bool:
        """Pass on what is there; False at the end. Bytes that cannot be written are dropped, so that the step does not hang."""
        try:
            block = os.read(self.reading, _BLOCK)
        except BlockingIOError:
            return True
        if not block:
            return False
        self._write(block)
        return True

    def _write(self, block: bytes) -> None:
        try:
            rest = block
            while rest:
                rest = rest[os.write(self._log, rest) :]
            self._file.write(block)
        except OSError as error:
            full = [fullness(os.path.dirname(path)) for path in self._paths if is_full(error)]
            why = next(filter(None, full), os.strerror(error.errno or errno.EIO))
            self.error = self.error or f"cannot write what the step said: {why}"

    def finish(self, last: str) -> None:
        """Pass on what is left once no writer lives, or what is there should one not die; then add a last line."""
        end = time.monotonic() + 5
        while select.select([self.reading], [], [], 0)[0] and self.move() and time.monotonic() < end:
            pass
        if last:
            self._write(last.encode(errors="replace"))
        os.close(self.reading)
        os.close(self._log)


class Step(Task):
    """One step's process, from the runner's side."""

    def __init__(
        self, task: Task, step: Record, places: Places, mounts: list[Mount], opened: set[Inode]
    ) -> None:
        super().__init__(task.folder, task.order, task.record)
        self.opened = opened  #: files that this attempt has opened for a stream; takes those of this step
        self.argv = [str(word) for word in step["argv"]]  # type: ignore[attr-defined]
        self.step, self.places, self.mounts = step, places, mounts
        workdir = step["workdir"]
        self.cwd = places.canonical(str(workdir)) if workdir is not None else self.work
        self.env = {**task.env, "PWD": self.cwd, **step["env"]}  # type: ignore[dict-item]
        self.pumps: dict[int, Pump] = {}
        self.files: dict[str, Appended] = {}
        self.stdin = -1
        self.unsaid = ""  #: why not all that it said is in its files

    def program(self) -> str:
        """Not looked for here: it may lie at a path that only the step sees."""
        return self.argv[0]

    def open_streams(self) -> None:
        """Open what the step names, before it is forked. Raises StartError."""
        for number, key in ((1, "stdout"), (2, "stderr")):
            if self.step[key] is None:
                continue
            try:
                path = self.places.writable(str(self.step[key]))
                if self.places.is_read_only(
                    str(self.step[key])
                ):  # not so for this process, outside of the namespace
                    raise OSError(errno.EROFS, os.strerror(errno.EROFS))
                if path not in self.files:
                    self.files[path] = Appended(path, fresh=not inode_of(path) & self.opened)
                    self.opened.add(self.files[path].inode)
            except OSError as error:
                raise StartError(
                    str(self.step[key]), error.errno or errno.EIO, f", the file for {key}"
                ) from None
            self.pumps[number] = Pump(self.folder, key, self.files[path])
        if self.step["stdin"] is not None:
            try:
                # A pipe would let the runner wait for a writer, and hear of nothing meanwhile.
                self.stdin = open_stream(self.places.writable(str(self.step["stdin"])), os.O_RDONLY)
                os.set_blocking(self.stdin, True)
            except OSError as error:
                raise StartError(
                    str(self.step["stdin"]), error.errno or errno.EIO, ", the file for stdin"
                ) from None

    def streams(self) -> set[Inode]:
        """Device and inode of its standard output and error: pipes, where a file is named for them."""
        found: set[Inode] = set()
        for number, key in ((1, "stdout"), (2, "stderr")):
            pump = self.pumps.get(number)
            found |= inode_of(f"{self.folder}/{key}" if pump is None else pump.reading)
        return found

    def connect(self) -> None:
        """In the child: the standard streams."""
        super().connect()
        for number, pump in self.pumps.items():
            os.dup2(pump.writing, number)
        if self.stdin >= 0:
            os.dup2(self.stdin, 0)

    def settle(self) -> None:
        """In the child: the container's paths, and the folder to work in."""
        try:
            enter(self.places, self.mounts)
        except OSError as error:
            raise Refused("ContainerPathsRefused", f"cannot make the container's paths: {error}") from None
        kin.die_with_parent()  # a new namespace of users may have made it forgotten
        try:
            os.chdir(self.cwd)
        except OSError as error:
            raise Refused("StartFailed", f"cannot work in {self.cwd}: {error.strerror}") from None

    def execute(self, program: str) -> None:
        """In the child: become the program, looked for as a shell does. Raises OSError."""
        if "/" in program:
            os.execve(program, self.argv, self.env)
        refused = 0
        for folder in self.env.get("PATH", "").split(os.pathsep):
            try:
                os.execve(f"{folder or '.'}/{program}", self.argv, self.env)
            except (FileNotFoundError, NotADirectoryError):
                pass
            except PermissionError:
                refused = errno.EACCES
        raise OSError(refused or errno.ENOENT, program)

    def forked(self) -> None:
        """In the runner: the child has its ends of the pipes now."""
        for pump in self.pumps.values():
            os.close(pump.writing)
        if self.stdin >= 0:
            os.close(self.stdin)

    def rest(self, wake: int, seconds: float) -> None:
        """Pass on what it writes until a signal came or the time is over."""
        end = time.monotonic() + seconds
        pumps = {pump.reading: pump for pump in self.pumps.values()}
        while True:
            ready = select.select([wake, *pumps], [], [], max(0.0, end - time.monotonic()))[0]
            for fd in ready:
                if fd != wake and not pumps[fd].move():
                    del pumps[fd]
            if wake in ready or not ready:
                wait(wake, 0)
                return

    def finish(self, last: str) -> None:
        """Pass on the rest, and add a last line to its standard error."""
        for number, pump in self.pumps.items():
            pump.finish(last if number == 2 else "")
            self.unsaid = self.unsaid or pump.error
        if last and 2 not in self.pumps:
            try:
                add_line(self.folder, last)
            except (OSError, Refused) as unsaid:
                complain(f"{self.name}: no last line: {unsaid}")
        for file in self.files.values():
            file.close()
        self.pumps, self.files = {}, {}


def line_of(reason: str, message: str) -> str:
    """A line about an end, for the reader of a standard error."""
    return f"flowsched: {reason}: {message}\n"


class Ending:
    """How the steps of an attempt went."""

    def __init__(self) -> None:
        self.code = 0
        self.reason = self.message = ""
        self.steps: list[Record] = []
        self.undead: list[int] = []

    @property
    def well(self) -> bool:
        """Whether the last step ended well."""
        return self.code == 0 and not self.reason

    def line(self) -> str:
        """The line for the standard error of a step that flowsched has ended, or could not start; "" of any other step."""
        return "" if self.reason in ("", RELEASED) else line_of(self.reason, self.message)


def run_steps(task: Task, wake: int, make: object) -> Ending:
    """Run the steps in order, until one fails that may not.

    Args:
        task: The attempt; takes what is measured of its steps.
        wake: See `attempt.listen`.
        make: Called with a step's order, its number and the files that are open for streams: makes its `Step`.
    """
    ending = Ending()
    opened: set[Inode] = set()
    steps: list[Record] = task.order["container"]["steps"]  # type: ignore[index]
    for number, order in enumerate(steps):
        if release_grace_s(task.folder) is not None:
            ending.code, ending.reason = 143, "Released"
            break
        step = make(order, number, opened)  # type: ignore[operator]
        run_step(step, task, wake, ending)
        if ending.reason and not (ending.reason == "StartFailed" and order["ignore_error"]):
            break
        if ending.code and not order["ignore_error"]:
            if len(steps) > 1:
                ending.message = f"step {number + 1} of {len(steps)} ended with exit code {ending.code}"
            break
        ending.code, ending.reason, ending.message = 0, "", ""
    return ending


def run_step(step: Step, task: Task, wake: int, ending: Ending) -> None:
    """Run one step, and note how it went."""
    before = {key: size_of(f"{task.folder}/{key}") for key in ("stdout", "stderr")}
    started_ms = now_ms(task.order)
    ended = False
    try:
        step.began = task.began
        step.started_ms = task.started_ms
        step.open_streams()
        step.start()
        task.began, task.started_ms, task.pid = step.began, step.started_ms, step.pid
        ending.reason, ending.message = supervise(step, wake)
        ended = True
    except StartError as error:
        ending.code, ending.reason, ending.message = error.exit_code, "StartFailed", str(error)
    except Refused as refusal:
        ending.code = 126
        ending.reason, ending.message = refusal.args
    finally:
        if step.pid:
            ending.undead = step.kill_everything()
            if ended:
                ending.code, ending.reason, ending.message = step.judged(ending.reason, ending.message)
        step.finish(ending.line())
    task.peak_bytes = max(task.peak_bytes, step.peak_bytes)
    task.outside_cpu_ms += step.outside_cpu_ms
    if step.unsaid and not ending.code and not ending.reason:
        ending.reason, ending.message = "OutputFailed", step.unsaid
    if ending.reason != "ContainerPathsRefused":
        ending.steps.append(
            {
                "exit_code": ending.code,
                "started_ms": started_ms,
                "ended_ms": now_ms(task.order),
                "stdout": tail(f"{task.folder}/stdout", before["stdout"]),
                "stderr": tail(f"{task.folder}/stderr", before["stderr"]),
            }
        )


def size_of(path: str) -> int:
    """Bytes of a file, 0 if there is none."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def tail(path: str, start: int) -> str:
    """The end of what a file has from a place on, at most `TAIL_BYTES`."""
    try:
        with Opened(open_file(None, path)) as fd:
            at = max(start, os.fstat(fd).st_size - TAIL_BYTES)
            return os.pread(fd, TAIL_BYTES, at).decode(errors="replace")
    except (OSError, Unsafe):
        return ""
