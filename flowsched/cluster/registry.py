"""The executors that are installed, by name, and how a service opens the configured one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any, Final

from flowsched.entry_points import Entry, entries
from flowsched.errors import ConfigurationError, FlowschedError
from flowsched.executor.protocol import Executor, ServiceContext
from flowsched.values import replace

GROUP: Final = "flowsched.executors"
#: The executors of flowsched itself, for a checkout that was installed before it had these entry points.
BUILT_IN: Final[Mapping[str, str]] = {
    "kubernetes": "flowsched.cluster.kubernetes.settings:open_cluster",
    "local": "flowsched.cluster.local.settings:open_cluster",
}


def executors() -> dict[str, Entry]:
    """All executors that are installed, by name; none is imported."""
    found = {
        name: Entry(name, "flowsched", EntryPoint(name, where, GROUP)) for name, where in BUILT_IN.items()
    }
    for name, entry in entries(GROUP).items():
        own = found.get(name)
        if own is None or entry.clash:
            found[name] = entry
        elif not entry.origin.startswith("flowsched "):
            found[name] = replace(own, clash=f"both flowsched and {entry.origin} offer it: uninstall one")
    return dict(sorted(found.items()))


def find_executor(name: str) -> Entry:
    """Find an executor by its name.

    Raises:
        ConfigurationError: No package offers an executor of this name.
    """
    found = executors()
    if name not in found:
        raise ConfigurationError(
            f"there is no executor {name!r}; there are {', '.join(found)}. Another one comes with its package: "
            f"{sys.executable} -m pip install PACKAGE. `flowsched doctor` lists them"
        )
    return found[name]


async def open_executor(name: str, settings: Any, service: ServiceContext) -> Executor:
    """Make the executor of a name. It has not been started yet.

    Args:
        name: As it is registered.
        settings: The argument of its factory: `LocalSettings`, `KubernetesSettings`, or the mapping of `--cluster-option`.
        service: The context that the service gives each executor.

    Raises:
        ConfigurationError: There is none of this name, its package is broken, or it refuses the settings.
        OSError: It cannot be made now.
    """
    entry = find_executor(name)
    try:
        factory: Any = entry.load()
    except ConfigurationError as error:
        raise ConfigurationError(f"{_of(entry)} cannot be loaded: {error}") from error
    try:
        executor = await factory(settings, service)
    except (FlowschedError, OSError):
        raise
    except Exception as error:  # others' code: whatever it raises is reported
        raise ConfigurationError(f"{_of(entry)} is broken: {type(error).__name__}: {error}") from error
    if not isinstance(executor, Executor):
        raise ConfigurationError(
            f"{_of(entry)} is broken: {entry.point.value} gave {executor!r}, no Executor"
        )
    return executor


def _of(entry: Entry) -> str:
    return f"the executor {entry.name!r} of {entry.origin}"
