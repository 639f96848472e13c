"""What a simulation says of work that a policy leaves undone, and of work that nobody asked for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.rivals import simulated
from flowsched.simulation.clusters import Loss, SimulatedCluster, SimulatedNode
from flowsched.simulation.documents import from_document
from flowsched.simulation.figures import Figures, figures_of, lower_bound
from flowsched.workflow.document.decode import check_workflow

CLUSTER = SimulatedCluster((SimulatedNode("n0", 4), SimulatedNode("n1", 4)))
POLICIES = ("flowsched", "kube-like", "volcano-like", "blind", "heft", "wow")


def stage(name: str, **more: Any) -> dict[str, Any]:
    """A stage whose tasks take ten seconds."""
    return {"name": name, "command": ["x"], "estimate": {"runtime": "10s"}, **more}


def gang(name: str, replicas: int, **more: Any) -> dict[str, Any]:
    """A gang of members of one core."""
    role = {"command": ["x"], "resources": {"cpu": 1}, "replicas": replicas, **more}
    return {"name": name, "gang": True, "roles": {"w": role}, "estimate": {"runtime": "10s"}}


def figures(policy: str, *stages: dict[str, Any], losses: tuple[Loss, ...] = ()) -> Figures:
    """One workflow under one policy."""
    work = from_document(check_workflow({"name": "w", "stages": list(stages)}), "w", "w.json")
    return figures_of(simulated(policy, CLUSTER, [work], losses), lower_bound(CLUSTER, [work]))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("asks", "words"),
    [
        ({"resources": {"cpu": 5}}, "larger than any node; task needs 5 CPU"),
        ({"resources": {"memory": "1Ti"}}, "larger than any node; task needs 1 CPU and 1 TiB memory"),
        ({"resources": {"gpu": 1}}, "no node has a GPU"),
        ({"selector": {"disk": "ssd"}}, "no node allows task: of 2 ready nodes"),
    ],
)
def test_what_fits_no_node_has_no_makespan(policy: str, asks: dict[str, Any], words: str) -> None:
    """Neither alone nor beside tasks that fit, and it says which stage, how many tasks, and why."""
    big, child = stage("big", scatter={"count": 3}, **asks), stage("child", needs=["big"])
    told = figures(policy, stage("ok"), big, child)
    assert (told.makespan_s, told.ratio, told.mean_completion_s, told.busy, told.wait_s) == (None,) * 5
    assert (told.tasks, told.asked, told.complete) == (1, 5, False)
    assert told.unfinished[0].startswith("w: big (3 tasks): ")
    assert words in told.unfinished[0]
    assert len(told.unfinished) == 1


@pytest.mark.parametrize("policy", ["flowsched", "volcano-like", "blind", "heft", "wow"])
def test_a_gang_larger_than_the_cluster_has_no_makespan(policy: str) -> None:
    """Opponents start members one by one, and do not get to the end of such a gang either."""
    told = figures(policy, gang("g", 9))
    assert (told.makespan_s, told.tasks, told.asked) == (None, 0, 9)
    assert told.unfinished[0].startswith("w: g (9 tasks): 8 of 9 members fit an empty cluster")


def test_tasks_whose_nodes_are_lost_for_good_have_no_makespan() -> None:
    """The workflow waits for nodes that do not come back."""
    told = figures("flowsched", stage("a"), losses=(Loss(0, 5.0, None), Loss(1, 5.0, None)))
    assert (told.makespan_s, told.tasks, told.asked) == (None, 0, 1)
    assert told.unfinished == (
        "w: a (1 task): none of 2 nodes is ready; it was stopped before: NodeLost (the events say for what)",
    )


@pytest.mark.parametrize("policy", POLICIES)
def test_a_stage_that_is_skipped_is_not_asked_for(policy: str) -> None:
    """Its own condition skips it, or that of a stage it reads from. A stage that only waits for it runs after what came before."""
    stages = (
        stage("a", outputs=[{"name": "o", "path": "o", "value": True}]),
        stage("clean-up", needs=["a"], when="failure", outputs=[{"name": "o", "path": "o"}]),
        stage("good", when={"equals": {"a.o": "good"}}),
        stage("reader", inputs=[{"name": "i", "from": "clean-up.o", "match": "all"}]),
        stage("may-read", inputs=[{"name": "i", "from": "clean-up.o", "match": "all", "optional": True}]),
        stage("then", needs=["clean-up"]),
        stage("last", needs=["then"], when="always"),
    )
    told = figures(policy, *stages)
    assert (told.tasks, told.asked, told.unfinished) == (4, 4, ())
    assert told.makespan_s == pytest.approx(30.0, abs=0.1)
    assert told.ratio == pytest.approx(1.0, abs=0.01)


def test_members_that_are_released_have_done_their_work() -> None:
    """A server of a gang ends when the workers have: it is neither undone nor lost."""
    roles = {
        "ps": {"command": ["x"], "completes": False},
        "worker": {"command": ["x"], "replicas": 3},
    }
    told = figures("flowsched", {"name": "g", "gang": True, "roles": roles, "estimate": {"runtime": "10s"}})
    assert (told.tasks, told.asked, told.lost, told.makespan_s) == (4, 4, 0, 10.0)


def test_an_elastic_gang_is_done_with_the_members_that_it_got() -> None:
    """Eight of twelve members fit; four are not asked for any more once its minimum has succeeded."""
    told = figures("flowsched", gang("g", 12, min=8))
    assert (told.tasks, told.asked, told.makespan_s, told.ratio) == (8, 8, 10.0, 1.0)


@st.composite
def documents(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Stages that may fit or not, be skipped or not, end early or not."""
    made: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 4))):
        name = f"s{number}"
        if draw(st.booleans()):
            each = stage(name, resources={"cpu": draw(st.sampled_from([1, 3, 5]))})
            each["scatter"] = {"count": draw(st.integers(1, 5))}
        else:
            replicas = draw(st.integers(1, 10))
            each = gang(name, replicas, min=draw(st.integers(1, replicas)))
        if made and draw(st.booleans()):
            each["needs"] = [draw(st.sampled_from([other["name"] for other in made]))]
            each["when"] = draw(st.sampled_from(["success", "failure", "always"]))
        if draw(st.booleans()):
            each["policies"] = [{"event": "task_completed", "action": "complete_stage"}]
        made.append(each)
    return made


@settings(max_examples=40, deadline=None)
@given(documents(), st.sampled_from(POLICIES))
def test_a_makespan_is_of_all_that_was_asked_for_and_never_beats_the_bound(
    stages: list[dict[str, Any]], policy: str
) -> None:
    """Else there is none, and at least one sentence says what is missing."""
    told = figures(policy, *stages)
    assert (told.makespan_s is None) == bool(told.unfinished) == (told.tasks < told.asked)
    if told.ratio is not None:
        assert told.ratio > 0.999
