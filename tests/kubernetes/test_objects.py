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
    StorageClass,
    WatchEvent,
)
from flowsched.cluster.kubernetes.objects.metadata import (
    LabelSelector,
    Metadata,
    Requirement,
    micro_timestamp,
    moment_ms,
    quantity,
    selects,
    timestamp,
)
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.podgroup import (
    CoschedulingPodGroup,
    NativePodGroup,
    VolcanoPodGroup,
)
from flowsched.errors import InvalidRequest

KINDS: tuple[type[Any], ...] = (
    Pod,
    Node,
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    Lease,
    NativePodGroup,
    CoschedulingPodGroup,
    VolcanoPodGroup,
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
