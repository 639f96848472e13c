"""Quotas: what all pods that flowsched makes may have together, as one more capacity beside the nodes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduling_cases import GIB, bag, cluster, gang, group, role, run, shape

from flowsched.executor.quotas import QuotaLimit
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.explain.remedies import Situation, holders_of, outlook
from flowsched.scheduling.plan import Plan
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.scheduling.queues.tree import QueueTree
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement

OURS = PROFILES["flowsched"]
BOTH = pytest.mark.parametrize("profile", [OURS, PROFILES["kube-like"]], ids=lambda profile: profile.name)


def cpu(hard: float, others: float = 0) -> QuotaLimit:
    return QuotaLimit("requests.cpu", "cpu", int(hard * 1000), int(others * 1000))


def limited(snapshot: Snapshot, *limits: QuotaLimit, name: str = "team") -> Snapshot:
    snapshot.quotas[name] = limits
    return snapshot


def decide(snapshot: Snapshot, *backlog: PodGroup, profile: Profile = OURS) -> Plan:
    return cycle(snapshot, Catalogue(), QueueTree(), backlog, profile, 0)


def counts(plan: Plan) -> dict[int, int]:
    return {p.group: sum(len(nodes) for nodes in p.nodes) for p in plan.placements}


def reasons(plan: Plan) -> list[tuple[int, str, str]]:
    return [(reason.group, reason.code.value, reason.message) for reason in plan.reasons]


@BOTH
def test_a_bag_gets_what_the_quota_has_left(profile: Profile) -> None:
    """Of five cores a task has one and others have one: three more start, and the reason has all three numbers."""
    snapshot = limited(cluster(16), cpu(5, others=1))
    run(snapshot, "ours", 0, 1, in_quota=True)
    run(snapshot, "theirs", 0, 2)  # they are counted by the quota itself
    plan = decide(snapshot, bag(1, 9, in_quota=True), profile=profile)
    assert counts(plan) == {1: 3}
    assert reasons(plan) == [
        (
            1,
            "QuotaExceeded",
            "ResourceQuota team allows 5 CPU (requests.cpu); tasks have 4 CPU, other pods 1 CPU, and this needs 1 CPU",
        )
    ]
    assert plan.reasons[0].numbers == {
        "hard_requests.cpu": 5000, "used_requests.cpu": 4000, "others_requests.cpu": 1000, "need_requests.cpu": 1000
    }  # fmt: skip


def test_a_gang_larger_than_a_quota_never_starts_and_holds_up_no_group() -> None:
    """Neither by a reservation nor by its place in the queue, and whatever others have of the quota."""
    snapshot = limited(cluster(16), cpu(4, others=1))
    plan = decide(snapshot, gang(1, 5, in_quota=True, priority=9), bag(2, 3, in_quota=True))
    assert counts(plan) == {2: 3}
    text = "ResourceQuota team never allows more than 4 CPU (requests.cpu), and this needs 5 CPU"
    assert reasons(plan) == [(1, "LargerThanQuota", text)]


def test_pods_that_others_made_are_in_the_quota_already() -> None:
    """Their groups are placed whatever is left of it."""
    plan = decide(limited(cluster(16), cpu(0)), bag(1, 3), gang(2, 3))
    assert counts(plan) == {1: 3, 2: 3}


def test_every_quota_holds() -> None:
    """The tightest of them decides, each on its own resource."""
    snapshot = limited(limited(cluster(16), cpu(9)), QuotaLimit("memory", "memory", 2 * GIB, 0), name="small")
    assert counts(decide(snapshot, bag(1, 9, in_quota=True))) == {1: 2}


def test_a_gang_starts_without_the_extras_that_a_quota_has_no_room_for() -> None:
    """With its minimum."""
    plan = decide(limited(cluster(16), cpu(3)), group(1, [role("worker", 5, 2)], gang=True, in_quota=True))
    assert counts(plan) == {1: 2}


def test_first_turns_of_many_queues_share_a_quota() -> None:
    """Twenty queues ask for a core at once, and five get one."""
    groups = [bag(number, in_quota=True, queue=f"q{number}") for number in range(20)]
    plan = decide(limited(cluster(16), cpu(5)), *groups)
    assert sum(counts(plan).values()) == 5
    assert {reason.code.value for reason in plan.reasons} == {"QuotaExceeded"}
    assert len(plan.reasons) == 15


def test_claims_are_counted_one_by_one_and_together_and_are_taken_back() -> None:
    """Whichever way a claim came, what it holds of the quotas goes with it; a target of copies holds nothing."""
    snapshot, statement = cluster(16), Statement()
    held = (1000, GIB)
    claims = [
        Claim(f"p{number}", 0, held, ClaimKind.RUNNING, "q", 0, None, in_quota=number % 2 == 0)
        for number in range(6)
    ]
    snapshot.claim_all(claims, statement)
    snapshot.claim(Claim("soft", 0, held, ClaimKind.STAGING, "q", 0, None, in_quota=True), statement)
    snapshot.claim(Claim("one", 0, held, ClaimKind.RELEASING, "q", 0, None, in_quota=True), statement)
    assert snapshot.quota_used[:2].tolist() == [4000, 4 * GIB]
    snapshot.unclaim("p0", statement)
    assert snapshot.quota_used[:2].tolist() == [3000, 3 * GIB]
    statement.rollback()
    assert not snapshot.quota_used.any()


def test_what_a_quota_forbids_is_explained_by_smaller_requests() -> None:
    """The group that asks for more than the quota is told how far its request must fall, and whose ends would help otherwise."""
    snapshot = limited(cluster(16), cpu(2))
    run(snapshot, "ours", 0, 1, in_quota=True)
    run(snapshot, "theirs", 0, 1)
    asks = bag(1, 1, shape(3), in_quota=True)
    situation = Situation(snapshot, Catalogue(), QueueTree(), asks, (), OURS, 0)
    found = outlook(situation.copy(), 3)
    assert ("task", "cpu") in found.binds
    assert found.suggestions[0].to == 2000
    less = Situation(snapshot, Catalogue(), QueueTree(), bag(2, 1, shape(2), in_quota=True), (), OURS, 0)
    assert [claim.owner for claim in holders_of(less)] == ["ours"]


GROUPS = st.lists(
    st.tuples(st.booleans(), st.integers(1, 4), st.integers(1, 3), st.sampled_from("abc")), max_size=12
)


@given(GROUPS, st.integers(0, 12), st.integers(0, 6), st.booleans())
def test_no_cycle_gives_more_than_a_quota_has(
    asked: list[tuple[bool, int, int, str]], hard: int, others: int, pod_by_pod: bool
) -> None:
    """Whatever waits, in gangs or bags, in however many queues."""
    groups = [
        (gang if whole else bag)(key, count, shape(cores), in_quota=True, queue=queue)
        for key, (whole, count, cores, queue) in enumerate(asked)
    ]
    plan = decide(
        limited(cluster(8, 8), cpu(hard, others)),
        *groups,
        profile=PROFILES["kube-like"] if pod_by_pod else OURS,
    )
    given_cores = sum(asked[key][2] * count for key, count in counts(plan).items())
    assert given_cores + others <= max(hard, others)
