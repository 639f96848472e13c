"""Reading what shall happen when something happens: policies, in our words and in Volcano's; and retries.

Every event and action of Volcano's Job is either mapped or refused by name with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from flowsched.workflow.document.reader import Section, shown
from flowsched.workflow.resources import parse_duration, parse_percent
from flowsched.workflow.spec import Action, On, Policy, Retry

#: Ours first: these are what a fault proposes.
EVENTS: Final[Mapping[str, On]] = {
    **{str(event): event for event in On},
    "PodFailed": On.TASK_FAILED,
    "pod_failed": On.TASK_FAILED,
    "PodEvicted": On.TASK_EVICTED,
    "pod_evicted": On.TASK_EVICTED,
    "PodPending": On.TASK_PENDING,
    "pod_pending": On.TASK_PENDING,
    "TaskCompleted": On.TASK_COMPLETED,
    "Unknown": On.TASK_UNKNOWN,
    "unknown": On.TASK_UNKNOWN,
}
_INTERNAL: Final = "another event: this one is news inside Volcano's controller and has no meaning here"
_RUNNING: Final = "another event: a task that runs asks for no action (task_pending's wait ends by itself)"
REFUSED_EVENTS: Final[Mapping[str, str]] = {
    "TaskFailed": "task_failed (each failed attempt) and retry.attempts: Volcano's TaskFailed, a role "
    "that has used up its retries, always fails the stage here",
    "PodRunning": _RUNNING,
    "pod_running": _RUNNING,
    "OutOfSync": _INTERNAL,
    "out_of_sync": _INTERNAL,
    "CommandIssued": _INTERNAL,
    "command_issued": _INTERNAL,
    "JobUpdated": _INTERNAL,
    "job_updated": _INTERNAL,
}
ACTIONS: Final[Mapping[str, Action]] = {
    **{str(action): action for action in Action},
    "RestartTask": Action.RESTART_TASK,
    "RestartPod": Action.RESTART_TASK,
    "restart_pod": Action.RESTART_TASK,
    "RestartJob": Action.RESTART_GANG,
    "restart_job": Action.RESTART_GANG,
    "AbortJob": Action.ABORT_WORKFLOW,
    "abort_job": Action.ABORT_WORKFLOW,
    "TerminateJob": Action.ABORT_WORKFLOW,
    "terminate_job": Action.ABORT_WORKFLOW,
    "CompleteJob": Action.COMPLETE_STAGE,
    "complete_job": Action.COMPLETE_STAGE,
}
_PARTITION: Final = "restart_gang or restart_task: a gang has no partitions here"
_RESUME: Final = "another action: a paused workflow is resumed by its user, not by an event"
_QUEUE: Final = "another action: queues are opened and closed by an administrator, not by a task"
_CONTROLLER: Final = "another action: this one is an inner step of Volcano's controller"
REFUSED_ACTIONS: Final[Mapping[str, str]] = {
    "RestartPartition": _PARTITION,
    "restart_partition": _PARTITION,
    "ResumeJob": _RESUME,
    "resume_job": _RESUME,
    "SyncJob": _CONTROLLER,
    "sync_job": _CONTROLLER,
    "EnqueueJob": _CONTROLLER,
    "enqueue_job": _CONTROLLER,
    "SyncQueue": _QUEUE,
    "sync_queue": _QUEUE,
    "OpenQueue": _QUEUE,
    "open_queue": _QUEUE,
    "CloseQueue": _QUEUE,
    "close_queue": _QUEUE,
}
#: Pairs that would make no sense, with the reason.
_ENDLESS: Final = "another action: a task that succeeds would run for ever"
REFUSED_PAIRS: Final[Mapping[tuple[On, Action], str]] = {
    (On.TASK_COMPLETED, Action.RESTART_TASK): _ENDLESS,
    (On.TASK_COMPLETED, Action.RESTART_GANG): _ENDLESS,
}
#: Events that may be waited out.
_TIMED: Final = (On.TASK_PENDING, On.TASK_UNKNOWN)

_POLICY_KEYS: Final[Mapping[str, str]] = {
    "event": "",
    "on": "",
    "action": "",
    "exit_codes": "",
    "timeout": "",
    "events": "one policy for each event",
    "exitCode": "exit_codes: [137]",
    "exit_code": "exit_codes: [137]",
}
_RETRY_KEYS: Final[Mapping[str, str]] = {"attempts": "", "memory_factor": ""}


def read_policies(section: Section, *, gang: bool) -> tuple[Policy, ...]:
    """Read the policies of a stage, which are tried in their order."""
    policies = []
    for entry in section.sections("policies", "labels", _POLICY_KEYS):
        policy = _policy(entry, gang=gang)
        if policy is not None:
            policies.append(policy)
    return tuple(policies)


def _policy(entry: Section, *, gang: bool) -> Policy | None:
    codes = _exit_codes(entry)
    event = _event(entry, coded="exit_codes" in entry)
    action = entry.choice("action", ACTIONS, REFUSED_ACTIONS)
    timeout_ms = entry.amount("timeout", parse_duration, 'a duration, as "10m"')
    if "action" not in entry:
        entry.fault("action", f"one of {', '.join(str(known) for known in Action)}")
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


def _event(entry: Section, *, coded: bool) -> On | None:
    """The event, under either of its two names; exit codes alone mean a failure."""
    if "event" in entry and "on" in entry:
        entry.fault("on", "one of event and on, which are the same")
        return None
    key = "on" if "on" in entry else "event"
    if key not in entry:
        if coded:
            return On.TASK_FAILED
        entry.fault("event", f"one of {', '.join(str(known) for known in On)}")
        return None
    return entry.choice(key, EVENTS, REFUSED_EVENTS)


def _exit_codes(entry: Section) -> tuple[int, ...]:
    found = entry.array("exit_codes", empty=False) or ()
    codes = []
    for i, code in enumerate(found[:256]):
        if isinstance(code, bool) or not isinstance(code, int) or not 1 <= code <= 255:
            entry.reader.fault(f"{entry.at('exit_codes')}[{i}]", shown(code), "an exit code from 1 to 255")
        else:
            codes.append(code)
    if len(found) > 256:
        entry.fault("exit_codes", "at most 256 exit codes")
    return tuple(codes)


def read_retry(section: Section) -> Retry:
    """Read `retry`."""
    count = section.values.get("retry")
    if isinstance(count, int) and not isinstance(count, bool):
        section.fault("retry", f'an object: {{"attempts": {shown(count)}}}')
        return Retry()
    entry = section.section("retry", _RETRY_KEYS)
    if entry is None:
        return Retry()
    attempts = entry.whole("attempts", 1, 100)
    percent = entry.amount("memory_factor", parse_percent, "a number from 1 to 10")
    if percent is not None and not 100 <= percent <= 1000:
        entry.fault("memory_factor", "a number from 1 to 10")
        percent = None
    return Retry(attempts or 1, percent or 100)
