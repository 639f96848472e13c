"""A real API server's opinion of deploy/: it takes all of it, keeps the agent out of tenants, and holds the roles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.api.watch import Batch
from flowsched.cluster.kubernetes.dra.claims import DeviceClaims
from flowsched.cluster.kubernetes.dra.inventory import API, places_of
from flowsched.cluster.kubernetes.objects.release import GpuSettings
from flowsched.values import replace
from tests.deploy.conftest import Cluster
from tests.deploy.rendering import (
    BASE,
    LIKE_THE_BASE,
    OVERLAYS,
    Object,
    documents,
    pod_templates,
    rendered_helm,
    rendered_kustomize,
)
from tests.kubernetes.device_world import device_class, publish
from tests.kubernetes.written import SETTINGS, task

pytestmark = pytest.mark.kubernetes


@pytest.mark.parametrize("folder", [BASE, *OVERLAYS], ids=lambda folder: folder.name)
def test_the_server_takes_every_object(cluster: Cluster, folder: Path) -> None:
    """Each one, strictly validated: no unknown field, no value that is not allowed."""
    told = cluster.do("apply", "--dry-run=server", "--validate=strict", "-k", str(folder))
    lines = told.strip().splitlines()
    assert len(lines) >= 17
    assert all(line.endswith("(server dry run)") for line in lines)


def test_the_server_takes_every_object_of_the_chart(cluster: Cluster, helm: str) -> None:
    """With all that can be switched on, switched on."""
    values = {
        **LIKE_THE_BASE,
        "agent.cache.hostPath": "/mnt/nvme/flowsched",
        "agent.seLinuxOptions.type": "spc_t",
        "service.annotations.a": "b",
        "nodeSelector.pool": "system",
    }
    rendered = rendered_helm(helm, values)
    told = cluster.do("apply", "--dry-run=server", "--validate=strict", "-f", "-", told=rendered)
    assert len(told.strip().splitlines()) == len(documents(rendered))


def test_an_unknown_field_would_be_refused(cluster: Cluster) -> None:
    """The two tests above can fail."""
    text = (BASE / "service.yaml").read_text(encoding="utf-8").replace("targetPort", "targetProt")
    said = cluster.ask("apply", "--dry-run=server", "--validate=strict", "-f", "-", told=text)
    assert 'unknown field "spec.ports[0].targetProt"' in said.stderr


def pod_of(template: Object, namespace: str) -> str:
    """The pod a controller would make of a template. Its account is left out: the plugin that wants it is off here."""
    spec = {key: value for key, value in template["spec"].items() if key != "serviceAccountName"}
    metadata = {
        "name": "as-a-controller-would",
        "namespace": namespace,
        "labels": template["metadata"]["labels"],
    }
    return json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


@pytest.fixture(scope="module")
def templates(kubectl: str) -> dict[str, Object]:
    return dict(pod_templates(documents(rendered_kustomize(kubectl, BASE))))


def test_the_service_would_pass_where_tasks_run(cluster: Cluster, templates: dict[str, Object]) -> None:
    """Its pod meets Pod Security `restricted`, although its namespace does not ask for it."""
    pod = pod_of(templates["flowsched"], "flowsched")
    assert "created (server dry run)" in cluster.do("create", "--dry-run=server", "-f", "-", told=pod)


def test_the_agent_would_not_pass_where_tasks_run(cluster: Cluster, templates: dict[str, Object]) -> None:
    """Nobody can start one, or anything like it, beside the tasks."""
    said = cluster.ask(
        "create", "--dry-run=server", "-f", "-", told=pod_of(templates["flowsched-agent"], "flowsched")
    )
    assert said.returncode != 0
    assert 'violates PodSecurity "restricted:latest"' in said.stderr
    for reason in ("hostPath", "hostPort", "unrestricted capabilities", "runAsNonRoot != true"):
        assert reason in said.stderr


def test_the_agent_passes_in_its_own_namespace(cluster: Cluster, templates: dict[str, Object]) -> None:
    """That is why it has one."""
    pod = pod_of(templates["flowsched-agent"], "flowsched-system")
    assert "created (server dry run)" in cluster.do("create", "--dry-run=server", "-f", "-", told=pod)


@pytest.mark.parametrize(
    ("verb", "resource", "namespace"),
    [
        ("create", "pods/binding", "default"),
        ("create", "pods/eviction", "default"),
        ("patch", "pods/status", "default"),
        ("watch", "pods", "default"),
        ("list", "nodes", "default"),
        ("watch", "poddisruptionbudgets.policy", "default"),
        ("create", "pods", "flowsched"),
        ("delete", "pods", "flowsched"),
        ("create", "secrets", "flowsched"),
        ("get", "pods/log", "flowsched"),
        ("watch", "resourcequotas", "flowsched"),
        ("create", "podgroups.scheduling.x-k8s.io", "flowsched"),
        ("patch", "podgroups.scheduling.volcano.sh", "default"),
    ],
)
def test_the_service_may(installed: Cluster, verb: str, resource: str, namespace: str) -> None:
    """What it is there for, asked of the server itself as the service's account."""
    assert installed.may("scheduler", verb, resource, namespace)


@pytest.mark.parametrize(
    ("verb", "resource", "namespace"),
    [
        ("get", "secrets", "flowsched"),
        ("list", "secrets", "flowsched"),
        ("watch", "secrets", "flowsched-system"),
        ("create", "pods", "default"),
        ("delete", "pods", "default"),
        ("create", "pods", "flowsched-system"),
        ("create", "pods/exec", "flowsched"),
        ("patch", "pods", "default"),
        ("patch", "pods", "kube-system"),
        ("get", "pods/log", "default"),
        ("create", "secrets", "default"),
        ("patch", "nodes", "default"),
        ("create", "rolebindings.rbac.authorization.k8s.io", "flowsched"),
        ("create", "serviceaccounts/token", "flowsched"),
        ("update", "deployments.apps", "flowsched-system"),
    ],
)
def test_the_service_may_not(installed: Cluster, verb: str, resource: str, namespace: str) -> None:
    """Read a secret, run in other people's pods, make anything outside its tenants, or change its own rights."""
    assert not installed.may("scheduler", verb, resource, namespace)


async def test_the_service_may_claim_gpus(installed: Cluster) -> None:
    """The whole life of a claim by the service's own account: since 1.36 an allocation needs a right that no call shows."""
    driver = "rights.gpu.test"
    settings = replace(SETTINGS, gpu=GpuSettings(fractions="dra", driver=driver))
    settings = replace(settings, namespace="flowsched")
    async with (
        Client(installed.connection("admin")) as admin,
        Client(installed.connection("scheduler")) as client,
    ):
        await device_class(admin, driver)
        await publish(admin, driver, "n1", ["gpu-a"])
        claims = DeviceClaims(client, settings)
        for path, kind, handler in claims.watched():
            found, _ = await client.list(path, kind)
            handler(Batch(replaced=found))
        pod = task(gpu_millis=500, gpu_ids=(0,))
        told: list[tuple[str, str]] = []
        assert await claims.reserve(pod, "uid", lambda *why: told.append(why)) == ""
        [name] = [place.claim for place in places_of(pod, settings)]
        await claims._read(name, lambda *why: told.append(why))
        await claims._free(name, {"uid"})
        assert (claims._book.ours, told) == ({}, [])
        left = await client.call("GET", f"{API}/namespaces/flowsched/resourceclaims/{name}")
        assert left.status == 404
        await claims.close()


@pytest.mark.parametrize("resource", ["pods", "nodes", "secrets", "podgroups.scheduling.x-k8s.io"])
def test_the_agent_may_nothing(installed: Cluster, resource: str) -> None:
    """Not even look."""
    assert not any(
        installed.may("agent", verb, resource, "flowsched-system") for verb in ("get", "list", "create")
    )


def kubeflow_group(minimum: int) -> str:
    metadata = {"name": "mnist", "namespace": "default"}
    group = {"apiVersion": "scheduling.x-k8s.io/v1alpha1", "kind": "PodGroup", "metadata": metadata}
    spec = {"minMember": minimum, "minResources": {"cpu": "6"}, "scheduleTimeoutSeconds": 60}
    return json.dumps({**group, "spec": spec})


def test_the_definition_takes_what_kubeflow_makes(cluster: Cluster) -> None:
    """A group of 6, and none of 0."""
    made = cluster.do("create", "--dry-run=server", "--validate=strict", "-f", "-", told=kubeflow_group(6))
    assert made.startswith("podgroup.scheduling.x-k8s.io/mnist created")
    refused = cluster.ask("create", "--dry-run=server", "-f", "-", told=kubeflow_group(0))
    assert "should be greater than or equal to 1" in refused.stderr


def test_tenants_are_found_by_their_label(cluster: Cluster) -> None:
    """The agents' policy lets them in by it, and nobody else."""
    told = cluster.do("get", "namespace", "-l", "flowsched.io/tenant=true", "-o", "name").split()
    assert "namespace/flowsched" in told
    assert {"namespace/flowsched-system", "namespace/default"}.isdisjoint(told)
