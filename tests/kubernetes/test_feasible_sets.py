"""flowsched's feasible nodes are kube-scheduler's, for random pods among random neighbours on the real thing.

kube-scheduler places pods one after another on nodes without kubelets; a recording extender sees which nodes its own
filters left for each. flowsched reads the same objects from the API server and says where it would let the pod be.
FLOWSCHED_FEASIBLE_PODS says how many pods (1,000 take a minute or two), FLOWSCHED_FEASIBLE_SEED which.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec
import numpy as np
import pytest

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.foreign.binding import Volumes
from flowsched.cluster.kubernetes.objects.core import Node, PersistentVolume, PersistentVolumeClaim
from flowsched.cluster.kubernetes.objects.nodes import node_info
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.pod_constraints import template_of
from flowsched.executor.constraints import PodTerm, Rules, narrowed, watched_by
from flowsched.executor.foreign import PodTemplate
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.selectors import selects
from flowsched.scheduling.feasibility import allowed_nodes, beside_others
from flowsched.scheduling.pod_group import Shape
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.scheduling.policy.plugins.node_filters import free_ports
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement
from flowsched.values import replace
from tests.kubernetes import random_pods
from tests.kubernetes.conftest import require
from tests.kubernetes.hollow.controlplane import ControlPlane
from tests.kubernetes.random_pods import NAMESPACES, VOLUMES, Json
from tests.kubernetes.recorder import Recorder
from tests.soak import worlds

T = TypeVar("T")

PODS = int(os.environ.get("FLOWSCHED_FEASIBLE_PODS", worlds(120, 1000)))
SEED = int(os.environ.get("FLOWSCHED_FEASIBLE_SEED", "1"))
NODES = 30
#: Far beyond what anything here takes, on a machine that is busy with other tests.
PATIENCE_S = 200.0
OURS = PROFILES["flowsched"]

pytestmark = [pytest.mark.kubernetes, pytest.mark.soak, pytest.mark.timeout(600 + PODS)]


def as_1_36_reads(rules: Rules) -> Rules:
    """What kube-scheduler 1.36 makes of an incoming pod's terms.

    It lists the namespaces that a term's selector selects, and means to clear the selector then; but it clears that of a
    copy (`mergeAffinityTermNamespacesIfNotEmpty`), and goes on to ask the selector about no labels at all. One that
    selects no labels, such as NotIn alone, therefore means every namespace. We do as the documentation says.
    """

    def read(term: PodTerm) -> PodTerm:
        everywhere = selects(term.namespace_selector, {})
        return replace(term, namespace_selector=()) if everywhere else term

    return replace(
        rules,
        affinity=tuple(map(read, rules.affinity)),
        anti_affinity=tuple(map(read, rules.anti_affinity)),
    )


class Mirror:
    """What flowsched knows: nodes, the pods on them, volumes, namespaces."""

    def __init__(self) -> None:
        self.snapshot = Snapshot()
        self.volumes = Volumes()
        self.pods: dict[str, tuple[Pod, str]] = {}  #: uid -> the pod and its node
        for name, labels in NAMESPACES.items():
            self.snapshot.peers.set_namespace(name, {**labels, "kubernetes.io/metadata.name": name})

    def node(self, node: Node) -> None:
        self.snapshot.put_node(node_info(node))

    def node_gone(self, name: str) -> None:
        """Without labels it is part of no domain any more, whatever is still bound to it."""
        self.snapshot.put_node(NodeInfo(name, 0, 0, ready=False))

    def put(self, pod: Pod, node: str) -> None:
        """The pod is on a node, or has changed there."""
        self.pods[pod.metadata.uid] = (pod, node)
        kind = ClaimKind.RELEASING if pod.metadata.deletion_timestamp else ClaimKind.RUNNING
        template = self.template(pod)
        amount = self.snapshot.vector(template.resources)
        claim = Claim(
            pod.metadata.uid,
            self.snapshot.index[node],
            amount,
            kind,
            "others",
            0,
            None,
            rules=template.rules,
        )
        self.snapshot.claim(claim, Statement())

    def remove(self, uid: str) -> None:
        del self.pods[uid]
        self.snapshot.unclaim(uid, Statement())

    def template(self, pod: Pod) -> PodTemplate:
        return template_of(pod, *self.volumes.of(pod))

    def feasible(self, template: PodTemplate, rules: Rules | None) -> list[str]:
        """The names of the nodes where flowsched would let such a pod be now, sorted."""
        snapshot = self.snapshot
        requests = snapshot.vector(template.resources)
        shape = Shape(requests, template.selector, template.tolerations, rules=rules)
        mask, _ = beside_others(snapshot, shape, allowed_nodes(snapshot, shape, OURS.all_filters()).mask)
        free = snapshot.allocatable - snapshot.used
        for axis, need in enumerate(requests):
            mask = mask & (free[:, axis] >= need) if need else mask
        return sorted(snapshot.names[at] for at in np.flatnonzero(mask))

    def port_taken(self, document: Json) -> bool:
        """Whether the author of a pod has put it on a node where a host port of it is in use."""
        pod = decode(json.dumps(document).encode(), Pod)
        if not pod.spec.node_name:
            return False
        mask, _ = free_ports(self.snapshot, Shape((), rules=self.template(pod).rules))
        return not mask[self.snapshot.index[pod.spec.node_name]]

    def narrowed(self, rules: Rules) -> Rules | None:
        """Only those labels of the pod that somebody looks at."""
        placed = [self.template(other).rules for other, _ in self.pods.values()]
        return narrowed(rules, watched_by(each for each in placed if each is not None))


class Cluster:
    """The API server as the test uses it: everything is written one after another, and mirrored at once."""

    def __init__(self, client: Client, recorder: Recorder, rng: random.Random) -> None:
        self.client, self.recorder, self.rng = client, recorder, rng
        self.mirror = Mirror()
        self.generation = 0
        self.gone: set[str] = set()

    async def write(self, method: str, path: str, document: Json | None = None) -> bytes:
        body = None if document is None else json.dumps(document).encode()
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        answer = await self.client.call(method, path, body=body, content_type=kind)
        assert 200 <= answer.status < 300, (method, path, answer.status, answer.body, document)
        return answer.body

    async def furnish(self) -> None:
        """Namespaces, nodes, bound volumes; and a node of the test's own, to see what the scheduler has seen."""
        for name, labels in NAMESPACES.items():
            await self.write(
                "POST",
                "/api/v1/namespaces",
                {"kind": "Namespace", "metadata": {"name": name, "labels": labels}},
            )
            for at in range(VOLUMES):
                await self._volume(name, at)
        for at in range(NODES):
            await self.node(random_pods.node(self.rng, at))
        amounts = {"cpu": "0", "memory": "0", "pods": "5000"}
        sentinel = {
            "metadata": {"name": "sentinel", "labels": {"seen": "0"}},
            "spec": {"taints": [{"key": "sentinel", "effect": "NoSchedule"}]},
            "status": {"capacity": amounts, "allocatable": amounts},
        }
        await self.node(sentinel)

    async def _volume(self, namespace: str, at: int) -> None:
        volume, claim = random_pods.volume(self.rng, namespace, at)
        made = json.loads(
            await self.write("POST", f"/api/v1/namespaces/{namespace}/persistentvolumeclaims", claim)
        )
        volume["spec"]["claimRef"]["uid"] = made["metadata"]["uid"]
        stored = decode(await self.write("POST", "/api/v1/persistentvolumes", volume), PersistentVolume)
        paths = (
            f"/api/v1/persistentvolumes/{volume['metadata']['name']}/status",
            f"/api/v1/namespaces/{namespace}/persistentvolumeclaims/claim-{at}/status",
        )
        for path in paths:
            await self.write("PATCH", path, {"status": {"phase": "Bound"}})
        self.mirror.volumes.volumes[stored.metadata.name] = stored
        bound = await self.write("GET", paths[1])
        self.mirror.volumes.claims[namespace, f"claim-{at}"] = decode(bound, PersistentVolumeClaim)

    async def node(self, document: Json) -> None:
        status = document["status"] | {"conditions": [{"type": "Ready", "status": "True", "reason": "Test"}]}
        self.mirror.node(
            decode(await self.write("POST", "/api/v1/nodes", document | {"status": status}), Node)
        )

    async def change_node(self) -> str:
        """Give a node other labels and taints, or take it away, or bring it back; until the scheduler has seen it."""
        at = self.rng.randrange(NODES)
        new, name = random_pods.node(self.rng, at), f"n{at:02}"
        if name in self.gone:
            self.gone.remove(name)
            await self.node(new)
            what = "node back"
        elif self.rng.random() < 0.3:
            self.gone.add(name)
            await self.write("DELETE", f"/api/v1/nodes/{name}")
            self.mirror.node_gone(name)
            what = "node gone"
        else:
            old = json.loads(await self.write("GET", f"/api/v1/nodes/{name}"))
            old["metadata"]["labels"], old["spec"] = new["metadata"]["labels"], new["spec"]
            self.mirror.node(decode(await self.write("PUT", f"/api/v1/nodes/{name}", old), Node))
            what = "node changed"
        await self.settle()
        return what

    async def settle(self) -> None:
        """Return once the scheduler has seen all changes of nodes: they reach it in order, so the last is enough."""
        self.generation += 1
        seen = {"metadata": {"labels": {"seen": str(self.generation)}}}
        self.mirror.node(decode(await self.write("PATCH", "/api/v1/nodes/sentinel", seen), Node))
        spec = {
            "containers": [{"name": "main", "image": "none"}],
            "nodeSelector": {"seen": str(self.generation)},
            "tolerations": [{"key": "sentinel", "operator": "Exists"}],
            "schedulingGates": [{"name": "example.com/known"}],
        }
        name = f"sentinel-{self.generation}"
        document = {"metadata": {"name": name, "namespace": "red"}, "spec": spec}
        pod = decode(await self.write("POST", "/api/v1/namespaces/red/pods", document), Pod)
        self.recorder.refused.add(pod.metadata.uid)
        path = f"/api/v1/namespaces/red/pods/{name}"
        await self.write("PATCH", path, {"spec": {"schedulingGates": None}})
        await asyncio.wait_for(self.recorder.question(pod.metadata.uid), PATIENCE_S)
        await self.delete(pod)

    async def delete(self, pod: Pod, grace_s: int = 0) -> None:
        params = {"gracePeriodSeconds": str(grace_s)}
        answer = await self.client.call("DELETE", path_of(pod), params=params)
        assert 200 <= answer.status < 300, answer

    async def disturb(self) -> str:
        """Something happens to a pod that is on a node."""
        uid = self.rng.choice(list(self.mirror.pods))
        pod, node = self.mirror.pods[uid]
        what = self.rng.choices(["delete", "leave", "finish", "relabel"], [6, 1, 2, 2])[0]
        if what == "delete":
            await self.delete(pod)
            self.mirror.remove(uid)
        elif what == "leave":
            await self.delete(pod, grace_s=3600)
            self.mirror.put(await self.get(pod), node)
        elif what == "finish":
            await self.write("PATCH", f"{path_of(pod)}/status", {"status": {"phase": "Succeeded"}})
            self.mirror.remove(uid)
        else:
            labels = dict.fromkeys(random_pods.LABELS) | {"app": self.rng.choice(["web", "db", "job"])}
            changed = await self.write("PATCH", path_of(pod), {"metadata": {"labels": labels}})
            self.mirror.put(decode(changed, Pod), node)
        return what

    async def get(self, pod: Pod) -> Pod:
        return decode(await self.write("GET", path_of(pod)), Pod)


@dataclass
class Outcome:
    """What came out."""

    pods: int = 0
    empty: int = 0
    given: int = 0
    feasible: int = 0
    rules: Counter[str] = field(default_factory=Counter)
    disturbed: Counter[str] = field(default_factory=Counter)
    different: list[str] = field(default_factory=list)
    unlike_documented: int = 0  #: where kube-scheduler and its documentation differ, see `as_1_36_reads`

    def __str__(self) -> str:
        return (
            f"{self.pods} pods, {self.given} more bound by their authors: {self.pods - len(self.different)} equal, "
            f"{len(self.different)} different ({self.unlike_documented} not as documented); "
            f"{self.empty} with no feasible node, else {self.feasible / max(1, self.pods - self.empty):.1f} of {NODES} on average; "
            f"rules: {dict(self.rules.most_common())}; between pods: {dict(self.disturbed.most_common())}"
        )


def decode(body: bytes, kind: type[T]) -> T:
    return msgspec.json.decode(body, type=kind)


def path_of(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"


@pytest.fixture
async def cluster(own_control_plane: ControlPlane) -> AsyncIterator[Cluster]:
    """A furnished cluster whose kube-scheduler tells us what it finds."""
    require("kube-scheduler")
    async with Recorder() as recorder, Client(own_control_plane.connection()) as client:
        cluster = Cluster(client, recorder, random.Random(SEED))
        await cluster.furnish()
        # Without batching, every pod is asked about on every node, also one that is like the pod before.
        await own_control_plane.scheduler(
            gates={"OpportunisticBatching": False},
            extenders=recorder.extenders(),
            profiles=[{"schedulerName": "default-scheduler", "percentageOfNodesToScore": 100}],
        )
        yield cluster


async def offered(cluster: Cluster, pod: Pod) -> tuple[list[str], Pod | None]:
    """Wait for kube-scheduler's verdict: the nodes its filters left, and the pod once it is bound (None: it is not)."""
    uid, recorder = pod.metadata.uid, cluster.recorder
    while True:
        now = await cluster.get(pod)
        if now.spec.node_name:
            assert recorder.objects[uid] == recorder.names[uid]
            return recorder.objects[uid], now
        for condition in now.status.conditions:
            if condition.type == "PodScheduled" and condition.reason == "Unschedulable":
                assert uid not in recorder.objects
                return [], None
            assert condition.reason != "SchedulerError", condition.message
        await asyncio.sleep(0.005)


def kinds_of(rules: Rules) -> list[str]:
    names = ("nodes", "volumes", "ports", "affinity", "anti_affinity", "spread")
    return [name for name in names if getattr(rules, name)]


async def test_the_feasible_nodes_are_kube_schedulers(cluster: Cluster) -> None:
    """For every one of many random pods, among whatever was placed, deleted, relabelled and ended before it."""
    outcome = Outcome()
    rng, mirror = cluster.rng, cluster.mirror
    names = [f"n{at:02}" for at in range(NODES)]
    number = 0
    while outcome.pods < PODS:
        number += 1
        if mirror.pods and rng.random() < 0.6:
            outcome.disturbed[await cluster.disturb()] += 1
        if rng.random() < 0.04:
            outcome.disturbed[await cluster.change_node()] += 1
        document = random_pods.pod(rng, f"p{number}", names)
        if mirror.port_taken(document):
            # Where two pods have a port, which only their authors can do, kube-scheduler (whose ports are a set) takes it
            # for free once the first of them is gone. We count.
            continue
        path = f"/api/v1/namespaces/{document['metadata']['namespace']}/pods"
        pod = decode(await cluster.write("POST", path, document), Pod)
        if pod.spec.node_name:
            mirror.put(pod, pod.spec.node_name)
            outcome.given += 1
            continue
        template = mirror.template(pod)
        assert template.rules is not None
        assert not template.problem
        reads = as_1_36_reads(template.rules)
        documented = mirror.feasible(template, template.rules)
        expected = mirror.feasible(template, reads)
        fewer = mirror.feasible(template, mirror.narrowed(reads))
        found, bound = await asyncio.wait_for(offered(cluster, pod), PATIENCE_S)
        outcome.pods += 1
        outcome.empty += not found
        outcome.feasible += len(found)
        outcome.rules.update(kinds_of(template.rules))
        outcome.unlike_documented += documented != expected
        if not expected == fewer == found:
            outcome.different.append(
                f"{json.dumps(document)}: {expected} or {fewer}, kube-scheduler: {found}"
            )
        if bound is None:
            await cluster.delete(pod)
        else:
            mirror.put(bound, bound.spec.node_name)
    print(outcome)
    assert not outcome.different, f"{outcome}\n" + "\n".join(outcome.different[:5])
    assert outcome.empty < 0.7 * outcome.pods
