"""`flowsched top`: one picture of nodes, stages and queues, at any width and height."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from far_server import Far
from rich.cells import cell_len

from flowsched.cli import top
from flowsched.client import Client
from flowsched.workflow.views import NodeView, QueueView, StageView, WaitingView, WorkflowView

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def a_picture(nodes: int = 2, **more: Any) -> top.Picture:
    run = WorkflowView(
        id="w1", name="training-of-a-large-model", queue="research.nlp", priority=0, labels={}, state="RUNNING",
        created_at=AT, stages=2, tasks=5, counts={"RUNNING": 4, "QUEUED": 1},
    )  # fmt: skip
    train = StageView(
        name="train", number=0, state="RUNNING", width=1, members=4, gang=True, counts={"RUNNING": 4},
        started_at=AT - timedelta(seconds=75),
    )  # fmt: skip
    why = WaitingView(stage="eval", tasks=1, state="QUEUED", code="Insufficient", message="eval needs 8 CPU")
    waits = StageView(
        name="eval", number=1, state="QUEUED", width=1, members=1, counts={"QUEUED": 1}, waiting=why
    )
    machines = [
        NodeView(
            name=f"node-{at}", ready=True, starting=1, running=1, allocatable={"cpu": 8000, "memory": 16 << 30, "gpu": 4000},
            used={"cpu": 4000, "memory": 4 << 30, "gpu": 2000}, bytes_in=at << 20,
        )
        for at in range(nodes)
    ]  # fmt: skip
    queues = [
        QueueView(name="research.nlp", weight=1, used={"cpu": 8000, "memory": 8 << 30}, pending={"cpu": 8000},
                  dominant_share=0.5, waiting=1, starting=2, running=4),
        QueueView(name="idle", weight=1),
    ]  # fmt: skip
    stages = [top.Activity(run, train), top.Activity(run, waits)]
    return top.Picture("http://127.0.0.1:8470", AT, machines, queues, [run], stages, **more)


def lines(picture: top.Picture, width: int) -> list[str]:
    return [line.plain.rstrip() for line in picture.lines(width)]


def test_a_picture_at_80_columns() -> None:
    """Nodes with what is asked of them, gangs, why something waits, and queues that have something to do."""
    shown = lines(a_picture(), 80)
    assert " ".join(shown[:2]).endswith("2/2 nodes ready  1 workflow  4 running, 1 queued")
    assert lines(a_picture(), 120)[0].endswith("2/2 nodes ready  1 workflow  4 running, 1 queued")
    assert shown[3:6] == [
        "NODE    READY  TASKS  CPU                        MEMORY              GPU",
        "node-0  ready      2  4/8  █████░░░░░  4.0 GiB/16.0 GiB  ███░░░░░░░  2/4",
        "node-1  ready      2  4/8  █████░░░░░  4.0 GiB/16.0 GiB  ███░░░░░░░  2/4",
    ]
    assert shown[7:11] == [
        "WORKFLOW         STAGE  STATE    DONE  GANG       NOW        QUEUE          TIME",
        "training-of-a-…  train  RUNNING   0/4  4 members  4 running  research.nlp  1m15s",
        "training-of-a-…  eval   QUEUED    0/1             1 queued   research.nlp",
        "  eval needs 8 CPU",
    ]
    assert shown[12:] == [
        "QUEUE         SHARE  WAITING  STARTING  RUNNING  USED                   PENDING",
        "research.nlp    50%        1         2        4  cpu 8, memory 8.0 GiB  cpu 8",
    ]


def test_a_narrow_terminal_keeps_what_matters() -> None:
    """Bars go before numbers; no line is longer than the terminal."""
    shown = lines(a_picture(), 60)
    assert max(map(cell_len, shown[1:])) <= 60
    assert "node-0" in shown[4]
    assert "4/8" in shown[4]
    assert "GPU" in shown[3]


def test_a_low_terminal_cuts_the_longest_part() -> None:
    """And says that there is more."""
    shown = lines(a_picture(nodes=100, rows=20), 100)
    assert len(shown) <= 20
    assert "… and more" in shown
    assert any("research.nlp" in line and "50%" in line for line in shown)


def test_an_old_workflow_that_lives_is_in_the_picture(far: Far) -> None:
    """However many have ended since. Stages are asked for of those that have tasks here."""
    old = far.service.add("old")
    for _ in range(12):
        far.service.add("with-cromwell", state="ENGINE", ended_at=None)
    for _ in range(300):
        far.service.add("done", state="SUCCEEDED", ended_at=AT)

    async def one() -> top.Picture:
        async with Client(far.url) as client:
            return await top.picture(client)

    found = asyncio.run(one())
    assert [view.name for view in found.live] == ["with-cromwell"] * 12 + ["old"]
    assert {each.workflow.id for each in found.stages} == {old}
    assert [asked["page_token"] for asked in far.service.asked] == [None]


def test_rates_are_of_the_time_since_the_picture_before(far: Far) -> None:
    """Bytes a second; none of a node that is new."""

    async def twice() -> top.Picture:
        async with Client(far.url) as client:
            first = await top.picture(client)
            first.nodes[0].bytes_in = -(10 << 20)  # as if ten MiB less had come then
            return await top.picture(client, first)

    found = asyncio.run(twice())
    assert found.rates["node-0"][0] > 0
    assert found.rates["node-0"][1] == 0


def test_in_a_pipe_it_is_one_picture(flowsched: Callable[..., Any], far: Far) -> None:
    """As a table."""
    far.service.add("germline")
    table = flowsched("top").stdout
    assert "node-0" in table
    assert "germline" in table
