"""The forms a gang's PodGroup may have, and which of them an API server serves.

Four resources are called `podgroups`: paths and discovery go by group and version, never by the short name.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from flowsched.cluster.kubernetes.names import dns_label, label_value
from flowsched.errors import ConfigurationError

#: The annotation Volcano's scheduler reads. Written beside the native field too: an API server whose gate is off
#: drops that field without a word.
GROUP_ANNOTATION: Final = "scheduling.k8s.io/group-name"
PLUGINS_LABEL: Final = "scheduling.x-k8s.io/pod-group"
TASK_SPEC: Final = "volcano.sh/task-spec"
QUEUE_ANNOTATION: Final = "scheduling.volcano.sh/queue-name"


class Form(StrEnum):
    """The apiVersion of a PodGroup; NONE = the cluster knows none, and our own loop alone keeps a gang together."""

    NATIVE_BETA = "scheduling.k8s.io/v1beta1"
    NATIVE_ALPHA = "scheduling.k8s.io/v1alpha2"
    SCHEDULER_PLUGINS = "scheduling.x-k8s.io/v1alpha1"
    VOLCANO = "scheduling.volcano.sh/v1beta1"
    NONE = ""

    @property
    def native(self) -> bool:
        """Whether Kubernetes itself defines it."""
        return self in (Form.NATIVE_BETA, Form.NATIVE_ALPHA)


#: What may be wished for, and which forms that means, the preferred first.
WISHES: Final[Mapping[str, tuple[Form, ...]]] = {
    "auto": (Form.NATIVE_BETA, Form.NATIVE_ALPHA, Form.SCHEDULER_PLUGINS, Form.VOLCANO, Form.NONE),
    "native": (Form.NATIVE_BETA, Form.NATIVE_ALPHA),
    "scheduler-plugins": (Form.SCHEDULER_PLUGINS,),
    "volcano": (Form.VOLCANO,),
    "none": (Form.NONE,),
}


@dataclass(frozen=True, slots=True)
class PodLink:
    """What a pod carries so that it belongs to a PodGroup."""

    spec: Mapping[str, Any] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def choose_form(discovered: Mapping[str, Set[str]], wanted: str = "auto") -> Form:
    """The form our own gangs get.

    Args:
        discovered: Group and version (`scheduling.k8s.io/v1alpha2`) -> kinds that the API server serves in it. The
            kinds matter: `scheduling.k8s.io/v1beta1` once was PriorityClass alone.
        wanted: A key of `WISHES`.

    Raises:
        ConfigurationError: There is no such wish, or the cluster does not serve what is wished for.
    """
    if wanted not in WISHES:
        raise ConfigurationError(f"PodGroups cannot be {wanted!r}: one of {', '.join(WISHES)}")
    for form in WISHES[wanted]:
        if form is Form.NONE or "PodGroup" in discovered.get(form.value, ()):
            return form
    versions = " or ".join(form.value for form in WISHES[wanted])
    raise ConfigurationError(
        f"the API server serves no PodGroup of {versions}, which {wanted!r} means: install it, or choose another form"
    )


def group_path(form: Form, namespace: str, name: str = "") -> str:
    """Where PodGroups of a form are, or one of them."""
    where = f"/apis/{form.value}/namespaces/{namespace}/podgroups"
    return f"{where}/{name}" if name else where


def volcano_queue(queue: str) -> str:
    """A queue's name as Volcano allows it (no capitals, no `_`); "" stays ""."""
    return dns_label(queue) if queue else ""


def pod_link(form: Form, group: str, role: str = "", queue: str = "") -> PodLink:
    """What a pod carries, by the form of its group.

    Args:
        form: Of the group.
        group: Its name.
        role: Of the pod, if it has one.
        queue: Of the group, if it says one.
    """
    match form:
        case Form.NONE:
            return PodLink()
        case Form.SCHEDULER_PLUGINS:
            return PodLink(labels={PLUGINS_LABEL: label_value(group)})
        case Form.VOLCANO:
            marks = {GROUP_ANNOTATION: group, TASK_SPEC: role, QUEUE_ANNOTATION: volcano_queue(queue)}
            return PodLink(annotations={key: value for key, value in marks.items() if value})
    marks = {GROUP_ANNOTATION: group, TASK_SPEC: role}
    return PodLink(
        spec={"schedulingGroup": {"podGroupName": group}},
        annotations={key: value for key, value in marks.items() if value},
    )
