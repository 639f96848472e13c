"""Whose turn it is: against a slow, readable oracle; weights, trees, users, fifo, ageing; no wait without end."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from scheduling_cases import GIB, SECOND, bag, claim, cluster, gang, node, run, shape

from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.explain.recording import plan_bytes, recorded, replayed, unpacked
from flowsched.scheduling.plan import Nomination, Plan
from flowsched.scheduling.pod_group import PodGroup, Shape
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.scheduling.queues.fair_share import FairShareOrder
from flowsched.scheduling.queues.tree import Queue, QueueTree, Shares
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.scheduling.state.usage import Payer
from flowsched.statement import Statement
from flowsched.values import replace
from tests.soak import worlds

OURS = PROFILES["flowsched"]
HOUR = 3600 * SECOND


def decide(snapshot: Snapshot, queues: QueueTree, backlog: list[PodGroup], now: int = 0) -> Plan:
    return cycle(snapshot, Catalogue(), queues, backlog, OURS, now)


def counts(plan: Plan) -> dict[int, int]:
    return {p.group: sum(len(nodes) for nodes in p.nodes) for p in plan.placements}


# ---------------------------------------------------------------------------------------------- the oracle


@dataclass
class Team:
    """A node of the oracle's tree: plain numbers, looked up anew each time."""

    name: str
    weight: int = 1
    priority: int = 0
    guarantee: list[int] = field(default_factory=list)
    children: list[Team] = field(default_factory=list)
    pods: list[list[int]] = field(default_factory=list)  #: what its pods ask for, in order, if it is a leaf
    held: list[int] = field(default_factory=list)

    def use(self) -> list[int]:
        if not self.children:
            return self.held
        return [sum(column) for column in zip(*(child.use() for child in self.children), strict=True)]


def standing_of(team: Team, total: list[int]) -> tuple[tuple[int, int, Fraction, str], Team] | None:
    """(where it stands, who of its leaves is next), or None if nobody below it asks."""
    if team.children:
        asking = [found for child in team.children if (found := standing_of(child, total))]
        if not asking:
            return None
        key, leaf = min(asking, key=lambda pair: pair[0])
        below = key[0] == 0
    elif team.pods:
        leaf, below = team, False
    else:
        return None
    need, use = leaf.pods[0], team.use()
    shares = [Fraction(have, whole) for have, whole in zip(use, total, strict=True)]
    if team.children:  # a department counts on what its next pod takes most of
        parts = [Fraction(asked, whole) for asked, whole in zip(need, total, strict=True)]
        share = shares[parts.index(max(parts))]
    else:
        share = max(shares)
    bound = [at for at, floor in enumerate(team.guarantee) if floor and need[at]]
    lacks = bool(bound) and all(use[at] < team.guarantee[at] for at in bound)
    return (0 if below or lacks else 1, -team.priority, share / team.weight, team.name), leaf


def by_hand(root: Team, total: list[int]) -> dict[str, int]:
    """Pod after pod to whoever is first then; who does not fit asks no more. Pods by team."""
    given: dict[str, int] = {}
    free = list(total)
    while (found := standing_of(root, total)) is not None:
        leaf = found[1]
        need = leaf.pods.pop(0)
        if any(asked > left for asked, left in zip(need, free, strict=True)):
            leaf.pods.clear()  # all its pods are alike
            continue
        free = [left - asked for left, asked in zip(free, need, strict=True)]
        leaf.held = [have + asked for have, asked in zip(leaf.held, need, strict=True)]
        given[leaf.name] = given.get(leaf.name, 0) + 1
    return given


@st.composite
def trees(draw: st.DrawFn) -> tuple[Team, list[int]]:
    """Up to three departments of up to three teams each, and teams without a department."""
    total = [draw(st.integers(4, 24)), draw(st.integers(8, 48))]

    def team(name: str) -> Team:
        need = [draw(st.integers(1, 3)), draw(st.integers(0, 6))]
        guarantee = [draw(st.sampled_from([0, 0, 3])), 0] if draw(st.booleans()) else []
        weight, priority = draw(st.integers(1, 3)), draw(st.sampled_from([0, 0, 0, 1]))
        return Team(name, weight, priority, guarantee, [], [list(need)] * draw(st.integers(1, 30)), [0, 0])

    root = Team("")
    for number in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            teams = [team(f"t{number}{letter}") for letter in "abc"[: draw(st.integers(1, 3))]]
            root.children.append(Team(f"d{number}", draw(st.integers(1, 3)), children=teams))
        else:
            root.children.append(team(f"s{number}"))
    return root, total


def as_ours(root: Team) -> tuple[QueueTree, list[PodGroup], dict[int, str]]:
    """The same as queues and bags of single pods, one bag a pod, so that the cycle too goes pod by pod."""
    tree, backlog, owner = QueueTree(), [], {}

    def walk(team: Team, parent: str | None) -> None:
        guarantee = tuple(floor * 1000 for floor in team.guarantee[:1]) or None
        tree.put(Queue(team.name, team.weight, parent=parent, guarantee=guarantee, priority=team.priority))
        for child in team.children:
            walk(child, team.name)
        if team.pods:
            key = len(backlog) + 1
            owner[key] = team.name
            backlog.append(bag(key, len(team.pods), shape(*team.pods[0]), queue=team.name))

    for child in root.children:
        walk(child, None)
    return tree, backlog, owner


@given(trees())
@pytest.mark.soak
@settings(max_examples=worlds(100, 1250), deadline=None)
def test_a_cycle_gives_what_the_oracle_gives(problem: tuple[Team, list[int]]) -> None:
    """On one node, where nothing but queues decides: as many pods for each team as one by one with fractions."""
    root, total = problem
    tree, backlog, owner = as_ours(root)
    snapshot = Snapshot()
    snapshot.put_node(node("n", total[0], total[1], disk_bytes=0))
    plan = cycle(snapshot, Catalogue(), tree, backlog, replace(OURS, backfill="none"), 0)
    assert {owner[key]: count for key, count in counts(plan).items()} == by_hand(root, total)


# ---------------------------------------------------------------------------------------------- shares


@given(st.lists(st.integers(1, 5), min_size=2, max_size=6), st.integers(1, 60))
@pytest.mark.soak
@settings(max_examples=worlds(100, 1250), deadline=None)
def test_weights_hold_to_within_one_pod(weights: list[int], cores: int) -> None:
    """Equal pods, endless demand: nobody has a pod less than another's pods times the ratio of their weights."""
    tree = QueueTree([Queue(f"q{at}", weight=weight) for at, weight in enumerate(weights)])
    backlog = [bag(at, 99, shape(1, 0), queue=f"q{at}") for at in range(len(weights))]
    given_to = counts(decide(cluster(cores), tree, backlog))
    got = [given_to.get(at, 0) for at in range(len(weights))]
    assert sum(got) == cores
    for mine, my_weight in zip(got, weights, strict=True):
        for theirs, their_weight in zip(got, weights, strict=True):
            assert Fraction(mine + 1, my_weight) >= Fraction(theirs - 1, their_weight)


def test_one_two_three() -> None:
    """Sixty cores: ten, twenty, thirty; sixty-one: one has one more."""
    tree = QueueTree([Queue("a"), Queue("b", weight=2), Queue("c", weight=3)])
    backlog = [bag(at, 99, shape(1, 0), queue=name) for at, name in enumerate("abc")]
    assert counts(decide(cluster(60), tree, backlog)) == {0: 10, 1: 20, 2: 30}
    assert sorted(counts(decide(cluster(61), tree, backlog)).values()) == [11, 20, 30]


def test_weights_hold_to_within_one_pod_on_a_large_cluster() -> None:
    """Long bags go in strides, and still end with 1,366, 2,731 and 4,095 of 8,192 cores, give or take one."""
    tree = QueueTree([Queue("a"), Queue("b", weight=2), Queue("c", weight=3)])
    backlog = [bag(at, 9999, shape(1, 0), queue=name) for at, name in enumerate("abc")]
    got = counts(decide(cluster(*[64] * 128), tree, backlog))
    assert sum(got.values()) == 8192
    assert [abs(got[at] - fair) <= 1 for at, fair in enumerate((1365, 2731, 4096))] == [True] * 3


def test_nested_weights_hold_to_within_one_pod() -> None:
    """One to two between departments, one to three between the first one's teams: 100, 300 and 800 of 1,200."""
    tree = QueueTree(
        [
            Queue("one"),
            Queue("two", weight=2),
            Queue("x", parent="one"),
            Queue("y", parent="one", weight=3),
            Queue("z", parent="two"),
        ]
    )
    backlog = [bag(at, 9999, shape(1, 0), queue=name) for at, name in enumerate("xyz")]
    got = counts(decide(cluster(*[100] * 12), tree, backlog))
    assert [abs(got[at] - fair) <= 1 for at, fair in enumerate((100, 300, 800))] == [True] * 3


def test_a_department_of_ten_teams_gets_no_more_than_one_of_one_team() -> None:
    """Fifteen cores, two departments: eight and seven. (Scaled to the least served team, ten would go first.)"""
    tree = QueueTree([Queue(f"t{at}", parent="one") for at in range(10)] + [Queue("z", parent="two")])
    backlog = [bag(at, 9, queue=f"t{at}") for at in range(10)] + [bag(99, 20, queue="z")]
    got = counts(decide(cluster(15), tree, backlog))
    assert (sum(got.values()), got[99]) == (15, 7)


def gpu_shape(cores: int, gpus: int) -> object:
    return structs.replace(shape(cores, 0), requests=(cores * 1000, 0, 0, gpus * 1000, 0))


def test_one_teams_gpus_do_not_keep_anothers_cores() -> None:
    """Bhattacharya 2013: n2's first child takes all GPUs; its second and n1 still share the cores evenly."""
    snapshot = Snapshot()
    snapshot.put_node(node("n", 100, 100, gpu_millis=100_000))
    tree = QueueTree([Queue("n1"), Queue("gpus", parent="n2"), Queue("cores", parent="n2")])
    backlog = [
        bag(1, 999, gpu_shape(1, 0), queue="n1"),
        bag(2, 999, gpu_shape(0, 1), queue="gpus"),
        bag(3, 999, gpu_shape(1, 0), queue="cores"),
    ]
    assert counts(decide(snapshot, tree, backlog)) == {1: 50, 2: 100, 3: 50}


def test_all_gpus_held_beforehand_change_nothing_for_cores() -> None:
    """The same with the GPUs held from the beginning: the naive way gave all cores to n1."""
    snapshot = Snapshot()
    snapshot.put_node(node("n", 100, 100, gpu_millis=100_000))
    amount = (0, 0, 0, 100_000, 0)
    snapshot.claim(Claim("g", 0, amount, ClaimKind.RUNNING, "gpus", 0, None), Statement())
    tree = QueueTree([Queue("n1"), Queue("gpus", parent="n2"), Queue("cores", parent="n2")])
    backlog = [
        bag(1, 999, gpu_shape(1, 0), queue="n1"),
        bag(2, 999, gpu_shape(0, 1), queue="gpus"),
        bag(3, 999, gpu_shape(1, 0), queue="cores"),
    ]
    assert counts(decide(snapshot, tree, backlog)) == {1: 50, 3: 50}


def test_a_newcomer_does_not_wipe_out_what_its_department_has() -> None:
    """X holds eight of sixteen cores; y, of the same department, comes new: the free cores are z's, of the other one."""
    snapshot = cluster(16)
    claim(snapshot, "r", 0, 8, ClaimKind.RUNNING, queue="x")
    tree = QueueTree([Queue("x", parent="one"), Queue("y", parent="one"), Queue("z", parent="two")])
    backlog = [bag(1, 9, queue="x"), bag(2, 9, queue="y"), bag(3, 9, queue="z")]
    assert counts(decide(snapshot, tree, backlog)) == {3: 8}


def test_a_guarantee_counts_only_for_what_is_asked() -> None:
    """A is guaranteed cores and GPUs and asks for cores alone: once it has those it stands back, GPUs or not."""
    tree = QueueTree([Queue("a", guarantee=(2000, 0, 0, 4000))])
    snapshot = cluster(8, gpu_millis=8000)
    claim(snapshot, "r", 0, 2, ClaimKind.RUNNING, queue="a")
    assert counts(decide(snapshot, tree, [bag(1, 9, queue="a"), bag(2, 9, queue="b")])) == {1: 2, 2: 4}


def test_a_childs_guarantee_lifts_its_department() -> None:
    """X has nothing of its four; its department has more than two's, but x goes first all the same."""
    tree = QueueTree([Queue("x", parent="one", guarantee=(4000,)), Queue("y", parent="one"), Queue("two")])
    snapshot = cluster(12)
    claim(snapshot, "r", 0, 6, ClaimKind.RUNNING, queue="y")
    backlog = [bag(1, 9, queue="x"), bag(2, 9, queue="two"), bag(3, 9, queue="y")]
    assert counts(decide(snapshot, tree, backlog)) == {1: 4, 2: 2}


@given(st.integers(0, 2**32))
@settings(max_examples=60, deadline=None)
def test_the_order_of_the_backlog_does_not_matter(seed: int) -> None:
    """Any permutation of groups, users and claims gives the same plan."""
    rng = random.Random(seed)
    tree = QueueTree(
        [
            Queue("a", parent="one", weight=2),
            Queue("b", parent="one", order="fifo"),
            Queue("c", guarantee=(3000,)),
            Queue("d", priority=1, cap=(4000,)),
        ]
    )
    backlog = [
        (bag if rng.random() < 0.7 else gang)(
            key,
            rng.randint(1, 6),
            shape(rng.randint(1, 3), rng.randint(0, 4)),
            queue=rng.choice("abcde"),
            user=rng.choice(["", "ann", "bob"]),
            ready_ms=-rng.randint(0, 5) * HOUR,
            priority=rng.randint(0, 1),
        )
        for key in range(1, 14)
    ]
    held = [(f"h{at}", rng.randint(1, 2), rng.choice("abcde"), rng.choice(["", "ann"])) for at in range(4)]

    def plan() -> str:
        snapshot = cluster(16, 8)
        for owner, cores, queue, user in held:
            claim(snapshot, owner, 0, cores, ClaimKind.RUNNING, queue=queue, user=user)
        return repr(decide(snapshot, tree, backlog))

    first = plan()
    rng.shuffle(backlog)
    rng.shuffle(held)
    assert plan() == first


# ---------------------------------------------------------------------------------------------- users


def test_users_of_a_queue_share_it() -> None:
    """Ann has a thousand tasks, bob four of the same priority that came later: four and four of eight cores."""
    backlog = [bag(1, 1000, user="ann", ready_ms=-9), bag(2, 4, user="bob")]
    assert counts(decide(cluster(8), QueueTree(), backlog)) == {1: 4, 2: 4}


def test_what_a_user_holds_counts() -> None:
    """Ann holds three of eight cores already; of the five left she gets one."""
    snapshot = cluster(8)
    claim(snapshot, "r", 0, 3, ClaimKind.RUNNING, user="ann")
    backlog = [bag(1, 9, user="ann"), bag(2, 9, user="bob")]
    assert counts(decide(snapshot, QueueTree(), backlog)) == {1: 1, 2: 4}


def test_priority_goes_before_users() -> None:
    """Higher goes first in its queue, whoever submitted it."""
    backlog = [bag(1, 9, user="ann", priority=1), bag(2, 9, user="bob")]
    assert counts(decide(cluster(8), QueueTree(), backlog)) == {1: 8}


def test_more_users_give_a_queue_no_more() -> None:
    """Three users of a and one of b: six and six of twelve cores."""
    backlog = [bag(at, 9, queue="a", user=name) for at, name in enumerate("uvw")]
    got = counts(decide(cluster(12), QueueTree(), [*backlog, bag(9, 9, queue="b")]))
    assert got == {0: 2, 1: 2, 2: 2, 9: 6}


# ---------------------------------------------------------------------------------------------- order in a queue


def test_nobody_passes_the_head_of_a_fifo_queue() -> None:
    """The gang does not fit: what came later waits too, and says for whom; another queue goes on."""
    tree = QueueTree([Queue("line", order="fifo")])
    snapshot = cluster(4)
    run(snapshot, "r", 0, 2, until_ms=60 * SECOND)
    backlog = [
        gang(1, 4, queue="line", ready_ms=-5, runtime_ms=SECOND),
        bag(2, 1, queue="line", ready_ms=-4, user="bob", runtime_ms=SECOND),
        bag(3, 1, queue="other", runtime_ms=SECOND),
    ]
    plan = decide(snapshot, tree, backlog)
    assert counts(plan) == {3: 1}
    assert [(r.group, r.code.value, dict(r.numbers).get("behind")) for r in plan.reasons] == [
        (1, "GangIncomplete", None),
        (2, "QueueOrder", 1),
    ]
    passing = QueueTree([Queue("line", order="best-effort")])
    assert counts(decide(snapshot, passing, backlog)) == {2: 1, 3: 1}


def test_what_can_never_run_holds_up_nobody() -> None:
    """A pod larger than any node at the head of a fifo queue: the next one goes."""
    tree = QueueTree([Queue("line", order="fifo")])
    backlog = [bag(1, 1, shape(9), queue="line", ready_ms=-5), bag(2, 1, queue="line")]
    assert counts(decide(cluster(4), tree, backlog)) == {2: 1}


def test_a_bag_that_is_half_placed_is_the_head_still() -> None:
    """Two of three tasks start; the one that came later waits, although the third is larger than the room."""
    tree = QueueTree([Queue("line", order="fifo")])
    backlog = [bag(1, 3, shape(2), queue="line", ready_ms=-5), bag(2, 1, shape(1), queue="line")]
    assert counts(decide(cluster(5), tree, backlog)) == {1: 2}


# ---------------------------------------------------------------------------------------------- ageing


def test_a_queue_that_gets_nothing_is_served_after_an_hour_and_once() -> None:
    """Low waits behind an endless queue of higher priority; after an hour it goes first, with one pod."""
    tree = QueueTree([Queue("high", priority=1), Queue("low")])
    snapshot = cluster(4)

    def at(now: int) -> dict[int, int]:
        backlog = [bag(1, 99, queue="high", ready_ms=now), bag(2, 99, queue="low", ready_ms=0)]
        return counts(decide(snapshot, tree, backlog, now))

    assert at(HOUR - 1) == {1: 4}
    assert at(2 * HOUR) == {1: 3, 2: 1}
    snapshot.usage.served_queues["low"] = 2 * HOUR  # it was served then
    assert at(3 * HOUR - 1) == {1: 4}
    assert at(4 * HOUR) == {1: 3, 2: 1}


def test_a_user_that_gets_nothing_is_served_too() -> None:
    """Bob behind ann's endless priority."""
    backlog = [bag(1, 99, user="ann", priority=1, ready_ms=2 * HOUR), bag(2, 99, user="bob", ready_ms=0)]
    assert counts(decide(cluster(4), QueueTree(), backlog, 2 * HOUR)) == {1: 3, 2: 1}


def test_ageing_does_not_pay_for_a_long_backlog() -> None:
    """A has waited for a day with a thousand tasks, but is served all the time: it gets its half and no more."""
    snapshot = cluster(8)
    snapshot.usage.served_queues["a"] = 24 * HOUR - SECOND
    backlog = [bag(1, 999, queue="a", ready_ms=0), bag(2, 99, queue="b", ready_ms=24 * HOUR)]
    assert counts(decide(snapshot, QueueTree(), backlog, 24 * HOUR)) == {1: 4, 2: 4}


class Streams:
    """Fifty queues of random streams on a small cluster, in virtual time, second by second."""

    def __init__(self, seed: int, profile: Profile) -> None:
        self.rng, self.profile = random.Random(seed), profile
        self.snapshot, self.statement = cluster(8, 8, 8, 8), Statement()
        self.tree = QueueTree(
            [
                Queue(f"q{at:02}", weight=self.rng.choice([1, 1, 1, 2, 10]), priority=at % 3)
                for at in range(50)
            ]
        )
        self.backlog: dict[int, PodGroup] = {}
        self.running: dict[int, PodGroup] = {}
        self.ready: dict[int, int] = {}  #: since when each group has waited, evictions included
        self.lasted: list[int] = []  #: from when each group was ready to its end
        self.serial = 0

    def second(self, now: int) -> None:
        ended = [(key, group) for key, group in self.running.items() if self.end_of(key) <= now]
        for key, group in ended:
            self.leave(key)
            if group.queue != "q02":
                self.lasted.append(now - self.ready[key])
        self.snapshot.usage.begin(now, self.profile.half_life_ms)
        self.arrive(now)
        plan = cycle(self.snapshot, Catalogue(), self.tree, list(self.backlog.values()), self.profile, now)
        for placement in plan.placements:
            group = self.running[placement.group] = self.backlog.pop(placement.group)
            nodes = placement.nodes[0].tolist()
            for at, (where, promoted) in enumerate(
                zip(nodes, placement.steps(len(nodes), gang=group.gang), strict=True)
            ):
                until = now + (group.runtime_ms or 0)
                cores = group.roles[0].shape.requests[0] / 1000
                run(
                    self.snapshot, f"{group.key}.{at}", where, cores, until, queue=group.queue, since_ms=now,
                    unit=f"{group.key}", started_ms=now, priority=sum(promoted[-1:]), promoted=promoted,
                )  # fmt: skip
            self.snapshot.usage.served_queues[group.queue] = now
            self.snapshot.nominations.pop(group.key, None)
        for key in {int(owner.split(".")[0]) for each in plan.evictions for owner in each.owners}:
            self.backlog[key] = structs.replace(self.leave(key), ready_ms=now)
        for nomination in plan.nominations:
            self.snapshot.nominations[nomination.group] = nomination

    def end_of(self, key: int) -> int:
        return self.snapshot.claims[f"{key}.0"].until_ms or 0

    def leave(self, key: int) -> PodGroup:
        """All pods of a group are gone."""
        for owner in [each for each in self.snapshot.claims if each.split(".")[0] == str(key)]:
            self.snapshot.unclaim(owner, self.statement)
        return self.running.pop(key)

    def arrive(self, now: int) -> None:
        """A queue of the highest priority never runs dry; all others get something now and then."""
        wanted = [f"q{at:02}" for at in range(50) if self.rng.random() < 0.015]
        wanted += ["q02"] * 12
        for queue in wanted:
            self.serial += 1
            self.ready[self.serial] = now
            key, runtime = self.serial, self.rng.randint(2, 20) * SECOND
            members, cores = (self.rng.choice([2, 4, 16]), 1) if self.rng.random() < 0.1 else (0, 1)
            made = gang(key, members) if members else bag(key, 1, shape(cores, 1))
            self.backlog[key] = structs.replace(
                made, queue=queue, ready_ms=now, runtime_ms=runtime, rank_ms=runtime
            )

    def longest(self, now: int) -> int:
        """The longest that any group has taken, or takes, to its end, those of the endless queue left out."""
        groups = [*self.backlog.values(), *self.running.values()]
        return max([*(now - self.ready[g.key] for g in groups if g.queue != "q02"), *self.lasted], default=0)


def longest_until_the_end(seed: int, promote_ms: int, seconds: int) -> int:
    """One queue of the highest priority asks for twice what there is, for ever; the others for a third of it."""
    profile = replace(OURS, promote_ms=promote_ms, age_class_ms=20 * SECOND, half_life_ms=60 * SECOND)
    streams = Streams(seed, profile)
    for second in range(seconds):
        streams.second(second * SECOND)
        streams.backlog = {
            key: group
            for key, group in streams.backlog.items()
            if group.queue != "q02" or second * SECOND - group.ready_ms < 30 * SECOND
        }  # what waits too long in it gives up
        for key in streams.snapshot.nominations.keys() - streams.backlog.keys():
            del streams.snapshot.nominations[key]
    return streams.longest((seconds - 1) * SECOND)


@pytest.mark.parametrize("seed", [1])
def test_every_group_of_fifty_queues_ends_within_a_bound_with_preemption_on(seed: int) -> None:
    """A queue goes before all others when it got nothing for three steps of ageing (20 s each, two steps of priority are above
    it), with one group, which then runs to its end: up to 20 s until room is free, and as long again. Few queues have more
    than four groups waiting: 420 s.
    """
    assert longest_until_the_end(seed, 20 * SECOND, 600) <= 420 * SECOND


def test_without_ageing_they_wait_for_ever() -> None:
    """The same streams: somebody has waited from the first seconds on, and the stream never ends."""
    assert longest_until_the_end(1, 10**9, 420) >= 410 * SECOND


# ---------------------------------------------------------------------------------------------- the past


def used_up(snapshot: Snapshot, queue: str, cores: int, since: int, until: int, user: str = "") -> None:
    """A queue had so many cores for a while."""
    statement = Statement()
    snapshot.usage.begin(since, OURS.half_life_ms)
    claim(snapshot, "past", 0, cores, ClaimKind.RUNNING, queue=queue, user=user, since_ms=since)
    snapshot.usage.begin(until, OURS.half_life_ms)
    snapshot.unclaim("past", statement)


DAY = 24 * HOUR


def test_a_heavy_queue_yields_to_a_light_one_and_the_debt_fades() -> None:
    """A had all eight cores for a day. Now nobody has any: b gets all; days later they share again, as if nothing had been."""
    got = []
    for days in (0, 2, 6):
        snapshot = cluster(8)
        used_up(snapshot, "a", 8, 0, DAY)
        now = (1 + days) * DAY
        snapshot.usage.begin(now, OURS.half_life_ms)
        backlog = [bag(1, 99, queue="a", ready_ms=now), bag(2, 99, queue="b", ready_ms=now)]
        given_to = counts(decide(snapshot, QueueTree(), backlog, now))
        got.append((given_to.get(1, 0), given_to.get(2, 0)))
    assert got == [(2, 6), (4, 4), (4, 4)]


def test_a_heavy_user_yields_to_a_light_one() -> None:
    """The same between users of one queue; the queue as a whole owes nothing to itself."""
    snapshot = cluster(8)
    used_up(snapshot, "default", 8, 0, DAY, user="ann")
    snapshot.usage.begin(DAY, OURS.half_life_ms)
    backlog = [bag(1, 99, user="ann", ready_ms=DAY), bag(2, 99, user="bob", ready_ms=DAY)]
    assert counts(decide(snapshot, QueueTree(), backlog, DAY)) == {1: 2, 2: 6}


def test_without_a_half_life_only_the_present_counts() -> None:
    """Zero switches the past off."""
    snapshot = cluster(8)
    snapshot.usage.begin(0, 0)
    claim(snapshot, "past", 0, 8, ClaimKind.RUNNING, queue="a")
    snapshot.usage.begin(DAY, 0)
    snapshot.unclaim("past", Statement())
    backlog = [bag(1, 99, queue="a", ready_ms=DAY), bag(2, 99, queue="b", ready_ms=DAY)]
    assert counts(decide(snapshot, QueueTree(), backlog, DAY)) == {1: 4, 2: 4}


def test_a_snapshot_file_holds_what_was_used() -> None:
    """A past, users, who was served when: replayed from its file, the cycle gives the same plan."""
    snapshot = cluster(8)
    used_up(snapshot, "a", 8, 0, DAY, user="ann")
    snapshot.usage.begin(DAY + 5, OURS.half_life_ms)
    snapshot.usage.served_queues["b"] = DAY - 3 * HOUR
    tree = QueueTree([Queue("a", parent="d"), Queue("b", order="fifo", guarantee=(1000,))])
    backlog = [
        bag(1, 9, queue="a", user="ann", ready_ms=0),
        bag(2, 9, queue="a", user="bob", ready_ms=DAY),
        bag(3, 2, queue="b", ready_ms=0),
    ]
    arguments = (snapshot, Catalogue(), tree, backlog, OURS, DAY + 5)
    plan = cycle(*arguments)
    assert counts(plan) == {1: 1, 2: 5, 3: 2}
    again = replayed(unpacked(recorded(plan, *arguments).packed()))
    assert plan_bytes(again) == plan_bytes(plan)


def test_a_served_payer_is_noted_by_queue_and_user() -> None:
    """Two users of one queue are two accounts."""
    snapshot = cluster(8)
    for user in ("ann", "bob"):
        claim(snapshot, user, 0, 1, ClaimKind.RUNNING, user=user)
    assert [snapshot.usage.of_payer(Payer("default", user))[0] for user in ("ann", "bob", "cid")[:2]] == [
        1000,
        1000,
    ]
    assert snapshot.usage.of_payer(Payer("default", "cid")) == ()
    assert snapshot.queue_usage("default")[0] == 2000


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(1, 4)), min_size=2, max_size=4),
    st.tuples(st.integers(0, 4), st.integers(0, 4)),
    st.integers(1, 60),
)
@pytest.mark.soak
@settings(max_examples=worlds(120, 1500), deadline=None)
def test_a_row_is_as_long_as_until_the_next_one_is_first(
    held: list[tuple[int, int, int]], need: tuple[int, int], most: int
) -> None:
    """Pod after pod until somebody else is first, or all are given out: what `pods_until_behind` says at once."""
    if not any(need):
        return
    snapshot, statement = Snapshot(), Statement()
    snapshot.put_node(node("n", 70, 90))
    amount = (need[0] * 1000, need[1] << 30)
    tree = QueueTree([Queue(f"q{at}", weight=weight) for at, (_, _, weight) in enumerate(held)])
    for at, (cores, memory, _) in enumerate(held):
        owned = Claim(f"c{at}", 0, (cores * 1000, memory << 30), ClaimKind.RUNNING, f"q{at}", 0, None)
        snapshot.claim(owned, statement)
    waiting = {f"q{at}": [bag(at + 1, 99, queue=f"q{at}")] for at in range(len(held))}
    shares = Shares(tree, snapshot)
    oldest = {Payer(queue, ""): 0 for queue in waiting}
    fair_share = FairShareOrder(waiting, oldest, tree, shares, snapshot.usage, OURS, 0)
    user_queue = fair_share.first()
    assert user_queue is not None
    row = fair_share.pods_until_behind(amount, most)
    count = 0
    while count < most:
        shares.add(user_queue.queue, amount)
        fair_share.moved(user_queue, False, True, ())
        count += 1
        if fair_share.first() is not user_queue:
            break
    assert row == count


# ---- many queues in one cycle ----


def test_a_queue_that_has_nothing_gets_all_there_is() -> None:
    """Seven others have 20 cores each: 12 pods of one cycle are all its own, which is more than a queue is thought to get."""
    snapshot = Snapshot()
    snapshot.put_node(node("n0", 160, 640))
    for at in range(1, 8):
        claim(snapshot, f"c{at}", 0, 20, ClaimKind.RUNNING, queue=f"q{at}")
    some = [bag(at, 14, shape(1), queue=f"q{at}") for at in range(8)]
    plan = cycle(snapshot, Catalogue(), QueueTree(), some, OURS, 0, 12)
    assert [(each.group, len(each.nodes[0])) for each in plan.placements] == [(0, 12)]


def test_who_is_nominated_is_placed_once() -> None:
    """Ten queues, for the first of which a node is being left; the other node has room for all of them, and for none twice."""
    snapshot = Snapshot()
    for at in range(2):
        snapshot.put_node(node(f"n{at}", 10))
    snapshot.claim(Claim("leaving", 0, (10_000,), ClaimKind.RELEASING, "x", 0, None), Statement())
    snapshot.nominations[3] = Nomination(3, "q3", 1, ((0, (1_000,)),), ("leaving",), 60_000)
    some = [bag(at, 1, shape(1), queue=f"q{at}") for at in range(10)]
    plan = cycle(snapshot, Catalogue(), QueueTree([Queue("q3", priority=1)]), some, OURS, 0, 100)
    assert sorted((each.group, each.nodes[0].tolist()) for each in plan.placements) == [
        (at, [1]) for at in range(10)
    ]


def test_what_may_take_long_is_counted_on_late() -> None:
    """Ten queues fill a node at once, for 10 s, one of them perhaps for 100 s: who is promised its room is promised it for then."""
    snapshot = Snapshot()
    snapshot.put_node(node("n0", 10))
    some = [bag(at, 1, shape(1), queue=f"q{at}", runtime_ms=10_000) for at in range(10)]
    some[0] = structs.replace(some[0], high_ms=100_000)
    last = gang(20, 1, shape(10), queue="z")
    plan = cycle(snapshot, Catalogue(), QueueTree(), [*some, last], OURS, 0, 100)
    assert [(each.group, each.start_ms) for each in plan.reservations] == [(20, 100_000)]


def two_departments(first: tuple[int, ...], second: tuple[int, ...], asks: Shape) -> dict[str, int]:
    """What 8 pods of one cycle are, by department of four queues; what each holds, and what those of the first ask for."""
    snapshot, pods = Snapshot(), Counter[str]()
    snapshot.put_node(node("n0", 64, 64))
    for name, amount in (("a", first), ("b", second)):
        held = Claim(name, 0, amount, ClaimKind.RUNNING, f"{name}0", 0, None)
        snapshot.claim(held, Statement())
    names = [f"{name}{at}" for name in "ab" for at in range(4)] + [f"b{at}" for at in range(4, 9)]
    tree = QueueTree(Queue(name, parent=name[0]) for name in names)
    some = [bag(at, 9, asks if name[0] == "a" else shape(1, 0), queue=name) for at, name in enumerate(names)]
    plan = cycle(snapshot, Catalogue(), tree, some, OURS, 0, 8)
    for each in plan.placements:
        pods[names[each.group][0]] += len(each.nodes[0])
    return dict(pods)


def test_a_department_stands_by_what_its_next_pod_asks_for() -> None:
    """One holds all memory, the other 8 of 64 cores: whoever asks for cores stands by cores alone."""
    assert two_departments((0, 60 * GIB), (16_000, 0), shape(1, 0)) == {"a": 8}


def test_a_department_that_asks_for_something_else_stands_by_that() -> None:
    """It holds half of all cores and no memory, which it asks for; the other holds a core: it goes first."""
    assert two_departments((32_000, 0), (1_000, 0), shape(0, 1)) == {"a": 5, "b": 3}


def test_many_queues_get_pods_by_weight_and_priority() -> None:
    """Ten queues, two of weight 3 and one of priority 1, 30 pods: the first gets what it asks for, the others by weight."""
    snapshot = Snapshot()
    for at in range(4):
        snapshot.put_node(node(f"n{at}", 64))
    tree = QueueTree([Queue("q0", weight=3), Queue("q1", weight=3), Queue("q2", priority=1)])
    backlog = [bag(at + 1, 3 if at == 2 else 99, shape(1), queue=f"q{at}") for at in range(10)]
    plan = cycle(snapshot, Catalogue(), tree, backlog, OURS, 0, 30)
    assert counts(plan) == {
        3: 3, 1: 7, 2: 6, 4: 2, 5: 2, 6: 2, 7: 2, 8: 2, 9: 2, 10: 2,
    }  # fmt: skip
    assert [reason.group for reason in plan.reasons] == [1, 2, 4, 5, 6, 7, 8, 9, 10]
