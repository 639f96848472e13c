"""A leader whose loops fail begins anew from SQL and the cluster; only a lost lease ends it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path

import pytest
import structlog.testing

from flowsched.app import Settings, assembled, running
from flowsched.cluster.local.settings import LocalSettings
from flowsched.control.leading import leadership
from flowsched.control.leading.leader import first_address
from flowsched.engine.events import NodeDrained
from flowsched.engine.state.cluster import DrainOrder
from flowsched.errors import Unavailable
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.store.database import Database, Outage
from flowsched.values import replace
from tests.store.new_schema import add_revision

DOCUMENT = json.dumps(
    {
        "name": "three",
        "stages": [
            {
                "name": "write",
                "scatter": {"count": 3},
                "command": ["sh", "-c", "echo $FLOWSCHED_INDEX > n"],
                "outputs": [{"name": "n", "path": "n", "value": True}],
            },
            {"name": "read", "command": ["sh", "-c", "cat $(cat $FLOWSCHED_INPUT_NS) > all"],
             "inputs": [{"name": "ns", "from": "write.n"}],
             "outputs": [{"name": "all", "path": "all", "value": True}]},
        ],
    }
).encode()  # fmt: skip


@pytest.mark.parametrize(
    "point", ["launch.before", "launch.after", "commit.after", "release.before", "recover.after"]
)
async def test_a_loop_that_fails_once_costs_no_workflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The disk was full for a moment: the intents that were not acted on are found and answered by recovery."""
    monkeypatch.setenv("FLOWSCHED_FAILPOINTS", f"{point}=raise:no space left on device@1")
    async with running(
        Settings(
            port=0, root=tmp_path, log_level="error", local=LocalSettings(nodes=2, cpu="2", memory="1Gi")
        )
    ) as up:
        ident = (await up.service.submit(DOCUMENT)).id
        async for _ in up.service.events(ident, 0):
            pass
        task = await up.service.task(ident, "read", 0)
        assert (task.state, task.outputs[0].value) == ("SUCCEEDED", "0\n1\n2\n")
        assert up.service.live() == (True, "ok")


async def test_what_is_configured_while_a_term_recovers_is_in_force_in_it(tmp_path: Path) -> None:
    """Queues, drains and the policy have been read, the first step is not over: then each of them is changed."""
    recovered, go_on = asyncio.Event(), asyncio.Event()

    async def gate(point: str) -> None:
        if point == "recover.after":
            recovered.set()
            await go_on.wait()

    async with assembled(Settings(root=tmp_path, log_level="error")) as (service, leads, _, _):
        leads._failpoint = gate
        leading = asyncio.create_task(leads.run())
        await recovered.wait()
        with pytest.raises(Unavailable):  # it is durable, and cannot be shown yet
            await service.put_queue("lab", {"weight": 7})
        await leads.drain_changed(NodeDrained("node-0", DrainOrder(0, 5)))
        leads.profile_changed(PROFILES["kube-like"])
        go_on.set()
        while leads.dispatcher is None:
            await asyncio.sleep(0.005)
        await leads.dispatcher.settled()
        assert {queue.name: queue.weight for queue in await service.queues()} == {"default": 1, "lab": 7}
        assert [node.state for node in await service.nodes()] == ["DRAINED"]
        assert leads.dispatcher.state.policy.profile.name == "kube-like"
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)


async def test_livez_tells_of_loops_that_fail_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port that is open proves nothing: after five terms that failed in a row the process says that it is not well."""
    async with running(Settings(port=0, root=tmp_path, log_level="error")) as up:
        monkeypatch.setattr(up.service._leader, "failures", 5)
        alive, said = up.service.live()
        assert not alive
        assert "failed 5 times" in said


async def test_a_database_of_another_root_is_refused_until_somebody_says_that_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempts of the first root may still run: leading from a second one would start them twice (P2)."""
    database = f"sqlite:///{tmp_path / 'one.db'}"
    here = Settings(port=0, root=tmp_path / "a", database=database, log_level="error")
    there = Settings(port=0, root=tmp_path / "b", database=database, log_level="error")
    async with running(here):
        pass
    with pytest.raises(BaseException, match="belongs to the cluster") as refused:
        async with running(there):
            pass
    assert "--take-over" in str(refused.value)
    add_revision(tmp_path, monkeypatch)
    with pytest.raises(BaseException, match="belongs to the cluster"):
        async with running(there):
            pass
    async with await Database.open(database, migrate=False, any_schema=True) as older:
        assert await older.current() == "0.1.0_2"  # a refused start has not brought the schema up
    async with running(here) as up:
        assert up.service.ready() == (True, "ok")
    async with running(replace(there, take_over=True)) as up:
        assert up.service.ready() == (True, "ok")


def test_an_outage_is_a_line_a_minute_and_one_when_it_is_over() -> None:
    """However often the database is asked meanwhile; a second outage within the minute is silent."""
    moments = iter((0.0, 0.5, 30.0, 59.0, 61.0, 62.0, 63.0, 64.0, 65.0, 66.0))
    said = leadership.OutageLog(lambda: next(moments))
    with structlog.testing.capture_logs() as lines:
        for _ in range(6):
            said(Outage(0.0, "refused"))
        for _ in range(2):
            said(None)
        said(Outage(64.0, "refused"))
        said(None)
    assert [(line["log_level"], line.get("away_s")) for line in lines] == [
        ("warning", None),
        ("warning", None),
        ("info", 63.0),
    ]


async def locked(other: sqlite3.Connection) -> None:
    """Take the lock of a database that a service of this loop uses: it gives the lock back on this loop, too."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(sqlite3.OperationalError):
                other.execute("BEGIN IMMEDIATE")
                return
            await asyncio.sleep(0.001)


async def test_a_lease_outlives_a_database_that_is_locked_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup, or our own large transaction, keeps the lock longer than SQLite waits: the service goes on leading."""
    monkeypatch.setattr(leadership, "RENEW_S", 0.05)
    async with running(Settings(port=0, root=tmp_path, log_level="error")) as up:
        epoch = up.service._leader.leadership.epoch
        with contextlib.closing(sqlite3.connect(tmp_path / "flowsched.db", 0, isolation_level=None)) as other:
            await locked(other)
            await asyncio.sleep(2.5)
            other.execute("ROLLBACK")
        async with asyncio.timeout(30):
            await up.service.submit(DOCUMENT)
        assert up.service.ready() == (True, "ok")
        assert up.service._leader.leadership.epoch == epoch


def test_two_services_on_one_machine_do_not_share_gang_addresses() -> None:
    """A new database begins with epoch 1: members of both would ask for the same address and port."""
    assert first_address(1, b"a" * 32) == 1_163_307
    assert first_address(1, b"b" * 32) == 1_122_444
    assert first_address(2, b"a" * 32) == 1_163_307 + 65_537
