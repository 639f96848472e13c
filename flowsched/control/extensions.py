"""Plugins of other packages: found by the entry points of the group `flowsched.plugins`, loaded, and looked at."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Final

from flowsched.errors import ConfigurationError
from flowsched.scheduling.extension import Offered, offered

GROUP: Final = "flowsched.plugins"


@dataclass(frozen=True, slots=True)
class Found:
    """What is installed.

    Args:
        plugins: By name.
        broken: Entry points that gave no plugin, by name: why.
        origins: By name, which distribution offers it.
    """

    plugins: Mapping[str, Offered] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)


def find_plugins() -> Found:
    """Load every entry point of the group, by name; one that fails keeps no other from being found.

    A package that was installed meanwhile is found too; code that has been loaded once stays as it was loaded.
    """
    importlib.invalidate_caches()
    plugins: dict[str, Offered] = {}
    broken: dict[str, str] = {}
    origins: dict[str, str] = {}
    points = metadata.entry_points(group=GROUP)
    for point in sorted(points, key=lambda each: (each.name, each.value)):
        origin = f"{point.dist.name} {point.dist.version}" if point.dist is not None else ""
        if point.name in origins:
            plugins.pop(point.name, None)
            broken[point.name] = f"both {origins[point.name]} and {origin} offer it: uninstall one"
            continue
        origins[point.name] = origin
        try:
            plugins[point.name] = offered(point.name, point.load(), origin)
        except ConfigurationError as error:
            broken[point.name] = str(error)
        except Exception as error:  # noqa: BLE001 - others' code is imported: whatever it raises is told
            broken[point.name] = f"{type(error).__name__}: {error}"
    return Found(plugins, broken, origins)
