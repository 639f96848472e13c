"""Reading policies (actions on events), in our words and in Volcano's; and retries.

Every event and action of Volcano's Job is either mapped or refused by name with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from flowsched.errors import InvalidRequest
from flowsched.workflow.document import keys
from flowsched.workflow.document.keys import Key, Section, Table
from flowsched.workflow.document.reader import shown
from flowsched.workflow.resources import parse_duration, parse_percent
from flowsched.workflow.spec import Action, On, Policy, Retry

T = TypeVar("T")


def _spelt(volcano: Mapping[str, T]) -> dict[str, T]:
    """Volcano's words, each also with underscores: PodFailed, pod_failed."""
    snake = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).lower(): meant for word, meant in volcano.items()}
    return {**volcano, **snake}


#: Ours first: a fault proposes these.
EVENTS: Final[Mapping[str, On]] = {
    **{str(event): event for event in On},
    **_spelt(
        {
            "PodFailed": On.TASK_FAILED,
            "PodEvicted": On.TASK_EVICTED,
            "PodPending": On.TASK_PENDING,
            "TaskCompleted": On.TASK_COMPLETED,
            "Unknown": On.TASK_UNKNOWN,
        }
    ),
}
_INTERNAL: Final = "another event: this one is news inside Volcano's controller and has no meaning here"
REFUSED_EVENTS: Final[Mapping[str, str]] = {
    "TaskFailed": "task_failed (each failed attempt) and retry.attempts: Volcano's TaskFailed, a role "
    "that has used up its retries, always fails the stage here",
    **_spelt(
        {
            "PodRunning": "another event: a task that runs asks for no action (task_pending's wait ends by itself)",
            "OutOfSync": _INTERNAL,
            "CommandIssued": _INTERNAL,
            "JobUpdated": _INTERNAL,
        }
    ),
}
ACTIONS: Final[Mapping[str, Action]] = {
    **{str(action): action for action in Action},
    **_spelt(
        {
            "RestartTask": Action.RESTART_TASK,
            "RestartPod": Action.RESTART_TASK,
            "RestartJob": Action.RESTART_GANG,
            "AbortJob": Action.ABORT_WORKFLOW,
            "TerminateJob": Action.ABORT_WORKFLOW,
            "CompleteJob": Action.COMPLETE_STAGE,
        }
    ),
}
_QUEUE: Final = "another action: queues are opened and closed by an administrator, not by a task"
_CONTROLLER: Final = "another action: this one is an inner step of Volcano's controller"
REFUSED_ACTIONS: Final = _spelt(
    {
        "RestartPartition": "restart_gang or restart_task: a gang has no partitions here",
        "ResumeJob": "another action: a paused workflow is resumed by its user, not by an event",
        "SyncJob": _CONTROLLER,
        "EnqueueJob": _CONTROLLER,
        "SyncQueue": _QUEUE,
        "OpenQueue": _QUEUE,
        "CloseQueue": _QUEUE,
    }
)
#: Pairs that would make no sense, with the reason.
_ENDLESS: Final = "another action: a task that succeeds would run for ever"
REFUSED_PAIRS: Final[Mapping[tuple[On, Action], str]] = {
    (On.TASK_COMPLETED, Action.RESTART_TASK): _ENDLESS,
    (On.TASK_COMPLETED, Action.RESTART_GANG): _ENDLESS,
}
#: Events that may be waited out.
_TIMED: Final = (On.TASK_PENDING, On.TASK_UNKNOWN)

_DURATION: Final = keys.amount(parse_duration, 'a duration, as "10m"', "duration")
_EVENT: Final = keys.choice(EVENTS, REFUSED_EVENTS)
POLICY: Final = Table(
    "On an event, an action; Volcano's names are understood.",
    {
        "event": Key(_EVENT, "The event"),
        "on": Key(_EVENT, "The same as `event`"),
        "action": Key(
            keys.choice(ACTIONS, REFUSED_ACTIONS),
            "The action",
            required=f"one of {', '.join(map(str, Action))}",
        ),
        "exit_codes": Key(
            keys.list_of(keys.number(1, 255, "an exit code"), 256, 1), "Only for these exit codes"
        ),
        "timeout": Key(_DURATION, "How long it has to last: for `task_pending` and `task_unknown`"),
    },
    elsewhere={
        "events": "one policy for each event",
        "exitCode": "exit_codes: [137]",
        "exit_code": "exit_codes: [137]",
    },
    rules={
        "anyOf": [{"required": [key]} for key in ("event", "on", "exit_codes")],
        "not": {"required": ["event", "on"]},
    },
    name="policy",
)


def make_policies(entries: Sequence[Section | None], *, gang: bool) -> tuple[Policy, ...]:
    """The policies of a stage, which are tried in their order."""
    made = [_policy(entry, gang=gang) for entry in entries if entry is not None]
    return tuple(policy for policy in made if policy is not None)


def _policy(entry: Section, *, gang: bool) -> Policy | None:
    event, action, timeout_ms = _event(entry), entry["action"], entry["timeout"]
    codes = tuple(code for code in entry["exit_codes"] or () if code is not None)
    if event is None or action is None:
        return None
    reason = REFUSED_PAIRS.get((event, action))
    if reason is not None:
        entry.fault("action", reason)
    if action is Action.RESTART_GANG and not gang:
        entry.fault("action", "restart_task: this stage is no gang, its tasks do not depend on each other")
    if codes and event not in (On.TASK_FAILED, On.ANY):
        entry.fault("exit_codes", "no exit codes: only task_failed has one")
    if "timeout" in entry and event not in _TIMED:
        entry.fault(
            "timeout",
            "no timeout: only task_pending and task_unknown are waited for, other events act at once",
        )
    if event is On.TASK_PENDING and "timeout" not in entry:
        entry.fault("timeout", 'how long a task may be pending, as "30m"')
    return Policy(event, action, codes, timeout_ms)


def _event(entry: Section) -> On | None:
    """The event, under either of its two names; exit codes alone mean a failure."""
    if "event" in entry and "on" in entry:
        entry.fault("on", "one of event and on, which are the same")
        return None
    if "event" in entry or "on" in entry:
        event: On | None = entry["event"] or entry["on"]
        return event
    if "exit_codes" in entry:
        return On.TASK_FAILED
    entry.fault("event", f"one of {', '.join(map(str, On))}")
    return None


def _parse_factor(value: object) -> int:
    percent = parse_percent(value)
    if not 100 <= percent <= 1000:
        raise InvalidRequest(f"{percent} %: write a number from 1 to 10")
    return percent


def _retry_of_a_number(value: object) -> str | None:
    number = isinstance(value, int) and not isinstance(value, bool)
    return f'an object: {{"attempts": {shown(value)}}}' if number else None


RETRY: Final = keys.hinted(
    Table(
        "How often one task is tried.",
        {
            "attempts": Key(keys.number(1, 100), "In all", default=1),
            "memory_factor": Key(
                keys.amount(_parse_factor, "a number from 1 to 10"),
                "1 to 10: growth after running out of memory",
                default=1,
            ),
        },
    ),
    _retry_of_a_number,
)


def make_retry(entry: Section | None) -> Retry:
    """The retries that a stage declares."""
    return Retry() if entry is None else Retry(entry["attempts"], entry["memory_factor"])
