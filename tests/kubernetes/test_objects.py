"""Structs: everything that is needed is read, nothing else matters, and hostile objects do no harm."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.objects.core import (
    Lease,
    Namespace,
    Node,
    ObjectList,
    OnlyMetadata,
    PersistentVolume,
    PersistentVolumeClaim,
    PriorityClass,
    StorageClass,
    WatchEvent,
)
from flowsched.cluster.kubernetes.objects.metadata import (
    LabelSelector,
    Metadata,
    Requirement,
    condition_of,
    micro_timestamp,
    moment_ms,
    quantity,
    selects,
    timestamp,
)
from flowsched.cluster.kubernetes.objects.pod import Pod, Volume
from flowsched.cluster.kubernetes.objects.podgroup import (
    CoschedulingPodGroup,
    NativePodGroup,
    VolcanoPodGroup,
    VolcanoQueue,
)
from flowsched.errors import InvalidRequest

KINDS: tuple[type[Any], ...] = (
    Pod,
    Node,
    Namespace,
    PriorityClass,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    Lease,
    NativePodGroup,
    CoschedulingPodGroup,
    VolcanoPodGroup,
    VolcanoQueue,
)

POD: dict[str, Any] = {
    "kind": "Pod",
    "apiVersion": "v1",
    "metadata": {
        "name": "ps-0",
        "namespace": "lab",
        "uid": "u1",
        "resourceVersion": "42",
        "generation": 2,
        "labels": {"app": "ps"},
        "annotations": {"flowsched.io/pod": "fs-x"},
        "ownerReferences": [
            {
                "apiVersion": "v1",
                "kind": "Job",
                "name": "j",
                "uid": "u0",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
        "creationTimestamp": "2026-11-21T11:39:58Z",
        "deletionTimestamp": "2026-11-21T11:40:28Z",
        "deletionGracePeriodSeconds": 30,
        "finalizers": ["a.b/c"],
        "managedFields": [{"manager": "x", "fieldsV1": {"f:spec": {}}}],
    },
    "spec": {
        "nodeName": "n1",
        "schedulerName": "flowsched",
        "schedulingGates": [{"name": "a/b"}],
        "schedulingGroup": {"podGroupName": "g"},
        "priority": 7,
        "priorityClassName": "high",
        "preemptionPolicy": "Never",
        "nodeSelector": {"disk": "ssd"},
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [{"key": "cores", "operator": "Gt", "values": ["4"]}],
                            "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}],
                        }
                    ]
                },
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 5, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}
                ],
            },
            "podAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "labelSelector": {"matchLabels": {"app": "ps"}},
                        "topologyKey": "zone",
                        "namespaces": ["other"],
                        "namespaceSelector": {},
                        "matchLabelKeys": ["hash"],
                        "mismatchLabelKeys": ["tenant"],
                    }
                ]
            },
            "podAntiAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 100, "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname"}}
                ]
            },
        },
        "tolerations": [
            {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoExecute", "tolerationSeconds": 9}
        ],
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "zone",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["ps"]}]},
                "minDomains": 2,
                "nodeAffinityPolicy": "Honor",
                "nodeTaintsPolicy": "Ignore",
                "matchLabelKeys": ["hash"],
            }
        ],
        "containers": [
            {
                "name": "main",
                "image": "i:1",
                "env": [{"name": "A", "value": "b"}],
                "resources": {
                    "requests": {"cpu": "1500m", "memory": "1Gi", "example.com/fpga": "1"},
                    "limits": {"memory": "2Gi"},
                    "claims": [{"name": "gpu", "request": "one"}],
                },
                "ports": [{"containerPort": 80, "hostPort": 8080, "protocol": "UDP", "hostIP": "127.0.0.1"}],
            }
        ],
        "initContainers": [{"name": "side", "image": "s", "restartPolicy": "Always", "resources": {}}],
        "overhead": {"cpu": "10m"},
        "resources": {"requests": {"cpu": "3"}},
        "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
        "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}},
            {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}},
            {"name": "work", "emptyDir": {"sizeLimit": "1Gi"}},
            {"name": "new", "somethingNew": {"a": [1, 2]}},
        ],
        "hostNetwork": True,
        "terminationGracePeriodSeconds": 30,
        "activeDeadlineSeconds": 60,
        "runtimeClassName": "gvisor",
        "restartPolicy": "Never",
        "someFutureField": {"x": [1, {"y": None}]},
    },
    "status": {
        "phase": "Failed",
        "reason": "OutOfcpu",
        "message": "no room",
        "conditions": [
            {"type": "Ready", "status": "False", "lastProbeTime": None, "lastTransitionTime": None},
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-11-21T11:39:58Z"},
        ],
        "hostIP": "10.0.0.1",
        "podIP": "10.1.0.1",
        "startTime": "2026-11-21T11:39:59Z",
        "nominatedNodeName": "n2",
        "qosClass": "Burstable",
        "containerStatuses": [
            {
                "name": "main",
                "ready": False,
                "restartCount": 1,
                "image": "i:1",
                "imageID": "",
                "state": {
                    "terminated": {
                        "exitCode": 137,
                        "signal": 9,
                        "reason": "OOMKilled",
                        "message": "{}",
                        "startedAt": "2026-11-21T11:39:59Z",
                        "finishedAt": "2026-11-21T11:41:00Z",
                    }
                },
                "lastState": {"running": {"startedAt": "2026-11-21T11:39:58Z"}},
            }
        ],
        "initContainerStatuses": [
            {"name": "side", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "m"}}}
        ],
    },
}


def read(kind: type[Any], document: Any) -> Any:
    """As it comes from a server."""
    return msgspec.json.decode(json.dumps(document).encode(), type=kind)


def test_all_of_a_pod_that_matters_is_read() -> None:
    """Its identity, what it asks for, where it may run."""
    pod = read(Pod, POD)
    metadata, spec = pod.metadata, pod.spec
    assert (metadata.name, metadata.namespace, metadata.uid, metadata.resource_version) == (
        "ps-0",
        "lab",
        "u1",
        "42",
    )
    assert (metadata.labels, metadata.finalizers) == ({"app": "ps"}, ("a.b/c",))
    assert metadata.annotations == {"flowsched.io/pod": "fs-x"}
    assert (metadata.owner_references[0].uid, metadata.owner_references[0].controller) == ("u0", True)
    assert moment_ms(metadata.deletion_timestamp) == 1_795_261_228_000
    assert (spec.node_name, spec.scheduler_name, spec.scheduling_gates[0].name) == ("n1", "flowsched", "a/b")
    assert spec.scheduling_group.pod_group_name == "g"
    assert (spec.priority, spec.priority_class_name, spec.preemption_policy) == (7, "high", "Never")
    assert spec.node_selector == {"disk": "ssd"}
    assert (spec.host_network, spec.runtime_class_name, spec.restart_policy) == (True, "gvisor", "Never")
    assert (spec.termination_grace_period_seconds, spec.active_deadline_seconds) == (30, 60)
    main, side = spec.containers[0], spec.init_containers[0]
    assert main.resources.requests == {"cpu": "1500m", "memory": "1Gi", "example.com/fpga": "1"}
    assert (main.resources.limits, main.resources.claims[0].request) == ({"memory": "2Gi"}, "one")
    port = main.ports[0]
    assert (port.container_port, port.host_port, port.protocol, port.host_ip) == (
        80,
        8080,
        "UDP",
        "127.0.0.1",
    )
    assert (side.name, side.restart_policy) == ("side", "Always")
    assert (spec.overhead, spec.resources.requests) == ({"cpu": "10m"}, {"cpu": "3"})
    assert spec.resource_claims[0].resource_claim_template_name == "one-gpu"


def test_affinities_tolerations_and_spread_are_read() -> None:
    """With all their words; an empty selector is not the same as none."""
    spec = read(Pod, POD).spec
    nodes = spec.affinity.node_affinity
    assert nodes.required.node_selector_terms[0].match_expressions[0] == Requirement("cores", "Gt", ("4",))
    assert nodes.required.node_selector_terms[0].match_fields[0].key == "metadata.name"
    assert (nodes.preferred[0].weight, nodes.preferred[0].preference.match_expressions[0].operator) == (
        5,
        "Exists",
    )
    near = spec.affinity.pod_affinity.required[0]
    assert (near.topology_key, near.namespaces, near.namespace_selector) == (
        "zone",
        ("other",),
        LabelSelector(),
    )
    assert (near.match_label_keys, near.mismatch_label_keys) == (("hash",), ("tenant",))
    apart = spec.affinity.pod_anti_affinity.preferred[0]
    assert (apart.weight, apart.pod_affinity_term.topology_key) == (100, "kubernetes.io/hostname")
    assert (apart.pod_affinity_term.label_selector, apart.pod_affinity_term.namespace_selector) == (
        None,
        None,
    )
    toleration = spec.tolerations[0]
    assert (toleration.key, toleration.value, toleration.effect, toleration.toleration_seconds) == (
        "gpu",
        "yes",
        "NoExecute",
        9,
    )
    spread = spec.topology_spread_constraints[0]
    assert (spread.max_skew, spread.topology_key, spread.min_domains) == (1, "zone", 2)
    assert (spread.when_unsatisfiable, spread.node_affinity_policy, spread.node_taints_policy) == (
        "DoNotSchedule",
        "Honor",
        "Ignore",
    )


def test_the_state_of_a_pod_is_read() -> None:
    """Phase, conditions whose moment may be null, and each container's state."""
    status = read(Pod, POD).status
    assert (status.phase, status.reason, status.message) == ("Failed", "OutOfcpu", "no room")
    assert (status.host_ip, status.pod_ip, status.nominated_node_name) == ("10.0.0.1", "10.1.0.1", "n2")
    assert condition_of(status.conditions, "PodScheduled").status == "True"
    assert condition_of(status.conditions, "Ready").last_transition_time is None
    assert condition_of(status.conditions, "Other") is None
    main = status.container_statuses[0]
    ended = main.state.terminated
    assert (ended.exit_code, ended.signal, ended.reason, ended.message) == (137, 9, "OOMKilled", "{}")
    assert moment_ms(ended.finished_at) - moment_ms(ended.started_at) == 61_000
    assert (main.restart_count, main.last_state.running.started_at) == (1, "2026-11-21T11:39:58Z")
    assert status.init_container_statuses[0].state.waiting.reason == "ImagePullBackOff"


def test_volumes_say_their_kind() -> None:
    """A claim also its name; a kind that nobody here knows is the empty one."""
    volumes = read(Pod, POD).spec.volumes
    assert [volume.kind for volume in volumes] == ["persistentVolumeClaim", "ephemeral", "emptyDir", ""]
    claim = volumes[0].persistent_volume_claim
    assert (claim.claim_name, claim.read_only) == ("data", True)
    told = {"name": "x", "awsElasticBlockStore": {"volumeID": "vol-1", "readOnly": True}}
    volume = read(Volume, told)
    assert (volume.kind, volume.aws_elastic_block_store.volume_id) == ("awsElasticBlockStore", "vol-1")
    assert read(Volume, {"name": "x", "downwardAPI": {}}).kind == "downwardAPI"


def test_a_node_is_read() -> None:
    """Labels, taints, amounts, conditions, images, addresses."""
    node = read(
        Node,
        {
            "metadata": {"name": "n1", "labels": {"topology.kubernetes.io/zone": "z"}},
            "spec": {
                "unschedulable": True,
                "taints": [{"key": "k", "value": "v", "effect": "NoSchedule", "timeAdded": None}],
            },
            "status": {
                "allocatable": {"cpu": "3920m", "memory": "15Gi", "pods": "110", "nvidia.com/gpu": "2"},
                "capacity": {"cpu": "4"},
                "conditions": [
                    {"type": "Ready", "status": "Unknown", "lastHeartbeatTime": "2026-11-21T11:39:58Z"}
                ],
                "images": [{"names": ["busybox:1", "busybox@sha256:0"], "sizeBytes": 1234}],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "nodeInfo": {"architecture": "amd64", "kubeletVersion": "v1.36.3"},
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            },
        },
    )
    assert (node.spec.unschedulable, node.spec.taints[0].effect) == (True, "NoSchedule")
    assert node.status.allocatable["nvidia.com/gpu"] == "2"
    assert (node.status.images[0].names[0], node.status.images[0].size_bytes) == ("busybox:1", 1234)
    assert (node.status.addresses[0].address, node.status.node_info.architecture) == ("10.0.0.1", "amd64")
    assert node.status.conditions[0].status == "Unknown"


def test_native_podgroups_of_both_versions_are_read() -> None:
    """v1alpha2 and v1beta1 differ in the disruption mode's form."""
    alpha = read(
        NativePodGroup,
        {
            "metadata": {"name": "g"},
            "spec": {
                "podGroupTemplateRef": {"workload": {"workloadName": "w", "podGroupTemplateName": "t"}},
                "schedulingPolicy": {"gang": {"minCount": 6}},
                "schedulingConstraints": {"topology": [{"key": "rack"}]},
                "disruptionMode": "PodGroup",
                "priority": 5,
            },
            "status": {"conditions": [{"type": "PodGroupScheduled", "status": "False"}]},
        },
    )
    assert (
        alpha.spec.scheduling_policy.gang.min_count,
        alpha.spec.disruption_mode,
        alpha.spec.priority,
    ) == (6, "PodGroup", 5)
    assert alpha.spec.scheduling_constraints.topology[0].key == "rack"
    beta = read(
        NativePodGroup, {"spec": {"schedulingPolicy": {"basic": {}}, "disruptionMode": {"single": {}}}}
    )
    assert (
        beta.spec.scheduling_policy.gang,
        beta.spec.scheduling_policy.basic,
        beta.spec.disruption_mode,
    ) == (None, {}, {"single": {}})


def test_foreign_podgroups_are_read_with_their_nulls() -> None:
    """What an operator leaves out may be null; amounts may be numbers."""
    group = read(
        CoschedulingPodGroup,
        {
            "spec": {
                "minMember": 3,
                "minResources": {"cpu": 3, "memory": "1Gi"},
                "scheduleTimeoutSeconds": 10,
            },
            "status": {},
        },
    )
    assert (group.spec.min_member, group.spec.min_resources, group.spec.schedule_timeout_seconds) == (
        3,
        {"cpu": 3, "memory": "1Gi"},
        10,
    )
    volcano = read(
        VolcanoPodGroup,
        {
            "spec": {
                "minMember": 6,
                "minTaskMember": {"ps": 2, "worker": 4},
                "queue": "q",
                "minResources": None,
                "priorityClassName": None,
                "networkTopology": {"mode": "hard", "highestTierAllowed": 1},
                "subGroupPolicy": [{"name": "a", "labelSelector": {"matchLabels": {"x": "y"}}}],
            },
            "status": {
                "phase": "Inqueue",
                "conditions": [{"type": "Scheduled", "status": "True", "transitionID": "s1", "reason": "r"}],
            },
        },
    )
    assert (volcano.spec.min_member, volcano.spec.min_task_member, volcano.spec.queue) == (
        6,
        {"ps": 2, "worker": 4},
        "q",
    )
    assert (volcano.spec.min_resources, volcano.spec.network_topology.highest_tier_allowed) == (None, 1)
    assert (volcano.status.phase, volcano.status.conditions[0].transition_id) == ("Inqueue", "s1")
    assert volcano.spec.sub_group_policy[0].label_selector.match_labels == {"x": "y"}
    queue = read(
        VolcanoQueue,
        {
            "spec": {"weight": 3, "guarantee": {"resource": {"cpu": "2"}}, "parent": "root"},
            "status": {"state": "Open"},
        },
    )
    assert (queue.spec.weight, queue.spec.guarantee.resource, queue.spec.parent, queue.status.state) == (
        3,
        {"cpu": "2"},
        "root",
        "Open",
    )


def test_volumes_of_the_cluster_are_read() -> None:
    """Where they can be reached, whose they are, when they are bound."""
    volume = read(
        PersistentVolume,
        {
            "spec": {
                "capacity": {"storage": "10Gi"},
                "claimRef": {"namespace": "lab", "name": "data", "uid": "u"},
                "storageClassName": "local",
                "nodeAffinity": {
                    "required": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
                        ]
                    }
                },
            },
            "status": {"phase": "Bound"},
        },
    )
    assert (volume.spec.claim_ref.name, volume.spec.storage_class_name, volume.status.phase) == (
        "data",
        "local",
        "Bound",
    )
    assert volume.spec.node_affinity.required.node_selector_terms[0].match_expressions[0].values == ("a",)
    claim = read(
        PersistentVolumeClaim,
        {
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            "status": {"phase": "Pending"},
        },
    )
    assert (claim.spec.storage_class_name, claim.spec.resources.requests) == (None, {"storage": "1Gi"})
    later = read(StorageClass, {"provisioner": "p", "volumeBindingMode": "WaitForFirstConsumer"})
    assert (later.provisioner, later.volume_binding_mode) == ("p", "WaitForFirstConsumer")
    lease = read(
        Lease,
        {
            "spec": {
                "holderIdentity": "a",
                "leaseDurationSeconds": 15,
                "renewTime": "2026-01-01T00:00:00.500000Z",
            }
        },
    )
    assert moment_ms(lease.spec.renew_time) == 1_767_225_600_500
    level = read(PriorityClass, {"metadata": {"name": "x"}, "value": -5, "globalDefault": True})
    assert (level.value, level.global_default) == (-5, True)


@pytest.mark.parametrize("kind", KINDS)
def test_an_object_may_be_no_more_than_its_metadata(kind: type[Any]) -> None:
    """All fields but that have defaults: a malformed DELETED is buried as such a one."""
    found = read(kind, {"metadata": {"name": "a", "uid": "u", "resourceVersion": "5"}})
    assert (found.metadata.name, found.metadata.uid) == ("a", "u")
    assert read(kind, msgspec.to_builtins(found)) == found


def test_an_event_is_looked_at_before_its_object() -> None:
    """A bookmark of a pod has null containers, and an ERROR is no pod at all."""
    line = b'{"type":"BOOKMARK","object":{"kind":"Pod","metadata":{"resourceVersion":"7"},"spec":{"containers":null}}}'
    event = msgspec.json.decode(line, type=WatchEvent)
    assert event.type == "BOOKMARK"
    assert msgspec.json.decode(event.object, type=OnlyMetadata).metadata.resource_version == "7"
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(event.object, type=Pod)


def test_a_list_may_have_no_items() -> None:
    """Go writes an empty one as null."""
    found = msgspec.json.decode(b'{"metadata":{"resourceVersion":"7"},"items":null}', type=ObjectList[Pod])
    assert (found.items, found.metadata.resource_version, found.metadata.next_page) == (None, "7", "")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=10,
)


def paths(value: Any, so_far: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All places in a document."""
    if isinstance(value, dict):
        return [so_far, *(path for key, inner in value.items() for path in paths(inner, (*so_far, key)))]
    if isinstance(value, list):
        return [so_far, *(path for at, inner in enumerate(value) for path in paths(inner, (*so_far, at)))]
    return [so_far]


PLACES = [path for path in paths(POD) if path]


@given(st.sampled_from(PLACES), JSON, st.sampled_from(KINDS))
def test_fault_28_no_hostile_object_does_harm(place: tuple[Any, ...], value: Any, kind: type[Any]) -> None:
    """Anything may stand anywhere: it is read or refused, never anything else."""
    document = json.loads(json.dumps(POD))
    parent = document
    for step in place[:-1]:
        parent = parent[step]
    parent[place[-1]] = value
    try:
        found = read(kind, document)
    except msgspec.MsgspecError:
        return
    assert isinstance(found.metadata, Metadata)


@pytest.mark.parametrize(
    ("text", "scale", "expected"),
    [
        ("500m", 1000, 500),
        ("0.1", 1000, 100),
        ("1e3", 1, 1000),
        ("1E", 1, 10**18),
        ("1.5Gi", 1, 1_610_612_736),
        ("2Ki", 1, 2048),
        ("1k", 1, 1000),
        ("100n", 1000, 1),
        ("250u", 1000, 1),
        ("0", 1000, 0),
        ("128974848", 1, 128_974_848),
        ("129e6", 1, 129_000_000),
        ("123Mi", 1, 128_974_848),
        (".5", 1000, 500),
        ("5.", 1, 5),
        ("+3", 1, 3),
        (3, 1000, 3000),
        (0.5, 1000, 500),
    ],
)
def test_quantities_are_read_as_kubernetes_does(text: str | float, scale: int, expected: int) -> None:
    """Suffixes, exponents, fractions; rounded up where a unit is too coarse."""
    assert quantity(text, scale) == expected


@pytest.mark.parametrize("text", ["", "x", "1K", "1 Gi", "-1", "1e", "1.2.3", "0x10", "١"])
def test_what_is_no_quantity(text: str) -> None:
    """Is refused by one error."""
    with pytest.raises(InvalidRequest):
        quantity(text)


@pytest.mark.kubernetes
async def test_the_real_server_reads_the_same_quantities(client: Client, namespace: str) -> None:
    """It takes what we take, refuses what we refuse, and its canonical form (in thousandths) is the same for us."""
    path = f"/api/v1/namespaces/{namespace}/pods"

    async def canonical(text: str) -> str | None:
        resources = {"requests": {"memory": text}}
        containers = [{"name": "main", "image": "i", "resources": resources}]
        document = {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"generateName": "q-"},
            "spec": {"containers": containers},
        }
        answer = await client.call("POST", path, body=json.dumps(document).encode(), params={"dryRun": "All"})
        if answer.status != 201:
            return None
        return str(json.loads(answer.body)["spec"]["containers"][0]["resources"]["requests"]["memory"])

    for text in (
        "1.5Gi",
        "2e3",
        "1E",
        "0.5",
        ".5",
        "5.",
        "+3",
        "1500m",
        "100n",
        "1.5Ki",
        "123Mi",
        "12k",
        "1e-1",
    ):
        told = await canonical(text)
        assert told is not None, text
        assert quantity(told, 1000) == quantity(text, 1000), (text, told)
    for text in ("x", "1K", "1 Gi", "1e", "1.2.3", "0x10"):
        assert await canonical(text) is None, text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-21T11:39:58Z", 1_795_261_198_000),
        ("2026-11-21T11:39:58.123456Z", 1_795_261_198_123),
        ("2026-11-21T12:39:58+01:00", 1_795_261_198_000),
        (None, None),
        ("", None),
        ("yesterday", None),
        ("2026-11-21T11:39:58", None),
    ],
)
def test_moments(text: str | None, expected: int | None) -> None:
    """In ms; what is none is None, also if it is nonsense."""
    assert moment_ms(text) == expected


def test_moments_are_written_as_the_api_wants_them() -> None:
    """Whole seconds, or microseconds where it wants those."""
    assert timestamp(1_795_261_198_123) == "2026-11-21T11:39:58Z"
    assert micro_timestamp(1_795_261_198_123) == "2026-11-21T11:39:58.123000Z"


def test_selectors() -> None:
    """All conditions must hold; none selects everything, no selector nothing."""
    labels = {"app": "ps", "tier": "1"}
    assert selects(LabelSelector(), labels)
    assert not selects(None, labels)
    assert selects(LabelSelector(match_labels={"app": "ps"}), labels)
    assert not selects(LabelSelector(match_labels={"app": "ps", "x": "y"}), labels)
    for operator, key, values, holds in [
        ("In", "app", ("ps", "worker"), True),
        ("In", "other", ("ps",), False),
        ("NotIn", "app", ("ps",), False),
        ("NotIn", "other", ("ps",), True),
        ("Exists", "app", (), True),
        ("Exists", "other", (), False),
        ("DoesNotExist", "other", (), True),
        ("DoesNotExist", "app", (), False),
        ("Near", "app", (), False),
    ]:
        selector = LabelSelector(match_expressions=(Requirement(key, operator, values),))
        assert selects(selector, labels) is holds, operator
