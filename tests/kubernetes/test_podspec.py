"""What pods ask for and where they may run: as Kubernetes' own code computes it, and in literals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowsched.cluster.kubernetes.objects.core import PersistentVolume
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.pod_constraints import (
    rules_of,
    selector_pairs,
    template_of,
    toleration_rows,
    volume_nodes,
)
from flowsched.cluster.kubernetes.objects.pod_requests import (
    LARGEST,
    claims_of,
    host_ports,
    image_of,
    qos_class,
    requests_of,
    resources_of,
)
from flowsched.errors import InvalidRequest
from flowsched.executor.constraints import HostPort, NodeTerm, PodTerm, Requirement, Spread
from flowsched.workflow.spec import Resources

FIXTURES = Path(__file__).parent / "thirdparty" / "pod_requests.jsonl"
CASES = [json.loads(line) for line in FIXTURES.read_text().splitlines()]


def pod(spec: dict[str, Any], **metadata: Any) -> Pod:
    return msgspec.convert({"metadata": {"name": "p", "namespace": "lab", **metadata}, "spec": spec}, Pod)


def asks(**amounts: str) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": amounts}}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["pod"]["metadata"]["name"])
def test_amounts_are_those_of_kubernetes(case: dict[str, Any]) -> None:
    """Sidecars, init containers, overhead, pod-level amounts, resizes, fractions: all as its own code adds them up."""
    theirs = msgspec.convert(case["pod"], Pod)
    told = case["requests"]
    known = ("cpu", "memory", "ephemeral-storage", "nvidia.com/gpu")
    assert requests_of(theirs) == Resources(
        told.get("cpu", 0),
        told.get("memory", 0),
        told.get("ephemeral-storage", 0),
        1000 * told.get("nvidia.com/gpu", 0),
        {name: amount for name, amount in told.items() if name not in known and amount} | {"pods": 1},
    )
    assert qos_class(theirs) == case["qos"]
    ports = {
        f"{'' if port.ip == '0.0.0.0' else port.ip}/{port.protocol}/{port.port}"
        for port in host_ports(theirs)
    }
    assert ports == set(case["ports"])


def test_the_cases_are_of_every_kind() -> None:
    """Else the test above would say less than it seems to."""
    assert {case["qos"] for case in CASES} == {"Guaranteed", "Burstable", "BestEffort"}
    specs = [case["pod"]["spec"] for case in CASES]
    texts = [json.dumps(case["pod"]) for case in CASES]
    assert sum("resources" in spec for spec in specs) >= 10
    assert sum("overhead" in spec for spec in specs) >= 10
    for word in ("Always", "Infeasible", "Deferred", "allocatedResources", "hugepages-2Mi", "2500u", "1n"):
        assert any(word in text for text in texts), word


def test_an_init_container_may_need_the_most() -> None:
    """It runs beside the sidecars that were started before it, not those after."""
    side = asks(cpu="1", memory="1Gi") | {"restartPolicy": "Always"}
    spec = {
        "initContainers": [asks(cpu="3"), side, asks(cpu="3", memory="2Gi"), side],
        "containers": [asks(cpu="500m"), asks(cpu="250m")],
        "overhead": {"cpu": "10m"},
    }
    assert requests_of(pod(spec)) == Resources(4010, 3 << 30, extended={"pods": 1})


def test_a_pod_that_asks_for_nothing_takes_a_place() -> None:
    """Of the node's `pods`."""
    assert requests_of(pod({"containers": [{"name": "c"}]})) == Resources(0, 0, extended={"pods": 1})


def test_gpus_have_the_name_they_are_given() -> None:
    """Of another maker's they are extended resources."""
    spec = {"containers": [asks(**{"nvidia.com/gpu": "1", "amd.com/gpu": "2"})]}
    assert requests_of(pod(spec)).gpu_millis == 1000
    assert requests_of(pod(spec), "amd.com/gpu").gpu_millis == 2000
    assert requests_of(pod(spec), "").extended == {"amd.com/gpu": 2, "nvidia.com/gpu": 1, "pods": 1}


@pytest.mark.parametrize("amount", ["", "lots", "-1", "1" * 100, "1e999", "9" * 60])
def test_an_amount_beyond_reason_fits_nowhere(amount: str) -> None:
    """No API server lets one in; if one comes all the same, nothing is placed on it, and sums fit 64 bits."""
    assert requests_of(pod({"containers": [asks(memory=amount)]})).memory_bytes == LARGEST


def test_a_list_of_amounts() -> None:
    """As `minResources` says it; there people write, so what is wrong is said."""
    amounts = {"cpu": 1.5, "memory": "1Gi", "nvidia.com/gpu": 2, "pods": "110", "example.org/x": "0"}
    assert resources_of(amounts) == Resources(1500, 1 << 30, 0, 2000, {"pods": 110})
    with pytest.raises(InvalidRequest, match="no quantity"):
        resources_of({"cpu": "many"})


# --- where it may run ----------------------------------------------------------------------------------------


def test_affinity_to_nodes() -> None:
    """Terms of which one holds, requirements of which all do; wishes apart."""
    expression = {"key": "disk", "operator": "In", "values": ["ssd", "nvme", "ssd"]}
    named = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    cores = {"key": "cores", "operator": "Gt", "values": ["8"]}
    rules = rules_of(
        pod(
            {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [expression, cores]},
                                {"matchFields": [named]},
                                {},
                            ]
                        },
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {"weight": 7, "preference": {"matchExpressions": [cores]}}
                        ],
                    }
                }
            }
        )
    )
    gt = Requirement("cores", "Gt", ("8",))
    assert rules.nodes is not None
    assert set(rules.nodes) == {
        NodeTerm((gt, Requirement("disk", "In", ("nvme", "ssd")))),
        NodeTerm((), (Requirement("metadata.name", "In", ("n1",)),)),
        NodeTerm(),
    }
    assert rules.preferred_nodes == ((7, NodeTerm((gt,))),)
    assert rules_of(pod({})).nodes is None
    nowhere = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
    assert rules_of(pod({"affinity": nowhere})).nodes == ()


def test_affinity_to_pods() -> None:
    """No namespaces mean its own; an empty selector is not the same as none; away is a negative wish."""
    term = {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "db"}}}
    rules = rules_of(
        pod(
            {
                "affinity": {
                    "podAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [
                            term,
                            {"topologyKey": "zone", "labelSelector": {}, "namespaceSelector": {}},
                        ],
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {"weight": 5, "podAffinityTerm": term}
                        ],
                    },
                    "podAntiAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": [
                            {"topologyKey": "kubernetes.io/hostname", "namespaces": ["b", "a"]}
                        ],
                        "preferredDuringSchedulingIgnoredDuringExecution": [
                            {"weight": 9, "podAffinityTerm": term}
                        ],
                    },
                }
            },
            labels={"b": "2", "a": "1"},
        )
    )
    db = (Requirement("app", "In", ("db",)),)
    assert rules.labels == (("a", "1"), ("b", "2"))
    assert set(rules.affinity) == {PodTerm("zone", db, ("lab",)), PodTerm("zone", (), (), ())}
    assert rules.anti_affinity == (PodTerm("kubernetes.io/hostname", None, ("a", "b")),)
    assert set(rules.preferred_pods) == {
        (5, PodTerm("zone", db, ("lab",))),
        (-9, PodTerm("zone", db, ("lab",))),
    }


def test_spread() -> None:
    """Its defaults are Kubernetes'; matchLabelKeys become requirements."""
    hard = {
        "maxSkew": 2,
        "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
        "minDomains": 3,
        "nodeAffinityPolicy": "Ignore",
        "nodeTaintsPolicy": "Honor",
        "matchLabelKeys": ["hash", "absent"],
    }
    soft = {"maxSkew": 1, "topologyKey": "host", "whenUnsatisfiable": "ScheduleAnyway"}
    rules = rules_of(pod({"topologySpreadConstraints": [hard, soft]}, labels={"hash": "x"}))
    exists, same = Requirement("app", "Exists"), Requirement("hash", "In", ("x",))
    assert rules.spread == (Spread("zone", 2, (exists, same), 3, False, True),)
    assert rules.preferred_spread == (Spread("host", 1, None, 1, True, False),)


def test_ports_selector_and_tolerations() -> None:
    """Sorted, each once; an empty operator is Equal; of init containers only sidecars hold ports."""
    ports = {
        "name": "c",
        "ports": [{"containerPort": 1}, {"hostPort": 80}, {"hostPort": 80, "protocol": "TCP"}],
    }
    starting = {"name": "i", "ports": [{"hostPort": 81}]}
    sidecar = {
        "name": "s",
        "restartPolicy": "Always",
        "ports": [{"hostPort": 53, "protocol": "UDP", "hostIP": "::1"}],
    }
    given = pod(
        {
            "containers": [ports],
            "initContainers": [starting, sidecar],
            "nodeSelector": {"b": "2", "a": "1"},
            "tolerations": [
                {"key": "k", "value": "v", "effect": "NoSchedule"},
                {"operator": "Exists", "value": "ignored", "tolerationSeconds": 300},
                {"operator": "Exists"},
            ],
        }
    )
    assert host_ports(given) == (HostPort("0.0.0.0", "TCP", 80), HostPort("::1", "UDP", 53))
    assert rules_of(given).ports == host_ports(given)
    assert selector_pairs(given) == (("a", "1"), ("b", "2"))
    assert toleration_rows(given) == (("", "Exists", "", ""), ("k", "Equal", "v", "NoSchedule"))


def test_claims_and_where_their_volumes_are() -> None:
    """An ephemeral claim has the pod's name in its own; a volume without node affinity is everywhere."""
    given = pod(
        {
            "volumes": [
                {"name": "a", "persistentVolumeClaim": {"claimName": "data"}},
                {"name": "b", "ephemeral": {"volumeClaimTemplate": {}}},
                {"name": "c", "emptyDir": {}},
            ]
        }
    )
    assert claims_of(given) == ("data", "p-b")
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    tied = {"spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}}}
    terms = volume_nodes(msgspec.convert(tied, PersistentVolume))
    assert terms == (NodeTerm((Requirement("zone", "In", ("a",)),)),)
    assert volume_nodes(PersistentVolume()) is None
    assert rules_of(given, [terms]).volumes == (terms,)


def test_devices_that_a_pod_claims_are_a_problem() -> None:
    """Unless another one was found before."""
    given = pod({"resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}]})
    assert (
        template_of(given).problem == "it claims devices (gpu): dynamic resource allocation is not done here"
    )
    assert template_of(given, problem="no volume").problem == "no volume"


def test_equal_pods_have_equal_templates() -> None:
    """In whatever order they say it; and a difference that matters is one."""
    taints = [{"key": "a", "operator": "Exists"}, {"key": "b", "operator": "Exists"}]
    spec = {
        "containers": [asks(cpu="1") | {"image": "x"}],
        "nodeSelector": {"a": "1", "b": "2"},
        "tolerations": taints,
    }
    turned = {**spec, "nodeSelector": {"b": "2", "a": "1"}, "tolerations": taints[::-1]}
    assert template_of(pod(spec)) == template_of(pod(turned))
    assert hash(template_of(pod(spec))) == hash(template_of(pod(turned)))
    assert template_of(pod(spec)) != template_of(pod({**spec, "nodeSelector": {}}))
    assert template_of(pod(spec)).image == "x"
    assert template_of(pod(spec), problem="no volume").problem == "no volume"


def test_the_image_that_counts() -> None:
    """The one of the container that asks for the most CPU."""
    containers = [
        asks(cpu="1") | {"image": "a"},
        asks(cpu="2") | {"image": "b"},
        asks(cpu="2") | {"image": "c"},
    ]
    assert image_of(pod({"containers": containers})) == "b"
    assert image_of(pod({})) is None
