"""Real services, `flowsched serve --cluster kubernetes`, as processes that tests kill, stop and start again."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import flowsched.client.session as session
from flowsched.client import Client
from flowsched.errors import FlowschedError
from flowsched.workflow.views import WorkflowView
from tests.crash.harness import Nursery, ServiceProcess
from tests.kubernetes.faults import mutants
from tests.kubernetes.faults.nursery import CLOCK
from tests.programs import free_ports

SCRIPT = Path(__file__).with_name("nursery.py")
PATIENCE_S = 300.0


class Service:
    """One installation's process, in one life after the other.

    Args:
        nursery: Where it is forked.
        folder: Its root; its log lies beside.
        kubeconfig: Of its API server.
        namespace: Where its tasks run; also its instance's and its scheduler's name.
        database: A PostgreSQL URL; None = SQLite in the root.
        short: Whether its lease is one of five seconds.
        clock: The file that says by how many seconds its wall clock is off; None = it is right.
        environment: More variables.
    """

    def __init__(
        self,
        nursery: Nursery,
        folder: Path,
        kubeconfig: Path,
        namespace: str,
        *,
        database: str | None = None,
        short: bool = False,
        clock: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "service.log"
        self.process: ServiceProcess | None = None
        self._nursery = nursery
        self._port = free_ports(1)[0]
        self._argv = [
            "serve",
            "--port",
            str(self._port),
            "--root",
            str(folder / "root"),
            "--log-level",
            "warning",
        ]
        self._argv += ["--cluster", "kubernetes", "--kubeconfig", str(kubeconfig), "--namespace", namespace]
        if database is not None:
            self._argv += ["--db", database]
        self._env = {
            "FLOWSCHED_INSTANCE": namespace,
            "FLOWSCHED_SCHEDULER_NAME": namespace,
            "FLOWSCHED_DEFAULT_IMAGE": "none",
            "FLOWSCHED_POD_GROUPS": "none",
            "FLOWSCHED_GANG_ADDRESSES": "seat",
            **(environment or {}),
        }
        self._seeds = ["short"] * short
        if clock is not None:
            self._seeds.append("clock")
            self._env[CLOCK] = str(clock)
        self.client = Client(self.url, timeout=30)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._port}"

    def start(self, failpoints: str = "", mutant: str | None = None) -> None:
        """Start it (again)."""
        if self.process is not None:
            self.process.close()
        env = {**self._env, "FLOWSCHED_FAILPOINTS": failpoints}
        seeded = os.environ.get(mutants.ENVIRONMENT, "") if mutant is None else mutant
        seeds = "+".join([seeded, *self._seeds])
        self.process = ServiceProcess(self._nursery.fork(self._argv, env, self.log, seeds))

    async def died(self) -> None:
        """Wait until it has killed itself."""
        assert self.process is not None
        assert await self.process.death(PATIENCE_S), f"it never came to its failpoint: {self.tail()}"

    async def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        await self.process.kill()

    def signal(self, number: int) -> None:
        """SIGSTOP, SIGCONT …"""
        assert self.process is not None
        os.kill(self.process.pid, number)

    def dead(self) -> bool:
        """Whether it has ended."""
        return self.process is None or self.process.dead()

    async def submit(self, document: bytes, key: str) -> str:
        """Ask until it is accepted: with a key it is so once, however often it is asked."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    return (await self.client.submit(document, idempotency_key=key)).id
                except FlowschedError:
                    await asyncio.sleep(0.1)

    async def ended(self, workflow: str) -> WorkflowView:
        """Wait for a workflow's end, whoever is away meanwhile."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    view = await self.client.get(workflow)
                except FlowschedError:
                    await asyncio.sleep(0.2)
                    continue
                if view.state in ("SUCCEEDED", "FAILED", "CANCELLED"):
                    return view
                await asyncio.sleep(0.2)

    def tail(self) -> str:
        """The end of its log."""
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""

    async def close(self) -> None:
        """End it, whatever state it is in."""
        await self.client.close()
        if self.process is not None:
            if not self.process.dead():
                os.kill(self.process.pid, signal.SIGKILL)
                await self.process.death(90)
            self.process.close()


@asynccontextmanager
async def nursing() -> AsyncIterator[Nursery]:
    """A nursery of such services, and clients that repeat quickly."""
    nursery = Nursery(SCRIPT)
    before = session.LONGEST_WAIT_S
    session.LONGEST_WAIT_S = 0.2  # type: ignore[misc]
    try:
        yield nursery
    finally:
        session.LONGEST_WAIT_S = before  # type: ignore[misc]
        nursery.close()
