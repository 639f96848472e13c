"""What is read off others' pods for when somebody asks for their room, and which of them disruption budgets cover. Literals."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from flowsched.cluster.kubernetes.api.watch import Batch
from flowsched.cluster.kubernetes.foreign.eviction import (
    Budgets,
    PodDisruptionBudget,
    preemptible_of,
    stake_of,
)
from flowsched.cluster.kubernetes.objects.metadata import Metadata
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.executor.foreign import BudgetSeen, Stake
from flowsched.executor.protocol import ClusterEvent


def read(**document: Any) -> Pod:
    return msgspec.convert(document, Pod)


def condition(
    status: str = "True", reason: str = "PreemptionByScheduler", message: str = "flowsched: x"
) -> Pod:
    told = {"type": "DisruptionTarget", "status": status, "reason": reason, "message": message}
    return read(status={"conditions": [told]})


def test_a_running_pod_of_a_class() -> None:
    """Its first container began at 10:00:05, the other one at 10:00:09."""
    pod = read(
        metadata={
            "creationTimestamp": "1970-01-01T00:00:01Z",
            "annotations": {"flowsched.io/preemptible": "false"},
        },
        spec={"priority": -5},
        status={
            "qosClass": "Guaranteed",
            "containerStatuses": [
                {"name": "b", "state": {"running": {"startedAt": "1970-01-01T00:00:09Z"}}},
                {"name": "a", "state": {"terminated": {"startedAt": "1970-01-01T00:00:05Z"}}},
                {"name": "c", "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
            ],
        },
    )
    assert stake_of(pod, ("ns/p",)) == Stake(-5, 2, 1_000, 5_000, False, ("ns/p",), False)


def test_a_pod_that_says_nothing() -> None:
    """Priority 0, Burstable, not begun, and no word on whether it may go."""
    assert stake_of(read(), ()) == Stake(0, 1, 0, None, None, (), False)


@pytest.mark.parametrize(
    ("pod", "marked"),
    [
        (condition(), True),
        (condition(status="False"), False),
        (condition(reason="EvictionByEvictionAPI"), False),
        (condition(message="default-scheduler: preempting to accommodate a higher priority pod"), False),
        (read(), False),
    ],
    ids=["ours", "taken back", "another reason", "kube-scheduler's", "none"],
)
def test_only_our_own_mark_is_one(pod: Pod, marked: bool) -> None:
    """Others write the same condition."""
    assert stake_of(pod, ()).marked is marked


@pytest.mark.parametrize(
    ("annotations", "labels", "said"),
    [
        ({}, {}, None),
        ({"flowsched.io/preemptible": "true"}, {}, True),
        ({"flowsched.io/preemptible": " True "}, {}, True),
        ({"flowsched.io/preemptible": "false"}, {}, False),
        ({"flowsched.io/preemptible": "flase"}, {}, False),
        ({"flowsched.io/preemptible": ""}, {}, False),
        ({"volcano.sh/preemptable": "false"}, {}, False),
        ({}, {"volcano.sh/preemptable": "false"}, False),
        ({"volcano.sh/preemptable": "true"}, {}, None),
        ({"flowsched.io/preemptible": "true", "volcano.sh/preemptable": "false"}, {}, True),
    ],
)
def test_what_an_object_says_of_being_taken_away(
    annotations: dict[str, str], labels: dict[str, str], said: bool | None
) -> None:
    """A slip of the pen keeps the pod: whoever writes the annotation wants to be left alone, but for "true"."""
    assert preemptible_of(Metadata(annotations=annotations, labels=labels)) is said


def budget(name: str, labels: dict[str, str] | None, allowed: int, seen: int = 1, space: str = "ns") -> Any:
    selector = None if labels is None else {"matchLabels": labels}
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": space, "generation": 1},
            "spec": {"selector": selector},
            "status": {"disruptionsAllowed": allowed, "observedGeneration": seen},
        },
        PodDisruptionBudget,
    )


def test_budgets_cover_pods_of_their_namespace_by_labels() -> None:
    """An empty selector covers all, none at all nobody."""
    budgets = Budgets(lambda event: None)
    assert budgets.changed(
        Batch([budget("a", {"app": "x"}, 1), budget("all", {}, 1), budget("no", None, 1)])
    ) == {"ns"}
    assert budgets.covering("ns", {"app": "x", "more": "y"}) == ("ns/a", "ns/all")
    assert budgets.covering("ns", {}) == ("ns/all",)
    assert budgets.covering("other", {"app": "x"}) == ()


def test_what_budgets_allow_is_told_when_it_changes() -> None:
    """One that its controller has not looked at yet allows nothing. Only who is covered makes pods be told again."""
    told: list[ClusterEvent] = []
    budgets = Budgets(told.append)
    assert budgets.changed(Batch([], [("ADDED", budget("a", {"app": "x"}, 3, seen=0))])) == {"ns"}
    assert budgets.changed(Batch(None, [("MODIFIED", budget("a", {"app": "x"}, 3))])) == set()
    assert budgets.changed(Batch(None, [("MODIFIED", budget("a", {"app": "x"}, 3))])) == set()
    assert budgets.changed(Batch(None, [("MODIFIED", budget("a", {"app": "y"}, 3))])) == {"ns"}
    assert told == [BudgetSeen("ns/a", 0), BudgetSeen("ns/a", 3)]
    assert list(budgets.everything()) == [BudgetSeen("ns/a", 3)]
    assert budgets.changed(Batch(None, [("DELETED", budget("a", {"app": "y"}, 3))])) == {"ns"}
    assert told[2:] == [BudgetSeen("ns/a", None)]
    assert list(budgets.everything()) == []


def test_a_fresh_list_forgets_what_is_not_in_it() -> None:
    """Somebody deleted it while the watch was broken."""
    told: list[ClusterEvent] = []
    budgets = Budgets(told.append)
    budgets.changed(Batch([budget("a", {}, 1), budget("b", {}, 1, space="other")]))
    assert budgets.changed(Batch([budget("a", {}, 1)])) == {"other"}
    assert told[2:] == [BudgetSeen("other/b", None)]
