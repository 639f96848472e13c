"""What ResourceQuotas mean on the scheduler's axes: what flowsched's own pods have of them is not counted twice."""

from __future__ import annotations

from typing import Any

import pytest

from flowsched.cluster.kubernetes.api.watch import Batch
from flowsched.cluster.kubernetes.objects.core import ResourceQuota
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings
from flowsched.cluster.kubernetes.quotas import Quotas
from flowsched.executor.quotas import QuotaChanged, QuotaLimit
from tests.kubernetes.test_objects import read

MIB = 1 << 20


def quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> ResourceQuota:
    status = {"hard": hard, "used": used or {}}
    return read(ResourceQuota, {"metadata": {"name": "team"}, "spec": spec, "status": status})


def pod(uid: str, phase: str = "Pending", **labels: str) -> Pod:
    """One of ours: 500 m, 128 MiB and a GPU, limits of 1 CPU and 256 MiB, beside an init container that needs more memory."""
    gpu = {"nvidia.com/gpu": "1"}
    task = {
        "requests": {"cpu": "500m", "memory": "128Mi"} | gpu,
        "limits": {"cpu": "1", "memory": "256Mi"} | gpu,
    }
    init = {"requests": {"cpu": "500m", "memory": "200Mi"}, "limits": {"cpu": "1", "memory": "512Mi"}}
    spec = {
        "containers": [{"name": "task", "resources": task}],
        "initContainers": [{"name": "in", "resources": init}],
    }
    return read(Pod, {"metadata": {"uid": uid, "labels": labels}, "spec": spec, "status": {"phase": phase}})


def following() -> tuple[Quotas, list[QuotaChanged]]:
    seen: list[QuotaChanged] = []
    return Quotas(ReleaseSettings("work", "flowsched", "none", b"key", 0), seen.append), seen


def test_every_resource_that_pods_ask_for_has_its_axis() -> None:
    """In its unit; what others have is what is used without ours. Services, volumes and other counts are the server's."""
    quotas, seen = following()
    quotas.observe(pod("a"))
    used = {
        "pods": "3", "count/pods": "4", "cpu": "2", "requests.memory": "1Gi", "limits.cpu": "1500m", "limits.memory": "1Gi",
        "requests.nvidia.com/gpu": "3", "requests.example.com/fpga": "1", "requests.ephemeral-storage": "1Ki",
        "services": "1", "requests.storage": "1Gi", "count/jobs.batch": "1",
        "gold.storageclass.storage.k8s.io/requests.storage": "1Gi",
    }  # fmt: skip
    quotas.changed(Batch(replaced=[quota(dict.fromkeys(used, "10"), used)]))
    assert seen == [
        QuotaChanged(
            "team",
            (
                QuotaLimit("count/pods", "pods", 10, 3),
                QuotaLimit("cpu", "cpu", 10_000, 1_500),
                QuotaLimit("limits.cpu", "cpu", 10_000, 500),
                QuotaLimit("limits.memory", "memory", 10, 512 * MIB),
                QuotaLimit("pods", "pods", 10, 2),
                QuotaLimit("requests.ephemeral-storage", "disk", 10, 1024),
                QuotaLimit("requests.example.com/fpga", "example.com/fpga", 10, 1),
                QuotaLimit("requests.memory", "memory", 10, 824 * MIB),
                QuotaLimit("requests.nvidia.com/gpu", "gpu", 10_000, 2_000),
            ),
        )
    ]
    assert quotas.everything() == seen


def test_our_pods_that_have_ended_are_the_others_until_they_are_not_counted() -> None:
    """The engine's claims do not count them. Each change is told once."""
    quotas, seen = following()
    quotas.observe(pod("a"))
    quotas.changed(Batch(replaced=[quota({"pods": "4"}, {"pods": "2"})]))
    quotas.observe(pod("a", "Running"))
    quotas.report_changes()
    quotas.observe(pod("a", "Succeeded"))
    quotas.report_changes()
    quotas.gone("a")
    quotas.changed(Batch(changed=[("MODIFIED", quota({"pods": "4"}, {"pods": "1"}))]))
    quotas.changed(Batch(changed=[("DELETED", quota({"pods": "4"}, {"pods": "1"}))]))
    others = [[limit.others for limit in event.limits] for event in seen]
    assert others == [[1], [2], [1], []]
    assert quotas.everything() == []


def test_what_no_controller_has_counted_is_not_enforced() -> None:
    """The server enforces the status, and that is empty so far."""
    quotas, seen = following()
    quotas.changed(Batch(changed=[("ADDED", quota({}))]))
    assert seen == []


@pytest.mark.parametrize(
    ("spec", "counts"),
    [
        ({"scopes": ["NotBestEffort"]}, True),
        ({"scopes": ["BestEffort"]}, False),
        ({"scopes": ["NotBestEffort", "Terminating"]}, False),  # some tasks have a time limit
        ({"scopes": ["CrossNamespacePodAffinity"]}, False),
        ({"scopeSelector": [("PriorityClass", "In", ["high"])]}, False),
        ({"scopeSelector": [("PriorityClass", "NotIn", ["high"])]}, True),
        ({"scopeSelector": [("PriorityClass", "Exists", [])]}, False),
        ({"scopeSelector": [("PriorityClass", "DoesNotExist", [])]}, True),
    ],
)
def test_a_quota_is_followed_if_its_scopes_count_each_of_our_pods(spec: dict[str, Any], counts: bool) -> None:
    """Else the server decides when a pod is made."""
    seen: list[QuotaChanged] = []
    settings = ReleaseSettings("work", "flowsched", "none", b"key", 0)
    quotas = Quotas(settings, seen.append)
    if isinstance(selector := spec.get("scopeSelector"), list):
        rows = [{"scopeName": name, "operator": what, "values": values} for name, what, values in selector]
        spec = {"scopeSelector": {"matchExpressions": rows}}
    quotas.changed(Batch(replaced=[quota({"pods": "4"}, **spec)]))
    assert bool(seen) is counts
