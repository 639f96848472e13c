"""The profile in force and the plug-ins that are installed: how it is replaced, and what became of documents that were refused.

A profile file is looked at every half second; one that has changed (and has stood still since) is read and checked. If it is
good it replaces the profile in force between two steps; if not, the old one stays, and the fault is reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from flowsched.aside import aside
from flowsched.entry_points import entries
from flowsched.errors import ConfigurationError, Conflict, Fault, InvalidDocument, InvalidRequest
from flowsched.log_lines import get_logger
from flowsched.scheduling.policy.extension import Offered, offered
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.scheduling.policy.profile import BUILT_IN, Policies, policies_from, rehearse
from flowsched.tokens import write_whole
from flowsched.workflow.formats.yaml_text import read_yaml

GROUP: Final = "flowsched.plugins"


class Found(msgspec.Struct, frozen=True):
    """The installed plugins.

    Args:
        plugins: By name.
        broken: Entry points that gave no plugin, by name: why.
        origins: By name, which distribution offers it.
    """

    plugins: Mapping[str, Offered] = msgspec.field(default_factory=dict)
    broken: Mapping[str, str] = msgspec.field(default_factory=dict)
    origins: Mapping[str, str] = msgspec.field(default_factory=dict)


def find_plugins() -> Found:
    """Load every entry point of the group, by name; one that fails keeps no other from being found.

    A package that was installed meanwhile is found too; code that has been loaded once stays as it was loaded.
    """
    plugins: dict[str, Offered] = {}
    broken: dict[str, str] = {}
    installed = entries(GROUP)
    for name, entry in installed.items():
        try:
            plugins[name] = offered(name, entry.load(), entry.origin)
        except ConfigurationError as error:
            broken[name] = str(error)
    return Found(plugins, broken, {name: entry.origin for name, entry in installed.items()})


# ---- the profiles in force ----


log = get_logger(__name__)

#: Between two looks at the file; and at what became of plugins.
POLL_S: Final = 0.5
#: PyYAML, which is written in Python, takes so many times as long for a byte as the check of a workflow does.
YAML_COST: Final = 100
OVER_THE_API: Final = "the API"
_Mark = tuple[int, int, int]


class Refused(msgspec.Struct, frozen=True):
    """A document that did not replace the profile in force."""

    at_ms: int
    source: str
    faults: tuple[Fault, ...]


def read_policies(raw: bytes, found: Found, base: str = BUILT_IN) -> Policies:
    """Check a profile document in YAML or JSON, and let its plugins answer once.

    Raises:
        InvalidRequest: It cannot be read, or (InvalidDocument) has faults.
    """
    policies = policies_from(read_yaml(raw), found.plugins, found.broken, base=base)
    rehearse(policies)
    return policies


class ProfileBook:
    """The profiles in force.

    Attributes:
        policies: The profiles in force.
        found: The plugins that were installed when they were checked.
        source: Where they come from: a file, the API, or the built-in ones.
        since_ms: Since when.
        refused: The last document that was refused since.
        changed: Told the profile whenever it is another.
    """

    def __init__(
        self, profile: Profile = PROFILES[BUILT_IN], *, path: Path | None = None, clock: Callable[[], int]
    ) -> None:
        self.policies = Policies(profile, {profile.name: profile})
        self.found = Found()
        self.path = path
        self.source = "built in"
        self.refused: Refused | None = None
        self.changed: Callable[[Profile], None] = lambda _: None
        self._base = profile.name
        self._clock = clock
        self.since_ms = clock()
        self._read_mark: _Mark | None = None  #: of the file as it was read last
        self._moving: _Mark | None = None  #: of the file as it was seen to change
        self._logged: dict[int, int] = {}  #: trouble that has been logged, by identity
        if path is not None:
            self._open(path)

    @property
    def profile(self) -> Profile:
        """The default profile in force, with those of queues in it."""
        return self.policies.default

    @property
    def persists(self) -> bool:
        """Whether it would be in force after a restart too."""
        return self.source != OVER_THE_API

    def _open(self, path: Path) -> None:
        """Read the file for the first time: a service does not start with a profile that is wrong.

        Raises:
            ConfigurationError: It cannot be read.
            InvalidRequest: It is wrong.
        """
        self._read_mark = _mark(path)
        try:
            raw = path.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"--profile {path}: {error.strerror}") from error
        self._install(read_policies(raw, self.refresh_plugins(), self._base), str(path))

    def refresh_plugins(self) -> Found:
        """Find the plugins that are installed now."""
        self.found = find_plugins()
        return self.found

    def now(self) -> int:
        """Wall-clock ms."""
        return self._clock()

    def _install(self, policies: Policies, source: str) -> None:
        self.policies, self.source = policies, source
        self.since_ms, self.refused = self._clock(), None
        self._logged.clear()
        self.changed(policies.default)

    async def apply(self, raw: bytes) -> None:
        """Replace the profile in force. Where there is a profile file, that is what is replaced.

        Raises:
            InvalidRequest: The document is wrong; what was in force stays.
            Conflict: The file cannot be written.
        """
        policies = await self._read(raw)
        if self.path is not None:
            _replace(self.path, raw)
            self._read_mark = _mark(self.path)
        self._install(policies, OVER_THE_API if self.path is None else str(self.path))
        log.info("profile in force", profile=policies.default.name, source=self.source)

    async def _read(self, raw: bytes) -> Policies:
        return await aside(len(raw) * YAML_COST, read_policies, raw, self.refresh_plugins(), self._base)

    async def poll(self) -> bool:
        """Look at the file, and take what it says if it has changed and stands still; True if it was read."""
        if self.path is None:
            return False
        mark = _mark(self.path)
        if mark == self._read_mark:
            self._moving = None
            return False
        if mark != self._moving:  # it is being written, perhaps: look again
            self._moving = mark
            return False
        self._read_mark, self._moving = mark, None
        source = str(self.path)
        try:
            raw = self.path.read_bytes()
            self._install(await self._read(raw), source)
            log.info("profile in force", profile=self.profile.name, source=source)
        except InvalidDocument as error:
            self._refuse(source, error.faults)
        except InvalidRequest as error:
            self._refuse(source, (Fault("$", str(error), "a profile document"),))
        except OSError as error:
            self._refuse(source, (Fault("$", error.strerror or str(error), "a file that can be read"),))
        return True

    def _refuse(self, source: str, faults: tuple[Fault, ...]) -> None:
        self.refused = Refused(self._clock(), source, faults)
        log.warning(
            "profile refused, the old one stays", source=source, in_force=self.profile.name,
            faults=[str(fault) for fault in faults[:10]],
        )  # fmt: skip

    def log_trouble(self) -> None:
        """Log the plugins that have failed since this was asked last."""
        for guard in self.policies.guards:
            trouble, logged = guard.trouble, self._logged.get(id(guard), 0)
            if trouble.times > logged and trouble.times >= 2 * logged:  # at first, and then ever more seldom
                self._logged[id(guard)] = trouble.times
                log.warning("plugin failed", plugin=guard.name, times=trouble.times, error=trouble.last)

    async def run(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(POLL_S)
            await self.poll()
            self.log_trouble()


def _mark(path: Path) -> _Mark | None:
    """A file's version, by its time, size and inode; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _replace(path: Path, raw: bytes) -> None:
    """Write the file as a whole, or not at all."""
    try:
        write_whole(path, raw, path.stat().st_mode & 0o777 if path.exists() else 0o644)
    except OSError as error:
        raise Conflict(
            f"the profile of this service is {path}, which cannot be written ({error.strerror}): change it where it lies"
        ) from error
