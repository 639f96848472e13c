"""flowsched: a workflow-engine backend with dependency-aware, data-aware gang scheduling."""

from __future__ import annotations

TYPE_CHECKING = (
    False  # as type checkers read it: `typing` takes half as long to load as Python takes to start
)

__all__ = ["Client", "SyncClient", "Workflow", "__version__", "client", "errors"]

if TYPE_CHECKING:
    from flowsched import client, errors
    from flowsched.client import Client, SyncClient, Workflow
    from flowsched.version import VERSION as __version__
else:  # type checkers see the imports above alone, so that they refuse names that do not exist

    def __getattr__(name: str) -> object:
        """Load the SDK and the version only when they are asked for: `import flowsched` stays cheap for the runner and the CLI."""
        from importlib import import_module

        if name in ("client", "errors"):
            return import_module(f"flowsched.{name}")
        if name in ("Client", "SyncClient", "Workflow"):
            return getattr(import_module("flowsched.client"), name)
        if name == "__version__":
            from flowsched.version import VERSION

            return VERSION
        raise AttributeError(f"module 'flowsched' has no attribute {name!r}")

    def __dir__() -> list[str]:
        """The names for completion."""
        return __all__
