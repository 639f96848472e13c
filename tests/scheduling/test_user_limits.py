"""What one user of a queue may hold: cores and tasks, as the profile of the queue says."""

from __future__ import annotations

import pytest
from scheduling_cases import SECOND, bag, cluster, gang, run, shape

from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.explain.remedies import Situation, holders_of
from flowsched.scheduling.plan import Plan
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.values import replace

OURS = PROFILES["flowsched"]
CORES = replace(OURS, max_cores_per_user=3)
TASKS = replace(OURS, max_tasks_per_user=2)


def decide(snapshot: Snapshot, profile: Profile, *backlog: PodGroup, queues: QueueTree | None = None) -> Plan:
    return cycle(snapshot, Catalogue(), queues or QueueTree(), backlog, profile, 0)


def counts(plan: Plan) -> dict[int, int]:
    return {p.group: sum(len(nodes) for nodes in p.nodes) for p in plan.placements}


def reasons(plan: Plan) -> list[tuple[int, str, str]]:
    return [(reason.group, reason.code.value, reason.message) for reason in plan.reasons]


@pytest.mark.parametrize(
    "profile", [CORES, replace(PROFILES["kube-like"], max_cores_per_user=3)], ids=lambda p: p.name
)
def test_a_user_gets_no_more_cores_than_its_queue_allows(profile: Profile) -> None:
    """Ann has one core and gets two more; bob is not held up; 8 cores stay for others."""
    snapshot = cluster(16)
    run(snapshot, "old", 0, 1, user="ann")
    plan = decide(snapshot, profile, bag(1, 9, user="ann"), bag(2, 9, user="bob"))
    assert counts(plan) == {1: 2, 2: 3}
    assert reasons(plan)[0] == (
        1,
        "UserLimit",
        "user ann may have 3 CPU in queue default (max_cores_per_user of the profile); it has 3 CPU, and this needs 1 CPU",
    )


@pytest.mark.parametrize(
    "profile", [TASKS, replace(PROFILES["kube-like"], max_tasks_per_user=2)], ids=lambda p: p.name
)
def test_a_user_gets_no_more_tasks_than_its_queue_allows(profile: Profile) -> None:
    """However small they are."""
    snapshot = cluster(16)
    run(snapshot, "old", 0, 0.5, user="ann")
    plan = decide(snapshot, profile, bag(1, 9, shape(0.5), user="ann"))
    assert counts(plan) == {1: 1}
    assert reasons(plan) == [
        (
            1,
            "UserLimit",
            "user ann may have 2 running tasks in queue default (max_tasks_per_user of the profile); "
            "it has 2 running tasks, and this needs 1 running task",
        )
    ]


def test_a_gang_beyond_the_limit_never_starts() -> None:
    """Its reason is one that no waiting ends."""
    plan = decide(cluster(16), CORES, gang(1, 4, user="ann"), gang(2, 3, user="ann"))
    assert counts(plan) == {2: 3}
    assert reasons(plan) == [
        (
            1,
            "LargerThanQueue",
            "user ann may have 3 CPU in queue default (max_cores_per_user of the profile); this needs 4 CPU",
        )
    ]


def test_only_the_queues_of_a_profile_have_its_limits() -> None:
    """The same user has no limit in another queue."""
    profile = replace(OURS, queues={"short": replace(TASKS, name="short")})
    plan = decide(cluster(16), profile, bag(1, 4, queue="short", user="ann"), bag(2, 4, user="ann"))
    assert counts(plan) == {1: 2, 2: 4}


def test_a_user_at_its_limit_does_not_hold_up_a_fifo_queue() -> None:
    """The next of another user passes it: no end of that one's tasks is waited for."""
    queues = QueueTree([Queue("default", order="fifo")])
    plan = decide(
        cluster(16), TASKS, bag(1, 9, user="ann", ready_ms=-SECOND), bag(2, 1, user="bob"), queues=queues
    )
    assert counts(plan) == {1: 2, 2: 1}


def test_many_queues_keep_the_limits_too() -> None:
    """Where queues are served in batches."""
    groups = [bag(key, 5, queue=f"q{key:02}", user="ann") for key in range(1, 13)]
    assert set(counts(decide(cluster(64, memory=64), TASKS, *groups)).values()) == {2}


def test_only_room_of_the_user_itself_helps_it() -> None:
    """An explanation looks for ends of the user's own tasks in the queue."""
    snapshot = cluster(4)
    run(snapshot, "mine", 0, 3, user="ann")
    run(snapshot, "theirs", 0, 1, user="bob")
    situation = Situation(snapshot, Catalogue(), QueueTree(), bag(1, 1, user="ann"), (), CORES, 0)
    assert [claim.owner for claim in holders_of(situation)] == ["mine"]
