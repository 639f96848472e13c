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
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

GANGS: Final = 5
NODES: Final = 3
CPU: Final = "4"
MEMORY: Final = "4Gi"
#: A gang of 2 × 1 + 4 × 1.5 cores: twelve cores have room for one and a half of them.
GANG_CORES: Final = 8
DEMO_S: Final = 120.0


class Options(Protocol):
    """What the command line gives."""

    policy: str | None
    kill: int
    seconds: float | None


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
    """A service process that can be killed and started again."""

    root: Path
    policy: str
    port: int
    cluster: Cluster = VIRTUAL_NODES
    kills: int = 0
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Start it; it recovers what it finds in its root."""
        words = f"serve --no-supervise --port {self.port} --root {self.root} --nodes {NODES} --cpu {CPU} --memory {MEMORY}"
        command = [
            sys.executable,
            "-m",
            "flowsched",
            *words.split(),
            "--policy",
            self.policy,
            *self.cluster.arguments,
        ]
        with (self.root / "service.log").open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.cluster.environment},
            )

    async def kill(self) -> None:
        """`kill -9`, and start it again at once."""
        if self.process is not None:
            self.process.kill()
            await self.process.wait()
        self.kills += 1
        await self.start()

    async def stop(self) -> None:
        """Ask it to stop, and see that it does."""
        if self.process is None or self.process.returncode is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.process.wait(), 10)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()


def share(*parts: str) -> Path:
    """A file that comes with flowsched: in a checkout beside the package, in a wheel inside it."""
    package = Path(__file__).parent.parent
    for base in (package.parent, package / "_share"):
        found = base.joinpath(*parts)
        if found.exists():
            return found
    raise FileNotFoundError(f"{'/'.join(parts)} is missing from this installation")


def free_port() -> int:
    """A port that no process listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def service(
    root: Path, policy: str, cluster: Cluster = VIRTUAL_NODES
) -> AsyncIterator[tuple[Serving, Any]]:
    """A service of its own and a client of it."""
    from flowsched.client import Client

    await asyncio.to_thread(root.mkdir, parents=True, exist_ok=True)
    serving = Serving(root, policy, free_port(), cluster)
    await serving.start()
    try:
        async with Client(serving.url) as client:
            await _ready(serving, client)
            yield serving, client
    finally:
        await serving.stop()


async def _ready(serving: Serving, client: Any) -> None:
    from flowsched.errors import FlowschedError

    end = time.monotonic() + 30
    while time.monotonic() < end:
        if serving.process is not None and serving.process.returncode is not None:
            break
        with suppress(FlowschedError):
            if (await client.ready())[0]:
                return
        await asyncio.sleep(0.05)
    log = (serving.root / "service.log").read_text(errors="replace")
    raise SystemExit(f"the service did not start; its log says:\n{log[-2000:]}")


async def main(options: Options) -> int:
    """Run the demonstration. Exit code 0 when everything ended as it should."""
    console = Console()
    root = Path(tempfile.mkdtemp(prefix="flowsched-demo-"))
    begun = time.monotonic()
    introduce(console, root, "virtual", genomics=VIRTUAL_NODES.has_genomics)
    only = options.policy
    good = True
    if only in (None, "flowsched"):
        good = await scheduled(console, root / "flowsched", options.kill, options.seconds or DEMO_S)
    if only in (None, "kube-like") and not options.kill:
        good = await deadlock(console, root / "kube-like") and good
    console.print(f"\nAll in {time.monotonic() - begun:.0f} s. What to try next:")
    for line in _next_steps(root / "flowsched"):
        console.print(Text("  " + line, "cyan"), soft_wrap=True)
    console.print(
        f"\nThe folder of this demo may be deleted then: rm -r {root}", markup=False, soft_wrap=True
    )
    if os.environ.get("FLOWSCHED_DEMO_KEEP") is None:
        _forget_bulk(root)
    return 0 if good else 1


def introduce(console: Console, root: Path, kind: str, *, genomics: bool = True) -> None:
    """Say what the demonstration submits, and to what kind of nodes; without `genomics` also what is missing for the rest."""
    console.print(
        Text.assemble(
            ("flowsched demo", "bold"),
            f": {NODES} {kind} nodes of {CPU} cores on this machine, a new SQLite file in {root}",
        )
    )
    calling = "real variant calling (NA18507) and " if genomics else ""
    console.print(
        f"Submitting {calling}{GANGS} training gangs of 2 ps + 4 workers, {GANG_CORES} cores each:"
        f" there is room for one and a half.\n"
    )
    if not genomics:
        console.print(
            "Left out: real variant calling, which needs pysam: pip install 'flowsched[genomics]'\n",
            markup=False,
        )


def _next_steps(root: Path) -> tuple[str, ...]:
    first = "variant-calling.json" if VIRTUAL_NODES.has_genomics else "fan-out.json"
    program = _program()
    return (
        f"{program} run {_short(share('workflows', first))}",
        f"{program} serve --nodes {NODES} --cpu {CPU} --memory {MEMORY} \\\n"
        f"    --root {root}   # then, beside it:",
        f"{program} ls",
        f"{program} show NAME   # and `explain NAME`, `top`",
        *(
            (f"{program} get variant-calling concat   # the called variants",)
            if VIRTUAL_NODES.has_genomics
            else ()
        ),
        f"{program} demo --kill 3   # the same while the service is killed three times",
    )


def _program() -> str:
    """How this user starts flowsched: `make demo` puts it into a folder that no PATH names."""
    found, own = shutil.which("flowsched"), Path(sys.argv[0])
    if own.name != "flowsched" or (found is not None and Path(found).samefile(own)):
        return "flowsched"
    return str(_short(own.absolute()))


def _short(path: Path) -> Path:
    with suppress(ValueError):
        return path.relative_to(Path.cwd())
    return path


def _forget_bulk(root: Path) -> None:
    """Keep the database and the logs for a look; drop caches and the comparison."""
    shutil.rmtree(root / "kube-like", ignore_errors=True)


# ---------------------------------------------------------------------------------------- with flowsched


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
        runs = (
            [await client.submit(share("workflows", "variant-calling.json"))] if cluster.has_genomics else []
        )
        gang = gang_document()
        runs += [await client.submit(gang | {"name": f"train-{number + 1}"}) for number in range(GANGS)]
        killer = asyncio.create_task(_killer(serving, kill))
        try:
            views = await _follow(console, client, [run.id for run in runs], seconds, serving)
            await _last_kill(killer, kill, serving)
        finally:
            killer.cancel()
            await asyncio.gather(killer, return_exceptions=True)
        await _report(console, client, views)
        good = all(view.state == "SUCCEEDED" for view in views)
        if kill:
            good = await _audit(console, client, views, serving) and good
        return good


def gang_document() -> dict[str, Any]:
    """The training gang that is submitted several times."""
    from flowsched.client.documents import read

    document: dict[str, Any] = json.loads(read(share("workflows", "parameter-server.json")))
    return document


async def _killer(serving: Serving, times: int) -> None:
    """Kill the service at uneven moments while it works."""
    for number in range(times):
        await asyncio.sleep(1.5 + 2.3 * number)
        await serving.kill()


async def _last_kill(killer: asyncio.Task[None], times: int, serving: Serving) -> None:
    """Whatever was asked for is really done, also when the work ended sooner."""
    if times and serving.kills < times:
        await killer


async def _follow(
    console: Console, client: Any, idents: Sequence[str], seconds: float, serving: Serving
) -> list[Any]:
    """Show progress until all have ended (or the time is over)."""
    from flowsched.errors import FlowschedError

    end = time.monotonic() + seconds
    views: list[Any] = []
    live = Live(console=console, refresh_per_second=8, transient=True) if console.is_terminal else None
    told: Sequence[str] = ()
    if live is not None:
        live.start()
    try:
        while time.monotonic() < end:
            try:
                views = [await client.get(ident) for ident in idents]
                stages = [await client.stages(ident) for ident in idents]
                nodes = await client.nodes()
            except FlowschedError:
                await asyncio.sleep(0.2)
                continue
            if live is not None:
                live.update(_picture(views, stages, nodes, serving))
            told = plain_progress(console, views, told) if live is None else told
            if all(view.state in ("SUCCEEDED", "FAILED", "CANCELLED") for view in views):
                break
            await asyncio.sleep(0.25)
    finally:
        if live is not None:
            live.stop()
    return views


def plain_progress(console: Console, views: Sequence[Any], told: Sequence[str]) -> list[str]:
    """Without a terminal: a line with what has changed since `told` was said; returns all that is said by now."""
    said = [f"{view.name}: {_said(view)}" for view in views]
    changed = [each for each in said if each not in told]
    if changed:
        console.print("  ".join(changed), markup=False)
    return said


def _said(view: Any) -> str:
    if view.state in ("SUCCEEDED", "FAILED", "CANCELLED"):
        return str(view.state.lower())
    return f"{view.counts.get('SUCCEEDED', 0)}/{view.tasks}"


def _picture(
    views: Sequence[Any], stages: Sequence[Sequence[Any]], nodes: Sequence[Any], serving: Serving
) -> RenderableType:
    from flowsched.cli.printing import render

    parts: list[RenderableType] = []
    for view, rows in zip(views, stages, strict=True):
        parts.append(render.progress(rows, head=render.workflow_head(view)))
    parts.append(render.node_table(nodes))
    if serving.kills:
        parts.append(Text(f"the service has been killed {serving.kills} times", "yellow"))
    return Group(*parts)


async def _report(console: Console, client: Any, views: Sequence[Any]) -> None:
    from flowsched.cli.printing import render

    console.print(_outcomes(views))
    for view in views:
        if view.state == "FAILED":
            said = f"  {view.name} failed: {view.reason}; `flowsched logs {view.id} STAGE INDEX --stderr` says more"
            console.print(said, style="red", markup=False, soft_wrap=True)
    table = render.plain_table(
        "WORKFLOW", "STAGE", ">TASKS", ">QUEUED", ">STAGING", ">RAN", ">LOCAL", ">MOVED"
    )
    for view in views:
        for stage in await client.stages(view.id):
            table.add_row(
                view.name,
                stage.name,
                str(stage.width * stage.members),
                render.seconds(stage.queued_seconds),
                render.seconds(stage.staging_seconds),
                render.seconds(stage.running_seconds),
                render.size(stage.bytes_local),
                render.size(stage.bytes_moved),
            )
    console.print(
        Text(
            "\nSeconds are sums over a stage's tasks; bytes are inputs found where the task ran, or copied there.",
            "dim",
        )
    )
    console.print(table)
    values = []
    for view in views:
        for stage in await client.stages(view.id):
            async for task in client.tasks(view.id, stage=stage.name, state="SUCCEEDED"):
                if stage.width > 1 and task.shard > 0:
                    break
                values += [(view.name, out.name, out.value) for out in task.outputs if out.value]
    for name, output, value in values:
        console.print(f"  {name}: {output} = {' '.join(value.split())[:140]}", markup=False)


def _outcomes(views: Sequence[Any]) -> RenderableType:
    from flowsched.cli.printing import render

    table = render.plain_table("WORKFLOW", "ID", "OUTCOME", ">TASKS DONE", ">AFTER")
    for view in views:
        began, ended = view.created_at, view.ended_at
        took = (ended - began).total_seconds() if ended else 0.0
        done = f"{view.counts.get('SUCCEEDED', 0)}/{view.tasks}"
        table.add_row(view.name, view.id, render.state(view.state), done, render.seconds(took))
    return table


# ---------------------------------------------------------------------------------------- after kills


async def _audit(console: Console, client: Any, views: Sequence[Any], serving: Serving) -> bool:
    """Count what was lost and what ran twice at a time, from the attempts of every task."""
    lost = sum(view.state != "SUCCEEDED" for view in views)
    tasks = doubled = attempts = 0
    for view in views:
        async for task in client.tasks(view.id):
            tasks += 1
            full = await client.task(view.id, task.stage, task.index)
            attempts += len(full.attempts)
            doubled += _overlaps(full.attempts)
    verdict = "bold green" if lost == doubled == 0 else "bold red"
    console.print(
        Text(
            f"\nThe service was killed {serving.kills} times (kill -9): {lost} workflows lost, "
            f"{doubled} tasks doubled; {tasks} tasks in {attempts} attempts.",
            verdict,
        )
    )
    return bool(lost == doubled == 0)


def _overlaps(attempts: Sequence[Any]) -> int:
    """1 if two tries of one task ran at the same time."""
    spans = sorted((a.started_at, a.ended_at) for a in attempts if a.started_at and a.ended_at)
    return int(any(begin < end for (_, end), (begin, _) in pairwise(spans)))


# ---- the comparison: the same gangs under a policy that places pod by pod ----


#: The deadlock is called one when nothing has started or ended for so long.
STILL_S: Final = 5.0
#: And the comparison ends after this long at the latest.
COMPARE_S: Final = 20.0


async def deadlock(console: Console, root: Path) -> bool:
    """The same gangs, pod by pod: each gets some of its members, none gets all."""
    console.print(
        Text(
            f"\nThe same {GANGS} gangs under --policy kube-like: pod by pod, as a stock cluster places them.",
            "bold",
        )
    )
    async with service(root, "kube-like") as (_, client):
        gang = gang_document()
        gang["stages"][0]["retry"] = {"attempts": 1}
        runs = [await client.submit(gang | {"name": f"train-{number + 1}"}) for number in range(GANGS)]
        idents = [run.id for run in runs]
        placed, still = await _until_still(client, idents)
        names = dict(zip(idents, (f"train-{number + 1}" for number in range(GANGS)), strict=True))
        order = [f"{names[ident]}/{role}" for _, ident, role in sorted(placed)]
        console.print("Placed in this order: " + ", ".join(order))
        views = [await client.get(ident) for ident in idents]
        for view in views:
            running = sum(view.counts.get(state, 0) for state in ("BINDING", "BOUND", "RUNNING"))
            console.print(
                f"  {view.name}: {running} of {view.tasks} members hold room and wait for the others"
            )
        done = sum(view.state == "SUCCEEDED" for view in views)
        if done == 0 and still:
            console.print(
                Text(
                    f"Deadlock: for {STILL_S:.0f} s nothing has started or ended, and no gang is complete. "
                    "(They would wait for ever; this is where the demo gives up.)",
                    "bold red",
                )
            )
        else:
            console.print(Text(f"No deadlock this time: {done} of {GANGS} gangs finished.", "bold yellow"))
        for ident in idents:
            await client.cancel(ident)
        for ident in idents:
            await client.wait(ident, timeout=20)
        return done == 0 and still


async def _until_still(client: Any, idents: Sequence[str]) -> tuple[set[tuple[Any, str, str]], bool]:
    """Watch until nothing moves for a while: what was placed when, and whether it stood still."""
    begun = moved = time.monotonic()
    before: Any = None
    placed: set[tuple[Any, str, str]] = set()
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
