"""flowsched: a workflow-engine backend with dependency-aware, data-aware gang scheduling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowsched.client import Client, SyncClient, Workflow
    from flowsched.version import VERSION as __version__

__all__ = ["Client", "SyncClient", "Workflow", "__version__"]


def __getattr__(name: str) -> Any:
    """Load the SDK and the version only when they are asked for: `import flowsched` stays cheap for the runner and the CLI."""
    if name in ("Client", "SyncClient", "Workflow"):
        from flowsched import client

        return getattr(client, name)
    if name == "__version__":
        from flowsched.version import VERSION

        return VERSION
    raise AttributeError(f"module 'flowsched' has no attribute {name!r}")
