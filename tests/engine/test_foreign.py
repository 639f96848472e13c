"""Pods that others made: how they are offered, bound, refused, held room for, and taken away."""

from __future__ import annotations

from msgspec import structs

from flowsched.engine.events import NodeDrained
from flowsched.engine.foreign.backlog import verdicts
from flowsched.engine.foreign.work import RESERVED_MS, T_GANG_MS
from flowsched.engine.state.cluster import DrainOrder
from flowsched.executor.foreign import (
    BindRefused,
    ForeignGroup,
    ForeignPod,
    GroupGone,
    GroupSeen,
    PodLeft,
    PodTemplate,
    PodWaits,
    RoomTaken,
)
from flowsched.executor.protocol import NodeChanged
from flowsched.workflow.spec import Resources
from tests.engine.scene import Scene, node

MIB = 1 << 20


def template(cpu: float = 1, problem: str = "") -> PodTemplate:
    return PodTemplate(Resources(int(cpu * 1000), 64 * MIB), problem=problem)


def waits(uid: str, group: str = "g", role: str = "", cpu: float = 1, **more: object) -> PodWaits:
    return PodWaits(ForeignPod(uid, "ns", f"pod-{uid}", "1", group, role, template(cpu), **more))  # type: ignore[arg-type]


def gang(key: str = "g", minimum: int = 3, **more: object) -> GroupSeen:
    return GroupSeen(ForeignGroup(key, "ns", f"job-{key}", gang=True, minimum=minimum, **more))  # type: ignore[arg-type]


def bag(key: str = "g", **more: object) -> GroupSeen:
    return GroupSeen(ForeignGroup(key, "ns", f"job-{key}", **more))  # type: ignore[arg-type]


def sits(uid: str, at: str = "n0", group: str = "g", role: str = "", cpu: float = 1) -> RoomTaken:
    return RoomTaken(
        uid,
        at,
        Resources(int(cpu * 1000), 64 * MIB),
        group=group,
        role=role,
        owned=True,
        namespace="ns",
        name=uid,
    )


def bound(scene: Scene) -> list[tuple[str, str]]:
    return sorted((order.uid, order.node) for order in scene.last.binds)


def free(scene: Scene, name: str = "n0") -> int:
    snapshot = scene.state.cluster.snapshot
    at = snapshot.index[name]
    return int(snapshot.allocatable[at, 0] - snapshot.used[at, 0])


def told(scene: Scene) -> list[tuple[str, str]]:
    return [(each.code, each.message) for each in verdicts(scene.state)]


def test_a_lonely_pod_is_bound_and_its_decision_is_a_row_until_it_is_seen() -> None:
    """The row says uid, node and epoch; it goes when the pod is seen on its node."""
    scene = Scene(node())
    scene.tell(bag(), waits("a"))
    assert bound(scene) == [("a", "n0")]
    (row,) = scene.last.delta.bindings
    assert (row.uid, row.namespace, row.name, row.node, row.epoch) == ("a", "ns", "pod-a", "n0", 1)
    assert (free(scene), scene.last.delta.bindings_done) == (3000, [])
    scene.tell(sits("a"))
    assert scene.last.delta.bindings_done == ["a"]
    assert (free(scene), bound(scene)) == (3000, [])


def test_an_assumption_does_not_end_by_age() -> None:
    """An hour without a word changes nothing: neither is the room given away nor is the pod bound again."""
    scene = Scene(node(cpu=1))
    scene.tell(bag(), waits("a"), waits("b"))
    assert bound(scene) == [("a", "n0")]
    scene.tell(waits("a"), after=3_600_000)
    assert (bound(scene), free(scene)) == ([], 0)


def test_a_refused_binding_gives_the_room_back_and_the_pod_waits_again() -> None:
    """It goes to another node if the first is said to be full meanwhile."""
    scene = Scene(node("n0"), node("n1", cpu=1))
    scene.tell(bag(), waits("a"), waits("b"))
    assert {uid for uid, _ in bound(scene)} == {"a", "b"}
    scene.tell(RoomTaken("stranger", "n0", Resources(4000, MIB)), BindRefused("a", "n0", "409"))
    assert scene.last.delta.bindings_done == ["a"]
    assert bound(scene) == [("a", "n1")]


def test_a_refusal_of_what_was_not_asked_changes_nothing() -> None:
    """Late news."""
    scene = Scene(node())
    scene.tell(bag(), waits("a"))
    scene.tell(sits("a"))
    scene.tell(BindRefused("a", "n0"))
    assert (bound(scene), free(scene)) == ([], 3000)


def test_a_gang_waits_for_its_members_then_for_room_then_starts_whole() -> None:
    """Nobody of it is bound before all three are there and fit."""
    scene = Scene(node(cpu=2))
    scene.tell(gang(), waits("a"), waits("b"))
    assert told(scene) == [("WaitingForMembers", "2 of the 3 pods of its group exist")]
    scene.tell(waits("c"))
    assert bound(scene) == []
    assert told(scene)[0][0] == "LargerThanCluster"
    scene.tell(NodeChanged(node("n1", cpu=1)))
    assert [uid for uid, _ in bound(scene)] == ["a", "b", "c"]
    assert sorted(at for _, at in bound(scene)) == ["n0", "n0", "n1"]


def test_of_pods_that_the_next_step_comes_to_nothing_is_said() -> None:
    """A step places a thousand. The other group is bound by the next, and has no reason before: a pod that its reason is written on
    is another version, and its binding is refused.
    """
    scene = Scene(*(node(f"n{number}") for number in range(9)))
    first = [waits(f"a{number}", "g", cpu=0.001) for number in range(1000)]
    scene.tell(bag("g"), bag("h"), *first, *(waits(f"b{number}", "h", cpu=0.001) for number in range(3)))
    assert len(bound(scene)) == 1000
    assert told(scene) == []
    scene.tell()
    assert [uid for uid, _ in bound(scene)] == ["b0", "b1", "b2"]


def test_two_interleaved_gangs_on_room_for_one_and_a_half() -> None:
    """The first starts, the second holds nothing; when the first has ended, the second starts."""
    scene = Scene(node("n0", cpu=3), node("n1", cpu=1))
    scene.tell(gang("g"), gang("h"))
    pods = [waits(f"{key}{number}", key) for number in range(3) for key in "gh"]
    for pod in pods:
        scene.tell(pod)
    assert set(scene.state.foreign.assumed) == {"g0", "g1", "g2"}
    for uid in ("g0", "g1", "g2"):
        scene.tell(sits(uid, "n0", "g"))
    for uid in ("g0", "g1", "g2"):
        scene.tell(PodLeft(uid, succeeded=True))
    assert set(scene.state.foreign.assumed) == {"h0", "h1", "h2"}


def test_pods_of_a_group_that_does_not_exist_wait_for_it() -> None:
    """As the rule of the API says."""
    scene = Scene(node())
    scene.tell(waits("a"))
    assert (bound(scene), told(scene)) == ([], [("WaitingForMembers", "its PodGroup does not exist (yet)")])
    scene.tell(gang(minimum=1))
    assert bound(scene) == [("a", "n0")]


def test_role_minimums_are_strict() -> None:
    """Two of any kind are not one ps and one worker."""
    scene = Scene(node())
    scene.tell(
        gang(minimum=2, role_minimums={"ps": 1, "worker": 1}),
        waits("a", role="worker"),
        waits("b", role="worker"),
    )
    assert told(scene) == [("WaitingForMembers", "0 of the 1 pods of its role 'ps' exist")]
    scene.tell(waits("c", role="ps"))
    assert {uid for uid, _ in bound(scene)} == {"a", "b", "c"}


def test_the_minimum_is_of_the_most_important_pods_and_the_rest_comes_as_it_fits() -> None:
    """A gang of two with four pods on three cores: the priority one is among those that start."""
    scene = Scene(node(cpu=3))
    scene.tell(gang(minimum=2), waits("a"), waits("b"), waits("c"), waits("d", priority=5))
    assert "d" in {uid for uid, _ in bound(scene)}
    assert len(bound(scene)) == 3


def test_a_driver_starts_only_where_its_executors_will_have_room_and_that_room_is_kept() -> None:
    """Spark: minMember 1, minResources for driver and executors. Two applications of three cores on five."""
    scene = Scene(node(cpu=5))
    both = [gang(key, 1, min_resources=Resources(3000, 192 * MIB)) for key in "gh"]
    scene.tell(*both, waits("g-driver", "g"), waits("h-driver", "h"))
    assert bound(scene) == [("g-driver", "n0")]
    assert free(scene) == 2000  # its executors' room is taken
    scene.tell(sits("g-driver", group="g"))
    scene.tell(waits("g-1", "g"), waits("g-2", "g"))
    assert bound(scene) == [("g-1", "n0"), ("g-2", "n0")]
    assert free(scene) == 2000
    assert told(scene)[0][0] == "Insufficient"  # the other driver
    scene.tell(*(PodLeft(uid, succeeded=True) for uid in ("g-driver", "g-1", "g-2")))
    assert bound(scene) == [("h-driver", "n0")]


def test_room_that_nobody_comes_for_is_given_back_after_a_while() -> None:
    """A hold has a deadline, and the step asks to be woken for it."""
    scene = Scene(node(cpu=4))
    scene.tell(gang(minimum=1, min_resources=Resources(4000, 256 * MIB)), waits("driver"))
    scene.tell(sits("driver"), bag("other"), waits("x", "other"))
    assert (bound(scene), free(scene)) == ([], 0)
    assert scene.last.wake_ms == 1_000 + RESERVED_MS
    scene.tell(after=RESERVED_MS)
    assert bound(scene) == [("x", "n0")]


def test_half_a_gang_is_taken_away_after_t_gang() -> None:
    """Its third member was refused and a stranger took the room: those who sit make room for others."""
    scene = Scene(node("n0", cpu=2), node("n1", cpu=1))
    scene.tell(gang(), waits("a"), waits("b"), waits("c"))
    on = dict(bound(scene))
    lonely = next(uid for uid, at in on.items() if at == "n1")
    sitting = sorted(set(on) - {lonely})
    scene.tell(*(sits(uid, "n0") for uid in sitting))
    scene.tell(RoomTaken("stranger", "n1", Resources(1000, MIB)), BindRefused(lonely, "n1", "gone"))
    assert scene.last.evictions == []
    assert scene.last.wake_ms == scene.now + T_GANG_MS
    scene.tell(after=T_GANG_MS)
    assert sorted(each.uid for each in scene.last.evictions) == sitting


def test_a_gang_that_was_complete_once_is_its_controllers_business() -> None:
    """A worker that fails later does not let us take away the others."""
    scene = Scene(node())
    scene.tell(gang(), waits("a"), waits("b"), waits("c"))
    scene.tell(sits("a"), sits("b"), sits("c"))
    scene.tell(PodLeft("c"))
    scene.tell(after=2 * T_GANG_MS)
    assert scene.last.evictions == []
    scene.tell(waits("c2"))
    assert bound(scene) == [("c2", "n0")]


def test_strangers_take_room_until_they_leave() -> None:
    """Another scheduler's pods are seen, also where they over-commit; and hearing of them twice is hearing once."""
    scene = Scene(node(cpu=2))
    scene.tell(RoomTaken("s", "n0", Resources(3000, MIB)), RoomTaken("s", "n0", Resources(3000, MIB)))
    assert free(scene) == -1000
    scene.tell(bag(), waits("a"))
    assert bound(scene) == []
    scene.tell(PodLeft("s"))
    assert bound(scene) == [("a", "n0")]


def test_our_own_pods_are_not_counted_twice() -> None:
    """The watch shows them too."""
    scene = Scene(node(cpu=4))
    scene.submit("w", {"name": "s", "command": ["x"], "resources": {"cpu": 1}})
    scene.tell(RoomTaken("fs-w-s-0-0", "n0", Resources(1000, MIB)))
    assert free(scene) == 3000
    scene.end("fs-w-s-0-0")
    assert free(scene) == 4000
    scene.tell(PodLeft("fs-w-s-0-0", succeeded=True))
    assert free(scene) == 4000


def test_a_pod_of_ours_that_another_scheduler_bound_counts_where_it_is() -> None:
    """Hand-over: they chose n1 where we had thought of n0."""
    scene = Scene(node("n0"), node("n1"))
    scene.submit("w", {"name": "s", "command": ["x"], "resources": {"cpu": 1}})
    (pod,) = scene.last.launches
    other = "n1" if pod.node == "n0" else "n0"
    scene.tell(RoomTaken(pod.name, other, Resources(1000, MIB)))
    assert (free(scene, pod.node), free(scene, other)) == (4000, 3000)


def test_a_problem_of_one_pod_is_told_and_holds_nobody_else_up() -> None:
    """A claim that is not bound keeps its own pod waiting."""
    scene = Scene(node())
    odd = ForeignPod("b", "ns", "pod-b", "1", "g", "", template(problem="its volume claim data is not bound"))
    scene.tell(bag(), waits("a"), PodWaits(odd))
    assert bound(scene) == [("a", "n0")]
    assert told(scene) == [("WaitingForMembers", "its volume claim data is not bound")]


def test_queues_share_between_our_workflows_and_others_pods() -> None:
    """Both are offered in one cycle: the queue that has less goes first."""
    scene = Scene(node(cpu=2))
    scene.tell(
        scene.accepted("w", {"name": "s", "scatter": {"count": 2}, "command": ["x"], "resources": {"cpu": 1}}, queue="ours"),
        bag(queue="theirs"), waits("a"), waits("b"),
    )  # fmt: skip
    assert (len(scene.launched), len(bound(scene))) == (1, 1)


def test_nothing_is_left_of_a_group_when_all_of_it_has_gone() -> None:
    """Every book is empty."""
    scene = Scene(node())
    scene.tell(gang(), waits("a"), waits("b"), waits("c"))
    scene.tell(sits("a"), sits("b"), sits("c"))
    scene.tell(*(PodLeft(uid, succeeded=True) for uid in "abc"), GroupGone("g"))
    scene.nothing_left()
    assert not scene.state.foreign.groups
    assert not scene.state.foreign.pods
    assert not scene.state.foreign.assumed


def test_a_gang_of_others_takes_the_room_of_our_lower_work_and_is_bound_when_it_has_left() -> None:
    """Victims are our own tasks; the room they leave belongs to the others' pods."""
    scene = Scene(node(cpu=4))
    work = {"name": "s", "scatter": {"count": 6}, "command": ["x"], "resources": {"cpu": 1, "memory": "64Mi"}}
    scene.submit("low", work)
    scene.tell(gang(minimum=2), waits("a", priority=7), waits("b", priority=7))
    assert scene.released == ["fs-low-s-2-0", "fs-low-s-3-0"]
    assert sorted(each.code for each in scene.state.round.reasons.values()) == [
        "Insufficient",
        "WaitingForVictims",
    ]
    scene.end("fs-low-s-2-0", code=143, reason="Released")
    assert (bound(scene), scene.launched) == ([], [])
    scene.end("fs-low-s-3-0", code=143, reason="Released")
    assert (bound(scene), scene.launched) == ([("a", "n0"), ("b", "n0")], [])
    assert scene.state.cluster.snapshot.nominations == {}


def test_others_pods_on_a_drained_node_are_evicted_where_they_are_made_again() -> None:
    """Once at the moment, and again a minute later if they have not gone."""
    scene = Scene(node(cpu=2))
    scene.tell(bag(), waits("a"), waits("b"))
    scene.tell(sits("a"), structs.replace(sits("b"), owned=False))
    scene.tell(NodeDrained("n0", DrainOrder(0, scene.now + 5_000)))
    assert scene.last.evictions == []
    scene.tell(after=5_000)
    assert [(each.uid, each.reason) for each in scene.last.evictions] == [("a", "its node is being emptied")]
    scene.tell(after=30_000)
    assert scene.last.evictions == []
    scene.tell(after=30_000)
    assert [each.uid for each in scene.last.evictions] == ["a"]
