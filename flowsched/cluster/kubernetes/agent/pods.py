"""The requests of a pod's steps: its inputs laid out before its task, its outputs published after it.

Each request becomes a job that goes on although its client leaves: a step that asks again joins the job, or is told how it
ended.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from flowsched.cluster.kubernetes import orders
from flowsched.cluster.kubernetes.agent import trees
from flowsched.cluster.kubernetes.agent.events import EventLog
from flowsched.cluster.kubernetes.agent.ledger import (
    INPUTS,
    WORK,
    Ledger,
    NoVolume,
    OtherOrder,
    Page,
    Volumes,
)
from flowsched.cluster.kubernetes.agent.outputs import Publisher
from flowsched.cluster.kubernetes.agent.transfers import Transfers
from flowsched.cluster.kubernetes.agent.trees import Link
from flowsched.cluster.kubernetes.objects.names import address_below, pod_name
from flowsched.cluster.kubernetes.orders import Order, manifest, placed
from flowsched.cluster.kubernetes.step_messages import Result
from flowsched.cluster.local.runner import safe_paths
from flowsched.cluster.local.runner.outputs import Refused, find_outputs
from flowsched.cluster.local.runner.uploads import Stores, is_s3
from flowsched.cluster.node.cache import Cache, Entry
from flowsched.cluster.node.delivered import keep
from flowsched.cluster.node.environment import gang_files
from flowsched.cluster.node.identities import Identities
from flowsched.cluster.node.origins import NotFetched
from flowsched.executor.protocol import DeliveredFile, Roster
from flowsched.log_lines import get_logger
from flowsched.workflow.spec import Delivered


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset that is here: the path of its own file or folder, which is named as it was at its origin."""

    path: str

    @property
    def name(self) -> str:
        """Its file name."""
        return os.path.basename(self.path)


def lay_inputs(
    inputs: int, order: Order, datasets: Mapping[str, Dataset], inputs_path: str, link: trees.Link = os.link
) -> None:
    """Put the inputs of an order into a folder. A second time does no harm.

    Args:
        inputs: The folder.
        order: The pod's order; it says which input goes where.
        datasets: Every dataset of it, by uri.
        inputs_path: Where the task has that folder, for manifests.
        link: Makes hard links.

    Raises:
        Unsafe: A link lies where a folder should.
    """
    for stage_input in order.inputs:
        names = {uri: datasets[uri].name for uri in stage_input.uris}
        for file in placed(stage_input, names):
            *parent, name = safe_paths.parts_of(file.path)
            with safe_paths.folder(inputs, parent, make=0o755) as fd:
                trees.place(datasets[file.uri].path, fd, name, link)
        if stage_input.manifest:
            *parent, name = safe_paths.parts_of(stage_input.path)
            with safe_paths.folder(inputs, parent, make=0o755) as fd:
                os.close(safe_paths.write_file(fd, name, manifest(stage_input, names, inputs_path), 0o444))


def furnish(work: int, order: Order) -> None:
    """Make the folders that outputs are written to, `tmp`, and the files that tell of a gang, in the working folder.

    Each gets the working folder's own permissions for owner, group and others: a kubelet gives that folder to the pod's
    group (fsGroup, set-gid) or to all users.

    Raises:
        Unsafe: A link lies where a folder should.
    """
    like = os.fstat(work)
    for path in (*order.folders, "tmp"):
        fd = os.dup(work)
        try:
            for name in safe_paths.parts_of(path):
                made = safe_paths.make_folder(fd, name, stat.S_IMODE(like.st_mode))
                inner = safe_paths.open_folder(fd, name)
                os.close(fd)
                fd = inner
                if made:
                    _give(fd, like, stat.S_IMODE(like.st_mode))
        finally:
            os.close(fd)
    gang, mode = order.gang, stat.S_IMODE(like.st_mode) & 0o666
    texts = gang_files(Roster(gang.runs), gang.slots, gang.port, address_below(gang.service)) if gang else {}
    for name, text in texts.items():
        with safe_paths.Opened(safe_paths.write_file(work, name, text, mode)) as fd:
            _give(fd, like, mode)


def _give(fd: int, like: os.stat_result, mode: int) -> None:
    """Make something as the working folder is.

    Linux silently drops the set-gid bit if the caller is not in the group and lacks CAP_FSETID, which an agent may lack.
    So the agent sets the mode while the group is its own. A change of a folder's owner leaves it its bits.
    """
    if os.geteuid() == 0:
        os.fchown(fd, os.geteuid(), os.getegid())
    os.fchmod(fd, mode)
    if os.geteuid() == 0:
        os.fchown(fd, like.st_uid, like.st_gid)


# ---- requests ----


log = get_logger(__name__)

#: How often a dataset that a pod waits for is asked for at its origin, and the pause before the next time.
FETCHES: Final = 3
FETCH_PAUSE_S: Final = 2.0
#: The agent writes so many small files, and so many large ones, to object stores at a time. A large file may take hours. Other
#: work of the agent has threads left.
_UPLOADS: Final = 8, 6
_LARGE_BYTES: Final = 8 << 20
_Job = tuple[str, str, str]  #: what, for which pod, by which order
#: Datasets that workflows made have no origin to fetch them from.
_MADE_HERE: Final = "flowsched:"


class PodFile(msgspec.Struct, frozen=True):
    """A file of a pod's volume `inputs`, and the object that it becomes."""

    place: str
    inode: int
    uri: str
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """A checked request of a step."""

    uid: str
    text: str
    order: Order
    path: str  #: where the pod has the volume that it is about
    delivered: str = ""  #: the files that the pod has taken out by itself
    file: PodFile | None = None  #: that shall be written to an object store


class Pods:
    """The pods of this node.

    Args:
        volumes: Their folders.
        pod_of: The name of the pod object with a uid, if the node knows it.
        cache: The node's datasets.
        coming: Its transfers.
        ledger: The work that has been done.
        publisher: Of outputs.
        news: The event log that new datasets are reported to.
        clock: Wall-clock ms.
        link: Makes hard links.
        stores: The object stores that the agent writes to for pods; None = it writes to none.
        identities: Looks at files of the shared volumes that the agent sees.
        used: Measures the usage of a pod's containers so far, where it can. Blocks.
        follow: Told of a pod's uid and name before its task starts, so that its logs can be kept. Blocks.
    """

    def __init__(
        self,
        volumes: Volumes,
        pod_of: Callable[[str], str | None],
        cache: Cache,
        coming: Transfers,
        ledger: Ledger,
        publisher: Publisher,
        news: EventLog,
        clock: Callable[[], int],
        link: Link,
        stores: Stores | None,
        identities: Identities,
        used: Callable[[str], dict[str, int]] = lambda _: {},
        follow: Callable[[str, str], object] = lambda _uid, _name: None,
    ) -> None:
        self._volumes = volumes
        self._pod_of = pod_of
        self._cache = cache
        self._coming = coming
        self._ledger = ledger
        self._publisher = publisher
        self._news = news
        self._clock = clock
        self._link = link
        self._stores = stores
        self._identities = identities
        self._uploads = [asyncio.Semaphore(count) for count in _UPLOADS]
        self._used = used
        self._follow = follow
        self._jobs: dict[_Job, asyncio.Task[dict[str, Any]]] = {}

    async def prepare(self, request: Request, long_poll_s: float) -> dict[str, Any] | None:
        """Lay out a pod's inputs. Returns the lost ones, and the charged bytes; None if it takes longer than `long_poll_s`.

        Raises:
            OtherOrder, NoVolume, Unsafe, OSError: It cannot be done.
        """
        job = ("inputs", request.uid, orders.digest(request.text))
        return await self._join(job, lambda: self._prepare(request), long_poll_s)

    async def publish(self, request: Request, long_poll_s: float) -> dict[str, Any] | None:
        """Publish a pod's outputs. Returns them, or a reason and a message; None if it takes longer than `long_poll_s`.

        Raises:
            OtherOrder, NoVolume, Unsafe, OSError: It cannot be done now.
        """
        job = ("outputs", request.uid, orders.digest(request.text))
        return await self._join(job, lambda: self._publish(request), long_poll_s)

    async def write(self, request: Request, wanted: Callable[[], bool]) -> dict[str, Any] | None:
        """Write a file of the pod's own volume to an object store, if that is one of its outputs.

        Args:
            request: With the file.
            wanted: Whether the pod still waits for it. Another attempt may have written the object otherwise.

        Returns:
            The object's version, or why the store does not take it; None: this agent writes no objects.

        Raises:
            OtherOrder, NoVolume, Unsafe, OSError: It cannot be done.
        """
        file, stores = request.file, self._stores
        if stores is None or file is None:
            return None
        await asyncio.to_thread(self._find_pod, request)
        self._begin(request)
        if not (is_s3(file.uri) and request.order.may_deliver(file.uri)):
            raise OtherOrder(f"the order of {request.order.pod} does not name {file.uri[:200]!r}")

        def send() -> dict[str, Any]:
            *above, name = safe_paths.parts_of(file.place)
            with (
                self._volumes.open(request.uid, INPUTS) as volume,
                safe_paths.folder(volume, above) as folder,
                safe_paths.Opened(safe_paths.open_file(folder, name)) as fd,
            ):
                if os.fstat(fd).st_ino != file.inode:
                    raise safe_paths.Unsafe(f"{file.place} was replaced")
                try:
                    return {"version": stores.write(fd, file.uri, wanted)}
                except Refused as refusal:
                    return {"refused": list(refusal.args)}
                except OSError as error:
                    return {"error": str(error.strerror or error)}

        async with self._uploads[file.size_bytes > _LARGE_BYTES]:
            return await asyncio.to_thread(send)

    async def in_use(self, uri: str) -> bool:
        """Whether the volumes of a pod that reads it are still there."""
        users = self._ledger.users(uri)
        return await asyncio.to_thread(lambda: any(self._volumes.has(uid) for uid in users))

    async def sweep(self, before_ms: int) -> None:
        """Release the inputs of pods without volumes (they are gone), and forget pods that ended before a moment."""
        for uid in await self._gone(self._ledger.using()):
            self._ledger.release(uid)
        old = await self._gone(self._ledger.written_before(before_ms))
        self._ledger.forget(old)
        await asyncio.to_thread(self._ledger.remove, old)
        for uid in old:
            await asyncio.to_thread(self._publisher.clear, uid)

    async def _gone(self, uids: list[str]) -> list[str]:
        """The pods among these that have no volumes any more, and no job under way."""
        there = await asyncio.to_thread(lambda: {uid for uid in uids if self._volumes.has(uid)})
        return [uid for uid in uids if uid not in there and not self.is_busy(uid)]

    def is_busy(self, uid: str) -> bool:
        """Whether something is being done for a pod."""
        return any(busy == uid for _, busy, _ in self._jobs)

    async def close(self) -> None:
        """End what is under way; it is taken up when it is asked for again."""
        for job in self._jobs.values():
            job.cancel()
        await asyncio.gather(*self._jobs.values(), return_exceptions=True)

    async def _join(
        self, name: _Job, work: Callable[[], Coroutine[Any, Any, dict[str, Any]]], long_poll_s: float
    ) -> dict[str, Any] | None:
        """Start a job, or wait for the same one that is under way."""
        job = self._jobs.get(name)
        if job is None:
            job = self._jobs[name] = asyncio.create_task(work(), name=" ".join(name))
            job.add_done_callback(lambda done: self._ended(name, done))
        await asyncio.wait([job], timeout=long_poll_s)
        return job.result() if job.done() else None

    def _ended(self, name: _Job, job: asyncio.Task[dict[str, Any]]) -> None:
        del self._jobs[name]
        if not job.cancelled():
            job.exception()  # asyncio warns of an exception that no request reads; the next request starts the job again

    # --- inputs ----------------------------------------------------------------------------------------------

    async def _prepare(self, request: Request) -> dict[str, Any]:
        uid, order = request.uid, request.order
        await asyncio.to_thread(self._find_pod, request)
        page = self._begin(request)
        await asyncio.to_thread(self._follow, uid, order.pod)
        try:
            lost = await self._fetch(order.uris)
            if not lost:
                await asyncio.to_thread(self._lay_out, request)
        except BaseException:
            self._unless_laid(uid, page)
            raise
        if lost:
            self._unless_laid(uid, page)
            message = "; ".join(lost.values())[:1000]
            return {"lost": list(lost), "bytes_local": 0, "bytes_moved": 0, "message": message}
        if page.charged is None:
            sources = [self._coming.charge(uri) for uri in order.uris]
            local, moved = sum(found for found, _ in sources), sum(brought for _, brought in sources)
            page = self._ledger.change(uid, charged=(local, moved), at_ms=self._clock())
            await asyncio.to_thread(self._ledger.store, uid, page)
        assert page.charged is not None
        local, moved = page.charged
        return {"lost": [], "bytes_local": local, "bytes_moved": moved}

    def _unless_laid(self, uid: str, page: Page) -> None:
        """Let go of the inputs of a pod that did not get them; one that got them before keeps them."""
        if page.charged is None:
            self._ledger.release(uid)

    def _begin(self, request: Request) -> Page:
        """The page of the request's pod: the one that it has, or a new one if its order may still begin something.

        Work that has begun continues under an expired order: a task may run for months before its outputs are published.

        Raises:
            OtherOrder: It has another order, or its own had expired before it began.
        """
        now, order = self._clock(), request.order
        if self._ledger.page(request.uid) is None and order.expires_ms <= now:
            ago_s = (now - order.expires_ms) // 1000
            raise OtherOrder(
                f"the order of {order.pod} expired {ago_s} s ago, and this node has begun nothing by it: let flowsched make the "
                "pod anew; if it is new, compare the clocks of the nodes"
            )
        page = Page(order.pod, orders.digest(request.text), now, order.uris)
        return self._ledger.begin(request.uid, page)

    async def _fetch(self, uris: tuple[str, ...]) -> dict[str, str]:
        """Bring what is not here; returns what cannot be had, and why."""
        missing = await asyncio.to_thread(lambda: [uri for uri in uris if self._cache.find(uri) is None])
        errors = await asyncio.gather(*(self._fetch_one(uri) for uri in missing))
        return {uri: error for uri, error in zip(missing, errors, strict=True) if error is not None}

    async def _fetch_one(self, uri: str) -> str | None:
        if uri.startswith(_MADE_HERE) and not self._coming.is_under_way(uri):
            return f"{uri} is not on this node"
        for attempt in range(FETCHES):
            try:
                await self._coming.fetch(uri)
            except NotFetched as error:
                if error.permanent or uri.startswith(_MADE_HERE) or attempt == FETCHES - 1:
                    return str(error)
                await asyncio.sleep(FETCH_PAUSE_S)
            else:
                break
        return None

    def _find_pod(self, request: Request) -> None:
        """Make sure that the pod is here, and the order its own, before anything is done for it.

        An order does not know its pod's uid, since it is in the pod before that has one. But it knows the name, and so does
        the node: a kubelet names a pod's folder of logs before it starts the first container.
        """
        name = self._pod_of(request.uid)
        if name is None:  # not yet: the step asks again
            raise NoVolume(
                f"the kubelet of this node has no folder of logs of a pod {request.uid}, by which its name is checked; see --logs"
            )
        if name != pod_name(request.order.pod):
            raise OtherOrder(f"the pod {request.uid} is {name}, and the order is of {request.order.pod}")
        with self._volumes.open(request.uid, WORK):
            if request.order.inputs:
                with self._volumes.open(request.uid, INPUTS):
                    pass

    def _lay_out(self, request: Request) -> None:
        order = request.order
        datasets: dict[str, Dataset] = {}
        for uri in order.uris:
            entry = self._cache.find(uri)
            if entry is None:  # a user has emptied the cache folder just now
                raise FileNotFoundError(f"{uri} has gone from the cache")
            datasets[uri] = Dataset(str(self._cache.payload(entry)))
        with self._volumes.open(request.uid, WORK) as work:
            furnish(work, order)
        if order.inputs:
            with self._volumes.open(request.uid, INPUTS) as inputs:
                lay_inputs(inputs, order, datasets, request.path, self._link)

    # --- outputs ---------------------------------------------------------------------------------------------

    async def _publish(self, request: Request) -> dict[str, Any]:
        uid = request.uid
        known = self._ledger.page(uid)
        if known is None or known.outcome is None:
            await asyncio.to_thread(self._find_pod, request)
        page = self._begin(request)
        if page.outcome is not None:
            return page.outcome
        try:
            if page.moving is None:
                moving = await asyncio.to_thread(self._find_outputs, request)
                page = self._ledger.change(uid, moving=moving, at_ms=self._clock())
                await asyncio.to_thread(self._ledger.store, uid, page)
            outputs = await asyncio.to_thread(self._move, request, page)
            outcome: dict[str, Any] = {"outputs": outputs}
            outcome |= await asyncio.to_thread(self._used, uid)  # now that all it wrote has reached the disk
            if request.delivered:
                outcome["delivered"] = request.delivered
                for entry in await self._keep(request):
                    self._news.replica(entry.uri, entry.size_bytes, present=True)
        except Refused as refusal:
            reason, message = refusal.args
            outcome = {"outputs": [], "reason": reason, "message": message[:2000]}
        for output in outcome["outputs"]:
            self._news.replica(output["uri"], output["size_bytes"], present=True)
        page = self._ledger.change(uid, outcome=outcome, at_ms=self._clock())
        await asyncio.to_thread(self._ledger.store, uid, page)
        await asyncio.to_thread(self._publisher.clear, uid)
        log_event = log.info if "reason" in outcome else log.debug
        log_event(
            "outputs",
            pod=request.order.pod,
            published=len(outcome["outputs"]),
            reason=outcome.get("reason", ""),
        )
        return outcome

    async def _keep(self, request: Request) -> list[Entry]:
        """Make datasets of the files that the pod has delivered, but only to the URIs of its order.

        The next task's look has to find the version: that of an object comes from its store; a path is looked at here.
        """
        order, volume = request.order, self._volumes.path(request.uid, INPUTS)

        def allowed() -> list[DeliveredFile]:
            listed = Result(delivered=request.delivered).placed(str(volume))
            return [each for each in listed if order.may_deliver(each.uri)]

        files = await asyncio.to_thread(allowed)
        paths = [each.uri for each in files if not is_s3(each.uri)]
        seen = await self._identities.versions(paths) if paths else {}
        found = [each for each in files if is_s3(each.uri) or seen.get(each.uri) == each.version]
        outputs = [Delivered("", uri, folder) for uri, folder in order.delivers]
        return await asyncio.to_thread(keep, self._cache, volume, outputs, found, self._cache.limit_bytes)

    def _find_outputs(self, request: Request) -> tuple[dict[str, Any], ...]:
        with self._volumes.open(request.uid, WORK) as work:
            found = find_outputs(work, request.order.output_records, (request.path,) if request.path else ())
            return tuple(one.record() for one in found)

    def _move(self, request: Request, page: Page) -> list[dict[str, Any]]:
        with self._volumes.open(request.uid, WORK) as work:
            return self._publisher.publish(request.uid, work, page.moving or ())
