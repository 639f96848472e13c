"""Where a path of a container really is, by the view of `container_paths`. Standard library only: each task imports it."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence


def place_in(view: Iterable[Sequence[str]], path: str) -> str:
    """The place of a path of the container, by a view with the longest paths first; "" if it is the image's own."""
    path = tidy(path)
    for mounted, place in view:
        if path == mounted:
            return place
        if path.startswith(mounted.rstrip("/") + "/"):
            return f"{place}/{path[len(mounted.rstrip('/')) + 1 :]}"
    return ""


def tidy(path: str) -> str:
    """An absolute path without what it need not have."""
    return "/" + posixpath.normpath(path).lstrip("/")
