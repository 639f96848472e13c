"""The pains of `bench/pains.py` with real processes: a whole service (API, SQLite, local cluster) with kube-like, then flowsched.

    python -m bench.pains_real [1 2 3 4]

Each member of a gang is a process; they meet over TCP by what the service tells them of their gang and share a small
computation (`bench/gang_member.py`). Cores are budgets of virtual nodes: members mostly sleep, so that any machine
can run it. All jobs are handed in while their queue is paused, then it is opened: none comes first. A DEADLOCK is
called one when for 6 s nothing has started or ended while members run; they would wait for ever, this gives up on
them.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from bench.pains import table
from flowsched import Client, app
from flowsched.cluster.local.settings import LocalSettings
from flowsched.log_lines import configure_logging

MEMBER = Path(__file__).with_name("gang_member.py")
ENDED = ("SUCCEEDED", "FAILED", "CANCELLED")
STILL_S = 6.0
LIMIT_S = 150.0
POLL_S = 0.25


@dataclass(slots=True)
class Report:
    """How a set of jobs went.

    Attributes:
        seconds: Job -> s from the opening of the queue to its end.
        running: Job -> members that ran when this gave up, of how many.
        stuck: Nothing started or ended for `STILL_S` while members ran.
        order: Members in the order in which they were bound; of one step, one of each job in turn if it was pod by pod.
        said: What members printed, by job (of rank 0).
    """

    seconds: dict[str, float] = field(default_factory=dict)
    running: dict[str, str] = field(default_factory=dict)
    stuck: bool = False
    order: list[str] = field(default_factory=list)
    said: dict[str, str] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)

    def verdict(self, jobs: int) -> str:
        """In two words."""
        return "DEADLOCK" if self.stuck else "all done" if len(self.seconds) == jobs else "not all done"


def gang(
    name: str, servers: int = 2, workers: int = 4, work_s: float = 0.5, estimate_s: float = 2, **cpus: str
) -> dict[str, Any]:
    """A training: ps of a core, workers of a core and a half unless `ps` or `worker` say otherwise."""
    command = [sys.executable, "-S", "-E", str(MEMBER)]
    env = {"WORK_S": str(work_s)}
    roles = {
        role: {
            "replicas": count,
            "command": command,
            "env": env,
            "resources": {"cpu": cpus.get(role, cpu), "memory": "32Mi"},
        }
        for role, count, cpu in (("ps", servers, "1"), ("worker", workers, "1500m"))
    }
    stage = {"name": "train", "gang": True, "roles": roles, "estimate": {"runtime": f"{estimate_s}s"}}
    return {"name": name, "stages": [stage]}


def sleeper(name: str, seconds: float, cpu: int = 1) -> dict[str, Any]:
    """A plain task."""
    stage = {
        "name": "run",
        "command": ["sleep", str(seconds)],
        "resources": {"cpu": cpu, "memory": "16Mi"},
        "estimate": {"runtime": f"{seconds}s"},
    }
    return {"name": name, "stages": [stage]}


@asynccontextmanager
async def service(policy: str, nodes: int, cpu: int) -> AsyncIterator[Client]:
    """A whole service on this machine, and a client of it."""
    with tempfile.TemporaryDirectory(prefix="flowsched-pains-") as folder:
        settings = app.Settings(
            root=Path(folder),
            port=0,
            policy=policy,
            log_level="error",
            local=LocalSettings(nodes=nodes, cpu=str(cpu), memory="8Gi"),
        )
        configure_logging(settings.log_level, as_json=settings.log_json)
        async with app.running(settings) as up, Client(up.url) as client:
            try:
                yield client
            finally:
                await clear(client)


async def together(client: Client, documents: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Hand all in at once: name -> id."""
    await client.put_queue("default", paused=True)
    idents = {document["name"]: (await client.submit(document)).id for document in documents}
    await client.put_queue("default", paused=False)
    return idents


async def watched(
    client: Client, idents: dict[str, str], pod_by_pod: bool, still_s: float = STILL_S
) -> Report:
    """Wait until all have ended, or nothing has moved for so long while members run."""
    report, begun = Report(), time.monotonic()
    moved, before = begun, None
    while time.monotonic() - begun < LIMIT_S:
        views = {name: await client.get(ident) for name, ident in idents.items()}
        now = [(view.state, sorted(view.counts.items())) for view in views.values()]
        for name, view in views.items():
            if view.started_at is not None:
                report.started.setdefault(name, time.monotonic() - begun)
            if view.state == "SUCCEEDED":
                report.seconds.setdefault(name, time.monotonic() - begun)
        if all(view.state in ENDED for view in views.values()):
            break
        if now != before:
            before, moved = now, time.monotonic()
        running = {name: view.counts.get("RUNNING", 0) for name, view in views.items()}
        if time.monotonic() - moved > still_s and any(running.values()):
            report.stuck = True
            report.running = {name: f"{count} of {views[name].tasks}" for name, count in running.items()}
            break
        await asyncio.sleep(POLL_S)
    await _told(client, idents, report, pod_by_pod)
    return report


async def clear(client: Client) -> None:
    """Leave no process behind."""
    left = [view.id async for view in client.list() if view.state not in ENDED]
    for ident in left:
        await client.cancel(ident)
    for ident in left:
        await client.wait(ident, 60)


async def _told(client: Client, idents: dict[str, str], report: Report, pod_by_pod: bool) -> None:
    """In which order members were bound, and what they said."""
    bound: dict[Any, dict[str, list[str]]] = {}
    for name, ident in idents.items():
        async for task in client.tasks(ident):
            if task.bound_at is not None:
                bound.setdefault(task.bound_at, {}).setdefault(name, []).append(
                    f"{name}/{task.role}-{task.index}"
                )
        if name in report.seconds and any(stage.gang for stage in await client.stages(ident)):
            lines = b"".join([chunk async for chunk in client.logs(ident, "train", 0)])
            report.said[name] = lines.decode().strip()
    for moment in sorted(bound):
        jobs = list(bound[moment].values())
        turns = zip_longest(*jobs) if pod_by_pod else [tuple(job) for job in jobs]
        report.order.extend(each for turn in turns for each in turn if each is not None)


async def deadlock(policy: str, jobs: int, still_s: float = STILL_S) -> Report:
    """So many jobs of 2 ps + 4 workers (8 cores) at once on 3 nodes of 4 cores."""
    async with service(policy, 3, 4) as client:
        idents = await together(client, [gang(f"job-{number + 1}") for number in range(jobs)])
        return await watched(client, idents, policy == "kube-like", still_s)


async def too_large(policy: str, small: int = 10, still_s: float = STILL_S) -> Report:
    """A gang of 16 cores on 12, and small tasks behind it."""
    async with service(policy, 3, 4) as client:
        documents = [gang("big", 2, 14, worker="1"), *(sleeper(f"small-{at}", 0.2) for at in range(small))]
        idents = await together(client, documents[:1])
        await asyncio.sleep(1)  # it comes first
        idents |= await together(client, documents[1:])
        big = idents.pop("big")
        return await watched_beside(client, big, idents, still_s)


async def watched_beside(client: Client, big: str, idents: dict[str, str], still_s: float) -> Report:
    """As `watched` for the small ones, while the big one holds what it holds."""
    report, begun = Report(), time.monotonic()
    moved, done = begun, -1
    while len(report.seconds) < len(idents) and time.monotonic() - moved < still_s:
        for name, ident in idents.items():
            if (await client.get(ident)).state == "SUCCEEDED":
                report.seconds.setdefault(name, time.monotonic() - begun)
        if len(report.seconds) != done:
            done, moved = len(report.seconds), time.monotonic()
        await asyncio.sleep(POLL_S)
    view = await client.get(big)
    report.running["big"] = f"{view.counts.get('RUNNING', 0)} of {view.tasks}"
    report.stuck = len(report.seconds) < len(idents)
    report.said["big"] = "; ".join(
        f"{why.code}: {why.message}" for why in await client.explain(big) if why.code
    )
    return report


async def stream(policy: str, seconds: float = 16.0) -> tuple[Report, float, float | None]:
    """2 of 6 cores are taken for 8 s; after 1 s comes a gang of all six, in a stream of small tasks (2 s, one every 0.5 s).

    Returns:
        How it went; when the big one came; and the start that it was told half a second later, s after the begin.
    """
    async with service(policy, 3, 2) as client:
        begun = time.monotonic()
        idents = {"long": (await client.submit(sleeper("long", 8, cpu=2))).id}
        watching: dict[str, str] = {}
        came, promised, number = 0.0, None, 0
        while time.monotonic() - begun < seconds:
            if not came and time.monotonic() - begun > 1:
                watching["big"] = (await client.submit(gang("big", 2, 4, 1.0, worker="1"))).id
                came = time.monotonic() - begun
            elif came and promised is None:
                told = await client.explain(watching["big"])
                promised = next((why.start_at for why in told if why.start_at is not None), None)
            number += 1
            watching[f"small-{number:02}"] = (await client.submit(sleeper(f"small-{number:02}", 2))).id
            await asyncio.sleep(max(0.0, begun + number / 2 - time.monotonic()))
        idents |= watching
        await asyncio.gather(*(client.wait(ident, LIMIT_S) for ident in idents.values()))
        report = Report()
        zero = (await client.get(idents["long"])).created_at
        for name, ident in idents.items():
            view = await client.get(ident)
            tasks = [task async for task in client.tasks(ident)]
            starts = [task.started_at for task in tasks if task.started_at is not None]
            report.started[name] = (max(starts) - zero).total_seconds()
            if view.ended_at is not None:
                report.seconds[name] = (view.ended_at - zero).total_seconds()
            report.running[name] = f"{(max(starts) - view.created_at).total_seconds():.3f}"
        return report, came, (promised - zero).total_seconds() if promised is not None else None


async def twenty(policy: str, jobs: int = 20) -> Report:
    """So many trainings of 8 cores at once on 6 nodes of 4 cores: room for three."""
    async with service(policy, 6, 4) as client:
        return await watched(
            client,
            await together(client, [gang(f"train-{at + 1:02}", work_s=1.0) for at in range(jobs)]),
            policy == "kube-like",
        )


async def by_hand(jobs: int = 20) -> Report:
    """The same with kube-like, three at a time: the next three once these have ended, as somebody who knows the room would."""
    report, begun = Report(), time.monotonic()
    async with service("kube-like", 6, 4) as client:
        for first in range(0, jobs, 3):
            names = [f"train-{at + 1:02}" for at in range(first, min(first + 3, jobs))]
            idents = await together(client, [gang(name, work_s=1.0) for name in names])
            part = await watched(client, idents, pod_by_pod=True)
            report.stuck = report.stuck or part.stuck
            report.seconds |= dict.fromkeys(part.seconds, time.monotonic() - begun)
    return report


# ---------------------------------------------------------------------------------------------------- tables


def _after(report: Report, jobs: int) -> str:
    return f"{max(report.seconds.values()):.1f} s" if len(report.seconds) == jobs else "never"


async def pain_1() -> None:
    """Print it."""
    print("\n## 1. Jobs of 2 ps + 4 workers (8 cores) on 3 nodes of 4 cores, as real processes\n")
    rows, orders = [], []
    for jobs in (1, 2, 5):
        for policy in ("kube-like", "flowsched"):
            got = await deadlock(policy, jobs)
            held = "; ".join(f"{name} {what}" for name, what in got.running.items())
            said = sorted(set(got.said.values()))
            rows.append(
                [str(jobs), policy, f"{len(got.seconds)} of {jobs}", got.verdict(jobs), _after(got, jobs), held,
                 ", ".join(said)]
            )  # fmt: skip
            orders.append(f"- {jobs}, {policy}: {', '.join(got.order)}")
    table(
        ["jobs", "policy", "ended", "", "all done after", "members that run and wait", "members computed"],
        rows,
    )
    print("\nMembers in the order in which they got their nodes:\n")
    print("\n".join(orders))


async def pain_2() -> None:
    """Print it."""
    print("\n## 2a. A gang of 16 cores on 12, and 10 small tasks behind it, as real processes\n")
    rows = []
    for policy in ("kube-like", "flowsched"):
        got = await too_large(policy)
        rows.append([policy, f"{len(got.seconds)} of 10", got.running["big"], got.said["big"]])
    table(
        ["policy", "small ones done", "members of the big one that run and wait", "what is said of it"], rows
    )
    print("\n## 2b. A gang of all 6 cores in a stream of small tasks (2 s, one every 0.5 s, for 16 s)\n")
    rows = []
    for policy in ("kube-like", "flowsched"):
        got, came, promised = await stream(policy)
        small = [float(got.running[name]) for name in got.started if name.startswith("small")]
        rows.append(
            [policy, f"{came:.1f} s", f"{got.seconds['long']:.1f} s",
             "nothing" if promised is None else f"{promised:.1f} s", f"{got.started['big']:.1f} s",
             f"{sum(small) / len(small):.1f} / {max(small):.1f} s", f"{max(got.seconds.values()):.1f} s"]
        )  # fmt: skip
    table(
        ["policy", "it came at", "the last room it needs was free at", "it was told", "all its members ran at",
         "small wait, mean / longest",
         "all done after"],
        rows,
    )  # fmt: skip


async def pain_3() -> None:
    """Print it."""
    print("\n## 3. 20 trainings of 8 cores at once on 6 nodes of 4 cores, as real processes\n")
    rows = []
    for label, asked in (
        ("kube-like, all at once", twenty("kube-like")),
        ("kube-like, by hand: three, and the next three when these have ended", by_hand()),
        ("flowsched, all at once", twenty("flowsched")),
    ):
        got = await asked
        rows.append([label, f"{len(got.seconds)} of 20", got.verdict(20), _after(got, 20)])
    table(["", "ended", "", "all done after"], rows)


async def night(policy: str, seconds: float = 15.0) -> tuple[int, int, str]:
    """15 s on 12 cores: three trainings of 8 cores, and batch tasks whose queue may have 2 cores.

    Returns:
        Trainings done; members that run and wait at the end; what `explain --cluster` says of the cores.
    """
    async with service(policy, 3, 4) as client:
        begun = time.monotonic()
        await client.put_queue("batch", cap={"cpu": 2})
        idents = await together(client, [gang(f"job-{number + 1}", work_s=1.0) for number in range(3)])
        for number in range(8):
            await client.submit({**sleeper(f"batch-{number}", 2), "queue": "batch"})
        await asyncio.sleep(max(0.0, begun + seconds - time.monotonic()))
        views = [await client.get(ident) for ident in idents.values()]
        report = await client.idle()
        told = next(each for each in report.sentences if each.startswith("cpu"))
        done = sum(view.state == "SUCCEEDED" for view in views)
        return done, sum(view.counts.get("RUNNING", 0) for view in views), told


async def pain_4() -> None:
    """Print it."""
    print(
        "\n## 4. A short night on 12 cores: three trainings (8 cores), and batch work whose queue may have 2 cores\n"
    )
    rows = []
    for policy in ("kube-like", "flowsched"):
        done, waiting, told = await night(policy)
        causes = told.partition("of these ")[2]
        rows.append([policy, f"{done} of 3", str(waiting), causes])
    table(
        [
            "policy",
            "trainings done",
            "members that run and wait at the end",
            "idle cores, by `explain --cluster`",
        ],
        rows,
    )


PAINS = {"1": pain_1, "2": pain_2, "3": pain_3, "4": pain_4}


async def main(which: Sequence[str]) -> None:
    """Print the pains that were asked for."""
    for name in which or PAINS:
        await PAINS[name]()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
