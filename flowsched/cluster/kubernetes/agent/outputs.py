"""Outputs: the files that a task left in its working folder become datasets of the node's cache, all or none.

`runner.outputs` decides which paths may be outputs, and how they leave the folder. The agent may be killed at any step:

    1. all outputs are found, and the list is written down (`Page.moving`)
    2. each moves into a box of its own, outgoing/<uid>/<number>/, by one rename (or is copied there)
    3. it is sealed: owned by the agent, read-only, on the disk
    4. the box is renamed to the dataset's folder in the cache
    5. the answer is written down (`Page.outcome`)

After a crash the next agent continues at the first step that is missing; a box is never lost, as temporary folders are.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from flowsched.cluster.local.runner import trees
from flowsched.cluster.local.runner.outputs import Found, Refused, move_out
from flowsched.cluster.local.runner.safe_paths import Unsafe
from flowsched.cluster.node.cache import Cache, Entry, stored_name


class Publisher:
    """Moves outputs into the cache.

    Args:
        cache: The node's.
        outgoing: For the boxes; on the cache's file system.
        at: Told of each step that is done.
    """

    def __init__(self, cache: Cache, outgoing: Path, at: Callable[[str], object] = lambda _: None) -> None:
        self._cache = cache
        self._outgoing = outgoing
        self._at = at

    def publish(self, uid: str, work: int, moving: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Publish the outputs that were found; outputs that were published before stay as they are. Blocks.

        Returns:
            Of each output `name`, `uri`, `size_bytes` and `value`.

        Raises:
            Refused: The task's folder is no longer as it was found.
            OSError: It cannot be done now.
        """
        answers = []
        for number, record in enumerate(moving):
            found = Found(**record)
            try:
                entry = self._publish(self._outgoing / uid / str(number), work, found)
            except Unsafe as error:
                raise Refused("OutputRefused", f"output {found.name!r}: {error}") from error
            answers.append(
                {"name": found.name, "uri": found.uri, "size_bytes": entry.size_bytes, "value": found.value}
            )
        return answers

    def clear(self, uid: str) -> None:
        """Remove the boxes of a pod."""
        shutil.rmtree(self._outgoing / uid, ignore_errors=True)

    def _publish(self, box: Path, work: int, found: Found) -> Entry:
        there = self._cache.find(found.uri)
        if there is not None:
            return there
        payload = box / stored_name(found.way[-1])
        if not os.path.lexists(payload):
            box.mkdir(parents=True, exist_ok=True)
            move_out(work, found, str(payload))
            self._at("moved")
        size = trees.seal(str(payload))
        self._at("sealed")
        entry = Entry(found.uri, size, payload.name, payload.is_dir())
        self._cache.publish(box, entry)
        self._at("published")
        return entry
