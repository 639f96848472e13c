"""Lines of a stream, however long they are and wherever its pieces are cut. Pure."""

from __future__ import annotations

from typing import Final

#: A longer line is dropped: it would be 30 times as long as the largest object that etcd takes.
LONGEST_BYTES: Final = 64 << 20


class Lines:
    """The splitter. aiohttp's own `readline` gives up at 512 KiB, which one large pod exceeds.

    Args:
        longest_bytes: What is longer is dropped, so that a server gone mad cannot fill the memory.
    """

    def __init__(self, longest_bytes: int = LONGEST_BYTES) -> None:
        self._longest = longest_bytes
        self._parts: list[bytes] = []  #: of the line that has begun
        self._size = 0
        self._dropping = False
        self._dropped = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """Take what has arrived; returns the lines that are now complete, without empty ones."""
        first, *rest = piece.split(b"\n")
        self._keep(first)
        if not rest:
            return []
        whole = b"".join(self._parts)
        self._parts, self._size, self._dropping = [], 0, False
        begun = rest.pop()
        lines = [line for line in (whole, *rest) if line]
        self._keep(begun)
        return lines

    def take_dropped(self) -> int:
        """How many lines have been dropped since the last call."""
        dropped, self._dropped = self._dropped, 0
        return dropped

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._dropping:
            return
        if self._size > self._longest:
            self._dropping = True
            self._dropped += 1
            self._parts.clear()
        elif part:
            self._parts.append(part)
