"""The chart: it is the base with values, and it refuses what cannot work."""

from __future__ import annotations

import base64
import json
import re
import subprocess

import pytest

from flowsched.scheduling.policy.profile import policies_from
from flowsched.workflow.formats.yaml_text import read_yaml
from tests.deploy.conftest import Cluster
from tests.deploy.rendering import (
    BASE,
    CHART,
    LIKE_THE_BASE,
    ROOT,
    Object,
    by_key,
    documents,
    pod_templates,
    rendered_helm,
    rendered_kustomize,
    without_labels,
)


def refused(helm: str, *given: str) -> str:
    """What `helm template` says when it refuses."""
    command = [helm, "template", "flowsched", str(CHART), "--kube-version=1.36.0", *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    return done.stderr


def arguments(objects: list[Object], workload: str) -> list[str]:
    return list(dict(pod_templates(objects))[workload]["spec"]["containers"][0]["args"])


def environment(objects: list[Object], workload: str) -> dict[str, str]:
    entries = dict(pod_templates(objects))[workload]["spec"]["containers"][0]["env"]
    return {entry["name"]: entry.get("value", "") for entry in entries}


def test_lint_finds_nothing(helm: str) -> None:
    """Strictly: a warning is an error."""
    command = [
        helm,
        "lint",
        "--strict",
        "--kube-version=1.36.0",
        "--set=database.url=postgresql://x@y/z",
        str(CHART),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_chart_and_the_base_are_the_same_objects(helm: str, kubectl: str) -> None:
    """All of them, field by field, but for labels and annotations."""
    chart = by_key(documents(rendered_helm(helm)))
    base = by_key(documents(rendered_kustomize(kubectl, BASE)))
    assert chart.keys() == base.keys()
    for key in base:
        assert without_labels(chart[key]) == without_labels(base[key]), key


def test_without_a_database_it_says_what_to_say(helm: str) -> None:
    """SQLite in a pod would be lost with the pod, and two replicas would have two."""
    assert "say database.url, or database.existingSecret.name" in refused(helm)
    assert "does not match pattern" in refused(helm, "--set=database.url=sqlite:///data/flowsched.db")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("replica=3", "'replica' not allowed"),
        ("agent.cache.siez=1Gi", "'siez' not allowed"),
        ("agent.cache.size=lots", "does not match pattern"),
        ("scheduler.podGroups=kai", "value must be one of"),
        ("gpus.fractions=half", "value must be one of"),
        ("replicas=0", "minimum"),
    ],
)
def test_a_typo_is_refused(helm: str, given: str, found: str) -> None:
    """By the schema, with the place."""
    assert found in refused(helm, "--set=database.url=postgresql://x@y/z", f"--set={given}")


def test_a_secret_is_made_from_what_is_said(helm: str) -> None:
    """And only where no Secret is named; token and key are made where nothing is said."""
    values = {
        "database.url": "postgresql://x@y/z",
        "token.value": "tttt",
        "agentKey.existingSecret.name": "mine",
    }
    rendered = documents(rendered_helm(helm, values))
    held = {each["metadata"]["name"]: each["data"] for each in rendered if each["kind"] == "Secret"}
    told = {
        name: {key: base64.b64decode(value) for key, value in data.items()} for name, data in held.items()
    }
    assert told == {
        "flowsched-database": {"url": b"postgresql://x@y/z"},
        "flowsched-token": {"token": b"tttt"},
    }

    made = documents(rendered_helm(helm, {"database.url": "postgresql://x@y/z"}))
    sizes = {
        each["metadata"]["name"]: [len(base64.b64decode(value)) for value in each["data"].values()]
        for each in made
        if each["kind"] == "Secret" and each["metadata"]["name"] != "flowsched-database"
    }
    assert sizes == {"flowsched-token": [48], "flowsched-agent-key": [48]}


def test_another_database_is_a_rollout(helm: str) -> None:
    """A pod reads its environment once."""

    def mark(url: str) -> Object:
        template = dict(pod_templates(documents(rendered_helm(helm, {"database.url": url}))))["flowsched"]
        return dict(template["metadata"]["annotations"])

    assert mark("postgresql://a@y/z") == mark("postgresql://a@y/z")
    assert mark("postgresql://a@y/z") != mark("postgresql://b@y/z")


def test_without_the_agent_nothing_touches_the_host(helm: str) -> None:
    """And the service is told that there is none."""
    rendered = documents(rendered_helm(helm, {**LIKE_THE_BASE, "agent.enabled": "false"}))
    assert "hostPath" not in json.dumps(rendered)
    assert not any("agent" in each["metadata"]["name"] for each in rendered)
    assert environment(rendered, "flowsched")["FLOWSCHED_AGENT_PORT"] == "0"


@pytest.mark.parametrize(
    ("create", "made"), [("true", {"flowsched-system", "blue"}), ("false", {"flowsched-system"})]
)
def test_the_tenant_is_where_tasks_run(helm: str, create: str, made: set[str]) -> None:
    """Role, account and policy are in the namespace that the service uses. The chart makes it only if it is asked to."""
    values = {**LIKE_THE_BASE, "tenant.namespace": "blue", "tenant.create": create}
    rendered = documents(rendered_helm(helm, values))
    places = {each["metadata"]["namespace"] for each in rendered if each["kind"] == "Role"}
    assert places == {"blue"}
    kinds = [each["kind"] for each in rendered if each["metadata"].get("namespace") == "blue"]
    assert sorted(kinds) == ["NetworkPolicy", "Role", "RoleBinding", "ServiceAccount"]
    assert {each["metadata"]["name"] for each in rendered if each["kind"] == "Namespace"} == made
    assert environment(rendered, "flowsched")["FLOWSCHED_NAMESPACE"] == "blue"


def test_values_reach_the_containers(helm: str) -> None:
    """What an operator sets is what runs."""
    values = {
        **LIKE_THE_BASE,
        "image.digest": "sha256:" + "a" * 64,
        "scheduler.name": "batch",
        "scheduler.podGroups": "volcano",
        "scheduler.policy": "fifo",
        "replicas": "3",
        "agent.port": "9000",
        "agent.cache.size": "2Ti",
        "agent.kubeletRoot": "/data/kubelet",
        "agent.rates.network": "3G",
        "agent.networks[0]": "10.20.0.0/16",
        "agent.copies": "true",
        "scheduler.handOver": "volcano",
        "tasks.defaultImage": "busybox:1.37",
        "tasks.shared[0].claim": "lab",
        "tasks.shared[0].path": "/data",
        "tasks.shared[1].claim": "references",
        "tasks.shared[1].path": "/ref",
        "tasks.shared[1].readOnly": "true",
        "tasks.stepsSecret": "objectstore",
        "gpus.fractions": "dra",
        "gpus.driver": "gpu.amd.com",
    }
    rendered = documents(rendered_helm(helm, values))
    image = "ghcr.io/flowsched/flowsched@sha256:" + "a" * 64
    service = dict(pod_templates(rendered))["flowsched"]["spec"]["containers"][0]
    told = environment(rendered, "flowsched")
    assert (service["image"], told["FLOWSCHED_IMAGE"]) == (image, image)
    assert (told["FLOWSCHED_SCHEDULER_NAME"], told["FLOWSCHED_POD_GROUPS"]) == ("batch", "volcano")
    assert told["FLOWSCHED_AGENT_PORT"] == "9000"
    assert "--policy=fifo" in arguments(rendered, "flowsched")
    agent = arguments(rendered, "flowsched-agent")
    assert {"--port=9000", "--cache-size=2Ti", "--nic-rate=3G", "--network=10.20.0.0/16", "--copies"} <= set(
        agent
    )
    assert (told["FLOWSCHED_GPU_FRACTIONS"], told["FLOWSCHED_GPU_DRIVER"]) == ("dra", "gpu.amd.com")
    assert (told["FLOWSCHED_HAND_OVER"], told["FLOWSCHED_DEFAULT_IMAGE"]) == ("volcano", "busybox:1.37")
    assert told["FLOWSCHED_SHARED"] == "lab:/data,references:/ref:ro"
    assert told["FLOWSCHED_STEPS_SECRET"] == "objectstore"
    ports = dict(pod_templates(rendered))["flowsched-agent"]["spec"]["containers"][0]["ports"]
    assert ports == [{"name": "http", "containerPort": 9000, "hostPort": 9000}]
    folders = environment(rendered, "flowsched-agent")
    assert folders["AGENT_CACHE"] == "/data/kubelet/plugins/flowsched.io/$(NODE_NAME)/cache"
    assert folders["AGENT_PODS"] == "/data/kubelet/pods"
    deployment = next(each for each in rendered if each["kind"] == "Deployment")
    assert deployment["spec"]["replicas"] == 3


def test_a_certificate_of_a_private_authority_is_mounted(helm: str) -> None:
    """By the values that docs/kubernetes.md shows: the volume, and the folder that its URL names."""
    page = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r'```yaml title="values.yaml"\n(extraVolumes.*?)```', page, re.DOTALL)
    given = [f"{key}={json.dumps(value)}" for key, value in documents(shown)[0].items()]
    spec = dict(pod_templates(documents(rendered_helm(helm, json_values=given))))["flowsched"]["spec"]
    volumes = {each["name"]: each for each in spec["volumes"]}
    mounts = {each["name"]: each for each in spec["containers"][0]["volumeMounts"]}
    assert set(volumes) == set(mounts) == {"data", "tmp", "postgresql-ca"}
    assert volumes["postgresql-ca"]["secret"] == {"secretName": "postgresql-ca"}
    path = re.findall(r"sslmode=verify-full&sslrootcert=(/etc/flowsched/[^`]+)", page)[0]
    assert path == f"{mounts['postgresql-ca']['mountPath']}/ca.crt"
    assert mounts["postgresql-ca"]["readOnly"] is True


def test_prometheus_is_told_of_the_service_if_that_is_asked_for(helm: str) -> None:
    """A ServiceMonitor that selects the chart's own Service, by its port, with its token."""
    kinds = {each["kind"] for each in documents(rendered_helm(helm, LIKE_THE_BASE))}
    assert "ServiceMonitor" not in kinds
    values = {**LIKE_THE_BASE, "metrics.serviceMonitor": "true", "metrics.interval": "15s"}
    rendered = documents(rendered_helm(helm, values))
    monitor = next(each for each in rendered if each["kind"] == "ServiceMonitor")
    service = next(each for each in rendered if each["kind"] == "Service")
    wanted = monitor["spec"]["selector"]["matchLabels"]
    assert wanted.items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert (endpoint["path"], endpoint["interval"]) == ("/metrics", "15s")
    deployment = next(each for each in rendered if each["kind"] == "Deployment")
    (env,) = [
        each
        for each in deployment["spec"]["template"]["spec"]["containers"][0]["env"]
        if each["name"] == "FLOWSCHED_TOKEN"
    ]
    assert endpoint["authorization"]["credentials"] == env["valueFrom"]["secretKeyRef"]


def test_an_agent_that_measures_nothing_sees_less_of_the_host(helm: str) -> None:
    """None of the host's counters is mounted, and it is not told to read them."""
    rendered = documents(rendered_helm(helm, {**LIKE_THE_BASE, "agent.measure": "false"}))
    spec = dict(pod_templates(rendered))["flowsched-agent"]["spec"]
    host = {volume["name"] for volume in spec["volumes"] if "hostPath" in volume}
    assert host == {"kubelet", "logs"}
    assert "AGENT_HOST" not in environment(rendered, "flowsched-agent")
    assert not any("host-root" in each for each in arguments(rendered, "flowsched-agent"))


def test_a_cache_elsewhere_is_a_mount_of_its_own(helm: str) -> None:
    """Another disk for the cache: inputs are copied then."""
    rendered = documents(
        rendered_helm(helm, {**LIKE_THE_BASE, "agent.cache.hostPath": "/mnt/nvme/flowsched"})
    )
    spec = dict(pod_templates(rendered))["flowsched-agent"]["spec"]
    volumes = {volume["name"]: volume.get("hostPath", {}).get("path") for volume in spec["volumes"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in spec["containers"][0]["volumeMounts"]}
    assert (volumes["cache"], mounts["cache"]) == ("/mnt/nvme/flowsched", "/var/lib/flowsched")
    assert environment(rendered, "flowsched-agent")["AGENT_CACHE"] == "/var/lib/flowsched/$(NODE_NAME)/cache"


def test_an_agent_sees_the_volumes_that_are_named_for_it(helm: str) -> None:
    """Read-only, at the path of the tasks; it may take files from there."""
    shared = {"agent.shared[0].path": "/data", "agent.shared[0].volume.nfs.server": "nas"}
    shared |= {"agent.shared[0].volume.nfs.path": "/lab"}
    rendered = documents(rendered_helm(helm, {**LIKE_THE_BASE, **shared}))
    spec = dict(pod_templates(rendered))["flowsched-agent"]["spec"]
    assert {"name": "shared-0", "nfs": {"server": "nas", "path": "/lab"}} in spec["volumes"]
    mounts = spec["containers"][0]["volumeMounts"]
    assert {"name": "shared-0", "mountPath": "/data", "readOnly": True} in mounts
    assert "--root=/data" in arguments(rendered, "flowsched-agent")


@pytest.mark.kubernetes
def test_an_upgrade_keeps_the_token(cluster: Cluster, helm: str) -> None:
    """Really installed, as another release: what was made at random the first time stays, and the tenant moves."""
    chart = [
        str(CHART),
        "--namespace=default",
        "--set=priorityClass.name=trial",
        "--set=database.url=postgresql://x@y/z",
    ]

    def token() -> str:
        return cluster.do("get", "secret", "trial-flowsched-token", "-o", "jsonpath={.data.token}")

    cluster.helm(helm, "install", "trial", *chart, "--set=tenant.namespace=blue")
    before = token()
    cluster.helm(helm, "upgrade", "trial", *chart, "--set=tenant.namespace=red")
    assert (len(before), token()) == (64, before)
    cluster.helm(helm, "uninstall", "trial", "--namespace=default")
    left = cluster.do("get", "namespace", "blue", "red", "-o", "name").split()
    assert left == ["namespace/blue", "namespace/red"]


def test_a_profile_is_a_file_that_changes_while_the_service_runs(helm: str) -> None:
    """A ConfigMap mounted as a folder (one key alone would never change), read by the service as it is written."""
    given = {**LIKE_THE_BASE, "scheduler.profiles.name": "lab", "scheduler.profiles.packing": "spread"}
    objects = documents(rendered_helm(helm, given))
    (configured,) = [each for each in objects if each["kind"] == "ConfigMap"]
    policies = policies_from(read_yaml(configured["data"]["profile.yaml"].encode()), {})
    assert (policies.default.name, policies.default.packing) == ("lab", "spread")
    workload = "flowsched"
    assert "--profile=/etc/flowsched/profile.yaml" in arguments(objects, workload)
    spec = dict(pod_templates(objects))[workload]["spec"]
    mount = next(each for each in spec["containers"][0]["volumeMounts"] if each["name"] == "profile")
    assert (mount["mountPath"], "subPath" in mount) == ("/etc/flowsched", False)
    volume = next(each for each in spec["volumes"] if each["name"] == "profile")
    assert volume["configMap"]["name"] == configured["metadata"]["name"]
