"""Manifests of our own pods: values to bytes, refused if no cluster would take them; user text never becomes structure. Pure.

A task is one pod. `stage-in` lays out its inputs, where it has files. The user's container runs as `task`. Where there are
outputs, the native sidecar `stage-out` stays until the task has ended, publishes them, and tells the result. A container task
of several steps has a container for each (`container_task`), and its files at paths of their own (`container_paths`). All of it
meets the Pod Security Standard `restricted`. Bodies of other calls (bind, delete, a gang's Service) are in `request_bodies`
and `gang_objects`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import msgspec

from flowsched.cluster.kubernetes.dra.inventory import places_of
from flowsched.cluster.kubernetes.objects.labels import (
    GATE,
    GROUP,
    annotations_of,
    labels_of,
    owner_reference,
)
from flowsched.cluster.kubernetes.objects.names import member_host, pod_name
from flowsched.cluster.kubernetes.objects.podgroup import PodLink, pod_link
from flowsched.cluster.kubernetes.objects.release import (
    INPUTS,
    WORK,
    GroupRef,
    ReleaseSettings,
)
from flowsched.cluster.kubernetes.pods.container_task import (
    TEMPORARY,
    TaskEnvironment,
    as_step,
    command_of,
    files_variables,
    needs_stage_in,
    needs_stage_out,
    step_environment,
    step_names,
    step_variables,
    task_environment,
    watched,
)
from flowsched.cluster.node.container_paths import Bind, Layout, Refusal, lay_out
from flowsched.executor.protocol import Pod
from flowsched.workflow.spec import Resources, Rules, Toleration

#: Stage-in may use so much, however little its task asks for: it is Python, and it may have to fetch.
STEP_MEMORY_BYTES: Final = 256 << 20

Quantities = dict[str, str]


@dataclass(frozen=True, slots=True)
class Ask:
    """The resources that a task asks for.

    Args:
        requests, limits: Of its container.
        devices: They are requests and limits at once.
        memory_bytes: Of its limit.
        claims: On devices: (name in the pod, name of the claim).
    """

    requests: Quantities
    limits: Quantities
    devices: Quantities
    memory_bytes: int
    claims: tuple[tuple[str, str], ...] = ()


def asked(pod: Pod, settings: ReleaseSettings) -> Ask:
    """The resources that the task of a pod asks for."""
    memory_limit = max(pod.memory_limit_bytes or 0, pod.memory_bytes)
    cpu_limit = pod.limits.cpu_millicores if pod.limits else 0
    requests = {"cpu": cpu(pod.cpu_millicores), "memory": str(pod.memory_bytes)}
    if pod.disk_bytes:
        requests["ephemeral-storage"] = str(pod.disk_bytes)
    limits = {"memory": str(memory_limit)}
    if cpu_limit:
        limits["cpu"] = cpu(max(cpu_limit, pod.cpu_millicores))
    # A part of a GPU is no device of a plugin: its number is in the environment.
    counts = dict(pod.extended)
    if settings.gpu.resource and pod.gpu_millis and pod.gpu_millis % 1000 == 0:
        counts[settings.gpu.resource] = pod.gpu_millis // 1000
    devices = {name: str(count) for name, count in sorted(counts.items()) if count}
    claims = tuple((f"gpu-{place.number}", place.claim) for place in places_of(pod, settings))
    return Ask(requests, limits, devices, memory_limit, claims)


def task_resources(ask: Ask) -> dict[str, Any]:
    """Of the task's container."""
    amounts: dict[str, Any] = {"requests": ask.requests | ask.devices, "limits": ask.limits | ask.devices}
    return amounts | ({"claims": [{"name": name} for name, _ in ask.claims]} if ask.claims else {})


def step_resources(ask: Ask) -> dict[str, Quantities]:
    """Of stage-in, which runs while the task does not: it may take what the task asks for."""
    requests = {name: ask.requests[name] for name in ("cpu", "memory")}
    memory = max(ask.memory_bytes, STEP_MEMORY_BYTES)
    return {"requests": requests, "limits": ask.limits | {"memory": str(memory)}}


def quantities(resources: Resources, gpu_resource: str, factor: int = 1) -> Quantities:
    """Resources as Kubernetes writes them, without zeros."""
    devices = -(-resources.gpu_millis * factor // 1000) if gpu_resource else 0
    amounts: Mapping[str, int] = {
        "memory": resources.memory_bytes * factor,
        "ephemeral-storage": resources.disk_bytes * factor,
        gpu_resource: devices,
        **{name: count * factor for name, count in resources.extended.items()},
    }
    others = {name: str(amount) for name, amount in amounts.items() if amount}
    return {"cpu": cpu(resources.cpu_millicores * factor), **others} if resources.cpu_millicores else others


def cpu(millicores: int) -> str:
    """Cores, or thousandths of one: as the API server itself writes it."""
    return f"{millicores}m" if millicores % 1000 else str(millicores // 1000)


# ---- what no cluster takes ----
#
# Found before the API server is asked, so that the reason is ours and the same everywhere.


#: Linux takes no longer string in a command or an environment, its end included (MAX_ARG_STRLEN).
LONGEST_STRING: Final = 128 << 10
#: etcd takes 1.5 MiB; the server adds fields, a kubelet a status.
LARGEST_MANIFEST: Final = 1 << 20
#: Kubernetes' own limit, of names and values together.
LARGEST_ANNOTATIONS: Final = 256 << 10
#: As JSON spells it.
_ZERO: Final = b"\\u0000"


def encoded(pod: Pod, manifest: Mapping[str, Any]) -> bytes | Refusal:
    """A pod's manifest as the body of its creation, or why it can be created nowhere.

    A manifest that is short and has no zero byte has no faulty text either; only for others each text is checked.
    """
    try:
        raw = msgspec.json.encode(manifest)
    except UnicodeEncodeError:
        raw = b""
    if 0 < len(raw) < LONGEST_STRING and _ZERO not in raw:
        spec = manifest["spec"]
        containers = [*spec["initContainers"], *spec["containers"]]
        if all(_is_name(variable["name"]) for each in containers for variable in each["env"]):
            return raw
    return fault_of(pod, manifest) or raw


def fault_of(pod: Pod, manifest: Mapping[str, Any]) -> Refusal | None:
    """Why a pod can be created nowhere; None = nothing is wrong with it."""
    spec, metadata = manifest["spec"], manifest["metadata"]
    containers = [*spec["initContainers"], *spec["containers"]]
    for container in containers:
        fault = _strings(container)
        if fault is not None:
            return fault
    annotations = sum(_bytes(key) + _bytes(value) for key, value in metadata["annotations"].items())
    if annotations > LARGEST_ANNOTATIONS:
        return Refusal("StartFailed", f"its annotations have {annotations} bytes, of {LARGEST_ANNOTATIONS}")
    try:
        size = len(msgspec.json.encode(manifest))
    except UnicodeEncodeError:
        return Refusal(
            "StartFailed", f"a text of {pod.name} cannot be encoded: it has a lone surrogate in it"
        )
    if size > LARGEST_MANIFEST:
        return Refusal(
            "StartFailed",
            f"the pod is described by {size} bytes and may be by {LARGEST_MANIFEST}: "
            "a shorter command, environment or list of inputs is needed",
        )
    return None


def _strings(container: Mapping[str, Any]) -> Refusal | None:
    """Commands and variables that no process can be started with."""
    for number, argument in enumerate(container.get("command", ())):
        fault = _string(f"argument {number} of the command", argument, _bytes(argument))
        if fault is not None:
            return fault
    for variable in container["env"]:
        name, value = variable["name"], variable.get("value", "")
        if not _is_name(name):
            return Refusal("StartFailed", f"{name!r} is no name of a variable")
        fault = _string(f"the variable {name}", name + value, _bytes(name) + 1 + _bytes(value))
        if fault is not None:
            return fault
    return None


@lru_cache(maxsize=8192)
def _is_name(name: str) -> bool:
    return bool(name) and "=" not in name and name.isascii() and name.isprintable()


def _string(what: str, text: str, size: int) -> Refusal | None:
    if "\0" in text:
        return Refusal("StartFailed", f"{what} has a zero byte in it")
    if size >= LONGEST_STRING:
        return Refusal("StartFailed", f"{what} has {size} bytes; Linux takes fewer than {LONGEST_STRING}")
    return None


def _bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


# ---- where a pod may run, in Kubernetes' words ----
#
# For schedulers other than ours, which has decided that already.


#: The node label that names the rack.
RACK_LABEL: Final = "flowsched.io/rack"
_HOSTNAME: Final = "kubernetes.io/hostname"

Json = dict[str, Any]


def toleration(tolerated: Toleration) -> Json:
    """A toleration as a pod carries it."""
    fields = {
        "key": tolerated.key,
        "operator": tolerated.operator,
        "value": "" if tolerated.operator == "Exists" else tolerated.value,
        "effect": tolerated.effect,
    }
    return {key: value for key, value in fields.items() if value}


def affinity(rules: Rules, group: str, node: str) -> Json:
    """Rack and spread of a gang as rules between its pods, and the node we would take as a wish.

    Args:
        rules: Of the stage.
        group: Name of the gang; its pods know each other by the label of that name; "" = the pod is alone.
        node: Where its inputs are; "" = not said.
    """
    terms: Json = {}
    if node:
        here = {"key": "metadata.name", "operator": "In", "values": [node]}
        wish = {"weight": 100, "preference": {"matchFields": [here]}}
        terms["nodeAffinity"] = {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}
    if not group:
        return terms
    peers = {"matchLabels": {GROUP: group}}
    if rules.rack is not None:
        terms["podAffinity"] = _term(peers, RACK_LABEL, required=rules.rack == "required")
    if rules.one_per_node:
        terms["podAntiAffinity"] = _term(peers, _HOSTNAME, required=True)
    return terms


def _term(peers: Mapping[str, Any], topology_key: str, *, required: bool) -> Json:
    term = {"labelSelector": peers, "topologyKey": topology_key}
    if required:
        return {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    wish = {"weight": 100, "podAffinityTerm": term}
    return {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}


# ---- the manifest ----


#: Names of our containers, for logs and for `status`.
TASK: Final = "task"
STAGE_IN: Final = "stage-in"
STAGE_OUT: Final = "stage-out"

#: Of every container, as `restricted` demands.
CONFINED: Final[dict[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
#: Asked once in all, as a rule: the command itself waits.
READY: Final[dict[str, Any]] = {
    "exec": {"command": ["flowsched", "pod", "ready"]},
    "periodSeconds": 1,
    "timeoutSeconds": 35,
    "failureThreshold": 10,
}
#: How long a task may take to end after SIGTERM by default: Kubernetes' own figure.
_GRACE_S: Final = 30
#: How long stage-out may take. It is also how long a task that ignores SIGTERM lives on after its timeout, or when its node is
#: drained: Kubernetes has one figure for all containers of a pod.
_PUBLISH_S: Final = 300
#: The group that a pod's containers run as, and that owns its volumes.
_GROUP_ID: Final = 1000


def pod_manifest(
    pod: Pod, settings: ReleaseSettings, group: GroupRef | None = None, expires_ms: int = 0
) -> bytes | Refusal:
    """The pod of one attempt of one task, without a node: it is bound later.

    Args:
        pod: The pod that is to run.
        settings: Of the installation.
        group: Its gang; None = it is alone.
        expires_ms: When the order of its steps expires (wall clock).

    Returns:
        The body of its creation, or why there can be no such pod: the attempt has failed then, and for the same reason
        everywhere.
    """
    layout = lay_out(pod.container, settings.shared) if pod.container is not None else Layout()
    if isinstance(layout, Refusal):
        return layout
    ask = asked(pod, settings)
    tasks = _tasks(pod, settings, group, ask, layout)
    if isinstance(tasks, Refusal):
        return tasks
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(pod, settings, group),
        "spec": _spec(pod, settings, group, expires_ms, ask, tasks, layout),
    }
    return encoded(pod, manifest)


def _tasks(
    pod: Pod, settings: ReleaseSettings, group: GroupRef | None, ask: Ask, layout: Layout
) -> list[Json] | Refusal:
    """The user's containers, in the order in which they run: one, or one for each step."""
    steps = [pod] if pod.container is None else [as_step(pod, step) for step in pod.container.steps]
    made: list[Json] = []
    for number, one in enumerate(steps):
        image = (one.image or settings.default_image).strip()
        if not image:
            whose = "the task names" if pod.container is None else f"step {number} of the task names"
            return Refusal(
                "ImageRefused",
                f"{whose} no image, and there is no default image here: give it one (container: {{image: …}}), or start "
                "flowsched with FLOWSCHED_DEFAULT_IMAGE",
            )
        environment = task_environment(one, settings, group, layout)
        if isinstance(environment, Refusal):
            return environment
        task = _task(pod, settings, image, environment, ask)
        made.append(task if pod.container is None else _as_step(task, pod, settings, layout, number))
    return made


def _metadata(pod: Pod, settings: ReleaseSettings, group: GroupRef | None) -> Json:
    link = _link(pod, group)
    metadata: Json = {
        "name": pod_name(pod.name),
        "namespace": settings.namespace,
        "labels": labels_of(pod, settings, group) | dict(link.labels),
        "annotations": annotations_of(pod, settings) | dict(link.annotations),
    }
    if group is not None and group.owner is not None:
        metadata["ownerReferences"] = [owner_reference(group.owner)]
    return metadata


def _link(pod: Pod, group: GroupRef | None) -> PodLink:
    if group is None:
        return PodLink()
    return pod_link(group.form, group.name, pod.gang.role if pod.gang else "", group.queue)


def _spec(
    pod: Pod,
    settings: ReleaseSettings,
    group: GroupRef | None,
    expires_ms: int,
    ask: Ask,
    tasks: list[Json],
    layout: Layout,
) -> Json:
    rules = pod.rules or Rules()
    spec: Json = {
        "schedulerName": settings.scheduler,
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        # A task has the time that Kubernetes gives; its outputs need as long as it takes to publish them.
        "terminationGracePeriodSeconds": _PUBLISH_S if needs_stage_out(pod) else _GRACE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.user,
            "runAsGroup": _GROUP_ID,
            "fsGroup": _GROUP_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [*_steps(pod, settings, group, expires_ms, ask, layout), *tasks[:-1]],
        "containers": tasks[-1:],
        "volumes": _volumes(pod, settings),
        "tolerations": [toleration(each) for each in dict.fromkeys(rules.tolerations)],
    }
    optional = {
        "serviceAccountName": settings.service_account,
        "activeDeadlineSeconds": -(-pod.timeout_ms // 1000) if pod.timeout_ms else 0,
        "resourceClaims": [{"name": name, "resourceClaimName": claim} for name, claim in ask.claims],
    }
    if settings.hand_over is not None:
        spec["schedulingGates"] = [{"name": GATE}]
        optional["nodeSelector"] = dict(rules.selector)
        optional["affinity"] = affinity(rules, group.name if group else "", pod.node)
    spec |= {key: value for key, value in optional.items() if value}
    if pod.gang is not None and group is not None and settings.gang_addresses == "dns":
        spec |= {
            "hostname": member_host(pod.gang.role, pod.gang.role_index),
            "subdomain": group.name,
        }
    return spec | dict(_link(pod, group).spec)


def _steps(
    pod: Pod, settings: ReleaseSettings, group: GroupRef | None, expires_ms: int, ask: Ask, layout: Layout
) -> list[Json]:
    """Our own containers, in the order in which they begin; none where there is nothing to lay out."""
    if not needs_stage_in(pod):
        return []
    env = step_environment(pod, settings, group, expires_ms, layout)
    files = pod.container is not None
    stage_in = _step(
        STAGE_IN, settings, [*env, *(files_variables(pod, layout, contents=True) if files else ())]
    ) | {
        "resources": step_resources(ask),
        "volumeMounts": _mounts(settings, shared_read_only=not files, inputs_read_only=False),
    }
    if not needs_stage_out(pod):
        return [stage_in]
    if files:
        env = [*env, *files_variables(pod, layout, contents=False), _message_bytes(pod)]
    stage_out = _step(STAGE_OUT, settings, env) | {
        "restartPolicy": "Always",
        # The task may not start, and so not end, before stage-out would notice.
        "startupProbe": READY,
        # Nothing has to be said as nothing: a namespace's LimitRange would put in its own figures.
        "resources": {"requests": {"cpu": "0", "memory": "0"}},
        "volumeMounts": _mounts(settings, shared_read_only=False, inputs_read_only=True),
    }
    return [stage_in, stage_out]


def _message_bytes(pod: Pod) -> Json:
    """A kubelet takes 12 KiB of all termination messages of a pod together, and 4 KiB of one."""
    assert pod.container is not None
    return {
        "name": "FLOWSCHED_MESSAGE_BYTES",
        "value": str(min(4096, 12288 // (2 + len(pod.container.steps)))),
    }


def _bound(mount: Bind) -> Json:
    """A mount of a container task as Kubernetes has it."""
    if mount.shared is None:
        body: Json = {"name": "inputs", "mountPath": mount.path, "subPath": mount.inner}
        return body | ({"readOnly": True} if mount.read_only else {})
    body = {"name": f"shared-{mount.shared}", "mountPath": mount.path, "readOnly": mount.read_only}
    return body | ({"subPath": mount.inner} if mount.inner else {})


def _as_step(task: Json, pod: Pod, settings: ReleaseSettings, layout: Layout, number: int) -> Json:
    """The container of one step of a container task."""
    container = pod.container
    assert container is not None
    step = container.steps[number]
    mounts = {
        mount["mountPath"]: mount
        for mount in _mounts(settings, shared_read_only=False, inputs_read_only=True)
    }
    del mounts[INPUTS]
    mounts |= {mount.path: _bound(mount) for mount in layout.mounts}
    shm = [mount for mount in task["volumeMounts"] if mount["name"] == "shm"]
    task |= {
        "name": step_names(container)[number],
        "command": command_of(step, watch=watched(container, layout), before=container.steps[:number]),
        "env": [*task["env"], *step_variables(number)],
        "volumeMounts": [*mounts.values(), *shm],
    }
    del task["workingDir"]
    return task | ({"workingDir": step.workdir} if step.workdir else {})


def _step(name: str, settings: ReleaseSettings, env: list[Json]) -> Json:
    step: Json = {
        "name": name,
        "image": settings.our_image,
        "command": ["flowsched", "pod", name],
        "env": env,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": CONFINED,
    }
    if settings.steps_secret:
        step["envFrom"] = [{"secretRef": {"name": settings.steps_secret, "optional": True}}]
    return step


def _task(pod: Pod, settings: ReleaseSettings, image: str, environment: TaskEnvironment, ask: Ask) -> Json:
    """The user's container. Its command is an argument list: no shell ever reads it."""
    mounts = _mounts(settings, shared_read_only=False, inputs_read_only=True)
    if _needs_shared_memory(pod):
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    if not needs_stage_in(pod):  # the kubelet makes TMPDIR then, with the rights of the volume
        mounts.append({"name": "work", "mountPath": f"{WORK}/{TEMPORARY}", "subPath": TEMPORARY})
    task: Json = {
        "name": TASK,
        "image": image,
        "workingDir": WORK,
        "env": environment.env,
        "resources": task_resources(ask),
        "volumeMounts": mounts,
        # A task may print a secret, and the end of its log is kept in a database. It may write a message of its own choice.
        "terminationMessagePolicy": "File",
        "securityContext": CONFINED,
    }
    if environment.command:
        task["command"] = environment.command
    return task


def _mounts(settings: ReleaseSettings, *, shared_read_only: bool, inputs_read_only: bool) -> list[Json]:
    mounts: list[Json] = [
        {"name": "inputs", "mountPath": INPUTS, "readOnly": inputs_read_only},
        {"name": "work", "mountPath": WORK},
    ]
    for number, volume in enumerate(settings.shared):
        read_only = volume.read_only or shared_read_only
        mounts.append({"name": f"shared-{number}", "mountPath": volume.path, "readOnly": read_only})
    return mounts


def _volumes(pod: Pod, settings: ReleaseSettings) -> list[Json]:
    """No size limits: files linked into `inputs` would count against them, although they take no room of their own."""
    volumes: list[Json] = [{"name": "inputs", "emptyDir": {}}, {"name": "work", "emptyDir": {}}]
    for number, volume in enumerate(settings.shared):
        volumes.append({"name": f"shared-{number}", "persistentVolumeClaim": {"claimName": volume.claim}})
    if _needs_shared_memory(pod):
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    return volumes


def _needs_shared_memory(pod: Pod) -> bool:
    """Whether its processes probably talk through /dev/shm, of which a container has 64 MiB: MPI, data loaders."""
    return pod.gang is not None or pod.gpu_millis > 0
