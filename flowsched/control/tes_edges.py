"""Who reads what whom wrote: edges between the TES tasks of one run, found by the names of their files."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

import msgspec

from flowsched.store.tes import TesTasks
from flowsched.workflow.formats.tes import Task
from flowsched.workflow.formats.tes_runs import files_of
from flowsched.workflow.spec import Call

#: Runs remembered, and files of each: beyond that, edges are not found, and nothing else happens.
_RUNS: Final = 64
_FILES: Final = 100_000
_PAGE: Final = 2_000
_MOST_AFTER: Final = 1_000


@dataclass(slots=True)
class _Run:
    writers: dict[str, str] = field(default_factory=dict)  #: file -> node
    seq: int = 0  #: newest task that was read from the database


class Edges:
    """The last few runs. With `refresh`, other processes accept tasks too: what is not known is looked for."""

    def __init__(self, reads: TesTasks, *, refresh: bool = False) -> None:
        self._reads = reads
        self._refresh = refresh
        self._runs: OrderedDict[str, _Run] = OrderedDict()

    async def after(self, call: Call, task: Task) -> tuple[str, ...]:
        """The nodes whose files a task reads, in the order of its inputs; it is remembered for those after it."""
        reads, writes = files_of(task)
        if not reads and not writes:
            return ()
        run = await self._run(call.run)
        if self._refresh and any(name not in run.writers for name in reads):
            await self._load(call.run, run)
        nodes = {run.writers[name]: None for name in reads if name in run.writers}
        if len(run.writers) < _FILES:
            run.writers.update(dict.fromkeys(writes, call.node))
        return tuple(node for node in nodes if node != call.node)[:_MOST_AFTER]

    async def _run(self, name: str) -> _Run:
        run = self._runs.get(name)
        if run is None:
            run = _Run()
            await self._load(name, run)
            self._runs[name] = run
        self._runs.move_to_end(name)
        if len(self._runs) > _RUNS:
            self._runs.popitem(last=False)
        return run

    async def _load(self, name: str, run: _Run) -> None:
        while len(run.writers) < _FILES:
            found = await self._reads.siblings(name, run.seq, _PAGE)
            for seq, node, body in found:
                run.seq = seq
                writes = files_of(msgspec.json.decode(body, type=Task))[1]
                run.writers.update(dict.fromkeys(writes, node))
            if len(found) < _PAGE:
                return
