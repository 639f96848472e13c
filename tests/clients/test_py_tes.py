"""py-tes, in both versions that are in use, and pydantic-tes against a service with real processes and real files."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clients.live import LiveService, live
from tests.crash.harness import Nursery
from tests.serving.processes import gone, served

HERE = Path(__file__).parent
pytestmark = [pytest.mark.clients, pytest.mark.slow]


async def script(python: Path, name: str, arguments: Sequence[str], within_s: float = 300.0) -> str:
    """Run a script in a client's environment; what it printed."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    process = await asyncio.create_subprocess_exec(
        str(python), str(HERE / "scripts" / name), *arguments, env=environment,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        printed, complained = await asyncio.wait_for(process.communicate(), within_s)
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode == 0, complained.decode(errors="replace")[-4000:]
    return printed.decode()


async def session(environment: Path, folder: Path, nursery: Nursery) -> dict[str, Any]:
    """The whole session against a fresh service."""
    files = folder / "files"
    files.mkdir()
    async with live(folder, nursery) as service:
        printed = await told(environment, service, files)
    assert (files / "o1.txt").read_text() == "one\n"
    assert (files / "o2.txt").read_text() == "one\ntwo by py-tes\n"
    assert (files / "o3.txt").read_text().strip() == "2"
    return printed


async def told(environment: Path, service: LiveService, files: Path) -> dict[str, Any]:
    try:
        printed = await script(environment / "bin" / "python", "py_tes_session.py", [service.url, str(files)])
    except AssertionError as error:
        raise AssertionError(f"{error}\n{service.tail()}") from None
    found: dict[str, Any] = json.loads(printed)
    return found


async def test_py_tes_1_1_sees_what_it_expects(tmp_path: Path, nursery: Nursery, py_tes_1: Path) -> None:
    """Create, three views, pages, cancel, wait, service-info; an error says which program failed."""
    seen = await session(py_tes_1, tmp_path, nursery)
    assert seen == json.loads((HERE / "expected" / "py-tes-1.1.json").read_text())


async def test_py_tes_0_4_sees_what_it_expects(tmp_path: Path, nursery: Nursery, snakemake_9: Path) -> None:
    """The one that Snakemake's plugin and Toil pin: under /v1, with the service-info of TES 0.x."""
    seen = await session(snakemake_9, tmp_path, nursery)
    assert seen == json.loads((HERE / "expected" / "py-tes-0.4.json").read_text())


async def test_a_run_of_pydantic_tes_outlives_a_restart(
    tmp_path: Path, nursery: Nursery, pydantic_tes: Path
) -> None:
    """The client of Pulsar: a failure, a cancel, and a restart of the service between two polls."""
    async with live(tmp_path, nursery) as service:
        client = await asyncio.create_subprocess_exec(
            str(pydantic_tes / "bin" / "python"), str(HERE / "scripts" / "pydantic_tes_session.py"), service.url, str(tmp_path),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert client.stdin is not None
        assert client.stdout is not None
        assert await asyncio.wait_for(client.stdout.readline(), 120) == b"running\n", service.tail()
        await service.restart()
        (tmp_path / "go").touch()
        printed, _ = await asyncio.wait_for(client.communicate(b"go on\n"), 120)
        assert client.returncode == 0, service.tail()
        (run,) = (await service.get("/api/v1/workflows"))["workflows"]
    states = {"good": "COMPLETE", "bad": "EXECUTOR_ERROR", "endless": "CANCELED", "slow": "COMPLETE"}
    assert json.loads(printed) == {"states": states, "failed": [3, "broken\n"], "listed": 4, "service": "tes"}
    assert (run["id"], run["state"], run["counts"]) == (
        "pulsar", "FAILED", {"SUCCEEDED": 2, "FAILED": 1, "CANCELLED": 1},
    )  # fmt: skip
    assert ((tmp_path / "good").read_text(), (tmp_path / "slow").read_text()) == ("2\n2\n", "slow\n")


async def test_a_run_of_py_tes_outlives_kill_9_of_the_service(tmp_path: Path, py_tes_1: Path) -> None:
    """Its polls are not retried. Those that it sends while the service is dead are answered by the next life."""
    with served(tmp_path / "root") as service:
        killed = await asyncio.to_thread(service.ready)
        client = await asyncio.create_subprocess_exec(
            str(py_tes_1 / "bin" / "python"), str(HERE / "scripts" / "py_tes_polls.py"), service.url, str(tmp_path / "go"),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert client.stdin is not None
        assert client.stdout is not None
        assert await client.stdout.readline() == b"created\n"
        for _ in range(3):
            os.kill(killed, signal.SIGKILL)
            assert await asyncio.to_thread(gone, killed)
            client.stdin.write(b"poll\n")  # it connects while no service lives
            assert await asyncio.wait_for(client.stdout.readline(), 120) in (
                b"RUNNING\n",
                b"QUEUED\n",
                b"INITIALIZING\n",
            )
            killed = await asyncio.to_thread(service.ready, killed)
        (tmp_path / "go").touch()
        client.stdin.write(b"poll until the end\n")
        assert await asyncio.wait_for(client.stdout.readline(), 120) == b"COMPLETE\n"
        assert await client.wait() == 0
