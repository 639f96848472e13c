"""Others' gangs and their operators in a misbehaving world: leaders die between any two calls, commits fail, budgets are spent by
others. No gang is left half evicted, nobody who says no is touched, and in the end everybody has run.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import pytest

from flowsched.engine.events import EngineEvent, Tick
from flowsched.engine.state import EngineState
from flowsched.engine.state.policy import PolicyState
from flowsched.engine.step import step
from flowsched.executor.foreign import (
    Bind,
    BudgetSeen,
    Evict,
    EvictionRefused,
    ForeignGroup,
    ForeignPod,
    GroupGone,
    GroupSeen,
    PodLeft,
    PodTemplate,
    PodWaits,
    RoomTaken,
    Stake,
)
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import NodeChanged
from flowsched.workflow.spec import Resources
from tests.engine.world import plain
from tests.soak import worlds

NODES = {"n0": 4, "n1": 4}
ONE = Resources(1000, 64 << 20)


@dataclass
class Job:
    """Somebody's gang: so many pods of one core, of which `minimum` must run; done after so many turns in which they do."""

    name: str
    size: int
    minimum: int
    priority: int
    left: int
    preemptible: bool | None = None
    budget: int | None = None


@dataclass
class Pod:
    """A pod as the API server has it."""

    uid: str
    job: Job
    number: int
    node: str = ""
    marked: bool = False
    leaving: bool = False


@dataclass
class Clearing:
    """What an executor has in hand for one unit: gone with its process."""

    orders: list[Evict]
    marked: int = 0
    begun: bool = False
    gone: int = 0


@dataclass
class World:
    """The engine, and a cluster that outlives it."""

    seed: int
    crash: float = 0.05
    drop: float = 0.1
    refuse: float = 0.2
    jobs: list[Job] = field(default_factory=list)
    pods: dict[str, Pod] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now, self.made, self.victims = 1_000, 0, dict[str, set[str]]()
        self.boot()

    def boot(self) -> None:
        """A leader begins, and is told everything at once."""
        self.state = EngineState(policy=PolicyState(secret=b"s"))
        self.clearing: list[Clearing] = []
        self.binding: list[Bind] = []
        self.inbox: list[EngineEvent] = [
            NodeChanged(NodeInfo(n, c * 1000, 8 << 30)) for n, c in NODES.items()
        ]
        self.inbox += [GroupSeen(rule(job)) for job in self.jobs]
        self.inbox += [
            BudgetSeen(f"ns/{job.name}", job.budget) for job in self.jobs if job.budget is not None
        ]
        self.inbox += [self.told(pod) for pod in self.pods.values()]

    def told(self, pod: Pod) -> EngineEvent:
        """What the watch says of a pod."""
        job, name = pod.job, f"{pod.job.name}-{pod.number}"
        if not pod.node:
            template = PodTemplate(ONE)
            return PodWaits(
                ForeignPod(pod.uid, "ns", name, "1", job.name, "", template, job.priority, 0, True)
            )
        budgets = (f"ns/{job.name}",) if job.budget is not None else ()
        stake = Stake(job.priority, 1, pod.number, None, None, budgets, pod.marked)
        return RoomTaken(
            pod.uid, pod.node, ONE, "default", job.name, "", None, pod.leaving, 0, True, "ns", name, stake
        )  # fmt: skip

    def add(self, job: Job) -> None:
        """Somebody submits."""
        self.jobs.append(job)
        self.inbox.append(GroupSeen(rule(job)))
        if job.budget is not None:
            self.inbox.append(BudgetSeen(f"ns/{job.name}", job.budget))
        for number in range(job.size):
            self.make(job, number)

    def make(self, job: Job, number: int) -> None:
        """An operator makes a pod."""
        self.made += 1
        pod = self.pods[f"{job.name}-{number}-{self.made}"] = Pod(
            f"{job.name}-{number}-{self.made}", job, number
        )
        self.inbox.append(self.told(pod))

    def remove(self, job: Job) -> None:
        """It is over, or its owner has thought better of it."""
        self.jobs.remove(job)
        for pod in [pod for pod in self.pods.values() if pod.job is job]:
            del self.pods[pod.uid]
            self.inbox.append(PodLeft(pod.uid))
        self.inbox.append(GroupGone(job.name))
        if job.budget is not None:
            self.inbox.append(BudgetSeen(f"ns/{job.name}", None))

    # ---------------------------------------------------------------------------------------------- turns

    def turn(self) -> None:
        """A step of the service, then a move of each part of the world."""
        self.now += 500
        events, self.inbox = self.inbox, []
        while True:
            before = plain(self.state.foreign), plain(self.state.round)
            result = step(self.state, events or [Tick()], self.now)
            if self.random.random() >= self.drop:
                break
            result.drop()
            self.seen["dropped"] += 1
            assert before == (plain(self.state.foreign), plain(self.state.round)), (
                "a dropped step left a trace"
            )
        result.keep()
        if self.dies():
            return
        units: dict[str, list[Evict]] = {}
        for order in result.evictions:
            assert order.unit, "half a gang stood for too long"
            units.setdefault(order.unit, []).append(order)
        self.clearing += [Clearing(orders) for orders in units.values()]
        self.binding += result.binds
        for order in self.binding:
            pod = self.pods.get(order.uid)
            if pod is not None:
                pod.node = order.node
                self.inbox.append(self.told(pod))
        self.binding = []
        for clearing in list(self.clearing):
            for _ in range(self.random.randint(1, 3)):
                if clearing in self.clearing:
                    self.advance(clearing)
                    if self.dies():
                        return
        self.kubelets()
        self.check()

    def dies(self) -> bool:
        """The leader, between any two calls."""
        if self.random.random() >= self.crash:
            return False
        self.seen["crashed while clearing" if self.clearing else "crashed"] += 1
        self.boot()
        return True

    def advance(self, clearing: Clearing) -> None:
        """One call of an executor: as `cluster.kubernetes.making_way`, in a few words."""
        there = [self.pods[order.uid] for order in clearing.orders if order.uid in self.pods]
        if clearing.marked < len(there):
            there[clearing.marked].marked = True
            self.inbox.append(self.told(there[clearing.marked]))
            clearing.marked += 1
            return
        staying = [pod for pod in there if not pod.leaving]
        if not staying:
            self.clearing.remove(clearing)
            return
        begun = clearing.begun or any(order.begun for order in clearing.orders)
        if not begun and self.random.random() < self.refuse:
            for pod in there:
                pod.marked = False
                self.inbox.append(self.told(pod))
            self.inbox.append(EvictionRefused(tuple(order.uid for order in clearing.orders), "its budget"))
            self.clearing.remove(clearing)
            self.seen["refused"] += 1
            return
        clearing.begun = True
        pod = staying[0]
        if pod.job.minimum == pod.job.size and not any(pod.uid in uids for uids in self.victims.values()):
            mates = {each.uid for each in self.pods.values() if each.job is pod.job and each.node}
            assert all(self.pods[uid].marked for uid in mates), "the first went before all were marked"
            self.victims[pod.uid] = mates
        assert pod.job.preemptible is not False, f"{pod.uid} said no"
        assert pod.job.budget in (None, pod.job.size), f"the budget of {pod.uid} allows {pod.job.budget}"
        pod.leaving = True
        self.seen["evicted"] += 1
        self.inbox.append(self.told(pod))

    def kubelets(self) -> None:
        """Pods that leave are gone by and by, and their operators make others, some at once; gangs that run get on."""
        for pod in [pod for pod in self.pods.values() if pod.leaving and self.random.random() < 0.5]:
            del self.pods[pod.uid]
            self.inbox.append(PodLeft(pod.uid))
            self.make(pod.job, pod.number)
        for job in list(self.jobs):
            on = sum(pod.job is job and bool(pod.node) and not pod.leaving for pod in self.pods.values())
            job.left -= on >= job.minimum
            if job.left <= 0:
                self.seen["done"] += 1
                self.remove(job)

    def check(self) -> None:
        """P6, from what the cluster has."""
        for node, cores in NODES.items():
            assert sum(pod.node == node for pod in self.pods.values()) <= cores, f"{node} is over-committed"

    def settled(self) -> None:
        """Nobody of a gang that began to go is left."""
        for uids in self.victims.values():
            assert not [uid for uid in uids if uid in self.pods and not self.pods[uid].leaving], uids
        self.victims.clear()


def rule(job: Job) -> ForeignGroup:
    return ForeignGroup(job.name, "ns", job.name, gang=True, minimum=job.minimum, preemptible=job.preemptible)


def run(seed: int) -> World:
    """Gangs of all kinds come by and by; now and then the most important one is withdrawn while others make way for it."""
    world = World(seed)
    rng = random.Random(-seed)
    for number in range(8):
        size = rng.randint(1, 5)
        minimum = rng.choice([size, size, max(1, size - 2)])
        preemptible = rng.choice([None, None, None, False])
        budget = rng.choice([None, None, 0, size])
        world.add(Job(f"j{number}", size, minimum, number, rng.randint(20, 60), preemptible, budget))
        for _ in range(rng.randint(1, 12)):
            world.turn()
        if rng.random() < 0.4 and world.clearing:
            world.remove(max(world.jobs, key=lambda job: job.priority))
            world.seen["withdrawn"] += 1
    world.crash = world.drop = world.refuse = 0.0
    for _ in range(20):
        world.turn()
    world.settled()
    for _ in range(4_000):
        if not world.jobs:
            return world
        world.turn()
    raise AssertionError(f"seed {seed}: {[job.name for job in world.jobs]} never got done: {world.pods}")


@pytest.mark.soak
def test_in_a_bad_world_no_gang_is_left_half_evicted_and_everybody_gets_done() -> None:
    """Many seeds; and what the test is about happens often enough in them."""
    seen: Counter[str] = Counter()
    seeds = worlds(few=25, many=400)
    for seed in range(seeds):
        seen += run(seed).seen
    assert seen["evicted"] > seeds * 2.5
    assert seen["crashed while clearing"] > seeds / 4
    assert seen["refused"] > seeds / 10
    assert seen["withdrawn"] > seeds / 40
