"""The section `[flowsched]` of miniwdl's configuration."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from WDL.runtime import config

from flowsched.client.calls import DEFAULT_URL

SECTION: Final = "flowsched"
#: Every option with its default. Any of them may be given as MINIWDL__FLOWSCHED__<NAME> too: that is miniwdl's own rule.
DEFAULTS: Final = {
    "url": "",
    "token": "",
    "queue": "default",
    "priority": "0",
    "memory": "2G",
    "timeout": "",
    "interruptions": "3",
    "patience": "600",
    "plan": "true",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """What the backend is told once for all tasks."""

    url: str
    token: str | None
    queue: str
    priority: int
    memory: str  #: of a task that says nothing of it
    timeout: str  #: of one try of a task, as in a workflow document; "" = none
    interruptions: int  #: how often a task is tried anew that was taken away, whatever its `preemptible` says
    patience_s: float  #: how long the service may be away
    plan: bool  #: whether the service is told the whole workflow when it begins


def read(cfg: config.Loader) -> Settings:
    """Read the section. Server and token come from the environment (FLOWSCHED_SERVER, FLOWSCHED_TOKEN) where it is silent.

    Raises:
        ValueError: A number is none; the message names the option.
    """

    def text(name: str) -> str:
        return cfg.get(SECTION, name, DEFAULTS[name]).strip()

    return Settings(
        url=text("url") or os.environ.get("FLOWSCHED_SERVER", "") or DEFAULT_URL,
        token=text("token") or os.environ.get("FLOWSCHED_TOKEN") or None,
        queue=text("queue"),
        priority=cfg.get_int(SECTION, "priority", int(DEFAULTS["priority"])),
        memory=text("memory"),
        timeout=text("timeout"),
        interruptions=cfg.get_int(SECTION, "interruptions", int(DEFAULTS["interruptions"])),
        patience_s=cfg.get_float(SECTION, "patience", float(DEFAULTS["patience"])),
        plan=cfg.get_bool(SECTION, "plan", DEFAULTS["plan"] == "true"),
    )
