"""Events of this node, numbered, for the clients that follow them: the last so many events can be read again.

Numbers begin anew with each run of the agent, which is why they go with its `instance`. A client that has missed more than the
window holds, or followed another instance, reads the whole list of replicas again.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class EventLog:
    """Events of one run of the agent. Used on the event loop only.

    Args:
        instance: Of this run.
        window: How many events are kept.
    """

    def __init__(self, instance: str, window: int = 10_000) -> None:
        self.instance = instance
        self.seq = 0
        self._lines: deque[bytes] = deque(maxlen=window)
        self._bells: set[asyncio.Event] = set()
        self.load: tuple[int, bytes] = (
            0,
            b"",
        )  #: the last measurement, and its number: not kept as an event, since only the newest counts

    def replica(self, uri: str, size_bytes: int, present: bool) -> None:
        """Report that a dataset is here, or no longer is."""
        self._publish(kind="replica", uri=uri, size_bytes=size_bytes, present=present)

    def transfer(
        self,
        uri: str,
        source: str | None,
        moved_bytes: int,
        size_bytes: int,
        error: dict[str, Any] | None = None,
        **piece: Any,
    ) -> None:
        """Report how a transfer ended. `piece`: more of a piece's, see `transfers`."""
        self._publish(
            kind="transfer", uri=uri, source=source, moved_bytes=moved_bytes, size_bytes=size_bytes, error=error,
            **piece,
        )  # fmt: skip

    def measured(self, load: dict[str, Any]) -> None:
        """Send followers what was measured on this node. Followers that connect later do not get it."""
        self.load = (self.load[0] + 1, _line({"seq": self.seq, "kind": "load", "load": load}))
        self._ring()

    def heartbeat(self, seq: int) -> bytes:
        """A line that says no more than that all up to `seq` has been told, and by which instance."""
        return _line({"seq": seq, "kind": "heartbeat", "instance": self.instance})

    def since(self, after: int) -> list[bytes] | None:
        """The lines that follow number `after`; None if some of them are no longer known, or it is of another run."""
        missing = self.seq - after
        if not 0 <= missing <= len(self._lines):
            return None
        return [self._lines[number] for number in range(len(self._lines) - missing, len(self._lines))]

    @contextmanager
    def bell(self) -> Iterator[asyncio.Event]:
        """An event that is set with every report."""
        event = asyncio.Event()
        self._bells.add(event)
        try:
            yield event
        finally:
            self._bells.discard(event)

    def _publish(self, **fields: Any) -> None:
        self.seq += 1
        self._lines.append(_line({"seq": self.seq, **fields}))
        self._ring()

    def _ring(self) -> None:
        for event in self._bells:
            event.set()


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
