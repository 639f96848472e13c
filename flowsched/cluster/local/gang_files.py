"""The files that tell a gang's members of each other: each is written once for all members, and linked into their folders."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from flowsched.cluster.local.runner import safe_paths
from flowsched.cluster.node.environment import CLUSTER, HOSTFILE, ceil_cores, gang_files, loopback
from flowsched.executor.protocol import Pod

FILES: Final = (HOSTFILE, CLUSTER)


class GangFiles:
    """The shared files of one root, which its one service writes.

    Args:
        root: Folder of the cluster.
    """

    def __init__(self, root: Path) -> None:
        self._folder = root / "gangs"
        self._lock = threading.Lock()

    def lay_out(self, folder: Path, pod: Pod) -> tuple[str, ...]:
        """Link the files of a gang's member into the folder of its attempt. Returns their names.

        Roster, slots and port make the text, and the name of the file that members share. The first member writes it.
        """
        seat = pod.gang
        if seat is None:
            return ()
        slots = ceil_cores(pod.cpu_millicores)
        told = repr((seat.roster.runs, slots, seat.master_port)).encode()
        name = hashlib.blake2b(told, digest_size=16).hexdigest()
        with self._lock:
            try:
                self._link(name, folder)
            except FileNotFoundError:
                self._write(name, gang_files(seat.roster, slots, seat.master_port, loopback))
                self._link(name, folder)
        return FILES

    def sweep(self) -> None:
        """Remove what no attempt has a link to any more."""
        with self._lock, suppress(FileNotFoundError), os.scandir(self._folder) as found:
            for entry in found:
                if entry.stat(follow_symlinks=False).st_nlink == 1:
                    os.unlink(entry.path)

    def _link(self, name: str, folder: Path) -> None:
        for file in FILES:
            there = self._folder / f"{name}-{file}"
            try:
                os.link(there, folder / file)
            except FileExistsError:  # the first try to link both found one of them
                continue
            except FileNotFoundError:
                raise
            except OSError:  # a file system without hard links, or that has no more of them for this file
                shutil.copyfile(there, folder / file)

    def _write(self, name: str, texts: Mapping[str, str]) -> None:
        """Write the files, each wholly or not at all."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        with safe_paths.Opened(safe_paths.open_folder(None, str(self._folder))) as at:
            for file, text in texts.items():
                temporary = f".{secrets.token_hex(8)}"
                os.close(safe_paths.write_file(at, temporary, text, 0o444))
                os.rename(temporary, f"{name}-{file}", src_dir_fd=at, dst_dir_fd=at)
