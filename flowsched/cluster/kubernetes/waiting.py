"""Why one of our pods has not started: what its kubelet says of its containers, and whether waiting helps. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flowsched.cluster.kubernetes.messages import shortened
from flowsched.cluster.kubernetes.metadata import condition_of
from flowsched.cluster.kubernetes.pod import ContainerStatus, Pod

#: Every pod says these on its way.
_ORDINARY: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
#: Nobody but the pod's author can change these, or an administrator who is not there: a name that is none, an image that was
#: never brought to the node, a Secret or ConfigMap that is missing, a step that fails again and again.
_PERMANENT: Final = frozenset(
    {
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "CreateContainerConfigError",
        "CrashLoopBackOff",
        "ErrImageNeedsCommand",
    }
)
#: These depend on what the registry or the runtime says.
_ASK_THE_MESSAGE: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "RunContainerError", "CreateContainerError"}
)
#: What registries and runtimes say of what will never be there, or never be allowed.
_HOPELESS: Final = (
    "not found",
    "notfound",
    "manifest unknown",
    "no such",
    "does not exist",
    "unauthorized",
    "denied",
    "forbidden",
    "invalid reference",
    "invalid image",
    "no match for platform",
    "exec format error",
)
#: ... unless they say it of themselves: a registry whose name does not resolve may be back in a minute.
_HOPEFUL: Final = ("no such host", "timeout", "too many requests", "toomanyrequests", "connection refused")


@dataclass(frozen=True, slots=True)
class Waiting:
    """The pod has not started.

    Args:
        reason: One word; "" = nothing is wrong, it is on its way.
        message: In the words of whoever holds it.
        permanent: Waiting will not change it, unless somebody else does something.
    """

    reason: str = ""
    message: str = ""
    permanent: bool = False


def waiting_for(pod: Pod) -> Waiting:
    """What a pod that has not started waits for: the first of its containers that says something unusual, else its scheduler."""
    status = pod.status
    for container in (*status.init_container_statuses, *status.container_statuses):
        waiting = container.state.waiting
        if waiting is not None and waiting.reason not in _ORDINARY:
            message = _last_words(container) or waiting.message
            permanent = _is_permanent(waiting.reason, waiting.message)
            return Waiting(shortened(waiting.reason), shortened(message), permanent)
    if status.phase == "Unknown":
        return Waiting("NodeUnreachable", shortened(status.message or "its node has not been heard of"))
    scheduled = condition_of(status.conditions, "PodScheduled")
    if scheduled is not None and scheduled.status == "False" and not pod.spec.node_name:
        return Waiting(shortened(scheduled.reason) or "Unschedulable", shortened(scheduled.message))
    return Waiting()


def _last_words(container: ContainerStatus) -> str:
    """How a container that is to be started again ended the last time."""
    ended = container.last_state.terminated
    if ended is None:
        return ""
    return f"{container.name}: {ended.reason} ({ended.exit_code}): {ended.message}"


def _is_permanent(reason: str, message: str) -> bool:
    if reason in _PERMANENT:
        return True
    words = message.lower()
    hopeless = any(each in words for each in _HOPELESS) and not any(each in words for each in _HOPEFUL)
    return reason in _ASK_THE_MESSAGE and hopeless
