"""The hollow nodes of one process: they register, heartbeat, accept the pods that are bound to them, and tell of them.

One watch serves all nodes. Each pod is a task of its own; what it does not tell itself (the final phase, the deletion) is
told here. A pod that was running before this process began has lost its processes, so it is told to have failed.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

import structlog

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.api.errors import Unreachable
from flowsched.cluster.kubernetes.api.watch import Batch, Reflector
from tests.kubernetes.hollow.addresses import Addresses
from tests.kubernetes.hollow.admission import Room, amounts
from tests.kubernetes.hollow.lives import Life
from tests.kubernetes.hollow.port import KubeletPort
from tests.kubernetes.hollow.processes import ProcessPod, Workshop
from tests.kubernetes.hollow.registry import Registry
from tests.kubernetes.hollow.reports import Reporter
from tests.kubernetes.hollow.simulated import Fate, SimulatedPod, annotated
from tests.kubernetes.hollow.spec import ENDED, Pod
from tests.kubernetes.hollow.statuses import PodRecord, Terminated
from tests.kubernetes.hollow.templates import NodeTemplate

log = structlog.get_logger(__name__)

Mode = Literal["simulate", "exec"]

#: Exit code, reason and message of containers that ended with the process that had started them.
_RESTARTED: Final = (137, "ContainerStatusUnknown", "the hollow node was restarted")
#: The same as a kubelet tells it after a power cut.
_CUT_OFF: Final = (255, "Unknown", "")


@dataclass(slots=True)
class _Node:
    """A node and the room on it."""

    template: NodeTemplate
    address: str
    room: Room
    lost: bool = False
    port: int = 0


@dataclass(slots=True)
class _Tenant:
    """A pod on a node."""

    life: Life
    node: _Node
    over: asyncio.Event = field(default_factory=asyncio.Event)
    deleted: bool = False


class HollowNodes:
    """Nodes from `async with` to its end. Their processes end with it, and so do their Node objects.

    Args:
        client: Of the API server; `in_flight` of it bounds registration.
        nodes: Which nodes.
        mode: "simulate": pods end when their fate says; "exec": their commands really run, on Linux.
        root: Where volumes and logs are, in mode exec; None is a temporary folder that goes at the end.
        heartbeat_s: How often each node renews its Lease; None = never, for benches without node-lifecycle-controller.
        fate: What becomes of a simulated pod.
        entry_points: Beginning of an image's name -> what it runs where a pod gives no command.
        resolve_hosts: Replace names of gang members in environments by addresses: without a cluster's DNS nothing else does.
        certificate: Files with certificate and key for the kubelets' port, which serves `kubectl logs`; None = no port.
        in_flight: At most so many statuses are written at a time.
        back_off_s: Before the first restart of a container.
    """

    def __init__(
        self,
        client: Client,
        nodes: Sequence[NodeTemplate],
        mode: Mode = "simulate",
        root: Path | None = None,
        *,
        heartbeat_s: float | None = 10.0,
        fate: Callable[[Pod], Fate] = annotated,
        entry_points: Mapping[str, Sequence[str]] | None = None,
        resolve_hosts: bool = True,
        certificate: tuple[Path, Path] | None = None,
        in_flight: int = 16,
        back_off_s: float = 1.0,
    ) -> None:
        self._client = client
        self._mode = mode
        self._fate = fate
        self._temporary = mode == "exec" and root is None
        if self._temporary:
            root = Path(tempfile.mkdtemp(prefix="flowsched-hollow-"))
        self.root = (root or Path()).absolute()
        self._addresses = Addresses()
        self._reporter = Reporter(client, in_flight)
        self._registry = Registry(client, heartbeat_s)
        self._port = KubeletPort(self.root, certificate) if mode == "exec" and certificate else None
        self._shop = Workshop(
            client=client,
            root=self.root,
            entry_points=entry_points or {},
            resolve=self._addresses.resolved if resolve_hosts else str,
            back_off_s=back_off_s,
            changed=self._reporter.report,
        )
        self._nodes: dict[str, _Node] = {}
        self._tenants: dict[str, _Tenant] = {}
        self._missed: dict[str, Pod] = {}  #: bound to a node that is lost
        self._templates = tuple(nodes)
        self._main: asyncio.Task[None] | None = None
        self._group: asyncio.TaskGroup | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.add(*self._templates)
        except BaseException:
            await self._close()
            raise
        self._main = asyncio.get_running_loop().create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._main is not None
        self._main.cancel()
        try:
            await asyncio.wait({self._main})
        finally:
            await self._close()
        if not self._main.cancelled():
            self._main.result()

    async def ended(self) -> None:
        """Wait until it ends by itself, which it does by an error only."""
        assert self._main is not None
        await asyncio.shield(self._main)

    async def add(self, *templates: NodeTemplate) -> None:
        """Have more nodes."""
        made = []
        for template in templates:
            address = self._addresses.node()
            node = _Node(template, address, Room(amounts(template.allocatable), template.all_labels))
            if self._port is not None:
                node.port = await self._port.listen(address)
            made.append(node)
        async with asyncio.TaskGroup() as group:
            for node in made:
                group.create_task(self._registry.register(node.template, node.address, node.port))
        self._nodes |= {node.template.name: node for node in made}

    async def lose(self, name: str, *, delete: bool = True) -> None:
        """Take a node away as a power cut does: its processes die, and nobody tells how.

        Args:
            name: Which.
            delete: Also delete the Node; else it is marked as unreachable, as after a minute of silence.
        """
        node = self._nodes[name]
        node.lost = True
        here = [tenant for tenant in self._tenants.values() if tenant.node is node]
        cut_off = [tenant for tenant in here if tenant.life.record.phase not in ENDED]
        for tenant in here:
            tenant.life.report.mute()
            tenant.life.kill()
        for tenant in here:
            await tenant.over.wait()
        for tenant in cut_off:
            _end_unseen(tenant.life.record, *_CUT_OFF)
        if self._port is not None:
            await self._port.close(node.address)
        await (self._registry.remove(name) if delete else self._registry.give_up(name))

    async def recover(self, name: str) -> None:
        """Bring a lost node back, as after a reboot: it tells that the pods it had have failed."""
        node = self._nodes[name]
        if self._port is not None:
            node.port = await self._port.listen(node.address)
        await self._registry.register(node.template, node.address, node.port)
        node.lost = False
        missed = [pod for pod in self._missed.values() if pod.spec.node_name == name]
        for pod in missed:
            del self._missed[pod.metadata.uid]
            self._seen(pod)
        for tenant in self._tenants.values():
            if tenant.node is node and tenant.life.report.muted:
                tenant.life.report.muted = False
                self._reporter.report(tenant.life.report)

    async def cordon(self, name: str, *, cordoned: bool = True) -> None:
        """Let no more pods be scheduled to a node, or let them again."""
        await self._registry.cordon(name, cordoned=cordoned)

    async def shrink(self, name: str, quantities: Mapping[str, str]) -> None:
        """Change what a node has for pods. Pods that run there go on."""
        self._nodes[name].room.allocatable.update(amounts(quantities))
        await self._registry.resize(name, quantities)

    def record(self, uid: str) -> PodRecord | None:
        """What is known of a pod here."""
        tenant = self._tenants.get(uid)
        return None if tenant is None else tenant.life.record

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            group.create_task(self._reporter.run())
            group.create_task(self._registry.beat(self._alive))
            group.create_task(self._watch())

    def _alive(self) -> list[str]:
        return [name for name, node in self._nodes.items() if not node.lost]

    async def _close(self) -> None:
        """Take the nodes away; their pods stay as they are."""
        self._addresses.close()
        if self._temporary:
            await asyncio.to_thread(shutil.rmtree, self.root, ignore_errors=True)
        if self._port is not None:
            await self._port.close_all()
        removed = await asyncio.gather(*map(self._registry.remove, self._alive()), return_exceptions=True)
        left = [error for error in removed if isinstance(error, Unreachable)]
        if left:
            log.warning("hollow nodes are left behind", nodes=len(left), why=str(left[0]))

    async def _watch(self) -> None:
        reflector = Reflector(self._client, "/api/v1/pods", Pod, params={"fieldSelector": "spec.nodeName!="})
        async with aclosing(reflector.changes()) as batches:
            async for batch in batches:
                self._take(batch)

    def _take(self, batch: Batch[Pod]) -> None:
        if batch.replaced is not None:
            there = {pod.metadata.uid for pod in batch.replaced} | {one.uid for one in batch.unread}
            for uid in (self._tenants.keys() | self._missed.keys()) - there:
                self._vanished(uid)
            for pod in batch.replaced:
                self._seen(pod)
        for change, pod in batch.changed:
            if change == "DELETED":
                self._vanished(pod.metadata.uid)
            else:
                self._seen(pod)

    def _seen(self, pod: Pod) -> None:
        node = self._nodes.get(pod.spec.node_name)
        if node is None:
            return
        if node.lost:
            self._missed[pod.metadata.uid] = pod
            return
        tenant = self._tenants.get(pod.metadata.uid)
        if tenant is None:
            if pod.ended:
                return
            tenant = self._accept(pod, node)
        if pod.metadata.deletion_timestamp is not None and not tenant.deleted:
            tenant.deleted = True
            tenant.life.leave.give(float(pod.metadata.deletion_grace_period_seconds or 0))
            if tenant.over.is_set():  # nobody else will delete it now
                self._spawn(self._delete(tenant))

    def _accept(self, pod: Pod, node: _Node) -> _Tenant:
        """Let a pod in, or tell why not."""
        hostname, subdomain = pod.hostname, pod.spec.subdomain
        address = (
            node.address if pod.on_host else self._addresses.pod(pod.metadata.namespace, subdomain, hostname)
        )
        record = PodRecord.fresh(pod, node.address, address, datetime.now(UTC))
        tenant = _Tenant(self._life(record), node)
        self._tenants[pod.metadata.uid] = tenant
        if pod.status.phase == "Running":
            _end_unseen(record, *_RESTARTED)
        else:
            refusal = node.room.admit(pod)
            if refusal is None:
                self._spawn(self._live(tenant))
                return tenant
            record.phase, record.reason, record.pod_ip = "Failed", refusal.reason, ""
            record.message = f"Pod was rejected: {refusal.message}"
            record.containers = []
        self._spawn(self._tell(tenant))
        return tenant

    def _life(self, record: PodRecord) -> Life:
        if self._mode == "exec":
            return ProcessPod(record, self._shop)
        try:
            fate = self._fate(record.pod)
        except ValueError as error:
            log.warning("annotations of a pod cannot be read", pod=record.pod.key, why=str(error))
            fate = Fate(runtime_s=0.0, exit_code=1)
        return SimulatedPod(record, fate, self._reporter.report)

    async def _live(self, tenant: _Tenant) -> None:
        record = tenant.life.record
        try:
            await tenant.life.live()
        except Exception as error:  # one pod's trouble must not end the other pods' lives
            log.exception("a pod could not be run", pod=record.pod.key)
            record.phase, record.reason, record.message = "Failed", "HollowNodeError", str(error)
        finally:
            tenant.node.room.leave(record.pod.metadata.uid)
        await self._tell(tenant)

    async def _tell(self, tenant: _Tenant) -> None:
        """Tell how a pod ended, and delete it if that was why."""
        self._reporter.report(tenant.life.report)
        await tenant.life.report.settled.wait()
        tenant.over.set()
        if tenant.deleted:
            await self._delete(tenant)

    async def _delete(self, tenant: _Tenant) -> None:
        if not tenant.life.report.muted:
            await self._registry.delete_pod(tenant.life.record.pod)

    def _vanished(self, uid: str) -> None:
        """A pod is no more: by our own deletion, or by force."""
        self._missed.pop(uid, None)
        tenant = self._tenants.pop(uid, None)
        if tenant is not None:
            tenant.life.report.mute()
            tenant.life.kill()
            self._spawn(self._forget(tenant))

    async def _forget(self, tenant: _Tenant) -> None:
        await tenant.over.wait()
        await tenant.life.forget()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        assert self._group is not None
        self._group.create_task(work)


def _end_unseen(record: PodRecord, code: int, reason: str, message: str) -> None:
    """The pod's processes ended with the node, which does not know how."""
    now = datetime.now(UTC)
    for one in record.containers:
        if not isinstance(one.state, Terminated) or not one.init:
            one.state = Terminated(code, reason, message, now, now)
    record.phase = "Failed"
