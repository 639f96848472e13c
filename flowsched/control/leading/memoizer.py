"""The memoizer: looks at what ready shards read from outside, looks them up in the cache of results, and tells the engine.

The engine offers a shard of such a stage only after the answer. Answers are never wrong because they are late: a shard that was
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

from flowsched.background import task_group
from flowsched.control.documents import Documents
from flowsched.control.leading.dispatch import Dispatcher
from flowsched.control.leading.recover import load_run
from flowsched.engine.data.inputs import uris_outside
from flowsched.engine.data.prefetch import shards_behind
from flowsched.engine.delta import CacheKeyWrite
from flowsched.engine.events import LookedUp
from flowsched.engine.memoization import (
    Hit,
    Known,
    Parts,
    ShardLookup,
    Shared,
    difference,
    encode_parts,
    is_memoized,
    key_of,
    parts_of,
    place_of,
    waiting_shards,
)
from flowsched.errors import FlowschedError
from flowsched.executor.datasets import digest_of, of_run, parse, versioned
from flowsched.executor.protocol import Executor, Fingerprint
from flowsched.log_lines import get_logger
from flowsched.store.cache_keys import CacheKeys, Same
from flowsched.store.database import Database
from flowsched.store.workflows import Workflows
from flowsched.workflow.run.moves import READY, STARTED
from flowsched.workflow.run.run import StageRun, WorkflowRun

log = get_logger(__name__)

#: Shards that are looked up together.
_PART: Final = 500
#: Keys are made for so long at a time.
_SLICE_S: Final = 0.02
#: Pause before a look-up is tried again while the database is away.
_PAUSE_S: Final = 1.0


class _Asked(msgspec.Struct):
    """A shard, with what its key is made of."""

    shard: int
    parts: Parts
    unknown: str
    place: str
    key: str = ""


class _Known(msgspec.Struct):
    """Facts that are found out once for a run."""

    tenant: str | None = None  #: None until the keys of the run that it resumes are written
    resumed: str = ""  #: the name of that run, "" for none
    preparing: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    looks: int = 0  #: `WorkflowRun.looks` when what follows was found
    names: dict[str, str] = msgspec.field(
        default_factory=dict
    )  #: URI of an input from outside -> the dataset it is
    in_place: frozenset[str] = frozenset()  #: datasets that nodes read where they lie
    sizes: dict[str, int] = msgspec.field(default_factory=dict)  #: dataset -> its bytes
    inputs: dict[str, Known] = msgspec.field(default_factory=dict)  #: the same -> what it is known by in keys
    ahead: set[str] = msgspec.field(
        default_factory=set
    )  #: URIs that were looked at for tasks whose parents run
    #: Looks under way, by (URI, by content): stages that ask for the same share one.
    looking: dict[tuple[str, bool], asyncio.Future[dict[str, Fingerprint | str]]] = msgspec.field(
        default_factory=dict
    )


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
        async with task_group() as group:
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
        """Look at what waits of one stage, and look it up."""
        run = self._dispatcher.state.work.runs.get(workflow)
        if run is None:
            return
        known, stage = self._known.setdefault(workflow, _Known()), run.stages[number]
        memoized = is_memoized(run.spec, stage.spec)
        if memoized:
            await self._prepare(run, known)
        await self._dispatcher.rest()
        whole, part = waiting_shards(stage)
        shards, asked = [*whole.tolist(), *part.tolist()], set(whole.tolist() if memoized else ())
        for start in range(0, len(shards), _PART):
            some = shards[start : start + _PART]
            looks = run.looks
            names = await self._identify(run, stage, some, known)
            lookups = [shard for shard in some if shard in asked]
            found = await self._lookup(run, stage, lookups, known) if lookups else []
            uris = {uri for each in found for hit in each.hits for _, uri, _, _ in hit.outputs}
            lost = await self._executor.lost_copies(sorted(uris)) if uris else ()
            others = tuple(shard for shard in some if shard not in asked)
            in_place = known.in_place.intersection(names.values())
            sizes = {name: known.sizes[name] for name in names.values() if name in known.sizes}
            answer = LookedUp(workflow, number, tuple(found), others, names, in_place, sizes, looks)
            self._dispatcher.report([*lost, answer])
        await self._look_ahead(run, stage, known)

    async def _look_ahead(self, run: WorkflowRun, stage: StageRun, known: _Known) -> None:
        """Look at what shards will read whose parents run, so that copies of it can move meanwhile.

        Each shard is looked at again once it is ready: a parent may write to what its child reads.
        """
        await self._dispatcher.rest()
        behind = shards_behind(run, stage).tolist()
        for start in range(0, len(behind), _PART):
            looks, uris = run.looks, uris_outside(stage, behind[start : start + _PART])
            some = [uri for uri in uris if uri not in known.ahead]
            if not some:
                continue
            observed = await self._executor.fingerprints(some, by_content=False)
            known.ahead.update(some)
            names, sizes, in_place = dict[str, str](), dict[str, int](), set[str]()
            for uri in some:
                seen = observed[uri]
                if not isinstance(seen, str):
                    name = names[uri] = versioned(uri, seen.version)
                    sizes[name] = seen.size_bytes or 0
                    in_place |= {name} if seen.in_place else set()
            answer = LookedUp(run.id, stage.number, (), (), names, frozenset(in_place), sizes, looks)
            self._dispatcher.report([answer])

    async def _prepare(self, run: WorkflowRun, known: _Known) -> None:
        """Find out once for a run whose it is, and write down the keys of the run that it resumes."""
        async with known.preparing:
            if known.tenant is None:
                tenant = (await self._workflows.get(run.id)).tenant
                if run.spec.resume:
                    known.resumed = await self._resume(run, tenant)
                known.tenant = tenant

    async def _lookup(
        self,
        run: WorkflowRun,
        stage: StageRun,
        shards: Sequence[int],
        known: _Known,
    ) -> list[ShardLookup]:
        tenant = known.tenant or ""
        await self._dispatcher.rest()
        asked = await self._in_slices(_asked(run, stage, shards, known.inputs, tenant))
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

    def _asked_before(
        self,
        run: WorkflowRun,
        stage: StageRun,
        shards: Sequence[int],
        fingerprints: Mapping[str, Fingerprint | str],
        tenant: str,
    ) -> Iterator[_Asked]:
        """The same for a run that has ended: an input that was changed since is not what it read."""
        for shard in shards:
            began_ms = _began_ms(stage, shard)
            known = {}
            for uri in uris_outside(stage, (shard,)):
                found = fingerprints.get(uri, "it was not looked at")
                if isinstance(found, Fingerprint) and _is_newer(found, began_ms):
                    found = "it has changed since this run read it"
                known[uri] = (
                    Known(why=found)
                    if isinstance(found, str)
                    else Known(digest_of(found.version), found.content)
                )
            yield _made(run, stage, shard, tenant, *parts_of(run, stage, shard, known))

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
        self, run: WorkflowRun, stage: StageRun, shards: Sequence[int], known: _Known
    ) -> dict[str, str]:
        """The datasets that the inputs from outside are, by URI: one run sees one version of each, as long as it can be had."""
        if known.looks != run.looks:
            known.looks, known.names, known.inputs, known.looking = run.looks, {}, {}, {}
        names, inputs, looking = known.names, known.inputs, known.looking  # whatever comes meanwhile
        memoized, uris = is_memoized(run.spec, stage.spec), uris_outside(stage, shards)
        by_content = memoized and self._by_content
        wanted = [uri for uri in uris if uri not in (inputs if memoized else names)]
        fresh = [uri for uri in wanted if (uri, by_content) not in looking]
        if fresh:
            look = asyncio.ensure_future(self._executor.fingerprints(fresh, by_content=by_content))
            looking.update(((uri, by_content), look) for uri in fresh)
        looks = {uri: looking[uri, by_content] for uri in wanted}  # another stage may end one of them first
        try:
            for uri, one in looks.items():
                observed = (await one)[uri]
                now = of_run(uri, run.id) if isinstance(observed, str) else versioned(uri, observed.version)
                name = names.setdefault(uri, run.versions.get(uri, now))
                if isinstance(observed, Fingerprint) and name == now:
                    known.sizes[name] = observed.size_bytes or 0
                    if observed.in_place:
                        known.in_place |= {name}
                if memoized:
                    inputs.setdefault(uri, _known_by(name, observed))
        finally:
            for uri in fresh:
                looking.pop((uri, by_content), None)
        return {uri: names[uri] for uri in uris}

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
        observed: dict[str, Fingerprint | str] = {}
        for stage in base.stages:
            if stage.uniform is not None or stage.spec.container is not None:
                continue
            done = np.flatnonzero(stage.shard_done).tolist()
            for start in range(0, len(done), _PART):
                some = done[start : start + _PART]
                fresh = [uri for uri in uris_outside(stage, some) if uri not in observed]
                if fresh:
                    observed |= await self._executor.fingerprints(fresh, by_content=self._by_content)
                asked = await self._in_slices(self._asked_before(base, stage, some, observed, tenant))
                await self._keys.add([_row(base, stage, each) for each in asked])
        return base.spec.name


def _asked(
    run: WorkflowRun, stage: StageRun, shards: Sequence[int], known: Mapping[str, Known], tenant: str
) -> Iterator[_Asked]:
    shared: Shared = {}
    for shard in shards:
        yield _made(run, stage, shard, tenant, *parts_of(run, stage, shard, known, shared))


def _made(run: WorkflowRun, stage: StageRun, shard: int, tenant: str, parts: Parts, unknown: str) -> _Asked:
    place = place_of(tenant, run.spec.name, stage, shard)
    return _Asked(shard, parts, unknown, place, "" if unknown else key_of(tenant, parts))


def _known_by(name: str, observed: Fingerprint | str) -> Known:
    """The identity of an input in cache keys.

    Args:
        name: The dataset that the run reads.
        observed: The fingerprint that its origin has now, or why that is not known.
    """
    if isinstance(observed, str):
        return Known(why=observed)
    version = digest_of(observed.version)
    if version != parse(name).version:
        return Known(why="it has changed since this run first read it")
    return Known(version, observed.content)


def _began_ms(stage: StageRun, shard: int) -> int:
    """When a shard that is done began to read its inputs."""
    times = stage.times[stage.indices_of(shard)]
    known = times[:, [READY, STARTED]]
    known = known[known >= 0]
    return int(known.min()) if len(known) else 0


def _is_newer(version: Fingerprint, than_ms: int) -> bool:
    """Whether a dataset was changed after a moment, or its store does not say when."""
    return version.modified_ms is None or version.modified_ms > than_ms


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
