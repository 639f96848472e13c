"""A workflow that was submitted: a handle that knows its id and asks the client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from flowsched.workflow.views import EventView, ExplanationView, StageView, WorkflowView

if TYPE_CHECKING:
    from flowsched.client.calls import Client


@dataclass(frozen=True, slots=True)
class Run:
    """One accepted workflow."""

    id: str
    created: bool  #: False: the same document had been accepted under the same key before
    client: Client = field(repr=False, compare=False)

    async def view(self) -> WorkflowView:
        """How it is now."""
        return await self.client.get(self.id)

    async def wait(self, timeout: float | None = None) -> WorkflowView:
        """Wait until it has ended."""
        return await self.client.wait(self.id, timeout)

    async def stages(self) -> list[StageView]:
        """Its stages."""
        return await self.client.stages(self.id)

    def events(self, after: int = 0) -> AsyncIterator[EventView]:
        """What happens in it."""
        return self.client.events(self.id, after)

    def logs(self, stage: str, index: int = 0, *, follow: bool = False) -> AsyncIterator[bytes]:
        """What one of its tasks wrote."""
        return self.client.logs(self.id, stage, index, follow=follow)

    async def explain(self, stage: str | None = None) -> list[ExplanationView]:
        """Why what does not run does not run."""
        return await self.client.explain(self.id, stage)

    async def cancel(self, reason: str | None = None) -> WorkflowView:
        """Stop it: nothing of it starts any more."""
        return await self.client.cancel(self.id, reason)
