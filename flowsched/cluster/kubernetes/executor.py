"""KubernetesCluster: the executor for clusters. It wires watches, our own pods, node agents and others' pods together.

Order of a start: discovery, then every collection is listed (a view with holes would over-commit), and only then is anything
said to be there. Events are queued for one reader, as on the local cluster.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from flowsched.background import BackgroundTasks
from flowsched.cluster.event_queue import EventQueue
from flowsched.cluster.kubernetes.agents import Agents, fetched_by_pods
from flowsched.cluster.kubernetes.api.client import Client, Connection, served
from flowsched.cluster.kubernetes.api.errors import Refused
from flowsched.cluster.kubernetes.api.watch import IDLE_S, Batch, Watches
from flowsched.cluster.kubernetes.dra.claims import claimed_devices
from flowsched.cluster.kubernetes.foreign import eviction
from flowsched.cluster.kubernetes.foreign.binding import Binding, Claims, Volumes
from flowsched.cluster.kubernetes.foreign.conditions import Conditions
from flowsched.cluster.kubernetes.foreign.groups import GroupBook
from flowsched.cluster.kubernetes.leader_lease import LeaseObject
from flowsched.cluster.kubernetes.lease import Lease
from flowsched.cluster.kubernetes.objects import core
from flowsched.cluster.kubernetes.objects import nodes as numa
from flowsched.cluster.kubernetes.objects.pod import Pod as PodObject
from flowsched.cluster.kubernetes.objects.podgroup import (
    CoschedulingPodGroup,
    Form,
    NativePodGroup,
    VolcanoPodGroup,
    choose_form,
)
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings
from flowsched.cluster.kubernetes.pods.controller import PodController, PodTimeouts
from flowsched.cluster.kubernetes.pods.gang_objects import GangObjects
from flowsched.cluster.kubernetes.pods.placeholders import Placeholders
from flowsched.cluster.kubernetes.pods.pod_api import PodApi
from flowsched.cluster.kubernetes.pods.results import Results
from flowsched.cluster.kubernetes.view import Images, View
from flowsched.errors import ConfigurationError
from flowsched.executor.foreign import Bind, Evict, Hold, Verdict
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import (
    Binder,
    ClusterEvent,
    Executor,
    FileCopies,
    Fingerprint,
    LeaderLease,
    NodeChanged,
    Opened,
    PiecesSeen,
    Pod,
    PodEnded,
    PodGone,
    PodHeld,
    PodStarted,
    ReplicaSeen,
    Transfer,
    TransferDone,
    TransferFailed,
)
from flowsched.log_lines import get_logger

log = get_logger(__name__)

SWEEP_S: Final = 5.0
#: Sizes of files in one question to an agent, and how long submissions wait for its answer.
_SIZES: Final = 500
_SIZES_S: Final = 2.0
PODS: Final = "/api/v1/pods"
_GROUPS: Final[Mapping[Form, type[Any]]] = {
    Form.NATIVE_BETA: NativePodGroup,
    Form.NATIVE_ALPHA: NativePodGroup,
    Form.SCHEDULER_PLUGINS: CoschedulingPodGroup,
    Form.VOLCANO: VolcanoPodGroup,
}


#: Events about our own pods and data; all others are about what other installations and people have made.
_OF_OWN: Final = (
    PodStarted,
    PodHeld,
    PodEnded,
    PodGone,
    TransferDone,
    TransferFailed,
    ReplicaSeen,
    PiecesSeen,
)


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How this installation meets its cluster.

    Args:
        release: How pods are made.
        agent_key: The secret that node agents and the service share; "" = there are no agents.
        pod_groups: The form of our own gangs' PodGroups: a key of `podgroup.WISHES`.
        in_flight: Requests open at a time.
        agent_namespace: Pods elsewhere that look like agents are none: an agent is told the key.
        answers_to: Further scheduler names, beside `release.scheduler_name`: flowsched places the pods that name them.
        timeouts: When pods that do not start are given up.
        idle_s: A watch that is silent for so long is broken.
    """

    release: ReleaseSettings
    agent_key: str = ""
    pod_groups: str = "auto"
    in_flight: int = 32
    agent_namespace: str = "flowsched-system"
    answers_to: frozenset[str] = frozenset()
    timeouts: PodTimeouts = field(default_factory=PodTimeouts)
    idle_s: float = IDLE_S


class KubernetesCluster(Executor):
    """An Executor on Kubernetes, and a Binder for others' pods.

    It keeps defaults of `Executor` where the service has nothing to do: no node mounts the cache of another (`remote_reads`),
    nodes report their own trouble, `settle` removes a pod with its working folder (`forget`), and agents expire logs.

    Args:
        connection: To the API server.
        settings: See there.
        lease: Whether this process leads.
    """

    def __init__(
        self,
        connection: Connection,
        settings: ClusterSettings,
        lease: Lease,
    ) -> None:
        self.settings = settings
        self.lease = lease
        self.client = Client(connection, may_write=lambda: lease.may_act(), in_flight=settings.in_flight)
        self.form = Form.NONE
        self.queue = EventQueue()
        self._loops = BackgroundTasks("the cluster")
        self._identity = connection.url
        self._watches = Watches(self.client, settings.idle_s)
        release = settings.release
        self._leader_lease = LeaseObject(
            connection, release.namespace, release.instance, lease.clock, self._watches
        )

    # --- Executor --------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """The cluster's own identity, the namespace and the installation: known after `start`."""
        return self._identity

    @property
    def binder(self) -> Binder:
        """Itself: others' pods are placed here too."""
        return self

    @property
    def leader_lease(self) -> LeaderLease:
        """The Lease of the installation."""
        return self._leader_lease

    @property
    def trouble(self) -> str:
        """The first watch that cannot be read, and why."""
        return self._watches.problem

    async def start(self) -> Sequence[NodeInfo]:
        """Discover, list everything, and say which nodes there are.

        Raises:
            ConfigurationError: The cluster does not serve what the settings ask for, or does not let us in.
        """
        release = self.settings.release
        await self._identify()
        discovered = await self._discover()
        self.form = choose_form(discovered, self.settings.pod_groups)
        report = self.queue.put
        self._agents = Agents(self.settings.agent_key, report, self.lease.clock, self._has_node)
        self._gangs = GangObjects(self.client, release, self.form)
        self._devices = await claimed_devices(self.client, release)
        self.pods = PodController(
            PodApi(self.client, release),
            self._gangs,
            self._devices,
            settings=release,
            lease=self.lease,
            events=lambda event: self._results.report(event),
            has_node=self._has_node,
            timeouts=self.settings.timeouts,
        )
        self._results = Results(self._agents, self.pods.object_of, self.pods.order_of, report)
        volumes = Volumes()
        self._claims = Claims(self.client, volumes)
        native = next(
            (form for form in _GROUPS if form.native and "PodGroup" in discovered.get(form.value, ())), None
        )
        self._view = View(
            release,
            self.pods,
            self._agents,
            GroupBook(release, report, native or Form.NATIVE_BETA),
            volumes,
            report,
            frozenset({release.scheduler_name, *self.settings.answers_to}),
            self.settings.agent_namespace,
            Images(report),
            self._devices,
        )
        if numa.KIND in discovered.get(numa.GROUP, ()):
            self._view.with_zones()
        self._binding = Binding(
            self.client,
            self._view.waits,
            report=report,
            lease=self.lease,
            caught_up=partial(self._watches.caught_up, PODS),
            volumes=self._bring_volumes,
        )
        self._conditions = Conditions(self.client, self._view.waits, self._view.groups, self.lease.clock)
        self._placeholders = Placeholders(self.client, release, self.pods.awaited_on)
        self._agents.start()
        forms = [form for form in _GROUPS if "PodGroup" in discovered.get(form.value, ())]
        await self._follow_all(forms)
        self._loops.keep(self._sweep, "sweep")
        self._loops.keep(self._conditions.run, "conditions")
        self._loops.keep(self._placeholders.run, "placeholders")
        return list(self._view.nodes.values())

    async def adopt(self, pods: Sequence[Pod]) -> None:
        """See `Executor.adopt`."""
        self.queue.listen()
        await self.pods.adopt(pods)

    async def launch(self, pods: Sequence[Pod]) -> None:
        """Make and bind pods; outcomes come as events."""
        for image in {pod.image for pod in pods}:
            self._view.images.wanted(image)
        self.pods.launch(pods)

    async def release(self, names: Sequence[str], grace_ms: int) -> None:
        """End pods."""
        self.pods.release(names, grace_ms)

    async def transfer(self, orders: Sequence[Transfer]) -> None:
        """Have node agents copy; where there are none, pods fetch for themselves."""
        if self.settings.release.agent_port:
            await self._agents.transfer(orders)
            return
        for order in orders:
            self.queue.put(fetched_by_pods(order, self.lease.clock()))

    def events(self) -> AsyncIterator[Sequence[ClusterEvent]]:
        """Yield events in batches; ends after `stop`."""
        return self.queue.batches()

    async def logs(
        self, name: str, stream: str, offset: int, limit: int, node: str = ""
    ) -> tuple[bytes, bool]:
        """A piece of the log of a task's container, from its node's agent; without one from the API server."""
        obj = self.pods.object_of(name)
        where = node or (obj.spec.node_name if obj is not None else "")
        query = {"container": "task", "stream": stream, "offset": str(offset), "limit": str(limit)}
        if obj is None:
            query["name"] = name  # kept by its agent
        else:
            query |= {"namespace": obj.metadata.namespace, "pod": obj.metadata.name, "uid": obj.metadata.uid}
        found = await self._agents.logs(where, query)
        if found is not None:
            live = obj is not None and obj.status.phase not in ("Succeeded", "Failed")
            return found[0], found[1] or (live and self.pods.is_awaited(name))
        return await self._api_logs(obj, stream, offset, limit)

    async def open_dataset(self, uri: str, nodes: Sequence[str]) -> Opened | None:
        """Read a dataset from a node's agent."""
        return await self._agents.open_dataset(uri, nodes)

    async def fingerprints(self, uris: Sequence[str], *, by_content: bool) -> dict[str, Fingerprint | str]:
        """The fingerprints of datasets, as a node agent sees them."""
        return await self._agents.fingerprints(uris, by_content=by_content)

    @property
    def file_copies(self) -> FileCopies:
        """Of files on shared volumes: a copy is mounted over the file's path. Agents that do not see them know no sizes."""
        return "always" if self.settings.release.shared else "never"

    async def placed_sizes(self, paths: Sequence[str]) -> Mapping[str, int]:
        """As a node agent sees them, of few paths at a time: submissions wait for the answer."""
        found: Mapping[str, Fingerprint | str] = {}
        if self.settings.release.shared:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SIZES_S):
                    found = await self._agents.fingerprints(paths[:_SIZES], sizes=True)
        return {
            path: each.size_bytes
            for path, each in found.items()
            if isinstance(each, Fingerprint) and each.size_bytes is not None
        }

    async def lost_copies(self, uris: Sequence[str]) -> Sequence[ReplicaSeen]:
        """Copies that the agents which had them have no more."""
        return await self._agents.lost_copies(uris)

    async def orphans(self) -> Sequence[str]:
        """Our pods that the engine did not ask this executor for."""
        return self.pods.orphans()

    async def settle(self, names: Sequence[str]) -> None:
        """Keep the logs of attempts after their ends are stored durably, then remove their pods."""
        by_node: dict[str, list[dict[str, str]]] = {}
        for name in names:
            obj = self.pods.object_of(name)
            if obj is not None and obj.spec.node_name:
                meta = obj.metadata
                entry = {"namespace": meta.namespace, "pod": meta.name, "uid": meta.uid, "name": name}
                by_node.setdefault(obj.spec.node_name, []).append(entry)
        await asyncio.gather(*(self._agents.keep_logs(node, pods) for node, pods in by_node.items()))
        await self.pods.settle(names)

    async def evict(self, uri: str, node: str) -> bool:
        """Remove a dataset from a node's cache."""
        return await self._agents.evict(uri, node)

    def flows(self) -> Mapping[str, tuple[int, int]]:
        """Node -> (bytes in, bytes out) that agents have moved."""
        return self._agents.flows()

    def counters(self) -> Mapping[str, int]:
        """Of its watches of the API server, and of the streams of agents."""
        agents: Agents | None = getattr(self, "_agents", None)  # before the start there are none
        return {**self._watches.counters(), "agent_reconnects": 0 if agents is None else agents.reconnects}

    async def stop(self) -> None:
        """Close it. Pods go on."""
        self.queue.close()
        await self._loops.close()
        await self._watches.close()
        for name in ("_placeholders", "pods", "_results", "_gangs", "_agents", "_binding", "_devices"):
            part = getattr(self, name, None)
            if part is not None:
                await part.close()
        await self.client.close()

    # --- Binder ----------------------------------------------------------------------------------------------

    async def nodes(self) -> Sequence[NodeInfo]:
        """The nodes that there are now."""
        self.queue.listen()
        await self._watches.synced()
        return list(self._view.nodes.values())

    async def view(self) -> Sequence[ClusterEvent]:
        """All that others' pods are now; older events are dropped. A term begins: `adopt` was called before."""
        self.pods.begin()
        self.queue.listen()
        await self._watches.synced()
        self.queue.keep(self._is_news)
        self._placeholders.begin()
        return self._view.everything()

    def _is_news(self, event: ClusterEvent) -> bool:
        """Whether an event reports what `View.everything` cannot: nothing there shows that a node has gone."""
        gone = isinstance(event, NodeChanged) and not self._has_node(event.node.name)
        return gone or isinstance(event, _OF_OWN)

    async def fence(self, uids: Sequence[str]) -> None:
        """See to it that older bindings cannot take place any more."""
        await self._binding.fence(uids)

    async def bind(self, orders: Sequence[Bind]) -> None:
        """Bind others' pods."""
        self._binding.bind(orders)

    async def evict_pods(self, orders: Sequence[Evict]) -> None:
        """Evict other controllers' pods."""
        self._binding.evict(orders)

    async def hold(self, holds: Sequence[Hold]) -> None:
        """Keep room from the stock scheduler."""
        self._placeholders.want(holds)

    async def publish(self, verdicts: Sequence[Verdict]) -> None:
        """Publish why groups wait."""
        self._conditions.publish(verdicts)

    def agents_ready(self) -> Sequence[str]:
        """Nodes with an agent that has reported its datasets."""
        return self._agents.ready

    # --- inside ----------------------------------------------------------------------------------------------

    def _has_node(self, name: str) -> bool:
        return name in self._view.nodes

    async def _identify(self) -> None:
        system = await self.client.get("/api/v1/namespaces/kube-system", core.Namespace)
        uid = system.metadata.uid if system is not None else self.client.connection.url
        release = self.settings.release
        self._identity = f"kubernetes {uid}, namespace {release.namespace}, instance {release.instance}"
        if await self.client.get(f"/api/v1/namespaces/{release.namespace}", core.Namespace) is None:
            raise ConfigurationError(
                f"there is no namespace {release.namespace!r}: create it, or name another one by --namespace"
            )

    async def _discover(self) -> dict[str, set[str]]:
        """Which kinds are served in which group and version, of the groups that we know PodGroups of."""
        found: dict[str, set[str]] = {}
        for group in (*(form.value for form in _GROUPS), numa.GROUP):
            kinds = await served(self.client, group)
            if kinds is not None:
                found[group] = kinds
        return found

    async def _follow_all(self, forms: Sequence[Form]) -> None:
        """Start every watch; return when all have been listed, in an order in which nothing is seen too early."""
        plan: list[tuple[str, type[Any], Callable[[Any], None]]] = [
            *(self._devices.watched() if self._devices is not None else ()),
            ("/api/v1/nodes", core.Node, self._view.nodes_changed),
            ("/api/v1/namespaces", core.Namespace, self._view.namespaces_changed),
            ("/apis/storage.k8s.io/v1/storageclasses", core.StorageClass, self._on_volumes("classes")),
            ("/api/v1/persistentvolumes", core.PersistentVolume, self._on_volumes("volumes")),
            ("/api/v1/persistentvolumeclaims", core.PersistentVolumeClaim, self._on_volumes("claims")),
        ]
        if self._view.topologies is not None:
            plan.insert(0, (numa.PATH, numa.NodeResourceTopology, self._view.topologies_changed))
        plan += [
            (f"/apis/{form.value}/podgroups", _GROUPS[form], partial(self._view.groups.changed, form))
            for form in forms
        ]
        plan.append((eviction.PATH, eviction.PodDisruptionBudget, self._view.budgets_changed))
        quotas = f"/api/v1/namespaces/{self.settings.release.namespace}/resourcequotas"
        try:
            await self.client.list(quotas, core.ResourceQuota)
            plan.append((quotas, core.ResourceQuota, self._view.quotas.changed))
        except Refused as refused:
            todo = "let the service list and watch resourcequotas in its namespace; until then pods beyond a quota wait"
            log.warning("quotas not followed", why=str(refused), next=todo)
        plan.append((PODS, PodObject, self._view.pods_changed))
        for path, kind, handler in plan:
            await self._watches.follow(path, kind, handler)

    def _on_volumes(self, kind: str) -> Callable[[Batch[Any]], None]:
        def handle(batch: Batch[Any]) -> None:
            if self._view.volumes.changed(kind, batch):
                self._view.reconsider(self._view.waiting())

        return handle

    async def _bring_volumes(self, uid: str, node: str) -> str:
        known = self._view.pods.get(uid)
        if known is None or known.pod is None or not known.pod.spec.volumes:
            return ""
        return await self._claims.follow(known.pod, node)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            await self.settle(await self.pods.sweep())

    async def _api_logs(
        self, obj: PodObject | None, stream: str, offset: int, limit: int
    ) -> tuple[bytes, bool]:
        """Both streams together, as the API server gives them: they count as stdout."""
        if obj is None or stream != "stdout":
            return b"", False
        path = f"/api/v1/namespaces/{obj.metadata.namespace}/pods/{obj.metadata.name}/log"
        params = {"container": "task", "limitBytes": str(offset + limit)}
        answer = await self.client.call("GET", path, params=params)
        live = obj.status.phase not in ("Succeeded", "Failed")
        data = answer.body[offset : offset + limit] if answer.ok else b""
        return data, live or len(data) == limit
