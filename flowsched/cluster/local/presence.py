"""Whether a cluster's folders are there: what is missing below a folder that is away says nothing about attempts.

A disk that is not mounted leaves an empty folder of the same name, and a root that was renamed leaves none. A folder is there if
its path leads to the folder that was opened.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path


class Presence:
    """The folders that a service has opened."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, int]] = {}

    def expect(self, folders: Iterable[Path]) -> None:
        """These are there from now on."""
        for folder in folders:
            found = os.stat(folder)
            self._known[str(folder)] = found.st_dev, found.st_ino

    def away(self) -> str:
        """Which folder is away, in words; "" = none."""
        for path, known in self._known.items():
            try:
                found = os.stat(path)
            except OSError as error:
                return f"the folder {path} is away ({error.strerror}): put it back, running tasks wait for it"
            if (found.st_dev, found.st_ino) != known:
                return (
                    f"the folder {path} is another one than the service has opened (an unmounted disk?): put that one back, "
                    "running tasks wait for it"
                )
        return ""

    def check(self) -> None:
        """Make sure that what is missing is really missing.

        Raises:
            OSError: A folder is away.
        """
        if away := self.away():
            raise OSError(errno.ESTALE, away)
