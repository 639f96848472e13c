"""States and logs as TES clients are told them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from flowsched.workflow.formats.tes.answers import (
    final_state,
    in_basic,
    joined,
    live_state,
    tail,
    task_logs,
    with_notes,
    with_tails,
)
from flowsched.workflow.run.lifecycle import TRANSITIONS
from flowsched.workflow.run.states import RunState, TaskState


@dataclass
class Attempt:
    """One try."""

    node: str = "n1"
    attempt: int = 0
    started_ms: int | None = 1_000
    ended_ms: int | None = 61_500
    exit_code: int | None = 0
    reason: str = ""
    message: str = ""
    report: str = ""
    usage: str = ""


def report(*codes: int, outputs: tuple[dict[str, Any], ...] = ()) -> str:
    steps = [
        {"exit_code": c, "started_ms": 2_000, "ended_ms": 3_000, "stdout": "o", "stderr": "e"} for c in codes
    ]
    return json.dumps({"steps": steps, "outputs": outputs})


@pytest.mark.parametrize(
    ("task", "goal", "started", "state"),
    [
        (None, None, False, "QUEUED"),
        (TaskState.PENDING, None, False, "QUEUED"),
        (TaskState.QUEUED, None, False, "QUEUED"),
        (TaskState.STAGING, None, False, "QUEUED"),
        (TaskState.ALLOCATED, None, False, "INITIALIZING"),
        (TaskState.BINDING, None, False, "INITIALIZING"),
        (TaskState.RUNNING, None, True, "RUNNING"),
        (TaskState.RELEASING, TaskState.QUEUED, True, "QUEUED"),
        (TaskState.RELEASING, TaskState.CANCELLED, True, "RUNNING"),
        (TaskState.RELEASING, TaskState.CANCELLED, False, "INITIALIZING"),
    ],
)
def test_live_states_are_folded(
    task: TaskState | None, goal: TaskState | None, started: bool, state: str
) -> None:
    """Never CANCELING, PREEMPTED or PAUSED."""
    assert live_state(task, goal, started=started) == state


@pytest.mark.parametrize(
    ("run", "last", "state"),
    [
        (RunState.SUCCEEDED, Attempt(), "COMPLETE"),
        (RunState.CANCELLED, Attempt(exit_code=143), "CANCELED"),
        (RunState.CANCELLED, None, "CANCELED"),
        (RunState.FAILED, None, "SYSTEM_ERROR"),
        (RunState.FAILED, Attempt(exit_code=2), "EXECUTOR_ERROR"),
        (RunState.FAILED, Attempt(exit_code=137, reason="OOMKilled"), "EXECUTOR_ERROR"),
        (RunState.FAILED, Attempt(exit_code=124, reason="Timeout"), "EXECUTOR_ERROR"),
        (RunState.FAILED, Attempt(exit_code=1, reason="OutputFailed", report=report(0)), "SYSTEM_ERROR"),
        (RunState.FAILED, Attempt(exit_code=9, reason="Odd", report=report(0, 9)), "EXECUTOR_ERROR"),
        (RunState.FAILED, Attempt(exit_code=None, reason="NodeLost"), "SYSTEM_ERROR"),
        (RunState.FAILED, Attempt(exit_code=0, reason="Completed"), "SYSTEM_ERROR"),
    ],
)
def test_final_states_say_whose_failure_it_was(run: RunState, last: Attempt | None, state: str) -> None:
    """A program's exit code, or the system."""
    assert final_state(run, last) == state


def test_a_log_has_a_step_for_each_that_ended_and_the_files_that_were_delivered() -> None:
    """Times in RFC 3339; a size beyond Int32 is left out."""
    files = (
        {"path": "/o", "uri": "/d/o", "size_bytes": 2**31 - 1},
        {"path": "/p", "uri": "/d/p", "size_bytes": 2**31},
    )
    (log,) = task_logs([Attempt(report=report(0, 0, outputs=files))], None, "COMPLETE", "", 61_500)
    step = {"exit_code": 0, "start_time": "1970-01-01T00:00:02.000Z", "end_time": "1970-01-01T00:00:03.000Z",
            "stdout": "o", "stderr": "e"}  # fmt: skip
    assert log == {
        "logs": [step, step],
        "metadata": {"host": "n1", "vm_price_per_hour_usd": "0"},
        "outputs": [{"url": "/d/o", "path": "/o", "size_bytes": "2147483647"}, {"url": "/d/p", "path": "/p"}],
        "start_time": "1970-01-01T00:00:01.000Z",
        "end_time": "1970-01-01T00:01:01.500Z",
    }


def test_a_step_that_was_killed_with_the_attempt_has_its_exit_code() -> None:
    """Out of memory: 137 after the steps that had ended, and the reason."""
    killed = Attempt(exit_code=137, reason="OOMKilled", message="used 3 GiB of 2 GiB", report=report(0))
    (log,) = task_logs([killed], None, "EXECUTOR_ERROR", "", 61_500)
    assert [step["exit_code"] for step in log["logs"]] == [0, 137]
    assert log["system_logs"] == ["OOMKilled: used 3 GiB of 2 GiB"]


def test_each_attempt_that_began_has_a_log_the_first_first() -> None:
    """One that never began has none; the one that runs has a start and no end."""
    tries = [
        Attempt(reason="Preempted", exit_code=None),
        Attempt(started_ms=None, reason="NodeLost", exit_code=None),
        Attempt(node="n2", started_ms=None, ended_ms=None, exit_code=None),
    ]
    logs = task_logs(tries, 70_000, "RUNNING", "", None)
    assert [log.get("system_logs") for log in logs] == [["Preempted"], None]
    assert logs[1] == {
        "logs": [], "metadata": {"host": "n2", "vm_price_per_hour_usd": "0"}, "outputs": [],
        "start_time": "1970-01-01T00:01:10.000Z",
    }  # fmt: skip


LIVE = (
    TaskState.PENDING,
    TaskState.QUEUED,
    TaskState.STAGING,
    TaskState.ALLOCATED,
    TaskState.BINDING,
    TaskState.RUNNING,
    TaskState.RELEASING,
)


def test_no_state_goes_back_without_a_reason() -> None:
    """Inputs that have come, a target, an allocation: a state goes back only where a task waits again for a loss or an eviction."""
    order = ("QUEUED", "INITIALIZING", "RUNNING")
    back = {
        (str(event.name), before.name, after.name)
        for event, moves in TRANSITIONS.items()
        for before, after in moves.items()
        if before in LIVE and after in LIVE
        and order.index(live_state(after, TaskState.QUEUED, started=False))
        < order.index(live_state(before, TaskState.QUEUED, started=False))
    }  # fmt: skip
    assert back == {
        ("REQUEUE", "BINDING", "QUEUED"),
        ("REQUEUE", "RUNNING", "QUEUED"),
        ("RELEASE", "BINDING", "RELEASING"),
        ("RELEASE", "RUNNING", "RELEASING"),
    }


def test_an_attempt_says_what_it_used() -> None:
    """As text, where it was measured."""
    (log,) = task_logs(
        [Attempt(usage='{"cpu_ms": 1500, "max_rss_bytes": 1048576}')], None, "COMPLETE", "", 61_500
    )
    assert log["metadata"] == {
        "host": "n1", "vm_price_per_hour_usd": "0", "peak_memory_bytes": "1048576", "cpu_time_ms": "1500",
    }  # fmt: skip


def test_an_attempt_with_memory_that_fits_says_what_it_asked_for_and_was_given() -> None:
    """Beside what it used."""
    used = '{"memory_asked_bytes": 4294967296, "memory_given_bytes": 1163919360}'
    (log,) = task_logs([Attempt(usage=used)], None, "COMPLETE", "", 61_500)
    assert log["metadata"] == {
        "host": "n1", "vm_price_per_hour_usd": "0",
        "memory_asked_bytes": "4294967296", "memory_given_bytes": "1163919360",
    }  # fmt: skip


def test_a_preempted_attempt_says_so() -> None:
    """Its end was asked for, and the message has the reason; so has one whose outputs did not all come back."""
    tries = [
        Attempt(exit_code=143, reason="Released", message="Preempted"),
        Attempt(exit_code=3, message="not all outputs came back: no"),
    ]
    logs = task_logs(tries, None, "EXECUTOR_ERROR", "exit code 3", 61_500)
    assert [log["system_logs"] for log in logs] == [["Preempted"], ["not all outputs came back: no"]]


def test_what_waits_has_no_log() -> None:
    """Neither before its first attempt nor while that is bound and has not begun."""
    assert task_logs([], None, "QUEUED", "", None) == []


def test_what_an_attempt_ran_in_is_said() -> None:
    """The digest of its image. The service's log names an image that is ignored, once."""
    report = {"images": [{"name": "samtools:1", "digest": "sha256:ab"}, {"name": "bwa:2", "digest": ""}]}
    (log,) = task_logs([Attempt(report=json.dumps(report))], None, "COMPLETE", "", 5_000)
    assert log["system_logs"] == ["image samtools:1 is sha256:ab"]


def test_what_keeps_a_task_waiting_is_said() -> None:
    """In an entry of its own; a task that did well gets none."""
    waiting = with_notes([], "QUEUED", ["Paused: by hand"])
    assert waiting == [{"logs": [], "outputs": [], "system_logs": ["Paused: by hand"]}]
    well = [{"logs": [{"exit_code": 0}], "outputs": []}]
    assert with_notes(well, "COMPLETE", []) == well


def test_an_attempt_that_has_not_begun_has_no_log() -> None:
    """As long as nothing is known of its end."""
    begun = [Attempt(started_ms=None, ended_ms=None, exit_code=None)]
    assert task_logs(begun, None, "INITIALIZING", "", None) == []


def test_a_failure_without_an_attempt_says_why() -> None:
    """Staging failed before a pod was made."""
    (log,) = task_logs([], None, "SYSTEM_ERROR", "StagingFailed", 5_000)
    assert log == {
        "logs": [], "outputs": [], "metadata": {"vm_price_per_hour_usd": "0"}, "system_logs": ["StagingFailed"],
        "end_time": "1970-01-01T00:00:05.000Z",
    }  # fmt: skip


NEVER = "InputMissing: there is no s3://bucket/x.fa"


@pytest.mark.parametrize(
    ("tries", "state", "reason", "sentence", "told"),
    [
        ([], "SYSTEM_ERROR", "InputMissing", NEVER, [NEVER]),
        ([Attempt(reason="NodeLost")], "SYSTEM_ERROR", "InputMissing", NEVER, ["NodeLost", NEVER]),
        (
            [Attempt(reason="NodeLost")],
            "SYSTEM_ERROR",
            "Quarantined",
            "task 0 failed: Quarantined (lost 10 times, last: NodeLost)",
            ["NodeLost", "task 0 failed: Quarantined (lost 10 times, last: NodeLost)"],
        ),
        (
            [Attempt(reason="OOMKilled", exit_code=137, message="it used 3 GiB")],
            "EXECUTOR_ERROR",
            "OOMKilled",
            "task 0 failed: OOMKilled (it used 3 GiB)",
            ["OOMKilled: it used 3 GiB"],
        ),
        ([Attempt(exit_code=3)], "EXECUTOR_ERROR", "exit code 3", "task 0 failed: exit code 3", None),
        (
            [],
            "CANCELED",
            "",
            "cancelled by request: the disk is full",
            ["cancelled by request: the disk is full"],
        ),
        ([Attempt()], "COMPLETE", "", "", None),
    ],
)
def test_the_last_log_says_why_a_task_failed_as_explain_does(
    tries: list[Attempt], state: str, reason: str, sentence: str, told: list[str] | None
) -> None:
    """Once: what an attempt has said of its own end is not repeated."""
    logs = task_logs(tries, None, state, reason, 5_000, sentence)
    assert logs[-1].get("system_logs") == told


def test_a_release_is_nothing_to_tell() -> None:
    """The state CANCELED says it."""
    (log,) = task_logs([Attempt(reason="Released", exit_code=143)], None, "CANCELED", "", 61_500)
    assert "system_logs" not in log
    assert log["logs"] == []


def test_tails_are_the_ends_and_whole_characters() -> None:
    """At most 10 KiB of UTF-8."""
    assert tail("short") == "short"
    cut = tail("a" + "ä" * 10_000)
    assert (len(cut.encode()), set(cut)) == (10_240, {"ä"})


def test_basic_leaves_out_streams_and_the_system_s_words() -> None:
    """And nothing else."""
    (log,) = in_basic(task_logs([Attempt(reason="X", report=report(0))], None, "COMPLETE", "", 1))
    assert "system_logs" not in log
    assert set(log["logs"][0]) == {"exit_code", "start_time", "end_time"}


def test_an_answer_is_what_was_sent_and_what_the_server_says() -> None:
    """Joined as bytes; no logs, no field."""
    answer = joined("t1", "QUEUED", 1_000, b'{"name":"x"}', [])
    assert json.loads(answer) == {
        "id": "t1", "state": "QUEUED", "creation_time": "1970-01-01T00:00:01.000Z", "name": "x",
    }  # fmt: skip


def test_an_attempt_that_has_no_start_shows_what_it_writes() -> None:
    """Its node has reported the end before the start."""
    (log,) = with_tails([{"logs": []}], "a", "b")
    assert log["logs"] == [{"exit_code": 0, "stdout": "a", "stderr": "b"}]
