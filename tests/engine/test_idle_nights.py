"""Idle room over time: known clusters on a virtual clock, and what the causes of their idle core-hours add up to."""

from __future__ import annotations

from bench.idle_nights import END, Days
from bench.virtual.drive import Drive
from bench.virtual.idle import IdleHours
from flowsched.engine.state import EngineState
from flowsched.engine.state.policy import PolicyState
from flowsched.executor.nodes import NodeInfo
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.views import IdleView
from tests.engine.scene import node

HOUR_MS = 3_600_000


def drive(*nodes: NodeInfo, queues: QueueTree | None = None) -> Drive:
    state = EngineState(policy=PolicyState(queues=queues or QueueTree()))
    return Drive(state, nodes, idle_hours=IdleHours())


def submit(
    made: Drive, name: str, hours: float, at_hour: float = 0, queue: str = "default", **stage: object
) -> None:
    task = {"name": "a", "command": ["x"], "estimate": {"runtime": f"{round(hours * 60)}m"}, **stage}
    document = {"name": name, "queue": queue, "stages": [task]}
    made.submit(name, check_workflow(document), round(at_hour * HOUR_MS))


def cpu(made: Drive, hours: float) -> IdleView:
    """Core-hours until then."""
    assert made.idle_hours is not None
    return made.idle_hours.report(round(hours * HOUR_MS)).resources["cpu"]


def test_a_cap_and_a_gang_that_is_promised_room() -> None:
    """Quota for an hour, then pieces that a gang waits with and that long work may not have."""
    queues = QueueTree([Queue("night", cap=(2000,))])
    made = drive(node("n0", 4), node("n1", 4), queues=queues)
    submit(made, "capped", 1, queue="night", scatter={"count": 4}, resources={"cpu": 1})
    made.run()
    # Two at a time, two more follow: in the first hour 6 cores are idle, of which 2 pods wait for the cap.
    found = cpu(made, 2)
    assert (found.causes, found.who) == ({"quota": 2.0, "no_demand": 10.0}, {"quota": {"night": 2.0}})
    made = drive(node("n0", 4), node("n1", 4))
    submit(made, "first", 1, resources={"cpu": 4})
    submit(made, "gang", 4, at_hour=0.1, gang=True, scatter={"count": 1}, roles={"w": {"replicas": 8}})
    submit(made, "long", 3, at_hour=0.2, scatter={"count": 2}, resources={"cpu": 1})
    made.run(until=HOUR_MS - 1)
    # 4 cores are idle for an hour: no work asks for them for 6 minutes, then the gang, of whose pieces 2 are kept from
    # the long pods for 48 minutes.
    found = cpu(made, 1)
    assert found.causes == {"no_demand": 0.4, "fragmentation": 2.0, "reserved": 1.6}
    assert found.who["reserved"] == {"gang/a": 1.6}


def test_used_and_idle_add_up_to_what_there_was() -> None:
    """Core by core: what pods held for as long as they ran, and all else under some cause."""
    made = drive(node("n0", 4), node("n1", 8))
    for number, cores in enumerate((1, 2, 3, 5, 8, 4, 6)):
        submit(made, f"w{number}", 0.5 + number / 4, at_hour=number / 3, resources={"cpu": cores})
    hours = made.run() / HOUR_MS
    found = cpu(made, hours)
    assert round(found.capacity, 2) == round(12 * hours, 2)
    assert round(found.used, 2) == sum((0.5 + n / 4) * c for n, c in enumerate((1, 2, 3, 5, 8, 4, 6)))
    assert round(found.idle, 2) == round(sum(found.causes.values()), 2)


def test_three_days_are_told_as_they_were_made() -> None:
    """bench/idle_nights.py: a cap, a promise, pieces, data and nights without work, in core-hours and GPU-hours."""
    days = Days()
    days.run()
    resources = days.idle.report(END * HOUR_MS).resources
    assert {cause: round(amount, 1) for cause, amount in resources["cpu"].causes.items()} == {
        "no_demand": 2944.0, "fragmentation": 32.0, "reserved": 608.0, "quota": 1152.0, "data": 16.0,
    }  # fmt: skip
    assert resources["gpu"].causes == {"no_demand": 192.0, "fragmentation": 96.0}
