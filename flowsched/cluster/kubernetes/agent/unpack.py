"""A folder that comes as a tar stream, unpacked so that nothing of it can land anywhere else.

What other tools would do with a hostile archive is not asked: only files, folders and links are made, each under a folder
that this stream has made itself before, and never through a link.
"""

from __future__ import annotations

import os
import tarfile
from typing import BinaryIO, Final

from flowsched.cluster.kubernetes.agent.beneath import Unsafe, parts_of
from flowsched.cluster.kubernetes.agent.trees import check_link

_BLOCK: Final = 256 << 10


def unpack(stream: BinaryIO, target: str) -> None:
    """Unpack a stream whose members all lie in one top folder, which becomes `target`.

    Args:
        stream: Read from its beginning; what follows the last member is left there.
        target: A path that does not exist yet, in a folder of ours.

    Raises:
        Unsafe: The stream asks for something that a dataset cannot hold. What has been unpacked stays.
        tarfile.TarError: It is no tar stream.
    """
    made: set[tuple[str, ...]] = set()
    with tarfile.open(fileobj=stream, mode="r|", bufsize=_BLOCK) as tar:
        for member in tar:
            tar.members.clear()  # type: ignore[attr-defined]  # it would remember every one
            way = parts_of(member.name)
            if len(way) == 1 and member.isdir() and not made:
                os.mkdir(target, 0o755)
                made.add(way)
                continue
            if way[:-1] not in made:
                raise Unsafe(f"{member.name[:200]!r} lies in no folder of the stream")
            _make(tar, member, "/".join((target, *way[1:])), way)
            if member.isdir():
                made.add(way)
    if not made:
        raise Unsafe("the stream holds no folder")


def _make(tar: tarfile.TarFile, member: tarfile.TarInfo, path: str, way: tuple[str, ...]) -> None:
    """Make one member; a name that is there already is an error of the system (EEXIST)."""
    if member.isdir():
        os.mkdir(path, 0o755)
    elif member.issym():
        check_link(way, member.linkname)
        os.symlink(member.linkname, path)
    elif member.isreg():
        content = tar.extractfile(member)
        assert content is not None
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb", buffering=0) as file:
            os.fchmod(fd, member.mode & 0o777 | 0o400)
            while block := content.read(_BLOCK):
                file.write(block)
    else:
        raise Unsafe(f"{member.name[:200]!r} is neither a file nor a folder nor a link")
