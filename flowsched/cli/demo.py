"""`flowsched demo`: real genomics and five training gangs on three virtual nodes, then the same gangs without gang scheduling.

The service runs as a process of its own, as it would in earnest, so that `--kill` can really kill it; everything shown here comes
through the public API.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live

from flowsched import listening
from flowsched.cli.options import runs
from flowsched.cli.printing import render
from flowsched.client import Client
from flowsched.client.calls import is_terminal
from flowsched.client.documents import read
from flowsched.engine_programs import share
from flowsched.errors import Unavailable
from flowsched.workflow.views import AttemptUseView, WorkflowView

GANGS: Final = 5
NODES: Final = 3
CPU: Final = "4"
MEMORY: Final = "4Gi"
#: A gang of 2 × 1 + 4 × 1.5 cores: twelve cores have room for one and a half of them.
GANG_CORES: Final = 8
DEMO_S: Final = 120.0
#: The deadlock is called one when nothing has started or ended for so long.
STILL_S: Final = 5.0
#: And the comparison ends after this long at the latest.
COMPARE_S: Final = 20.0
commands = typer.Typer(rich_markup_mode=None)


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster that the demo's service runs pods on; by default the virtual nodes of `serve` itself.

    Args:
        arguments: Further arguments of `flowsched serve`.
        environment: Variables of the service besides those of this process.
    """

    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_genomics(self) -> bool:
        """Whether its tasks find pysam: on this machine, if the extra `genomics` is installed."""
        return bool(self.arguments) or importlib.util.find_spec("pysam") is not None


VIRTUAL_NODES: Final = Cluster()


@dataclass(slots=True)
class Serving:
    """A service process that can be killed and started again; it recovers what it finds in its root."""

    root: Path
    policy: str
    port: int
    cluster: Cluster
    kills: int = 0
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it."""
        words = f"serve --no-supervise --port {self.port} --root {self.root} --nodes {NODES} --cpu {CPU} --memory {MEMORY}"
        command = [sys.executable, "-m", "flowsched", *words.split(), "--policy", self.policy]
        with (self.root / "service.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command, *self.cluster.arguments, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **self.cluster.environment},
            )  # fmt: skip

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send it a signal, and see that it ends."""
        if self.process is None or self.process.returncode is not None:
            return
        self.process.send_signal(number)
        try:
            await asyncio.wait_for(self.process.wait(), 10)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()

    async def kill(self, times: int) -> None:
        """`kill -9` at uneven moments while it works; each time it is started again at once."""
        for number in range(times):
            await asyncio.sleep(1.5 + 2.3 * number)
            await self.stop(signal.SIGKILL)
            self.kills += 1
            await self.start()


@asynccontextmanager
async def service(
    root: Path, policy: str, cluster: Cluster = VIRTUAL_NODES
) -> AsyncIterator[tuple[Serving, Client]]:
    """A service of its own and a client of it, which waits until the service is ready."""
    await asyncio.to_thread(root.mkdir, parents=True, exist_ok=True)
    with listening.bound("127.0.0.1", 0)[0] as probe:
        port = int(probe.getsockname()[1])
    serving = Serving(root, policy, port, cluster)
    await serving.start()
    try:
        async with Client(f"http://127.0.0.1:{port}", start_timeout=30) as client:
            try:
                await client.nodes()
            except Unavailable as error:
                raise Unavailable(f"{error}: its log is {root / 'service.log'}") from None
            yield serving, client
    finally:
        await serving.stop()


@commands.command()
@runs()
async def demo(
    kill: Annotated[int, typer.Option(min=0, help="Kill the service so many times meanwhile.")] = 0,
) -> int:
    """See it work: workflows, gangs and crashes on this machine."""
    console, begun = Console(markup=False), time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="flowsched-demo-"))
    introduce(console, root, "virtual", genomics=VIRTUAL_NODES.has_genomics)
    good = await scheduled(console, root / "flowsched", kill, DEMO_S)
    if not kill:
        good = await deadlock(console, root / "kube-like") and good
        shutil.rmtree(root / "kube-like", ignore_errors=True)
    console.print(f"\nAll in {time.monotonic() - begun:.0f} s. What to try next:")
    for line in next_steps(root / "flowsched"):
        console.print(f"  {line}", style="cyan", soft_wrap=True)
    console.print(f"\nThe folder of this demo may be deleted then: rm -r {root}", soft_wrap=True)
    return 0 if good else 1


def introduce(console: Console, root: Path, kind: str, *, genomics: bool = True) -> None:
    """Say what the demonstration submits, and to what kind of nodes; without `genomics` also what is missing for the rest."""
    console.print(
        f"flowsched demo: {NODES} {kind} nodes of {CPU} cores on this machine, a new SQLite file in {root}\n"
        f"Submitting {'real variant calling (NA18507) and ' * genomics}{GANGS} training gangs of 2 ps + 4 workers, "
        f"{GANG_CORES} cores each: there is room for one and a half.\n"
    )
    if not genomics:
        console.print(
            "Left out: real variant calling, which needs pysam: pip install 'flowsched[genomics]'\n",
            markup=False,
        )


def next_steps(root: Path) -> list[str]:
    """The next commands, with the program as this user starts it: `make demo` puts it into a folder that no PATH names."""
    genomics = VIRTUAL_NODES.has_genomics
    program = "flowsched" if shutil.which("flowsched") else os.path.relpath(sys.argv[0])
    document = share("workflows", "variant-calling.json" if genomics else "fan-out.json")
    steps = f"""run {os.path.relpath(document)}
serve --nodes {NODES} --cpu {CPU} --memory {MEMORY} --root {root}   # then, beside it:
show NAME   # and `ls`, `explain NAME`, `top`, `get NAME STAGE`
demo --kill 3   # the same while the service is killed three times"""
    return [f"{program} {step}" for step in steps.splitlines()]


async def _submit_gangs(client: Client, **changed: Any) -> list[str]:
    """Submit the training gang several times; returns the ids."""
    gang = json.loads(read(share("workflows", "parameter-server.json")))
    gang["stages"][0] |= changed
    runs = [await client.submit(gang | {"name": f"train-{number + 1}"}) for number in range(GANGS)]
    return [run.id for run in runs]


async def scheduled(
    console: Console, root: Path, kill: int, seconds: float, cluster: Cluster = VIRTUAL_NODES
) -> bool:
    """Let flowsched run variant calling and the gangs, and show how they go; whether all succeeded, none twice.

    Args:
        console: Where it is shown.
        root: The service's.
        kill: How often the service is killed meanwhile.
        seconds: The demonstration stops after so long.
        cluster: The executor of the service.
    """
    async with service(root, "flowsched", cluster) as (serving, client):
        idents = []
        if cluster.has_genomics:
            idents.append((await client.submit(share("workflows", "variant-calling.json"))).id)
        idents += await _submit_gangs(client)
        killer = asyncio.create_task(serving.kill(kill))
        try:
            views = await _follow(console, client, idents, seconds)
            await killer  # also when the work ended sooner
        finally:
            killer.cancel()
            await asyncio.gather(killer, return_exceptions=True)
        console.print(render.workflow_table(views, datetime.now(UTC)))
        console.print(
            "\nSeconds are sums over a stage's tasks; bytes are inputs found where the task ran, or copied there."
        )
        for view in views:
            console.print(render.text(view.name, "bold"), render.stage_table(await client.stages(view.id)))
            async for task in client.tasks(view.id, state="SUCCEEDED"):
                for out in task.outputs:
                    if out.value and task.shard == 0:
                        console.print(f"  {out.name} = {' '.join(out.value.split())[:140]}", markup=False)
        good = all(view.state == "SUCCEEDED" for view in views)
        return await _audit(console, client, views, serving.kills) and good if kill else good


async def _follow(
    console: Console, client: Client, idents: Sequence[str], seconds: float
) -> list[WorkflowView]:
    """Show progress until all have ended, or the time is over."""
    end = time.monotonic() + seconds
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            views = [await client.get(ident) for ident in idents]
            parts: list[RenderableType] = [render.node_table(await client.nodes())]
            for view in views:
                parts.append(render.progress(await client.stages(view.id), head=render.workflow_head(view)))
            live.update(Group(*parts), refresh=True)
            if time.monotonic() > end or all(is_terminal(view.state) for view in views):
                return views
            await asyncio.sleep(0.25)


async def _audit(console: Console, client: Client, views: Sequence[WorkflowView], kills: int) -> bool:
    """Count what was lost and what ran twice at a time, from the attempts of every task."""
    lost = sum(view.state != "SUCCEEDED" for view in views)
    tries: dict[tuple[str, str, int], list[AttemptUseView]] = {}
    for view in views:
        async for each in client.attempts(view.id):
            tries.setdefault((view.id, each.stage, each.index), []).append(each)
    doubled = sum(map(_overlap, tries.values()))
    verdict = (
        f"\nThe service was killed {kills} times (kill -9): {lost} workflows lost, {doubled} tasks doubled; "
        f"{len(tries)} tasks in {sum(map(len, tries.values()))} attempts."
    )
    console.print(verdict, style="bold green" if lost == doubled == 0 else "bold red")
    return lost == doubled == 0


def _overlap(attempts: Sequence[AttemptUseView]) -> bool:
    """Whether two tries of one task ran at the same time."""
    spans = sorted((each.started_at, each.ended_at) for each in attempts if each.started_at and each.ended_at)
    return any(begin < end for (_, end), (begin, _) in pairwise(spans))


# ---- the comparison: the same gangs under a policy that places pod by pod ----


async def deadlock(console: Console, root: Path) -> bool:
    """The same gangs, pod by pod: each gets some of its members, none gets all."""
    head = f"\nThe same {GANGS} gangs under --policy kube-like: pod by pod, as a stock cluster places them."
    console.print(head, style="bold")
    async with service(root, "kube-like") as (_, client):
        idents = await _submit_gangs(client, retry={"attempts": 1})
        views, still = await _until_still(client, idents)
        for view in views:
            running = sum(view.counts.get(state, 0) for state in ("BINDING", "RUNNING"))
            console.print(
                f"  {view.name}: {running} of {view.tasks} members hold room and wait for the others"
            )
        stuck = still and not any(view.state == "SUCCEEDED" for view in views)
        verdict = f"Deadlock: for {STILL_S:.0f} s nothing has started or ended, and no gang is complete."
        console.print(verdict if stuck else "No deadlock this time.", style="bold red")
        await client.cancel_all(idents)
        for ident in idents:
            await client.wait(ident, timeout=20)
        return stuck


async def _until_still(client: Client, idents: Sequence[str]) -> tuple[list[WorkflowView], bool]:
    """Watch until nothing moves for a while: how the gangs are then, and whether they stood still."""
    begun = moved = time.monotonic()
    before: list[Any] = []
    while True:
        views = [await client.get(ident) for ident in idents]
        now = [(view.state, view.counts) for view in views]
        placed = any(view.counts.get("RUNNING") for view in views)
        if now != before or not placed:
            before, moved = now, time.monotonic()
        if (still := time.monotonic() - moved > STILL_S) or time.monotonic() - begun > COMPARE_S:
            return views, still
        await asyncio.sleep(0.3)
