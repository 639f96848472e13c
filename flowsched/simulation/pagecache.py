"""What a simulated node's memory keeps of files."""

from __future__ import annotations

from collections import OrderedDict

#: A file of a workload: (number of the workload, number of the file).
FileId = tuple[int, int]


class PageCache:
    """What a node's memory keeps of files, least recently used first out. A file is in it as a whole or not at all."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._held: OrderedDict[FileId, int] = OrderedDict()

    def __contains__(self, file: FileId) -> bool:
        """Whether reading the file costs no disk."""
        return file in self._held

    def copy(self) -> PageCache:
        """As it is now."""
        other = PageCache(self.capacity)
        other.used, other._held = self.used, self._held.copy()
        return other

    def touch(self, file: FileId, size: int) -> None:
        """The file was read or written."""
        if file in self._held:
            self._held.move_to_end(file)
            return
        if size > self.capacity:
            return
        self._held[file] = size
        self.used += size
        while self.used > self.capacity:
            self.used -= self._held.popitem(last=False)[1]

    def forget(self, file: FileId) -> None:
        """The file is deleted."""
        self.used -= self._held.pop(file, 0)
