"""Startup probes: until one succeeds a container has not started, and the next init container waits.

Liveness and readiness probes are not looked at: a hollow container that runs is ready.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from tests.kubernetes.hollow.containers import own
from tests.kubernetes.hollow.spec import ExecAction, HttpAction, Probe

#: A kubelet asks once per period (a second at least); here tests wait, so the period only bounds how long it may take.
_POLL_S: Final = (0.05, 0.5)


@dataclass(frozen=True, slots=True)
class Asked:
    """Whom a probe asks.

    Args:
        env: The container's environment.
        cwd: Its working folder.
        address: The pod's.
        ports: Of the container, by name.
    """

    env: Mapping[str, str]
    cwd: Path
    address: str
    ports: Mapping[str, int]


async def has_started(probe: Probe, asked: Asked) -> bool:
    """Ask until the probe succeeds; False if it has failed for as long as it may."""
    loop = asyncio.get_running_loop()
    end = loop.time() + probe.initial_delay_seconds + probe.period_seconds * probe.failure_threshold
    wait_s = _POLL_S[0]
    while loop.time() < end:
        with contextlib.suppress(OSError, TimeoutError, aiohttp.ClientError):
            async with asyncio.timeout(probe.timeout_seconds):
                if await _succeeds(probe, asked):
                    return True
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, _POLL_S[1])
    return False


async def _succeeds(probe: Probe, asked: Asked) -> bool:
    if probe.exec is not None:
        return await _ran(probe.exec, asked)
    if probe.http_get is not None:
        return await _got(probe.http_get, asked)
    return True


async def _ran(action: ExecAction, asked: Asked) -> bool:
    process = await asyncio.create_subprocess_exec(
        *own(action.command),
        env=asked.env,
        cwd=asked.cwd,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        return await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()


async def _got(action: HttpAction, asked: Asked) -> bool:
    url = (
        f"{action.scheme.lower()}://{action.host or asked.address}:{_number(action.port, asked)}{action.path}"
    )
    async with aiohttp.ClientSession() as session, session.get(url, ssl=False) as answer:
        return 200 <= answer.status < 400


def _number(port: int | str, asked: Asked) -> int:
    return port if isinstance(port, int) else asked.ports.get(port, 0)
