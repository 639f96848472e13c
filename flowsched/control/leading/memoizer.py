"""The memoizer: looks ready shards up in the cache of results, and tells the engine what it found.

The engine offers a shard of a memoized stage only after the answer. Answers are never wrong because they are late: a shard that was
cancelled meanwhile, or that waits for other inputs, ignores them.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from flowsched.control.intake import Documents
from flowsched.control.leading.dispatch import Dispatcher
from flowsched.control.leading.recover import load_run
from flowsched.engine.delta import CacheKeyWrite
from flowsched.engine.events import LookedUp
from flowsched.engine.memoization import (
    Hit,
    Parts,
    ShardLookup,
    Shared,
    difference,
    encode_parts,
    key_of,
    outside_of,
    parts_of,
    place_of,
    waiting_shards,
)
from flowsched.errors import FlowschedError
from flowsched.executor.protocol import Executor, Fingerprint
from flowsched.log_lines import get_logger
from flowsched.store.cache_keys import CacheKeys, Same
from flowsched.store.database import Database
from flowsched.store.workflows import Workflows
from flowsched.workflow.run.run import StageRun, WorkflowRun
from flowsched.workflow.run.transitions import READY, STARTED

log = get_logger(__name__)

#: Shards that are looked up together.
_PART: Final = 500
#: Keys are made for so long at a time.
_SLICE_S: Final = 0.02
#: Pause before a look-up is tried again while the database is away.
_PAUSE_S: Final = 1.0

Versions = Mapping[str, Fingerprint | str]


class _Asked(msgspec.Struct):
    """A shard, with what its key is made of."""

    shard: int
    parts: Parts
    unknown: str
    place: str
    key: str = ""


class _Known(msgspec.Struct):
    """What was found out once for a run."""

    tenant: str | None = None  #: None until the keys of the run that it resumes are written
    resumed: str = ""  #: the name of that run, "" for none
    preparing: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    versions: dict[str, Fingerprint | str] = msgspec.field(default_factory=dict)


class Memoizer:
    """The loop of one term.

    Args:
        database, documents, dispatcher, executor: Of the leader.
        by_content: Files of this machine are known by the digest of their content, not by size and time.
    """

    def __init__(
        self,
        database: Database,
        documents: Documents,
        dispatcher: Dispatcher,
        executor: Executor,
        *,
        by_content: bool,
    ) -> None:
        self._database = database
        self._keys = CacheKeys(database)
        self._workflows = Workflows(database)
        self._documents = documents
        self._dispatcher = dispatcher
        self._executor = executor
        self._by_content = by_content
        self._known: dict[str, _Known] = {}
        self._busy: set[tuple[str, int]] = set()  #: stages that are being answered
        self._again: set[tuple[str, int]] = set()  #: of these, the ones that were asked about again

    async def run(self) -> None:
        """Answer for ever: each stage by itself, because one may wait for a slow server or read a genome."""
        async with asyncio.TaskGroup() as group:
            while True:
                for pair in await self._dispatcher.asked():
                    if pair in self._busy:
                        self._again.add(pair)
                    else:
                        self._busy.add(pair)
                        group.create_task(self._one(*pair))
                runs = self._dispatcher.state.work.runs
                self._known = {workflow: known for workflow, known in self._known.items() if workflow in runs}

    async def _one(self, workflow: str, number: int) -> None:
        """Answer for one stage; again, if more of it became ready meanwhile, or the database was away."""
        pair = workflow, number
        try:
            await self._answer(workflow, number)
        except FlowschedError as error:
            log.debug(
                "the cache of results cannot be read now, trying again", error=str(error)
            )  # `OutageLog` warns
            self._again.add(pair)
            await asyncio.sleep(_PAUSE_S)
        self._busy.discard(pair)
        if pair in self._again:
            self._again.discard(pair)
            self._dispatcher.ask_again(workflow, number)

    async def _answer(self, workflow: str, number: int) -> None:
        """Look up what waits of one stage."""
        run = self._dispatcher.state.work.runs.get(workflow)
        if run is None:
            return
        known = self._known.setdefault(workflow, _Known())
        async with known.preparing:
            if known.tenant is None:
                tenant = (await self._workflows.get(workflow)).tenant
                if run.spec.resume:
                    known.resumed = await self._resume(run, tenant)
                known.tenant = tenant
        stage = run.stages[number]
        await self._dispatcher.rest()
        shards = waiting_shards(stage).tolist()
        for start in range(0, len(shards), _PART):
            some = shards[start : start + _PART]
            found = await self._look_up(run, stage, some, known.tenant, known)
            self._dispatcher.tell([LookedUp(workflow, number, tuple(found))])

    async def _look_up(
        self,
        run: WorkflowRun,
        stage: StageRun,
        shards: Sequence[int],
        tenant: str,
        known: _Known,
    ) -> list[ShardLookup]:
        await self._identify(run, stage, shards, known.versions)
        await self._dispatcher.rest()
        asked = await self._in_slices(_asked(run, stage, shards, known.versions, tenant))
        keys = [each.key for each in asked if each.key]
        same = await self._keys.same(keys, stage.members, run.id, first=run.spec.resume)
        names = sorted({role.image for role in stage.spec.roles if role.image})
        digests = await self._executor.image_digests(names) if same and names else {}
        missed = [each for each in asked if not same.get(each.key)]
        there = {
            each.shard: place_of(tenant, known.resumed or run.spec.name, stage, each.shard) for each in missed
        }
        places = {*there.values(), *(each.place for each in missed)}
        before = await self._keys.before(places, run.id, first=run.spec.resume)
        found = []
        for each in asked:
            candidates = same.get(each.key, [])
            moved = next((text for one in candidates if (text := _other_image(one, digests))), "")
            why = moved
            if not candidates:
                old = before.get(there[each.shard]) or before.get(each.place)
                never = (
                    f"it has not succeeded in {run.spec.resume}"
                    if run.spec.resume and not stage.spec.cache
                    else "it has not succeeded before"
                )
                why = each.unknown or (
                    never if old is None else _why(run.id, each, old.parts, _name(*old[:3]))
                )
            hits = () if moved else tuple(map(_hit, candidates))
            found.append(ShardLookup(each.shard, each.key, each.place, encode_parts(each.parts), hits, why))
        return found

    async def _in_slices(self, shards: Iterator[_Asked]) -> list[_Asked]:
        """All of them; other work gets its turn, because a shard may read 100,000 datasets."""
        asked, began = [], time.monotonic()
        for each in shards:
            asked.append(each)
            if time.monotonic() - began > _SLICE_S:
                await asyncio.sleep(0)
                await self._dispatcher.rest()
                began = time.monotonic()
        return asked

    async def _identify(
        self, run: WorkflowRun, stage: StageRun, shards: Sequence[int], versions: dict[str, Fingerprint | str]
    ) -> None:
        """Look at the inputs from outside that have not been looked at for this run: one run sees one version of each."""
        uris = dict.fromkeys(uri for shard in shards for uri in outside_of(run, stage, shard))
        fresh = [uri for uri in uris if uri not in versions]
        if fresh:
            versions |= await self._executor.fingerprints(fresh, by_content=self._by_content)

    # --- resuming --------------------------------------------------------------------------------------------

    async def _resume(self, run: WorkflowRun, tenant: str) -> str:
        """Write down the keys of the workflow that a run resumes, where it ran without looking anything up. Returns its name."""
        async with self._dispatcher.changing:  # a run that is rebuilt may name nodes that are no more
            base = await load_run(self._database, self._documents, self._dispatcher.state, run.spec.resume)
        if base is None or (await self._workflows.get(base.id)).tenant != tenant:
            log.warning(
                "the workflow to resume is not there any more", workflow=run.id, resumes=run.spec.resume
            )
            return ""
        versions: dict[str, Fingerprint | str] = {}
        for stage in base.stages:
            if stage.uniform is not None or stage.spec.container is not None:
                continue
            done = np.flatnonzero(stage.shard_done).tolist()
            for start in range(0, len(done), _PART):
                some = done[start : start + _PART]
                await self._identify(base, stage, some, versions)
                asked = await self._in_slices(_asked(base, stage, some, versions, tenant))
                await self._keys.add([_row(base, stage, each) for each in asked])
        return base.spec.name


def _asked(
    run: WorkflowRun, stage: StageRun, shards: Sequence[int], versions: Versions, tenant: str
) -> Iterator[_Asked]:
    shared: Shared = {}
    for shard in shards:
        began_ms = _began_ms(stage, shard)
        changed: dict[str, Fingerprint | str] = {}
        if began_ms is not None:  # of a run that ended: what was changed since is not what it read
            changed = {
                uri: "it has changed since this run read it"
                for uri in outside_of(run, stage, shard)
                if _is_newer(versions.get(uri), began_ms)
            }
        if changed:
            parts, unknown = parts_of(run, stage, shard, {**versions, **changed})
        else:
            parts, unknown = parts_of(run, stage, shard, versions, shared)
        asked = _Asked(shard, parts, unknown, place_of(tenant, run.spec.name, stage, shard))
        asked.key = "" if unknown else key_of(tenant, parts)
        yield asked


def _began_ms(stage: StageRun, shard: int) -> int | None:
    """When a shard that is done began to read its inputs; None for a shard that has not run."""
    if not stage.shard_done[shard]:
        return None
    times = stage.times[stage.indices_of(shard)]
    known = times[:, [READY, STARTED]]
    known = known[known >= 0]
    return int(known.min()) if len(known) else 0


def _is_newer(version: Fingerprint | str | None, than_ms: int) -> bool:
    """Whether a dataset was changed after a moment, or its store does not say when."""
    return isinstance(version, Fingerprint) and (version.modified_ms is None or version.modified_ms > than_ms)


def _row(run: WorkflowRun, stage: StageRun, asked: _Asked) -> CacheKeyWrite:
    ended = int(stage.times[stage.indices_of(asked.shard), -1].max())
    return CacheKeyWrite(
        run.id,
        stage.number,
        asked.shard,
        asked.key,
        asked.place,
        encode_parts(asked.parts),
        "",
        asked.unknown,
        max(ended, 0),
    )


def _hit(same: Same) -> Hit:
    return Hit(_name(same.workflow, same.stage, same.shard), same.source or same.workflow, same.outputs)


def _name(workflow: str, stage: str, shard: int) -> str:
    return f"{workflow}/{stage}/{shard}"


def _other_image(same: Same, now: Mapping[str, str]) -> str:
    """Why a result came from another image, in words; empty if it did not, as far as one knows."""
    for name, digest in same.images:
        if now.get(name, digest) != digest:
            where = _name(same.workflow, same.stage, same.shard)
            return f"image {name} is {now[name][:19]} now, and was {digest[:19]} in {where}"
    return ""


def _why(run: str, asked: _Asked, parts: str, name: str) -> str:
    """Why a shard runs though it ran before."""
    differs = difference(run, asked.parts, json.loads(parts))
    return f"{differs} differs from {name}" if differs else f"{name} has no result that can be taken"
