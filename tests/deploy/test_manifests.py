"""What deploy/ says: well-formed, consistent with the code, and no more open than it must be."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from flowsched.api.table import ROUTES
from flowsched.cli.app import app
from flowsched.cluster.kubernetes.settings import from_environment
from flowsched.cluster.kubernetes.view import AGENT_COMPONENT
from tests.deploy.rendering import (
    BASE,
    CHART,
    DEPLOY,
    OVERLAYS,
    ROOT,
    TENANT,
    Object,
    StrictLoader,
    by_key,
    documents,
    pod_templates,
    rendered_helm,
    rendered_kustomize,
)

FOLDERS = [BASE, TENANT, *OVERLAYS]
#: YAML that is YAML before Helm has seen it.
PLAIN = sorted(path for path in DEPLOY.rglob("*.yaml") if CHART / "templates" not in path.parents)
METADATA = [
    "169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254",
    "fd20:ce::254", "fe80::a9fe:a9fe",
]  # fmt: skip


@pytest.fixture(params=["kustomize", "helm"])
def objects(request: pytest.FixtureRequest, kubectl: str) -> list[Object]:
    """The base, as Kustomize and as Helm render it."""
    if request.param == "kustomize":
        return documents(rendered_kustomize(kubectl, BASE))
    return documents(rendered_helm(request.getfixturevalue("helm")))


def containers(template: Object) -> Iterator[Object]:
    spec = template["spec"]
    yield from [*spec.get("initContainers", []), *spec["containers"]]


def one(objects: list[Object], kind: str, name: str) -> Object:
    return next(each for each in objects if (each["kind"], each["metadata"]["name"]) == (kind, name))


@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_yaml_is_well_formed(path: Path) -> None:
    """No key twice, no tab, no blank at a line's end, and a newline at the end."""
    text = path.read_text(encoding="utf-8")
    assert list(yaml.load_all(text, StrictLoader))
    assert "\t" not in text
    assert [number for number, line in enumerate(text.splitlines(), 1) if line != line.rstrip()] == []
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_a_key_that_stands_twice_is_found() -> None:
    """PyYAML alone would keep the last one."""
    with pytest.raises(yaml.YAMLError, match="twice"):
        documents("a: 1\nb: {c: 1, c: 2}\n")


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_every_kustomization_renders(folder: Path, kubectl: str) -> None:
    """And no object is there twice."""
    assert by_key(documents(rendered_kustomize(kubectl, folder)))


def test_the_definitions_in_the_chart_are_those_beside_it() -> None:
    """Helm wants a copy of its own."""
    name = "podgroups.scheduling.x-k8s.io.yaml"
    assert (CHART / "crds" / name).read_bytes() == (DEPLOY / "crds" / name).read_bytes()


def test_only_the_agent_sees_the_host(objects: list[Object]) -> None:
    """Only its pods have hostPath and hostPort; nobody shares the host's namespaces or is privileged."""
    for name, template in pod_templates(objects):
        spec = template["spec"]
        on_host = any("hostPath" in volume for volume in spec.get("volumes", []))
        ports = [
            port for each in containers(template) for port in each.get("ports", []) if "hostPort" in port
        ]
        assert (on_host, bool(ports)) == (name == "flowsched-agent",) * 2
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        assert not any(each["securityContext"].get("privileged") for each in containers(template))


def test_the_agent_sees_the_kubelets_folder_but_not_its_keys(objects: list[Object]) -> None:
    """One mount for cache and pods, since no hard link leads from one mount to another; the keys are covered."""
    spec = one(objects, "DaemonSet", "flowsched-agent")["spec"]["template"]["spec"]
    host = {volume["name"]: volume["hostPath"]["path"] for volume in spec["volumes"] if "hostPath" in volume}
    counted = {
        "host-diskstats": "/proc/diskstats",
        "host-cards": "/proc/1/net/dev",
        "host-routes": "/proc/1/net/route",
        "host-mounts": "/proc/1/mountstats",
        "host-cgroups": "/sys/fs/cgroup",
    }
    assert host == {"kubelet": "/var/lib/kubelet", "logs": "/var/log/pods"} | counted
    mounts = {mount["mountPath"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    assert {name: mounts[f"/host{path}"]["name"] for name, path in counted.items()} == {n: n for n in counted}
    assert all(mounts[f"/host{path}"]["readOnly"] for path in counted.values())
    assert mounts["/var/log/pods"]["readOnly"] is True
    assert mounts["/var/lib/kubelet"]["mountPropagation"] == "HostToContainer"
    assert mounts["/var/lib/kubelet/pki"]["name"] == "covered"
    told = {entry["name"]: entry.get("value") for entry in spec["containers"][0]["env"]}
    assert told["AGENT_CACHE"] == "/var/lib/kubelet/plugins/flowsched.io/$(NODE_NAME)/cache"
    assert (told["AGENT_PODS"], told["AGENT_LOGS"]) == ("/var/lib/kubelet/pods", "/var/log/pods")


def test_the_agent_runs_on_every_node_and_asks_the_api_server_nothing(objects: list[Object]) -> None:
    """It tolerates every taint and has no token; its account is bound to no role."""
    spec = one(objects, "DaemonSet", "flowsched-agent")["spec"]["template"]["spec"]
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["automountServiceAccountToken"] is False
    bound = {
        subject["name"]
        for each in objects
        if each["kind"].endswith("Binding")
        for subject in each["subjects"]
    }
    assert bound == {"flowsched"}


def test_no_container_writes_its_image_or_gains_privileges(objects: list[Object]) -> None:
    """The image is read-only; the agent alone keeps capabilities: to handle files of any owner."""
    for name, template in pod_templates(objects):
        for each in containers(template):
            context = each["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"]["drop"] == ["ALL"]
            added = context["capabilities"].get("add", [])
            assert added == (["CHOWN", "DAC_OVERRIDE", "FOWNER"] if name == "flowsched-agent" else [])


def test_what_is_written_to_is_a_volume(objects: list[Object]) -> None:
    """Temporary files everywhere, and the service's own folder: the image cannot be written to."""
    for name, template in pod_templates(objects):
        for each in containers(template):
            places = {mount["mountPath"] for mount in each["volumeMounts"] if not mount.get("readOnly")}
            assert places == ({"/tmp", "/data"} if name == "flowsched" else {"/tmp", "/var/lib/kubelet"})
            root = [entry["value"] for entry in each["env"] if entry["name"] == "FLOWSCHED_ROOT"]
            assert set(root) <= places


def test_the_probes_ask_what_the_api_serves_without_a_token(objects: list[Object]) -> None:
    """A restart follows from a stuck loop (/livez), never from waiting for the lease (/readyz)."""
    container = one(objects, "Deployment", "flowsched")["spec"]["template"]["spec"]["containers"][0]
    asked = {probe: container[probe]["httpGet"]["path"] for probe in container if probe.endswith("Probe")}
    assert asked == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    open_to_all = {route.path for route in ROUTES if route.access.name == "OPEN" and route.method == "GET"}
    assert set(asked.values()) <= open_to_all


def test_the_service_and_the_budget_are_about_the_services_pods(objects: list[Object]) -> None:
    """And not about the agents; of two pods one may go."""
    labels = one(objects, "Deployment", "flowsched")["spec"]["template"]["metadata"]["labels"]
    agents = one(objects, "DaemonSet", "flowsched-agent")["spec"]["template"]["metadata"]["labels"]
    budget = one(objects, "PodDisruptionBudget", "flowsched")["spec"]
    for selector in (
        one(objects, "Service", "flowsched")["spec"]["selector"],
        budget["selector"]["matchLabels"],
    ):
        assert selector.items() <= labels.items()
        assert not selector.items() <= agents.items()
    assert one(objects, "Deployment", "flowsched")["spec"]["replicas"] == 2
    assert budget["maxUnavailable"] == 1


def reaches(rules: list[Object], address: str) -> bool:
    """Whether a policy's rules name an address by its range, at any port."""
    wanted = ipaddress.ip_address(address)
    blocks = [peer["ipBlock"] for rule in rules for peer in rule["to"] if "ipBlock" in peer]
    return any(
        wanted in ipaddress.ip_network(block["cidr"])
        and not any(wanted in ipaddress.ip_network(gap) for gap in block.get("except", []))
        for block in blocks
    )


@pytest.mark.parametrize("policy", ["flowsched-agent", "flowsched-tasks"])
def test_who_fetches_for_users_reaches_no_metadata(objects: list[Object], policy: str) -> None:
    """What a cloud tells a node about itself (its credentials!) is out of reach; the rest of the world is not."""
    rules = one(objects, "NetworkPolicy", policy)["spec"]["egress"]
    assert [address for address in METADATA if reaches(rules, address)] == []
    assert all(reaches(rules, address) for address in ("93.184.216.34", "10.1.2.3", "2606:2800:220::1"))


def test_the_name_server_on_the_node_is_reached_for_names_only(objects: list[Object]) -> None:
    """It has a link-local address, as metadata servers have."""
    for policy in ("flowsched-agent", "flowsched-tasks"):
        rules = one(objects, "NetworkPolicy", policy)["spec"]["egress"]
        named = [rule for rule in rules if reaches([rule], "169.254.20.10")]
        assert [{port["port"] for port in rule["ports"]} for rule in named] == [{53}]


def test_tasks_are_reached_from_their_own_namespace_only(objects: list[Object]) -> None:
    """Members of a gang talk to each other; another tenant does not."""
    spec = one(objects, "NetworkPolicy", "flowsched-tasks")["spec"]
    assert spec["podSelector"] == {}
    assert spec["ingress"] == [{"from": [{"podSelector": {}}]}]


def test_the_tenants_namespace_is_restricted_and_the_agents_is_not(objects: list[Object]) -> None:
    """A hostPath is allowed where no task can run."""
    key = "pod-security.kubernetes.io/enforce"
    levels = {
        each["metadata"]["name"]: each["metadata"]["labels"][key]
        for each in objects
        if each["kind"] == "Namespace"
    }
    assert levels == {"flowsched": "restricted", "flowsched-system": "privileged"}


def test_no_account_hands_out_a_token_by_itself(objects: list[Object]) -> None:
    """The service's pod asks for its token; tasks and agents get none."""
    accounts = [each for each in objects if each["kind"] == "ServiceAccount"]
    assert [each["automountServiceAccountToken"] for each in accounts] == [False, False, False]
    mounts = {
        name: template["spec"]["automountServiceAccountToken"] for name, template in pod_templates(objects)
    }
    assert mounts == {"flowsched": True, "flowsched-agent": False}


def test_secrets_come_by_reference_and_never_on_a_command_line(objects: list[Object]) -> None:
    """Arguments are seen by everybody on a node, so $(…) in one names nothing secret."""
    assert not [each for each in objects if each["kind"] in ("Secret", "ConfigMap")]
    for _, template in pod_templates(objects):
        for each in containers(template):
            secret = {entry["name"] for entry in each["env"] if "secretKeyRef" in entry.get("valueFrom", {})}
            named = set(re.findall(r"\$\((\w+)\)", " ".join([*each["command"], *each["args"]])))
            assert named <= {entry["name"] for entry in each["env"]} - secret
            known = {"FLOWSCHED_DATABASE", "FLOWSCHED_TOKEN", "FLOWSCHED_AGENT_KEY"}
            assert known & {entry["name"] for entry in each["env"]} == secret


def test_variables_are_known_before_they_are_used(objects: list[Object]) -> None:
    """A kubelet expands $(…) in a variable only from those that stand above it."""
    for _, template in pod_templates(objects):
        for each in containers(template):
            above: set[str] = set()
            for entry in each["env"]:
                assert set(re.findall(r"\$\((\w+)\)", entry.get("value", ""))) <= above
                above.add(entry["name"])


@pytest.mark.parametrize("folder", [BASE, *OVERLAYS], ids=lambda folder: folder.name)
def test_the_steps_run_in_the_image_of_the_service(folder: Path, kubectl: str) -> None:
    """An overlay that changes the image changes it in all three places."""
    rendered = documents(rendered_kustomize(kubectl, folder))
    service = one(rendered, "Deployment", "flowsched")["spec"]["template"]["spec"]["containers"][0]
    agent = one(rendered, "DaemonSet", "flowsched-agent")["spec"]["template"]["spec"]["containers"][0]
    told = [entry["value"] for entry in service["env"] if entry["name"] == "FLOWSCHED_IMAGE"]
    assert told == [service["image"]] == [agent["image"]]


def test_the_example_holds_no_usable_secret(kubectl: str) -> None:
    """Whoever applies it as it is gets a service that refuses to start, not one whose token is in a repository."""
    rendered = documents(rendered_kustomize(kubectl, DEPLOY / "kustomize" / "overlays" / "example"))
    held = {
        name: value for each in rendered if each["kind"] == "Secret" for name, value in each["data"].items()
    }
    assert {name: bool(value) for name, value in held.items()} == {"key": False, "token": False, "url": True}


def test_the_service_knows_its_agents(objects: list[Object]) -> None:
    """By the labels that its view of the cluster looks for, in the namespace that it is told."""
    agent = one(objects, "DaemonSet", "flowsched-agent")
    labels = agent["spec"]["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/component"] == AGENT_COMPONENT
    assert labels["app.kubernetes.io/part-of"] == "flowsched"
    container = one(objects, "Deployment", "flowsched")["spec"]["template"]["spec"]["containers"][0]
    fields = {entry["name"]: entry.get("valueFrom", {}).get("fieldRef") for entry in container["env"]}
    assert fields["FLOWSCHED_AGENT_NAMESPACE"] == {"fieldPath": "metadata.namespace"}
    assert agent["metadata"]["namespace"] == "flowsched-system"


def test_the_service_takes_what_the_deployment_tells_it(objects: list[Object]) -> None:
    """The settings that it reads from its environment are those that stand there."""
    container = one(objects, "Deployment", "flowsched")["spec"]["template"]["spec"]["containers"][0]
    settings = from_environment({entry["name"]: entry.get("value", "") for entry in container["env"]})
    assert settings.namespace == "flowsched"
    assert settings.image == container["image"]
    assert (settings.agent_port, settings.pod_groups) == (8475, "auto")
    assert (settings.scheduler_name, settings.instance, settings.run_as_user) == (
        "flowsched",
        "flowsched",
        1000,
    )


def options_of(command: list[str]) -> set[str] | None:
    """The options that a command of the CLI takes; None if there is no such command."""
    found: Any = get_command(app)
    for word in command[1:]:
        found = getattr(found, "commands", {}).get(word)
    return None if found is None else {name for parameter in found.params for name in parameter.opts}


def test_options_are_those_of_the_command() -> None:
    """So that the next test can fail."""
    assert {"--host", "--port", "--db"} <= (options_of(["flowsched", "serve"]) or set())
    assert options_of(["flowsched", "sreve"]) is None


@pytest.mark.parametrize(("kind", "name"), [("Deployment", "flowsched"), ("DaemonSet", "flowsched-agent")])
def test_the_command_line_takes_what_the_containers_say(objects: list[Object], kind: str, name: str) -> None:
    """Every option in a manifest is one that the command has."""
    container: dict[str, Any] = one(objects, kind, name)["spec"]["template"]["spec"]["containers"][0]
    taken = options_of(container["command"])
    assert taken is not None
    assert {argument.split("=")[0] for argument in container["args"]} <= taken
