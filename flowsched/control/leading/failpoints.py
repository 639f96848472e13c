"""Named points at which tests let the service crash, wait or fail; off unless armed by FLOWSCHED_FAILPOINTS.

`FLOWSCHED_FAILPOINTS="commit.after=kill@3,launch.before=sleep:0.2@1"`: at the third passage of `commit.after` the process is
killed by SIGKILL; at the first of `launch.before` it sleeps. Without `@n` an action happens at every passage. On SQLite
`writer.before_commit` is passed in SQLite's thread, where nothing can sleep.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Mapping
from typing import Final

from flowsched.errors import ConfigurationError

ENVIRONMENT: Final = "FLOWSCHED_FAILPOINTS"
#: Passed on Kubernetes only: where pods are objects of a server, and other clients create some, too.
KUBERNETES: Final = (
    "bind.before", "bind.after", "evict.before", "evict.marked", "evict.first", "kube.created", "kube.bound",
)  # fmt: skip
#: Passed only where caches have a limit, and are full.
CACHES: Final = ("drop.before", "drop.after")
#: Every point there is; arming another one is refused, so that a test cannot pass because of a typing error.
POINTS: Final = (
    "submit.before",
    "submit.after",
    "writer.before_commit",
    "writer.after_commit",
    "commit.before",
    "commit.after",
    "launch.before",
    "launch.after",
    "release.before",
    "transfer.before",
    "recover.before",
    "recover.slice",
    "recover.after",
    "launch.made",
    "launch.ordered",
    "launch.spawned",
    "look.seen",
    "release.marked",
    *KUBERNETES,
    *CACHES,
)


class Failpoints:
    """The armed points of a process."""

    def __init__(self, armed: Mapping[str, tuple[str, int]]) -> None:
        self._armed = armed
        self.passed: Counter[str] = Counter()

    def now(self, name: str) -> None:
        """Pass a point in code that cannot wait: only `kill` acts there."""
        self.passed[name] += 1
        action, at = self._armed.get(name, ("", 0))
        if action == "kill" and (not at or self.passed[name] == at):
            os.kill(os.getpid(), signal.SIGKILL)

    async def __call__(self, name: str) -> None:
        """Pass a point: nothing happens unless it is armed."""
        self.passed[name] += 1
        action, at = self._armed.get(name, ("", 0))
        if not action or (at and self.passed[name] != at):
            return
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        kind, _, argument = action.partition(":")
        if kind == "sleep":
            await asyncio.sleep(float(argument))
        elif kind == "raise":
            raise OSError(f"failpoint {name}: {argument}")


def from_environment(environment: Mapping[str, str]) -> Failpoints:
    """Arm what FLOWSCHED_FAILPOINTS names.

    Raises:
        ConfigurationError: It names a point or an action that does not exist.
    """
    armed: dict[str, tuple[str, int]] = {}
    for entry in filter(None, environment.get(ENVIRONMENT, "").split(",")):
        name, _, rest = entry.partition("=")
        action, _, count = rest.partition("@")
        if name not in POINTS or action.partition(":")[0] not in ("kill", "sleep", "raise"):
            raise ConfigurationError(f"{ENVIRONMENT}: {entry!r} is not POINT=kill|sleep:S|raise:TEXT[@N]")
        armed[name] = (action, int(count or 0))
    return Failpoints(armed)
