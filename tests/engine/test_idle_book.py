"""The book of idle room over time: known clusters on a virtual clock, and what their idle hours must add up to."""

from __future__ import annotations

from bench.idle_nights import Days
from bench.virtual.drive import Drive
from flowsched.engine.events import Tick
from flowsched.engine.idle_book import HOUR_MS, Hour, IdleBook, total
from flowsched.engine.state import EngineState
from flowsched.engine.state.policy import PolicyState
from flowsched.engine.step import step
from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.explain.idle import Cause
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.workflow.document.decode import check_workflow
from tests.engine.scene import Scene, node

GIB = 1 << 30
A = {"name": "a", "command": ["x"]}


def drive(*nodes: NodeInfo, queues: QueueTree | None = None) -> tuple[Drive, IdleBook]:
    state = EngineState(policy=PolicyState(queues=queues or QueueTree()))
    book = IdleBook(resolution_ms=0)
    return Drive(state, nodes, book=book), book


def submit(
    made: Drive, name: str, hours: float, at_hour: float = 0, queue: str = "default", **stage: object
) -> None:
    runtime = f"{round(hours * 60)}m"
    document = {"name": name, "queue": queue, "stages": [A | {"estimate": {"runtime": runtime}} | stage]}
    made.submit(name, check_workflow(document), round(at_hour * HOUR_MS))


def core_hours(hour: Hour) -> dict[str, float]:
    return {cause.name: amount[0] / HOUR_MS / 1000 for cause, amount in hour.idle.items() if amount[0]}


def test_a_night_without_demand() -> None:
    """4 cores, a job of 3 cores for the first half hour, nothing for the next 90 minutes."""
    made, book = drive(node(cpu=4))
    submit(made, "day", 0.5, resources={"cpu": 3})
    made.run()
    hours = book.between(0, 2 * HOUR_MS)
    assert [(start, core_hours(hour), hour.covered_ms) for start, hour in hours] == [
        (0, {"NO_DEMAND": 2.5}, HOUR_MS),
        (HOUR_MS, {"NO_DEMAND": 4.0}, HOUR_MS),
    ]
    assert [hour.capacity[0] for _, hour in hours] == [4000 * HOUR_MS] * 2


def test_a_cap_and_a_gang_that_is_promised_room() -> None:
    """Quota for an hour, then pieces that a gang waits with and that long work may not have."""
    queues = QueueTree([Queue("night", cap=(2000,))])
    made, book = drive(node("n0", 4), node("n1", 4), queues=queues)
    submit(made, "capped", 1, queue="night", scatter={"count": 4}, resources={"cpu": 1})
    made.run()
    found = core_hours(total(hour for _, hour in book.between(0, 2 * HOUR_MS)))
    # Two at a time, two more follow: in the first hour 6 cores are idle, of which 2 pods wait for the cap.
    assert found == {"QUOTA": 2.0, "NO_DEMAND": 10.0}
    made, book = drive(node("n0", 4), node("n1", 4))
    submit(made, "first", 1, resources={"cpu": 4})
    submit(made, "gang", 4, at_hour=0.1, gang=True, scatter={"count": 1}, roles={"w": {"replicas": 8}})
    submit(made, "long", 3, at_hour=0.2, scatter={"count": 2}, resources={"cpu": 1})
    made.run()
    first = dict(book.between(0, 6 * HOUR_MS))[0]
    told = core_hours(first)
    # 4 cores are idle for an hour: nobody asks for them for 6 minutes, then the gang, of whose pieces 2 are kept from
    # the long pods for 48 minutes.
    assert {cause: round(amount, 6) for cause, amount in told.items()} == {
        "NO_DEMAND": 0.4, "FRAGMENTATION": 2.0, "RESERVED": 1.6,
    }  # fmt: skip
    assert [name for cause, name in first.blame if cause is Cause.RESERVED] == ["gang/a"]


def test_used_and_idle_add_up_to_what_there_was() -> None:
    """Core by core: what pods held for as long as they ran, and all else under some cause."""
    made, book = drive(node("n0", 4), node("n1", 8))
    for number, cores in enumerate((1, 2, 3, 5, 8, 4, 6)):
        submit(made, f"w{number}", 0.5 + number / 4, at_hour=number / 3, resources={"cpu": cores})
    end = made.run()
    whole = total(hour for _, hour in book.between(0, end))
    used = sum(round((0.5 + n / 4) * 60) * 60_000 * c * 1000 for n, c in enumerate((1, 2, 3, 5, 8, 4, 6)))
    assert whole.capacity[0] == 12_000 * end
    assert whole.capacity[0] - whole.idle_of("cpu") == used


def test_a_step_that_comes_too_soon_asks_to_be_woken() -> None:
    """The split is a second old at most while something happens, and nobody is woken when nothing has."""
    scene = Scene(node(cpu=4))
    scene.book = IdleBook(resolution_ms=1_000)
    begin = scene.now
    scene.submit("v", A | {"resources": {"cpu": 1}})
    assert scene.last.wake_ms is None
    scene.tell(after=300)
    assert scene.last.wake_ms is None
    scene.submit("w", A | {"resources": {"cpu": 1}})
    assert scene.last.wake_ms == begin + 1_000
    scene.tell(after=700)
    assert scene.last.wake_ms is None


def test_a_step_that_was_dropped_is_not_in_the_book() -> None:
    """Only what is kept counts."""
    scene = Scene(node(cpu=4))
    scene.book = book = IdleBook(resolution_ms=0)
    step(scene.state, [Tick()], scene.now).drop()
    assert book.between(0, scene.now + HOUR_MS) == []


def test_what_was_not_watched_is_not_made_up() -> None:
    """Between two terms nobody knows: the hour says how much of it was covered."""
    made, book = drive(node(cpu=4))
    made.run()
    book.close(600_000)
    book.stop()
    assert [hour.covered_ms for _, hour in book.between(0, HOUR_MS)] == [600_000]


def test_a_clock_that_went_back_counts_nothing_twice() -> None:
    """Two hours pass, the clock goes back by one, and on to three: three hours."""
    made, book = drive(node(cpu=4))
    made.run()
    for moment in (2, 1, 3):
        book.close(moment * HOUR_MS)
    assert total(hour for _, hour in book.between(0, 3 * HOUR_MS)).covered_ms == 3 * HOUR_MS


def test_hours_do_not_grow_without_end() -> None:
    """A month is kept, and sixteen names an hour of one cause."""
    hour = Hour()
    for number in range(40):
        hour.add(Hour(blame={(Cause.QUOTA, f"q{number}"): (1, 0, 0)}))
    assert len(hour.blame) == 17
    assert hour.blame[Cause.QUOTA, "others"] == (24, 0, 0)
    made, book = drive(node(cpu=4))
    made.run()
    assert len(book.between(0, 60 * 24 * HOUR_MS)) == 24 * 31


def test_three_days_are_told_as_they_were_made() -> None:
    """bench/idle_nights.py: a cap, a promise, pieces, data and nights without work, in core-hours and GPU-hours."""
    days = Days()
    days.run()
    whole = total(hour for _, hour in days.book.between(0, 72 * HOUR_MS))
    assert {cause: round(amount, 1) for cause, amount in core_hours(whole).items()} == {
        "NO_DEMAND": 2944.0, "FRAGMENTATION": 32.0, "RESERVED": 608.0, "QUOTA": 1152.0, "DATA": 16.0,
    }  # fmt: skip
    gpus = {cause.name: amount[2] / HOUR_MS / 1000 for cause, amount in whole.idle.items() if amount[2]}
    assert gpus == {"NO_DEMAND": 192.0, "FRAGMENTATION": 96.0}
