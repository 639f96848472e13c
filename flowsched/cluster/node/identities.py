"""Identities: whether datasets from outside have changed, for the cache of results; sizes and versions of shared files."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from flowsched.cluster.local.runner.safe_paths import Unsafe
from flowsched.cluster.local.runner.trees import file_version
from flowsched.cluster.node.origins import NotFetched, Origins
from flowsched.executor.protocol import Fingerprint

#: Datasets that are identified together: each waits for a disk or a network most of the time.
_AT_A_TIME: Final = 32
#: So many digests of contents are remembered, by what `Origins` tells without reading: to read a genome again takes minutes.
_REMEMBERED: Final = 100_000
#: A size is taken for true so long: a hundred tasks that start together read one reference.
_SIZE_S: Final = 60.0
#: A folder with more entries than that has no known size: to look at all of them takes longer than the answer is worth.
_MOST_ENTRIES: Final = 1_000
#: Submissions wait so long for sizes. The thread goes on, and the next question has the sizes that it finds.
_PATIENCE_S: Final = 1.0
#: The end of an attempt waits so long for the versions of its files. A look takes milliseconds while the file's server answers.
_LOOK_S: Final = 3.0


class Identities:
    """Looks at datasets in threads of its own, which a slow server may hold up."""

    def __init__(self, origins: Origins) -> None:
        self._origins = origins
        self._pool = ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="identities")
        self._digests: dict[tuple[str, str], Fingerprint] = {}
        #: path -> (until when its size counts, monotonic; its size)
        self._sizes: dict[str, tuple[float, int | None]] = {}
        #: One thread, which a network file system may hold up for ever: inputs are identified all the same.
        self._looking = ThreadPoolExecutor(1, thread_name_prefix="looks")
        self._asked: asyncio.Future[None] | None = None  #: the last question about sizes

    async def of(self, uris: Sequence[str], *, by_content: bool) -> dict[str, Fingerprint | str]:
        """As `Executor.fingerprints`."""
        loop, wanted = asyncio.get_running_loop(), list(dict.fromkeys(uris))
        looks = (loop.run_in_executor(self._pool, self._identify, uri, by_content) for uri in wanted)
        return dict(zip(wanted, await asyncio.gather(*looks), strict=True))

    def _identify(self, uri: str, by_content: bool) -> Fingerprint | str:
        try:
            plain = self._origins.fingerprint(uri)
            if not by_content:
                return plain
            known = self._digests.get((uri, plain.version))
            if known is None:
                known = self._origins.fingerprint(uri, by_content=True)
                if len(self._digests) >= _REMEMBERED:
                    self._digests.clear()
                self._digests[uri, known.version] = known
            return known
        except (NotFetched, Unsafe, OSError) as error:
            return str(error)

    async def placed_sizes(self, paths: Sequence[str]) -> dict[str, int]:
        """As `Executor.placed_sizes`. While an earlier question goes on, all sizes are unknown: it may never end."""
        if self._asked is not None and not self._asked.done():
            return {}
        found: dict[str, int] = {}
        measured = asyncio.get_running_loop().run_in_executor(
            self._looking, self._measure, list(paths), found
        )
        self._asked = measured
        await asyncio.wait((measured,), timeout=_PATIENCE_S)
        return dict(found)

    async def versions(self, paths: Sequence[str]) -> dict[str, str]:
        """The versions of the regular files at paths that all users may read, as far as a few seconds suffice to look at them."""
        found: dict[str, str] = {}

        def look() -> None:
            for path in paths:
                at = _entry_at(path, self._origins)
                if at is not None and stat.S_ISREG(at[1].st_mode):
                    found[path] = file_version(at[1])

        looked = asyncio.get_running_loop().run_in_executor(self._looking, look)
        await asyncio.wait((looked,), timeout=_LOOK_S)
        looked.cancel()  # if the thread has not begun with it, it never does
        return dict(found)

    def _measure(self, paths: Sequence[str], found: dict[str, int]) -> None:
        """Find the sizes of files, one after the other."""
        for path in paths:
            now = time.monotonic()
            until, size = self._sizes.get(path, (0.0, None))
            if until < now:
                size = _bytes_at(path, self._origins)
                if len(self._sizes) >= _REMEMBERED:
                    self._sizes.clear()
                self._sizes[path] = now + _SIZE_S, size
            if size is not None:
                found[path] = size


def _bytes_at(uri: str, origins: Origins) -> int | None:
    """The bytes of a file, or of all files of a folder; None if it cannot be looked at, or has too many entries."""
    at = _entry_at(uri, origins)
    if at is None or not stat.S_ISDIR(at[1].st_mode):
        return None if at is None else at[1].st_size
    path, entries, total = at[0], 0, 0
    try:
        for folder, folders, names in os.walk(path):
            entries += len(folders) + len(names)
            if entries > _MOST_ENTRIES:
                return None
            total += sum(os.lstat(os.path.join(folder, name)).st_size for name in names)
    except OSError:
        return None
    return total


def _entry_at(uri: str, origins: Origins) -> tuple[Path, os.stat_result] | None:
    """The real path and the status of a file or folder; None if it cannot be looked at.

    Nor can a file that not all users may read where an agent looks: a task would get its copy, whatever its user may read.
    """
    try:
        path = origins.local_path(uri) or Path()
        status = os.stat(path)
        may_be_read = stat.S_ISDIR(status.st_mode) or origins.all_may_read(path, status)
    except (NotFetched, OSError):
        return None
    return (path, status) if may_be_read else None
