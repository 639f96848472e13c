"""A pod that only says it runs: it starts, lasts and ends as its annotations, or a function of the pod, say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from flowsched.errors import InvalidRequest
from flowsched.workflow.resources import parse_duration
from tests.kubernetes.hollow.lives import Leave, deadline_s, overdue
from tests.kubernetes.hollow.reports import Report
from tests.kubernetes.hollow.spec import Pod
from tests.kubernetes.hollow.statuses import ContainerRecord, PodRecord, Running, Terminated

#: How long the containers run: "90s", "0.5". Without it they run until the pod is deleted.
RUNTIME: Final = "flowsched.io/hollow-runtime"
#: How long it takes until they run.
START: Final = "flowsched.io/hollow-start"
#: With which exit code the containers end.
EXIT_CODE: Final = "flowsched.io/hollow-exit-code"
#: For which reason, where it is not Completed or Error: "OOMKilled".
REASON: Final = "flowsched.io/hollow-reason"
#: The containers' termination messages: {"stage-out": "…"}.
MESSAGES: Final = "flowsched.io/hollow-messages"

#: Of a container that is killed, and of one that obeys SIGTERM.
_TERMINATED: Final = 143


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of a simulated pod.

    Args:
        runtime_s: None = it runs until it is deleted.
        start_s: From its acceptance until it runs.
        exit_code: Of its main containers.
        reason: Of their end; "" = Completed or Error.
        messages: Container -> termination message.
        ahead_s: How far the clock of its node is ahead; negative: behind.
    """

    runtime_s: float | None = None
    start_s: float = 0.0
    exit_code: int = 0
    reason: str = ""
    messages: Mapping[str, str] = field(default_factory=dict)
    ahead_s: float = 0.0


def annotated(pod: Pod) -> Fate:
    """The fate that a pod's annotations say.

    Raises:
        ValueError: An annotation cannot be read.
    """
    said = pod.metadata.annotations
    runtime = said.get(RUNTIME)
    try:
        return Fate(
            runtime_s=None if runtime is None else parse_duration(runtime) / 1000,
            start_s=parse_duration(said.get(START, "0")) / 1000,
            exit_code=int(said.get(EXIT_CODE, "0")),
            reason=said.get(REASON, ""),
            messages=msgspec.json.decode(said.get(MESSAGES, "{}"), type=dict[str, str]),
        )
    except (InvalidRequest, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from error


class SimulatedPod:
    """The life of one pod.

    Args:
        record: Kept up to date.
        fate: What becomes of it.
        changed: Has the record reported.
    """

    def __init__(self, record: PodRecord, fate: Fate, changed: Callable[[Report], None]) -> None:
        self.record = record
        self.report = Report(record)
        self.leave = Leave()
        self._fate = fate
        self._changed = changed

    async def live(self) -> None:
        """Live to the end."""
        if await self.leave.within(self._fate.start_s):
            self.record.phase = "Failed"
            return
        self._start()
        self._changed(self.report)
        limit_s = deadline_s(self.record.pod)
        runtime_s = self._fate.runtime_s
        late = limit_s is not None and (runtime_s is None or runtime_s > limit_s)
        told = await self.leave.within(limit_s if late else runtime_s)
        code = _TERMINATED if told or late else self._fate.exit_code
        self._finish(code)
        if late and not told:
            overdue(self.record)

    def kill(self) -> None:
        """End at once."""
        self.leave.give(0.0)

    async def forget(self) -> None:
        """Nothing is left of it."""

    def _start(self) -> None:
        now = self._now()
        for one in self.record.containers:
            done = one.init and not one.sidecar
            one.state = self._terminated(one, 0, now, now) if done else Running(now)
            one.started = not done
        self.record.phase = "Running"

    def _finish(self, code: int) -> None:
        now = self._now()
        for one in self.record.containers:
            one.started = False
            if isinstance(one.state, Running):
                one.state = self._terminated(one, 0 if one.sidecar else code, one.state.started, now)
        self.record.phase = "Failed" if code else "Succeeded"

    def _now(self) -> datetime:
        return datetime.now(UTC) + timedelta(seconds=self._fate.ahead_s)

    def _terminated(self, one: ContainerRecord, code: int, since: datetime, now: datetime) -> Terminated:
        reason = "" if one.init else self._fate.reason
        message = self._fate.messages.get(one.container.name, "")
        return Terminated(code, reason or ("Error" if code else "Completed"), message, since, now)
