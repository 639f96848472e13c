"""Files outside of attempts' folders, by the live attempt that writes each: two attempts never write one at the same time.

If a client dies after it sent a task and before it stored the id, it sends the task again; both tasks then name the same files. The
second attempt waits here until the first is gone, with all its processes, and then writes the files anew. Attempts write in the
order of their entry, for all of their paths alike, so no attempt waits for one that waits for it.
"""

from __future__ import annotations

import os

from flowsched.cluster.local.orders import outside
from flowsched.cluster.local.runner.deliver import mounted_at
from flowsched.cluster.local.runner.places import canonical
from flowsched.executor.protocol import Pod

#: The task of an attempt, or the gang of a member: members of a gang share files on purpose.
Owner = tuple[str, str, int]


def writes_outside(pod: Pod) -> bool:
    """Whether `written_paths` may find a path. Does not ask the file system."""
    container = pod.container
    return container is not None and bool(container.outputs or container.mounts)


def written_paths(pod: Pod) -> frozenset[str]:
    """The files that a pod writes outside of its folder. Blocks: it follows links and `..`, so that two spellings are one file.

    Folders and wildcards are left out, because several tasks may deliver different files into one folder.
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
            if path is not None:
                paths.update(mounted_at(canonical(path), outside(container)))
    clean = {os.path.realpath(path) if path.startswith("/") else path for path in paths}
    return frozenset(path for path in clean if not path.startswith("/dev/"))


class Writers:
    """The live attempts by the paths that they write, in the order of their entry."""

    def __init__(self) -> None:
        self._paths: dict[str, frozenset[str]] = {}  #: by name of the attempt
        self._owners: dict[str, Owner] = {}
        self._words: dict[str, str] = {}  #: attempts in words
        self._queues: dict[str, list[str]] = {}  #: names by path

    def enter(self, pod: Pod, paths: frozenset[str]) -> None:
        """Add an attempt behind those that are there. A second time does nothing.

        Args:
            pod: The attempt.
            paths: The files that it writes, see `written_paths`.
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
        """Why an attempt waits, in words; "" if it may start."""
        other = self.before(name)
        return "" if other is None else f"{self._words[other[0]]} still writes {other[1]}"

    def leave(self, name: str) -> list[str]:
        """Remove an attempt; returns the attempts behind it. `before` says which of them may start now, or have started."""
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
