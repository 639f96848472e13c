"""Attempts on this machine, from the service's side: their folders, and the processes that belong to each. Everything here blocks.

    nodes/<node>/attempts/<pod>/   made exclusively: its maker may give the one order that the attempt will ever have
        work/ stdout stderr release runner.log   see `runner.attempt`

A pod's folder may be on any node, but there is one of a name: a folder found anywhere means "ordered, or never to be". The
journals say how an order went (`runners`). An attempt is reported gone only when its last process is, also one that has
detached itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from flowsched.cluster.local.journals import Life, ended_of
from flowsched.cluster.local.root_space import Presence
from flowsched.cluster.local.runner import safe_paths
from flowsched.cluster.local.runner.attempt import END
from flowsched.cluster.local.runner.engine import ask
from flowsched.cluster.local.runner.kin import descendants, living, state_of
from flowsched.cluster.local.runner.safe_paths import Opened, Unsafe
from flowsched.cluster.node.strangers import leave_alone
from flowsched.executor.protocol import PodEnded, PodGone

_PROC = Path("/proc")
#: A stopped process shows that it has stopped within microseconds.
_STOPS_S: Final = 0.05


def kill_attempt(folder: Path, life: Life, is_over: Callable[[], bool] = lambda: False) -> bool:
    """Kill the processes of an attempt. Returns whether there were any.

    Args:
        folder: Of the attempt.
        life: Its state by the journal.
        is_over: Asked while its shim is stopped: whether the journal has an end. The shim may have another attempt then.
    """
    if not (_PROC / "self/stat").exists():
        if life.pid > 0:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(life.pid, signal.SIGKILL)
        return False
    if life.removal:
        ask(life.removal, life.engine_env)  # what an engine's daemon runs is below no process of ours
    shim = living(life.shim)
    if not shim:
        return _kill(_NAMED.of(folder, time.monotonic()))
    with _stopped(shim):
        return not is_over() and _kill([pid for pid in descendants([shim]) if pid != shim])


def _kill(pids: list[int]) -> bool:
    found = [pid for pid in pids if state_of(pid) not in "ZX"]
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


@contextlib.contextmanager
def _stopped(pid: int) -> Iterator[None]:
    """Let a process do nothing meanwhile. It goes on also if another one had stopped it."""
    end = time.monotonic() + _STOPS_S
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    while state_of(pid) not in "TtZX" and time.monotonic() < end:
        time.sleep(0.0001)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def is_left(folder: Path, life: Life, since: float | None = None) -> bool:
    """Whether a process of an attempt lives whose runner is dead.

    Args:
        folder: Of the attempt.
        life: Its state by the journal.
        since: The machine's environments must have been read since then; monotonic, None = now.
    """
    if not (_PROC / "self/stat").exists():
        return False
    return bool(living(life.shim) or _NAMED.of(folder, time.monotonic() if since is None else since))


def end_attempt(folder: Path, life: Life) -> bool:
    """Kill what is left of an attempt whose runner is dead. Returns whether its last process is gone.

    Its shim kills what stems from it. If that was killed too, the environment still names the attempt: that is read once for
    all attempts, at the second call after the shim is gone.
    """
    if living(life.shim):
        kill_attempt(folder, life)
        life.alone_since = None
        return False
    if life.alone_since is None:
        life.alone_since = time.monotonic()
        return False
    if _kill(_NAMED.of(folder, life.alone_since)):
        life.alone_since = None
        return False
    if life.removal:
        ask(life.removal, life.engine_env)
    return True


class _Named:
    """The processes of this machine whose environment names an attempt."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began = float("-inf")
        self._found: dict[bytes, list[int]] = {}

    def of(self, folder: Path, since: float) -> list[int]:
        """Those of one attempt. All processes are read, unless that was done since."""
        with self._lock:
            if self._began < since:
                self._began, self._found = time.monotonic(), {}
                for item in os.listdir(_PROC):
                    if item.isdigit() and int(item) != os.getpid() and (name := _named(item)):
                        self._found.setdefault(name, []).append(int(item))
            return [pid for pid in self._found.get(os.fsencode(folder), ()) if state_of(pid) not in "ZX"]


_NAMED: Final = _Named()
_VARIABLE: Final = b"FLOWSCHED_FOLDER="


def _named(pid: str) -> bytes:
    """The folder of the attempt that a process's environment names; b"" for none."""
    try:
        words = (_PROC / pid / "environ").read_bytes()
    except OSError:
        return b""
    if _VARIABLE not in words:
        return b""
    found = [word for word in words.split(b"\0") if word.startswith(_VARIABLE)]
    return found[0].removeprefix(_VARIABLE) if found else b""


# ---- the folders ----


def mode_of(path: str | Path) -> int:
    """The mode of what lies at a path, not of what a link there leads to; 0 = nothing. Not every error is taken for
    nothing, as `os.path` does.

    Raises:
        OSError: That cannot be told now.
    """
    try:
        return os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


class State(msgspec.Struct, frozen=True):
    """The observed state of an attempt. `final` is None while it runs, or may."""

    started_ms: int | None = None
    final: PodEnded | PodGone | None = None
    waits: str = ""  #: the reason why its results wait
    reason: str = ""  #: the same in a word


class Attempts:
    """The attempts under one root.

    Args:
        root: Of the cluster; `nodes/` lies in it.
        nodes: Names of the nodes, the first of which takes the tombstones of pods that were never launched.
    """

    def __init__(self, root: Path, nodes: list[str]) -> None:
        self.root = root
        self.nodes = nodes

    def open(self) -> None:
        """Make the folders. Nodes that the configuration no longer knows keep theirs, and are still scanned."""
        (self.root / "nodes").mkdir(mode=0o700, parents=True, exist_ok=True)
        for node in self.nodes:
            (self.root / "nodes" / node / "attempts").mkdir(parents=True, exist_ok=True)
        for path in sorted((self.root / "nodes").iterdir()):
            if path.name in self.nodes:
                continue
            if os.path.isdir(path / "attempts"):
                self.nodes = [*self.nodes, path.name]
            else:
                leave_alone(path)

    def watch(self, presence: Presence) -> None:
        """Let it be noticed when a folder that attempts or their runners need is away."""
        nodes = [self.root / "nodes" / node / "attempts" for node in self.nodes]
        presence.expect([self.root, self.root / "runners", *(folder for folder in nodes if folder.is_dir())])

    def find(self, name: str) -> Path | None:
        """The folder of a pod, wherever it is."""
        paths = (f"{self.root}/nodes/{node}/attempts/{name}" for node in self.nodes)
        return next((Path(path) for path in paths if mode_of(path)), None)

    def make(self, name: str, node: str) -> Path | None:
        """Make a pod's folder; None if there is one of the name, on whatever node.

        Raises:
            OSError: There is no room. Then there is no folder either.
        """
        if self.find(name) is not None:
            return None
        folder = self.root / "nodes" / node / "attempts" / name
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            return None
        return folder

    def entomb(self, name: str, reason: str) -> PodGone:
        """Make sure that a pod without a folder will never run."""
        found = self.find(name)
        if found is not None and not is_folder(
            found
        ):  # a task has put it there, and has taken the folder away
            found.unlink()
        folder = self.make(name, self.nodes[0])
        if folder is None:
            raise FileExistsError(name)
        return gone(folder, reason)

    def all(self) -> Iterator[Path]:
        """Every folder."""
        for node in self.nodes:
            folder = self.root / "nodes" / node / "attempts"
            with contextlib.suppress(FileNotFoundError), os.scandir(folder) as items:
                # File systems leave names such as .nfs0001 behind, for files that are still open.
                yield from (Path(item.path) for item in items if not item.name.startswith("."))


RELEASE: Final = "release"
#: The files that an attempt leaves beside its working folder and that `clear` removes.
_LEFT: Final = (RELEASE, f"{RELEASE}.tmp", END, f"{END}.tmp", "oom")
#: Records of ends with 20,000 outputs are below that.
_LARGEST_END: Final = 64 << 20
_LOGS: Final = ("stdout", "stderr", "runner.log")


def gone(folder: Path, reason: str) -> PodGone:
    """An attempt that has never begun, and never will. The moment is that of its folder, the same after each restart."""
    try:
        at_ms = folder.stat().st_mtime_ns // 1_000_000
    except OSError:
        at_ms = time.time_ns() // 1_000_000
    return PodGone(folder.name, at_ms, "Released" if is_released(folder) else reason)


def left_end(folder: Path) -> PodEnded | None:
    """How an attempt ended by itself of whose end its runner has not lived to hear; None if its end is not known."""
    try:
        with (
            opened(folder) as at,
            Opened(safe_paths.open_file(at, END)) as fd,
            open(fd, "rb", closefd=False) as file,
        ):
            end = ended_of(folder.name, msgspec.json.decode(file.read(_LARGEST_END)))
    except (FileNotFoundError, NotADirectoryError, Unsafe, ValueError, LookupError, TypeError):
        return None  # there is none, or the task has put something else there
    return None if end.exit_code and is_released(folder) else end


def is_folder(path: Path) -> bool:
    """Whether a path is a folder, and no link to one.

    Raises:
        OSError: That cannot be told now.
    """
    return stat.S_ISDIR(mode_of(path))


def opened(folder: Path) -> Opened:
    """The folder of an attempt, which the task can have replaced by a link.

    Raises:
        OSError: It is no folder now.
    """
    try:
        return Opened(safe_paths.open_folder(None, str(folder)))
    except Unsafe as error:
        raise NotADirectoryError(errno.ENOTDIR, str(error)) from error


def ask_for_end(folder: Path, grace_ms: int) -> None:
    """Write down that an attempt is to end; its runner has to be woken."""
    with opened(folder) as fd:
        safe_paths.put_file(fd, RELEASE, str(grace_ms), 0o644)


def is_released(folder: Path) -> bool:
    """Whether an attempt's end was asked for."""
    return os.path.lexists(folder / RELEASE)


def open_log(folder: Path, stream: str) -> BinaryIO:
    """A log of an attempt, to be read. If the task has put something else there, the text says so instead.

    Raises:
        FileNotFoundError: There is no such log.
    """
    try:
        with opened(folder) as at:
            file = os.fdopen(safe_paths.open_file(at, stream), "rb", buffering=0)
        if os.fstat(file.fileno()).st_nlink > 1:
            file.close()
            raise Unsafe(f"{stream!r} is a file that has another name elsewhere")
    except (Unsafe, NotADirectoryError) as error:
        text = f"flowsched: what the task said is lost, for it has replaced its log: {error}\n"
        return BytesIO(text.encode(errors="replace"))
    return file


def clear(folder: Path) -> None:
    """Leave of an attempt whose end is stored its folder, so that its name stays taken, and the logs that are not empty."""
    with contextlib.suppress(FileNotFoundError), opened(folder) as fd:
        for item in list(os.scandir(fd)):
            unneeded = item.name in _LEFT or ".cid" in item.name
            if unneeded or (item.name in _LOGS and not item.stat(follow_symlinks=False).st_size):
                safe_paths.remove(fd, item.name)


def clear_work(folder: Path) -> None:
    """Remove the working folder of an attempt that has ended."""
    with contextlib.suppress(OSError), opened(folder) as fd:
        for name in ("work", "container"):
            with contextlib.suppress(OSError):
                safe_paths.remove(fd, name)


def workflow_of(name: str) -> str:
    """The workflow of an attempt by its name, as the engine gives it; "" for another name."""
    parts = name.split("-", 2)
    return parts[1] if len(parts) == 3 and parts[0] == "fs" else ""


def remove_tree(path: Path) -> None:
    """Remove a folder and all in it that can be removed."""
    with contextlib.suppress(OSError):
        safe_paths.remove(None, str(path))
