"""The SDK: submit workflows from Python, follow them, read what they wrote. Knows the service by its HTTP API only.

    async with flowsched.Client() as client:
        run = await client.submit(workflow)
        print((await run.wait()).state)

Names are loaded when they are asked for: building a document needs no HTTP library.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in `flowsched`

_HOMES = {
    "AttemptUseView": "flowsched.workflow.views",
    "AttemptView": "flowsched.workflow.views",
    "CacheView": "flowsched.workflow.views",
    "CancelledView": "flowsched.workflow.views",
    "ChoiceView": "flowsched.workflow.views",
    "Client": "flowsched.client.calls",
    "DrainView": "flowsched.workflow.views",
    "EventView": "flowsched.workflow.views",
    "ExplanationView": "flowsched.workflow.views",
    "IdleHourView": "flowsched.workflow.views",
    "IdleReportView": "flowsched.workflow.views",
    "IdleView": "flowsched.workflow.views",
    "ImageView": "flowsched.workflow.views",
    "NodeCostView": "flowsched.workflow.views",
    "NodeView": "flowsched.workflow.views",
    "OutputView": "flowsched.workflow.views",
    "PlanSummary": "flowsched.workflow.views",
    "PlanView": "flowsched.workflow.views",
    "PluginView": "flowsched.workflow.views",
    "ProfileView": "flowsched.workflow.views",
    "QueueUserView": "flowsched.workflow.views",
    "QueueView": "flowsched.workflow.views",
    "Reference": "flowsched.client.building",
    "RefusedView": "flowsched.workflow.views",
    "Run": "flowsched.client.calls",
    "StageHandle": "flowsched.client.building",
    "StageView": "flowsched.workflow.views",
    "SuggestionView": "flowsched.workflow.views",
    "SyncClient": "flowsched.client.blocking",
    "SyncRun": "flowsched.client.blocking",
    "TaskView": "flowsched.workflow.views",
    "TimelineView": "flowsched.workflow.views",
    "UsageRowView": "flowsched.workflow.views",
    "UsageSumView": "flowsched.workflow.views",
    "UsageView": "flowsched.workflow.views",
    "Views": "flowsched.workflow.views",
    "WaitingView": "flowsched.workflow.views",
    "Workflow": "flowsched.client.building",
    "WorkflowView": "flowsched.workflow.views",
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
    "IdleHourView",
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
        IdleHourView,
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
        if name in _HOMES:
            from importlib import import_module

            return getattr(import_module(_HOMES[name]), name)
        raise AttributeError(f"module 'flowsched.client' has no attribute {name!r}")

    def __dir__() -> list[str]:
        """What completion offers."""
        return __all__
