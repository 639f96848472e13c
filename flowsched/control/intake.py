"""Intake: what users durably asked for reaches the leader, wherever it was accepted.

Any process may accept submissions and commands; only the leader reads them, in the order of their commits. A document that this
process has just decoded is not decoded again.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import structlog

from flowsched.control.dispatch import Dispatcher
from flowsched.control.recover import load_runs, make_run
from flowsched.engine.events import Accepted, Command, EngineEvent, Revived
from flowsched.errors import FlowschedError, NotFound
from flowsched.store.database import Database
from flowsched.store.rows import CommandRow
from flowsched.store.workflows import Workflows
from flowsched.workflow.decode import decode_workflow
from flowsched.workflow.spec import WorkflowSpec

log = structlog.get_logger(__name__)

#: Look for what other processes accepted this often; what this one accepted wakes it at once.
POLL_S: Final = 1.0
_CACHED: Final = 256
#: Bigger documents are decoded in a thread, so that the loop does not stall.
THREAD_BYTES: Final = 256 << 10


class Documents:
    """Decoded documents, the last few kept."""

    def __init__(self, reads: Workflows) -> None:
        self._reads = reads
        self._kept: OrderedDict[str, WorkflowSpec] = OrderedDict()

    def keep(self, workflow: str, spec: WorkflowSpec) -> None:
        """Remember one that was just decoded."""
        self._kept[workflow] = spec
        self._kept.move_to_end(workflow)
        while len(self._kept) > _CACHED:
            self._kept.popitem(last=False)

    async def spec(self, workflow: str) -> WorkflowSpec:
        """The checked document of an accepted workflow.

        Raises:
            NotFound: There is no such workflow.
        """
        found = self._kept.get(workflow)
        if found is None:
            found = await decode(await self._reads.spec(workflow))
            self.keep(workflow, found)
        return found


async def decode(raw: bytes) -> WorkflowSpec:
    """`decode_workflow`, in a thread if it may take long."""
    if len(raw) > THREAD_BYTES:
        return await asyncio.to_thread(decode_workflow, raw)
    return decode_workflow(raw)


class Intake:
    """The loop that tells the dispatcher what was accepted."""

    def __init__(
        self,
        database: Database,
        documents: Documents,
        dispatcher: Dispatcher,
        *,
        last_seq: int,
        clock: Callable[[], int],
    ) -> None:
        self._database = database
        self._reads = Workflows(database)
        self._documents = documents
        self._dispatcher = dispatcher
        self._seq = last_seq
        self._clock = clock
        self._told: set[int] = set()
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Something was accepted by this process."""
        self._wake.set()

    async def run(self) -> None:
        """Look for submissions and commands for ever."""
        while True:
            self._wake.clear()
            try:
                await self._look()
            except FlowschedError as error:
                log.warning("submissions cannot be read now, trying again", error=str(error))
            try:
                async with asyncio.timeout(POLL_S):  # wait_for of Python 3.11 may lose a cancel
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def _look(self) -> None:
        events: list[EngineEvent] = []
        for row in await self._reads.after(self._seq):
            self._seq = row.seq
            spec = await self._documents.spec(row.id)
            events.append(Accepted(make_run(self._dispatcher.state, row.id, spec, row.seq)))
        commands = await self._reads.commands()
        self._told &= {command.id for command in commands}
        for command in commands:
            if command.id not in self._told:
                self._told.add(command.id)
                events.append(await self._command(command))
        if events:
            self._dispatcher.tell(events)

    async def _command(self, row: CommandRow) -> EngineEvent:
        """A retry of an ended workflow brings it back into memory first."""
        ended = row.workflow not in self._dispatcher.state.runs
        if row.kind != "retry" or not ended:
            return Command(row.workflow, row.kind, row.id)
        try:
            runs = await load_runs(self._database, self._documents, self._dispatcher.state, [row.workflow])
        except NotFound:
            return Command(row.workflow, row.kind, row.id)
        return Revived(runs[0].run, row.id)
