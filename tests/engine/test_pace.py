"""How often a scheduling round takes place, and how many pods are on their way at a time."""

from __future__ import annotations

from typing import Any

import pytest

from flowsched.engine import admission, pacing
from flowsched.engine.events import Command, Tick
from flowsched.engine.state import EngineState
from flowsched.engine.step import step
from flowsched.engine.transaction import Recorder
from flowsched.executor.foreign import RoomTaken
from flowsched.executor.protocol import NodeChanged, PodHeld, PodStarted
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.plan import Plan
from flowsched.statement import Statement
from flowsched.workflow.spec import Resources
from tests.engine.scene import Scene, node
from tests.engine.test_foreign import bag, waits


def wide(count: int, name: str = "s", **more: Any) -> dict[str, Any]:
    return {"name": name, "command": ["x"], "scatter": {"count": count}, "resources": {"cpu": 1}, **more}


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many groups each round considered."""
    found: list[int] = []
    real = admission.cycle

    def counted(snapshot: Any, catalogue: Any, queues: Any, groups: Any, *rest: Any) -> Any:
        found.append(len(groups))
        return real(snapshot, catalogue, queues, groups, *rest)

    monkeypatch.setattr(admission, "cycle", counted)
    return found


def test_what_lets_nobody_start_causes_no_round(rounds: list[int]) -> None:
    """Starts, news of what holds a pod, and the sight of our pods on their nodes; an end does."""
    scene = Scene(node(cpu=2))
    scene.submit("w", wide(5))
    assert scene.launched == ["fs-w-s-0-0", "fs-w-s-1-0"]
    assert rounds == [1]
    taken = RoomTaken("fs-w-s-0-0", "n0", Resources(1000, 0))
    scene.tell(PodStarted("fs-w-s-0-0", scene.now), taken, PodHeld("fs-w-s-1-0", "Slow", ""))
    scene.tell(taken)
    assert rounds == [1]
    scene.end("fs-w-s-0-0")
    assert scene.launched == ["fs-w-s-2-0"]
    assert rounds == [1, 1]


def test_reasons_stay_while_no_round_takes_place() -> None:
    """Who waited before a step without a round waits for the same reason after it."""
    scene = Scene(node(cpu=2))
    scene.submit("w", wide(5))
    before = dict(scene.state.round.reasons)
    scene.start("fs-w-s-0-0")
    assert scene.state.round.reasons == before != {}


def test_a_step_places_so_many_and_the_next_follows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven pods by threes: the engine asks to be woken at once as long as there are more."""
    monkeypatch.setattr(pacing, "STEP", 3)
    scene = Scene(node(cpu=8))
    scene.submit("w", wide(7))
    assert (len(scene.launched), scene.last.wake_ms) == (3, scene.now)
    scene.tell(Tick())
    assert (len(scene.launched), scene.last.wake_ms) == (3, scene.now)
    scene.tell(Tick())
    assert (len(scene.launched), scene.last.wake_ms) == (1, None)


def test_so_many_are_on_their_way_and_more_follow_when_few_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four at most; once so many are, the rest waits until two are left. A start, a node and a quota count as "not any more"."""
    monkeypatch.setattr(pacing, "UNDER_WAY", 4)
    monkeypatch.setattr(pacing, "RESUME", 2)
    monkeypatch.setattr(pacing, "STEP", 2)
    scene = Scene(node(cpu=20))
    scene.submit("w", wide(9))
    scene.tell(Tick())
    scene.tell(Tick())
    assert sorted(scene.state.round.under_way) == [f"fs-w-s-{index}-0" for index in range(4)]
    assert scene.launched == []
    scene.start("fs-w-s-0-0")
    assert scene.launched == []
    scene.tell(RoomTaken("fs-w-s-1-0", "n0", Resources(1000, 0)))
    assert scene.launched == ["fs-w-s-4-0", "fs-w-s-5-0"]
    scene.tell(PodHeld("fs-w-s-2-0", "Unschedulable", ""))  # a hand-over: it is still on its way
    scene.tell(PodHeld("fs-w-s-2-0", "QuotaExceeded", ""), PodHeld("fs-w-s-3-0", "QuotaExceeded", ""))
    assert scene.launched == ["fs-w-s-6-0", "fs-w-s-7-0"]
    scene.command("w", "cancel")
    scene.gone(*scene.pods)
    assert scene.state.round.under_way == set()


def test_others_are_served_while_enough_of_ours_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless room is promised to ours: then nobody is placed without it."""
    monkeypatch.setattr(pacing, "UNDER_WAY", 2)
    monkeypatch.setattr(pacing, "RESUME", 1)
    scene = Scene(node(cpu=4))
    scene.submit("w", wide(2))
    scene.submit("later", wide(9))
    kept: list[object] = []

    def noted(*inputs: Any) -> Plan:
        kept.append(inputs[7])
        return cycle(*inputs)

    monkeypatch.setattr(admission, "cycle", noted)
    scene.tell(bag(), waits("x"))
    assert [bind.uid for bind in scene.last.binds] == ["x"]
    assert kept == [None]  # or the order of our groups would be replaced by that of one other
    assert len(scene.state.round.under_way) == 2
    monkeypatch.setattr(pacing, "UNDER_WAY", 3)
    promised = Scene(node(cpu=4))
    promised.submit("w", wide(2))
    promised.submit("whole", wide(4, "g", gang=True))
    monkeypatch.setattr(pacing, "UNDER_WAY", 2)
    promised.tell(bag(), waits("x"))
    assert promised.last.binds == []


def test_after_a_long_round_the_next_waits_a_little(
    monkeypatch: pytest.MonkeyPatch, rounds: list[int]
) -> None:
    """Ten groups at five for each ms: ends within 2 ms are answered by one round, for which the engine asks to be woken."""
    monkeypatch.setattr(pacing, "SHORT_ROUND", 5)
    scene = Scene(node(cpu=2))
    scene.submit("w", *(wide(2, f"s{number}") for number in range(10)))
    assert rounds == [10]
    first, second = scene.launched
    scene.end(first, after=1)
    assert (scene.launched, scene.last.wake_ms) == ([], scene.now + 1)
    scene.end(second)
    assert (scene.launched, scene.last.wake_ms) == ([], scene.now + 1)
    scene.tell(Tick(), after=1)
    assert len(scene.launched) == 2
    assert rounds == [10, 9]


def test_a_step_that_is_dropped_offers_the_same_again() -> None:
    """What was remembered of its bags is forgotten with it."""
    scene = Scene(node(cpu=3))
    accepted = scene.accepted("w", wide(2), wide(2, "t"))
    first = step(scene.state, [accepted], scene.now)
    wanted = sorted(pod.name for pod in first.launches)
    first.drop()
    assert scene.state.round.under_way == set()
    scene.tell(scene.accepted("w", wide(2), wide(2, "t")))
    assert scene.launched == wanted == ["fs-w-s-0-0", "fs-w-s-1-0", "fs-w-t-0-0"]


def test_a_bag_is_offered_anew_when_anything_of_it_changes() -> None:
    """A new resource of a node, a cancel: what was remembered does not outlive them."""
    scene = Scene(node(cpu=1))
    scene.submit("a", wide(3))
    scene.submit("b", wide(3))
    scene.tell(NodeChanged(node("n1", cpu=1, extended={"fpga": 1})))
    assert scene.launched == ["fs-a-s-1-0"]
    scene.tell(Command("a", "cancel"))
    scene.gone("fs-a-s-0-0", "fs-a-s-1-0", reason="Released")
    assert scene.launched == ["fs-b-s-0-0", "fs-b-s-1-0"]


def test_time_alone_causes_no_round_while_everybody_waits_for_room(rounds: list[int]) -> None:
    """One round after the pods were placed finds that nobody fits; ticks of the next ten seconds cause no other."""
    scene = Scene(node(cpu=2))
    scene.submit("w", wide(5))
    scene.tell(Tick(), after=1)
    assert rounds == [1, 1]
    scene.tell(Tick(), after=5_000)
    scene.tell(after=4_999)
    assert rounds == [1, 1]
    scene.tell(Tick(), after=1)
    assert rounds == [1, 1, 1]
    scene.tell(Tick(), after=1)
    scene.end("fs-w-s-0-0")
    assert rounds == [1, 1, 1, 1]
    assert scene.launched == ["fs-w-s-2-0"]


def test_time_alone_causes_a_round_while_a_reservation_keeps_somebody_from_room(rounds: list[int]) -> None:
    """A gang of two waits for a half free node; each tick considers a task that would fit there but for the reservation."""
    scene = Scene(node(cpu=2))
    scene.submit("a", wide(1, estimate={"runtime": "60s"}))
    gang = {"gang": True, "roles": {"w": {"replicas": 2, "command": ["x"], "resources": {"cpu": 1}}}}
    scene.submit("b", {"name": "g", **gang})
    scene.submit("c", wide(1, estimate={"runtime": "600s"}))
    before = len(rounds)
    scene.tell(Tick(), after=100)
    scene.tell(Tick(), after=100)
    assert rounds[before:] == [2, 2]


def test_a_moment_within_the_rest_wakes_the_engine_once_at_its_end() -> None:
    """A group may start 10 ms after a round over 1,000 groups, which rests for 200 ms: no step before the end of the rest helps."""
    state, statement = EngineState(), Statement()
    after = Recorder(state, statement, 5_000)
    pacing.round_ended(after, 1_000, 5_010)
    assert after.wake_ms == 5_200
    for moment in (5_009, 5_010, 5_199):
        ticked = Recorder(state, statement, moment, ticked=True)
        assert not pacing.is_due(ticked)
        assert ticked.wake_ms == 5_200
    assert pacing.is_due(Recorder(state, statement, 5_200, ticked=True))
