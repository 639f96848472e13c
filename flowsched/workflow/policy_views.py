"""What the API answers about the scheduler's policy: one set of structs for both sides."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from flowsched.workflow.views import View


class RefusedView(View, kw_only=True):
    """A profile document that changed nothing, and everything that is wrong with it."""

    at: datetime
    source: str
    faults: list[dict[str, str]]


class ProfileView(View, kw_only=True):
    """The profile in force."""

    name: str
    source: str  #: a file, the API, or built in
    since: datetime
    kept: bool  #: whether a restart finds it again
    document: dict[str, Any]  #: all of it, with what was inherited
    refused: RefusedView | None = None  #: what was refused since, the last of them


class PluginView(View, kw_only=True):
    """A plugin of the scheduler."""

    name: str
    kind: str = ""  #: filter, cost, queue-order or victim
    origin: str = ""  #: the package that offers it
    about: str = ""
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)  #: name -> default
    used_by: list[str] = msgspec.field(default_factory=list)  #: profiles in force that name it
    problem: str = ""  #: why it does not work at all
    failures: int = 0  #: how often it failed under the profiles in force
    last_failure: str = ""
