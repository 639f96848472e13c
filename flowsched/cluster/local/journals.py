"""The attempts of a runner, read from its journal (`runner.journal` has its form). Pure: bytes in, facts out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from flowsched.cluster.local.runner.journal import texts_in
from flowsched.executor.protocol import (
    ContainerReport,
    DeliveredFile,
    PodEnded,
    PodGone,
    Published,
    SourceFile,
    StepEnd,
    Usage,
    UsedImage,
)


class Life(msgspec.Struct):
    """One attempt."""

    name: str
    started_ms: int | None = None
    pid: int = 0  #: the task's first process
    own: int = 0  #: the process of its own that sees it through, if it has one
    shim: str = ""  #: the process that all its processes stem from, see `kin.identity`
    alone_since: float | None = (
        None  #: monotonic; neither its runner nor its shim has lived since, as observed
    )
    removal: list[str] = msgspec.field(default_factory=list)  #: the command that removes its container
    engine_env: dict[str, str] = msgspec.field(default_factory=dict)
    waits: str = ""  #: why its results wait
    reason: str = ""  #: the same in a word
    publishes: bool = False  #: it was asked to leave and has ended well; its results are under way
    is_lost: bool = False  #: the process of its own has died
    end: PodEnded | PodGone | None = None


class JournalReader:
    """Reads the bytes of a journal as they come.

    Attributes:
        lives: The attempts by name.
        is_closed: Whether the runner takes no more orders.
        pending: The attempts that it had accepted then, and may still start.
    """

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}
        self.is_closed = False
        self.pending: frozenset[str] = frozenset()

    def read(self, data: bytes) -> tuple[int, list[str]]:
        """Read on, up to the last whole line. Returns how many bytes that were, and whom the lines are about.

        Args:
            data: From the end of what was read before.
        """
        end, names = 0, []
        for text, at in texts_in(data):
            end = at
            record = msgspec.json.decode(text)
            if record["kind"] == "closed":
                self.is_closed, self.pending = True, frozenset(record["pending"])
            else:
                names.append(record["name"])
                self._apply(record)
        return end, names

    def _apply(self, record: Mapping[str, Any]) -> None:
        name = record["name"]
        life = self.lives.get(name)
        if life is None:
            life = self.lives[name] = Life(name)
        match record["kind"]:
            case "started":
                life.started_ms = record["at_ms"]
                life.shim = record.get("shim", "")
                life.pid, life.own = record.get("pid", 0), record.get("runner", 0)
                life.removal, life.engine_env = record.get("removal", []), record.get("engine_env", {})
            case "running":
                life.pid = record["pid"]
            case "waits":
                life.waits, life.reason = record["why"], record.get("reason", "OutputNoRoom")
            case "publishes":
                life.publishes = True
            case "lost":
                life.is_lost = True
            case "ended":
                life.started_ms = record["started_ms"] or life.started_ms
                life.end = ended_of(name, record)
            case "void":
                life.end = PodGone(
                    name, record["at_ms"], record["reason"], record["started"], tuple(record["lost_inputs"])
                )


def ended_of(name: str, record: Mapping[str, Any]) -> PodEnded:
    """The end of an attempt, by the record of it."""
    outputs = tuple(
        Published(output["name"], output["uri"], output["size"], output["value"])
        for output in record["outputs"]
    )
    at_ms, code, reason, message = (record[key] for key in ("at_ms", "exit_code", "reason", "message"))
    usage = Usage(**record["usage"])
    changed = tuple(record.get("changed") or ())
    started_ms = record["started_ms"]
    ran_ms = at_ms - started_ms if started_ms else None  # both by the clock of its order
    return PodEnded(name, at_ms, code, reason, message, outputs, usage, _report(record), changed, ran_ms)


def _report(record: Mapping[str, Any]) -> ContainerReport | None:
    container, images = record.get("container"), record.get("images") or ()
    if container is None and not images:
        return None
    container = container or {"steps": (), "outputs": ()}
    return ContainerReport(
        tuple(StepEnd(**step) for step in container["steps"]),
        tuple(
            DeliveredFile(
                file["path"],
                file["uri"],
                file["size"],
                file.get("version", ""),
                SourceFile(**file["place"]) if "place" in file else None,
            )
            for file in container["outputs"]
        ),
        container.get("returned"),
        tuple(UsedImage(name, digest) for name, digest in images),
    )
