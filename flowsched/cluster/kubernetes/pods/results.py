"""Ends of our pods of which not all fits into a termination message (4 KiB): the rest is asked of the node's agent.

That is the outputs of a task, where there are many, and what the steps of a container task have printed last.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import structs

from flowsched.background import BackgroundTasks
from flowsched.cluster.kubernetes.agents import Agents
from flowsched.cluster.kubernetes.objects.pod import Pod as PodObject
from flowsched.cluster.kubernetes.pods.status import is_complete, step_names, undelivered
from flowsched.executor.protocol import ClusterEvent, ContainerReport, Pod, PodEnded, PodGone
from flowsched.log_lines import get_logger
from flowsched.values import replace

log = get_logger(__name__)

#: If the agent does not answer for so long, the service treats the pod's outputs as lost.
PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 1.0
#: The last output of steps is worth no longer wait, nor more bytes of each stream.
ENDS_S: Final = 5.0
END_BYTES: Final = 10 << 10


class Results:
    """Passes on the events of our pods, and completes their ends with what only the node agents know.

    Args:
        agents: Of the nodes.
        object_of: The pod as it was last seen.
        order_of: The pod's order.
        report: Takes events.
    """

    def __init__(
        self,
        agents: Agents,
        object_of: Callable[[str], PodObject | None],
        order_of: Callable[[str], Pod | None],
        report: Callable[[ClusterEvent], None],
    ) -> None:
        self._order_of = order_of
        self._agents = agents
        self._object_of = object_of
        self._report = report
        self._background = BackgroundTasks("a result")

    def report(self, event: ClusterEvent) -> None:
        """Pass an event on, completed if need be."""
        obj = self._object_of(event.name) if isinstance(event, PodEnded | PodGone) else None
        if obj is not None and isinstance(event, PodEnded) and event.usage.disk_bytes < 0:
            moved, cpu_ms = self._agents.loads.used_by(obj.metadata.uid)  # no step of the pod has reported it
            usage = replace(event.usage, disk_bytes=moved, cpu_ms=event.usage.cpu_ms or cpu_ms)
            event = structs.replace(event, usage=usage)
        failed = isinstance(event, PodGone) or (
            isinstance(event, PodEnded) and bool(event.exit_code or event.reason)
        )
        if obj is not None and isinstance(event, PodEnded | PodGone) and failed:
            order = self._order_of(event.name)
            if order is not None:
                self._background.begin(self._drop(order, obj.spec.node_name))
        if obj is not None and isinstance(event, PodEnded) and event.container is not None:
            self._background.begin(
                self._report_with_ends(event, event.container, obj), failed=lambda _: self._report(event)
            )
            return
        if obj is None or failed or not isinstance(event, PodEnded) or is_complete(obj):
            self._report(event)
            return
        self._background.begin(self._complete(event, obj), failed=lambda _: self._report(event))

    async def _drop(self, order: Pod, node: str) -> None:
        """Remove what a failed attempt has left: stage-out cannot know how its task ended."""
        for output in order.outputs:
            await self._agents.evict(output.uri, node)

    async def close(self) -> None:
        """Stop. The process that adopts the pod asks the agents again."""
        await self._background.close()

    async def _report_with_ends(self, event: PodEnded, report: ContainerReport, obj: PodObject) -> None:
        """Report the end of a container task, with its steps' last output and all its files if the agent answers soon."""
        names = step_names(obj)
        asked = [
            self._end_of(obj, name, stream)
            for name, step in zip(names, report.steps, strict=False)
            for stream, known in (("stdout", step.stdout), ("stderr", step.stderr))
            if not known
        ]
        found: Mapping[tuple[str, str], str] = {}
        files = report.outputs
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ENDS_S):
                found = dict(await asyncio.gather(*asked))
                if undelivered(obj):
                    result = await self._agents.outputs(obj.spec.node_name, obj.metadata.uid)
                    files = result.files if result is not None and result.files else files
        steps = tuple(
            replace(
                step,
                stdout=step.stdout or found.get((name, "stdout"), ""),
                stderr=step.stderr or found.get((name, "stderr"), ""),
            )
            for name, step in zip(names, report.steps, strict=False)
        )
        self._report(structs.replace(event, container=replace(report, steps=steps, outputs=files)))

    async def _end_of(self, obj: PodObject, container: str, stream: str) -> tuple[tuple[str, str], str]:
        meta = obj.metadata
        query = {"namespace": meta.namespace, "pod": meta.name, "uid": meta.uid, "container": container}
        log = await self._agents.logs(obj.spec.node_name, {**query, "stream": stream, "end": str(END_BYTES)})
        return (container, stream), log[0].decode(errors="replace").replace(
            "\0", "�"
        ) if log is not None else ""

    async def _complete(self, event: PodEnded, obj: PodObject) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE_S
        while loop.time() < end:
            result = await self._agents.outputs(obj.spec.node_name, obj.metadata.uid)
            if result is not None:
                self._report(structs.replace(event, outputs=result.published))
                return
            await asyncio.sleep(_PAUSE_S)
        log.warning("outputs are not known", pod=event.name, node=obj.spec.node_name)
        self._report(PodGone(event.name, event.at_ms, "AgentUnreachable", started=True, ran_ms=event.ran_ms))
