"""Ends of our pods whose outputs do not all fit into a termination message (4 KiB): the rest is asked of the node's agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import structlog

from flowsched.cluster.kubernetes.agents import Agents
from flowsched.cluster.kubernetes.chores import Chores
from flowsched.cluster.kubernetes.objects import Pod as PodObject
from flowsched.cluster.kubernetes.outcomes import told_all
from flowsched.scheduling.executor import ClusterEvent, PodEnded, PodGone

log = structlog.get_logger(__name__)

#: An agent that does not answer for so long has lost what the pod made, as far as anybody can tell.
PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 1.0


class Results:
    """Between our pods and those who hear of them.

    Args:
        agents: Who know the rest.
        object_of: The pod as it was last seen.
        uris_of: What the pod was to write.
        report: Takes events.
    """

    def __init__(
        self,
        agents: Agents,
        object_of: Callable[[str], PodObject | None],
        uris_of: Callable[[str], Sequence[str]],
        report: Callable[[ClusterEvent], None],
    ) -> None:
        self._uris_of = uris_of
        self._agents = agents
        self._object_of = object_of
        self._report = report
        self._chores = Chores("a result")
        self._spawn = self._chores.begin

    def report(self, event: ClusterEvent) -> None:
        """Pass an event on, completed if need be."""
        obj = self._object_of(event.name) if isinstance(event, PodEnded | PodGone) else None
        failed = isinstance(event, PodGone) or (
            isinstance(event, PodEnded) and bool(event.exit_code or event.reason)
        )
        if obj is not None and failed:
            self._spawn(self._drop(self._uris_of(str(getattr(event, "name", ""))), obj.spec.node_name))
        if obj is None or failed or not isinstance(event, PodEnded) or told_all(obj):
            self._report(event)
            return
        self._spawn(self._complete(event, obj))

    async def _drop(self, uris: Sequence[str], node: str) -> None:
        """What a failed attempt has left is nobody's: stage-out cannot know how its task ended."""
        for uri in uris:
            await self._agents.evict(uri, node)

    async def close(self) -> None:
        """Stop; whoever adopts the pod asks again."""
        await self._chores.close()

    async def _complete(self, event: PodEnded, obj: PodObject) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE_S
        while loop.time() < end:
            outputs = await self._agents.outputs(obj.spec.node_name, obj.metadata.uid)
            if outputs is not None:
                self._report(replace(event, outputs=outputs))
                return
            await asyncio.sleep(_PAUSE_S)
        log.warning("outputs are not known", pod=event.name, node=obj.spec.node_name)
        self._report(PodGone(event.name, event.at_ms, "AgentUnreachable", started=True))
