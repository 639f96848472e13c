"""Random groups that wait: small clusters with everything that may stand in a group's way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import structs
from scheduling_cases import GIB

from flowsched.executor.constraints import Rules, host_port, pod_term, requirement
from flowsched.executor.nodes import ALIGNED, PLENTY, NodeInfo, Zone
from flowsched.scheduling.explain.remedies import Situation, Suggestion, altered, outlook
from flowsched.scheduling.plan import ReasonCode
from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import AXES, Snapshot
from flowsched.statement import Statement
from flowsched.values import replace

NOW = 1_000_000_000
MB = 1_000_000


class Case:
    """One random cluster, with claims, data, queues, a group and a few who wait beside it."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.snapshot, self.catalogue = Snapshot(), Catalogue()
        self.nodes = int(self.rng.integers(2, 11))
        self.zoned = self.pick(0.15)
        self.tainted = self.pick(0.3)
        for at in range(self.nodes):
            self.snapshot.put_node(self.node(at))
        self.datasets = [self.catalogue.intern(f"s3://lab/{n}", 20 * GIB, origin=n > 0) for n in range(3)]
        for dataset in self.datasets:
            self.catalogue.add_replica(dataset, int(self.rng.integers(self.nodes)))
        if self.pick(0.02):
            self.datasets.append(self.catalogue.intern("s3://lab/lost", GIB))
        busy = float(self.rng.choice([0.3, 0.7, 0.95, 1.0]))
        for at in range(self.nodes):
            self.fill(at, busy)
        self.queues = QueueTree(
            [
                Queue("top", cap=self.cap(0.15, "a", "b")),
                Queue("a", parent="top", weight=2, cap=self.cap(0.15, "a"), paused=self.pick(0.03)),
                Queue("b", parent="top", cap=self.cap(0.15, "b")),
            ]
        )
        others = tuple(self.group(key) for key in range(1, 1 + int(self.rng.integers(0, 4))))
        profile = PROFILES["flowsched"]
        self.situation = Situation(
            self.snapshot, self.catalogue, self.queues, self.group(9), others, profile, NOW
        )

    def pick(self, chance: float) -> bool:
        return bool(self.rng.random() < chance)

    def of(self, *values: int) -> int:
        return int(self.rng.choice(values))

    def node(self, at: int) -> NodeInfo:
        cores, memory = self.of(4, 8, 16), self.of(16, 32, 64) * GIB
        halves = tuple(Zone({"cpu": cores * 500}, {"cpu": cores * 500}) for _ in range(2))
        return NodeInfo(
            f"n{at}",
            cores * 1000,
            memory,
            disk_bytes=200 * GIB,
            gpu_millis=self.of(0, 0, 1000, 4000),
            extended={ALIGNED: PLENTY} if self.zoned else {},
            labels={"disk": str(self.rng.choice(["ssd", "hdd"])), "zone": f"z{at % 2}"},
            taints=(("team", "x", "NoSchedule"),) if self.tainted and self.pick(0.6) else (),
            rack=f"r{at % 3}",
            disk_rate=self.of(100, 500) * MB,
            ready=not self.pick(0.1),
            zones=halves if self.zoned else (),
        )

    def fill(self, at: int, busy: float) -> None:
        for number in range(6):
            free = self.snapshot.allocatable[at] - self.snapshot.used[at]
            if not self.pick(busy) or free[0] < 1000:
                continue
            until = None if self.pick(0.2) else NOW + int(self.rng.integers(-60_000, 4_000_000))
            amount = (
                min(self.of(1, 2, 4) * 1000, int(free[0])),
                min(self.of(1, 4, 16) * GIB, int(free[1])),
                0,
                min(self.of(0, 0, 1000), int(free[3])),
                min(self.of(0, 50, 200) * MB, int(free[4])),
            )
            rules = Rules(labels=(("app", "db"),), ports=(host_port(80),)) if self.pick(0.1) else None
            kind = ClaimKind.STAGING if self.pick(0.05) else ClaimKind.RUNNING
            owner, queue = f"c{at}-{number}", "abx"[number % 3]
            claim = Claim(
                owner, at, amount, kind, queue, NOW - 600_000, until, group=f"job{number}", rules=rules
            )
            self.snapshot.claim(claim, Statement())

    def cap(self, chance: float, *names: str) -> tuple[int, ...] | None:
        """A cap that those who run keep, with some room left."""
        if not self.pick(chance):
            return None
        used = np.sum([self.snapshot.queue_usage(name) for name in names], axis=0)
        gpu = int(used[3]) + self.of(1000, 2000) if self.pick(0.5) else -1
        return (int(used[0]) + self.of(0, 2, 8, 16) * 1000, -1, -1, gpu)

    def rules(self) -> Rules | None:
        """Most groups have none; the others one demand about pods or nodes."""
        if not self.pick(0.12):
            return None
        db = (requirement("app", "In", ("db",)),)
        kind = self.of(0, 1, 2)
        if kind == 0:
            return Rules(ports=(host_port(80),))
        term = (pod_term("zone", db, ""),)
        return Rules(anti_affinity=term) if kind == 1 else Rules(affinity=term)

    def group(self, key: int) -> PodGroup:
        gang = self.pick(0.6)
        selector = (("disk", "ssd"),) if self.pick(0.25) else (("disk", "nvme"),) if self.pick(0.05) else ()
        rack = str(self.rng.choice(["required", "preferred"])) if self.pick(0.3) else None
        one_per_node, rules = self.pick(0.15), self.rules()
        tolerations = (("team", "Equal", "x", "NoSchedule"),) if self.pick(0.3) else ()
        roles = []
        for number in range(self.of(1, 2, 3) if gang else 1):
            requests = (
                24_000 if self.pick(0.03) else self.of(500, 1000, 2000, 4000, 8000),
                48 * GIB if self.pick(0.03) else self.of(1, 4, 16) * GIB,
                0,
                self.of(0, 0, 0, 0, 1000, 2000),
                self.of(0, 0, 0, 0, 60, 300) * MB,
            )
            requests += (int(requests[0] % 1000 == 0),) if self.zoned else ()
            shape = Shape(
                requests, selector, tolerations, rack=rack, one_per_node=one_per_node, rules=rules,
                io_bytes=self.of(0, 0, GIB),
            )  # fmt: skip
            count = self.of(1, 2, 4, 8)
            roles.append(RoleRequest(f"role{number}", shape, count, int(self.rng.integers(1, count + 1))))
        return PodGroup(
            key=key,
            name=f"g{key}",
            queue=str(self.rng.choice(["a", "b", "x"])),
            workflow=f"w{key}",
            priority=self.of(0, 0, 1),
            rank_ms=0,
            ready_ms=NOW - self.of(0, 600_000),
            gang=gang,
            roles=tuple(roles),
            inputs=tuple(d for d in self.datasets if self.pick(0.2)),
            runtime_ms=None if self.pick(0.2) else self.of(60_000, 600_000, 7_200_000),
            min_resources=(self.of(8, 16) * 1000, 8 * GIB) if gang and self.pick(0.1) else None,
        )


#: What is put in the way of a group that would start.
OBSTACLES = (
    "busy", "request", "selector", "taint", "cap", "rack", "one_per_node", "not ready", "reservation", "rule",
    "min_resources", "members", "zones",
)  # fmt: skip


class Planted(Case):
    """A group that would start, and one thing that was put in its way, whatever else is going on.

    Attributes:
        obstacle: What.
        stopped: Whether it stops the group; where not, the case is of no use.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.obstacle = ""
        self.stopped = False
        for _ in range(4 * self.situation.starts()):  # one that does not stop it stays, for what comes
            self.obstacle = str(self.rng.choice(OBSTACLES))
            self.plant()
            self.stopped = not self.situation.starts()
            if self.stopped:
                return

    def plant(self) -> None:
        situation, group = self.situation, self.situation.group
        role = int(self.rng.integers(len(group.roles)))
        requests = list(group.roles[role].shape.requests)
        match self.obstacle:
            case "busy":
                self.crowd(self.of(0, 1))
            case "request":
                axis = self.of(0, 1, 3, 4)
                requests[axis] = (requests[axis] or self.of(1000, 60 * MB)) * self.of(2, 4, 8, 16)
                self.reshape(role, requests=tuple(requests))
            case "selector":
                self.reshape(None, selector=(("disk", str(self.rng.choice(["nvme", "ssd", "hdd"]))),))
            case "taint":
                self.renode(taints=(("only", f"team{self.of(1, 2)}", "NoExecute"),))
                self.reshape(None, tolerations=())
            case "cap":
                name = str(self.rng.choice([queue.name for queue in self.queues.path(group.queue)]))
                used = self.snapshot.queue_usage(name)
                cap = (used[0] + self.of(0, 250), -1, -1, -1)
                self.queues.put(replace(self.queues.get(name), cap=cap))
            case "rack":
                self.reshape(None, rack="required")
                self.members(role, self.of(2, 4))
            case "one_per_node":
                self.reshape(None, one_per_node=True)
                self.members(role, self.of(2, 4))
            case "not ready":
                self.renode(ready=False)
            case "reservation":
                big = structs.replace(
                    self.group(20 + len(situation.others)),
                    gang=True,
                    priority=5,
                    queue="x",
                    min_resources=None,
                    inputs=(),
                )
                shape = Shape((1000, GIB, 0, 0, 0) + (1,) * self.zoned)
                most = int(self.snapshot.allocatable[self.snapshot.ready, 0].sum()) // 1000
                whole = RoleRequest("big", shape, max(1, most - self.of(0, 1, 4)), max(1, most - 4))
                self.situation = replace(
                    situation,
                    others=(structs.replace(big, roles=(whole,)), *situation.others),
                    group=structs.replace(group, runtime_ms=self.of(600_000, 7_200_000)),
                )
            case "rule":
                db = (requirement("app", "In", ("db",)),)
                term = (pod_term(str(self.rng.choice(["zone", "disk"])), db, ""),)
                choices = (Rules(ports=(host_port(80),)), Rules(anti_affinity=term), Rules(affinity=term))
                self.reshape(None, rules=choices[self.of(0, 1, 2)])
            case "min_resources":
                self.situation = replace(
                    situation, group=structs.replace(group, min_resources=(self.of(16, 64) * 1000, 32 * GIB))
                )
            case "members":
                self.members(role, self.of(3, 8, 20))
            case "zones":
                self.renode(zones=(Zone({"cpu": 500}, {"cpu": 500}),) * 2, extended={ALIGNED: PLENTY})
                wide = (*requests[:5], 1)[: len(self.snapshot.axes)]  # no node may have been changed
                self.reshape(role, requests=wide)

    def reshape(self, role: int | None, **what: object) -> None:
        group = self.situation.group
        roles = tuple(
            structs.replace(each, shape=structs.replace(each.shape, **what)) if role in (None, at) else each  # type: ignore[arg-type]
            for at, each in enumerate(group.roles)
        )
        self.situation = replace(self.situation, group=structs.replace(group, roles=roles))

    def members(self, role: int, times: int) -> None:
        group = self.situation.group
        roles = list(group.roles)
        each = roles[role]
        roles[role] = structs.replace(each, count=each.count * times, minimum=each.minimum * times)
        self.situation = replace(self.situation, group=structs.replace(group, roles=tuple(roles)))

    def renode(self, **what: object) -> None:
        """All nodes, or all but a few."""
        for at in range(self.nodes):
            if not self.pick(0.15):
                self.snapshot.put_node(replace(self.snapshot.info(at), **what))  # type: ignore[arg-type]

    def crowd(self, axis: int) -> None:
        """More of those who run, on every node."""
        left = self.of(0, 5, 20)
        for at in range(self.nodes):
            free = (
                int(self.snapshot.allocatable[at, axis] - self.snapshot.used[at, axis]) * (100 - left) // 100
            )
            if free > 0 and self.snapshot.ready[at]:
                amount = tuple(free if a == axis else 0 for a in range(axis + 1))
                until = NOW + int(self.rng.integers(1_000, 4_000_000))
                claim = Claim(
                    f"more{at}", at, amount, ClaimKind.RUNNING, "x", NOW - 1000, until, group="crowd"
                )
                self.snapshot.claim(claim, Statement())


def first(situation: Situation) -> Suggestion | None:
    """The first that is suggested; None where no single change would do."""
    found = outlook(situation.copy(), most=1).suggestions
    return found[0] if found else None


def starts_with(situation: Situation, change: Suggestion) -> bool:
    """Whether the group starts in a copy with the change."""
    return altered(situation.copy(), change, Statement()).starts()


def starts_with_less(situation: Situation, change: Suggestion) -> bool:
    """Whether the change could be smaller by one unit."""
    step = min(change.unit, abs(change.to - change.was))
    to = change.to - step if change.to > change.was else change.to + step
    return to != change.was and starts_with(situation, replace(change, to=to))


def beyond_a_cap(situation: Situation) -> bool:
    """Such a group is seen alone on the cluster, so that its change does not start it beside others."""
    return any(
        reason.code is ReasonCode.LARGER_THAN_QUEUE
        for reason in situation.plan().reasons
        if reason.group == situation.group.key
    )


def waiting(number: int, first: int = 0) -> Iterator[tuple[int, str, Situation]]:
    """So many situations in which something was put in a group's way: seed, obstacle, situation."""
    found, seed = 0, first
    while found < number:
        case = Planted(seed)
        if case.stopped and not beyond_a_cap(case.situation):
            yield seed, case.obstacle, case.situation
            found += 1
        seed += 1


def wild(number: int, first: int = 0) -> Iterator[tuple[int, str, Situation]]:
    """So many situations in which a group waits for whatever chance has put together, seldom for one thing alone."""
    found, seed = 0, first
    while found < number:
        situation = Case(seed).situation
        if not situation.starts() and not beyond_a_cap(situation):
            yield seed, "wild", situation
            found += 1
        seed += 1


assert AXES == ("cpu", "memory", "disk", "gpu", "io")
