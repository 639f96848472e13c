"""What a task finds when it starts: its inputs, and the folders it may write to. Everything blocks.

The agent lays it out in a pod's volumes; where there is no agent, the step in the pod does.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from flowsched.cluster.kubernetes.agent import beneath, trees
from flowsched.cluster.kubernetes.agent.orders import Input, Order, manifest, placed


@dataclass(frozen=True, slots=True)
class Held:
    """A dataset that is here: the path of its own file or folder, which is named as it was at its origin."""

    path: str

    @property
    def name(self) -> str:
        """Its file name."""
        return os.path.basename(self.path)


def lay_inputs(
    inputs: int, order: Order, held: Mapping[str, Held], inputs_path: str, link: trees.Link = os.link
) -> None:
    """Put the inputs of an order into a folder. A second time does no harm.

    Args:
        inputs: The folder.
        order: What goes where.
        held: Every dataset of it, by uri.
        inputs_path: Where the task has that folder, for manifests.
        link: Makes hard links.

    Raises:
        Unsafe: A link lies where a folder should.
    """
    for given in order.inputs:
        names = {uri: held[uri].name for uri in given.uris}
        for file in placed(given, names):
            *parent, name = beneath.parts_of(file.path)
            with beneath.folder(inputs, parent, make=0o755) as fd:
                trees.place(held[file.uri].path, fd, name, link)
        if given.manifest:
            _write_manifest(inputs, given, manifest(given, names, inputs_path))


def _write_manifest(inputs: int, given: Input, text: str) -> None:
    *parent, name = beneath.parts_of(given.path)
    with beneath.folder(inputs, parent, make=0o755) as fd:
        os.close(beneath.write_file(fd, name, text, 0o444))


def furnish(work: int, order: Order) -> None:
    """Make the folders that outputs are written to, `tmp`, and the hostfile, in the working folder.

    Each is its owner's, its group's and everybody's to use exactly as the working folder itself is: a kubelet gives that
    to the pod's group (fsGroup, set-gid) or to all.

    Raises:
        Unsafe: A link lies where a folder should.
    """
    like = os.fstat(work)
    for path in (*order.folders, "tmp"):
        fd = os.dup(work)
        try:
            for name in beneath.parts_of(path):
                made = beneath.make_folder(fd, name, stat.S_IMODE(like.st_mode))
                inner = beneath.open_folder(fd, name)
                os.close(fd)
                fd = inner
                if made:
                    _give(fd, like, stat.S_IMODE(like.st_mode))
        finally:
            os.close(fd)
    if order.hostfile is not None:
        mode = stat.S_IMODE(like.st_mode) & 0o666
        fd = beneath.write_file(work, "hostfile", order.hostfile, mode)
        try:
            _give(fd, like, mode)
        finally:
            os.close(fd)


def _give(fd: int, like: os.stat_result, mode: int) -> None:
    """Make something as the working folder is.

    Linux drops the set-gid bit without a word where the group is not the caller's and he has no CAP_FSETID, which an agent
    need not have: so the mode is set while the group is ours. A change of a folder's owner leaves it its bits.
    """
    if os.geteuid() == 0:
        os.fchown(fd, os.geteuid(), os.getegid())
    os.fchmod(fd, mode)
    if os.geteuid() == 0:
        os.fchown(fd, like.st_uid, like.st_gid)
