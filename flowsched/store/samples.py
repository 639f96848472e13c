"""What finished tasks took, as rows remember it: a new leader learns from them what the last one knew.

The newest workflows are asked, and of each stage its first tasks: what a kind of task takes does not need all of them, and a
restart shall not read a million rows for it.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from sqlalchemy import and_, select, text, union_all
from sqlalchemy.ext.asyncio import AsyncConnection

from flowsched.store import tables
from flowsched.store.database import Database, unbroken
from flowsched.workflow.states import TaskState

_w, _s, _t = tables.workflows.c, tables.stages.c, tables.tasks.c
_a = tables.attempts.c
_o = tables.outputs.c
#: So many workflows that have ended are asked, and as many that live; the newest of both.
WORKFLOWS: Final = 2_000
#: So many tasks of one stage.
TASKS: Final = 64
#: So many tasks in all: a second of reading.
MOST: Final = 20_000
_PART: Final = 100


class SampleRow(NamedTuple):
    """One task that ended well. `usage` is empty where nobody measured; `outputs`: name -> bytes."""

    workflow: str
    stage: str
    ended_ms: int
    runtime_ms: int
    input_bytes: int
    usage: dict[str, int]
    outputs: dict[str, int]


@unbroken
async def samples(database: Database) -> list[SampleRow]:
    """Tasks that ended well, in the order in which they ended."""
    found: list[SampleRow] = []
    async with database.reading() as connection:
        idents = await _newest(connection)
        for start in range(0, len(idents), _PART):
            found += await _of(connection, idents[start : start + _PART])
            if len(found) >= MOST:
                break
    found.sort(key=lambda row: row.ended_ms)
    return found[-MOST:]


async def _newest(connection: AsyncConnection) -> list[str]:
    """Workflows, the newest first: those that live, then those that ended last."""
    live = select(_w.id).where(text(f"workflows.{tables.LIVE}")).order_by(_w.seq.desc()).limit(WORKFLOWS)
    ended = select(_w.id).where(_w.ended_ms.is_not(None)).order_by(_w.ended_ms.desc()).limit(WORKFLOWS)
    both = union_all(select(live.subquery()), select(ended.subquery()))
    return list(dict.fromkeys((await connection.execute(both)).scalars()))


async def _of(connection: AsyncConnection, idents: list[str]) -> list[SampleRow]:
    """The tasks of some workflows."""
    wanted = and_(_w.id.in_(idents), _t["index"] < TASKS)
    stages = tables.workflows.join(tables.stages, _s.workflow_id == _w.id)
    tasks = stages.join(tables.tasks, and_(_t.workflow_id == _s.workflow_id, _t.stage == _s.stage))
    outputs: dict[tuple[Any, ...], dict[str, int]] = {}
    written = stages.join(tables.outputs, and_(_o.workflow_id == _s.workflow_id, _o.stage == _s.stage))
    query = select(_o.workflow_id, _o.stage, _o["index"], _o.name, _o.size_bytes).select_from(written)
    for row in await connection.execute(query.where(_w.id.in_(idents), _o["index"] < TASKS)):
        outputs.setdefault(tuple(row[:3]), {})[row.name] = row.size_bytes
    same = and_(
        _a.workflow_id == _t.workflow_id,
        _a.stage == _t.stage,
        _a["index"] == _t["index"],
        _a.attempt == _t.attempt,
    )
    query = select(
        _w.id,
        _t.stage,
        _t["index"],
        _w.name,
        _s.name,
        _t.started_ms,
        _t.ended_ms,
        _t.bytes_local,
        _t.bytes_moved,
        _a.usage,
    ).select_from(tasks.outerjoin(tables.attempts, same))
    ended = query.where(
        wanted, _t.state == int(TaskState.SUCCEEDED), _t.started_ms.is_not(None), _t.ended_ms.is_not(None)
    )
    return [
        SampleRow(
            workflow=row[3],
            stage=row[4],
            ended_ms=row.ended_ms,
            runtime_ms=max(1, row.ended_ms - row.started_ms),
            input_bytes=row.bytes_local + row.bytes_moved,
            usage=json.loads(row.usage) if row.usage else {},
            outputs=outputs.get(tuple(row[:3]), {}),
        )
        for row in await connection.execute(ended)
    ]
