"""Logs of containers: bytes from an offset, as the program wrote them, while their pods are here and for a time afterwards.

The kubelet's format (CRI) is `<time> <stdout|stderr> <P|F> <text>`, a line each, where P says that the program's line goes on
in the next one of its stream. Files are rotated: `0.log` becomes `0.log.<time>`, later `.gz`, later nothing. So an offset may
lie in a file that is gone: what is left begins further on, and `Piece.offset` says where. Everything here blocks.
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import re
import shutil
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final

from flowsched.cluster.kubernetes.agent.ledger import is_uid
from flowsched.cluster.kubernetes.agent.log_files import LogFile, LogFiles, OpenLogs
from flowsched.cluster.kubernetes.objects.names import pod_name
from flowsched.cluster.local.runner.records import sync, write_record
from flowsched.cluster.node.strangers import leave_alone
from flowsched.log_lines import get_logger

#: The beginning of a file, a time in nanoseconds, tells it from others: inode numbers are given again.
_HEAD: Final = 40
#: The agent keeps the marks of so many containers.
_REMEMBERED: Final = 4096
#: A compressed file is kept decoded up to this size while it is read in pieces.
_UNZIPPED: Final = 32 << 20
#: So much of it is decoded at a time.
_UNPACKED: Final = 256 << 10
#: The names of all tasks' pods begin so.
_TASKS: Final = "fs-"


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a log. It begins at `offset`, later than asked for if what was before is gone."""

    offset: int
    data: bytes


@dataclass(slots=True)
class _Marks:
    """Positions known in one stream of one container."""

    lengths: dict[str, int] = field(
        default_factory=dict
    )  #: decoded bytes of rotated files, also of those now gone
    points: dict[bytes, list[tuple[int, int]]] = field(
        default_factory=dict
    )  #: by head: (decoded, raw), ascending
    lock: threading.Lock = field(default_factory=threading.Lock)


log = get_logger(__name__)


class Reader:
    """Reads logs, and remembers where it has been.

    Args:
        open_logs: Descriptors of files that the kubelet may have removed.
    """

    def __init__(self, open_logs: OpenLogs | None = None) -> None:
        self._open_logs = open_logs or OpenLogs()
        self._marks: OrderedDict[tuple[str, str], _Marks] = OrderedDict()
        self._lock = threading.Lock()
        self._unzipped: tuple[LogFile, str, bytes] | None = None

    def read(self, folder: Path, stream: str, offset: int, limit: int) -> Piece:
        """Read up to `limit` bytes that a container wrote to a stream, from `offset` on.

        Raises:
            FileNotFoundError: It has no such folder.
        """
        with self._lock:
            marks = self._marks.setdefault((str(folder), stream), _Marks())
            self._marks.move_to_end((str(folder), stream))
            if len(self._marks) > _REMEMBERED:
                self._marks.popitem(last=False)
        with marks.lock:
            return self._read(self._open_logs.files(folder), stream, offset, limit, marks)

    def end(self, folder: Path, stream: str, limit: int) -> bytes:
        """The last bytes that a container wrote to a stream, of those in the file that is still written to.

        Raises:
            FileNotFoundError: It has no such folder.
        """
        tail = b""
        live = self._open_logs.files(folder).live
        for data, _length in _blocks(live.pieces(), stream.encode()) if live is not None else ():
            tail = (tail + data)[-limit:]
        return tail

    def length(self, folder: Path, stream: str) -> int:
        """How many bytes a container has written to a stream so far, of those that are left.

        Raises:
            FileNotFoundError: It has no such folder.
        """
        files = self._open_logs.files(folder)
        every = [*files.rotated.values(), *([files.live] if files.live is not None else [])]
        return sum(len(data) for file in every for data in self._decoded(file, stream, 0, _Marks()))

    def _read(self, files: LogFiles, stream: str, offset: int, limit: int, marks: _Marks) -> Piece:
        lengths = dict(marks.lengths)
        for stamp, file in files.rotated.items():
            if stamp not in lengths:
                lengths[stamp] = sum(len(data) for data in self._decoded(file, stream, 0, marks))
        if files.live is not None:
            # Until the runtime has begun a new file it still writes to the one that was renamed.
            marks.lengths.update(lengths)
        data = bytearray()
        first, start = offset, 0  #: of the piece, and of the file at hand
        for stamp in sorted(lengths):
            end = start + lengths[stamp]
            if first + len(data) < end and len(data) < limit:
                if stamp in files.rotated:
                    local = first + len(data) - start
                    data += self._slice(files.rotated[stamp], stream, local, limit - len(data), marks)
                else:
                    first = end
            start = end
        local = first + len(data) - start
        if files.live is not None and local >= 0 and len(data) < limit:
            data += self._slice(files.live, stream, local, limit - len(data), marks)
        return Piece(first, bytes(data))

    def _slice(self, file: LogFile, stream: str, local: int, limit: int, marks: _Marks) -> bytes:
        """Bytes of one file, from its decoded offset `local` on."""
        found = bytearray()
        for block in self._decoded(file, stream, local, marks):
            found += block[: limit - len(found)]
            if len(found) >= limit:
                break
        return bytes(found)

    def _decoded(self, log: LogFile, stream: str, local: int, marks: _Marks) -> Iterator[bytes]:
        """The decoded bytes of one file from `local` on, block by block."""
        if log.is_packed:
            yield from self._unzip(log, stream, local)
            return
        head = log.head(_HEAD)
        points = marks.points.setdefault(head, [(0, 0)]) if len(head) == _HEAD else [(0, 0)]
        decoded, raw = points[bisect_right(points, (local, 1 << 62)) - 1]
        for data, length in _blocks(log.pieces(raw), stream.encode()):
            if decoded + len(data) > local:
                yield data[max(0, local - decoded) :]
            decoded, raw = decoded + len(data), raw + length
            if decoded > points[-1][0]:
                points.append((decoded, raw))

    def _unzip(self, log: LogFile, stream: str, local: int) -> Iterator[bytes]:
        known = self._unzipped
        if known is not None and (known[0].inode, known[1]) == (log.inode, stream):
            yield known[2][local:]
            return
        whole: bytearray | None = bytearray()
        decoded = 0
        with gzip.GzipFile(fileobj=io.BytesIO(b"".join(log.pieces()))) as file:
            for data, _ in _blocks(iter(partial(file.read, _UNPACKED), b""), stream.encode()):
                if whole is not None:
                    whole = whole + data if len(whole) + len(data) <= _UNZIPPED else None
                if decoded + len(data) > local:
                    yield data[max(0, local - decoded) :]
                decoded += len(data)
        if whole is not None:
            self._unzipped = (log, stream, bytes(whole))


def _blocks(pieces: Iterator[bytes], stream: bytes) -> Iterator[tuple[bytes, int]]:
    """(decoded bytes of a stream, raw bytes they took) of a file's whole lines; a line half written is left for later.

    There is a mark behind each block, so a follower reads no more than one piece twice.
    """
    rest = b""
    for block in pieces:
        whole, newline, tail = (rest + block).rpartition(b"\n")
        if newline:
            yield b"".join(_texts(whole, stream)), len(whole) + 1
        rest = tail


def _texts(lines: bytes, stream: bytes) -> Iterator[bytes]:
    """The program's bytes in whole lines of the format; other lines are passed over."""
    for line in lines.split(b"\n"):
        parts = line.split(b" ", 3)
        if len(parts) >= 3 and parts[1] == stream:
            yield parts[3] if len(parts) == 4 else b""
            if parts[2].partition(b":")[0] != b"P":
                yield b"\n"


# ---- logs that outlive their pods: copied, decoded, into a folder of the agent's, and removed after a time ----
#
#     <kept>/<uid>/meta.json             {"namespace", "pod", "name", "at_ms", "files": {"task.stdout": first offset}}
#     <kept>/<uid>/<container>.<stream>  the bytes


STREAMS: Final = ("stdout", "stderr")
_PIECE: Final = 4 << 20
_TEMPORARY: Final = ".tmp-"
#: As Kubernetes allows them; none can be a way out of a folder.
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
#: The steps of a container task before its last one, which is `task`: their logs are its log.
_STEP: Final = re.compile(r"step-\d{1,6}")
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")


class BadName(Exception):
    """The given text is no name of a namespace, pod or container, or no uid."""


@dataclass(frozen=True, slots=True)
class PodId:
    """A pod, as the folder of its logs is named."""

    namespace: str
    pod: str
    uid: str

    @property
    def folder(self) -> str:
        """Its folder's name.

        Raises:
            BadName: There can be no such pod.
        """
        if not (_LABEL.fullmatch(self.namespace) and _NAME.fullmatch(self.pod) and is_uid(self.uid)):
            raise BadName(
                f"no pod can be called {self.namespace[:80]!r}/{self.pod[:80]!r} ({self.uid[:80]!r})"
            )
        return f"{self.namespace}_{self.pod}_{self.uid}"


@dataclass(frozen=True, slots=True)
class _Saved:
    name: str
    at_ms: int
    size_bytes: int
    files: dict[str, int]


class Logs:
    """The logs of this node's pods, while they are here and afterwards. Everything blocks.

    Args:
        live: Where the kubelet has them.
        saved: The folder where the agent saves them.
        has_pod: Whether a pod's volumes are still on the node: then it may write on.
        clock: Wall-clock ms.
    """

    def __init__(
        self, live: Path, saved: Path, has_pod: Callable[[str], bool], clock: Callable[[], int]
    ) -> None:
        self._live = live
        self._folder = saved
        self._has_pod = has_pod
        self._clock = clock
        self._open_logs = OpenLogs()
        self._reader = Reader(self._open_logs)
        self._followed: dict[str, tuple[PodId, str]] = {}
        self._saved: dict[str, _Saved] = {}
        self._numbers = itertools.count()
        self._keeping = threading.Lock()

    def open(self) -> None:
        """Read the saved logs, and remove half copies."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            if not (
                path.name.startswith(_TEMPORARY) or (is_uid(path.name) and (path / "meta.json").exists())
            ):
                leave_alone(path)
                continue
            saved = None if path.name.startswith(_TEMPORARY) else _read_saved(path)
            if saved is None:
                shutil.rmtree(path, ignore_errors=True)
            else:
                self._saved[path.name] = saved

    def read(self, pod: PodId, container: str, stream: str, offset: int, limit: int) -> tuple[Piece, bool]:
        """A piece of a log, and whether more may come.

        Raises:
            BadName: There can be no such log.
        """
        if not _LABEL.fullmatch(container) or stream not in STREAMS:
            raise BadName(f"no container's stream is called {container[:80]!r}/{stream[:80]!r}")
        saved = self._saved.get(pod.uid)
        if saved is not None:
            return self._read_saved(pod.uid, saved, f"{container}.{stream}", offset, limit)
        goes_on = self._has_pod(pod.uid)  # asked first: then nothing is written after the read
        local = offset
        for step in self._before(self._live / pod.folder, container):
            length = self._reader.length(step, stream)
            if local < length:
                return Piece(offset, self._reader.read(step, stream, local, limit).data), True
            local -= length
        try:
            piece = self._reader.read(self._live / pod.folder / container, stream, local, limit)
        except FileNotFoundError:
            return Piece(offset, b""), goes_on
        return Piece(offset + piece.offset - local, piece.data), goes_on or len(piece.data) == limit

    def end(self, pod: PodId, container: str, stream: str, limit: int) -> bytes:
        """The last bytes that a container of a pod wrote, while its logs are the kubelet's.

        Raises:
            BadName: There can be no such log.
        """
        if not _LABEL.fullmatch(container) or stream not in STREAMS:
            raise BadName(f"no container's stream is called {container[:80]!r}/{stream[:80]!r}")
        try:
            return self._reader.end(self._live / pod.folder / container, stream, limit)
        except FileNotFoundError:
            return b""

    def _before(self, folder: Path, container: str) -> list[Path]:
        """The logs that come before a container's: a task of several steps has theirs, one after the other."""
        if container != "task":
            return []
        found = [name for name in self._open_logs.containers(folder) if _STEP.fullmatch(name)]
        return [folder / name for name in sorted(found, key=lambda name: int(name.removeprefix("step-")))]

    def pod_of(self, uid: str) -> str | None:
        """The name of the pod with a uid, as its kubelet has written it down; None if it has not (yet)."""
        found = self._find(uid)
        return None if found is None else found.pod

    def _find(self, uid: str) -> PodId | None:
        try:
            names = os.listdir(self._live)
        except FileNotFoundError:
            return None
        found = next((name for name in names if name.endswith(f"_{uid}") and name.count("_") == 2), None)
        return None if found is None else PodId(*found.split("_"))

    # --- logs of pods that are deleted -----------------------------------------------------------------------

    def follow(self, uid: str, name: str) -> None:
        """Keep the logs of a pod open from now on, so that they can be saved when any client deletes the pod.

        Args:
            uid: Of the pod.
            name: The engine's name of it.
        """
        pod = self._followed[uid][0] if uid in self._followed else self._find(uid)
        if pod is not None:
            self._open_logs.refresh(self._live / pod.folder)
            self._followed[uid] = (pod, name)

    def holds(self, uid: str) -> set[str]:
        """The containers of a pod with logs that are held open."""
        if uid not in self._followed:
            return set()
        return self._open_logs.open_containers(self._live / self._followed[uid][0].folder)

    def refresh(self) -> None:
        """Open what the tasks' pods have begun to write. Keep the logs of those that the kubelet has removed."""
        self._discover()
        for uid, (pod, name) in list(self._followed.items()):
            folder = self._live / pod.folder
            if self._open_logs.refresh(folder):
                continue
            try:
                if uid not in self._saved:
                    self.keep(pod, name)
            except OSError as error:  # a full disk: open files would keep the removed logs on it
                log.warning("logs of a deleted pod are lost", pod=name, error=str(error))
            del self._followed[uid]
            self._open_logs.drop(folder)

    def _discover(self) -> None:
        """Follow the tasks that have no stage-in to tell of them. The engine's name of such a pod is not known here."""
        try:
            names = os.listdir(self._live)
        except FileNotFoundError:
            return
        for name in names:
            parts = name.split("_")
            if len(parts) != 3 or not parts[1].startswith(_TASKS) or not is_uid(parts[2]):
                continue
            if parts[2] not in self._followed and parts[2] not in self._saved:
                self._followed[parts[2]] = (PodId(*parts), parts[1])

    # --- logs that are kept ----------------------------------------------------------------------------------

    def read_named(
        self, name: str, container: str, stream: str, offset: int, limit: int
    ) -> tuple[Piece, bool]:
        """The same of a kept log, by the engine's name of the pod: its uid may be forgotten by then."""
        if not _LABEL.fullmatch(container) or stream not in STREAMS:
            raise BadName(f"no container's stream is called {container[:80]!r}/{stream[:80]!r}")
        for uid, saved in list(self._saved.items()):
            if saved.name in (name, pod_name(name)):
                return self._read_saved(uid, saved, f"{container}.{stream}", offset, limit)
        for pod, followed in list(self._followed.values()):
            if followed in (name, pod_name(name)):
                return self.read(pod, container, stream, offset, limit)
        return Piece(offset, b""), False

    def keep(self, pod: PodId, name: str) -> bool:
        """Copy all that a pod's containers wrote; False if it has no logs here. A second time replaces the first.

        Raises:
            BadName: There can be no such pod.
        """
        source = self._live / pod.folder
        with self._keeping:
            return self._keep(pod, name, source)

    def _keep(self, pod: PodId, name: str, source: Path) -> bool:
        containers = self._open_logs.containers(source)
        if not containers:
            return pod.uid in self._saved
        into = self._folder / f"{_TEMPORARY}{os.getpid()}-{next(self._numbers)}"
        into.mkdir()
        try:
            files = self._copy(source, containers, into)
            meta = {
                "namespace": pod.namespace,
                "pod": pod.pod,
                "name": name,
                "at_ms": self._clock(),
                "files": files,
            }
            write_record(str(into), "meta.json", meta)
            home = self._folder / pod.uid
            shutil.rmtree(home, ignore_errors=True)
            into.rename(home)
        except BaseException:
            shutil.rmtree(into, ignore_errors=True)
            raise
        sync(str(self._folder))
        saved = _read_saved(home)
        if saved is not None:
            self._saved[pod.uid] = saved
        return True

    def expire(self, before_ms: int, limit_bytes: int = 0) -> int:
        """Remove what was kept before a moment, and the oldest until no more than `limit_bytes` are left (0: any)."""
        removed = 0
        left = sum(saved.size_bytes for saved in self._saved.values())
        for uid, saved in sorted(self._saved.items(), key=lambda item: item[1].at_ms):
            if saved.at_ms >= before_ms and (not limit_bytes or left <= limit_bytes):
                break
            del self._saved[uid]
            left -= saved.size_bytes
            doomed = self._folder / f"{_TEMPORARY}{os.getpid()}-{next(self._numbers)}"
            with suppress(FileNotFoundError):
                (self._folder / uid).rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
            removed += 1
        return removed

    def _copy(self, source: Path, found: set[str], into: Path) -> dict[str, int]:
        files: dict[str, int] = {}
        steps = {name for name in found if _STEP.fullmatch(name)}
        for container in sorted((found - steps) | ({"task"} if steps else set())):
            if not _LABEL.fullmatch(container):
                continue
            for stream in STREAMS:
                name = f"{container}.{stream}"
                with open(into / name, "wb") as file:
                    for part in (*self._before(source, container), source / container):
                        with suppress(FileNotFoundError, NotADirectoryError):
                            first = self._copy_to(file, part, stream)
                            files.setdefault(name, first)
                    file.flush()
                    os.fsync(file.fileno())
        return files

    def _copy_to(self, file: BinaryIO, folder: Path, stream: str) -> int:
        """Add what a container wrote to a file; returns how many bytes before it are gone."""
        piece = self._reader.read(folder, stream, 0, _PIECE)
        first = piece.offset
        while piece.data:
            file.write(piece.data)
            piece = self._reader.read(folder, stream, piece.offset + len(piece.data), _PIECE)
        return first

    def _read_saved(self, uid: str, saved: _Saved, name: str, offset: int, limit: int) -> tuple[Piece, bool]:
        first = saved.files.get(name, 0)
        offset = max(offset, first)
        try:
            with open(self._folder / uid / name, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if offset - first > size:  # file systems refuse to seek beyond what they can hold
                    return Piece(offset, b""), False
                file.seek(offset - first)
                data = file.read(limit)
                return Piece(offset, data), file.tell() < size
        except FileNotFoundError:
            return Piece(offset, b""), False


def _read_saved(folder: Path) -> _Saved | None:
    try:
        meta: dict[str, Any] = json.loads((folder / "meta.json").read_bytes())
        files = {str(name): int(first) for name, first in meta["files"].items()}
        size = sum((folder / name).stat().st_size for name in files)
        return _Saved(str(meta["name"]), int(meta["at_ms"]), size, files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
