"""Our own pods as they are written."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from flowsched.cluster.kubernetes import orders
from flowsched.cluster.kubernetes.agent_keys import signing_key_of
from flowsched.cluster.kubernetes.objects.names import address_below
from flowsched.cluster.kubernetes.objects.release import GpuSettings
from flowsched.cluster.kubernetes.pods.container_task import input_path, service_of
from flowsched.cluster.kubernetes.pods.manifest import pod_manifest
from flowsched.cluster.node.container_paths import Refusal, SharedVolume
from flowsched.cluster.node.environment import Paths, environment
from flowsched.executor.protocol import GangSeat, InputFile, OutputFile, Pod, Roster
from flowsched.values import replace
from flowsched.workflow.spec import Resources, Rules, Toleration
from tests.kubernetes import written as w
from tests.kubernetes.hostile import PLACES, TEXTS

SECRETS = {"team-token/key": "hunter2", "fs-w1-train-0-g1/token": "t0ken"}


def test_a_task_is_one_pod() -> None:
    """All of a small one, in literals."""
    pod = w.task(
        "fs-w1-Align-7-2", "align", "$(FLOWSCHED_INPUT_READS)", stage="Align", index=7, shard=7, attempt=2
    )
    pod = structs.replace(
        pod, inputs=(InputFile("reads", ("s3://lab/x.fq",)),), timeout_ms=90_001, cpu_millicores=2500
    )
    manifest = w.written(pod)
    name = manifest["metadata"]["name"]
    assert name.startswith("fs-w1-align-7-2-h")
    assert manifest["metadata"] == {
        "name": name,
        "namespace": "lab",
        "labels": {
            "app.kubernetes.io/name": "flowsched-task",
            "app.kubernetes.io/instance": "flowsched",
            "app.kubernetes.io/component": "Align",
            "app.kubernetes.io/part-of": "flowsched",
            "app.kubernetes.io/managed-by": "flowsched",
            "flowsched.io/workflow": "w1",
            "flowsched.io/stage": "Align",
            "flowsched.io/index": "7",
            "flowsched.io/attempt": "2",
            "flowsched.io/epoch": "4",
        },
        "annotations": {
            "flowsched.io/pod": "fs-w1-Align-7-2",
            "kubectl.kubernetes.io/default-container": "task",
        },
    }
    spec = manifest["spec"]
    assert [each["name"] for each in spec["initContainers"] + spec["containers"]] == ["stage-in", "task"]
    assert (spec["schedulerName"], spec["restartPolicy"], spec["activeDeadlineSeconds"]) == (
        "flowsched",
        "Never",
        91,
    )
    assert (spec["enableServiceLinks"], spec["automountServiceAccountToken"]) == (False, False)
    assert spec["terminationGracePeriodSeconds"] == 30
    assert spec["volumes"] == [{"name": "inputs", "emptyDir": {}}, {"name": "work", "emptyDir": {}}]
    task = w.container(manifest, "task")
    assert task["image"] == "registry.test/task:1"
    assert task["command"] == ["align", "$(FLOWSCHED_INPUT_READS)"]
    assert task["workingDir"] == "/flowsched/work"
    assert task["resources"] == {
        "requests": {"cpu": "2500m", "memory": "1073741824"},
        "limits": {"memory": "1073741824"},
    }
    assert task["volumeMounts"] == [
        {"name": "inputs", "mountPath": "/flowsched/inputs", "readOnly": True},
        {"name": "work", "mountPath": "/flowsched/work"},
    ]
    assert {each["name"]: each["value"] for each in task["env"]} == {
        "HOME": "/flowsched/work",
        "TMPDIR": "/flowsched/work/tmp",
        "OMP_NUM_THREADS": "3",
        "FLOWSCHED_FOLDER": "/flowsched/work",
        "FLOWSCHED_WORKFLOW": "w1",
        "FLOWSCHED_STAGE": "Align",
        "FLOWSCHED_INDEX": "7",
        "FLOWSCHED_ATTEMPT": "2",
        "FLOWSCHED_CPU": "3",
        "FLOWSCHED_MEMORY": "1073741824",
        "FLOWSCHED_INPUT_READS": "/flowsched/inputs/reads/x.fq",
        "CUDA_VISIBLE_DEVICES": "",
        "NVIDIA_VISIBLE_DEVICES": "void",
    }


def test_a_step_is_told_what_it_may_do() -> None:
    """In its environment, in an order in which the kubelet can expand it; the order is one the agent understands."""
    outputs = (OutputFile("bam", "out/a.bam", "flowsched:w1/align/0/1/bam"),)
    inputs = (InputFile("reads", ("s3://lab/x$(HOST_IP).fq",)), InputFile("all", ("s3://a", "s3://b"), True))
    manifest = w.written(w.task(inputs=inputs, outputs=outputs), expires_ms=1_700_000_000_000)
    for name in ("stage-in", "stage-out"):
        env, command = w.started(manifest, name, {})
        assert command == ["flowsched", "pod", name]
        assert env["FLOWSCHED_AGENT"] == "http://<status.hostIP>:8475"
        assert env["POD_UID"] == "<metadata.uid>"
        assert (env["FLOWSCHED_INPUTS"], env["FLOWSCHED_WORK"]) == ("/flowsched/inputs", "/flowsched/work")
        assert orders.is_signed(signing_key_of(b"key"), env["FLOWSCHED_ORDER"], env["FLOWSCHED_SIGNATURE"])
        order = orders.read(env["FLOWSCHED_ORDER"])
        assert order.pod == "fs-w1-align-0-1"
        assert order.inputs[0] == orders.Input(
            "reads", ("s3://lab/x$(HOST_IP).fq",), False, "reads/x$(HOST_IP).fq"
        )
        assert order.inputs[1] == orders.Input("all", ("s3://a", "s3://b"), True, "all.manifest")
        assert order.outputs == (
            orders.Output("bam", "out/a.bam", "flowsched:w1/align/0/1/bam", False, False),
        )
        assert (order.folders, order.gang) == (("out", "tmp"), None)
        assert order.expires_ms == 1_700_000_000_000


def test_a_task_without_files_has_its_own_container_alone() -> None:
    """A kubelet starts no stage-in then. It makes TMPDIR itself, with the volume's rights."""
    manifest = w.written(w.task())
    spec = manifest["spec"]
    assert [each["name"] for each in spec["initContainers"] + spec["containers"]] == ["task"]
    assert {"name": "work", "mountPath": "/flowsched/work/tmp", "subPath": "tmp"} in spec["containers"][0][
        "volumeMounts"
    ]
    assert w.started(manifest, "task", {})[0]["TMPDIR"] == "/flowsched/work/tmp"
    reads = w.written(w.task(inputs=(InputFile("reads", ("s3://a",)),)))
    assert not any("subPath" in mount for mount in w.container(reads, "task")["volumeMounts"])
    small = w.task(cpu_millicores=1000, memory_bytes=64 << 20)
    assert classes(w.written(structs.replace(small, limits=Resources(cpu_millicores=1000)))) == (True,)


def test_success_follows_stage_out() -> None:
    """Where there are outputs a native sidecar stays until they are published, and has the time for it."""
    spec = w.written(w.task(outputs=(OutputFile("bam", "a.bam", "flowsched:x"),)))["spec"]
    assert [each["name"] for each in spec["initContainers"]] == ["stage-in", "stage-out"]
    assert spec["initContainers"][1]["restartPolicy"] == "Always"
    assert spec["initContainers"][1]["startupProbe"]["exec"] == {"command": ["flowsched", "pod", "ready"]}
    assert spec["initContainers"][1]["resources"] == {"requests": {"cpu": "0", "memory": "0"}}
    assert spec["terminationGracePeriodSeconds"] == 300


def test_an_installation_without_agents() -> None:
    """Stage-in fetches by itself, and says so by an address that is empty."""
    env, _ = w.started(w.written(w.task(outputs=OUT), replace(w.SETTINGS, agent_port=0)), "stage-in", {})
    assert env["FLOWSCHED_AGENT"] == ""


@pytest.mark.parametrize(
    ("given", "path"),
    [
        (InputFile("reads", ("s3://lab/a/x.fq.gz",)), "reads/x.fq.gz"),
        (InputFile("r é", ("s3://lab/a%20b",)), "r__/a%20b"),
        (InputFile(".hidden", ("s3://lab/..",)), "_.hidden/data"),
        (InputFile("all", ("s3://a", "s3://b"), True), "all.manifest"),
        (InputFile("long", ("s3://lab/" + "é" * 300 + ".bam",)), "long/" + "é" * 98 + ".bam"),
        (InputFile("bam", ("flowsched:w1/align/0/1/bam",)), "bam/bam"),
    ],
)
def test_where_an_input_lies(given: InputFile, path: str) -> None:
    """In a folder of its own, under its own name, which stays below it."""
    assert input_path(given) == path


# --- what a task sees ----------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 1 << 32))
def test_a_task_sees_what_it_sees_on_a_laptop(seed: int) -> None:
    """The kubelet makes of environment and command what a local cluster does, but for what an image says itself."""
    pod, installation, group = w.random_task(random.Random(seed))
    env, command = w.started(w.written(pod, installation, group), "task", SECRETS)
    inputs = {given.name: f"/flowsched/inputs/{input_path(given)}" for given in pod.inputs}
    paths = Paths("/flowsched/work", "/flowsched/work", inputs, "/bin")
    address = address_below(service_of(pod, installation, group))
    local, local_command = environment(pod, paths, address)
    local |= {"TOKEN": "hunter2"} if pod.secrets else {}
    for name in ("PATH", "PWD", "LANG"):
        local.pop(name)
        if name in pod.env:
            local[name] = pod.env[name]
    devices = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"}
    ours = {
        key: value for key, value in env.items() if not key.startswith("KUBERNETES_") and key not in devices
    }
    assert ours == {key: value for key, value in local.items() if key not in devices}
    assert command == [
        part.replace("/bin", "$(PATH)") if part == "$(PATH)" else part for part in local_command
    ]


@pytest.mark.parametrize(
    ("millis", "ids", "changes", "told", "limits"),
    [
        (0, (), {}, {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}, {}),
        (2000, (1, 3), {}, {}, {"nvidia.com/gpu": "2"}),
        (1000, (3,), {"resource": "amd.com/gpu"}, {}, {"amd.com/gpu": "1"}),
        (
            250,
            (3,),
            {},
            {"CUDA_VISIBLE_DEVICES": "3", "NVIDIA_VISIBLE_DEVICES": "all", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
            {},
        ),
        (250, (3,), {"fractions": "runtime"}, {"NVIDIA_VISIBLE_DEVICES": "3"}, {}),
        (
            2000,
            (1, 3),
            {"resource": ""},
            {
                "CUDA_VISIBLE_DEVICES": "1,3",
                "NVIDIA_VISIBLE_DEVICES": "all",
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            },
            {},
        ),
    ],
)
def test_gpus(
    millis: int, ids: tuple[int, ...], changes: dict[str, Any], told: dict[str, str], limits: dict[str, str]
) -> None:
    """Whole devices are a plugin's; a part of one, or a device without plugin, is known by its number; no device is void."""
    manifest = w.written(
        w.task(gpu_millis=millis, gpu_ids=ids, outputs=OUT), replace(w.SETTINGS, gpu=GpuSettings(**changes))
    )
    task = w.container(manifest, "task")
    env, _ = w.started(manifest, "task", {})
    assert {key: value for key, value in env.items() if "DEVICE" in key} == told
    asked = {key: value for key, value in task["resources"]["limits"].items() if key != "memory"}
    assert asked == limits
    assert {key: task["resources"]["requests"][key] for key in limits} == limits
    assert "nvidia.com/gpu" not in w.container(manifest, "stage-in")["resources"]["limits"]


def test_secrets_come_by_reference() -> None:
    """No value is in the pod, and no command is given one."""
    pod = w.task("fs-w1-a-0-1", "login", "$(KEY)", secrets={"KEY": "aws/secret", "USER": "aws-user"})
    manifest = w.written(pod)
    refs = {
        each["name"]: each["valueFrom"]
        for each in w.container(manifest, "task")["env"]
        if "valueFrom" in each
    }
    assert refs == {
        "KEY": {"secretKeyRef": {"name": "aws", "key": "secret"}},
        "USER": {"secretKeyRef": {"name": "aws-user", "key": "value"}},
    }
    env, command = w.started(manifest, "task", {"aws/secret": "hunter2", "aws-user/value": "bob"})
    assert (env["KEY"], command) == ("hunter2", ["login", "$(KEY)"])


# --- gangs ---------------------------------------------------------------------------------------------------


def test_a_member_of_a_gang_is_found_by_name() -> None:
    """Names of its Service everywhere, in rank order; its token in a Secret, and nowhere in the pod."""
    pod = w.task("fs-w1-train-2-1", "train", "$(FLOWSCHED_GANG_TOKEN)", stage="train", index=2, gang=w.seat())
    manifest = w.written(pod, group=w.GANG)
    spec = manifest["spec"]
    assert (spec["hostname"], spec["subdomain"]) == ("worker-1", "fs-w1-train-0-g1")
    hosts = [f"{host}.fs-w1-train-0-g1.lab.svc" for host in ("ps-0", "worker-0", "worker-1")]
    env, command = w.started(manifest, "task", SECRETS)
    assert env["FLOWSCHED_HOSTS"] == ",".join(hosts)
    assert env["FLOWSCHED_ADDRESS"] == hosts[2]
    assert env["MASTER_ADDR"] == hosts[0]
    assert json.loads(env["TF_CONFIG"])["cluster"]["worker"] == [f"{hosts[1]}:29500", f"{hosts[2]}:29500"]
    assert env["FLOWSCHED_HOSTFILE"] == "/flowsched/work/hostfile"
    assert command == ["train", "t0ken"]
    assert "t0ken" not in json.dumps(manifest)
    order = orders.read(w.started(manifest, "stage-in", {})[0]["FLOWSCHED_ORDER"])
    runs = ("ps", 1, 1), ("worker", 2, 2)
    assert order.gang == orders.Gang(runs, "fs-w1-train-0-g1.lab.svc", slots=2, port=29500)
    assert env["FLOWSCHED_CLUSTER_FILE"] == "/flowsched/work/cluster.json"
    assert manifest["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == "fs-w1-train-0-g1"
    assert manifest["metadata"]["annotations"]["volcano.sh/task-spec"] == "worker"
    assert manifest["metadata"]["labels"]["flowsched.io/group"] == "fs-w1-train-0-g1"
    assert manifest["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "PodGroup",
            "name": "fs-w1-train-0-g1",
            "uid": "u-1",
        }
    ]


def test_the_pod_of_a_member_is_as_long_in_a_gang_of_10_000_as_in_one_of_600() -> None:
    """But for digits: the agent writes the lists from the gang's name and its roles."""
    sizes = {}
    for members in (600, 10_000):
        seat = GangSeat("worker", 7, 7, 7, Roster((("worker", 0, members),)), "t")
        told = pod_manifest(w.task("fs-w1-train-7-1", stage="train", index=7, gang=seat), w.SETTINGS, w.GANG)
        assert isinstance(told, bytes)
        sizes[members] = len(told)
    assert sizes[600] < 10_000
    assert sizes[10_000] - sizes[600] < 100


def test_a_gang_on_hollow_nodes() -> None:
    """The addresses the engine gave, and no Service."""
    manifest = w.written(w.task(gang=w.seat()), replace(w.SETTINGS, gang_addresses="seat"), w.GANG)
    env, _ = w.started(manifest, "task", SECRETS)
    assert env["FLOWSCHED_HOSTS"] == "127.64.0.1,127.64.0.2,127.64.0.3"
    assert "subdomain" not in manifest["spec"]


def test_a_member_without_a_group_is_a_mistake() -> None:
    """Of ours: it could not be found."""
    with pytest.raises(ValueError, match="no group"):
        w.written(w.task(gang=w.seat()))


# --- amounts -------------------------------------------------------------------------------------------------

OUT = (OutputFile("bam", "a.bam", "flowsched:x"),)


def classes(manifest: dict[str, Any]) -> tuple[bool, ...]:
    """For each container, whether its requests are its limits, for CPU and memory, and not nothing."""
    spec = manifest["spec"]
    found = []
    for each in spec["initContainers"] + spec["containers"]:
        requests, limits = each["resources"]["requests"], each["resources"].get("limits", {})
        found.append(all(requests[r] == limits.get(r) and limits.get(r) != "0" for r in ("cpu", "memory")))
    return tuple(found)


def test_limits_like_requests_make_a_pod_guaranteed() -> None:
    """In every container, but for a sidecar."""
    whole = w.task(cpu_millicores=2000, limits=Resources(cpu_millicores=2000))
    assert classes(w.written(whole)) == (True,)
    reads = structs.replace(whole, inputs=(InputFile("reads", ("s3://a",)),))
    assert classes(w.written(reads)) == (True, True)
    assert classes(w.written(structs.replace(reads, limits=None))) == (False, False)
    assert classes(w.written(structs.replace(reads, memory_limit_bytes=2 * w.GIB))) == (False, False)
    with_outputs = structs.replace(whole, outputs=OUT)
    told = w.written(with_outputs)
    assert w.container(told, "stage-out")["resources"] == {"requests": {"cpu": "0", "memory": "0"}}
    assert classes(told) == (True, False, True)


def test_disk_devices_and_limits() -> None:
    """Disk is asked for, never limited: linked inputs would count; devices are requests and limits."""
    pod = w.task(
        memory_bytes=1 << 20,
        memory_limit_bytes=3 << 20,
        disk_bytes=5 * w.GIB,
        extended={"example.org/fpga": 2, "example.org/none": 0},
        limits=Resources(cpu_millicores=4000),
        outputs=OUT,
    )
    manifest = w.written(pod)
    assert w.container(manifest, "task")["resources"] == {
        "requests": {
            "cpu": "1500m",
            "memory": "1048576",
            "ephemeral-storage": "5368709120",
            "example.org/fpga": "2",
        },
        "limits": {"cpu": "4", "memory": "3145728", "example.org/fpga": "2"},
    }
    assert w.container(manifest, "stage-in")["resources"] == {
        "requests": {"cpu": "1500m", "memory": "1048576"},
        "limits": {"cpu": "4", "memory": "268435456"},
    }


def test_what_a_task_prints_is_not_kept_with_its_end() -> None:
    """It may be a secret (P11). Steps print none, and their last words are worth having."""
    manifest = w.written(w.task(outputs=OUT))
    policies = [
        w.container(manifest, name)["terminationMessagePolicy"] for name in ("stage-in", "stage-out", "task")
    ]
    assert policies == ["FallbackToLogsOnError", "FallbackToLogsOnError", "File"]


# --- where it may run ----------------------------------------------------------------------------------------


def test_tolerations_are_repeated_since_noexecute_outlives_a_binding() -> None:
    """The stage's, each once."""
    some = Toleration("dedicated", "Equal", "batch", ""), Toleration("gpu", "Exists", "", "NoExecute")
    spec = w.written(w.task(rules=Rules(tolerations=(*some, some[1]))))["spec"]
    assert spec["tolerations"] == [
        {"key": "dedicated", "operator": "Equal", "value": "batch"},
        {"key": "gpu", "operator": "Exists", "effect": "NoExecute"},
    ]
    assert "nodeSelector" not in spec


def test_another_scheduler_is_told_where() -> None:
    """Selector, rack, one pod a node; and our node as a wish."""
    rules = Rules(selector={"disk": "ssd"}, rack="required", one_per_node=True)
    settings = replace(w.SETTINGS, hand_over="volcano")
    spec = w.written(w.task(gang=w.seat(), rules=rules), settings, w.GANG)["spec"]
    assert spec["schedulerName"] == "volcano"
    assert spec["nodeSelector"] == {"disk": "ssd"}
    peers = {"matchLabels": {"flowsched.io/group": "fs-w1-train-0-g1"}}
    assert spec["affinity"] == {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {
                    "weight": 100,
                    "preference": {
                        "matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]
                    },
                }
            ]
        },
        "podAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": peers, "topologyKey": "flowsched.io/rack"}
            ]
        },
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": peers, "topologyKey": "kubernetes.io/hostname"}
            ]
        },
    }


def test_shared_volumes_are_where_they_are_on_every_node() -> None:
    """Stage-in only reads them."""
    shared = (SharedVolume("reference", "/ref", True), SharedVolume("scratch", "/scratch"))
    manifest = w.written(w.task(outputs=OUT), replace(w.SETTINGS, shared=shared))
    assert manifest["spec"]["volumes"][2:] == [
        {"name": "shared-0", "persistentVolumeClaim": {"claimName": "reference"}},
        {"name": "shared-1", "persistentVolumeClaim": {"claimName": "scratch"}},
    ]
    read_only = {
        name: [mount["readOnly"] for mount in w.container(manifest, name)["volumeMounts"][2:]]
        for name in ("stage-in", "stage-out", "task")
    }
    assert read_only == {"stage-in": [True, True], "stage-out": [True, False], "task": [True, False]}


# --- security ------------------------------------------------------------------------------------------------


#: What may differ between pods of two users: their texts, and what is made of them. Nothing else may.
VALUES = {
    ("metadata", "name"),
    ("metadata", "labels", "app.kubernetes.io/component"),
    ("metadata", "labels", "flowsched.io/workflow"),
    ("metadata", "labels", "flowsched.io/stage"),
    ("metadata", "labels", "flowsched.io/role"),
    ("metadata", "annotations", "flowsched.io/pod"),
    ("metadata", "annotations", "volcano.sh/task-spec"),
    ("spec", "hostname"),
    ("spec", "containers", 0, "image"),
}


#: Texts that can be nothing at all in some places.
REFUSED = {
    "image": "ImageRefused",
    "env name": "StartFailed",
    "secret's variable": "StartFailed",
    "secret": "SecretMissing",
    "secret's key": "SecretMissing",
}


def skeleton(value: Any, path: tuple[Any, ...] = ()) -> Any:
    """The manifest with users' texts taken out, by place: what a text is worth does not matter."""
    if isinstance(value, dict):
        return {key: skeleton(held, (*path, key)) for key, held in value.items()}
    if isinstance(value, list):
        return [skeleton(held, (*path, at)) for at, held in enumerate(value)]
    in_command = len(path) == 5 and path[:4] == ("spec", "containers", 0, "command")
    in_env = len(path) == 6 and path[3] == "env" and path[5] in ("value", "name")
    in_secret = len(path) == 8 and path[3] == "env" and path[6] == "secretKeyRef"
    if path in VALUES or in_command or in_env or in_secret:
        assert isinstance(value, str)
        return "·"
    return value


@pytest.mark.parametrize("place", PLACES)
def test_fault_45b_a_users_text_never_becomes_structure(place: str) -> None:
    """Sixty hostile texts in every field: outside of the value the pod stays the same, byte by byte."""
    plain = PLACES[place](w.task(), "plain")
    expected = msgspec.json.encode(skeleton(w.written(plain, group=w.GANG)))
    for text in TEXTS:
        hostile = PLACES[place](w.task(), text)
        manifest = w.written_or_refused(hostile, group=w.GANG)
        if isinstance(manifest, Refusal):
            assert manifest.reason == REFUSED[place], text
            continue
        assert msgspec.json.encode(skeleton(manifest)) == expected, text


@pytest.mark.parametrize("text", TEXTS)
def test_fault_45b_a_users_text_arrives_as_it_was(text: str) -> None:
    """In the command (where only references to its own variables are expanded), in a variable, in the signed order."""
    pod = w.task("fs-w1-a-0-1", "run", text, env={"MODE": text}, inputs=(InputFile("x", (text,)),))
    manifest = w.written(pod)
    env, command = w.started(manifest, "task", {})
    _, local_command = environment(pod, Paths("/flowsched/work", "/flowsched/work", {"x": "-"}, ""))
    assert (env["MODE"], command) == (text, local_command)
    told = json.loads(w.started(manifest, "stage-in", {})[0]["FLOWSCHED_ORDER"])
    assert told["inputs"][0]["uris"] == [text]


# --- what there can be nowhere -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pod", "reason", "words"),
    [
        (w.task("x", "a\0b"), "StartFailed", "argument 0 of the command has a zero byte"),
        (w.task(env={"A": "\0"}), "StartFailed", "the variable A has a zero byte"),
        (w.task(env={"A=B": ""}), "StartFailed", "'A=B' is no name of a variable"),
        (w.task(env={"": ""}), "StartFailed", "'' is no name of a variable"),
        (w.task(env={"é": ""}), "StartFailed", "'é' is no name of a variable"),
        (w.task("x", "y" * (128 << 10)), "StartFailed", "has 131072 bytes; Linux takes fewer than 131072"),
        (w.task(env={"A": "y" * (128 << 10)}), "StartFailed", "the variable A has 131074 bytes"),
        (w.task("x", *["y" * 100_000] * 11), "StartFailed", "may be by 1048576"),
        (w.task("x", "\ud800"), "StartFailed", "lone surrogate"),
        (w.task(image=" "), "ImageRefused", "no default image"),
        (w.task(secrets={"A": "../x"}), "SecretMissing", "A asks for the secret '../x'"),
        (w.task(name="y" * (256 << 10)), "StartFailed", "its annotations have"),
    ],
)
def test_what_no_cluster_takes(pod: Pod, reason: str, words: str) -> None:
    """Is refused with the reason before anybody is asked."""
    told = w.refused(pod)
    assert told.reason == reason
    assert words in told.message


def test_ten_thousand_inputs_fit() -> None:
    """An order that is too long for a variable is packed."""
    uris = tuple(f"flowsched:w00000001jd9kq3c5v7xyz/align/{n}/1/bam" for n in range(10_000))
    manifest = w.written(w.task(inputs=(InputFile("bams", uris, True),)))
    env, _ = w.started(manifest, "stage-in", {})
    assert env["FLOWSCHED_ORDER"].startswith("z:")
    assert orders.read(env["FLOWSCHED_ORDER"]).inputs[0].uris == uris
