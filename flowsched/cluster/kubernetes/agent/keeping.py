"""Logs that outlive their pods: copied, decoded, into a folder of the agent's, and removed after a time.

<kept>/<uid>/meta.json            {"namespace", "pod", "name", "at_ms", "files": {"task.stdout": first offset}}
<kept>/<uid>/<container>.<stream>  the bytes
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from flowsched.cluster.kubernetes.agent.logs import Piece, Reader
from flowsched.cluster.kubernetes.agent.volumes import is_uid
from flowsched.cluster.running.records import sync_folder, write_record

STREAMS: Final = ("stdout", "stderr")
_PIECE: Final = 4 << 20
_TEMPORARY: Final = ".tmp-"
#: As Kubernetes allows them; none can be a way out of a folder.
_LABEL: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
#: The steps of a container task before its last one, which is `task`: their logs are its log.
_STEP: Final = re.compile(r"step-\d{1,6}")
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")


class BadName(Exception):
    """What was given is no name of a namespace, pod or container, or no uid."""


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
class _Kept:
    name: str
    at_ms: int
    size_bytes: int
    files: dict[str, int]


class Logs:
    """The logs of this node's pods, while they are here and afterwards. Everything blocks.

    Args:
        live: Where the kubelet has them.
        kept: Where the agent keeps them.
        has_pod: Whether a pod's volumes are still on the node: then it may write on.
        clock: Wall-clock ms.
    """

    def __init__(
        self, live: Path, kept: Path, has_pod: Callable[[str], bool], clock: Callable[[], int]
    ) -> None:
        self._live = live
        self._folder = kept
        self._has_pod = has_pod
        self._clock = clock
        self._reader = Reader()
        self._kept: dict[str, _Kept] = {}
        self._numbers = itertools.count()
        self._keeping = threading.Lock()

    def open(self) -> None:
        """Read what is kept; what is half copied is removed."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.iterdir():
            kept = _read_kept(path)
            if kept is None or not is_uid(path.name):
                shutil.rmtree(path, ignore_errors=True)
            else:
                self._kept[path.name] = kept

    def read(self, pod: PodId, container: str, stream: str, offset: int, limit: int) -> tuple[Piece, bool]:
        """A piece of a log, and whether more may come.

        Raises:
            BadName: There can be no such log.
        """
        if not _LABEL.fullmatch(container) or stream not in STREAMS:
            raise BadName(f"no container's stream is called {container[:80]!r}/{stream[:80]!r}")
        kept = self._kept.get(pod.uid)
        if kept is not None:
            return self._read_kept(pod.uid, kept, f"{container}.{stream}", offset, limit)
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
        if container != "task" or not folder.is_dir():
            return []
        found = [name for name in os.listdir(folder) if _STEP.fullmatch(name)]
        return [folder / name for name in sorted(found, key=lambda name: int(name.removeprefix("step-")))]

    def pod_of(self, uid: str) -> str | None:
        """The name of the pod with a uid, as its kubelet has written it down; None if it has not (yet)."""
        try:
            names = os.listdir(self._live)
        except FileNotFoundError:
            return None
        found = next((name for name in names if name.endswith(f"_{uid}")), None)
        return None if found is None else found.split("_")[1]

    def read_named(
        self, name: str, container: str, stream: str, offset: int, limit: int
    ) -> tuple[Piece, bool]:
        """The same of a kept log, by the engine's name of the pod: its uid may be forgotten by then."""
        if not _LABEL.fullmatch(container) or stream not in STREAMS:
            raise BadName(f"no container's stream is called {container[:80]!r}/{stream[:80]!r}")
        for uid, kept in list(self._kept.items()):
            if kept.name == name:
                return self._read_kept(uid, kept, f"{container}.{stream}", offset, limit)
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
        if not source.is_dir():
            return pod.uid in self._kept
        into = self._folder / f"{_TEMPORARY}{os.getpid()}-{next(self._numbers)}"
        into.mkdir()
        try:
            files = self._copy(source, into)
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
        sync_folder(str(self._folder))
        kept = _read_kept(home)
        if kept is not None:
            self._kept[pod.uid] = kept
        return True

    def expire(self, before_ms: int, limit_bytes: int = 0) -> int:
        """Remove what was kept before a moment, and the oldest until no more than `limit_bytes` are left (0: any)."""
        removed = 0
        left = sum(kept.size_bytes for kept in self._kept.values())
        for uid, kept in sorted(self._kept.items(), key=lambda item: item[1].at_ms):
            if kept.at_ms >= before_ms and (not limit_bytes or left <= limit_bytes):
                break
            del self._kept[uid]
            left -= kept.size_bytes
            doomed = self._folder / f"{_TEMPORARY}{os.getpid()}-{next(self._numbers)}"
            with suppress(FileNotFoundError):
                (self._folder / uid).rename(doomed)
            shutil.rmtree(doomed, ignore_errors=True)
            removed += 1
        return removed

    def _copy(self, source: Path, into: Path) -> dict[str, int]:
        files: dict[str, int] = {}
        found = set(os.listdir(source))
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

    def _read_kept(self, uid: str, kept: _Kept, name: str, offset: int, limit: int) -> tuple[Piece, bool]:
        first = kept.files.get(name, 0)
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


def _read_kept(folder: Path) -> _Kept | None:
    try:
        meta: dict[str, Any] = json.loads((folder / "meta.json").read_bytes())
        files = {str(name): int(first) for name, first in meta["files"].items()}
        size = sum((folder / name).stat().st_size for name in files)
        return _Kept(str(meta["name"]), int(meta["at_ms"]), size, files)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
