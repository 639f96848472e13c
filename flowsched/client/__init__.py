"""The SDK: submit workflows from Python, follow them, read what they wrote. Knows the service by its HTTP API only.

    async with flowsched.Client() as client:
        run = await client.submit(workflow)
        print((await run.wait()).state)

Names are loaded when they are asked for: building a document needs no HTTP library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowsched.client.blocking import SyncClient, SyncRun
    from flowsched.client.building import Reference, StageHandle, Workflow
    from flowsched.client.calls import Client, Run
    from flowsched.workflow.views import Views

__all__ = ["Client", "Reference", "Run", "StageHandle", "SyncClient", "SyncRun", "Views", "Workflow"]

_HOMES = {
    "Client": "flowsched.client.calls",
    "Reference": "flowsched.client.building",
    "Run": "flowsched.client.calls",
    "StageHandle": "flowsched.client.building",
    "SyncClient": "flowsched.client.blocking",
    "SyncRun": "flowsched.client.blocking",
    "Views": "flowsched.workflow.views",
    "Workflow": "flowsched.client.building",
}


def __getattr__(name: str) -> Any:
    """Load a public name from its module."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'flowsched.client' has no attribute {name!r}")
