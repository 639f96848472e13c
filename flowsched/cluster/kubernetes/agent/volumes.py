"""The volumes of a pod, as its kubelet lays them out on this node.

<pods>/<uid>/volumes/kubernetes.io~empty-dir/inputs   the task reads it
<pods>/<uid>/volumes/kubernetes.io~empty-dir/work     the task's working folder
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from flowsched.cluster.kubernetes.agent import beneath

INPUTS: Final = "inputs"
WORK: Final = "work"
_KIND: Final = ("volumes", "kubernetes.io~empty-dir")
#: A UUID, or the hash that a static pod has.
_UID: Final = re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z-]{0,126}[0-9A-Za-z])?")


class NoVolume(Exception):
    """There is no such pod on this node, or no such volume of it (any more)."""


class Volumes:
    """The folders of this node's pods.

    Args:
        pods: Where the kubelet keeps them.
    """

    def __init__(self, pods: Path) -> None:
        self.pods = Path(os.path.realpath(pods))

    @contextmanager
    def open(self, uid: str, volume: str) -> Iterator[int]:
        """Open a volume's folder. Blocks.

        Raises:
            NoVolume: It is not there.
            Unsafe: A link lies on the way to it.
        """
        if not is_uid(uid):
            raise NoVolume(f"{uid[:100]!r} is no pod's uid")
        try:
            top = os.open(self.pods, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                volume_fd = _open(top, (uid, *_KIND, volume))
            finally:
                os.close(top)
        except FileNotFoundError as error:
            raise NoVolume(f"this node has no volume {volume!r} of a pod {uid}") from error
        try:
            yield volume_fd
        finally:
            os.close(volume_fd)

    def has(self, uid: str) -> bool:
        """Whether the volumes of a pod are still there: then what was linked into them is in use."""
        return is_uid(uid) and self.pods.joinpath(uid, *_KIND, WORK).is_dir()


def is_uid(text: str) -> bool:
    """Whether a text can be a pod's uid, and so the name of its folder."""
    return _UID.fullmatch(text) is not None


def _open(top: int, names: tuple[str, ...]) -> int:
    with beneath.folder(top, names) as fd:
        return os.dup(fd)
