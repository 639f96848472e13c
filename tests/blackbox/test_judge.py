"""The judge of black-box runs finds every violation that is put before it, and nothing in a run without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.blackbox.judge import Evidence, Story, judge, load, save, table

GOOD = "5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef"
BAD = "0000000000000000000000000000000000000000000000000000000000000000"


def attempt(number: int, exit_code: int | None, reason: str = "") -> dict[str, object]:
    return {"attempt": number, "exit_code": exit_code, "reason": reason}


def line(
    what: str, at_s: float, more: str, *, tried: int = 1, pid: int = 100, key: str = "wf.align.0."
) -> str:
    return f"{what}\t{key}\t{tried}\t{pid}\t{at_s:.2f}\t{more}"


def story(**changes: object) -> Story:
    """A workflow that succeeded at second 20, as its client saw it."""
    values: dict[str, object] = {
        "label": "wf",
        "kind": "chain",
        "id": "w1",
        "expected": ["SUCCEEDED"],
        "states": [(10.0, "PENDING"), (11.0, "RUNNING"), (20.0, "SUCCEEDED")],
        "ended_s": 20.0,
        "outputs": [{"name": "join/0/out", "expected": GOOD, "found": GOOD}],
        "attempts": {"wf.align.0.": [attempt(1, 0)]},
    }
    return Story(**{**values, **changes})  # type: ignore[arg-type]


def found(evidence: Evidence) -> list[tuple[str, str]]:
    return [(each.kind, each.subject) for each in judge(evidence)]


ONCE = [line("START", 12.0, "alone"), line("END", 13.0, "0")]


def test_a_run_without_fault_has_no_violation() -> None:
    """One task that ran once, one output as it should be, a thousand quick probes."""
    probes = [(10 + i / 20, 3.0, "200", 2.0) for i in range(1000)]
    assert found(Evidence([story()], ONCE, probes)) == []


def test_a_404_for_an_accepted_id_is_a_lost_id() -> None:
    """Also where a later look finds it."""
    assert found(Evidence([story(missing=[15.0])], ONCE)) == [("lost id", "wf (w1)")]


def test_other_bytes_and_an_answer_in_place_of_an_output_are_lost_outputs() -> None:
    """Each output counts."""
    outputs = [
        {"name": "a", "expected": GOOD, "found": BAD},
        {"name": "b", "expected": GOOD, "found": "409 no node has it any more"},
        {"name": "c", "expected": GOOD, "found": GOOD},
    ]
    assert found(Evidence([story(outputs=outputs)], ONCE)) == [
        ("lost output", "wf (w1)"),
        ("lost output", "wf (w1)"),
    ]


def test_outputs_of_a_failed_workflow_are_not_asked_for() -> None:
    """They may be there or not."""
    states = [(10.0, "RUNNING"), (20.0, "FAILED")]
    failed = story(
        expected=["FAILED"], states=states, outputs=[{"name": "a", "expected": GOOD, "found": BAD}]
    )
    assert found(Evidence([failed], ONCE)) == []


def test_a_start_beside_the_held_lock_is_doubled() -> None:
    """The first attempt, or a child of it, lives: no END is needed to know that."""
    journal = [line("START", 12.0, "alone"), line("START", 14.0, "beside", tried=2, pid=101)]
    attempts = {"wf.align.0.": [attempt(1, None, "Lost"), attempt(2, 0)]}
    assert found(Evidence([story(attempts=attempts)], journal)) == [("doubled", "wf.align.0.")]


def test_intervals_that_overlap_are_doubled() -> None:
    """An END of the first attempt after the START of the second, though the lock was free (another machine's, say)."""
    journal = [
        line("START", 12.0, "alone"),
        line("START", 14.0, "alone", tried=2, pid=101),
        line("END", 15.0, "0"),
        line("END", 16.0, "0", tried=2, pid=101),
    ]
    attempts = {"wf.align.0.": [attempt(1, None, "Lost"), attempt(2, 0)]}
    assert found(Evidence([story(attempts=attempts)], journal)) == [("doubled", "wf.align.0.")]


def test_an_attempt_that_was_killed_and_one_after_it_are_not_doubled() -> None:
    """No END: the first was killed, and its lock was free."""
    journal = [
        line("START", 12.0, "alone"),
        line("START", 14.0, "alone", tried=2, pid=101),
        line("END", 15.0, "0", tried=2, pid=101),
    ]
    attempts = {"wf.align.0.": [attempt(1, None, "Lost"), attempt(2, 0)]}
    assert found(Evidence([story(attempts=attempts)], journal)) == []


def test_one_attempt_that_starts_twice_is_doubled() -> None:
    """Even if the first process was gone by then."""
    journal = [
        line("START", 12.0, "alone"),
        line("START", 14.0, "alone", pid=101),
        line("END", 15.0, "0", pid=101),
    ]
    assert found(Evidence([story()], journal)) == [("doubled", "wf.align.0.")]


def test_a_task_that_succeeded_and_starts_again_is_doubled() -> None:
    """The service itself says that the first attempt succeeded."""
    journal = [
        *ONCE,
        line("START", 14.0, "alone", tried=2, pid=101),
        line("END", 15.0, "0", tried=2, pid=101),
    ]
    attempts = {"wf.align.0.": [attempt(1, 0), attempt(2, 0)]}
    assert found(Evidence([story(attempts=attempts)], journal)) == [("doubled", "wf.align.0.")]


def test_a_task_whose_runner_died_after_its_work_may_start_again() -> None:
    """The process had ended well, but nothing could tell the service so."""
    journal = [
        *ONCE,
        line("START", 14.0, "alone", tried=2, pid=101),
        line("END", 15.0, "0", tried=2, pid=101),
    ]
    attempts = {"wf.align.0.": [attempt(1, None, "Lost"), attempt(2, 0)]}
    assert found(Evidence([story(attempts=attempts)], journal)) == []


def test_a_gang_may_start_again_as_a_whole() -> None:
    """A member that succeeded runs again when another one failed."""
    journal = [
        *ONCE,
        line("START", 14.0, "alone", tried=2, pid=101),
        line("END", 15.0, "0", tried=2, pid=101),
    ]
    attempts = {"wf.align.0.": [attempt(1, 0), attempt(2, 0)]}
    assert found(Evidence([story(kind="gang", attempts=attempts)], journal)) == []


def test_a_second_id_for_one_submission_is_doubled() -> None:
    """Nobody was answered with it."""
    assert found(Evidence([story()], ONCE, strangers=[("w2", "wf")])) == [("doubled", "wf")]


def test_what_lives_after_its_workflow_is_leaked() -> None:
    """As the harness saw it."""
    leaks = ["process 7 of wf.align.0.: lives 61 s after the end of its workflow"]
    assert found(Evidence([story()], ONCE, leaks=leaks)) == [("leaked", "process 7 of wf.align.0.")]


@pytest.mark.parametrize("last", [[], [(10.0, "PENDING"), (11.0, "RUNNING")]])
def test_a_workflow_that_has_not_ended_is_stuck(last: list[tuple[float, str]]) -> None:
    """Whether it was answered once or never."""
    assert found(Evidence([story(states=last, ended_s=None)], ONCE)) == [("stuck", "wf (w1)")]


def test_a_submission_that_is_never_answered_is_stuck() -> None:
    """There is no id to name."""
    assert found(Evidence([story(id="", states=[], ended_s=None)])) == [("stuck", "wf")]


def test_an_unexpected_end_is_a_violation_unless_the_disk_was_full() -> None:
    """An excuse must come from the attempt's own words; it excuses no success."""
    states = [(10.0, "RUNNING"), (20.0, "FAILED")]
    assert found(Evidence([story(states=states)], ONCE)) == [("wrong end", "wf (w1)")]
    assert found(Evidence([story(states=states, excuse="wf.align.0.: No space left on device")], ONCE)) == []
    cancelled = story(expected=["CANCELLED"], excuse="wf.align.0.: No space left on device")
    assert found(Evidence([cancelled], ONCE)) == [("wrong end", "wf (w1)")]


def test_an_end_that_changes_is_a_violation() -> None:
    """Terminal states never change."""
    states = [(10.0, "RUNNING"), (19.0, "FAILED"), (20.0, "SUCCEEDED")]
    assert found(Evidence([story(states=states)], ONCE)) == [("changed end", "wf (w1)")]


def test_an_end_before_a_retry_was_asked_for_may_change() -> None:
    """The user opened the gate at 19.5."""
    states = [(10.0, "RUNNING"), (19.0, "FAILED"), (19.6, "RUNNING"), (20.0, "SUCCEEDED")]
    assert found(Evidence([story(states=states, retried_s=19.5)], ONCE)) == []


def test_a_start_after_the_answer_to_a_cancel_is_late() -> None:
    """Five seconds are for runners that were starting."""
    states = [(10.0, "RUNNING"), (30.0, "CANCELLED")]
    late = [line("START", 18.1, "alone"), line("END", 18.2, "0")]
    cancelled = story(expected=["CANCELLED"], states=states, ended_s=30.0, cancelled_s=13.0)
    assert found(Evidence([cancelled], late)) == [("late start", "wf.align.0.")]
    assert found(Evidence([cancelled], [line("START", 17.9, "alone"), line("END", 18.2, "0")])) == []


def test_a_start_after_the_end_is_late() -> None:
    """And so is one of a task that no client knows."""
    assert found(Evidence([story()], [line("START", 21.0, "alone")])) == [("late start", "wf.align.0.")]
    assert found(Evidence([], [line("START", 21.0, "alone")])) == [("late start", "wf.align.0.")]


def test_more_than_one_slow_probe_in_a_thousand_is_slow() -> None:
    """Over the control by more than 200 ms, or not answered with 200."""
    quick = [(10 + i / 20, 3.0, "200", 2.0) for i in range(998)]
    one, other = (100.0, 250.0, "200", 2.0), (100.1, 5.0, "503", 2.0)
    assert found(Evidence([story()], ONCE, [*quick, quick[0], one])) == []
    assert found(Evidence([story()], ONCE, [*quick, one, other])) == [("slow", "2 of 1000 probes")]


def test_a_probe_that_the_control_shares_or_that_falls_into_an_absence_is_not_slow() -> None:
    """The machine was busy at 100; the service was dead from 101 to 103."""
    probes = [
        (100.0, 450.0, "200", 300.0),
        (101.5, 1.0, "ConnectionRefusedError", 2.0),
        (100.9, 400.0, "200", 2.0),
    ]
    assert found(Evidence([story()], ONCE, probes, absences=[(101.0, 103.0)])) == []


def test_probes_of_which_none_counts_prove_nothing() -> None:
    """A service that was away all the time is not a quick one."""
    evidence = Evidence([story()], ONCE, [(101.5, 1.0, "200", 2.0)], absences=[(0.0, 200.0)])
    assert found(evidence) == [("slow", "0 of 0 probes")]


def test_deaths_server_errors_memory_and_failures_of_the_harness_are_violations() -> None:
    """A fifth more memory is allowed."""
    evidence = Evidence(
        [story()], ONCE, deaths=["it ended with 1"], errors=["GET /x -> 500 at 3: boom"], failures=["ouch"]
    )
    evidence.memory = [(100 << 20, 120 << 20), (100 << 20, 121 << 20)]
    assert found(evidence) == [
        ("died", "the service"),
        ("server error", "GET /x"),
        ("harness", "a fault"),
        ("memory", "the service"),
    ]


def test_a_line_that_no_task_wrote_is_refused() -> None:
    """A journal that was cut must not pass for one without violations."""
    with pytest.raises(ValueError, match="found 'START\\\\twf', expected START or END and five more fields"):
        judge(Evidence([story()], ["START\twf"]))


def test_evidence_that_was_kept_is_judged_alike(tmp_path: Path) -> None:
    """So that a verdict can be looked into a day later."""
    evidence = Evidence(
        [story(missing=[15.0])], ONCE, [(10.0, 3.0, "200", 2.0)], [(1.0, 2.0)], memory=[(100, 200)]
    )
    save(evidence, tmp_path / "evidence.json")
    assert judge(load(tmp_path / "evidence.json")) == judge(evidence)


def test_the_table_counts_each_kind() -> None:
    """With what shows it."""
    evidence = Evidence([story(missing=[15.0])], ONCE)
    text = table(evidence, judge(evidence))
    assert "     1  lost id" in text
    assert "     0  doubled" in text
    assert "404 at 15.00" in text
