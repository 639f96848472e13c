"""A service that is killed again and again while users work with it, and an audit of what became of their work.

Everything is real: processes, files, HTTP, SQL. The harness plays the supervisor (it starts the service again), the users (they
submit, cancel and wait through the SDK, and repeat what was not answered), and at the end the auditor.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

import flowsched.client.session as session
from flowsched.client import Client
from flowsched.control.leading.failpoints import CACHES, KUBERNETES
from flowsched.control.leading.failpoints import POINTS as ALL_POINTS
from flowsched.errors import Conflict, FlowschedError, NotFound
from flowsched.workflow.views import TaskView, WorkflowView
from tests.crash.workloads import Mix, Workload
from tests.programs import free_ports

HERE = Path(__file__).parent
#: What a service on a local cluster passes.
POINTS = tuple(point for point in ALL_POINTS if point not in (*KUBERNETES, *CACHES))
TERMINAL = ("SUCCEEDED", "FAILED", "CANCELLED")
#: Users that work at a time.
USERS = 3
#: How long a failpoint may be waited for before the service is killed from outside, and the point is tried again later.
PATIENCE_S = 5.0
#: How long a service may take to lead on a busy machine: before it does, no failpoint of its work can be missed.
LEADS_S = 90.0
#: Nothing has moved for so long, and something should have: what has not ended is lost.
STILL_S = 60.0
#: A process that outlives the end of its attempt for so long is leaked: runners tidy up after they have told the end.
LEFT_S = 60.0
#: The same in a service with a seeded fault: it need not be told from a slow machine.
LEFT_BY_MUTANT_S = 5.0
#: Points that only the start of a service, or something users rarely do, passes: they die at the first passage.
RARE = ("recover.", "submit.", "release.", "transfer.")


class Nursery:
    """Where services are forked from, see `nursery.py`.

    Args:
        script: Another one like it.
    """

    def __init__(self, script: Path = HERE / "nursery.py") -> None:
        env = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])}
        env.pop("FLOWSCHED_FAILPOINTS", None)
        self._process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            text=True,
            cwd=HERE.parents[1],
        )

    def fork(self, argv: Sequence[str], env: dict[str, str], log: Path, mutant: str, port: int = 0) -> int:
        """Start a service; its pid.

        Args:
            port: One of `listen`, which the service takes over; 0 = it opens its own.
        """
        order = {"argv": list(argv), "env": env, "log": str(log), "mutant": mutant, "port": port}
        return int(self._ask(order)["pid"])

    def listen(self) -> int:
        """Listen on a free port for the services to come, until `unlisten`; the port."""
        return int(self._ask({"listen": True})["port"])

    def unlisten(self, port: int) -> None:
        """Give up a port of `listen`."""
        self._ask({"close": port})

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


class ServiceProcess:
    """One life of the service."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._fd = -1
        with contextlib.suppress(ProcessLookupError):
            self._fd = os.pidfd_open(pid)

    def dead(self) -> bool:
        return self._fd < 0 or bool(select.select([self._fd], [], [], 0)[0])

    async def death(self, within_s: float) -> bool:
        """Wait for its end; False if it still lives."""
        end = time.monotonic() + within_s
        while not self.dead():
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.01)
        return True

    async def kill(self, number: int = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        assert await self.death(90), f"process {self.pid} does not die by signal {number}"

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass
class User:
    """Somebody with one workflow."""

    key: str
    work: Workload
    id: str | None = None
    cancelled_ms: int | None = None  #: when the cancel was answered with 2xx
    ended: WorkflowView | None = None
    starts_at_end: dict[str, str] = field(default_factory=dict)


@dataclass
class Report:
    """What happened, and what was broken."""

    kills: Counter[str] = field(default_factory=Counter)
    missed: Counter[str] = field(default_factory=Counter)  #: points that were not passed in time
    workflows: int = 0
    tasks: int = 0
    attempts: int = 0
    starts: int = 0
    adopted: int = 0  #: attempts open at a kill
    moved: int = 0  #: attempts that were taken away for others
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  #: other promises

    @property
    def faults(self) -> list[str]:
        return self.lost + self.doubled + self.leaked + self.broken

    def lines(self, title: str) -> list[str]:
        points = ", ".join(f"{name} {count}" for name, count in sorted(self.kills.items()))
        return [
            f"{title}: {self.kills.total()} kills -9, {self.workflows} workflows, {self.tasks} tasks, {self.attempts} "
            f"attempts, {self.starts} starts, {self.moved} made way for others, {self.adopted} open at a kill: "
            f"{len(self.lost)} lost, "
            f"{len(self.doubled)} doubled, {len(self.leaked)} leaked, {len(self.broken)} other broken promises",
            f"  kills by point: {points}",
            *[f"  {fault}" for fault in self.faults],
        ]


class Campaign:
    """Users, a service that dies, and the audit.

    Args:
        folder: For everything.
        database: A PostgreSQL URL; None = SQLite in the root.
        kills: How often.
        seed: Of moments and workloads. (The interleaving of processes is up to the system: a seed repeats a plan, not a run.)
        mutant: A seeded fault for the service, see `mutants`.
    """

    def __init__(
        self,
        folder: Path,
        nursery: Nursery,
        *,
        database: str | None = None,
        kills: int,
        seed: int = 1,
        mutant: str = "",
        still_s: float = STILL_S,
    ) -> None:
        self.root, self.marks, self.log = folder / "root", folder / "marks", folder / "service.log"
        self.marks.mkdir(parents=True)
        outside = folder / "outside.txt"
        outside.write_text("outside")
        self.random = random.Random(seed)
        self.mix = Mix(self.marks, outside, seed)
        self.report = Report()
        self.users: list[User] = []
        self._lasting: User | None = (
            None  #: the one with the task that runs from before the first kill to the end
        )
        self.more: tuple[str, ...] = ()  #: further words on the service's command line
        self.service: ServiceProcess | None = None
        self._nursery, self._database, self._kills, self._mutant = nursery, database, kills, mutant
        self._still_s = still_s
        self._left_s = LEFT_BY_MUTANT_S if mutant else LEFT_S
        self._tasks: dict[asyncio.Task[None], User] = {}
        self._moved = time.monotonic()
        self.port = free_ports(1)[0]
        self.client = Client(f"http://127.0.0.1:{self.port}", timeout=10)

    # ------------------------------------------------------------------------------------------------ the whole

    async def run(self) -> Report:
        """Kill, start, kill …; then let everything end, and audit."""
        try:
            await self.begin()
            for point in self.plan():
                await self.cycle(point)
                if self._mutant and self.report.faults:
                    return self.report  # caught
                if self._mutant and self.report.missed.total() >= 2:
                    break  # it hardly lives: look what becomes of the work
            self.start()
            await (
                self.ready()
            )  # a start takes long on a busy machine: what stands still is judged from then on
            await self.finish()
            if not (self.report.faults and self._mutant):
                await self.ready()
                await self.audit()
        finally:
            await self.end()
        return self.report

    async def begin(self) -> None:
        """See to it that every later life has a running task to adopt, however long its start takes. Then die once."""
        self._lasting = self.add(self.mix.lasting())
        self.start()
        assert self.service is not None
        while not any(self.marks.glob("*.starts")):
            assert not self.service.dead(), self.tail()
            await asyncio.sleep(0.02)
        await self.service.kill()
        self.inspect()

    def plan(self) -> Iterator[str]:
        """Each failpoint as often as any other, in random order, and kills at random moments (""), until all were passed."""
        todo, late = [], 0
        while self.report.kills.total() < self._kills or (self.uncovered() and late < 2 * len(POINTS)):
            if not todo:
                todo = [*POINTS, *[""] * (3 if not self.report.kills else len(POINTS) // 2)]
                self.random.shuffle(todo)
            if self.report.kills.total() >= self._kills:
                todo, late = self.uncovered(), late + 1
            yield todo.pop()

    def uncovered(self) -> list[str]:
        """Points at which the service has not died yet."""
        return [point for point in POINTS if not self.report.kills[point]]

    async def cycle(self, point: str) -> None:
        """One life of the service: it dies at the point, or at a random moment."""
        self.admit()
        armed = ""
        if point:
            passage = 1 if point.startswith(RARE) else self.random.choice([1, 1, 2, 3, 5])
            armed = f"{point}=kill@{passage}"
            if point.startswith("submit."):
                self.add(self.mix.next())
            if point.startswith("transfer."):
                self.add(self.mix.next("fan"))
            if point.startswith("release."):
                self.add(self.mix.next("cancelled"))
        self.start(armed)
        assert self.service is not None
        if point:
            died = await self.service.death(PATIENCE_S) or (
                not await self.leads() and await self._dies_while_it_starts(self.service)
            )
        else:
            if self.random.random() < 0.5:  # the others fall into its start, or soon after it
                await self._leading(self.service)
            died = await self.service.death(self.random.uniform(0.0, 1.0))
        if not died:
            if point:
                self.report.missed[point] += 1
            await self.service.kill()
        self.report.kills[point if point and died else "random moment"] += 1
        if not point and died:
            self.report.broken.append(f"the service ended by itself: {self.tail()}")
        self.inspect()

    async def leads(self) -> bool:
        """Whether the service has come up."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(f"http://127.0.0.1:{self.port}/readyz") as answer:
                    return answer.status == 200
        return False

    async def _dies_while_it_starts(self, service: ServiceProcess) -> bool:
        """A start takes longer where others use the machine: wait for its end, or `PATIENCE_S` from when it leads."""
        await self._leading(service)
        return await service.death(PATIENCE_S)

    async def _leading(self, service: ServiceProcess) -> None:
        """Wait until the service has come up, or died; at most `LEADS_S`."""
        end = time.monotonic() + LEADS_S
        while time.monotonic() < end and not await service.death(0.1) and not await self.leads():
            pass

    def admit(self) -> None:
        """Keep users at work."""
        while sum(user is not self._lasting for user in self._tasks.values()) < USERS:
            self.add(self.mix.next())

    def add(self, work: Workload) -> User:
        user = User(f"key-{len(self.users)}", work)
        self.users.append(user)
        task = asyncio.create_task(self._use(user))
        self._tasks[task] = user
        task.add_done_callback(self._left)
        return user

    def _left(self, task: asyncio.Task[None]) -> None:
        user = self._tasks.pop(task)
        if not task.cancelled() and task.exception() is not None:
            self.report.broken.append(f"{user.key} ({user.work.kind}, {user.id}): {task.exception()!r}")

    def start(self, failpoints: str = "") -> None:
        """Start the service (again)."""
        argv = ["serve", "--no-supervise", "--no-token", "--port", str(self.port), "--root", str(self.root)]
        argv += ["--nodes", "3", "--cpu", "2", "--memory", "4Gi", "--log-level", "warning"]
        argv += self.more
        if self._database is not None:
            argv += ["--db", self._database]
        env = {"FLOWSCHED_FAILPOINTS": failpoints}
        if self.service is not None:
            self.service.close()
        self.service = ServiceProcess(self._nursery.fork(argv, env, self.log, self._mutant))

    async def finish(self) -> None:
        """Let all users come to their end, at last the one whose task has run all the time; what stands still is lost."""
        self._moved, seen = time.monotonic(), ""
        while self._tasks:
            if list(self._tasks.values()) == [self._lasting]:
                self.mix.let_go()
            marks = ",".join(sorted(f"{e.name}{e.stat().st_size}" for e in os.scandir(self.marks)))
            ended = sum(user.ended is not None for user in self.users)
            if (now := f"{marks} {ended}") != seen:
                seen, self._moved = now, time.monotonic()
            if time.monotonic() - self._moved > self._still_s:
                for task, user in list(self._tasks.items()):
                    task.cancel()
                    self.report.lost.append(f"{user.key} ({user.work.kind}, {user.id}) does not end")
                return
            await asyncio.sleep(0.05)

    async def ready(self, within_s: float = 120.0) -> None:
        """Wait until the service leads."""
        end = time.monotonic() + within_s
        while True:
            try:
                await self.client.nodes()
                return
            except FlowschedError:
                assert time.monotonic() < end, self.tail()

    async def end(self) -> None:
        """Leave nothing behind."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.close()
        if self.service is not None:
            await self.service.kill()
            self.service.close()
        for pid in processes_under(self.root):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def tail(self) -> str:
        """The end of the service's log, for a failing test."""
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""

    # ------------------------------------------------------------------------------------------------ users

    async def _use(self, user: User) -> None:
        """Submit until it is answered, perhaps cancel, and look until it has ended."""
        while user.id is None:
            with contextlib.suppress(FlowschedError):
                user.id = (await self.client.submit(user.work.document, idempotency_key=user.key)).id
        if user.work.cancel:
            await asyncio.sleep(self.random.uniform(0.0, 1.0))
            await self._cancel(user, user.id)
        while user.ended is None:
            try:
                view = await self.client.get(user.id)
            except NotFound:
                self.report.lost.append(
                    f"{user.key} ({user.work.kind}): {user.id} was accepted and is not there"
                )
                return
            except FlowschedError:
                continue
            if view.state in TERMINAL:
                user.starts_at_end = self.starts_of(user.id)
                user.ended = view
            await asyncio.sleep(0.1)

    async def _cancel(self, user: User, ident: str) -> None:
        while True:
            try:
                await self.client.cancel(ident)
            except Conflict:
                return
            except NotFound:
                return  # the look that follows reports it
            except FlowschedError:
                continue
            user.cancelled_ms = time.time_ns() // 1_000_000
            return

    def starts_of(self, ident: str) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.marks.glob(f"{ident}.*.starts")}

    # ------------------------------------------------------------------------------------------------ the audit

    def inspect(self) -> None:
        """The service is dead: what it has asked of the cluster must stand in SQL (P3: intent first), and no more.

        A workflow that no user knows belongs to a submission that was not answered; a second one of a key belongs to none.
        """
        if not (self.root / "nodes").is_dir():
            return
        self.report.doubled += [
            f"two at once: {path.name}" for path in self.marks.glob("*.DOUBLE") if self._mutant
        ]
        folders = {folder.name for folder in self.root.glob("nodes/*/attempts/*")}
        rows = self.query("SELECT name, ended_ms FROM attempts")
        self.report.adopted += sum(ended is None for _, ended in rows)
        for name in sorted(folders - {name for name, _ in rows}):
            self.report.broken.append(f"{name} was launched though nothing says so in SQL")
        known = {user.id for user in self.users}
        extra = [ident for (ident,) in self.query("SELECT id FROM workflows") if ident not in known]
        if len(extra) > (unanswered := sum(user.id is None for user in self.users)):
            self.report.doubled.append(f"{extra} for {unanswered} submissions that were not answered")

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Ask the database while the service is dead. SQLite: a copy, so that its WAL is left to the next start."""
        if self._database is not None:
            import psycopg

            url = self._database.replace("postgresql+psycopg://", "postgresql://")
            with psycopg.connect(url) as connection:
                return connection.execute(statement).fetchall()  # type: ignore[call-overload,no-any-return]
        with tempfile.TemporaryDirectory() as copy:
            for path in self.root.glob("flowsched.db*"):
                shutil.copy(path, copy)
            file = Path(copy, "flowsched.db")
            if not file.exists():
                return []
            with contextlib.closing(sqlite3.connect(file)) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'attempts'").fetchone():
                    return []
                return connection.execute(statement).fetchall()

    async def audit(self) -> None:
        """Everything has ended: count."""
        report = self.report
        report.workflows = len(self.users)
        for path in sorted(self.marks.glob("*.DOUBLE")):
            report.doubled.append(f"two at once: {path.name} {path.read_text().split()}")
        known = {view.id async for view in self.client.list()}
        for extra in sorted(known - {user.id for user in self.users}):
            report.doubled.append(
                f"{extra} was never answered to anybody: a repeated submission made a second workflow"
            )
        for user in self.users:
            await self._audit_user(user)
        for node in await self.client.nodes():
            if node.used or node.running:
                report.leaked.append(f"{node.name} still holds {node.used} for {node.running} pods")
        end = time.monotonic() + self._left_s
        while (left := processes_under(self.root)) and time.monotonic() < end:
            await asyncio.sleep(0.05)  # runners tidy up after they have told the end
        report.leaked += [f"process {pid} still runs: {command}" for pid, command in left.items()]

    async def _audit_user(self, user: User) -> None:
        report, ident = self.report, user.id
        if ident is None or user.ended is None:
            return  # told before
        who = f"{user.key} ({user.work.kind}, {ident})"
        view = await self.client.get(ident)
        expected = user.work.expected
        if user.work.cancel and user.cancelled_ms is None:
            expected = "SUCCEEDED"
        if view.state != expected:
            report.lost.append(f"{who} ended as {view.state} ({view.reason}), not {expected}")
        if (view.state, view.ended_at) != (user.ended.state, user.ended.ended_at):
            report.broken.append(f"{who} had ended as {user.ended.state} and is {view.state} now")
        kinds = [event.kind async for event in self.client.events(ident)]
        ends = [kind for kind in kinds if kind in _ENDS]
        report.moved += kinds.count("task.evicted")
        if ends != [f"workflow.{view.state.lower()}"]:
            report.broken.append(f"{who} ended {len(ends)} times: {ends}")
        if (starts := self.starts_of(ident)) != user.starts_at_end:
            report.broken.append(f"{who}: tasks started after its end: {starts} before {user.starts_at_end}")
        found: dict[str, dict[int, str | None]] = defaultdict(dict)
        async for row in self.client.tasks(ident):
            task = await self.client.task(ident, row.stage, row.index)
            report.tasks += 1
            report.attempts += len(task.attempts)
            self._audit_task(user, who, task)
            for output in task.outputs:
                found[task.stage][task.shard] = output.value
        for stage, contents in user.work.outputs.items():
            if view.state == "SUCCEEDED" and [found[stage].get(i) for i in range(len(contents))] != contents:
                report.broken.append(f"{who}: outputs of {stage} are {dict(found[stage])}, not {contents}")

    def _audit_task(self, user: User, who: str, task: TaskView) -> None:
        report, where = self.report, f"{who} {task.stage}[{task.index}]"
        gang = task.role if user.work.kind == "gang" and task.stage == "train" else ""
        number = "" if not gang else str(task.index % 3 - (1 if gang == "worker" else 0))
        path = self.marks / f"{user.id}.{task.stage}.{task.shard}.{gang}{number}.starts"
        lines = path.read_text().splitlines() if path.exists() else []
        report.starts += len(lines)
        tries = Counter(int(line.split()[0]) for line in lines)
        report.doubled += [
            f"{where}: attempt {number} started {n} times" for number, n in tries.items() if n > 1
        ]
        known = {each.attempt: each for each in task.attempts}
        report.broken += [
            f"{where}: attempt {number} ran and is not known" for number in tries if number not in known
        ]
        report.doubled += [
            f"{where}: attempt {a.attempt} was given up while it ran: nothing but the service is killed here"
            for a in task.attempts
            if a.reason == "RunnerLost"
        ]
        if len(known) < len(task.attempts):
            report.doubled.append(f"{where}: an attempt stands there twice")
        good = [each.attempt for each in task.attempts if each.exit_code == 0 and not each.reason]
        if task.state == "SUCCEEDED" and gang != "ps":
            if not good or (len(good) > 1 and not gang):
                report.doubled.append(f"{where}: succeeded by attempts {good}")
            if good and good[-1] not in tries:
                report.broken.append(f"{where}: attempt {good[-1]} succeeded and never ran")
        report.leaked += [
            f"{where}: attempt {a.attempt} never ended" for a in task.attempts if a.ended_at is None
        ]
        if user.cancelled_ms is not None:
            late = [a for a in task.attempts if a.bound_at.timestamp() * 1000 > user.cancelled_ms + 0.5]
            report.broken += [f"{where}: attempt {a.attempt} was launched after the cancel" for a in late]


_ENDS = {f"workflow.{state.lower()}" for state in TERMINAL}


def processes_under(root: Path) -> dict[int, str]:
    """Live processes of attempts below a root, runners included (found by environment or command line)."""
    mark, found = os.fsencode(root) + b"/nodes/", {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                words = Path("/proc", entry, "cmdline").read_bytes()
                if mark in words or mark in Path("/proc", entry, "environ").read_bytes():
                    found[int(entry)] = words.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


@contextlib.contextmanager
def impatient_clients() -> Iterator[None]:
    """Let the SDK repeat quickly: a service that is back in a second need not be waited for longer."""
    before = session.LONGEST_WAIT_S
    session.LONGEST_WAIT_S = 0.2  # type: ignore[misc]
    try:
        yield
    finally:
        session.LONGEST_WAIT_S = before  # type: ignore[misc]
