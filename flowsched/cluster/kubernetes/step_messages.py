"""Messages of a pod's steps: their termination messages and the node agent's answers, decoded. Pure.

Containers write these texts, so any content is data: what cannot be decoded counts as missing, and no content raises.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Annotated, Final, TypeVar

import msgspec

from flowsched.cluster.kubernetes.packing import unpacked
from flowsched.executor.protocol import DeliveredFile, Published, SourceFile
from flowsched.values import replace

#: A kubelet takes 4 KiB; a longer message was not written by our steps, and is cut.
LONGEST_MESSAGE: Final = 4096

T = TypeVar("T")
Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class _Output(msgspec.Struct, frozen=True):
    name: str
    uri: str
    size_bytes: Count
    value: str | None = None


class _File(msgspec.Struct, frozen=True, array_like=True):
    path: str
    uri: str
    size_bytes: Count
    version: str = ""
    place: str = ""  #: in the pod's volume `inputs`, of a file that the node's cache may take
    inode: int = 0
    mtime_ns: int = 0


def _delivered(file: _File) -> DeliveredFile:
    return DeliveredFile(shortened(file.path), shortened(file.uri), file.size_bytes, shortened(file.version))


class Result(msgspec.Struct, frozen=True):
    """The message of stage-out. `more`: the message had no room for all of it."""

    outputs: tuple[_Output, ...] = ()
    reason: str = ""
    message: str = ""
    more: bool = False
    delivered: str | tuple[_File, ...] = ()  #: of a container task; packed if it is long
    stdio: tuple[tuple[str, str], ...] = ()  #: the ends of its steps' stdout and stderr files
    returned: Count | None = None  #: the return code that its client judges by, where it has written one
    undelivered: Count = 0  #: how many files found no room in the list
    disk_bytes: Count | None = (
        None  #: the bytes that the pod has moved, as its node's agent knows; None = it does not
    )
    cpu_ms: Count = 0  #: and the CPU time it has taken
    max_rss_bytes: Count = 0  #: and its most memory that was measured

    @property
    def files(self) -> tuple[DeliveredFile, ...]:
        """The files that were taken out of a container."""
        return tuple(_delivered(each) for each in self._listed)

    def placed(self, volume: str) -> Iterator[DeliveredFile]:
        """The files that the node's cache may take, each with its place. `volume`: the path of the pod's volume `inputs`."""
        for each in self._listed:
            if each.place and each.version:
                place = SourceFile(f"{volume}/{each.place}", each.inode, each.mtime_ns)
                yield replace(_delivered(each), place=place)

    @property
    def _listed(self) -> tuple[_File, ...]:
        if not isinstance(self.delivered, str):
            return self.delivered
        try:
            return _read(unpacked(self.delivered), tuple[_File, ...]) or ()
        except (ValueError, zlib.error):
            return ()

    @property
    def published(self) -> tuple[Published, ...]:
        """The outputs, as executors report them."""
        return tuple(Published(each.name, each.uri, each.size_bytes, each.value) for each in self.outputs)


class Staged(msgspec.Struct, frozen=True):
    """The message of stage-in."""

    bytes_local: Count = 0
    bytes_moved: Count = 0
    reason: str = ""
    message: str = ""
    lost: tuple[str, ...] = ()


class Used(msgspec.Struct, frozen=True):
    """The usage of a container, where its node reports it."""

    cpu_ms: Count = 0
    max_rss_bytes: Count = 0


_NOTHING: Final = Staged()
_NO_USAGE: Final = Used()


def read_result(text: str | bytes) -> Result | None:
    """Stage-out's message, or the agent's answer to the same question; None if it is none."""
    return _read(text, Result)


def read_staged(text: str) -> Staged:
    """Stage-in's message; empty if it is none."""
    return _read(text, Staged) or _NOTHING


def read_usage(text: str, container: str) -> Used:
    """The usage of a container, from an annotation with all containers; zero if it is not in there."""
    everyone = _read(text, dict[str, Used]) or {}
    return everyone.get(container, _NO_USAGE)


def shortened(text: str) -> str:
    """As much of a text as is kept, in characters that can be stored anywhere."""
    return text[:LONGEST_MESSAGE].replace("\0", "�").encode(errors="replace").decode()


def _read(text: str | bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
