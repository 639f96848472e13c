"""The view: nodes, namespaces, images and foreign pods as the watches show them, reported to the engine as events.

A pod is one of three things here: ours (it goes to the pod controller), one that waits for our scheduler, or a stranger that
only takes room. Each is reported once for each state it is in, and all can be reported again from here at any time
(`everything`). No I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from msgspec import structs

from flowsched.cluster.kubernetes.agents import Agents
from flowsched.cluster.kubernetes.api.watch import Batch, taken
from flowsched.cluster.kubernetes.dra.claims import DeviceClaims
from flowsched.cluster.kubernetes.foreign.binding import Volumes
from flowsched.cluster.kubernetes.foreign.eviction import Budgets, PodDisruptionBudget, stake_of
from flowsched.cluster.kubernetes.foreign.groups import GroupBook, priority_of
from flowsched.cluster.kubernetes.objects.core import Namespace, Node
from flowsched.cluster.kubernetes.objects.labels import engine_name, is_ours
from flowsched.cluster.kubernetes.objects.metadata import moment_ms
from flowsched.cluster.kubernetes.objects.nodes import (
    NodeResourceTopology,
    images_of,
    node_info,
    zones_of,
)
from flowsched.cluster.kubernetes.objects.pod import Pod, controller_of
from flowsched.cluster.kubernetes.objects.pod_constraints import Alike, Kinds
from flowsched.cluster.kubernetes.objects.pod_requests import requests_of
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings
from flowsched.cluster.kubernetes.pods.controller import PodController
from flowsched.cluster.kubernetes.quotas import Quotas
from flowsched.executor.foreign import (
    NO_STAKE,
    ForeignEvent,
    ForeignPod,
    NamespaceSeen,
    PodLeft,
    PodWaits,
    RoomTaken,
)
from flowsched.executor.nodes import ALIGNED, IMAGE, PLENTY, NodeInfo, Zone
from flowsched.executor.protocol import ClusterEvent, NodeChanged, ReplicaSeen
from flowsched.values import replace
from flowsched.workflow.spec import Resources


class Images:
    """The images on nodes, as far as pods use them.

    Args:
        report: Takes events.
    """

    def __init__(self, report: Callable[[ClusterEvent], None]) -> None:
        self._report = report
        self._wanted: set[str] = set()
        self._here: dict[str, dict[str, int]] = {}  #: node -> uri -> bytes
        self._reported: set[tuple[str, str]] = set()  #: (uri, node)

    def observe(self, node: Node) -> None:
        """A node as it is now."""
        name = node.metadata.name
        self._here[name] = dict(images_of(node))
        for uri in self._wanted:
            self._report_node(uri, name)

    def gone(self, name: str) -> None:
        """A node is no more."""
        self._here[name] = {}
        for uri in self._wanted:
            self._report_node(uri, name)
        del self._here[name]

    def wanted(self, image: str | None) -> None:
        """Note that pods run this image."""
        uri = f"{IMAGE}{image}" if image else ""
        if not uri or uri in self._wanted:
            return
        self._wanted.add(uri)
        for name in self._here:
            self._report_node(uri, name)

    def everything(self) -> list[ClusterEvent]:
        """All that was reported, once more."""
        return [ReplicaSeen(uri, node, self._here[node][uri]) for uri, node in sorted(self._reported)]

    def _report_node(self, uri: str, node: str) -> None:
        size = self._here[node].get(uri)
        if size is not None and (uri, node) not in self._reported:
            self._reported.add((uri, node))
            self._report(ReplicaSeen(uri, node, size))
        elif size is None and (uri, node) in self._reported:
            self._reported.discard((uri, node))
            self._report(ReplicaSeen(uri, node, 0, present=False))


# ---- NUMA zones ----


class Topologies:
    """The zones of all nodes, as far as objects list them.

    Args:
        gpu_resource: The resource name of whole GPUs.
    """

    def __init__(self, gpu_resource: str) -> None:
        self._gpu_resource = gpu_resource
        self._zones: dict[str, tuple[Zone, ...]] = {}

    def changed(self, batch: Batch[NodeResourceTopology]) -> set[str]:
        """Apply objects that came, changed or went. Returns the nodes with other zones than before."""
        before = dict(self._zones)
        if batch.replaced is not None:
            self._zones.clear()
        for change, each in batch.items():
            zones = () if change == "DELETED" else zones_of(each, self._gpu_resource)
            if zones:
                self._zones[each.metadata.name] = zones
            else:
                self._zones.pop(each.metadata.name, None)
        names = before.keys() | self._zones.keys()
        return {name for name in names if before.get(name) != self._zones.get(name)}

    def dressed(self, info: NodeInfo) -> NodeInfo:
        """A node with its zones, and with room for the mark of pods that they bind."""
        return replace(
            info, zones=self._zones.get(info.name, ()), extended={**info.extended, ALIGNED: PLENTY}
        )


# ---- the view ----


_ENDED: Final = ("Succeeded", "Failed")
AGENT_COMPONENT: Final = "node-agent"


@dataclass(slots=True)
class KnownPod:
    """A foreign pod, as it was reported last."""

    namespace: str
    name: str
    event: ForeignEvent
    pod: Pod | None = None  #: kept whole while it waits
    group: str = ""  #: key of its group, if it is one of those that we schedule
    kind: Alike | None = None  #: None = it was not understood
    labels: Mapping[str, str] = field(default_factory=dict)


class Owned(NamedTuple):
    """A pod of ours. `kind`: None = it takes no room (any more)."""

    name: str
    kind: Alike | None


@dataclass(slots=True)
class View:
    """The cluster as the watches show it.

    Args:
        settings: How we release pods, and which installation we are.
        own: Our pods.
        agents: Node agents.
        groups: Others' PodGroups.
        volumes: Claims and volumes.
        report: Takes events.
        names: Scheduler names that we answer to.
        agent_namespace: Where node agents are; only agents there are told the key.
        images: Which nodes have which.
        devices: How many GPUs a node has, where they are claimed; None = as many as the node itself says.
    """

    settings: ReleaseSettings
    own: PodController
    agents: Agents
    groups: GroupBook
    volumes: Volumes
    report: Callable[[ClusterEvent], None]
    names: frozenset[str]
    agent_namespace: str
    images: Images
    devices: DeviceClaims | None = None
    nodes: dict[str, NodeInfo] = field(default_factory=dict)
    pods: dict[str, KnownPod] = field(default_factory=dict)  #: by uid, not ours
    namespaces: dict[str, dict[str, str]] = field(default_factory=dict)
    kinds: Kinds = field(init=False)
    budgets: Budgets = field(init=False)
    quotas: Quotas = field(init=False)
    topologies: Topologies | None = None  #: None = no NUMA zones are listed here
    _owned: dict[str, Owned] = field(default_factory=dict)  #: our pods, by uid
    _declared: dict[str, int] = field(default_factory=dict)  #: node -> cache bytes that its annotation allows
    _agent_pods: dict[str, str] = field(default_factory=dict)  #: uid of an agent's pod -> node
    _gaps: dict[str, RoomTaken] = field(default_factory=dict)  #: node -> GPUs that only seem to be there

    def __post_init__(self) -> None:
        """Nothing has been seen yet."""
        self.kinds, self.budgets = Kinds(self.settings.gpu.resource), Budgets(self.report)
        self.quotas = Quotas(self.settings, self.report)
        self.agents.limited = self._cache_limited
        self.agents.loads.is_ours = self._owned.__contains__
        if self.devices is not None:
            self.devices.changed = self._devices_changed

    def everything(self) -> list[ClusterEvent]:
        """All that was reported of other objects, once more, in an order in which it can be applied."""
        events: list[ClusterEvent] = [NodeChanged(node) for node in self.nodes.values()]
        events += self.quotas.everything()
        events += [NamespaceSeen(name, labels) for name, labels in self.namespaces.items()]
        events += self.images.everything()
        events += (*self.groups.everything(), *self.budgets.everything())
        events += [known.event for known in self.pods.values()]
        events += self._gaps.values()
        for name, kind in self._owned.values():
            obj = self.own.object_of(name)
            if obj is not None and kind is not None:
                events.append(self._room(obj, kind, name))
        return events

    # --- nodes and namespaces --------------------------------------------------------------------------------

    def nodes_changed(self, batch: Batch[Node]) -> None:
        """Nodes came, changed or went."""
        if batch.replaced is not None:
            here = {node.metadata.name for node in batch.replaced}
            here |= {meta.name for meta in batch.unread}
            for name in [name for name in self.nodes if name not in here]:
                self._node_gone(name)
        for change, node in batch.items():
            if change == "DELETED":
                self._node_gone(node.metadata.name)
            else:
                taken(self._node, node)

    def _node(self, node: Node) -> None:
        info = node_info(node, gpu_resource=self.settings.gpu.resource)
        if self.devices is not None:
            info = replace(info, gpu_millis=self.devices.gpus(info.name)[0])
        self._declared[info.name] = info.cache_bytes
        info = self._with_cache(info)
        self.images.observe(node)
        self._note(info)
        self._note_gap(info.name)

    def _note(self, info: NodeInfo) -> None:
        if self.topologies is not None:
            info = self.topologies.dressed(info)
        if self.nodes.get(info.name) != info:
            self.nodes[info.name] = info
            self.report(NodeChanged(info))

    def _with_cache(self, info: NodeInfo) -> NodeInfo:
        """The node with the limit of its cache: the lower of its annotation and its agent's limit; 0 = no limit."""
        limits = [
            each for each in (self._declared.get(info.name, 0), self.agents.limits.get(info.name, 0)) if each
        ]
        limit = min(limits, default=0)
        return info if info.cache_bytes == limit else replace(info, cache_bytes=limit)

    def _cache_limited(self, name: str) -> None:
        if name in self.nodes:
            self._note(self._with_cache(self.nodes[name]))

    def _devices_changed(self, name: str) -> None:
        known = self.nodes.get(name)
        if known is not None and self.devices is not None:
            self._note(replace(known, gpu_millis=self.devices.gpus(name)[0]))
            self._note_gap(name)

    def _note_gap(self, name: str) -> None:
        """Report GPU numbers without a device that pods may have, as room that is taken on the node."""
        gap = self.devices.gpus(name)[1] if self.devices is not None and name in self.nodes else 0
        known, owner = self._gaps.get(name), f"devices/{name}"
        if gap:
            event = self._gaps[name] = RoomTaken(owner, name, Resources(gpu_millis=gap))
            if event != known:
                self.report(event)
        elif known is not None:
            del self._gaps[name]
            self.report(PodLeft(owner))

    def with_zones(self) -> None:
        """NUMA zones will be told."""
        self.topologies, self.kinds.zones = Topologies(self.settings.gpu.resource), True

    def topologies_changed(self, batch: Batch[NodeResourceTopology]) -> None:
        """NUMA zones of nodes, whether the nodes have been seen yet or not."""
        if self.topologies is not None:
            for name in sorted(self.topologies.changed(batch) & self.nodes.keys()):
                self._note(self.nodes[name])

    def _node_gone(self, name: str) -> None:
        known = self.nodes.pop(name, None)
        self._note_gap(name)
        if known is not None:
            # Without its labels and room: a node that is gone is no domain of any topology, nor the largest node.
            gone = replace(known, ready=False, labels={}, cpu_millicores=0, memory_bytes=0, disk_bytes=0)
            self.report(NodeChanged(replace(gone, gpu_millis=0, extended={})))
            self.images.gone(name)
            self.agents.gone(name, node_lost=True)
            self.own.node_lost(name)

    def namespaces_changed(self, batch: Batch[Namespace]) -> None:
        """Labels of namespaces."""
        if batch.replaced is not None:
            here = {each.metadata.name for each in batch.replaced}
            for name in [name for name in self.namespaces if name not in here]:
                del self.namespaces[name]
                self.report(NamespaceSeen(name, None))
        for change, each in batch.items():
            name, labels = each.metadata.name, dict(each.metadata.labels)
            if change == "DELETED":
                self.namespaces.pop(name, None)
                self.report(NamespaceSeen(name, None))
            elif self.namespaces.get(name) != labels:
                self.namespaces[name] = labels
                self.report(NamespaceSeen(name, labels))

    # --- pods ------------------------------------------------------------------------------------------------

    def pods_changed(self, batch: Batch[Pod]) -> None:
        """Pods came, changed or went."""
        if batch.replaced is not None:
            here = {pod.metadata.uid for pod in batch.replaced} | {meta.uid for meta in batch.unread}
            for uid in [uid for uid in self.pods if uid not in here]:
                node = self._agent_pods.pop(uid, None)
                if node is not None:
                    self.agents.gone(node)
                self._forget(uid, False)
            self.own.relisted(here)
            for uid in [uid for uid in self._owned if uid not in here]:
                self._own_gone(uid)
        for change, pod in batch.items():
            if change == "DELETED":
                taken(self._pod_gone, pod)
            else:
                self._apply(pod)
        self.quotas.report_changes()
        if self.kinds.widened:
            self._report_again()

    def reconsider(self, uids: Iterable[str]) -> None:
        """Something that waiting pods depend on has changed: their PodGroup, a volume."""
        for uid in list(uids):
            known = self.pods.get(uid)
            if known is not None and known.pod is not None:
                self._apply(known.pod)

    def waits(self, uid: str) -> PodWaits | None:
        """A pod as it waits now; None if it does not."""
        known = self.pods.get(uid)
        return known.event if known is not None and isinstance(known.event, PodWaits) else None

    def waiting(self) -> Sequence[str]:
        """Pods that wait for us, by uid."""
        return [uid for uid, known in self.pods.items() if known.pod is not None]

    def _apply(self, pod: Pod) -> None:
        """A pod that is not understood takes room all the same, as far as can be seen."""
        if not taken(self._pod, pod):
            taken(self._plain, pod)

    def _plain(self, pod: Pod) -> None:
        uid, meta = pod.metadata.uid, pod.metadata
        if uid in self.pods or uid in self._owned or not pod.spec.node_name or pod.status.phase in _ENDED:
            return
        resources = requests_of(pod, self.settings.gpu.resource)
        event = RoomTaken(uid, pod.spec.node_name, resources, namespace=meta.namespace, name=meta.name)
        self.pods[uid] = KnownPod(meta.namespace, meta.name, event)
        self.report(event)

    def _pod(self, pod: Pod) -> None:
        name = engine_name(pod) if is_ours(pod, self.settings) else None
        if name is not None:
            self._own(pod, name)
            return
        self._agent(pod)
        mine = pod.spec.scheduler_name in self.names
        group, role = self.groups.place_of(pod) if mine else ("", "")
        event, kind = self._event(pod, group, role)
        uid = pod.metadata.uid
        known = self.pods.get(uid)
        if event is None:
            if known is not None:
                self._forget(uid, pod.status.phase == "Succeeded")
            return
        waits = pod if isinstance(event, PodWaits) else None
        if group:
            self.groups.observe(pod, group)
        if known is not None and known.group and known.group != group:
            self.groups.lost(uid, known.group)
        if known is not None and known.event == event:
            known.pod, known.group, known.labels = waits, group, pod.metadata.labels
            return
        meta = pod.metadata
        self.pods[uid] = KnownPod(meta.namespace, meta.name, event, waits, group, kind, meta.labels)
        self.report(event)

    def _report_again(self) -> None:
        """Report pods again after a pod's rules began to look at further labels: those labels matter now."""
        self.kinds.widened = False
        for known in self.pods.values():
            event = known.event
            if known.kind is None:
                continue
            if isinstance(event, RoomTaken):
                rules = self.kinds.rules(known.kind, known.labels)
                fresh: ForeignEvent = structs.replace(event, rules=rules)
            elif isinstance(event, PodWaits):
                before = event.pod.template
                volumes = before.rules.volumes if before.rules is not None else ()
                template = self.kinds.template(known.kind, known.labels, volumes, before.problem)
                fresh = PodWaits(replace(event.pod, template=template))
            else:
                continue
            if fresh != event:
                known.event = fresh
                self.report(fresh)

    def _event(self, pod: Pod, group: str, role: str) -> tuple[ForeignEvent | None, Alike | None]:
        """The event that a foreign pod means for the scheduler now (None = none), and its kind where that matters."""
        uid = pod.metadata.uid
        if pod.status.phase in _ENDED:
            return PodLeft(uid, pod.status.phase == "Succeeded", group, role) if group else None, None
        if not pod.spec.node_name and (
            not group or pod.metadata.deletion_timestamp or pod.spec.scheduling_gates
        ):
            return None, None
        kind = self.kinds.of(pod)
        if pod.spec.node_name:
            return self._room(pod, kind, uid, group, role), kind
        return PodWaits(self._foreign(pod, kind, group, role)), kind

    def _foreign(self, pod: Pod, kind: Alike, group: str, role: str) -> ForeignPod:
        meta = pod.metadata
        volumes, problem = self.volumes.of(pod) if pod.spec.volumes else ((), "")
        template = self.kinds.template(kind, meta.labels, volumes, problem)
        self.images.wanted(template.image)
        return ForeignPod(
            uid=meta.uid,
            namespace=meta.namespace,
            name=meta.name,
            version=meta.resource_version,
            group=group,
            role=role,
            template=template,
            priority=pod.spec.priority or 0,
            created_ms=moment_ms(meta.creation_timestamp) or 0,
            owned=is_owned(pod),
            within=priority_of(pod),
            preempts=pod.spec.preemption_policy != "Never",
        )

    def _room(self, pod: Pod, kind: Alike, owner: str, group: str = "", role: str = "") -> RoomTaken:
        """The room that a pod takes on its node. It is free once the containers have ended, not once the pod is to go."""
        meta = pod.metadata
        return RoomTaken(
            owner=owner,
            node=pod.spec.node_name,
            resources=kind.template.resources,
            queue=self.groups.queue_of(pod, group) if group else "",
            group=group,
            role=role,
            rules=self.kinds.rules(kind, meta.labels),
            leaving=meta.deletion_timestamp is not None,
            since_ms=moment_ms(pod.status.start_time) or 0,
            owned=is_owned(pod),
            namespace=meta.namespace,
            name=meta.name,
            stake=stake_of(pod, self.budgets.covering(meta.namespace, meta.labels)) if group else NO_STAKE,
        )

    def _pod_gone(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        if uid in self._owned:
            self.own.observe(pod, deleted=True)
            self._own_gone(uid)
            return
        node = self._agent_pods.pop(uid, None)
        if node is not None and node not in self._agent_pods.values():
            self.agents.gone(node)
        if uid in self.pods:
            self._forget(uid, pod.status.phase == "Succeeded")

    def _forget(self, uid: str, succeeded: bool) -> None:
        known = self.pods.pop(uid)
        if not isinstance(known.event, PodLeft):
            self.report(PodLeft(uid, succeeded, known.group))
        if known.group:
            self.groups.lost(uid, known.group)

    def budgets_changed(self, batch: Batch[PodDisruptionBudget]) -> None:
        """Disruption budgets came, changed or went: pods that others of them cover now are reported again."""
        touched = self.budgets.changed(batch)
        for known in self.pods.values() if touched else ():
            event = known.event
            if known.namespace in touched and isinstance(event, RoomTaken) and event.group:
                now = self.budgets.covering(known.namespace, known.labels)
                if now != event.stake.budgets:
                    stake = structs.replace(event.stake, budgets=now)
                    known.event = structs.replace(event, stake=stake)
                    self.report(known.event)

    # --- ours, and agents ------------------------------------------------------------------------------------

    def _own(self, pod: Pod, name: str) -> None:
        known = self._owned.get(pod.metadata.uid)
        self._owned[pod.metadata.uid] = Owned(name, None)
        if pod.spec.node_name and pod.status.phase not in _ENDED:
            kind = self.kinds.of(pod)
            self._owned[pod.metadata.uid] = Owned(name, kind)
            self.report(self._room(pod, kind, name))
        elif known is not None and pod.status.phase in _ENDED:
            self.report(PodLeft(name))
        self.groups.observe_own(pod)
        self.quotas.observe(pod)
        self.own.observe(pod)

    def _own_gone(self, uid: str) -> None:
        self.report(PodLeft(self._owned.pop(uid).name))
        self.quotas.gone(uid)

    def _agent(self, pod: Pod) -> None:
        """A node agent's pod: where it answers."""
        labels, status = pod.metadata.labels, pod.status
        if pod.metadata.namespace != self.agent_namespace:
            return
        if labels.get("app.kubernetes.io/component") != AGENT_COMPONENT or not pod.spec.node_name:
            return
        if labels.get("app.kubernetes.io/part-of") != "flowsched" or not status.pod_ip:
            return
        if status.phase == "Running" and pod.metadata.deletion_timestamp is None:
            self._agent_pods[pod.metadata.uid] = pod.spec.node_name
            host = f"[{status.pod_ip}]" if ":" in status.pod_ip else status.pod_ip
            self.agents.observe(pod.spec.node_name, f"http://{host}:{self.settings.agent_port}")


def is_owned(pod: Pod) -> bool:
    """Whether a controller would make it again."""
    return controller_of(pod) is not None
