"""Which live attempt writes which file outside of its own: two never write one at the same time.

A client that was killed between sending a task and writing its id down sends it again; both then name the same files. The
second waits here until the first is gone, with all its processes, and then writes them anew. Attempts come first in the
order in which they were entered, for all of their paths alike, so none waits for one that waits for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from flowsched.executor.protocol import Pod
from flowsched.workflow.spec import Mount

#: The task that an attempt is of, or whose member it is: members of a gang share files on purpose.
Owner = tuple[str, str, int]


def writes_outside(pod: Pod) -> bool:
    """Whether `written_paths` may find any, without asking the file system."""
    container = pod.container
    return container is not None and bool(container.outputs or container.mounts)


def written_paths(pod: Pod) -> frozenset[str]:
    """The files outside of it that a pod writes. Blocks: links and `..` are followed, so that two spellings are one file.

    Folders and wildcards are left out: several tasks may deliver different files into one folder.
    """
    container = pod.container
    if container is None:
        return frozenset()
    paths = {
        output.uri
        for output in container.outputs
        if container.delivers and not output.directory and output.path_prefix is None
    }
    for step in container.steps:
        for path in (step.stdout, step.stderr):
            mounted = _mounted(path, container.mounts) if path is not None else None
            if mounted is not None:
                paths.add(mounted)
    clean = {os.path.realpath(path) if path.startswith("/") else path for path in paths}
    return frozenset(path for path in clean if not path.startswith("/dev/"))


def _mounted(path: str, mounts: Iterable[Mount]) -> str | None:
    path = os.path.normpath(path)
    above = [mount for mount in mounts if path.startswith(os.path.normpath(mount.path).rstrip("/") + "/")]
    if not above:
        return None
    deepest = max(above, key=lambda mount: len(mount.path))
    return deepest.source + path[len(os.path.normpath(deepest.path).rstrip("/")) :]


class Writers:
    """The live attempts by the paths that they write, in the order in which they were entered."""

    def __init__(self) -> None:
        self._paths: dict[str, frozenset[str]] = {}  #: by name of the attempt
        self._owners: dict[str, Owner] = {}
        self._words: dict[str, str] = {}  #: attempts in words
        self._queues: dict[str, list[str]] = {}  #: names by path

    def enter(self, pod: Pod, paths: frozenset[str]) -> None:
        """Add an attempt behind those that are there. A second time does nothing.

        Args:
            pod: The attempt.
            paths: What it writes, see `written_paths`.
        """
        if pod.name in self._owners:
            return
        self._owners[pod.name] = pod.workflow, pod.stage, pod.shard
        self._words[pod.name] = (
            f"attempt {pod.attempt} of task {pod.index} of stage {pod.stage!r} of workflow {pod.workflow}"
        )
        self._paths[pod.name] = paths
        for path in paths:
            self._queues.setdefault(path, []).append(pod.name)

    def before(self, name: str) -> tuple[str, str] | None:
        """An attempt that has to end before this one may start, and the path that both write; None if it may start."""
        for path in sorted(self._paths.get(name, ())):
            queue = self._queues[path]
            for other in queue[: queue.index(name)]:
                if self._owners[other] != self._owners[name]:
                    return other, path
        return None

    def why(self, name: str) -> str:
        """What an attempt waits for, in words; "" if it may start."""
        other = self.before(name)
        return "" if other is None else f"{self._words[other[0]]} still writes {other[1]}"

    def leave(self, name: str) -> list[str]:
        """Take an attempt out; returns those behind it. `before` says which of them may start now, or have started."""
        paths = self._paths.pop(name, frozenset())
        self._owners.pop(name, None)
        self._words.pop(name, None)
        behind: dict[str, None] = {}
        for path in sorted(paths):
            queue = self._queues[path]
            behind.update(dict.fromkeys(queue[queue.index(name) + 1 :]))
            queue.remove(name)
            if not queue:
                del self._queues[path]
        return list(behind)
