"""Intake: what users durably asked for reaches the leader, wherever it was accepted.

Any process may accept submissions and commands; only the leader reads them, in the order of their commits.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from flowsched.control.documents import Documents
from flowsched.control.leading.dispatch import LONG_COST, Dispatcher, cost_of
from flowsched.control.leading.recover import load_run
from flowsched.engine.data.inputs import sources_of
from flowsched.engine.events import Accepted, Command, EngineEvent, Revived
from flowsched.engine.recovery import make_run
from flowsched.errors import FlowschedError
from flowsched.executor.protocol import Executor
from flowsched.log_lines import get_logger
from flowsched.store.database import Database
from flowsched.store.rows import CommandRow
from flowsched.store.workflows import Workflows
from flowsched.workflow.run.run import WorkflowRun
from flowsched.workflow.spec import WorkflowSpec

log = get_logger(__name__)

#: Look for what other processes accepted this often; what this one accepted wakes it at once.
POLL_S: Final = 1.0
#: Submissions that follow each other are taken in together: after each look that found some lies a pause, so many times as long
#: as the last look and the last step took. A submission after a longer pause is taken in at once. With 4, a stream of single
#: submissions spends a fifth of its time on steps; with 1 it is half of it, with 16 the second of two submissions waits 0.1 s.
_PAUSE_PER_STEP: Final = 4.0
#: The same after a step that started nothing: what follows most likely waits, too, in a paused queue or for room. With 4, a create
#: behind 5,000 waiting tasks of unlike shapes costs a third more.
_PAUSE_PER_IDLE_STEP: Final = 16.0
#: The pause is never longer: what is submitted must not wait long for its first step.
_LONGEST_PAUSE_S: Final = 0.25
#: Files of unknown size are measured again so often, those of so many runs: a network file system may be slow for a while.
_AGAIN_S: Final = 10.0
_AGAIN: Final = 1_000


class Intake:
    """The loop that tells the dispatcher what was accepted."""

    def __init__(
        self,
        database: Database,
        documents: Documents,
        dispatcher: Dispatcher,
        executor: Executor,
        *,
        last_seq: int,
        clock: Callable[[], int],
    ) -> None:
        self._database = database
        self._reads = Workflows(database)
        self._documents = documents
        self._dispatcher = dispatcher
        self._executor = executor
        self._seq = last_seq
        self._clock = clock
        self._reported: set[int] = set()
        self._wake = asyncio.Event()
        self._urgent = asyncio.Event()
        self._looking = asyncio.Lock()
        self._commands_at = float("-inf")  #: when commands were read last
        self._found_at = float("-inf")  #: when a look found something last
        self._unmeasured: dict[str, WorkflowRun] = {}  #: runs with files of unknown size
        self._measured_at = float("-inf")  #: when those were measured last

    def wake(self, *, urgent: bool) -> None:
        """Something was accepted by this process. `urgent`: a client waits until it has been carried out."""
        self._wake.set()
        if urgent:
            self._urgent.set()

    async def run(self) -> None:
        """Look for submissions and commands for ever."""
        while True:
            began = time.monotonic()
            await self._poll()
            polled = time.monotonic()
            try:
                async with asyncio.timeout(POLL_S):  # wait_for of Python 3.11 may lose a cancel
                    await self._wake.wait()
                took_s = polled - began + self._dispatcher.took_s
                per_step = _PAUSE_PER_STEP if self._dispatcher.started else _PAUSE_PER_IDLE_STEP
                pause_s = min(_LONGEST_PAUSE_S, per_step * took_s)
                async with asyncio.timeout(self._found_at + pause_s - time.monotonic()):
                    await self._urgent.wait()
            except TimeoutError:
                continue

    async def catch_up(self) -> None:
        """Before a step that takes place anyway: it knows all that has been accepted, also what a pause holds back, and what a look
        has found of which the files are being measured.
        """
        if self._wake.is_set() or self._looking.locked():
            await self._poll()

    async def _poll(self) -> None:
        async with self._looking:
            try:
                await self._read()
            except FlowschedError as error:
                log.debug(
                    "submissions cannot be read now, trying again", error=str(error)
                )  # `OutageLog` warns

    async def _read(self) -> None:
        events: list[EngineEvent] = []
        self._wake.clear()
        for ident, seq in await self._reads.accepted_after(self._seq):
            self._seq = seq
            spec = await self._documents.spec(ident)
            events.append(Accepted(await self._run(ident, spec, seq)))
        if self._urgent.is_set() or time.monotonic() - self._commands_at >= POLL_S:
            events += await self._commands()
        if events:
            runs = [event.run for event in events if isinstance(event, (Accepted, Revived))]
            await self.measure(runs)
            self._dispatcher.report(events)
            self._found_at = time.monotonic()
        if self._unmeasured and time.monotonic() - self._measured_at >= _AGAIN_S:
            self._measured_at = time.monotonic()
            again = [self._unmeasured.pop(ident) for ident in list(islice(self._unmeasured, _AGAIN))]
            live = self._dispatcher.state.work.runs
            await self.measure(run for run in again if live.get(run.id) is run)
        self._documents.trim()

    async def measure(self, runs: Iterable[WorkflowRun]) -> None:
        """Note in runs how large the files are that their containers read where every node sees them: one question for all.

        The intake measures runs with unknown sizes again later, until they end.
        """
        read = [
            (run, each.number, paths)
            for run in runs
            for each in run.stages
            if each.number not in run.placed_bytes and (paths := sources_of(each.spec))
        ]
        if not read:
            return
        sizes = await self._executor.placed_sizes(list({path for _, _, paths in read for path in paths}))
        for run, stage, paths in read:
            run.file_bytes |= {path: sizes[path] for path in paths if path in sizes}
            if paths <= sizes.keys():
                run.placed_bytes[stage] = sum(sizes[path] for path in paths)
            else:
                self._unmeasured[run.id] = run

    async def _commands(self) -> list[EngineEvent]:
        """Commands that the dispatcher does not know yet."""
        self._urgent.clear()
        commands = await self._reads.commands()
        self._commands_at = time.monotonic()
        self._reported &= {command.id for command in commands}
        events: list[EngineEvent] = []
        for command in commands:
            if command.id not in self._reported:
                self._reported.add(command.id)
                events.append(await self._command(command))
        return events

    async def _run(self, workflow: str, spec: WorkflowSpec, seq: int) -> WorkflowRun:
        """A fresh run; in a thread if that may take long."""
        state = self._dispatcher.state
        if cost_of(spec) > LONG_COST:
            async with self._dispatcher.changing:  # ranks read what was learned
                return await asyncio.to_thread(make_run, state, workflow, spec, seq)
        await self._dispatcher.rest()
        return make_run(state, workflow, spec, seq)

    async def _command(self, row: CommandRow) -> EngineEvent:
        """A retry of an ended workflow brings it back into memory first."""
        await self._dispatcher.rest()
        ended = row.workflow not in self._dispatcher.state.work.runs
        reason = str(row.body.get("reason") or "")
        if row.kind != "retry" or not ended:
            stage, task = str(row.body.get("stage") or ""), int(row.body.get("index") or 0)
            return Command(row.workflow, row.kind, row.id, reason, stage, task)
        async with self._dispatcher.changing:  # a run that is rebuilt may name nodes that are no more
            run = await load_run(self._database, self._documents, self._dispatcher.state, row.workflow)
        if run is None:
            return Command(row.workflow, row.kind, row.id, reason)
        return Revived(run, row.id, reason)
