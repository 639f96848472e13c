"""The SDK: submit workflows from Python, follow them, read what they wrote. Knows the service by its HTTP API only.

    async with flowsched.Client() as client:
        run = await client.submit(workflow)
        print((await run.wait()).state)

Names are loaded when they are asked for: building a document needs no HTTP library.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in `flowsched`

#: Where names are that are no views.
_HOMES = {
    "Client": "flowsched.client.calls",
    "Reference": "flowsched.client.building",
    "Run": "flowsched.client.calls",
    "StageHandle": "flowsched.client.building",
    "SyncClient": "flowsched.client.blocking",
    "SyncRun": "flowsched.client.blocking",
    "Workflow": "flowsched.client.building",
}

__all__ = [
    "AttemptUseView",
    "AttemptView",
    "CacheView",
    "CancelledView",
    "ChoiceView",
    "Client",
    "DrainView",
    "EventView",
    "ExplanationView",
    "IdleReportView",
    "IdleView",
    "ImageView",
    "NodeCostView",
    "NodeView",
    "OutputView",
    "PlanSummary",
    "PlanView",
    "PluginView",
    "ProfileView",
    "QueueUserView",
    "QueueView",
    "Reference",
    "RefusedView",
    "Run",
    "StageHandle",
    "StageView",
    "SuggestionView",
    "SyncClient",
    "SyncRun",
    "TaskView",
    "TimelineView",
    "UsageRowView",
    "UsageSumView",
    "UsageView",
    "Views",
    "WaitingView",
    "Workflow",
    "WorkflowView",
]

if TYPE_CHECKING:
    from flowsched.client.blocking import SyncClient, SyncRun
    from flowsched.client.building import Reference, StageHandle, Workflow
    from flowsched.client.calls import Client, Run
    from flowsched.workflow.views import (
        AttemptUseView,
        AttemptView,
        CacheView,
        CancelledView,
        ChoiceView,
        DrainView,
        EventView,
        ExplanationView,
        IdleReportView,
        IdleView,
        ImageView,
        NodeCostView,
        NodeView,
        OutputView,
        PlanSummary,
        PlanView,
        PluginView,
        ProfileView,
        QueueUserView,
        QueueView,
        RefusedView,
        StageView,
        SuggestionView,
        TaskView,
        TimelineView,
        UsageRowView,
        UsageSumView,
        UsageView,
        Views,
        WaitingView,
        WorkflowView,
    )
else:  # type checkers see the imports above alone, so that they refuse names that do not exist

    def __getattr__(name: str) -> object:
        """Load a public name from its module."""
        if name in __all__:
            from importlib import import_module

            return getattr(import_module(_HOMES.get(name, "flowsched.workflow.views")), name)
        raise AttributeError(f"module 'flowsched.client' has no attribute {name!r}")

    def __dir__() -> list[str]:
        """The names for completion."""
        return __all__
