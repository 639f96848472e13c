"""Answers to TES clients: states that every client knows, logs, and nothing that the specification does not have.

States are folded, since clients differ in which they know (Cromwell would poll PREEMPTED for ever, py-tes raises on it): a task
that is being cancelled keeps its last state until it is gone, and a preempted task is QUEUED again. A task whose inputs are on
their way is QUEUED too: it may wait for room after that, and clients take a state that goes back for a failure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from flowsched.workflow.document.uris import target_path
from flowsched.workflow.run.states import TASKS_IN, ReportedState, RunState, TaskState

QUEUED: Final = "QUEUED"
INITIALIZING: Final = "INITIALIZING"
RUNNING: Final = "RUNNING"
COMPLETE: Final = "COMPLETE"
EXECUTOR_ERROR: Final = "EXECUTOR_ERROR"
SYSTEM_ERROR: Final = "SYSTEM_ERROR"
CANCELED: Final = "CANCELED"
#: All that are ever answered.
STATES: Final = (QUEUED, INITIALIZING, RUNNING, COMPLETE, EXECUTOR_ERROR, SYSTEM_ERROR, CANCELED)
FINAL: Final = frozenset({COMPLETE, EXECUTOR_ERROR, SYSTEM_ERROR, CANCELED})

#: The task states that lists report as STARTING.
_INITIALIZING: Final = frozenset(TASKS_IN[ReportedState.STARTING])
#: Which workflows may be in a state.
RUNS_OF: Final[Mapping[str, tuple[RunState, ...]]] = {
    **dict.fromkeys(
        (QUEUED, INITIALIZING, RUNNING),
        (RunState.PENDING, RunState.RUNNING, RunState.PAUSED, RunState.CANCELLING),
    ),
    COMPLETE: (RunState.SUCCEEDED,),
    **dict.fromkeys((EXECUTOR_ERROR, SYSTEM_ERROR), (RunState.FAILED, RunState.SKIPPED)),
    CANCELED: (RunState.CANCELLED,),
}

#: A size from here on is left out: Cromwell reads it as an Int32, and a larger one would fail the call.
LARGEST_SIZE: Final = (1 << 31) - 1
#: Most bytes of stdout and of stderr in one log.
TAIL_BYTES: Final = 10 << 10
#: Ends that the program itself caused, or its use of its resources; all others are the system's.
_OWN: Final = frozenset({"", "OOMKilled", "Timeout"})
#: Reasons that say nothing which the state does not say.
_PLAIN: Final = frozenset({"", "Released"})
#: Cromwell asks for the short view once it has seen a price.
_PRICE: Final = {"vm_price_per_hour_usd": "0"}
_MOST_OUTPUTS: Final = 20_000


class Try(NamedTuple):
    """One attempt."""

    node: str  #: where it was
    attempt: int  #: from 0
    started_ms: int | None  #: when its process began
    ended_ms: int | None = None
    exit_code: int | None = None  #: None if it is not known, or if there was none
    reason: str = ""  #: as in `PodEnded`
    message: str = ""  #: more of it
    report: str = ""  #: JSON of a `ContainerReport`, or nothing
    usage: str = ""  #: JSON of a `Usage`, or nothing


class Step(msgspec.Struct):
    """A step of a report."""

    exit_code: int
    started_ms: int
    ended_ms: int
    stdout: str = ""
    stderr: str = ""


class File(msgspec.Struct):
    """A delivered file of a report."""

    path: str
    uri: str
    size_bytes: int


class UsedImage(msgspec.Struct):
    """An image of a report; `digest`: of the image that ran, "" = the image was ignored."""

    name: str
    digest: str = ""


class Report(msgspec.Struct):
    """The report of an attempt of a container task (`executor.protocol.ContainerReport`)."""

    steps: list[Step] = []
    outputs: list[File] = []
    images: list[UsedImage] = []


class _Usage(msgspec.Struct):
    cpu_ms: int = 0
    max_rss_bytes: int = 0
    occupied_bytes: int = 0
    memory_asked_bytes: int = 0
    memory_given_bytes: int = 0


_REPORT: Final = msgspec.json.Decoder(Report)
_USAGE: Final = msgspec.json.Decoder(_Usage)
_NOTHING: Final = Report()


def live_state(task: TaskState | None, goal: TaskState | None, *, started: bool) -> str:
    """The state of a task before the end of its workflow.

    Args:
        task: Its present state; None as long as nothing has touched it.
        goal: The state that it gets after its pod is gone.
        started: Whether its present attempt has begun.
    """
    if task in _INITIALIZING:
        return INITIALIZING
    match task:
        case TaskState.RUNNING:
            return RUNNING
        case TaskState.RELEASING if goal is TaskState.QUEUED:
            return QUEUED
        case TaskState.RELEASING:
            return RUNNING if started else INITIALIZING
        case TaskState.SUCCEEDED | TaskState.FAILED | TaskState.CANCELLED:
            return RUNNING  # its workflow ends in the same step
    return QUEUED


def final_state(run: RunState, last: Try | None) -> str:
    """The state of a task after the end of its workflow.

    Args:
        run: The workflow's state.
        last: The last attempt, if there was one.
    """
    match run:
        case RunState.SUCCEEDED:
            return COMPLETE
        case RunState.CANCELLED:
            return CANCELED
    if last is None or last.exit_code in (None, 0):
        return SYSTEM_ERROR
    steps = read_report(last).steps
    failed = bool(steps) and steps[-1].exit_code != 0
    return EXECUTOR_ERROR if last.reason in _OWN or failed else SYSTEM_ERROR


def read_report(attempt: Try) -> Report:
    """The report of an attempt; an empty one if it reported nothing."""
    return _REPORT.decode(attempt.report) if attempt.report else _NOTHING


def task_logs(
    attempts: Sequence[Try],
    running_since_ms: int | None,
    state: str,
    reason: str,
    ended_ms: int | None,
    sentence: str = "",
) -> list[dict[str, Any]]:
    """The logs of a task: one entry for each attempt that began, the first first.

    The last one says why the task failed or was cancelled, where its attempt does not: it may never have begun.

    Args:
        attempts: First to last.
        running_since_ms: When the last one began, if it has and runs.
        state: The task's, as answered.
        reason: Why it ended, in a word.
        ended_ms: When it ended.
        sentence: Why it ended, as `explain` says it.
    """
    logs = []
    for attempt in attempts:
        since = attempt.started_ms
        if since is None and attempt is attempts[-1] and attempt.ended_ms is None:
            since = running_since_ms
        if since is not None or (attempt is attempts[-1] and attempt.ended_ms is not None):
            logs.append(_log(attempt, since))
    ends = [each.reason or f"exit code {each.exit_code}" for each in attempts[-1:]]
    why = "" if reason in ends else sentence
    if not logs and state in (EXECUTOR_ERROR, SYSTEM_ERROR):
        why = why or reason or state
    if why and state in (EXECUTOR_ERROR, SYSTEM_ERROR, CANCELED):
        if not logs:
            entry = {"end_time": time_text(ended_ms)} if ended_ms is not None else {}
            logs.append({"logs": [], "metadata": dict(_PRICE), **entry, "outputs": []})
        logs[-1]["system_logs"] = [*logs[-1].get("system_logs", ()), tail(why)]
    return logs


def _log(attempt: Try, started_ms: int | None) -> dict[str, Any]:
    report = read_report(attempt)
    log: dict[str, Any] = {
        "logs": [_step(step) for step in report.steps],
        "metadata": {"host": attempt.node, **_PRICE, **_used(attempt)},
        "outputs": [_file(file) for file in report.outputs[:_MOST_OUTPUTS]],
    }
    if started_ms is not None:
        log["start_time"] = time_text(started_ms)
    if attempt.ended_ms is not None:
        log["end_time"] = time_text(attempt.ended_ms)
        broken = attempt.exit_code not in (None, 0) and attempt.reason in _OWN
        if broken and not any(step.exit_code for step in report.steps[-1:]):
            log["logs"].append({"exit_code": attempt.exit_code, "end_time": log["end_time"]})
    reason = "" if attempt.reason in _PLAIN else attempt.reason
    outcome = ": ".join(filter(None, (reason, attempt.message)))
    words = [*filter(None, [outcome]), *map(image_words, filter(lambda image: image.digest, report.images))]
    if words:
        log["system_logs"] = list(map(tail, words))
    return log


def image_words(image: UsedImage) -> str:
    """The log line about an image that was used."""
    return f"image {image.name} is {image.digest}"


def _used(attempt: Try) -> dict[str, str]:
    """The amounts that an attempt has used, of those that were measured, and its memory if that was fitted."""
    used = _USAGE.decode(attempt.usage) if attempt.usage else _Usage()
    found = {
        "peak_memory_bytes": used.max_rss_bytes,
        "cpu_time_ms": used.cpu_ms,
        "disk_used_bytes": used.occupied_bytes,
        "memory_asked_bytes": used.memory_asked_bytes,
        "memory_given_bytes": used.memory_given_bytes,
    }
    return {name: str(amount) for name, amount in found.items() if amount}


def _step(step: Step) -> dict[str, Any]:
    return {
        "exit_code": step.exit_code,
        "start_time": time_text(step.started_ms),
        "end_time": time_text(step.ended_ms),
        "stdout": tail(step.stdout),
        "stderr": tail(step.stderr),
    }


def _file(file: File) -> dict[str, str]:
    entry = {"url": file.uri, "path": file.path}
    if file.size_bytes <= LARGEST_SIZE:
        entry["size_bytes"] = str(file.size_bytes)
    return entry


def tail(text: str) -> str:
    """The end of a text, at most `TAIL_BYTES` of UTF-8."""
    if len(text) <= TAIL_BYTES // 4:
        return text
    raw = text.encode("utf-8", "replace")
    return raw[-TAIL_BYTES:].decode("utf-8", "ignore")


def time_text(ms: int) -> str:
    """Wall-clock ms in RFC 3339."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def with_notes(
    logs: Sequence[Mapping[str, Any]], state: str, waits: Sequence[str]
) -> Sequence[Mapping[str, Any]]:
    """Logs with the system's other messages in `system_logs`, the one place that TES has for them.

    A task that waits gets a last entry without times: why it waits. If something keeps a running task from its end, the entry
    of its present attempt says so.

    Args:
        logs: As `task_logs` made them.
        state: The task's, as answered.
        waits: Why it waits.
    """
    if state == RUNNING and waits and logs:  # its steps have ended, and what they have made finds no room
        last = {**logs[-1], "system_logs": [*logs[-1].get("system_logs", ()), *map(tail, waits)]}
        return [*logs[:-1], last]
    if state in (QUEUED, INITIALIZING) and waits:
        return [*logs, {"logs": [], "outputs": [], "system_logs": list(map(tail, waits))}]
    return logs


def with_tails(logs: Sequence[Mapping[str, Any]], stdout: str, stderr: str) -> Sequence[Mapping[str, Any]]:
    """Logs with an entry for the executor that runs: it has no end, and its exit code, which TES demands, means nothing yet."""
    if not logs or not (stdout or stderr):
        return logs
    since = {name: logs[-1][name] for name in ("start_time",) if name in logs[-1]}
    running = {"exit_code": 0, **since, "stdout": stdout, "stderr": stderr}
    return [*logs[:-1], {**logs[-1], "logs": [*logs[-1]["logs"], running]}]


def in_basic(logs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Logs as the view BASIC shows them: without outputs of programs and without the system's words."""
    shortened = []
    for log in logs:
        short = {name: value for name, value in log.items() if name != "system_logs"}
        short["logs"] = [
            {name: value for name, value in step.items() if name not in ("stdout", "stderr")}
            for step in log["logs"]
        ]
        shortened.append(short)
    return shortened


#: In bodies as `encode_task` makes them.
_FILE_URL: Final = b'"url":"file://'


def joined(ident: str, state: str, created_ms: int, body: bytes, logs: Sequence[Mapping[str, Any]]) -> bytes:
    """A whole answer: the client's task with the server's fields. The body is not decoded for it.

    Args:
        ident, state, created_ms: Of the task.
        body: A JSON object with at least one member, as `encode_task` made it.
        logs: As `task_logs` made them.
    """
    answer: dict[str, Any] = {"id": ident, "state": state, "creation_time": time_text(created_ms)}
    if logs:
        answer["logs"] = _as_asked(logs, body) if _FILE_URL in body else logs
    return msgspec.json.encode(answer)[:-1] + b"," + body[1:]


class _Asked(msgspec.Struct):
    url: str
    path: str


class _Outputs(msgspec.Struct):
    outputs: list[_Asked] = []


def _as_asked(logs: Sequence[Mapping[str, Any]], body: bytes) -> list[dict[str, Any]]:
    """Logs that name delivered files by the URLs that the client gave: a workflow's document does not keep `file://`."""
    asked = msgspec.json.decode(body, type=_Outputs).outputs
    places = {
        (target_path(each.url, each.path) or "").rstrip("/"): each.url.rstrip("/")
        for each in asked
        if each.url.startswith("file://")
    }

    def url_of(path: str) -> str:
        above = path  # itself, or the folder it lies in at any depth
        while above:
            if above in places:
                return places[above] + path.removeprefix(above)
            above = above.rpartition("/")[0]
        return path

    return [
        {**log, "outputs": [{**file, "url": url_of(file["url"])} for file in log.get("outputs", ())]}
        for log in logs
    ]


def minimal(ident: str, state: str) -> bytes:
    """The view MINIMAL."""
    return msgspec.json.encode({"id": ident, "state": state})
