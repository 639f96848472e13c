"""Reads of the cache of results: shards with the same cache key, the parts of a shard's last key, and results of look-ups."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from sqlalchemy import Connection, and_, select

from flowsched.engine.delta import CacheKeyWrite
from flowsched.store import tables
from flowsched.store.bulk import insert, tidy
from flowsched.store.database import IDS, Database
from flowsched.workflow.run.outcomes import SPOILED
from flowsched.workflow.run.states import TaskState

_k, _t, _o, _s = tables.cache_keys.c, tables.tasks.c, tables.outputs.c, tables.stages.c
_a = tables.attempts.c
#: Tasks with one key that are looked at, the newest first.
_CANDIDATES: Final = 5
#: Keys in one query.
_PART: Final = 200


class Same(NamedTuple):
    """A shard with a wanted key whose tasks have all ended well."""

    key: str
    workflow: str
    stage: str
    shard: int
    source: str  #: the workflow that wrote the outputs; empty = itself
    outputs: tuple[tuple[str, str, int, str | None], ...]  #: (name, uri, bytes, value)
    images: tuple[tuple[str, str], ...]  #: (name, digest) that it ran in, as far as its executor reported


class Before(NamedTuple):
    """The parts of a shard's key at its last look-up."""

    workflow: str
    stage: str
    shard: int
    key: str
    parts: str


class Found(NamedTuple):
    """The result of a look-up: see `CacheKeyWrite`."""

    stage: int
    shard: int
    source: str
    why: str


class CacheKeys:
    """Reads and writes of the keys."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def same(
        self, keys: Collection[str], members: int, besides: str, first: str = ""
    ) -> dict[str, list[Same]]:
        """Shards with these keys that have succeeded: those that ran, then those that took a result, the newest first.

        Args:
            keys: The keys to look up.
            members: Tasks of a shard.
            besides: A workflow whose own shards are left out.
            first: The workflow that a run resumes. Its shards come first: the run then finds also what read their outputs.
        """
        found: dict[str, list[Same]] = {}
        wanted = sorted(set(keys))

        def work(connection: Connection) -> None:
            for start in range(0, len(wanted), _PART):
                query = (
                    select(_k.key, _k.workflow_id, _k.stage, _k.shard, _k.source, _s.name)
                    .join(tables.stages, and_(_s.workflow_id == _k.workflow_id, _s.stage == _k.stage))
                    .where(_k.key.in_(wanted[start : start + _PART]), _k.workflow_id != besides)
                    .order_by(
                        _k.workflow_id != first, _k.source != "", _k.at_ms.desc(), _k.workflow_id.desc()
                    )
                )
                candidates: dict[str, list[tuple[str, int, int, str, str]]] = {}
                for row in connection.execute(query):
                    of_key = candidates.setdefault(row.key, [])
                    if len(of_key) < _CANDIDATES:
                        of_key.append((row.workflow_id, row.stage, row.shard, row.source, row.name))
                groups: dict[tuple[str, int], list[int]] = {}
                for several in candidates.values():
                    for workflow, stage, shard, _, _ in several:
                        groups.setdefault((workflow, stage), []).append(shard)
                ended = {
                    (*group, shard): result
                    for group, shards in groups.items()
                    for shard, result in (_results(connection, *group, shards, members)).items()
                }
                for key, several in candidates.items():
                    found[key] = [
                        Same(key, workflow, name, shard, source, *ended[workflow, stage, shard])
                        for workflow, stage, shard, source, name in several
                        if (workflow, stage, shard) in ended
                    ]

        await self._database.read(work)
        return found

    async def before(self, places: Collection[str], besides: str, first: str = "") -> dict[str, Before]:
        """The newest row of each place, of other runs than one; that of a run which comes first, where it has one."""
        query = (
            select(_k.place, _k.workflow_id, _s.name, _k.shard, _k.key, _k.parts)
            .join(tables.stages, and_(_s.workflow_id == _k.workflow_id, _s.stage == _k.stage))
            .where(_k.place.in_(IDS), _k.workflow_id != besides)
            .order_by(_k.workflow_id == first, _k.at_ms)
        )
        return {  # of several rows of a place, the last
            row.place: Before(row.workflow_id, row.name, row.shard, row.key, row.parts)
            for row in await self._database.rows_of(query, sorted(set(places)))
        }

    async def found(self, workflow: str) -> list[Found]:
        """The results of a workflow's look-ups, in the order of its stages and shards."""
        query = select(_k.stage, _k.shard, _k.source, _k.why).where(_k.workflow_id == workflow)
        return [Found._make(row) for row in await self._database.rows(query.order_by(_k.stage, _k.shard))]

    async def ran(self, workflow: str) -> set[tuple[int, int]]:
        """Stage and index of the tasks of a workflow of which an attempt has started."""
        query = select(_a.stage, _a["index"]).where(_a.workflow_id == workflow, _a.started_ms.is_not(None))
        return {tuple(row) for row in await self._database.rows(query)}

    async def add(self, rows: Sequence[CacheKeyWrite]) -> None:
        """Keys of a workflow that ended without them; those that have one keep it."""
        columns = tables.cache_keys.columns.keys()
        statement = insert(self._database.kind, tables.cache_keys, columns, "ON CONFLICT DO NOTHING")
        await self._database.write(lambda connection: statement.run(connection, tidy(list(rows), 5, 7)))


def _results(
    connection: Connection, workflow: str, stage: int, shards: Sequence[int], members: int
) -> dict[int, tuple[tuple[tuple[str, str, int, str | None], ...], tuple[tuple[str, str], ...]]]:
    """Outputs and images of those of some shards of which every task has succeeded with exit code 0, or was not needed.

    One of which an input was written to while it ran does not count.
    """
    low, high = min(shards) * members, (max(shards) + 1) * members
    of_stage = and_(_t.workflow_id == workflow, _t.stage == stage, _t["index"] >= low, _t["index"] < high)
    states: dict[int, list[bool]] = {}
    good = (int(TaskState.SUCCEEDED), int(TaskState.SKIPPED))
    for index, state, code, reason in connection.execute(
        select(_t["index"], _t.state, _t.exit_code, _t.reason).where(of_stage)
    ):
        well = state in good and (code or 0) == 0 and reason != SPOILED
        states.setdefault(index // members, []).append(well)
    outputs: dict[int, list[tuple[str, str, int, str | None]]] = {}
    query = select(_o["index"], _o.name, _o.uri, _o.size_bytes, _o.value).join(
        tables.tasks,
        and_(
            _t.workflow_id == _o.workflow_id,
            _t.stage == _o.stage,
            _t["index"] == _o["index"],
            _t.attempt == _o.attempt,
        ),
    )
    for index, *output in connection.execute(query.where(of_stage).order_by(_o["index"], _o.name)):
        outputs.setdefault(index // members, []).append(tuple(output))
    images: dict[int, dict[tuple[str, str], None]] = {}
    same_attempt = and_(
        _t.workflow_id == _a.workflow_id,
        _t.stage == _a.stage,
        _t["index"] == _a["index"],
        _t.attempt == _a.attempt,
    )
    reports = select(_a["index"], _a.report).join(tables.tasks, same_attempt).where(of_stage, _a.report != "")
    for index, report in connection.execute(reports):
        for used in json.loads(report).get("images") or ():
            if used.get("digest"):
                images.setdefault(index // members, {})[used["name"], used["digest"]] = None
    return {
        shard: (tuple(outputs.get(shard, ())), tuple(images.get(shard, ())))
        for shard in set(shards)
        if states.get(shard) and all(states[shard])
    }
