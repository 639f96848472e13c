"""The executors that are installed, by name, and how a service opens the configured one."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from typing import Any, Final

from flowsched.entry_points import Offer, offers
from flowsched.errors import ConfigurationError, FlowschedError
from flowsched.executor.protocol import Executor, ServiceContext
from flowsched.values import replace

GROUP: Final = "flowsched.executors"
#: The executors of flowsched itself, for a checkout that was installed before it had these entry points.
BUILT_IN: Final[Mapping[str, str]] = {
    "kubernetes": "flowsched.cluster.kubernetes.settings:open_cluster",
    "local": "flowsched.cluster.local.settings:open_cluster",
}


def executors() -> dict[str, Offer]:
    """All executors that are installed, by name; none is imported."""
    found = {
        name: Offer(name, "flowsched", EntryPoint(name, where, GROUP)) for name, where in BUILT_IN.items()
    }
    for name, plugin in offers(GROUP).items():
        own = found.get(name)
        if own is None or plugin.clash:
            found[name] = plugin
        elif not plugin.origin.startswith("flowsched "):
            found[name] = replace(own, clash=f"both flowsched and {plugin.origin} offer it: uninstall one")
    return dict(sorted(found.items()))


def find_executor(name: str) -> Offer:
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
    plugin = find_executor(name)
    try:
        factory: Any = plugin.load()
    except ConfigurationError as error:
        raise ConfigurationError(f"{_of(plugin)} cannot be loaded: {error}") from error
    try:
        executor = await factory(settings, service)
    except (FlowschedError, OSError):
        raise
    except Exception as error:  # others' code: whatever it raises is reported
        raise ConfigurationError(f"{_of(plugin)} is broken: {type(error).__name__}: {error}") from error
    if not isinstance(executor, Executor):
        raise ConfigurationError(
            f"{_of(plugin)} is broken: {plugin.point.value} gave {executor!r}, no Executor"
        )
    return executor


def _of(plugin: Offer) -> str:
    return f"the executor {plugin.name!r} of {plugin.origin}"
