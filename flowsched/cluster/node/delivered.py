"""Delivered objects: the bytes that a task wrote to an object store stay on its node, as datasets of the node's cache; so do large
files that it wrote to a storage that nodes share.

Each has the name that the next task's look at the object gives (`executor.datasets`). An object that was overwritten has another
version, so no task takes the copy for it. The store has the bytes: a dataset that cannot be made is no failure.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from flowsched.cluster.local.runner import safe_paths
from flowsched.cluster.local.runner.patterns import is_pattern
from flowsched.cluster.local.runner.safe_paths import Opened, Unsafe, new_file, parts_of, plain_mode
from flowsched.cluster.local.runner.trees import copy_bytes, seal
from flowsched.cluster.node.cache import Cache, Entry, file_name
from flowsched.cluster.node.origins import folder_version
from flowsched.cluster.node.space import check_room
from flowsched.executor.datasets import parse, versioned
from flowsched.executor.protocol import DeliveredFile, SourceFile
from flowsched.log_lines import get_logger
from flowsched.workflow.document.uris import redacted
from flowsched.workflow.spec import Delivered

log = get_logger(__name__)

#: So many datasets of one attempt, the largest: each waits for the disk, and the attempt's end is reported after that.
_MOST: Final = 16

#: The files of a dataset by their paths in it; a single file is at "".
_Files = Mapping[str, DeliveredFile]


def keep(
    cache: Cache,
    own: Path,
    outputs: Iterable[Delivered],
    files: Iterable[DeliveredFile],
    limit_bytes: int = 0,
) -> list[Entry]:
    """Make datasets of the objects that an attempt has delivered. Blocks.

    Args:
        cache: Of its node.
        own: The attempt's folder, or its pod's volume. Other programs may write to files elsewhere, to files with a second name,
            and to those of accounts that this process cannot take them from: these stay where they are. A copy of them would take
            room and time before the attempt's end is reported.
        outputs: Of its container: a folder becomes one dataset.
        files: That were delivered; those without a version or a place are left out.
        limit_bytes: The most that the cache may have; 0 = any number.
    """
    found = []
    for name, parts in _datasets(outputs, files).items():
        size = sum(file.size_bytes for file in parts.values())
        if not limit_bytes or size <= limit_bytes:
            found.append((size, name, parts))
    found.sort(key=lambda each: -each[0])
    entries = [_keep(cache, own, name, parts, size) for size, name, parts in found[:_MOST]]
    return [entry for entry in entries if entry is not None]


def _datasets(outputs: Iterable[Delivered], files: Iterable[DeliveredFile]) -> dict[str, _Files]:
    """The datasets that delivered files make up, by name."""
    folders = [
        each.uri.rstrip("/") + "/"
        for each in outputs
        if each.directory and not is_pattern(each.path) and not each.uri.startswith("/")
    ]  # of a folder on a storage that nodes share only the large files come, each by itself
    found: dict[str, _Files] = {}
    trees: dict[str, dict[str, DeliveredFile]] = {}
    for file in files:
        if not (file.version and file.place):
            continue
        folder = next((folder for folder in folders if file.uri.startswith(folder)), None)
        if folder is None:
            found[versioned(file.uri, file.version)] = {"": file}
        else:
            trees.setdefault(folder, {})[file.uri.removeprefix(folder)] = file
    for folder, parts in trees.items():
        if any({"", ".", ".."} & set(inner.split("/")) for inner in parts):
            continue  # a path out of the dataset: readers refuse such a folder (`Origins.listing`)
        # As a store lists them: by bucket and key, without the ids of versions.
        tags = {file.uri.partition("://")[2]: file.version.partition(" ")[0] for file in parts.values()}
        found[versioned(folder, folder_version(tags))] = parts
    return found


def _keep(cache: Cache, own: Path, name: str, parts: _Files, size: int) -> Entry | None:
    """Make one dataset; None if it cannot be made."""
    there = cache.find(name)
    if there is not None:
        return there
    into: Path | None = None
    try:
        into = cache.temporary()
        target = into / file_name(name)
        for inner, file in parts.items():
            path = target / inner if inner else target
            path.parent.mkdir(parents=True, exist_ok=True)
            assert file.place is not None
            _bring(file.place, own, str(path))
        if seal(target) != size:
            raise Unsafe("it has another size than was delivered")
        entry = Entry(name, size, target.name, "" not in parts, parse(name).version)
        cache.publish(into, entry)
    except (Unsafe, OSError) as error:
        log.info("no copy of a delivered object", uri=redacted(parse(name).uri), why=str(error))
        if into is not None:
            shutil.rmtree(into, ignore_errors=True)
        return None
    return entry


def _bring(place: SourceFile, own: Path, target: str) -> None:
    """Move a file to a new path, or copy it to another disk.

    Raises:
        Unsafe: It is not the file that was delivered, or other accounts or programs may write to it.
        OSError: It cannot be moved.
    """
    name, path = os.path.basename(place.path), place.path
    parts_of(path.removeprefix(f"{own}/"))
    with safe_paths.parent(path) as at, Opened(safe_paths.open_file(at, name)) as reading:
        status = os.fstat(reading)
        if os.geteuid() not in (0, status.st_uid):
            raise Unsafe(f"{path} belongs to another account, as of a container's root")
        if (status.st_ino, status.st_mtime_ns, status.st_nlink) != (place.inode, place.mtime_ns, 1):
            raise Unsafe(f"{path} was written to or replaced since it was delivered, or has a second name")
        try:
            os.rename(name, target, src_dir_fd=at)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            check_room(Path(target).parent, status.st_size)
            with Opened(new_file(None, target)) as writing:
                copy_bytes(reading, writing)
                os.fchmod(writing, plain_mode(status.st_mode) | 0o400)
        else:
            if os.lstat(target).st_ino != status.st_ino:
                raise Unsafe(f"{path} was replaced")
