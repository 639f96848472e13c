"""The events of an executor on their way to the service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from flowsched.executor.protocol import ClusterEvent, PodEnded, PodGone


class EventQueue:
    """Events for one reader, in batches.

    Events are dropped until the reader listens: while this process does not lead, no engine needs them, and a new leader asks for
    the whole state.

    Args:
        is_listening: Whether events are kept from the start.
    """

    def __init__(self, *, is_listening: bool = False) -> None:
        self._pending: list[ClusterEvent] = []
        self._arrived = asyncio.Event()
        self._listening = is_listening
        self._closed = False

    def listen(self) -> None:
        """Keep events from now on."""
        self._listening = True

    def put(self, event: ClusterEvent) -> None:
        """Add an event."""
        if self._listening:
            self._pending.append(event)
            self._arrived.set()

    def keep(self, wanted: Callable[[ClusterEvent], bool]) -> None:
        """Drop every event that is not wanted."""
        self._pending = [event for event in self._pending if wanted(event)]

    def ended(self) -> set[str]:
        """The pods with an end that the reader has not taken yet."""
        return {event.name for event in self._pending if isinstance(event, PodEnded | PodGone)}

    def drain(self) -> list[ClusterEvent]:
        """All events since the last call."""
        batch, self._pending = self._pending, []
        return batch

    def close(self) -> None:
        """End the batches after the last."""
        self._closed = True
        self._arrived.set()

    async def batches(self) -> AsyncIterator[Sequence[ClusterEvent]]:
        """Events as they come; ends after `close`."""
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            batch = self.drain()
            if batch:
                yield batch
            if self._closed and not self._pending:
                return
