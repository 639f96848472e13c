"""Gangs that began with fewer members than they may have take in more while they go on."""

from __future__ import annotations

from typing import Any

from flowsched.control.views import queue_views
from flowsched.engine.events import QueueChanged
from flowsched.engine.explain import explain, first_reason
from flowsched.engine.step import step
from flowsched.executor.protocol import NodeChanged
from flowsched.scheduling.queues.tree import Queue
from tests.engine.scene import Scene, node


def gang(
    replicas: int = 4, least: int = 1, *, servers: int = 0, stage: dict[str, Any] | None = None, **more: Any
) -> dict[str, Any]:
    """Workers of one core each, of which so many are needed, after servers that may be fewer too."""
    roles: dict[str, Any] = {}
    if servers:
        roles["ps"] = {"replicas": servers, "min": 1, "command": ["ps"], "completes": False}
    roles["w"] = {"replicas": replicas, "min": least, "command": ["w"], "resources": {"cpu": 1}, **more}
    return {"name": "t", "gang": True, "roles": roles, **(stage or {})}


def bag(count: int = 1, cpu: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": "t", "scatter": {"count": count}, "command": ["x"], "resources": {"cpu": cpu}, **more}


def small(*, cpu: int = 4, busy: int = 3, **more: Any) -> Scene:
    """A node with room for one member beside tasks that keep the rest of it busy."""
    scene = Scene(node(cpu=cpu))
    scene.submit("other", bag(busy))
    scene.start(*(f"fs-other-t-{n}-0" for n in range(busy)))
    scene.submit("g", gang(**more))
    assert scene.launched == ["fs-g-t-0-0"]
    scene.start("fs-g-t-0-0")
    return scene


def why(scene: Scene, ident: str = "g") -> list[tuple[str, int, str]]:
    """What explain says: code, tasks, message."""
    told = explain(scene.state, scene.runs[ident], scene.now, forecast=False)
    return [(each.code, each.tasks, each.message) for each in told]


def pending(scene: Scene) -> int:
    """Milli-CPU that the queues' waiting tasks ask for."""
    return sum(int(view.pending.get("cpu", 0)) for view in queue_views(scene.state))


def test_members_join_as_room_comes() -> None:
    """One by one, each in the step that frees room for it; the gang is done when all that joined have succeeded."""
    scene = small()
    scene.end("fs-other-t-0-0")
    assert scene.launched == ["fs-g-t-1-0"]
    scene.end("fs-other-t-1-0", "fs-other-t-2-0")
    assert scene.launched == ["fs-g-t-2-0", "fs-g-t-3-0"]
    names = [f"fs-g-t-{n}-0" for n in range(4)]
    scene.start(*names[1:])
    scene.end(*names[:3])
    assert scene.state_of("g") == "RUNNING: t RUNNING"
    scene.end(names[3])
    assert scene.state_of("g") == "SUCCEEDED: t SUCCEEDED"
    scene.nothing_left()


def test_a_member_that_joins_gets_the_next_rank_and_meets_the_others_at_the_first() -> None:
    """The same address of rank 0, the same secret and generation; the world as it is now."""
    scene = small()
    scene.end("fs-other-t-0-0")
    scene.end("fs-other-t-1-0")
    first, second, third = (scene.pods[f"fs-g-t-{n}-0"].gang for n in range(3))
    assert first is not None
    assert second is not None
    assert third is not None
    assert [each.roster.size for each in (first, second, third)] == [1, 2, 3]
    assert [each.rank for each in (first, second, third)] == [0, 1, 2]
    assert [each.role_index for each in (first, second, third)] == [0, 1, 2]
    assert [each.roster.runs for each in (first, second, third)] == [
        (("w", 0, 1),), (("w", 0, 2),), (("w", 0, 3),),
    ]  # fmt: skip
    assert {(each.token, each.generation) for each in (first, second, third)} == {(first.token, 0)}


def test_ranks_stay_when_a_member_of_an_earlier_role_joins() -> None:
    """A second server gets the rank after the workers'; what they were told stays true."""
    scene = Scene(node(cpu=3))
    scene.submit("other", bag(1))
    scene.submit("g", gang(1, 1, servers=2))
    assert scene.launched == ["fs-g-t-0-0", "fs-g-t-2-0"]
    scene.end("fs-other-t-0-0")
    assert scene.launched == ["fs-g-t-1-0"]
    seats = [scene.pods[f"fs-g-t-{n}-0"].gang for n in (0, 2, 1)]
    told = [(each.rank, each.member, each.roster.runs) for each in seats if each is not None]
    begun = ("ps", 0, 1), ("w", 2, 1)
    assert told == [
        (0, ("ps", 0, 0), begun),
        (1, ("w", 0, 2), begun),
        (2, ("ps", 1, 1), (*begun, ("ps", 1, 1))),
    ]


def test_a_member_that_comes_back_has_its_rank_again() -> None:
    """Two make way for more important tasks; each later joins with the rank and the address that it had."""
    scene = Scene(node(cpu=4))
    scene.submit("g", gang())
    scene.start(*(f"fs-g-t-{n}-0" for n in range(4)))
    scene.submit("high", bag(2), priority=1)
    assert scene.released == ["fs-g-t-2-0", "fs-g-t-3-0"]
    scene.end("fs-g-t-2-0", "fs-g-t-3-0", code=143, reason="Released")
    scene.end("fs-high-t-1-0", "fs-high-t-0-0")
    before, after = ([scene.pods[f"fs-g-t-{n}-{attempt}"].gang for n in (2, 3)] for attempt in (0, 1))
    assert [(each.rank, each.roster, each.token) for each in before if each] == [
        (each.rank, each.roster, each.token) for each in after if each
    ]


def test_a_role_may_say_that_it_does_not_grow() -> None:
    """Its members stay out though there is room, ask for nothing, and explain says so. They end with their gang."""
    scene = small(grow=False)
    for n in range(3):
        scene.end(f"fs-other-t-{n}-0")
        assert scene.launched == []
    assert why(scene) == [
        (
            "GangGoesOn",
            3,
            "its gang goes on with 1 of 4 members and does not grow: role 'w' says `grow: false`",
        )
    ]
    assert pending(scene) == 0
    assert [view.waiting for view in queue_views(scene.state)] == [0]
    scene.end("fs-g-t-0-0")
    assert scene.states("g", "t") == "SUCCEEDED SKIPPED SKIPPED SKIPPED"
    scene.nothing_left()


def test_a_gang_that_may_grow_asks_for_what_it_misses() -> None:
    """As long as it waits: three cores, and explain says what they wait for."""
    scene = small()
    scene.tell()
    ((code, tasks, message),) = why(scene)
    assert (code, tasks) == ("GangGoesOn", 3)
    assert message.startswith(
        "its gang goes on with 1 of 4 members; it joins when room comes: no node has room; w needs 1 CPU"
    )
    assert pending(scene) == 3_000
    assert first_reason(scene.state, scene.runs["g"], scene.now) is None


def test_a_policy_on_waiting_is_about_gangs_that_have_not_begun() -> None:
    """Members that wait for room beside a gang that runs end nothing."""
    late = [{"event": "task_pending", "timeout": "10s", "action": "abort_workflow"}]
    scene = small(stage={"policies": late})
    scene.tell(after=60_000)
    assert scene.states("g", "t") == "RUNNING QUEUED QUEUED QUEUED"
    scene.submit("h", gang(2, 2, stage={"policies": late}))
    scene.tell(after=11_000)
    assert scene.state_of("h") == "FAILED: t FAILED"


def test_members_that_join_take_nobodys_room_and_hold_nobody_up() -> None:
    """A queue that is first in, first out goes on behind them; they are promised nothing, and evict nothing."""
    scene = Scene(node(cpu=4))
    scene.tell(QueueChanged(Queue("line", order="fifo")))
    scene.submit("other", bag(1, cpu=2))
    scene.submit("g", gang(2, 1, resources={"cpu": 2}), queue="line", priority=5)
    assert scene.launched == ["fs-g-t-0-0"]
    scene.end("fs-other-t-0-0")
    assert scene.launched == ["fs-g-t-1-0"]
    scene = Scene(node(cpu=4))
    scene.tell(QueueChanged(Queue("line", order="fifo")))
    scene.submit("other", bag(1))
    scene.submit("g", gang(2, 1, resources={"cpu": 2}), queue="line", priority=5)
    scene.start("fs-other-t-0-0", "fs-g-t-0-0")
    scene.submit("next", bag(1), queue="line")
    assert (scene.launched, scene.released) == (["fs-next-t-0-0"], [])
    assert scene.state.round.reservations == ()


def test_a_member_that_joined_and_fails_does_not_end_its_gang() -> None:
    """It tries again as often as the document says, then stays out; the gang succeeds without it."""
    scene = small(replicas=3, stage={"retry": {"attempts": 2}})
    scene.end("fs-other-t-0-0", "fs-other-t-1-0")
    scene.start("fs-g-t-1-0", "fs-g-t-2-0")
    scene.end("fs-g-t-1-0", code=1)
    assert (scene.released, scene.launched) == ([], [])
    scene.tell(after=2_000)
    assert scene.launched == ["fs-g-t-1-1"]
    scene.end("fs-g-t-1-1", code=1)
    scene.tell(after=2_000)
    assert scene.launched == []
    assert why(scene) == [
        ("GangGoesOn", 1, "its gang goes on with 2 of 3 members and does not grow: its attempts are used up, last: Failed")
    ]  # fmt: skip
    scene.end("fs-g-t-0-0", "fs-g-t-2-0", "fs-other-t-2-0")
    assert scene.state_of("g") == "SUCCEEDED: t SUCCEEDED"
    scene.nothing_left()


def test_a_member_of_the_gangs_begin_that_fails_starts_it_anew_with_all_that_fit() -> None:
    """Also those that had joined, had failed, or were on their way."""
    scene = small(stage={"retry": {"attempts": 2}})
    scene.end("fs-other-t-0-0")
    scene.start("fs-g-t-1-0")
    scene.end("fs-g-t-0-0", code=1)
    assert scene.released == ["fs-g-t-1-0"]
    scene.end("fs-g-t-1-0", code=143, reason="Released")
    scene.end("fs-other-t-1-0", "fs-other-t-2-0", after=2_000)
    assert scene.launched == [f"fs-g-t-{n}-1" for n in range(4)]
    seats = [scene.pods[f"fs-g-t-{n}-1"].gang for n in range(4)]
    assert [(each.rank, each.generation, each.roster.size) for each in seats if each] == [
        (n, 1, 4) for n in range(4)
    ]


def test_a_lost_member_that_can_be_spared_leaves_a_gang_that_goes_on() -> None:
    """It comes back when there is room. Without the first member, which the others meet at, the gang starts anew."""
    scene = Scene(node(cpu=3))
    scene.submit("g", gang(3, 1))
    scene.start(*(f"fs-g-t-{n}-0" for n in range(3)))
    scene.gone("fs-g-t-1-0")
    assert scene.launched == ["fs-g-t-1-1"]
    assert scene.released == []
    scene.gone("fs-g-t-0-0")
    assert scene.released == ["fs-g-t-1-1", "fs-g-t-2-0"]


def test_a_policy_says_what_becomes_of_a_gang_that_loses_a_member() -> None:
    """As for members that are taken away: then it does not go on with fewer."""
    scene = Scene(node(cpu=3))
    scene.submit(
        "g",
        gang(
            3, 1, stage={"policies": [{"event": "task_unknown", "timeout": "1m", "action": "restart_gang"}]}
        ),
    )
    scene.start(*(f"fs-g-t-{n}-0" for n in range(3)))
    scene.gone("fs-g-t-1-0")
    assert scene.released == ["fs-g-t-0-0", "fs-g-t-2-0"]


def test_no_member_joins_a_gang_that_is_ending() -> None:
    """One has succeeded: what comes now would come for nothing."""
    scene = Scene(node(cpu=3))
    scene.submit("other", bag(1))
    scene.submit("g", gang(3, 2))
    scene.start("fs-g-t-0-0", "fs-g-t-1-0")
    scene.end("fs-g-t-1-0")
    scene.end("fs-other-t-0-0")
    assert scene.launched == []
    assert "some of its members have succeeded already" in why(scene)[0][2]


def test_a_member_that_has_not_begun_when_the_gang_is_done_is_taken_away() -> None:
    """The gang does not wait for it."""
    scene = small()
    scene.end("fs-other-t-0-0")
    scene.end("fs-g-t-0-0")
    assert scene.released == ["fs-g-t-1-0"]
    scene.end("fs-g-t-1-0", code=143, reason="Released")
    assert scene.state_of("g") == "SUCCEEDED: t SUCCEEDED"


def test_a_cancelled_gang_takes_its_joined_members_along() -> None:
    """And those that wait."""
    scene = small()
    scene.end("fs-other-t-0-0")
    scene.start("fs-g-t-1-0")
    scene.command("g", "cancel")
    assert scene.released == ["fs-g-t-0-0", "fs-g-t-1-0"]
    assert scene.states("g", "t") == "RELEASING RELEASING CANCELLED CANCELLED"


def test_bytes_are_copied_for_a_member_that_joins_without_harm_to_its_gang() -> None:
    """Its copy fails for good: it stays out, and the gang goes on; the gang ends while another copy is on its way."""
    scene = Scene(node("n0", cpu=1))
    inputs = [{"name": "i", "uri": "s3://b/i", "size": "10Gi"}]
    job = gang(2, 1, stage={"inputs": inputs, "estimate": {"runtime": "1h"}})
    scene.submit("g", job)
    (order,) = scene.last.transfers
    scene.arrive(order)
    assert scene.launched == ["fs-g-t-0-0"]
    scene.start("fs-g-t-0-0")
    scene.tell(NodeChanged(node("n1", cpu=1)))
    assert scene.states("g", "t") == "RUNNING STAGING"
    (order,) = scene.last.transfers
    scene.miss(order, permanent=True)
    assert scene.state_of("g") == "RUNNING: t RUNNING"
    assert scene.states("g", "t") == "RUNNING QUEUED"
    scene.submit("h", job | {"inputs": [{"name": "i", "uri": "s3://b/j", "size": "10Gi"}]})
    scene.end("fs-g-t-0-0")
    assert scene.state_of("g") == "SUCCEEDED: t SUCCEEDED"


def test_a_member_that_joins_keeps_the_rules_of_its_gang() -> None:
    """A node of its own, in the rack where the gang is; explain says what keeps it."""
    scene = Scene(node("a0", cpu=4, rack="a"))
    rules = {"anti_affinity": "node", "topology": {"rack": "required"}}
    scene.submit("g", gang(3, 1, stage=rules))
    scene.start("fs-g-t-0-0")
    scene.tell(NodeChanged(node("b0", cpu=4, rack="b")))
    assert scene.launched == []
    ((code, tasks, message),) = why(scene)
    assert (code, tasks) == ("GangGoesOn", 2)
    assert message.endswith(
        "joins when room comes: 2 nodes with a member of its gang, or in another rack, are not for it"
    )
    scene.tell(NodeChanged(node("a1", cpu=4, rack="a")))
    assert [(pod.name, pod.node) for pod in scene.last.launches] == [("fs-g-t-1-0", "a1")]


def test_a_dropped_step_takes_nobody_in() -> None:
    """The commit fails: the next step takes the member in, with the same rank."""
    scene = small()
    event = scene.ending("fs-other-t-0-0")
    dropped = step(scene.state, (event,), scene.now)
    assert [pod.name for pod in dropped.launches] == ["fs-g-t-1-0"]
    dropped.drop()
    assert scene.states("g", "t") == "RUNNING QUEUED QUEUED QUEUED"
    scene.tell(event)
    seat = scene.pods["fs-g-t-1-0"].gang
    assert seat is not None
    assert seat.rank == 1
