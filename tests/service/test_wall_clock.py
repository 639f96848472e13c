"""A real service whose wall clock is set while it works (FAULTS row 16)."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from flowsched.client import Client
from flowsched.errors import FlowschedError
from tests.programs import free_ports

HOUR_S = 3_600


def waits(name: str, gate: Path, **stage: Any) -> dict[str, Any]:
    """A task of the only core that ends once `gate` is there."""
    command = ["sh", "-c", f"while [ ! -e {gate} ]; do sleep 0.05; done"]
    return {"name": name, "stages": [{"name": "one", "command": command, "resources": {"cpu": 1}, **stage}]}


async def until(client: Client, ident: str, *states: str) -> None:
    while (await client.get(ident)).state not in states:
        await asyncio.sleep(0.05)


async def test_fault_16_the_wall_clock_is_set_while_the_service_works(tmp_path: Path) -> None:
    """By an hour and by twenty years forward, and by two hours back: a wait of half an hour does not end, what runs ends well, what
    comes is carried out at once, and no duration is negative.
    """
    offset, gate, log = tmp_path / "offset", tmp_path / "gate", tmp_path / "log"
    offset.write_text("0")
    (port,) = free_ports(1)
    arguments = ["serve", "--port", str(port), "--root", str(tmp_path / "root"), "--cpu", "2", "--no-token"]
    script = str(Path(__file__).with_name("shifted.py"))
    with log.open("wb") as out:
        served = await asyncio.create_subprocess_exec(
            sys.executable,
            script,
            str(offset),
            *arguments,
            stdout=out,
            stderr=out,
            cwd=Path(__file__).parents[2],
        )
    try:
        async with Client(f"http://127.0.0.1:{port}", timeout=60) as client:
            await reached(client)
            runs = (await client.submit(waits("runs", gate, timeout="30m"))).id
            pending = {"event": "task_pending", "timeout": "30m", "action": "fail_stage"}
            await client.put_queue("later", paused=True)
            late = waits("late", gate, policies=[pending]) | {"queue": "later"}
            waiting = (await client.submit(late)).id
            await until(client, runs, "RUNNING")
            while (await client.task(waiting, "one")).state != "QUEUED":  # its half hour has begun
                await asyncio.sleep(0.05)
            for ahead in (HOUR_S, 20 * 365 * 24 * HOUR_S, -2 * HOUR_S):
                offset.write_text(str(ahead))
                beside = (await client.submit(waits("beside", Path("/")))).id
                await until(client, beside, "SUCCEEDED", "FAILED")
                assert (await client.get(beside)).state == "SUCCEEDED"
                assert (await client.get(waiting)).state in ("PENDING", "QUEUED")
                task = await client.task(waiting, "one")
                assert task.state == "QUEUED"
            await client.put_queue("later", paused=False)
            gate.touch()
            await until(client, runs, "SUCCEEDED", "FAILED")
            await until(client, waiting, "SUCCEEDED", "FAILED")
            assert (await client.get(runs)).state == "SUCCEEDED"
            assert (await client.get(waiting)).state == "SUCCEEDED"
    finally:
        gate.touch()  # the task outlives the service: it would wait for ever
        served.kill()
        await served.wait()
    said = log.read_text(errors="replace")
    assert said.count("the wall clock jumped") == 3
    with sqlite3.connect(tmp_path / "root" / "flowsched.db") as database:
        query = "SELECT ready_ms, bound_ms, started_ms, ended_ms FROM tasks"
        rows = [[moment for moment in row if moment is not None] for row in database.execute(query)]
    assert len(rows) == 5
    for moments in rows:
        assert moments == sorted(moments)
        assert (
            moments[-1] - moments[0] < HOUR_S * 1000
        )  # none of the jumps, and more than the limit of a test


@pytest.mark.parametrize("ahead_s", [-HOUR_S, HOUR_S])
async def test_a_task_over_a_restart_with_another_wall_clock_has_run_as_long_as_it_has(
    tmp_path: Path, ahead_s: int
) -> None:
    """The wall clock is set by an hour while the service is down. Its runner has measured the task by elapsed time."""
    offset, gate, log = tmp_path / "offset", tmp_path / "gate", tmp_path / "log"
    offset.write_text("0")
    (port,) = free_ports(1)
    script = str(Path(__file__).with_name("shifted.py"))
    arguments = ["serve", "--port", str(port), "--root", str(tmp_path / "root"), "--cpu", "2", "--no-token"]

    async def serve() -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            script,
            str(offset),
            *arguments,
            stdout=out,
            stderr=out,
            cwd=Path(__file__).parents[2],
        )

    with log.open("wb") as out:
        served = await serve()
        try:
            async with Client(f"http://127.0.0.1:{port}", timeout=60) as client:
                await reached(client)
                submitted = time.monotonic()
                ident = (await client.submit(waits("runs", gate))).id
                await until(client, ident, "RUNNING")
                begun = time.monotonic()
                await asyncio.sleep(5)
                served.kill()
                await served.wait()
                offset.write_text(str(ahead_s))
                served = await serve()
                await reached(client)
                least_ms = (time.monotonic() - begun) * 1_000
                gate.touch()
                await until(client, ident, "SUCCEEDED", "FAILED")
                most_ms = (time.monotonic() - submitted) * 1_000
                (stage,) = await client.stages(ident)
        finally:
            gate.touch()
            served.kill()
            await served.wait()
    assert least_ms <= stage.running_seconds * 1_000 <= most_ms
    assert least_ms <= stage.core_hours * 3_600_000 <= most_ms


async def reached(client: Client) -> None:
    """Wait until the service answers."""
    while True:
        try:
            await client.nodes()
        except FlowschedError:
            await asyncio.sleep(0.1)
        else:
            return
