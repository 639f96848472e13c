"""Who places pods: each started for its turn, held by SIGSTOP while the pods are made, then let go."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any, ClassVar, Final

import loads
from cluster import Bench
from processes import Process, Service
from volcano import BINARY as VOLCANO
from volcano import volcano

from tests.kubernetes.hollow.controlplane import SCHEDULER
from tests.programs import Program

HERE: Final = Path(__file__).resolve().parent
SETTLE_S: Final = 1.5


class Contender:
    """One of them.

    Attributes:
        name: In tables.
        scheduler: `schedulerName` of its pods.
        own: It makes its pods itself.
    """

    name: ClassVar[str]
    scheduler: ClassVar[str] = "flowsched"
    own: ClassVar[bool] = False

    def __init__(self, bench: Bench, folder: Path) -> None:
        self.bench, self.folder = bench, folder

    @property
    def pid(self) -> int:
        raise NotImplementedError

    async def start(self, pods: int) -> None:
        """Be ready to place; `pods` are to come."""

    async def hold(self) -> None:
        """Do nothing for a while."""

    async def go(self, pods: int) -> None:
        """Place."""

    async def stop(self) -> None:
        """End."""


class Raw(Contender):
    """Bindings and nothing else."""

    name = "raw"
    create = 0

    def __init__(self, bench: Bench, folder: Path) -> None:
        super().__init__(bench, folder)
        self.process = Process([], folder / "raw.log")

    @property
    def pid(self) -> int:
        return self.process.pid

    async def go(self, pods: int) -> None:
        command = [
            sys.executable,
            str(HERE / "raw.py"),
            "--kubeconfig",
            str(self.bench.plane.kubeconfig()),
        ]
        self.process.command = command + (["--create", str(pods)] if self.own else [])
        self.process.start()
        assert self.process.child is not None
        assert self.process.child.stdout is not None
        line = await asyncio.to_thread(self.process.child.stdout.readline)
        if line.strip() != b"ready":
            raise SystemExit(f"the raw loop did not begin: {self.process.tail()}")

    def begin(self) -> None:
        assert self.process.child is not None
        assert self.process.child.stdin is not None
        self.process.child.stdin.write(b"go\n")
        self.process.child.stdin.flush()

    async def stop(self) -> None:
        await asyncio.to_thread(self.process.stop)


class RawOwn(Raw):
    """Creates and bindings of the manifests that we write."""

    name = "raw create + bind"
    own = True


class Ours(Contender):
    """The whole service: `flowsched serve --cluster kubernetes`, SQLite."""

    name = "flowsched"

    def __init__(self, bench: Bench, folder: Path) -> None:
        super().__init__(bench, folder)
        self.service: Service | None = None
        self.turns = 0

    @property
    def pid(self) -> int:
        assert self.service is not None
        return self.service.pid

    async def start(self, pods: int) -> None:
        self.turns += 1
        folder = self.folder / f"{type(self).__name__}-{self.turns}"
        folder.mkdir()
        self.service = Service(
            self.bench.plane.kubeconfig(),
            folder,
            environment={"FLOWSCHED_INSTANCE": f"bench-{type(self).__name__.lower()}-{self.turns}"},
        )
        self.service.start()
        await self.service.ready()
        await asyncio.sleep(SETTLE_S)

    async def hold(self) -> None:
        assert self.service is not None
        self.service.send(signal.SIGSTOP)

    async def go(self, pods: int) -> None:
        assert self.service is not None
        self.service.send(signal.SIGCONT)

    async def stop(self) -> None:
        if self.service is not None:
            await asyncio.to_thread(self.service.stop)
            self.service = None


class OursOwn(Ours):
    """The same, with pods of its own: a workflow of so many tasks."""

    name = "flowsched create + bind"
    own = True

    async def hold(self) -> None:
        """Nothing is made before it is asked for."""

    async def go(self, pods: int) -> None:
        assert self.service is not None
        await self.service.ask("POST", "/api/v1/workflows", loads.workflow(pods))


class ProgramContender(Contender):
    """A binary beside the control plane."""

    program: Program | None = None

    @property
    def pid(self) -> int:
        assert self.program is not None
        assert self.program.pid is not None
        return self.program.pid

    async def launch(self) -> Program:
        raise NotImplementedError

    async def start(self, pods: int) -> None:
        self.program = await self.launch()
        await asyncio.sleep(2 * SETTLE_S)

    async def hold(self) -> None:
        assert self.program is not None
        self.program.signal(signal.SIGSTOP)

    async def go(self, pods: int) -> None:
        assert self.program is not None
        self.program.signal(signal.SIGCONT)

    async def stop(self) -> None:
        if self.program is not None:
            self.program.signal(signal.SIGCONT)
            self.program.kill()
            self.program = None


class Stock(ProgramContender):
    """kube-scheduler with qps and burst 5000."""

    name = "kube-scheduler"
    scheduler = "default-scheduler"

    async def launch(self) -> Program:
        return await self.bench.plane.scheduler()


class Volcano(ProgramContender):
    """vc-scheduler, qps and burst 5000, a cycle each 100 ms (1 s by default)."""

    name = "vc-scheduler"
    scheduler = "volcano"

    async def launch(self) -> Program:
        return await volcano(self.bench.plane, self.bench.client, period="100ms")


KINDS: Final[dict[str, type[Contender]]] = {
    "raw": Raw,
    "ours": Ours,
    "kube-scheduler": Stock,
    "volcano": Volcano,
    "raw-own": RawOwn,
    "ours-own": OursOwn,
}
NEEDS: Final[dict[str, str]] = {"kube-scheduler": SCHEDULER, "volcano": VOLCANO}


def all_of(names: list[str], bench: Bench, folder: Path) -> dict[str, Any]:
    return {name: KINDS[name](bench, folder) for name in names}
