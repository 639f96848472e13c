"""One black-box run from its first process to its verdict."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.blackbox import poison
from bench.blackbox.arena import Arena, now
from bench.blackbox.client import WORKFLOWS, Web
from bench.blackbox.faults import Faults, schedule
from bench.blackbox.judge import TERMINAL, Evidence, Violation, judge, save, table
from bench.blackbox.service import TOKEN, Database, Service
from bench.blackbox.users import User
from bench.blackbox.workloads import Mix

#: A task's processes may live so long after its workflow's end while the service is up to end them.
GRACE_S = 60.0
#: When nothing moves for so long after the last fault, a workflow is stuck.
STILL_S = 180.0
#: The service answers all questions about all workflows at the end within this time.
AUDIT_S = 600.0
#: The memory of poison documents has to return so long after their cancel.
RETURN_S = 120.0


#: Words in the record of an attempt that failed for want of room.
_FULL = (
    "No space left",
    "is full: ",
    "ENOSPC",
    "OutputFailed",
    "StartFailed",
    "ContainerPathsRefused",
    '"exit_code": 74',
)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one run.

    Args:
        database: `sqlite` or `postgresql`.
        minutes: Minutes of faults.
        seed: Seed of workloads and faults.
        program: The executable of flowsched.
        out: The folder for evidence.
        users: Workflows under way at a time.
        every_s: Mean seconds from one submission to the next.
        row: Send twenty poison documents in a row first.
        pace_s: Mean seconds from one fault to the next.
        faults: Only faults with one of these words in their names; all if empty.
        families: Families of workloads; all if empty.
        size_mib, inodes: Size of the service's file system.
    """

    database: str
    minutes: float
    seed: int
    program: str
    out: Path
    users: int = 40
    every_s: float = 1.5
    row: bool = True
    pace_s: float = 7.0
    faults: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    size_mib: int = 1024
    inodes: int = 400_000


class Run:
    """Everything of one run."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.evidence = Evidence()
        self.arena = Arena(settings.size_mib, settings.inodes)
        self.database = Database(settings.database, self.arena)
        self.port, self._control = _free_ports(2)
        evidence, url = self.evidence, self.database.url
        self.service = Service(self.arena, settings.program, self.port, url, evidence.deaths)
        self.web = Web(self.service.url, evidence.errors)
        self.faults = Faults(self.arena, self.service, self.database, self.web, self.tell)
        self.faults.failures = evidence.failures
        self.users: list[User] = []
        self._children: list[subprocess.Popen[bytes]] = []
        self._going: set[asyncio.Task[None]] = set()
        self._mix = Mix(self.arena.folders, settings.seed, settings.families)
        self._probes = self.arena.base / "probes"
        self._leaked: set[tuple[int, str]] = set()
        self._log = (settings.out / "run.log").open("a", encoding="utf-8")

    def tell(self, line: str) -> None:
        """Print a line, and write it to `run.log`."""
        print(line, flush=True)
        print(line, file=self._log, flush=True)

    async def run(self) -> list[Violation]:
        """Do the whole run; returns the violations."""
        settings = self.settings
        self.service.start()
        keeper = asyncio.create_task(self._keep())
        try:
            await self._ready()
            if settings.row:
                await self._row()
            self._start_probes()
            watcher = asyncio.create_task(self._watch_leaks())
            seconds = settings.minutes * 60
            faults = [
                fault
                for fault in schedule(settings.seed, seconds, settings.database, settings.pace_s)
                if not settings.faults or any(word in fault.what for word in settings.faults)
            ]
            self.tell(f"{len(faults)} faults in {seconds:.0f} s, seed {settings.seed}, {settings.database}")
            for fault in faults:
                print(
                    f"    {fault.at_s:8.2f}  {fault.what} {fault.how} for {fault.for_s:g} s",
                    file=self._log,
                    flush=True,
                )
            submitting = asyncio.create_task(self._submit(seconds))
            await self.faults.run(faults, now())
            await submitting
            await self._settle()
            try:
                async with asyncio.timeout(AUDIT_S):
                    await self._audit()
            except TimeoutError:
                self.evidence.deaths.append(
                    f"the audit did not end within {AUDIT_S:.0f} s: {self.service.tail()}"
                )
            watcher.cancel()
            self._gather_probes()
            await self._end(keeper)
        finally:
            keeper.cancel()
            for process in self._children:
                process.kill()
            await self.web.close()
        return judge(self.evidence)

    async def _keep(self) -> None:
        """Keep the service up, also after an error of the keeper."""
        while True:
            try:
                await self.service.keep()
            except Exception as error:  # noqa: BLE001 - without a service, all that follows would be blamed on it
                self.evidence.failures.append(f"keeping the service: {error!r}")

    async def _ready(self) -> None:
        for _ in range(1200):
            status, _ = await self.web.call("GET", "/readyz")
            if status == 200:
                return
            await asyncio.sleep(0.1)
        raise RuntimeError(f"the service did not become ready within 120 s: {self.service.tail()}")

    def _start_probes(self) -> None:
        python = [sys.executable, "-m", "bench.blackbox.probe"]
        control = subprocess.Popen([*python, "control", str(self._control)])
        self._children.append(control)
        for _ in range(200):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._control), 1):
                break
            control.poll()
        prober = [*python, str(self.port), str(self._control), str(self._probes)]
        self._children.append(subprocess.Popen(prober))

    # ------------------------------------------------------------------------------------------------ work

    async def _submit(self, seconds: float) -> None:
        """Keep users at work."""
        pick = random.Random(self.settings.seed + 1)
        end = now() + seconds
        while now() < end:
            if len(self._going) < self.settings.users:
                self._add()
            await asyncio.sleep(pick.expovariate(1 / self.settings.every_s))

    def _add(self) -> User:
        user = User(self.web, self._mix.next())
        self._use(user)
        return user

    def _use(self, user: User) -> None:
        self.users.append(user)
        self.evidence.stories.append(user.story)
        task = asyncio.create_task(self._live(user))
        self._going.add(task)
        task.add_done_callback(self._going.discard)

    async def _live(self, user: User) -> None:
        try:
            await user.live()
        except Exception as error:  # noqa: BLE001 - the others go on, and the run is void
            self.evidence.failures.append(f"{user.work.label} ({user.story.id}): {error!r}")
        if user.work.again is not None:
            self._use(User(self.web, user.work.again))

    async def _row(self) -> None:
        """Twenty poison documents in a row: the service answers, lists, cancels, and gives the memory back."""
        for name in poison.POISON:
            await asyncio.to_thread(poison.body, name)
        for _ in range(10):
            self._add()
        for _ in range(600):
            if not self._going:
                break
            await asyncio.sleep(0.2)
        await asyncio.sleep(5)
        before = self.service.resident_bytes()
        self._start_probes()
        for number, name in enumerate(poison.ROW):
            begun = now()
            said = await self.faults.poison(name, None)
            self.tell(
                f"{begun:10.2f}  poison {number + 1} of {len(poison.ROW)}, {name}: {said} after {now() - begun:.1f} s"
            )
        begun = now()
        status, _ = await self._command("ls")
        self.tell(f"flowsched ls: exit {status} after {now() - begun:.1f} s")
        self._expect(status == 0, "flowsched ls failed after twenty poison documents")
        for ident in self.faults.poisoned:
            begun = now()
            status, said = await self._command("cancel", ident)
            self.tell(f"flowsched cancel {ident}: exit {status} after {now() - begun:.1f} s")
            ended = "there is nothing to cancel" in said  # its tasks failed meanwhile
            self._expect(status == 0 or ended, f"flowsched cancel {ident} failed: {said}")
        await self._poison_ends(180)
        end = now() + RETURN_S
        while (after := self.service.resident_bytes()) > before * 1.2 and now() < end:
            await asyncio.sleep(1)
        self.evidence.memory.append((before, after))
        self.tell(f"memory {before >> 20} MiB before the row, {after >> 20} MiB after it")
        for process in self._children:
            process.kill()
        self._children.clear()

    def _expect(self, true: bool, text: str) -> None:
        if not true:
            self.evidence.errors.append(text)

    async def _command(self, *words: str) -> tuple[int, str]:
        """Run the command line as a user does; returns exit code and output."""
        environment = {**os.environ, "FLOWSCHED_TOKEN": TOKEN, "FLOWSCHED_SERVER": self.service.url}
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            self.settings.program, *words, env=environment, stdout=pipe, stderr=asyncio.subprocess.STDOUT
        )
        try:
            said, _ = await asyncio.wait_for(process.communicate(), 120)
        except TimeoutError:
            process.kill()
            return 124, "no end within 120 s"
        return process.returncode or 0, said[-400:].decode(errors="replace")

    async def _poison_ends(self, seconds: float) -> None:
        """Every accepted poison document must end after its cancel."""
        left = list(self.faults.poisoned)
        end = now() + seconds
        while left and now() < end:
            states = [json.loads((await self.web.insist("GET", f"{WORKFLOWS}/{ident}"))[1]) for ident in left]
            left = [
                ident
                for ident, view in zip(left, states, strict=True)
                if view.get("state") not in TERMINAL and "id" in view
            ]
            await asyncio.sleep(1)
        self.evidence.leaks += [
            f"poison {ident}: not ended {seconds:.0f} s after its cancel" for ident in left
        ]

    # ------------------------------------------------------------------------------------------------ the end

    async def _settle(self) -> None:
        """After the last fault, wait until every workflow ends or nothing moves."""
        self.tell(f"{now():10.2f}  faults are over; {len(self._going)} workflows under way")
        seen, moved = "", now()
        while self._going:
            ended = sum(user.story.ended_s is not None for user in self.users)
            mark = f"{self.arena.folders.journal.stat().st_size} {ended} {sum(len(u.story.states) for u in self.users)}"
            if mark != seen:
                seen, moved = mark, now()
            if now() - moved > STILL_S:
                break
            await asyncio.sleep(1)
        for task in list(self._going):
            task.cancel()
        results = await asyncio.gather(*self._going, return_exceptions=True)
        self.evidence.failures += [repr(each) for each in results if isinstance(each, Exception)]

    async def _audit(self) -> None:
        """Read every workflow once more."""
        self.tell(f"{now():10.2f}  audit")
        for ident in self.faults.poisoned:
            await self.web.insist("POST", f"{WORKFLOWS}/{ident}/cancel", json={}, until=now() + 60)
        await self._poison_ends(180)
        room = asyncio.Semaphore(8)

        async def one(user: User) -> None:
            async with room:
                await user.audit()

        await asyncio.gather(*(one(user) for user in self.users))
        for user in self.users:
            self._excuse(user)
        known = {user.story.id for user in self.users} | set(self.faults.poisoned)
        token = ""
        while True:
            status, body = await self.web.insist("GET", f"{WORKFLOWS}?limit=500{token}", until=now() + 60)
            if status != 200:
                break
            page = json.loads(body)
            self.evidence.strangers += [
                (each["id"], each["name"])
                for each in page["workflows"]
                if each["id"] not in known and not each["name"].startswith("poison")
            ]
            if not page.get("next_page_token"):
                break
            token = f"&page_token={page['next_page_token']}"
        await self._held()

    async def _held(self) -> None:
        """Nothing runs any more: no node may hold anything."""
        ends = [user.story.states[-1][1] if user.story.states else "" for user in self.users]
        if any(state not in TERMINAL for state in ends):
            return
        end = now() + GRACE_S
        while True:
            _, body = await self.web.insist("GET", "/api/v1/nodes", until=now() + 30)
            held = [
                f"node {n['name']}: holds {n['used']}, runs {n['running']}"
                for n in json.loads(body)
                if n["running"]
            ]
            if not held or now() > end:
                break
            await asyncio.sleep(1)
        self.evidence.leaks += held

    def _excuse(self, user: User) -> None:
        """Excuse the failure of a task that ran while the disk was full, if an attempt says so."""
        until = user.story.ended_s or now()
        if not any(begun < until and user.began_s < over for begun, over in self.faults.full):
            return
        for key, attempts in user.story.attempts.items():
            text = json.dumps(attempts)
            if any(word in text for word in _FULL):
                user.story.excuse = f"{key}: {text[-300:]}"

    async def _watch_leaks(self) -> None:
        """Note processes of workflows that ended a while ago."""
        while True:
            await asyncio.sleep(5)
            self._note_leaks(await asyncio.to_thread(self.arena.tasks))

    def _note_leaks(self, tasks: dict[int, str]) -> None:
        ends = {user.story.label: user.story.ended_s for user in self.users}
        away = sum(until - since for since, until in self.service.absences)
        for pid, key in tasks.items():
            ended_s = ends.get(key.partition(".")[0])
            late = ended_s is not None and now() > ended_s + GRACE_S
            if late and self.service.up and (pid, key) not in self._leaked:
                recent = [until for _, until in self.service.absences if until > (ended_s or 0.0)]
                if recent and now() < recent[-1] + GRACE_S:
                    continue  # the service has just come back, and may still end the process
                self._leaked.add((pid, key))
                self.evidence.leaks.append(
                    f"process {pid} of {key}: lives {now() - (ended_s or 0):.0f} s after the end of its workflow "
                    f"(the service was away for {away:.0f} s in all)"
                )

    async def _end(self, keeper: asyncio.Task[None]) -> None:
        """Stop the service; nothing but PostgreSQL may be left."""
        inodes = os.statvfs(self.arena.cluster)
        ended = len([line for line in self._journal() if line.startswith("START")])
        self.tell(f"the root has {inodes.f_files - inodes.f_ffree} inodes after {ended} task starts")
        keeper.cancel()
        if wrong := await self.service.end():
            self.evidence.deaths.append(f"at the end {wrong}: {self.service.tail()}")
        for process in self._children:
            process.kill()
            process.wait()
        self.database.close()
        end = now() + 20
        while (left := self.arena.strays(set())) and now() < end:
            await asyncio.sleep(0.5)
        self.evidence.leaks += [
            f"process {pid}: alive after the service had stopped: {words}" for pid, words in left.items()
        ]
        self.evidence.leaks += [f"control group {group}: left behind" for group in self.arena.new_groups()]
        self.evidence.absences = [(round(a, 3), round(b, 3)) for a, b in self.service.absences]
        self.evidence.journal = self._journal()
        starts = sorted(self.service.starts_s)
        if starts:
            self.tell(
                f"starts {len(starts)}, first answer after {starts[len(starts) // 2]:.1f} s (median), {starts[-1]:.1f} s (latest)"
            )
        self.tell(f"answers by status: {dict(self.web.statuses.most_common())}")

    def _journal(self) -> list[str]:
        return self.arena.folders.journal.read_text(encoding="utf-8").splitlines()

    def _gather_probes(self) -> None:
        if not self._probes.exists():
            return
        for line in self._probes.read_text(encoding="utf-8").splitlines():
            at, service_ms, status, control_ms = line.split()
            self.evidence.probes.append((float(at), float(service_ms), status, float(control_ms)))

    def keep(self, verdict: str) -> None:
        """Copy the files that a reader of the verdict needs."""
        out = self.settings.out
        save(self.evidence, out / "evidence.json")
        (out / "verdict.txt").write_text(verdict, encoding="utf-8")
        for path in (self.arena.folders.journal, self.service.log, self._probes):
            with contextlib.suppress(OSError):
                shutil.copy(path, out / path.name)

    def close(self) -> None:
        """Leave nothing."""
        with contextlib.suppress(OSError):
            self.database.close()
        self.service.kill(float("inf"))
        for pid in self.arena.strays(set()):
            with contextlib.suppress(OSError):
                os.kill(pid, 9)
        self.arena.close()
        self._log.close()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


def run(settings: Settings) -> int:
    """Do a run and print its table; returns the exit status, 1 with a violation."""
    settings.out.mkdir(parents=True, exist_ok=True)
    it = Run(settings)
    try:
        violations = asyncio.run(it.run())
        verdict = table(it.evidence, violations)
        it.tell(verdict)
        it.keep(verdict)
        it.tell(f"evidence: {settings.out}")
        return 1 if violations else 0
    except BaseException:
        it.keep("the harness broke down before its verdict")
        raise
    finally:
        it.close()
