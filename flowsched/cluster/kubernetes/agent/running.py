"""The agent as a process: from its settings to the signal that ends it."""

from __future__ import annotations

import asyncio
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from flowsched.cluster.kubernetes.agent.node_agent import Agent
from flowsched.cluster.kubernetes.agent.server import Door
from flowsched.cluster.kubernetes.agent.settings import Settings
from flowsched.errors import ConfigurationError

log = structlog.get_logger(__name__)

#: For work on files. asyncio's own six on two cores would all be busy while six large outputs reach the disk.
_THREADS: Final = 24


async def run(settings: Settings) -> None:
    """Run a node agent until SIGINT or SIGTERM.

    Raises:
        ConfigurationError: It cannot start like this.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, thread_name_prefix="files"))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    agent = Agent(settings)
    door = Door(agent)
    try:
        await agent.open()
        try:
            await door.open()
        except OSError as error:
            raise ConfigurationError(f"cannot listen on {settings.host}:{settings.port}: {error}") from error
        log.info(
            "agent ready",
            node=settings.node,
            url=f"http://{settings.host}:{door.port}",
            instance=agent.instance,
            datasets=len(agent.cache.entries),
            cached_bytes=agent.cache.used_bytes,
        )
        await stop.wait()
        log.info("agent stops", node=settings.node)
    finally:
        await door.close()
        await agent.close()
