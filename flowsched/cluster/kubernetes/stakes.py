"""What is at stake with a pod of others that we placed, should somebody ask for its room: read off the pod. Pure."""

from __future__ import annotations

from typing import Final

from flowsched.cluster.kubernetes.marks import PREFIX
from flowsched.cluster.kubernetes.metadata import Metadata, condition_of, moment_ms
from flowsched.cluster.kubernetes.pod import Pod
from flowsched.executor.foreign import Stake
from flowsched.workflow.spec import QosClass

#: Annotation of a pod or its PodGroup: "false" = it is never taken away for others, "true" = it may be, controller or not.
PREEMPTIBLE: Final = f"{PREFIX}preemptible"
#: Volcano's word for the same; only its "false" is heard, since there "true" is what has to be asked for.
_VOLCANO: Final = "volcano.sh/preemptable"
#: The condition by which a Job's `podFailurePolicy` tells an eviction from a failure, and the reason kube-scheduler writes.
DISRUPTION: Final = "DisruptionTarget"
PREEMPTION: Final = "PreemptionByScheduler"
#: How our own words begin there: others (kube-scheduler) write the same reason.
SAID: Final = "flowsched: "
_QOS: Final = {each.word: int(each) for each in QosClass}


def preemptible_of(metadata: Metadata) -> bool | None:
    """Whether an object says that it may be taken away for others; None = it does not say. What is not "true" means no: who writes
    the annotation and misspells its value wants to be left alone.
    """
    said = metadata.annotations.get(PREEMPTIBLE)
    if said is not None:
        return said.strip().lower() == "true"
    volcano = metadata.annotations.get(_VOLCANO) or metadata.labels.get(_VOLCANO)
    return False if volcano == "false" else None


def stake_of(pod: Pod, budgets: tuple[str, ...]) -> Stake:
    """What is at stake.

    Args:
        pod: One that has a node.
        budgets: Names of the disruption budgets that cover it.
    """
    condition = condition_of(pod.status.conditions, DISRUPTION)
    return Stake(
        priority=pod.spec.priority or 0,
        qos=_QOS.get(pod.status.qos_class, int(QosClass.BURSTABLE)),
        created_ms=moment_ms(pod.metadata.creation_timestamp) or 0,
        started_ms=_started_ms(pod),
        preemptible=preemptible_of(pod.metadata),
        budgets=budgets,
        marked=condition is not None
        and (condition.status, condition.reason) == ("True", PREEMPTION)
        and condition.message.startswith(SAID),
    )


def _started_ms(pod: Pod) -> int | None:
    """When the first of its containers that runs, or has ended, began; None where none has."""
    states = (each.state for each in pod.status.container_statuses)
    told = (state.running or state.terminated for state in states)
    moments = [moment_ms(each.started_at) for each in told if each is not None]
    return min((moment for moment in moments if moment is not None), default=None)
