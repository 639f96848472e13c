"""What is written to an API server for our own pods: values to bytes, and nothing a user wrote ever becomes structure. Pure.

A task is one pod: `stage-in` lays out its inputs, the user's container runs as `task`, and, where there are outputs, the
native sidecar `stage-out` stays until the task has ended, publishes them, and tells the result. A container task of several
steps has a container for each (`stepcontainers`), and its files at paths of their own (`places`). All of it meets the Pod
Security Standard `restricted`. Bodies of other calls (bind, delete, tombstones, a gang's Service) are in `bodies`.
"""

from __future__ import annotations

from typing import Any, Final

from flowsched.cluster.kubernetes.amounts import Ask, asked, pod_resources, step_resources, task_resources
from flowsched.cluster.kubernetes.forms import PodLink, pod_link
from flowsched.cluster.kubernetes.limits import encoded
from flowsched.cluster.kubernetes.marks import annotations_of, labels_of, owner_reference
from flowsched.cluster.kubernetes.names import member_host, pod_name
from flowsched.cluster.kubernetes.places import Layout, lay_out
from flowsched.cluster.kubernetes.podenv import (
    TaskEnvironment,
    addressed,
    step_environment,
    task_environment,
)
from flowsched.cluster.kubernetes.release import (
    INPUTS,
    WORK,
    Extras,
    GroupRef,
    Refusal,
    ReleaseSettings,
    extras_of,
)
from flowsched.cluster.kubernetes.stepcontainers import (
    as_step,
    command_of,
    files_variables,
    needs_stage_out,
    step_names,
    step_variables,
    watched,
)
from flowsched.cluster.kubernetes.wishes import affinity, toleration
from flowsched.executor.protocol import Pod
from flowsched.workflow.spec import Toleration

#: Names of our containers, for logs and for `outcomes`.
TASK: Final = "task"
STAGE_IN: Final = "stage-in"
STAGE_OUT: Final = "stage-out"

#: Of every container: what `restricted` asks for.
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
#: How long a task may take to end after SIGTERM where nobody says otherwise: Kubernetes' own figure.
_GRACE_S: Final = 30

Json = dict[str, Any]


def pod_manifest(
    pod: Pod, settings: ReleaseSettings, group: GroupRef | None = None, extras: Extras | None = None
) -> bytes | Refusal:
    """The pod of one attempt of one task, without a node: it is bound later.

    Args:
        pod: What to run.
        settings: Of the installation.
        group: Its gang; None = it is alone.
        extras: What its stage says beside the order; None = what the order says itself.

    Returns:
        The body of its creation, or why there can be no such pod: the attempt has failed then, and for the same reason
        everywhere.
    """
    pod = addressed(pod, settings, group)
    extras = extras or extras_of(pod)
    layout = lay_out(pod.container, settings.shared) if pod.container is not None else Layout()
    if isinstance(layout, Refusal):
        return layout
    ask = asked(pod, settings, extras)
    tasks = _tasks(pod, settings, group, extras, ask, layout)
    if isinstance(tasks, Refusal):
        return tasks
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(pod, settings, group),
        "spec": _spec(pod, settings, group, extras, ask, tasks, layout),
    }
    return encoded(pod, manifest)


def _tasks(
    pod: Pod, settings: ReleaseSettings, group: GroupRef | None, extras: Extras, ask: Ask, layout: Layout
) -> list[Json] | Refusal:
    """The user's containers, in the order in which they run: one, or one for each step."""
    seen = [pod] if pod.container is None else [as_step(pod, step) for step in pod.container.steps]
    made: list[Json] = []
    for number, one in enumerate(seen):
        image = (one.image or settings.default_image).strip()
        if not image:
            whose = "the task names" if pod.container is None else f"step {number} of the task names"
            return Refusal("ImageRefused", f"{whose} no image, and there is no default image here")
        told = task_environment(one, settings, group, extras, layout)
        if isinstance(told, Refusal):
            return told
        task = _task(pod, settings, image, told, ask)
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
    extras: Extras,
    ask: Ask,
    tasks: list[Json],
    layout: Layout,
) -> Json:
    spec: Json = {
        "schedulerName": settings.scheduler,
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        # A task has the time that Kubernetes gives; what it has made needs as long as it takes to publish it.
        "terminationGracePeriodSeconds": settings.publish_s if needs_stage_out(pod) else _GRACE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": settings.run_as_user,
            "runAsGroup": settings.run_as_group,
            "fsGroup": settings.fs_group,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [*_steps(pod, settings, extras, ask, layout), *tasks[:-1]],
        "containers": tasks[-1:],
        "volumes": _volumes(pod, settings),
        "tolerations": [toleration(each) for each in _tolerations(settings, extras)],
    }
    optional = {
        "serviceAccountName": settings.service_account,
        "priorityClassName": settings.priority_class,
        "imagePullSecrets": [{"name": name} for name in settings.image_pull_secrets],
        "activeDeadlineSeconds": -(-pod.timeout_ms // 1000) if pod.timeout_ms else 0,
        "resources": pod_resources(ask) if settings.pod_level_resources else {},
        "resourceClaims": [{"name": name, "resourceClaimName": claim} for name, claim in ask.claims],
    }
    if settings.hand_over is not None:
        optional["nodeSelector"] = dict(extras.rules.selector)
        optional["affinity"] = affinity(extras.rules, group.name if group else "", pod.node)
    spec |= {key: value for key, value in optional.items() if value}
    if pod.gang is not None and group is not None and settings.gang_addresses == "dns":
        spec |= {
            "hostname": member_host(pod.gang.role, pod.gang.role_index),
            "subdomain": group.name,
        }
    return spec | dict(_link(pod, group).spec)


def _tolerations(settings: ReleaseSettings, extras: Extras) -> list[Toleration]:
    return list(dict.fromkeys((*settings.tolerations, *extras.rules.tolerations)))


def _steps(pod: Pod, settings: ReleaseSettings, extras: Extras, ask: Ask, layout: Layout) -> list[Json]:
    """Our own containers, in the order in which they begin."""
    env = step_environment(pod, settings, extras, layout)
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
        "resources": ask.sidecar,
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
    mounts |= {mount["mountPath"]: mount for mount in layout.mounts}
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
    if settings.image_pull_policy:
        step["imagePullPolicy"] = settings.image_pull_policy
    return step


def _task(pod: Pod, settings: ReleaseSettings, image: str, told: TaskEnvironment, ask: Ask) -> Json:
    """The user's container. Its command is an argument list: no shell ever reads it."""
    mounts = _mounts(settings, shared_read_only=False, inputs_read_only=True)
    if _needs_shared_memory(pod):
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    task: Json = {
        "name": TASK,
        "image": image,
        "workingDir": WORK,
        "env": told.env,
        "resources": task_resources(ask),
        "volumeMounts": mounts,
        # What a task prints may be a secret; its end is kept in a database. It may write a message of its own choice.
        "terminationMessagePolicy": "File",
        "securityContext": CONFINED,
    }
    if told.command:
        task["command"] = told.command
    if settings.image_pull_policy:
        task["imagePullPolicy"] = settings.image_pull_policy
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
    """No size limits: what is linked into `inputs` would count against them, although it takes no room of its own."""
    volumes: list[Json] = [{"name": "inputs", "emptyDir": {}}, {"name": "work", "emptyDir": {}}]
    for number, volume in enumerate(settings.shared):
        volumes.append({"name": f"shared-{number}", "persistentVolumeClaim": {"claimName": volume.claim}})
    if _needs_shared_memory(pod):
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    return volumes


def _needs_shared_memory(pod: Pod) -> bool:
    """Whether its processes probably talk through /dev/shm, of which a container has 64 MiB: MPI, data loaders."""
    return pod.gang is not None or pod.gpu_millis > 0
