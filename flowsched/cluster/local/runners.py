"""The runners of a root: the one that this service gives its orders to, and those that earlier services have left.

Everything here blocks. Only a living runner decides about its attempts. Its journal says what it has done; a free lock says that it
is dead. From both follows what became of an attempt, the same after each restart, without a file of the service's own:

    an end in a journal                                       that end
    begun, and its runner (or its own process) lives          it runs
    begun, and that is dead                                   once its last process is gone: RunnerLost
    not begun, and a living runner may have its order         to be waited for
    not begun, and none has                                   NotStarted

A runner of an earlier service may have an order until it has written `closed`, which it does as soon as that service is dead.
"""

from __future__ import annotations

import contextlib
import fcntl
import marshal
import os
import re
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from flowsched.cluster.local.journals import JournalReader, Life
from flowsched.cluster.local.runner.journal import DONE, SEGMENT_BYTES
from flowsched.cluster.local.runner.kin import KILL_LIMIT_S, SHIM, descendants, is_running, living, start_time
from flowsched.cluster.local.runner.records import wall_ms
from flowsched.cluster.node.strangers import leave_alone
from flowsched.errors import ConfigurationError

COMMAND: Final = (sys.executable, "-I", "-S", "-X", "utf8", str(Path(__file__).with_name("run_attempt.py")))
#: A runner that takes no orders for so long gets no more; the next ones go to another.
_WRITE_S: Final = 10.0
#: One that has nothing to do is waited for at the end of the service.
_ENDS_S: Final = 1.0
_LENGTH_BYTES: Final = 4
#: Bytes of a journal that are read at once: at first, since there is room behind the last line; and while there is more.
_BLOCK: Final = 8 << 10
_LARGEST_BLOCK: Final = 1 << 20
#: Names of runners' folders: the moment, and the process of the service.
_RUNNER: Final = re.compile(r"\d+-[a-z0-9-]+\Z")
_SEGMENT: Final = re.compile(r"(\d{6,})(\.done)?\Z")
_NAME: Final = re.compile(rb'"kind": "(?:started|ended|void)", "name": "([^"]+)"')


class Runner:
    """One runner, dead or alive.

    Args:
        folder: Its own, in `runners` of the root.
        is_ours: This service gives it orders.
        check: Raises OSError while folders of the root are away: then a missing file says nothing.
    """

    def __init__(
        self, folder: Path, *, is_ours: bool = False, check: Callable[[], object] = lambda: None
    ) -> None:
        self.folder = folder
        self.name = folder.name
        self.is_ours = is_ours
        self._check = check
        self._locked = -1  #: its lock file, open while it lives: the path may lead nowhere for a while
        self.is_dead = False
        self.died_ms = 0
        self.ordered: set[str] = set()  #: of ours: the attempts that it has no record of yet
        self.reader = JournalReader()
        self.open: dict[int, set[str]] = {}  #: by segment: attempts whose end the service has not stored
        self.segment = 0  #: that is read now
        self._at = 0

    def read(self) -> list[str]:
        """Read on. Returns whom it was about."""
        names: list[str] = []
        while True:
            found = self._read_on() if self.segment else []
            names += found
            if found and self._at <= SEGMENT_BYTES:
                return names  # only a long segment is followed by another: this spares a look for one
            following = next((n for n in self._segments() if n > self.segment), 0) if self._may_follow else 0
            if not following:
                return names
            if self.segment:  # what was written meanwhile
                names += self._read_on()
            self.segment, self._at = following, 0
            self.open.setdefault(following, set())

    @property
    def _may_follow(self) -> bool:
        """Whether there may be a next segment: this spares a listing."""
        path = f"{self.folder}/{self.segment + 1:06d}"
        return not self.segment or os.path.exists(path) or os.path.exists(path + DONE)

    def _read_on(self) -> list[str]:
        found: list[str] = []
        try:
            fd = os.open(f"{self.folder}/{self.segment:06d}", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # the file was removed: the records that were read stay known
            self._check()
            return found
        size = _BLOCK
        try:
            while True:
                data = os.pread(fd, size, self._at)
                end, names = self.reader.read(data)
                self._at += end
                found += names
                if len(data) < size or data.endswith(b"\0"):
                    break
                size = min(4 * size, _LARGEST_BLOCK) if end else 2 * size  # a line may be longer than a block
        finally:
            os.close(fd)
        self.open[self.segment].update(found)
        self.ordered.difference_update(found)
        return found

    def _segments(self) -> list[int]:
        """The numbers of the segments that are to be read at a start."""
        try:
            names = self.segments()
        except FileNotFoundError:  # the folder was removed
            self._check()
            return []
        return [int(name) for name in names if not name.endswith(DONE)]

    def segments(self) -> list[str]:
        """The names of the files of its journal, in order; other files of its folder are not its own."""
        with os.scandir(self.folder) as items:
            found = [
                item.name
                for item in items
                if item.is_file(follow_symlinks=False) and _SEGMENT.match(item.name)
            ]
        return sorted(found, key=lambda name: int(name.removesuffix(DONE)))

    def may_start(self, name: str) -> bool:
        """Whether it may have an order of which its journal says nothing yet."""
        if self.is_dead or (self.is_ours and name not in self.ordered):
            return False
        return not self.reader.is_closed or name in self.reader.pending

    def settle(self, names: Iterable[str]) -> None:
        """Forget attempts whose ends the service has stored; segments of only such attempts are put away."""
        for name in names:
            self.reader.lives.pop(name, None)
            for left in self.open.values():
                left.discard(name)
        for number, left in list(self.open.items()):
            if not left and (number < self.segment or self.is_dead):
                path = self.folder / f"{number:06d}"
                path.rename(path.with_suffix(DONE))
                del self.open[number]

    def pid(self) -> int | None:
        """Its process, if it lives."""
        try:
            return living((self.folder / "lock").read_text()) or None
        except OSError:
            return None

    def signal(self, number: signal.Signals) -> None:
        """SIGTERM lets it look for releases, SIGKILL ends it."""
        pid = self.pid()
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def find_dead(self) -> bool:
        """Whether it has died. Its last records are read next.

        Raises:
            OSError: That cannot be told now.
        """
        if self._locked < 0:
            try:
                self._locked = os.open(self.folder / "lock", os.O_RDWR | os.O_CLOEXEC)
            # Another program has removed it, or put another thing there.
            except (FileNotFoundError, IsADirectoryError):
                self._check()
                return True
        try:
            fcntl.flock(self._locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        self.close()
        return True

    def close(self) -> None:
        """Let go of the lock file."""
        if self._locked >= 0:
            os.close(self._locked)
        self._locked = -1

    def bury(self, now_ms: int) -> None:
        """Note that it is dead, and when that was found: its attempts have ended then, also for the next service."""
        self.is_dead = True
        with contextlib.suppress(OSError):  # give back the room that it had taken for ends
            if self.segment:
                os.truncate(self.folder / f"{self.segment:06d}", self._at)
        with contextlib.suppress(OSError):  # no room: the next service notes it
            fd = os.open(self.folder / "died", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(fd, "w") as file:
                file.write(str(now_ms))
        try:
            self.died_ms = int((self.folder / "died").read_text())
        except (OSError, ValueError):
            self.died_ms = now_ms


class Runners:
    """The runners of a root. May be called from several threads.

    Args:
        root: Of the cluster.
        command: The command of one, see `run_attempt.py`.
        check: See `Runner`.
        clock: Ms since the epoch, by the service's clock.
    """

    def __init__(
        self,
        root: Path,
        command: Sequence[str] = COMMAND,
        check: Callable[[], object] = lambda: None,
        clock: Callable[[], int] = wall_ms,
    ) -> None:
        self._root = root
        self._check = check
        self._clock = clock
        self._folder = root / "runners"
        self._command = tuple(command)
        self._lock = threading.Lock()  #: of what is read
        self._giving = threading.Lock()  #: of what is ordered
        self._all: tuple[Runner, ...] = ()  #: replaced, never changed: it is read without the lock
        self._expected: set[str] = set()
        self._ours: Runner | None = None
        self._orders = -1
        self._children: list[int] = []

    def open(self, *, is_new: bool = False) -> int:
        """Read what earlier runners have written. Returns how many runners of a folder that was here before it has ended.

        Args:
            is_new: No service has used this folder: it may have the place of a root whose disk is not mounted.

        Raises:
            ConfigurationError: It is new, and runners of a root of this path live.
        """
        self._folder.mkdir(mode=0o700, exist_ok=True)
        with self._lock:
            found = []
            for item in sorted(os.scandir(self._folder), key=lambda item: item.name):
                if _RUNNER.match(item.name) and item.is_dir(follow_symlinks=False):
                    found.append(Runner(Path(item.path), check=self._check))
                else:
                    leave_alone(item.path)
            self._all = tuple(found)
        ended = self._end_strangers(is_new)
        self.refresh()
        return ended

    def _end_strangers(self, is_new: bool) -> int:
        """End the runners that a service started for this path and whose lock is not in this folder, with all that they run.

        An operator has moved their folder away and put a backup in its place: no journal here says what they do.
        """
        here = {runner.name for runner in self._all if not runner.find_dead()}
        known = {
            runner.name for runner in self._all
        }  # a shim whose runner has died may be leaving the end of its attempt
        found = _runners_of(self._root)
        strangers = [pid for pid, name, is_shim in found if name not in (known if is_shim else here)]
        if strangers and is_new:
            raise ConfigurationError(
                f"{self._root} is empty, and tasks of another folder at that path run (runners {strangers}): is its disk mounted? "
                "Put the folder back, and the service takes the tasks up; or kill the runners, and it begins anew"
            )
        for pid in strangers:
            _end_tree(pid)
        return len(strangers)

    def end_those_of(self, former: Path) -> int:
        """End the runners of a root whose place this one takes. They know its path alone: none of their results would come here."""
        found = [pid for pid, *_ in _runners_of(former)]
        for pid in found:
            _end_tree(pid)
        return len(found)

    def close(self) -> None:
        """Give no more orders. The runners go on with what they have."""
        with self._giving:
            self._let_go()
        for runner in self._all:
            runner.close()
        end = time.monotonic() + _ENDS_S
        while self._reap() and not self.unended() and time.monotonic() < end:
            time.sleep(0.002)

    # ---- what is known ----

    def read(self) -> list[str]:
        """Read what living runners have written since. Returns whom it was about."""
        with self._lock:
            return [name for runner in self._all if not runner.is_dead for name in runner.read()]

    def refresh(self) -> list[str]:
        """The same, and find out which runners have died."""
        self._reap()
        found: list[str] = []
        with self._lock:
            for runner in self._all:
                if runner.is_dead:
                    continue
                dead = runner.find_dead()  # first: then nothing is written after the read
                found += runner.read()
                if dead:
                    self._check()  # all of it was there to be read
                    found += runner.reader.lives
                    runner.bury(self._clock())
        return found

    def find(self, name: str) -> tuple[Life, Runner] | None:
        """The known state of an attempt, and its runner."""
        for runner in self._all:
            life = runner.reader.lives.get(name)
            if life is not None:
                return life, runner
        return None

    def may_start(self, name: str) -> bool:
        """Whether a living runner may have its order and has not written of it, or will be given it."""
        return name in self._expected or any(runner.may_start(name) for runner in self._all)

    def those_with(self, name: str) -> list[Runner]:
        """The living runners that run it, or may start it."""
        found = self.find(name)
        if found is not None:
            return [] if found[1].is_dead else [found[1]]
        return [runner for runner in self._all if runner.may_start(name)]

    def unended(self) -> list[tuple[Life, Runner]]:
        """The attempts without an end."""
        with self._lock:
            return [
                (life, runner)
                for runner in self._all
                for life in runner.reader.lives.values()
                if life.end is None
            ]

    def recall(self, name: str) -> tuple[Life, Runner] | None:
        """Look for an attempt in all segments, also those that were put away."""
        quoted = b'"%b"' % name.encode()
        for runner in self._all:
            reader = JournalReader()
            for segment in runner.segments():
                if quoted in (data := (runner.folder / segment).read_bytes()):
                    reader.read(data)
            if name in reader.lives:
                return reader.lives[name], runner
        return None

    # ---- what is no longer needed ----

    def settle(self, names: Collection[str]) -> None:
        """The ends of these attempts are stored."""
        by_runner: dict[Runner, list[str]] = {}
        with self._lock:
            for name in names:
                found = self.find(name)
                if found is not None:
                    by_runner.setdefault(found[1], []).append(name)
            for runner, own in by_runner.items():
                runner.settle(own)

    def expire(self, live: Collection[str], there: Collection[str]) -> None:
        """Put away what no attempt needs, and remove it once no attempt of it has a folder.

        Args:
            live: Attempts that are waited for.
            there: Attempts that have a folder.
        """
        with self._lock:
            for runner in self._all:
                over = [
                    life.name
                    for life in runner.reader.lives.values()
                    if (life.end is not None or runner.is_dead) and life.name not in live
                ]
                runner.settle(over)
                for segment in runner.segments():
                    if not segment.endswith(DONE):
                        continue
                    path = runner.folder / segment
                    names = {match.decode() for match in _NAME.findall(path.read_bytes())}
                    if names.isdisjoint(there):
                        path.unlink()
                if runner.is_dead and not runner.segments():
                    shutil.rmtree(runner.folder, ignore_errors=True)
                    self._all = tuple(each for each in self._all if each is not runner)

    # ---- what is ordered ----

    def expect(self, name: str) -> None:
        """An order follows, or `dismiss`: until then the attempt may start."""
        self._expected.add(name)

    def dismiss(self, name: str) -> None:
        """No order follows."""
        self._expected.discard(name)

    def order(self, orders: Sequence[dict[str, Any]]) -> None:
        """Give orders that were expected.

        Raises:
            OSError: The runner has died, or takes none. It may have taken some all the same: `may_start` says.
        """
        data = b""
        for order in orders:
            plain = marshal.dumps(order)
            data += len(plain).to_bytes(_LENGTH_BYTES, "big") + plain
        names = [str(order["name"]) for order in orders]
        with self._giving:
            try:
                if self._ours is None or self._ours.is_dead:
                    self._let_go()
                    self._ours = self._opened()
                self._ours.ordered.update(names)
                self._write(data)
            except OSError:
                self._let_go()
                raise
            finally:
                self._expected.difference_update(names)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        poll = select.poll()
        poll.register(self._orders, select.POLLOUT)
        while view:
            if not poll.poll(_WRITE_S * 1000):
                raise TimeoutError(f"the runner takes no orders for {_WRITE_S:g} s")
            view = view[os.write(self._orders, view) :]

    def _opened(self) -> Runner:
        """Start a runner, whose lock is held from before its first instruction."""
        name = f"{wall_ms()}-{os.getpid()}"
        while (folder := self._folder / name).exists():
            name += "-again"
        folder.mkdir(mode=0o700)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        read, write = os.pipe()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            log_path = self._root / "runner.log"
            if log_path.is_dir():
                leave_alone(log_path)
                log_path = Path(os.devnull)
            errors = (str(log_path), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            streams = (
                (os.POSIX_SPAWN_DUP2, read, 0),
                (os.POSIX_SPAWN_DUP2, lock, 1),
                (os.POSIX_SPAWN_OPEN, 2, *errors),
            )
            command = (*self._command, str(self._root), name)
            pid = os.posix_spawn(
                self._command[0], command, {"LANG": "C.UTF-8"}, file_actions=streams, setsid=True
            )
        except OSError:
            os.close(write)
            raise
        finally:
            os.close(read)
            os.close(lock)
        os.set_blocking(write, False)
        self._orders = write
        runner = Runner(folder, is_ours=True, check=self._check)
        runner.find_dead()  # it lives: this opens its lock
        with self._lock:
            self._children.append(pid)
            self._all = (*self._all, runner)
        return runner

    def _let_go(self) -> None:
        """Let our runner have no more orders."""
        if self._orders >= 0:
            os.close(self._orders)
        self._orders, self._ours = -1, None

    def _reap(self) -> bool:
        """Bury the runners that have ended. Returns whether there are others."""
        with self._lock:
            for pid in list(self._children):
                with contextlib.suppress(ChildProcessError):
                    if not os.waitpid(pid, os.WNOHANG)[0]:
                        continue
                self._children.remove(pid)
            return bool(self._children)


def _runners_of(root: Path) -> list[tuple[int, str, bool]]:
    """The processes of this machine that are runners of a root of this path, or shims of theirs. None where there is no /proc.

    Returns:
        (process, name of the runner, whether it is a shim).
    """
    found = []
    script, path = os.fsencode(Path(COMMAND[-1]).name), os.fsencode(root)
    for item in Path("/proc").glob("[0-9]*"):
        try:
            words = (item / "cmdline").read_bytes().split(b"\0")[:-1]
            if words[-2:-1] == [path] and words[-3].endswith(script) and (item / "root").samefile("/"):
                is_shim = (item / "comm").read_text().rstrip() == SHIM
                found.append((int(item.name), os.fsdecode(words[-1]), is_shim))
        except (OSError, IndexError):  # it has ended, or is another user's
            continue
    return found


def _end_tree(pid: int) -> None:
    """Kill a runner and all that stems from it. It is stopped first, so that it neither starts nor buries anything meanwhile."""
    end = time.monotonic() + KILL_LIMIT_S
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        while time.monotonic() < end:
            alive = [
                each for each in descendants([pid]) if each != pid and is_running(each, start_time(each))
            ]
            if not alive:
                break
            for each in alive:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGKILL)
            time.sleep(0.005)
        os.kill(pid, signal.SIGKILL)
