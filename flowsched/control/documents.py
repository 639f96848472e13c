"""Checked documents of workflows: a document that this process has just decoded is not decoded again."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final
from weakref import WeakValueDictionary

from flowsched.aside import aside
from flowsched.store.workflows import Workflows
from flowsched.workflow.document.decode import decode_workflow
from flowsched.workflow.spec import WorkflowSpec

_CACHED: Final = 256
#: Of documents that no live workflow holds, as they were sent.
_CACHED_BYTES: Final = 1 << 20


class Documents:
    """Decoded documents: all that a live workflow holds, and the last few of others, as far as they are small."""

    def __init__(self, reads: Workflows) -> None:
        self._reads = reads
        self._cached: OrderedDict[str, tuple[WorkflowSpec, int]] = OrderedDict()
        self._cached_bytes = 0
        self._live: WeakValueDictionary[str, WorkflowSpec] = WeakValueDictionary()

    def keep(self, workflow: str, spec: WorkflowSpec, size_bytes: int) -> None:
        """Remember one that was just decoded, until `trim` at least."""
        self._live[workflow] = spec
        self._cached_bytes += size_bytes - self._cached.pop(workflow, (spec, 0))[1]
        self._cached[workflow] = spec, size_bytes

    def trim(self) -> None:
        """Keep no more than a few: one decoded document takes up to ten times its bytes."""
        while len(self._cached) > _CACHED or self._cached_bytes > _CACHED_BYTES:
            self._cached_bytes -= self._cached.popitem(last=False)[1][1]

    def __contains__(self, workflow: str) -> bool:
        """Whether the document of this workflow is here, which then exists or has expired. False says nothing."""
        return workflow in self._live

    async def spec(self, workflow: str) -> WorkflowSpec:
        """The checked document of an accepted workflow.

        Raises:
            NotFound: There is no such workflow.
        """
        found = self._live.get(workflow)
        if found is None:
            found = await self.decoded(workflow, await self._reads.spec(workflow))
            self.trim()
        return found

    async def decoded(self, workflow: str, raw: bytes) -> WorkflowSpec:
        """The same, where its bytes have been read already."""
        found = self._live.get(workflow)
        if found is None:
            found = await decode(raw)
            self.keep(workflow, found, len(raw))
        return found


async def decode(raw: bytes) -> WorkflowSpec:
    """`decode_workflow`, in a thread if it may take long."""
    return await aside(len(raw), decode_workflow, raw)
