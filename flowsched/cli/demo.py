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
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from flowsched.cli.options import runs
from flowsched.cli.printing import render
from flowsched.client import Client
from flowsched.client.calls import is_terminal
from flowsched.client.documents import read
from flowsched.errors import FlowschedError
from flowsched.workflow.views import AttemptView, WorkflowView

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


def share(*parts: str) -> Path:
    """A file that comes with flowsched: in a checkout beside the package, in a wheel inside it."""
    package = Path(__file__).parent.parent
    found = [base.joinpath(*parts) for base in (package.parent, package / "_share")]
    return next((path for path in found if path.exists()), found[0])


@asynccontextmanager
async def service(
    root: Path, policy: str, cluster: Cluster = VIRTUAL_NODES
) -> AsyncIterator[tuple[Serving, Client]]:
    """A service of its own and a client of it."""
    await asyncio.to_thread(root.mkdir, parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    serving = Serving(root, policy, port, cluster)
    await serving.start()
    try:
        async with Client(f"http://127.0.0.1:{port}") as client:
            end = time.monotonic() + 30
            while time.monotonic() < end and serving.process and serving.process.returncode is None:
                with suppress(FlowschedError):
                    if (await client.ready())[0]:
                        break
                await asyncio.sleep(0.05)
            else:
                log = (root / "service.log").read_text(errors="replace")
                raise SystemExit(f"the service did not start; its log says:\n{log[-2000:]}")
            yield serving, client
    finally:
        await serving.stop()


@commands.command()
@runs()
async def demo(
    policy: Annotated[str | None, typer.Option(help="Only with this policy. [all, side by side]")] = None,
    kill: Annotated[int, typer.Option(min=0, help="Kill the service so many times meanwhile.")] = 0,
    seconds: Annotated[float | None, typer.Option(min=1, help="Stop after so long.")] = None,
) -> int:
    """See it work: workflows, gangs and crashes on this machine."""
    console, begun = Console(), time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="flowsched-demo-"))
    introduce(console, root, "virtual", genomics=VIRTUAL_NODES.has_genomics)
    good = True
    if policy in (None, "flowsched"):
        good = await scheduled(console, root / "flowsched", kill, seconds or DEMO_S)
    if policy in (None, "kube-like") and not kill:
        good = await deadlock(console, root / "kube-like") and good
    console.print(f"\nAll in {time.monotonic() - begun:.0f} s. What to try next:")
    for line in next_steps(root / "flowsched"):
        console.print(Text("  " + line, "cyan"), soft_wrap=True)
    console.print(
        f"\nThe folder of this demo may be deleted then: rm -r {root}", markup=False, soft_wrap=True
    )
    if os.environ.get("FLOWSCHED_DEMO_KEEP") is None:
        shutil.rmtree(root / "kube-like", ignore_errors=True)
    return 0 if good else 1


def introduce(console: Console, root: Path, kind: str, *, genomics: bool = True) -> None:
    """Say what the demonstration submits, and to what kind of nodes; without `genomics` also what is missing for the rest."""
    head = f": {NODES} {kind} nodes of {CPU} cores on this machine, a new SQLite file in {root}"
    console.print(Text.assemble(("flowsched demo", "bold"), head))
    calling = "real variant calling (NA18507) and " if genomics else ""
    console.print(
        f"Submitting {calling}{GANGS} training gangs of 2 ps + 4 workers, {GANG_CORES} cores each:"
        f" there is room for one and a half.\n"
    )
    if not genomics:
        left_out = "Left out: real variant calling, which needs pysam: pip install 'flowsched[genomics]'\n"
        console.print(left_out, markup=False)


def next_steps(root: Path) -> list[str]:
    """What to type next, as this user starts flowsched: `make demo` puts it into a folder that no PATH names."""
    genomics, here = VIRTUAL_NODES.has_genomics, Path.cwd()
    found, own = shutil.which("flowsched"), Path(sys.argv[0]).absolute()
    named = own.name != "flowsched" or (found is not None and Path(found).samefile(own))
    document = share("workflows", "variant-calling.json" if genomics else "fan-out.json")
    program, first = (
        path.relative_to(here) if path.is_relative_to(here) else path
        for path in (Path("flowsched") if named else own, document)
    )
    return [
        f"{program} run {first}",
        f"{program} serve --nodes {NODES} --cpu {CPU} --memory {MEMORY} \\\n    --root {root}   # then, beside it:",
        f"{program} ls",
        f"{program} show NAME   # and `explain NAME`, `top`",
        *([f"{program} get variant-calling concat   # the called variants"] if genomics else []),
        f"{program} demo --kill 3   # the same while the service is killed three times",
    ]


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
        cluster: What the service runs pods on.
    """
    async with service(root, "flowsched", cluster) as (serving, client):
        idents = []
        if cluster.has_genomics:
            idents.append((await client.submit(share("workflows", "variant-calling.json"))).id)
        idents += await _submit_gangs(client)
        killer = asyncio.create_task(serving.kill(kill))
        try:
            views = await _follow(console, client, idents, seconds, serving)
            await killer  # also when the work ended sooner
        finally:
            killer.cancel()
            await asyncio.gather(killer, return_exceptions=True)
        await _report(console, client, views)
        good = all(view.state == "SUCCEEDED" for view in views)
        return await _audit(console, client, views, serving.kills) and good if kill else good


async def _follow(
    console: Console, client: Client, idents: Sequence[str], seconds: float, serving: Serving
) -> list[WorkflowView]:
    """Show progress until all have ended (or the time is over)."""
    end = time.monotonic() + seconds
    views: list[WorkflowView] = []
    told: Sequence[str] = ()
    live = Live(console=console, refresh_per_second=8, transient=True) if console.is_terminal else None
    with live or nullcontext():
        while time.monotonic() < end:
            try:
                views = [await client.get(ident) for ident in idents]
                stages = [await client.stages(ident) for ident in idents]
                nodes = await client.nodes()
            except FlowschedError:
                await asyncio.sleep(0.2)
                continue
            if live is None:
                told = plain_progress(console, views, told)
            else:
                shown = zip(views, stages, strict=True)
                killed = f"the service has been killed {serving.kills} times" if serving.kills else ""
                parts = [render.progress(rows, head=render.workflow_head(view)) for view, rows in shown]
                live.update(Group(*parts, render.node_table(nodes), Text(killed, "yellow")))
            if all(is_terminal(view.state) for view in views):
                break
            await asyncio.sleep(0.25)
    return views


def plain_progress(console: Console, views: Sequence[WorkflowView], told: Sequence[str]) -> list[str]:
    """Without a terminal: a line with what has changed since `told` was said; returns all that is said by now."""
    said = [
        f"{view.name}: "
        + (
            view.state.lower()
            if is_terminal(view.state)
            else f"{view.counts.get('SUCCEEDED', 0)}/{view.tasks}"
        )
        for view in views
    ]
    changed = [each for each in said if each not in told]
    if changed:
        console.print("  ".join(changed), markup=False)
    return said


async def _report(console: Console, client: Client, views: Sequence[WorkflowView]) -> None:
    """What came of it: each workflow, what its stages waited for and moved, and the values that they made."""
    console.print(render.workflow_table(views, datetime.now(UTC)))
    sums = (
        "\nSeconds are sums over a stage's tasks; bytes are inputs found where the task ran, or copied there."
    )
    console.print(Text(sums, "dim"))
    for view in views:
        stages = await client.stages(view.id)
        console.print(render.text(view.name, "bold"), render.stage_table(stages))
        for stage in stages:
            async for task in client.tasks(view.id, stage=stage.name, state="SUCCEEDED"):
                if stage.width > 1 and task.shard > 0:
                    break
                for out in task.outputs:
                    if out.value:
                        console.print(f"  {out.name} = {' '.join(out.value.split())[:140]}", markup=False)


async def _audit(console: Console, client: Client, views: Sequence[WorkflowView], kills: int) -> bool:
    """Count what was lost and what ran twice at a time, from the attempts of every task."""
    lost = sum(view.state != "SUCCEEDED" for view in views)
    tries = [
        (await client.task(view.id, task.stage, task.index)).attempts
        for view in views
        async for task in client.tasks(view.id)
    ]
    doubled, attempts = sum(map(_overlap, tries)), sum(map(len, tries))
    told = (
        f"\nThe service was killed {kills} times (kill -9): {lost} workflows lost, "
        f"{doubled} tasks doubled; {len(tries)} tasks in {attempts} attempts."
    )
    console.print(Text(told, "bold green" if lost == doubled == 0 else "bold red"))
    return lost == doubled == 0


def _overlap(attempts: Sequence[AttemptView]) -> bool:
    """Whether two tries of one task ran at the same time."""
    spans = sorted((each.started_at, each.ended_at) for each in attempts if each.started_at and each.ended_at)
    return any(begin < end for (_, end), (begin, _) in pairwise(spans))


# ---- the comparison: the same gangs under a policy that places pod by pod ----


async def deadlock(console: Console, root: Path) -> bool:
    """The same gangs, pod by pod: each gets some of its members, none gets all."""
    head = f"\nThe same {GANGS} gangs under --policy kube-like: pod by pod, as a stock cluster places them."
    console.print(Text(head, "bold"))
    async with service(root, "kube-like") as (_, client):
        idents = await _submit_gangs(client, retry={"attempts": 1})
        placed, still = await _until_still(client, idents)
        order = [f"train-{idents.index(ident) + 1}/{role}" for _, ident, role in sorted(placed)]
        console.print("Placed in this order: " + ", ".join(order))
        views = [await client.get(ident) for ident in idents]
        for view in views:
            running = sum(view.counts.get(state, 0) for state in ("BINDING", "BOUND", "RUNNING"))
            console.print(
                f"  {view.name}: {running} of {view.tasks} members hold room and wait for the others"
            )
        done = sum(view.state == "SUCCEEDED" for view in views)
        stuck = done == 0 and still
        told = (
            f"Deadlock: for {STILL_S:.0f} s nothing has started or ended, and no gang is complete. "
            "(They would wait for ever; this is where the demo gives up.)"
            if stuck
            else f"No deadlock this time: {done} of {GANGS} gangs finished."
        )
        console.print(Text(told, "bold red" if stuck else "bold yellow"))
        await client.cancel_all(idents)
        for ident in idents:
            await client.wait(ident, timeout=20)
        return stuck


async def _until_still(client: Client, idents: Sequence[str]) -> tuple[set[tuple[datetime, str, str]], bool]:
    """Watch until nothing moves for a while: what was placed when, and whether it stood still."""
    begun = moved = time.monotonic()
    before: Any = None
    placed: set[tuple[datetime, str, str]] = set()
    while time.monotonic() - begun < COMPARE_S:
        views = [await client.get(ident) for ident in idents]
        now = [(view.state, sorted(view.counts.items())) for view in views]
        for ident in idents:
            async for task in client.tasks(ident):
                if task.bound_at is not None:
                    placed.add((task.bound_at, ident, f"{task.role}-{task.index}"))
        if now != before or not placed:
            before, moved = now, time.monotonic()
        elif time.monotonic() - moved > STILL_S:
            return placed, True
        await asyncio.sleep(0.3)
    return placed, False
