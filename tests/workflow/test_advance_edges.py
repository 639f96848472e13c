"""What releases what: shards over index, chunk and barrier edges, conditions, optional inputs, and how stages end."""

from __future__ import annotations

from typing import Any

import pytest

from flowsched.executor.protocol import PodEnded, Published
from flowsched.statement import Statement
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.run.advance import Advance
from flowsched.workflow.run.run import WorkflowRun
from tests.engine.scene import Scene, node

OUT = [{"name": "o", "path": "o"}]


def stage(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "command": ["x"], "outputs": OUT, **more}


def reads(source: str, match: str = "all", **more: Any) -> list[dict[str, Any]]:
    return [{"name": f"i{source}", "from": f"{source}.o", "match": match, **more}]


def scene(*stages: dict[str, Any]) -> Scene:
    """A cluster that has room for everything."""
    found = Scene(node(cpu=100))
    found.submit("w", *stages)
    return found


def ends(at: Scene, *shards: str, code: int = 0) -> list[str]:
    """These pods end, as "a3" for shard 3 of a; who starts, in the same words."""
    at.end(*(f"fs-w-{word[0]}-{word[1:]}-0" for word in shards), code=code)
    return ["".join(name.split("-")[2:4]) for name in at.launched]


def test_shard_3_of_b_starts_when_shard_3_of_a_ends() -> None:
    """Not sooner, not later, and no other."""
    w = scene(stage("a", scatter={"count": 5}), stage("b", inputs=reads("a", "index")))
    assert w.states("w", "b") == "PENDING PENDING PENDING PENDING PENDING"
    assert ends(w, "a3") == ["b3"]
    assert ends(w, "a0", "a4") == ["b0", "b4"]
    assert w.states("w", "b") == "BINDING PENDING PENDING BINDING BINDING"
    assert ends(w, "b3") == []
    assert ends(w, "a1", "a2") == ["b1", "b2"]
    assert w.state_of("w") == "RUNNING: a SUCCEEDED, b RUNNING"


def test_a_chunk_starts_when_the_last_of_its_items_ends() -> None:
    """Seven items in three chunks: 0-1, 2-3, 4-6."""
    w = scene(stage("a", scatter={"count": 7}), stage("b", scatter={"count": 3}, inputs=reads("a", "chunk")))
    assert ends(w, "a0", "a2", "a4", "a5") == []
    assert ends(w, "a1") == ["b0"]
    assert ends(w, "a6") == ["b2"]
    assert ends(w, "a3") == ["b1"]
    uris = [given.uris for given in w.pods["fs-w-b-2-0"].inputs]
    assert uris == [("flowsched:w/a/4/0/o", "flowsched:w/a/5/0/o", "flowsched:w/a/6/0/o")]


def test_a_barrier_opens_when_the_whole_stage_has_ended() -> None:
    """All shards at once, each with everything."""
    w = scene(stage("a", scatter={"count": 3}), stage("b", scatter={"count": 2}, inputs=reads("a")))
    assert ends(w, "a0") == []
    assert ends(w, "a1") == []
    assert ends(w, "a2") == ["b0", "b1"]
    assert w.pods["fs-w-b-1-0"].inputs[0].uris == tuple(f"flowsched:w/a/{n}/0/o" for n in range(3))
    assert w.pods["fs-w-b-1-0"].inputs[0].manifest


def test_two_parents_are_both_waited_for() -> None:
    """One by index, one by order alone."""
    w = scene(
        stage("a", scatter={"count": 2}), stage("c"), stage("b", needs=["c"], inputs=reads("a", "index"))
    )
    assert ends(w, "a1") == []
    assert ends(w, "c0") == ["b1"]
    assert ends(w, "a0") == ["b0"]


def test_a_shard_of_two_index_parents_waits_for_both() -> None:
    """Shard by shard."""
    both = [*reads("a", "index"), *reads("b", "index")]
    w = scene(stage("a", scatter={"count": 2}), stage("b", scatter={"count": 2}), stage("c", inputs=both))
    assert ends(w, "a0", "b1") == []
    assert ends(w, "b0") == ["c0"]
    assert ends(w, "a1") == ["c1"]


def test_a_failed_shard_dooms_what_waits_and_lets_go_on_what_runs() -> None:
    """b.0 had started; b.1 never will, and c is skipped since b does not succeed."""
    w = scene(
        stage("a", scatter={"count": 2}), stage("b", inputs=reads("a", "index")), stage("c", needs=["b"])
    )
    assert ends(w, "a0") == ["b0"]
    ends(w, "a1", code=1)
    assert w.states("w", "b") == "BINDING CANCELLED"
    assert ends(w, "b0") == []
    assert w.state_of("w") == "FAILED: a FAILED, b CANCELLED, c SKIPPED"
    assert w.runs["w"].reason == "a: task 1 failed: exit code 1"
    assert w.runs["w"].stages[1].reason == "'a' did not succeed"


def test_a_stage_that_failed_by_itself_keeps_its_own_reason() -> None:
    """Its parent fails later."""
    w = scene(stage("a", scatter={"count": 3}), stage("b", inputs=reads("a", "index")))
    ends(w, "a0", "a1")
    ends(w, "b0", code=7)
    ends(w, "a2", code=1)
    assert w.runs["w"].stages[1].reason == "task 0 failed: exit code 7"
    ends(w, "b1")
    assert w.state_of("w") == "FAILED: a FAILED, b FAILED"


@pytest.mark.parametrize(
    ("when", "after_success", "after_failure"),
    [("success", "RUNNING", "SKIPPED"), ("failure", "SKIPPED", "RUNNING"), ("always", "RUNNING", "RUNNING")],
)
def test_when_asks_for_the_outcome(when: str, after_success: str, after_failure: str) -> None:
    """Of the stages it waits for."""
    for code, expected in ((0, after_success), (1, after_failure)):
        w = scene(stage("a"), stage("b", needs=["a"], when=when), stage("z"))
        ends(w, "a0", code=code)
        assert w.runs["w"].stages[1].state == expected


def test_what_comes_after_a_skipped_stage_does_not_run_when_something_failed_before_it() -> None:
    """Training failed: there is nothing to evaluate, and nothing to deploy. Who is told of failures runs, however far behind."""
    w = scene(
        stage("a"),
        stage("b", needs=["a"]),
        stage("c", needs=["b"]),
        stage("d", needs=["c"], when="failure"),
        stage("e", needs=["c"], when="always"),
    )
    assert ends(w, "a0", code=1) == ["d0", "e0"]
    assert w.state_of("w") == "RUNNING: a FAILED, b SKIPPED, c SKIPPED, d RUNNING, e RUNNING"
    assert w.runs["w"].stages[2].reason == "'b' did not succeed"


def test_a_stage_for_failures_waits_for_all_it_needs() -> None:
    """The first fails, the second is still running."""
    w = scene(stage("a"), stage("c"), stage("b", needs=["a", "c"], when="failure"))
    assert ends(w, "a0", code=1) == []
    assert ends(w, "c0") == ["b0"]
    assert ends(w, "b0") == []
    assert w.state_of("w") == "FAILED: a FAILED, c SUCCEEDED, b SUCCEEDED"


def checked(text: str | None) -> Scene:
    """Stage a records a value, b wants "good" or "fair"."""
    value = [{"name": "v", "path": "v", "value": True, "optional": True}]
    wants = {"equals": {"a.v": ["good", "fair"]}}
    w = scene(stage("a", outputs=value), stage("b", when=wants), stage("c", needs=["b"]))
    wrote = () if text is None else (Published("v", "flowsched:w/a/0/0/v", 4, text),)
    w.tell(PodEnded("fs-w-a-0-0", w.now, 0, outputs=wrote))
    return w


def test_when_asks_for_values() -> None:
    """One of two texts is right; any other, or none, skips the stage and what needs it."""
    assert checked("good").state_of("w") == "RUNNING: a SUCCEEDED, b RUNNING, c PENDING"
    assert checked("fair").state_of("w") == "RUNNING: a SUCCEEDED, b RUNNING, c PENDING"
    w = checked("bad")
    assert w.runs["w"].stages[1].reason == "its condition (`when`) does not hold"
    assert w.launched == ["fs-w-c-0-0"]
    assert w.state_of("w") == "RUNNING: a SUCCEEDED, b SKIPPED, c RUNNING"
    assert checked(None).state_of("w") == "RUNNING: a SUCCEEDED, b SKIPPED, c RUNNING"


def test_optional_inputs_of_a_skipped_stage_are_left_out() -> None:
    """By barrier and by index; an input that is not optional skips its reader."""
    for match in ("all", "index"):
        w = scene(
            stage("a"),
            stage("b", scatter={"count": 2}, needs=["a"], when="failure"),
            stage("c", scatter={"count": 2}, inputs=reads("b", match, optional=True)),
            stage("d", scatter={"count": 2}, inputs=reads("b", match)),
        )
        assert ends(w, "a0") == ["c0", "c1"]
        assert w.pods["fs-w-c-0-0"].inputs == ()
        assert w.runs["w"].stages[3].reason == "'b' wrote nothing it could read"
        ends(w, "c0", "c1")
        assert w.state_of("w") == "SUCCEEDED: a SUCCEEDED, b SKIPPED, c SUCCEEDED, d SKIPPED"


def test_counts_and_moments_of_a_stage() -> None:
    """In its row, as it goes."""
    w = scene(stage("a", scatter={"count": 3}))
    w.now = 5_000
    ends(w, "a0")
    row = w.last.delta.stages[0]
    assert (row.state, row.counts, row.started_ms, row.ended_ms) == (
        "RUNNING", {"BINDING": 2, "SUCCEEDED": 1}, 1_000, None,
    )  # fmt: skip
    w.now = 9_000
    ends(w, "a1", "a2")
    row = w.last.delta.stages[0]
    assert (row.state, row.counts, row.ended_ms) == ("SUCCEEDED", {"SUCCEEDED": 3}, 9_000)
    assert w.last.delta.workflows[0] == ("w", "SUCCEEDED", "", 1_000, 9_000)
    assert w.runs["w"].totals() == {"SUCCEEDED": 3}


def test_ten_thousand_stages_in_a_row_are_skipped_without_recursion() -> None:
    """The first is cancelled by its own failure; one event ends them all."""
    names = [f"s{number}" for number in range(10_000)]
    stages = [stage(n, needs=[names[at - 1]] if at else []) for at, n in enumerate(names)]
    w = Scene()
    w.submit("w", *stages)
    w.end("fs-w-s0-0-0", code=1)
    assert w.runs["w"].state == "FAILED"
    assert w.runs["w"].totals() == {"FAILED": 1, "SKIPPED": 9_999}
    assert len(w.last.delta.stages) == 10_000
    w.nothing_left()


def test_looking_whether_a_workflow_has_ended_does_not_look_at_every_stage() -> None:
    """A row of a thousand stages, each ending in turn: a few looks for each end, not five hundred."""
    names = [f"s{number}" for number in range(1_000)]
    spec = check_workflow(
        {"name": "w", "stages": [stage(n, needs=names[at - 1 : at]) for at, n in enumerate(names)]}
    )
    run = WorkflowRun("w", spec, StageGraph(spec))
    advance = Advance(run, Statement(), 0)
    advance.begin()
    looks = 0

    class Counted(list):  # type: ignore[type-arg]
        def __getitem__(self, at):  # type: ignore[no-untyped-def]
            nonlocal looks
            looks += 1
            return super().__getitem__(at)

        def __iter__(self):  # type: ignore[no-untyped-def]
            nonlocal looks
            for each in super().__iter__():
                looks += 1
                yield each

    run.stages = Counted(run.stages)
    for _ in range(100):
        advance.settle()
    assert looks <= 1_000
