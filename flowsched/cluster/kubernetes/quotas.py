"""The ResourceQuotas of the namespace that flowsched makes its pods in, reported as limits on the scheduler's axes. No I/O.

The server counts all pods of the namespace together; the engine counts the claims of its own. So what others have is what the
server says is used, less what flowsched's own pods ask for. It is reported anew when one of the two changes. While one watch is
behind the other, it is wrong by the pods that are being made.

Amounts that a quota counts and a placement does not know (Services, volumes, `count/...` of other kinds) are left to the server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from flowsched.cluster.kubernetes.api.watch import Batch, taken
from flowsched.cluster.kubernetes.objects.core import ResourceQuota
from flowsched.cluster.kubernetes.objects.metadata import Requirement, quantity
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.pod_requests import limits_of, requests_of
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings
from flowsched.executor.quotas import QuotaChanged, QuotaLimit
from flowsched.log_lines import get_logger
from flowsched.workflow.spec import Resources

log = get_logger(__name__)

_PODS: Final = "pods"
#: The resources that a quota may name without "requests.".
_PLAIN: Final = ("cpu", "memory", "ephemeral-storage")
_AXES: Final[Mapping[str, str]] = {"cpu": "cpu", "memory": "memory", "ephemeral-storage": "disk"}
#: Axes in thousandths.
_MILLIS: Final = ("cpu", "gpu")


class _Row(NamedTuple):
    """One resource of a quota. `counts`: the values of our pods that count for it, as in `Quotas._counts`."""

    resource: str
    axis: str
    counts: str
    hard: int
    used: int


class Quotas:
    """The quotas of one namespace, and what flowsched's own pods have of them.

    Args:
        settings: The namespace, and how pods ask for GPUs.
        report: Takes events.
    """

    def __init__(self, settings: ReleaseSettings, report: Callable[[QuotaChanged], None]) -> None:
        self._settings = settings
        self._report = report
        self._quotas: dict[str, list[_Row]] = {}
        self._reported: dict[str, QuotaChanged] = {}
        self._pods: dict[
            str, dict[str, int]
        ] = {}  #: by uid: the counted values of a pod, as "requests.cpu", by axis
        self._ours: Counter[str] = Counter()  #: the sum of it

    def everything(self) -> list[QuotaChanged]:
        """All that was reported, once more."""
        return list(self._reported.values())

    def changed(self, batch: Batch[ResourceQuota]) -> None:
        """Quotas came, changed or went."""
        if batch.replaced is not None:
            self._quotas.clear()
        for change, quota in batch.items():
            self._quotas.pop(quota.metadata.name, None)
            ignored = self._foreign_to_us(quota)
            if ignored and change == "ADDED":
                log.info("quota not followed", quota=quota.metadata.name, why=ignored)
            if change != "DELETED" and not ignored:
                taken(self._apply, quota)
        self.report_changes()

    def observe(self, pod: Pod) -> None:
        """A pod of ours as it is now. One that has ended counts no more."""
        if pod.status.phase in ("Succeeded", "Failed"):
            self.gone(pod.metadata.uid)
        elif pod.metadata.uid not in self._pods:
            counts = self._pods[pod.metadata.uid] = self._counts(pod)
            self._ours.update(counts)

    def gone(self, uid: str) -> None:
        """A pod of ours is no more."""
        self._ours.subtract(self._pods.pop(uid, {}))

    def report_changes(self) -> None:
        """Report the quotas that differ from their last report."""
        for name in self._reported.keys() - self._quotas.keys():
            del self._reported[name]
            self._report(QuotaChanged(name))
        for name, rows in self._quotas.items():
            limits = (
                QuotaLimit(r.resource, r.axis, r.hard, max(0, r.used - self._ours[r.counts])) for r in rows
            )
            event = QuotaChanged(name, tuple(limits))
            if event != self._reported.get(name, QuotaChanged(name)):
                self._reported[name] = event
                self._report(event)

    def _apply(self, quota: ResourceQuota) -> None:
        """Note what the quota enforces: without a controller that has counted, nothing is."""
        rows = []
        for resource, amount in sorted(quota.status.hard.items()):
            kind, axis = self._known(resource)
            if axis:
                scale = 1000 if axis in _MILLIS else 1
                used = quantity(quota.status.used.get(resource, 0), scale)
                rows.append(_Row(resource, axis, f"{kind}.{axis}", quantity(amount, scale), used))
        self._quotas[quota.metadata.name] = rows

    def _known(self, resource: str) -> tuple[str, str]:
        """The kind (requests or limits) and axis of a quota's resource; no axis where a placement does not know it."""
        if resource in (_PODS, f"count/{_PODS}"):
            return "requests", _PODS
        kind, _, name = resource.partition(".")
        if kind not in ("requests", "limits"):
            kind, name = "requests", resource if resource in _PLAIN else ""
        if name and name == self._settings.gpu.resource:
            return kind, "gpu"
        return kind, _AXES.get(name, name if "/" in name else "")

    def _counts(self, pod: Pod) -> dict[str, int]:
        gpu = self._settings.gpu.resource
        asked = {"requests": requests_of(pod, gpu), "limits": limits_of(pod, gpu)}
        return {
            f"{kind}.{axis}": amount
            for kind, resources in asked.items()
            for axis, amount in _by_axis(resources).items()
        }

    def _foreign_to_us(self, quota: ResourceQuota) -> str:
        """Why a quota does not count our pods, or not all of them, by its scopes; "" = it counts each."""
        scopes = [Requirement(name, "Exists") for name in quota.spec.scopes]
        if quota.spec.scope_selector is not None:
            expressions = quota.spec.scope_selector.match_expressions
            scopes += [Requirement(each.scope_name, each.operator, each.values) for each in expressions]
        for scope in scopes:
            match scope.key:
                case "NotBestEffort":  # each of our pods has a limit of its memory
                    continue
                case "PriorityClass" if scope.operator in ("NotIn", "DoesNotExist"):  # our pods name none
                    continue
                case "BestEffort" | "PriorityClass":
                    return f"its scope {scope.key} leaves flowsched's pods out"
                case _:
                    return f"whether its scope {scope.key} counts a pod depends on the task: the API server decides at each create"
        return ""


def _by_axis(resources: Resources) -> dict[str, int]:
    known = {
        "cpu": resources.cpu_millicores,
        "memory": resources.memory_bytes,
        "disk": resources.disk_bytes,
        "gpu": resources.gpu_millis,
    }
    return known | dict(resources.extended)
