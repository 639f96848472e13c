"""flowsched: a workflow-engine backend with dependency-aware, data-aware gang scheduling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowsched.client import Client, Workflow

__version__ = "0.1.0"
__all__ = ["Client", "Workflow", "__version__"]


def __getattr__(name: str) -> Any:
    """Load the SDK only when it is asked for: `import flowsched` stays cheap for the runner and the CLI."""
    if name in ("Client", "Workflow"):
        from flowsched import client

        return getattr(client, name)
    raise AttributeError(f"module 'flowsched' has no attribute {name!r}")
