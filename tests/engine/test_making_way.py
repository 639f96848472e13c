"""Others' pods make way for more important work: who goes, who stays, and what becomes of the room they leave."""

from __future__ import annotations

from typing import Any

import pytest

from flowsched.engine.foreign.preemption import SPARE_MS
from flowsched.engine.foreign.work import T_GANG_MS
from flowsched.engine.state import EngineState
from flowsched.engine.step import step
from flowsched.executor.foreign import (
    BindRefused,
    BudgetSeen,
    EvictionRefused,
    ForeignGroup,
    ForeignPod,
    GroupSeen,
    PodLeft,
    PodTemplate,
    PodWaits,
    RoomTaken,
    Stake,
)
from flowsched.executor.protocol import NodeChanged
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.values import replace
from flowsched.workflow.spec import Resources
from tests.engine.scene import Scene, node

MIB = 1 << 20
TASK = {"name": "s", "command": ["x"], "resources": {"cpu": 1, "memory": "64Mi"}}


def waits(uid: str, group: str = "low", **more: Any) -> PodWaits:
    return PodWaits(
        ForeignPod(uid, "ns", uid, "1", group, "", PodTemplate(Resources(1000, 64 * MIB)), **more)
    )


def gang(key: str = "low", minimum: int = 3, **more: Any) -> GroupSeen:
    return GroupSeen(ForeignGroup(key, "ns", f"job-{key}", gang=True, minimum=minimum, **more))


def bag(key: str = "low", **more: Any) -> GroupSeen:
    return GroupSeen(ForeignGroup(key, "ns", f"job-{key}", **more))


def sits(
    uid: str, group: str = "low", at: str = "n0", owned: bool = True, leaving: bool = False, queue: str = "default",
    role: str = "", **stake: Any,
) -> RoomTaken:  # fmt: skip
    return RoomTaken(
        uid, at, Resources(1000, 64 * MIB), queue, group, role, None, leaving, 0, owned, "ns", uid, Stake(**stake)
    )  # fmt: skip


def asked(scene: Scene) -> list[tuple[str, str]]:
    """(pod, unit) of those that the last step asked to make way."""
    return [(each.uid, each.unit) for each in scene.last.evictions]


def bound(scene: Scene) -> list[str]:
    return [order.uid for order in scene.last.binds]


def codes(scene: Scene) -> list[str]:
    return sorted(each.code for each in scene.state.round.reasons.values())


def running(*events: RoomTaken, rule: GroupSeen | None = None, cpu: int = 3) -> Scene:
    """A node of which a low gang (a, b, c) has all."""
    scene = Scene(node(cpu=cpu))
    scene.tell(rule or gang(), *(events or (sits("a"), sits("b"), sits("c"))))
    return scene


def high(priority: int = 7, **more: Any) -> tuple[Any, ...]:
    """A gang of two that asks for more than is free."""
    return gang("high", 2), *(waits(uid, "high", priority=priority, **more) for uid in ("x", "y"))


def test_a_gang_goes_as_a_whole_and_its_new_pods_wait_behind_the_one_that_took_its_room() -> None:
    """Three leave for two; what its operator makes anew comes back when those two have ended, all three together."""
    scene = running()
    scene.tell(*high())
    assert asked(scene) == [("a", "low"), ("b", "low"), ("c", "low")]
    assert {each.reason for each in scene.last.evictions} == {
        "ns/job-high of priority 7 takes its room; its own is 0"
    }
    assert (bound(scene), codes(scene)) == ([], ["WaitingForVictims"])
    scene.tell(*(sits(uid, leaving=True, marked=True) for uid in "abc"))
    scene.tell(PodLeft("a"), waits("a2"))
    assert (bound(scene), asked(scene)) == ([], [])
    scene.tell(PodLeft("b"), waits("b2"))
    assert bound(scene) == ["x", "y"]
    scene.tell(PodLeft("c"), waits("c2"), sits("x", "high", priority=7), sits("y", "high", priority=7))
    assert (bound(scene), asked(scene)) == ([], [])  # one core is free, and half a gang is none
    scene.tell(PodLeft("x", True, "high"), PodLeft("y", True, "high"))
    assert sorted(bound(scene)) == ["a2", "b2", "c2"]


def test_a_workflow_of_ours_takes_the_room_of_others_lower_pods() -> None:
    """The gap that there was: a training of somebody's held its room for ever."""
    scene = running()
    scene.submit("w", TASK, priority=5)
    assert asked(scene) == [("a", "low"), ("b", "low"), ("c", "low")]
    scene.tell(*(PodLeft(uid) for uid in "abc"))
    assert scene.launched == ["fs-w-s-0-0"]


@pytest.mark.parametrize("priority", [0, -1])
def test_equal_and_lower_priorities_take_nothing(priority: int) -> None:
    """Strictly higher, as in kube-scheduler."""
    scene = running()
    scene.tell(*high(priority))
    assert asked(scene) == []


def test_the_most_important_member_speaks_for_its_gang() -> None:
    """A launcher of priority 9 protects its workers of priority 0 from a taker of 7, not from one of 10."""
    scene = running(sits("a"), sits("b", priority=9), sits("c"))
    scene.tell(*high(7))
    assert asked(scene) == []
    scene.submit("w", TASK, priority=10)
    assert [uid for uid, _ in asked(scene)] == ["a", "b", "c"]


def test_preemption_policy_never_is_honoured() -> None:
    """Such a taker waits, however important; one of its pods is enough."""
    scene = running()
    scene.tell(*high(preempts=False))
    assert asked(scene) == []
    mixed = running()
    mixed.tell(
        gang("high", 2), waits("x", "high", priority=7), waits("y", "high", priority=7, preempts=False)
    )
    assert asked(mixed) == []


def test_a_taker_that_never_preempts_uses_what_is_left_by_itself() -> None:
    """It is not shut out."""
    scene = running()
    scene.tell(*high(preempts=False))
    scene.tell(*(PodLeft(uid) for uid in "abc"))
    assert bound(scene) == ["x", "y"]


@pytest.mark.parametrize(
    "scene",
    [
        running(sits("a"), sits("b", preemptible=False), sits("c")),
        running(rule=gang(preemptible=False)),
        running(sits("a"), sits("b", owned=False), sits("c")),
        running(sits("a"), sits("b", priority=2_000_000_000), sits("c")),
        running(sits("a", preemptible=True), sits("b"), sits("c"), rule=gang(preemptible=False)),
    ],
    ids=["a member says no", "its PodGroup says no", "nobody makes it again", "critical", "no beats yes"],
)
def test_what_says_no_or_would_be_lost_stays_and_with_it_its_gang(scene: Scene) -> None:
    """However important the taker is."""
    scene.tell(*high(1_000_000_000))
    assert asked(scene) == []


def test_what_says_yes_goes_although_nobody_makes_it_again() -> None:
    """Its owner has said so."""
    scene = running(*(sits(uid, owned=False) for uid in "abc"), rule=gang(preemptible=True))
    scene.tell(*high())
    assert [uid for uid, _ in asked(scene)] == ["a", "b", "c"]


def test_a_gang_does_not_take_its_own_members_room() -> None:
    """A fourth pod of it, more important than the three that run, waits; one of another gang does not."""
    scene = running()
    scene.tell(waits("d", priority=9))
    assert asked(scene) == []
    scene.tell(PodLeft("d"))
    scene.tell(gang("other", 1), waits("e", "other", priority=9))
    assert [uid for uid, _ in asked(scene)] == ["a", "b", "c"]


def test_a_change_of_mind_counts_at_once() -> None:
    """The annotation is put on while a taker waits, and is taken off."""
    scene = running(rule=gang(preemptible=False))
    scene.tell(*high())
    assert asked(scene) == []
    scene.tell(gang())
    assert [uid for uid, _ in asked(scene)] == ["a", "b", "c"]


def test_pods_of_other_schedulers_are_never_touched() -> None:
    """They only take room."""
    scene = Scene(node(cpu=2))
    scene.tell(*(RoomTaken(uid, "n0", Resources(1000, MIB), owned=True) for uid in "st"), *high())
    assert asked(scene) == []


def test_a_pod_that_is_not_seen_on_its_node_yet_keeps_its_gang_there() -> None:
    """Its binding is under way: what is asked of it now could come too early."""
    scene = Scene(node(cpu=3))
    scene.tell(gang(), waits("a"), waits("b"), waits("c"))
    scene.tell(sits("a"), sits("b"))
    scene.tell(*high())
    assert asked(scene) == []
    scene.tell(sits("c"))
    assert [uid for uid, _ in asked(scene)] == ["a", "b", "c"]


def test_single_pods_go_one_by_one_the_least_lost_work_first() -> None:
    """What has not begun, then BestEffort, then the least core-seconds; only as many as are needed."""
    scene = Scene(node(cpu=4))
    scene.now = 100_000
    scene.tell(
        bag(),
        sits("old", qos=1, started_ms=1_000), sits("young", qos=1, started_ms=90_000),
        sits("best", qos=0, started_ms=1_000), sits("idle", qos=2),
    )  # fmt: skip
    scene.submit("w1", TASK, priority=1)
    assert asked(scene) == [("idle", "low/idle")]
    scene.submit("w2", TASK, priority=1)
    assert asked(scene) == [("best", "low/best")]
    scene.submit("w3", TASK, priority=1)
    assert asked(scene) == [("young", "low/young")]


def test_what_has_just_begun_is_left_alone_for_its_minimum_runtime() -> None:
    """`min_runtime_ms` of the profile; a gang has run since its first member began."""
    scene = running(*(sits(uid, started_ms=1_000) for uid in "abc"))
    scene.state.policy.profile = replace(PROFILES["flowsched"], min_runtime_ms=30_000)
    scene.tell(*high())
    assert asked(scene) == []
    assert scene.last.wake_ms == 31_000
    scene.tell(after=30_000)
    assert [uid for uid, _ in asked(scene)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("profile", "goes"),
    [
        (replace(PROFILES["flowsched"], preempt=False), False),
        (replace(PROFILES["flowsched"], reclaim=False), True),
    ],
    ids=["preempt off", "reclaim off"],
)
def test_the_switches_of_the_profile_hold_for_others_pods_too(profile: Profile, goes: bool) -> None:
    """Without `preempt` priority takes nothing; without `reclaim` it does."""
    scene = running()
    scene.state.policy.profile = profile
    scene.tell(*high())
    assert bool(asked(scene)) is goes


def test_an_elastic_gang_gives_back_those_that_came_last_and_goes_on() -> None:
    """Four pods, a minimum of two: two go, one for each core that is asked for, then the rest; never the driver before them."""
    pods = [sits(uid, created_ms=number) for number, uid in enumerate(["driver", "e-9", "e-10", "e-11"])]
    scene = running(*pods, rule=gang(minimum=2), cpu=4)
    scene.submit("w1", TASK, priority=1)
    assert asked(scene) == [("e-11", "low")]
    scene.submit("w2", TASK, priority=1)
    assert asked(scene) == [("e-10", "low")]
    scene.submit("w3", TASK, priority=1)
    assert asked(scene) == [("driver", "low"), ("e-9", "low")]  # now the rest, all of it


def test_executors_make_way_although_their_driver_must_stay() -> None:
    """Spark by `spark-submit`: nobody would make the driver again, and its group's minimum is one. Three cores are asked for."""
    pods = [sits("driver", owned=False)] + [sits(f"e-{n}", created_ms=n) for n in range(1, 4)]
    scene = running(*pods, rule=gang(minimum=1), cpu=4)
    scene.tell(gang("high", 4), *(waits(f"x{n}", "high", priority=7) for n in range(4)))
    assert asked(scene) == []  # four are more than three
    scene.tell(*(PodLeft(f"x{n}") for n in range(4)))
    scene.tell(gang("high", 2), *(waits(f"y{n}", "high", priority=7) for n in range(2)))
    assert asked(scene) == [("e-3", "low"), ("e-2", "low")]


def test_one_that_must_stay_and_could_be_spared_keeps_its_own_room_only() -> None:
    """Two of four are the minimum; of the two that came last one says no."""
    pods = [
        sits(uid, created_ms=n, preemptible=False if uid == "d" else None) for n, uid in enumerate("abcd")
    ]
    scene = running(*pods, rule=gang(minimum=2), cpu=4)
    scene.tell(scene.accepted("w1", TASK, priority=1), scene.accepted("w2", TASK, priority=1))
    assert asked(scene) == [("c", "low")]


def test_a_gang_whose_minimum_has_ended_well_gives_back_all_but_one_by_one() -> None:
    """Two of its four are done, which is its minimum: of the two that run the later one goes first."""
    scene = running(sits("a"), sits("b"), sits("c"), sits("d"), rule=gang(minimum=2), cpu=4)
    scene.tell(
        PodLeft("a", True, "low"), PodLeft("b", True, "low"), RoomTaken("s", "n0", Resources(2000, MIB))
    )
    scene.submit("w", TASK, priority=1)
    assert asked(scene) == [("d", "low")]


def test_an_elastic_gang_keeps_the_minimum_of_each_role() -> None:
    """One ps and one worker must stay of two and three; the gang's minimum is one more than both: each role keeps one more."""
    rule = gang(minimum=3, role_minimums={"ps": 1, "worker": 1})
    pods = [sits(f"ps-{n}", role="ps") for n in range(2)] + [sits(f"w-{n}", role="worker") for n in range(3)]
    scene = running(*pods, rule=rule, cpu=5)
    scene.submit("w1", TASK, priority=1)
    assert asked(scene) == [("w-2", "low")]
    scene.submit("w2", TASK, priority=1)
    assert [uid for uid, _ in asked(scene)] == ["ps-0", "ps-1", "w-0", "w-1"]


def test_pods_that_come_again_while_the_old_ones_leave_are_a_gang_again() -> None:
    """A Job's controller does not wait: two new pods are there before the second of two old ones has left."""
    scene = Scene(node("n0", cpu=2), node("n1", cpu=1))
    scene.tell(gang(minimum=2), sits("a"), sits("b"), RoomTaken("s", "n1", Resources(1000, MIB)))
    scene.submit("w", {**TASK, "resources": {"cpu": 2, "memory": "64Mi"}}, priority=1)
    assert [uid for uid, _ in asked(scene)] == ["a", "b"]
    scene.tell(sits("a", leaving=True), sits("b", leaving=True), waits("a2"), waits("b2"))
    scene.tell(PodLeft("s"))
    assert bound(scene) == []  # one core is free on n1: as a bag, one of them would have got it


def test_a_budget_that_allows_none_keeps_its_pods_and_the_taker_looks_elsewhere() -> None:
    """Of two gangs on a node the protected one stays, although it is the less important one."""
    scene = Scene(node(cpu=4))
    scene.tell(
        BudgetSeen("ns/p", 0), gang("low", 2), gang("mid", 2),
        sits("a", budgets=("ns/p",)), sits("b", budgets=("ns/p",)),
        sits("m", "mid", priority=3), sits("n", "mid", priority=3),
    )  # fmt: skip
    scene.tell(*high())
    assert asked(scene) == [("m", "mid"), ("n", "mid")]


def test_a_budget_lets_a_gang_go_only_if_it_lets_all_of_it_go() -> None:
    """Two of three are not enough; and what it comes to allow counts at once."""
    scene = running(*(sits(uid, budgets=("ns/p",)) for uid in "abc"))
    scene.tell(BudgetSeen("ns/p", 2), *high())
    assert asked(scene) == []
    scene.tell(BudgetSeen("ns/p", 3))
    assert [uid for uid, _ in asked(scene)] == ["a", "b", "c"]


def test_one_decision_does_not_ask_for_more_pods_than_their_budget_allows() -> None:
    """Three single pods under a budget of one: two tasks come, one gets room, the other one waits."""
    scene = running(*(sits(uid, budgets=("ns/p",), created_ms=n) for n, uid in enumerate("abc")), rule=bag())
    scene.tell(BudgetSeen("ns/p", 1))
    scene.tell(scene.accepted("w1", TASK, priority=1), scene.accepted("w2", TASK, priority=1))
    assert asked(scene) == [("c", "low/c")]
    scene.tell(sits("a", budgets=("ns/p",), started_ms=5))
    assert asked(scene) == []  # the budget does not know of c yet
    scene.tell(sits("c", budgets=("ns/p",), leaving=True), BudgetSeen("ns/p", 0))
    assert asked(scene) == []
    scene.tell(BudgetSeen("ns/p", None), sits("a"), sits("b"))
    assert len(asked(scene)) == 1


def test_pods_under_two_budgets_stay() -> None:
    """The API server evicts no such pod."""
    scene = running(*(sits(uid, budgets=("ns/p", "ns/q")) for uid in "abc"))
    scene.tell(BudgetSeen("ns/p", 9), BudgetSeen("ns/q", 9), *high())
    assert asked(scene) == []


def test_an_eviction_that_is_refused_leaves_everything_as_it_was_for_a_while() -> None:
    """The budget was spent by somebody else in the same moment: the taker asks again later, and for nobody else meanwhile."""
    scene = running()
    scene.tell(gang("mid", 1), *high())
    scene.tell(EvictionRefused(("a", "b", "c"), "its budget"))
    assert scene.state.cluster.snapshot.nominations == {}
    assert (asked(scene), codes(scene)) == ([], ["Insufficient"])
    claims = scene.state.cluster.snapshot.claims
    assert {owner: (claim.kind.name, claim.unit) for owner, claim in claims.items()} == {
        "a": ("RUNNING", ""), "b": ("RUNNING", ""), "c": ("RUNNING", ""),
    }  # fmt: skip
    scene.tell(NodeChanged(node("n1", cpu=1)), after=SPARE_MS - 1)
    assert asked(scene) == []
    scene.tell(after=1)
    assert [uid for uid, _ in asked(scene)] == ["a", "b", "c"]


def test_a_single_pod_whose_eviction_is_refused_is_left_alone_by_all() -> None:
    """The next one who asks for room gets that of the other pod."""
    scene = Scene(node("n0", cpu=1), node("n1", cpu=1))
    scene.tell(bag(), sits("a", at="n0"), sits("b", at="n1", priority=1))
    scene.submit("w1", TASK, priority=5)
    assert asked(scene) == [("a", "low/a")]
    scene.tell(EvictionRefused(("a",), "its budget"))
    assert asked(scene) == []
    scene.command("w1", "cancel")
    scene.submit("w2", TASK, priority=5)
    assert asked(scene) == [("b", "low/b")]


def test_a_queue_takes_back_its_share_from_others_pods() -> None:
    """Reclaim knows no priorities: two queues of equal weight, one has all, and is served no less than the other afterwards."""
    scene = Scene(node(cpu=4))
    scene.state.policy.queues = QueueTree([Queue("ours", weight=2), Queue("theirs", weight=2)])
    scene.tell(
        bag(queue="theirs"), *(sits(uid, queue="theirs", priority=100, created_ms=n) for n, uid in enumerate("abcd")),
    )  # fmt: skip
    scene.submit("w", {**TASK, "scatter": {"count": 4}}, queue="ours")
    assert len(asked(scene)) == 2
    assert {each.reason.split(" takes")[0] for each in scene.last.evictions} == {"w/s of queue ours"}


@pytest.mark.parametrize(("priority", "goes"), [(2_000_000_000, 0), (1_999_999_999, 1)])
def test_what_a_cluster_cannot_do_without_is_not_reclaimed_either(priority: int, goes: int) -> None:
    """`system-cluster-critical` is 2,000,000,000; one less is anybody's."""
    scene = Scene(node(cpu=2))
    scene.state.policy.queues = QueueTree([Queue("ours", weight=2), Queue("theirs", weight=2)])
    scene.tell(bag(queue="theirs"), *(sits(uid, queue="theirs", priority=priority) for uid in "ab"))
    scene.submit("w", {**TASK, "scatter": {"count": 2}}, queue="ours")
    assert len(asked(scene)) == goes


def test_a_gang_that_comes_again_must_come_together_again() -> None:
    """One of its two new pods is refused, and its room is lost: the other one does not stand there for ever."""
    scene = Scene(node(cpu=2))
    scene.tell(gang(minimum=2), sits("a"), sits("b"))
    scene.submit("w", {**TASK, "resources": {"cpu": 2, "memory": "64Mi"}}, priority=1)
    scene.tell(PodLeft("a"), PodLeft("b"), waits("a2"), waits("b2"))
    scene.end("fs-w-s-0-0")
    assert bound(scene) == ["a2", "b2"]
    scene.tell(sits("a2"), BindRefused("b2", "n0"), RoomTaken("s", "n0", Resources(1000, MIB)))
    scene.tell(after=T_GANG_MS)
    assert asked(scene) == [("a2", "")]


def test_room_that_was_kept_for_a_gangs_other_pods_is_not_kept_when_it_has_gone() -> None:
    """A driver of one core, and two kept for executors that are still to come, on a node of four; who comes asks for two."""
    scene = Scene(node(cpu=4))
    scene.tell(gang(minimum=1, min_resources=Resources(3000, 192 * MIB)), waits("driver"))
    scene.tell(sits("driver"))
    assert "hold/low/0" in scene.state.cluster.snapshot.claims
    scene.submit("w", {**TASK, "resources": {"cpu": 2, "memory": "64Mi"}}, priority=1)
    assert asked(scene) == [("driver", "low")]
    scene.tell(sits("driver", leaving=True))
    assert "hold/low/0" not in scene.state.cluster.snapshot.claims


def test_a_new_leader_goes_on_where_all_of_a_gang_has_been_marked() -> None:
    """Nothing of it is a row: the marks on the pods say it. One has gone already."""
    scene = running(sits("b", marked=True), sits("c", marked=True))
    assert asked(scene) == [("b", "low"), ("c", "low")]
    assert [each.begun for each in scene.last.evictions] == [True, True]  # no budget makes them half a gang
    whole = running(*(sits(uid, marked=True) for uid in "abc"))
    assert [each.begun for each in whole.last.evictions] == [False, False, False]


def test_a_new_leader_leaves_a_gang_alone_of_which_only_some_have_been_marked() -> None:
    """All are marked before the first goes: so nobody has gone."""
    scene = running(sits("a"), sits("b", marked=True), sits("c", marked=True))
    assert asked(scene) == []


def test_a_new_leader_goes_on_with_members_that_a_gang_can_spare() -> None:
    """Two of four are marked, and two are its minimum."""
    pods = [sits(uid, marked=uid in "cd") for uid in "abcd"]
    scene = running(*pods, rule=gang(minimum=2), cpu=4)
    assert asked(scene) == [("c", "low"), ("d", "low")]


def test_marks_that_are_seen_while_pods_make_way_change_nothing() -> None:
    """They come back by the watch, one after the other."""
    scene = running()
    scene.tell(*high())
    scene.tell(sits("a", marked=True))
    scene.tell(sits("b", marked=True), sits("c", marked=True))
    assert asked(scene) == []
    assert {
        claim.kind.name for owner, claim in scene.state.cluster.snapshot.claims.items() if owner in "abc"
    } == {"RELEASING"}


def test_a_decision_that_was_not_committed_leaves_no_trace() -> None:
    """The step is dropped: claims, marks, nominations are what they were."""
    scene = running(*(sits(uid, budgets=("ns/p",)) for uid in "abc"))
    scene.tell(BudgetSeen("ns/p", 3))

    def books(state: EngineState) -> tuple[Any, ...]:
        foreign = state.foreign
        of_gangs = [(key, work.complete, dict(work.placed)) for key, work in foreign.groups.items()]
        snapshot = state.cluster.snapshot
        return (
            dict(snapshot.claims), dict(snapshot.nominations), dict(snapshot.takeable), snapshot.used.tolist(),
            of_gangs, dict(foreign.making_way), dict(foreign.spared), dict(foreign.budgets), dict(foreign.covered),
            foreign.guarded,
        )  # fmt: skip

    before = books(scene.state)
    result = step(scene.state, high(), scene.now)
    assert len(result.evictions) == 3
    result.drop()
    assert books(scene.state) == before


def test_nothing_is_left_in_the_books_when_all_have_gone() -> None:
    """Every one of them is empty."""
    scene = running(*(sits(uid, budgets=("ns/p",)) for uid in "abc"))
    scene.tell(BudgetSeen("ns/p", 3), *high())
    scene.tell(*(PodLeft(uid) for uid in "abc"))
    scene.tell(PodLeft("x"), PodLeft("y"), BudgetSeen("ns/p", None))
    state = scene.state
    assert (
        state.foreign.making_way,
        state.foreign.covered,
        state.foreign.budgets,
        state.foreign.guarded,
        state.foreign.spared,
    ) == (
        {},
        {},
        {},
        frozenset(),
        {},
    )
