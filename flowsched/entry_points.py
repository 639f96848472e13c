"""The entry points of installed packages, group by group: plug-ins of the scheduler, and executors."""

from __future__ import annotations

import importlib
from importlib import metadata

import msgspec

from flowsched.errors import ConfigurationError
from flowsched.values import replace


class Entry(msgspec.Struct, frozen=True):
    """One name of a group.

    Args:
        name: The entry point's name.
        origin: The distribution that offers it, and its version; "" if the metadata names none.
        point: Where its code is.
        clash: Why it cannot be used although nothing is wrong with its code; "" = it can.
    """

    name: str
    origin: str
    point: metadata.EntryPoint
    clash: str = ""

    def load(self) -> object:
        """Import what it stands for.

        Raises:
            ConfigurationError: Its code cannot be imported, or several distributions offer the name. The message says why.
        """
        if self.clash:
            raise ConfigurationError(self.clash)
        try:
            return self.point.load()
        except Exception as error:  # others' code is imported: whatever it raises is reported
            raise ConfigurationError(f"{type(error).__name__}: {error}") from error


def entries(group: str) -> dict[str, Entry]:
    """All names of a group, in their order. Imports none of them; a package that was installed meanwhile is found too."""
    importlib.invalidate_caches()
    found: dict[str, Entry] = {}
    for point in sorted(metadata.entry_points(group=group), key=lambda each: (each.name, each.value)):
        origin = f"{point.dist.name} {point.dist.version}" if point.dist is not None else ""
        first = found.setdefault(point.name, Entry(point.name, origin, point))
        if first.point is not point:
            clash = f"both {first.origin} and {origin} offer it: uninstall one"
            found[point.name] = replace(first, clash=clash)
    return found
