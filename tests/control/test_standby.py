"""A process whose database belongs to another root: what it says of who leads."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from pathlib import Path

import pytest

from flowsched import app, tokens
from flowsched.control.leading.leadership import CLUSTER, FOR_EVER_MS, LEASE_MS, Leadership
from flowsched.errors import NotLeader, Unavailable
from flowsched.executor.nodes import NodeInfo
from flowsched.store.database import Database, url_for
from flowsched.store.lease import Lease
from tests.cluster.fake import FakeCluster, FakeProcesses


async def test_a_standby_on_another_root_names_the_leaders_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It never takes over, so that it is a conflict. While it is not known who leads, it is only not available yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    theirs = tmp_path / "a"
    nodes = [NodeInfo("node-0", 1_000, 1 << 30)]
    cluster = FakeCluster(FakeProcesses(), tmp_path / "b", nodes, app.now_ms)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        async with await Database.open(url_for(tmp_path / "db")) as database:
            await Lease(database, CLUSTER).acquire(
                f"{socket.gethostname()}:{theirs}", FOR_EVER_MS, app.now_ms()
            )
            await Lease(database).acquire("the-leader", LEASE_MS, app.now_ms())
            standby = Leadership(
                database, cluster, holder="me", take_over=False, clock=app.now_ms, monotonic=time.monotonic
            )
            early = standby.not_leading("the lease")
            assert type(early) is Unavailable
            assert str(early) == "this process does not lead yet: the lease; ask again in a moment"
            taking = asyncio.create_task(standby.lead())
            while not standby.standing_by:
                await asyncio.sleep(0.01)
            taking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await taking
            leads = f"this process does not lead: standing by: the-leader leads on {socket.gethostname()}:{theirs}"
            unknown = standby.not_leading()
            assert type(unknown) is NotLeader
            assert str(unknown) == f"{leads}; ask that service: --server URL"
            tokens.announce(port, "t", theirs)
            assert (
                str(standby.not_leading()) == f"{leads}; ask that service: --server http://127.0.0.1:{port}"
            )
