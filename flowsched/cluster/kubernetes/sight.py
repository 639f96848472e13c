"""The file system as the steps of a container task see it, from a container that has other mounts. It blocks.

A path is followed part by part: where a part is a link, its target is again a path of the task's container, and what lies in no
volume (the image's own files, /proc, our own) is not there. So a link can never lead to something that the task could not read.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from flowsched.cluster.kubernetes.places import place_in, tidy
from flowsched.cluster.running import patterns

_MOST_LINKS: Final = 40
#: Folders in each other: a tree is walked by recursion, and links may lead round in a circle.
_DEEPEST: Final = 100


class Sight:
    """Follows paths of a container.

    Args:
        view: (path of the container, place), the longest path first.
        inputs: Where we have the volume that relative places are in.
    """

    def __init__(self, view: Sequence[Sequence[str]], inputs: str) -> None:
        self._view = [tuple(each) for each in view]
        self._inputs = inputs

    def real(self, path: str) -> str | None:
        """Where we find what the task finds at a path, all links followed; None if it is not there, or the image's own."""
        reached, links = "", 0
        ahead = deque(part for part in tidy(path).split("/") if part)
        while ahead:
            name = ahead.popleft()
            if name == "..":
                reached = os.path.dirname(reached).rstrip("/")
                continue
            here = f"{reached}/{name}"
            found = self._at(here)
            if found is None:
                if not self._leads_to_volume(here):
                    return None
            elif os.path.islink(found):
                links += 1
                if links > _MOST_LINKS:
                    return None
                target = os.readlink(found)
                reached = "" if target.startswith("/") else reached
                ahead.extendleft(part for part in reversed(target.split("/")) if part not in ("", "."))
                continue
            elif not os.path.lexists(found):
                return None
            reached = here
        return self._at(reached or "/")

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder at a path."""
        real = self.real(path)
        return real is not None and os.path.isdir(real)

    def files_below(self, folder: str, depth: int = 0) -> Iterator[str]:
        """The paths of all files in a folder and below it, in the order of their names."""
        for name in self._names(folder):
            path = f"{folder.rstrip('/')}/{name}"
            real = self.real(path)
            if real is None:
                continue
            mode = os.stat(real).st_mode
            if stat.S_ISDIR(mode) and depth < _DEEPEST:
                yield from self.files_below(path, depth + 1)
            elif stat.S_ISREG(mode):
                yield path

    def matches(self, pattern: str) -> list[str]:
        """The paths that fit a pattern (see `running.patterns`), in the order of their names."""
        found = patterns.matches(tidy(pattern), self._names, self._is_plain_folder)
        return [path for path in found if self.real(path) is not None]

    def _is_plain_folder(self, path: str) -> bool:
        real = self._at(path)
        return real is not None and os.path.isdir(real) and not os.path.islink(real)

    def _names(self, folder: str) -> list[str]:
        real = self.real(folder)
        try:
            return sorted(os.listdir(real)) if real is not None else []
        except OSError:
            return []

    def _at(self, path: str) -> str | None:
        place = place_in(self._view, path)
        if not place:
            return None
        return place if place.startswith("/") else f"{self._inputs}/{place}"

    def _leads_to_volume(self, path: str) -> bool:
        return any(mounted.startswith(f"{path}/") for mounted, _ in self._view)
