"""Others' PodGroups, of every form, and what stands for a group where pods have none. No I/O.

The rule of a group is told to the engine once for each version of its object, and never mixed: membership is read from pods,
the minimum from one object (FAULTS.md row 33). Plain pods of one owner are one group, so that a Job's thousand pods are one item.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from flowsched.cluster.kubernetes.forms import Form
from flowsched.cluster.kubernetes.marks import INSTANCE, MANAGED_BY
from flowsched.cluster.kubernetes.names import label_value
from flowsched.cluster.kubernetes.objects import Pod, moment_ms
from flowsched.cluster.kubernetes.podgroups import Life
from flowsched.cluster.kubernetes.release import ReleaseSettings
from flowsched.cluster.kubernetes.stakes import preemptible_of
from flowsched.cluster.kubernetes.strange import taken
from flowsched.cluster.kubernetes.thirdparty import (
    GroupLink,
    link_of,
    queue_of,
    read_group,
    role_of,
    rule_in,
)
from flowsched.cluster.kubernetes.watch import Batch
from flowsched.executor.foreign import ForeignGroup, GroupGone, GroupSeen
from flowsched.executor.protocol import ClusterEvent

_ENDED = ("Succeeded", "Failed")


@dataclass(slots=True)
class Group:
    """One group.

    Attributes:
        key: Under which the engine knows it.
        form: Of its object; NONE where pods of one owner stand for a group.
        namespace, name: Of its object.
        told: The rule as it was told last; None = its object is not there.
        pods: uid -> phase of its pods ("" = not bound yet).
        started: Whether its minimum was on nodes once.
        verdict: Why it waits: (code, message), as last published.
        life: As its status says it.
    """

    key: str
    form: Form
    namespace: str
    name: str
    told: ForeignGroup | None = None
    uid: str = ""
    pods: dict[str, str] = field(default_factory=dict)
    started: bool = False
    verdict: tuple[str, str] = ("", "")
    life: Life | None = None

    @property
    def counts(self) -> Counter[str]:
        """Pods by phase."""
        return Counter(self.pods.values())


class GroupBook:
    """All of them.

    Args:
        settings: Which PodGroups are ours (those are left alone here).
        report: Takes events.
        native: The version of native PodGroups that this cluster serves.
    """

    def __init__(
        self,
        settings: ReleaseSettings,
        report: Callable[[ClusterEvent], None],
        native: Form = Form.NATIVE_BETA,
    ) -> None:
        self._settings = settings
        self._native = native
        self._report = report
        self.groups: dict[str, Group] = {}
        self.dirty: set[str] = set()  #: whose status may have changed

    def everything(self) -> Iterator[ClusterEvent]:
        """All rules once more."""
        return (GroupSeen(group.told) for group in self.groups.values() if group.told is not None)

    # --- objects ---------------------------------------------------------------------------------------------

    def changed(self, form: Form, batch: Batch[Any]) -> None:
        """PodGroups of a form came, changed or went."""
        if batch.replaced is not None:
            here = {_key(form, each.metadata.namespace, each.metadata.name) for each in batch.replaced}
            for key in [key for key, group in self.groups.items() if group.form is form and key not in here]:
                self._gone(key)
            for each in batch.replaced:
                taken(partial(self._seen, form), each)
        for change, each in batch.changed:
            if change == "DELETED":
                self._gone(_key(form, each.metadata.namespace, each.metadata.name))
            else:
                taken(partial(self._seen, form), each)

    def _seen(self, form: Form, each: Any) -> None:
        meta = each.metadata
        labels = meta.labels
        if labels.get(MANAGED_BY) == "flowsched" and labels.get(INSTANCE) == label_value(
            self._settings.instance
        ):
            return
        key = _key(form, meta.namespace, meta.name)
        group = self.groups.setdefault(key, Group(key, form, meta.namespace, meta.name))
        started, may_go = _has_started(form, each), preemptible_of(meta)
        rule = replace(read_group(form, each, key), started=started, preemptible=may_go)
        if group.uid and group.uid != meta.uid:  # another object of the same name
            self._report(GroupGone(key))
            group.started, group.life, group.verdict = False, None, ("", "")
        group.uid = meta.uid
        if group.told is None or not _same(group.told, rule):
            self._report(GroupSeen(rule))
        group.told = rule
        self.dirty.add(key)

    def _gone(self, key: str) -> None:
        group = self.groups.get(key)
        if group is None or group.form is Form.NONE:
            return
        if group.told is not None:
            self._report(GroupGone(key))
        group.told, group.uid, group.life = None, "", None
        if not group.pods:
            del self.groups[key]

    # --- pods ------------------------------------------------------------------------------------------------

    def place_of(self, pod: Pod) -> tuple[str, str]:
        """(key of its group, role in it)."""
        link = link_of(pod, self._native)
        if link is None:
            return _owner_key(pod), ""
        if link.form is Form.NONE:
            return f"{link.kind}/{pod.metadata.namespace}/{link.name}", role_of(pod)
        return _key(link.form, pod.metadata.namespace, link.name), role_of(pod)

    def queue_of(self, pod: Pod, key: str) -> str:
        """Who pays: its group's queue, else what it says itself."""
        group = self.groups.get(key)
        if group is not None and group.told is not None and group.told.queue:
            return group.told.queue
        return queue_of(pod) or "default"

    def observe(self, pod: Pod, key: str) -> None:
        """A pod of a group that we schedule, or have scheduled."""
        group = self.groups.get(key)
        if group is None:
            group = self.groups[key] = self._stand_in(pod, key, link_of(pod, self._native))
        phase = pod.status.phase if pod.spec.node_name or pod.status.phase in _ENDED else ""
        if group.pods.get(pod.metadata.uid) != phase:
            group.pods[pod.metadata.uid] = phase
            self.dirty.add(key)

    def lost(self, uid: str, key: str) -> None:
        """A pod is no more."""
        group = self.groups.get(key)
        if group is None:
            return
        group.pods.pop(uid, None)
        self.dirty.add(key)
        if not group.pods and (group.form is Form.NONE or group.told is None):
            if group.told is not None:
                self._report(GroupGone(key))
            del self.groups[key]

    def _stand_in(self, pod: Pod, key: str, link: GroupLink | None) -> Group:
        """A group whose object has not been seen, or that has none."""
        meta = pod.metadata
        if link is not None:
            said = rule_in(pod, key)
            if said is not None:
                self._report(GroupSeen(said))
            return Group(key, link.form, meta.namespace, link.name, told=said)
        owner = next((each for each in meta.owner_references if each.controller), None)
        name = owner.name if owner is not None else meta.name
        rule = ForeignGroup(
            key=key,
            namespace=meta.namespace,
            name=name,
            queue=queue_of(pod) or "default",
            created_ms=moment_ms(meta.creation_timestamp) or 0,
        )
        self._report(GroupSeen(rule))
        return Group(key, Form.NONE, meta.namespace, name, told=rule)


def _has_started(form: Form, each: Any) -> bool:
    """Whether a group's status, which only its scheduler writes, says that its minimum was on nodes once."""
    status = each.status
    if status is None:
        return False
    if form.native:
        types = ("PodGroupScheduled", "PodGroupInitiallyScheduled")
        return any(c.type in types and c.status == "True" for c in status.conditions or ())
    return (status.phase or "") in ("Scheduling", "Running", "Unknown", "Completed", "Finished", "Failed")


def _key(form: Form, namespace: str, name: str) -> str:
    return f"{form.value}/{namespace}/{name}"


def _owner_key(pod: Pod) -> str:
    """Pods of one controller are one group; a pod without is one by itself."""
    owner = next((each.uid for each in pod.metadata.owner_references if each.controller), pod.metadata.uid)
    return f"pods/{pod.metadata.namespace}/{owner}"


def _same(one: ForeignGroup, other: ForeignGroup) -> bool:
    """Whether two versions say the same rule."""
    return replace(one, version="") == replace(other, version="")
