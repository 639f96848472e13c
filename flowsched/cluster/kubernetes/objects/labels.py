"""The labels and annotations of the objects that this installation makes, by which it finds them again."""

from __future__ import annotations

from typing import Any, Final

from flowsched.cluster.kubernetes.objects.names import label_value, pod_name
from flowsched.cluster.kubernetes.objects.pod import Pod as PodObject
from flowsched.cluster.kubernetes.objects.release import GroupRef, Owner, ReleaseSettings
from flowsched.executor.protocol import Pod

PREFIX: Final = "flowsched.io/"
#: Annotation: the engine's name of a pod, which is what everything else calls it.
ENGINE_NAME: Final = f"{PREFIX}pod"
#: Labels.
WORKFLOW: Final = f"{PREFIX}workflow"
STAGE: Final = f"{PREFIX}stage"
INDEX: Final = f"{PREFIX}index"
ATTEMPT: Final = f"{PREFIX}attempt"
EPOCH: Final = f"{PREFIX}epoch"
GROUP: Final = f"{PREFIX}group"
ROLE: Final = f"{PREFIX}role"
#: Scheduling gate of a pod that another scheduler places: the leader opens it when the pod may run.
GATE: Final = f"{PREFIX}launch"
#: Label and scheduling gate of a placeholder.
HOLD: Final = f"{PREFIX}hold"
#: Annotation: the usage of each container, as a JSON object by container, where the node reports it.
USAGE: Final = f"{PREFIX}usage"
#: Annotation of a container task: how many steps it has.
STEPS: Final = f"{PREFIX}steps"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
INSTANCE: Final = "app.kubernetes.io/instance"


def ours(settings: ReleaseSettings) -> str:
    """The label selector of everything that this installation makes."""
    return f"{MANAGED_BY}=flowsched,{INSTANCE}={label_value(settings.instance)}"


def common_labels(settings: ReleaseSettings, component: str) -> dict[str, str]:
    """The labels of anything we make, as Kubernetes recommends them."""
    return {
        "app.kubernetes.io/name": "flowsched-task",
        INSTANCE: label_value(settings.instance),
        "app.kubernetes.io/component": label_value(component),
        "app.kubernetes.io/part-of": "flowsched",
        MANAGED_BY: "flowsched",
    }


def labels_of(pod: Pod, settings: ReleaseSettings, group: GroupRef | None) -> dict[str, str]:
    """The labels of a pod."""
    labels = common_labels(settings, pod.stage) | {
        WORKFLOW: label_value(pod.workflow),
        STAGE: label_value(pod.stage),
        INDEX: str(pod.index),
        ATTEMPT: str(pod.attempt),
        EPOCH: str(pod.epoch),
    }
    if group is not None:
        labels[GROUP] = label_value(group.name)
    if pod.gang is not None:
        labels[ROLE] = label_value(pod.gang.role)
    return labels


def annotations_of(pod: Pod, settings: ReleaseSettings) -> dict[str, str]:
    """The annotations of a pod; labels cannot hold every name as it is, these can."""
    return {
        ENGINE_NAME: pod.name,
        **({STEPS: str(len(pod.container.steps))} if pod.container is not None else {}),
        "kubectl.kubernetes.io/default-container": "task",
    }


def is_ours(obj: PodObject, settings: ReleaseSettings) -> bool:
    """Whether this installation has made a pod, by all its labels: one of them alone is easily copied."""
    meta = obj.metadata
    return (
        meta.labels.get(MANAGED_BY) == "flowsched"
        and meta.labels.get(INSTANCE) == label_value(settings.instance)
        and meta.namespace == settings.namespace
    )


def engine_name(obj: PodObject) -> str | None:
    """The engine's name of one of our pods; None if the object's own name says that it is not the one."""
    name = obj.metadata.annotations.get(ENGINE_NAME)
    return name if name is not None and pod_name(name) == obj.metadata.name else None


def owner_reference(owner: Owner) -> dict[str, Any]:
    """The owner reference by which an object is deleted with its owner. It does not block the owner's deletion."""
    return {
        "apiVersion": owner.api_version,
        "kind": owner.kind,
        "name": owner.name,
        "uid": owner.uid,
    }
