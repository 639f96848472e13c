"""A deterministic world around the engine: SQL as dictionaries with compare-and-set, a cluster as sets, and crashes.

It keeps the promises of the service in words that do not use the service's own code: which pods live is known from what was
launched and what has ended, not from the engine's claims.
"""

from __future__ import annotations

import random
from collections import Counter
from copy import copy
from dataclasses import dataclass, field

from flowsched.engine.data.inputs import needed
from flowsched.engine.delta import AttemptEnd, Intent, OutputWrite, StageWrite, TaskWrite
from flowsched.engine.events import Accepted, Command, EngineEvent, Recovered, Revived, Tick
from flowsched.engine.explain import explain
from flowsched.engine.pod_orders import decode_pods
from flowsched.engine.recovery import Remembered, rebuild_run
from flowsched.engine.state import EngineState
from flowsched.engine.state.foreign import ForeignState
from flowsched.engine.state.policy import PolicyState
from flowsched.engine.state.round import RoundState
from flowsched.engine.state.work import pod_name
from flowsched.engine.step import Step, step
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import (
    Drop,
    Pod,
    PodEnded,
    PodGone,
    PodStarted,
    Published,
    ReplicaSeen,
    TransferDone,
    TransferFailed,
    Usage,
)
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.scheduling.state.claims import ClaimKind
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.run.run import WorkflowRun
from flowsched.workflow.run.states import HOLDING, RunState, TaskState
from flowsched.workflow.spec import WorkflowSpec

TERMINAL = {"SUCCEEDED", "FAILED", "CANCELLED"}


class Sql:
    """What would be in the database: one transaction at a time, all or nothing."""

    def __init__(self) -> None:
        self.specs: dict[str, WorkflowSpec] = {}
        self.workflows: dict[str, tuple[str, str, int | None]] = {}
        self.cancel_requested: set[str] = set()
        self.stages: dict[tuple[str, int], StageWrite] = {}
        self.tasks: dict[tuple[str, int, int], TaskWrite] = {}
        self.intents: dict[str, Intent] = {}
        self.gang_orders: dict[tuple[str, int, int, str], bytes] = {}
        self.ends: dict[str, AttemptEnd] = {}
        self.outputs: dict[tuple[str, int, int, str], OutputWrite] = {}
        self.replicas: dict[tuple[str, str], int] = {}
        self.commands: dict[int, tuple[str, str]] = {}
        self.terminal: dict[str, str] = {}
        self.runs_ended: set[str] = set()

    def commit(self, result: Step) -> None:
        """Compare-and-set on every row: memory and SQL must never disagree."""
        delta = result.delta
        for row in delta.tasks:
            key = (row.workflow, row.stage, row.index)
            before = self.tasks[key].version if key in self.tasks else 0
            assert row.version == before + 1, f"{row} on version {before}"
        self.runs_ended |= {end.run for end in delta.run_ends}
        for intent in delta.intents:
            assert intent.name not in self.intents, f"P3: {intent.name} intended twice"
            assert intent.workflow not in self.cancel_requested, "P8: intent after cancel"
            call = self.specs[intent.workflow].call
            assert call is None or call.run not in self.runs_ended, "intent after the end of its run"
        for row in delta.tasks:
            self.tasks[(row.workflow, row.stage, row.index)] = row
        self.intents |= {intent.name: intent for intent in delta.intents}
        for end in delta.ends:
            assert end.name in self.intents
            assert end.name not in self.ends, f"{end.name} ended twice"
            self.ends[end.name] = end
        self.stages |= {(row.workflow, row.stage): row for row in delta.stages}
        for row in delta.workflows:
            assert row.workflow not in self.terminal, "P1: a terminal workflow changed without a retry"
            if row.state in TERMINAL:
                self.terminal[row.workflow] = row.state
            self.workflows[row.workflow] = (row.state, row.reason, row.started_ms)
        self.outputs |= {(o.workflow, o.stage, o.index, o.name): o for o in delta.outputs}
        for replica in delta.replicas:
            if replica.present:
                self.replicas[(replica.uri, replica.node)] = replica.size_bytes
            else:
                self.replicas.pop((replica.uri, replica.node), None)
        self.gang_orders |= {row[:4]: row.pod for row in delta.gang_orders}
        for number in delta.commands_done:
            self.commands.pop(number, None)

    def remembered(self, ident: str, seq: int) -> Remembered:
        """One workflow's rows."""
        state, reason, started = self.workflows[ident]
        rows = [
            (intent.workflow, intent.stage, intent.pod)
            for name, intent in self.intents.items()
            if intent.workflow == ident and name not in self.ends
        ]
        open_pods = decode_pods(rows, self.gang_orders)
        return Remembered(
            workflow=ident,
            seq=seq,
            state=state,
            reason=reason,
            started_ms=started,
            cancel_requested=ident in self.cancel_requested,
            paused=False,
            stages=[row for key, row in sorted(self.stages.items()) if key[0] == ident],
            tasks=[row for key, row in sorted(self.tasks.items()) if key[0] == ident],
            outputs=[row for key, row in sorted(self.outputs.items()) if key[0] == ident],
            pods=open_pods,
        )


@dataclass
class Chances:
    """How the world misbehaves: probabilities per occasion."""

    fail: float = 0.0  #: a pod exits 1
    oom: float = 0.0
    gone: float = 0.0  #: a pod is lost
    crash: float = 0.0  #: the service dies, at one of three points of a step
    drop: float = 0.0  #: a commit fails and the step is dropped
    cancel: float = 0.0  #: per step, some live workflow is cancelled
    transfer_fails: float = 0.0
    replica_lost: float = 0.0
    repeat: float = 0.0  #: an event is told twice
    lingers: float = (
        0.0  #: a pod that is taken away takes its time: it may start, and end by itself, before it is gone
    )


@dataclass
class World:
    """The engine between SQL and a cluster, driven by a seed."""

    nodes: list[NodeInfo]
    seed: int
    chances: Chances = field(default_factory=Chances)
    policy: str = "flowsched"
    remote_reads: bool = False
    pipelines: bool = False
    sweeps: bool = False  #: the catalogue forgets after each step what it may
    sql: Sql = field(default_factory=Sql)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now = 1_000
        self.seq: dict[str, int] = {}
        self.live: dict[str, Pod] = {}  #: pods whose process may run
        self.started: set[str] = set()
        self.ended_in: Counter[str] = Counter()  #: by pipeline
        self.leaving: set[str] = set()  #: of `live`, those that were asked to go
        self.ever: set[str] = set()
        self.starts: Counter[tuple[str, str, int]] = Counter()
        self.moving: list[tuple[str, str, str | None, int]] = []
        self.holds: set[tuple[str, str]] = set()  #: (uri, node) that is really there
        self.inbox: list[EngineEvent] = []
        self.commands = 0
        self.seen: Counter[str] = Counter()
        self.boot()

    def boot(self) -> None:
        """A service (re)starts: memory from SQL, pods from the cluster."""
        profile = PROFILES[self.policy]
        self.state = EngineState(
            policy=PolicyState(
                profile=profile, secret=b"s", remote_reads=self.remote_reads, pipelines=self.pipelines
            )
        )
        for node in self.nodes:
            self.state.cluster.catalogue.limit(self.state.cluster.snapshot.put_node(node), node.cache_bytes)
        for (uri, node), size in self.sql.replicas.items():
            dataset = self.state.cluster.catalogue.intern(uri, size)
            self.state.cluster.catalogue.add_replica(dataset, self.state.cluster.snapshot.index[node])
        self.inbox = []
        self.waited_for: dict[int, tuple[str, ...]] = {}  #: group -> victims it was nominated with
        self.moving = []
        adopt: list[Pod] = []
        for ident, seq in sorted(self.seq.items(), key=lambda pair: pair[1]):
            if ident in self.sql.terminal:
                continue
            rows = self.sql.remembered(ident, seq)
            spec = self.sql.specs[ident]
            run = rebuild_run(self.state, spec, StageGraph(spec), rows)
            self.inbox.append(Recovered(run, tuple(rows.pods)))
            adopt.extend(rows.pods)
        for number, (ident, kind) in self.sql.commands.items():
            self.inbox.append(Command(ident, kind, number))
        for pod in adopt:
            if pod.name not in self.live:
                self.inbox.append(PodGone(pod.name, self.now, "Void"))
            elif pod.name in self.started:
                self.inbox.append(PodStarted(pod.name, self.now))
        unknown = [pair for pair in sorted(self.holds) if pair not in self.sql.replicas]
        if (
            self.state.cluster.catalogue.caches is not None
        ):  # copies that were to be deleted when the service died
            self.seen["copy known again"] += len(unknown)
            self.inbox += [
                ReplicaSeen(uri, node, 5_000_000 if uri.startswith("s3:") else 1_000_000)
                for uri, node in unknown
            ]

    def submit(self, ident: str, spec: WorkflowSpec) -> None:
        """A workflow is durably accepted."""
        self.seq[ident] = len(self.seq) + 1
        self.sql.specs[ident] = spec
        self.sql.workflows[ident] = ("PENDING", "", None)
        run = WorkflowRun(ident, spec, StageGraph(spec), self.seq[ident])
        self.inbox.append(Accepted(run))

    def command(self, ident: str, kind: str) -> None:
        """A user's word, durable before it is told."""
        self.commands += 1
        self.sql.commands[self.commands] = (ident, kind)
        if kind == "cancel":
            self.sql.cancel_requested.add(ident)
        self.inbox.append(Command(ident, kind, self.commands))

    def retry(self, ident: str) -> None:
        """Bring a failed workflow back."""
        del self.sql.terminal[ident]
        rows = self.sql.remembered(ident, self.seq[ident])
        spec = self.sql.specs[ident]
        self.commands += 1
        self.sql.commands[self.commands] = (ident, "retry")
        self.inbox.append(Revived(rebuild_run(self.state, spec, StageGraph(spec), rows), self.commands))

    # ------------------------------------------------------------------------------------------------ time

    def run(self, most: int = 5_000) -> None:
        """Step until everything has ended."""
        for _ in range(most):
            if not self.turn():
                return
        told = [str(e) for run in self.state.work.runs.values() for e in explain(self.state, run, self.now)]
        raise AssertionError(
            f"still running after {most} steps: {self.unfinished()}; {told}; {list(self.live)}; {self.rows()}"
        )

    def rows(self) -> list[str]:
        """What an unfinished stage looks like, for a failing test."""
        return [
            f"{run.id}/{s.spec.name} {s.state} done={s.done}/{s.spec.width} barriers={s.barriers} "
            f"{[] if s.uniform is not None else [TaskState(x).name + str(a) for x, a in zip(s.task_state, s.attempt, strict=True)]}"
            for run in self.state.work.runs.values()
            for s in run.stages
        ] + [f"{k} {v[3] if len(v) > 3 else v}" for k, v in self.sql.stages.items()]

    def unfinished(self) -> list[tuple[str, str]]:
        return [(ident, self.sql.workflows[ident][0]) for ident in self.seq if ident not in self.sql.terminal]

    def turn(self) -> bool:
        """One step of the service and one move of the world. False when nothing is left to happen."""
        events, self.inbox = self.inbox, []
        if self.random.random() < self.chances.repeat and events:
            events.append(
                self.random.choice(
                    [e for e in events if not isinstance(e, Accepted | Recovered | Revived)] or [Tick()]
                )
            )
        if not self.service(events or [Tick()]):
            return True
        if not self.live and not self.moving and not self.inbox:
            if not self.unfinished():
                return False
            self.now += 61_000  # a back-off may be all there is to wait for
        else:
            self.world()
        return True

    def service(self, events: list[EngineEvent]) -> bool:
        """One step; False if the service died in it (and was started again)."""
        crash = self.random.random() < self.chances.crash
        point = self.random.randrange(3) if crash else 3
        while True:
            before = fingerprint(self.state)
            result = step(self.state, events, self.now)
            if self.random.random() >= self.chances.drop:
                break
            result.drop()
            self.seen["dropped"] += 1
            for had, has in zip(before, fingerprint(self.state), strict=True):
                assert had == has, "a dropped step left a trace"
        if point == 0:
            self.seen["crash before commit"] += 1
            self.unseen(events)
            return False
        self.sql.commit(result)
        self.check(result)
        if point == 1:
            self.seen["crash after commit"] += 1
            self.boot()
            return False
        result.keep()
        if self.sweeps:
            self.state.cluster.catalogue.sweep(needed(self.state))
        self.act(result)
        if point == 2:
            self.seen["crash after launch"] += 1
            self.boot()
            return False
        return True

    def unseen(self, events: list[EngineEvent]) -> None:
        """The service died before it wrote what it was told. Submissions and commands are in SQL, ends in exit records."""
        self.boot()
        ended = [e for e in events if isinstance(e, PodEnded | PodGone)]
        told = {e.name for e in ended}
        self.inbox = [e for e in self.inbox if not (isinstance(e, PodGone) and e.name in told)] + ended

    def act(self, result: Step) -> None:
        """What the executor does."""
        for pod in result.launches:
            assert pod.name not in self.ever, f"P3: {pod.name} launched twice"
            self.ever.add(pod.name)
            key = (pod.workflow, pod.stage, pod.index)
            twins = [p.name for p in self.live.values() if (p.workflow, p.stage, p.index) == key]
            assert not twins, f"P2: {pod.name} beside {twins}"
            self.seen["remote read"] += len(pod.remote)
            reads = [(u, pod.remote.get(u, pod.node)) for given in pod.inputs for u in given.uris]
            lacking = [pair[0] for pair in reads if pair not in self.holds]
            if lacking and self.chances.replica_lost:
                self.seen["input lost"] += 1
                self.ended_in[pod.pipeline] += 1
                self.inbox.append(PodGone(pod.name, self.now, "InputLost", lost_inputs=tuple(lacking)))
                continue
            assert not lacking, f"{pod.name} bound without {lacking}"
            self.live[pod.name] = pod
        for name in result.releases:
            self.seen["released"] += 1
            lingers = self.chances.lingers and self.random.random() < self.chances.lingers
            if name in self.live and lingers:
                self.leaving.add(name)
            elif name not in self.live:
                self.inbox.append(PodGone(name, self.now, "Void"))
            else:
                self.leave(name)
                self.inbox.append(PodEnded(name, self.now, 143, "Released"))
        for drop in result.drops:
            self.drop(drop)
        for order in result.transfers:
            assert (
                order.source is None or (order.uri, order.source) in self.holds or self.chances.replica_lost
            )
            self.moving.append((order.uri, order.dest, order.source, order.size_bytes))
            self.seen["transfer"] += 1
        if result.wake_ms is not None and not self.live and not self.moving and not self.inbox:
            self.now = max(self.now, result.wake_ms)
            self.inbox.append(Tick())

    def drop(self, drop: Drop) -> None:
        """A copy is deleted: nobody reads it there, and nobody copies it from there."""
        self.seen["dropped copy"] += 1
        readers = [
            p.name
            for p in self.live.values()
            if any(drop.uri in i.uris for i in p.inputs) and p.remote.get(drop.uri, p.node) == drop.node
        ]
        assert not readers, f"{drop} although {readers} read it"
        assert not any((uri, source) == (drop.uri, drop.node) for uri, _, source, _ in self.moving)
        self.holds.discard((drop.uri, drop.node))

    def world(self) -> None:
        """Some of what can happen does."""
        self.now += self.random.randint(1, 2_000)
        for name in [n for n in self.live if n not in self.started]:
            if not self.is_held(name) and self.random.random() < 0.7:
                self.seen["started after it was sent ahead"] += self.live[name].after > 0
                self.started.add(name)
                self.inbox.append(PodStarted(name, self.now))
        for name in list(self.live):
            if not self.is_held(name) and self.random.random() < 0.4:
                self.end(name)
        for name in sorted(self.leaving):
            if name not in self.live:
                self.leaving.discard(name)
                self.seen["ended while being taken away"] += 1
            elif self.random.random() < 0.4:
                self.leaving.discard(name)
                self.leave(name)
                self.inbox.append(PodEnded(name, self.now, 143, "Released"))
        for index in reversed(range(len(self.moving))):
            if self.random.random() < 0.6:
                self.arrive(*self.moving.pop(index))
        alive = [ident for ident, _ in self.unfinished() if ident not in self.sql.cancel_requested]
        if alive and self.random.random() < self.chances.cancel:
            self.command(self.random.choice(alive), "cancel")

    def is_held(self, name: str) -> bool:
        """Whether its node keeps a pod that was sent ahead: too few of its pipeline have ended."""
        pod = self.live[name]
        return name not in self.started and self.ended_in[pod.pipeline] < pod.after

    def leave(self, name: str) -> None:
        """A pod is no more."""
        self.ended_in[self.live.pop(name).pipeline] += 1

    def end(self, name: str) -> None:
        pod = self.live[name]
        gang = pod.gang is not None and pod.name.split("-")[0] == "fs"
        if gang and not any(True for _ in pod.outputs) and pod.gang is not None and pod.gang.role == "ps":
            return  # serves until it is released
        self.leave(name)
        dice = self.random.random()
        if dice < self.chances.gone:
            self.inbox.append(PodGone(name, self.now, "RunnerLost", started=True))
        elif dice < self.chances.gone + self.chances.fail:
            self.inbox.append(PodEnded(name, self.now, 1))
        elif dice < self.chances.gone + self.chances.fail + self.chances.oom:
            self.inbox.append(PodEnded(name, self.now, 137, "OOMKilled"))
        else:
            outputs = tuple(Published(o.name, o.uri, 1_000_000) for o in pod.outputs)
            self.holds |= {(o.uri, pod.node) for o in outputs}
            used = Usage(max_rss_bytes=(1 + pod.index) << 24)
            self.inbox.append(PodEnded(name, self.now, 0, outputs=outputs, usage=used))

    def arrive(self, uri: str, dest: str, source: str | None, size: int) -> None:
        if source is not None and self.random.random() < self.chances.replica_lost:
            self.holds.discard((uri, source))
            self.inbox.append(TransferFailed(uri, dest, self.now, "gone", source, lost=True))
            self.seen["replica lost"] += 1
        elif self.random.random() < self.chances.transfer_fails:
            self.inbox.append(TransferFailed(uri, dest, self.now, "reset", source))
        else:
            self.holds.add((uri, dest))
            self.inbox.append(TransferDone(uri, dest, self.now, size, source, size))

    # ------------------------------------------------------------------------------------------------ promises

    def check(self, result: Step) -> None:
        """P4, P5, P6 and the derived arrays, after each committed step."""
        state = self.state
        used = state.cluster.snapshot.used.copy()
        within = used.copy()
        for name, claim in state.cluster.snapshot.claims.items():
            ref = state.work.pods.get(name)
            if ref is not None and ref.adopted and b'"after":0' not in self.sql.intents[name].pod:
                within[claim.node, : len(claim.amount)] -= claim.amount  # it may have to wait on its node
        assert (within <= state.cluster.snapshot.allocatable).all(), "P6: over-commit"
        self.check_caches()
        assert (state.cluster.snapshot.devices.free(len(state.cluster.snapshot)) >= 0).all(), (
            "P6: a device is given out twice"
        )
        total = used * 0
        for claim in state.cluster.snapshot.claims.values():
            if claim.kind > 0:
                total[claim.node, : len(claim.amount)] += claim.amount
        assert (total == used).all(), "claims and arrays disagree"
        mine = (ClaimKind.RUNNING, ClaimKind.RELEASING)
        holding = {name for name, claim in state.cluster.snapshot.claims.items() if claim.kind in mine}
        ahead = [claim.owner for each in state.cluster.pipelines.values() for claim in each.waiting]
        assert len(ahead) == len(set(ahead))
        assert holding.isdisjoint(ahead)
        leaving = set(state.work.pods) - holding.union(ahead)
        assert holding.union(ahead, leaving) == set(state.work.pods), "claims and pods disagree"
        for ref in map(state.work.pods.get, leaving):
            stage = state.work.runs[ref.workflow].stages[ref.stage]
            assert stage.task_is(ref.task) is TaskState.RELEASING, "a pod without room that nobody takes back"
            name = pod_name(ref.workflow, stage.spec.name, ref.task, ref.attempt)
            assert b'"after":0' not in self.sql.intents[name].pod, "it had room"
        members = Counter(state.cluster.in_line.values())
        assert members == {slot: each.members for slot, each in state.cluster.pipelines.items()}
        assert state.cluster.in_line.keys() | state.cluster.sent.keys() <= state.work.pods.keys()
        for run in state.work.runs.values():
            for stage in run.stages:
                if stage.uniform is None:
                    counted = [int((stage.task_state == s).sum()) for s in TaskState]
                    assert counted == stage.counts.tolist()
        for key, nomination in state.cluster.snapshot.nominations.items():
            known = self.waited_for.setdefault(key, nomination.victims)
            assert known == nomination.victims, "a group that waits for its victims got others"
        for key in [key for key in self.waited_for if key not in state.cluster.snapshot.nominations]:
            del self.waited_for[key]
        if state.policy.profile.gang:
            self.check_gangs(result)
        self.check_shrunk(result)
        for ident in result.ended:
            assert not [name for name in state.work.pods if name.startswith(f"fs-{ident}-")], "P5: a leak"
            assert RunState(self.sql.workflows[ident][0]).terminal

    def check_caches(self) -> None:
        """What counts in a cache is what is there, comes, or is held: each dataset once."""
        accounting, catalogue = self.state.cluster.catalogue.caches, self.state.cluster.catalogue
        for node, cache in accounting.of.items() if accounting is not None else ():
            known = {
                d for d in range(len(catalogue)) if node in catalogue.nodes_of(d) | catalogue.expected_on(d)
            }
            held = {dataset for pin in cache.pins.values() for dataset in pin.datasets}
            assert known == cache.there
            assert held == set(cache.pinned)
            assert cache.used == sum(catalogue.sizes[dataset] for dataset in known | held)
            assert cache.due == sum(pin.output_bytes for pin in cache.pins.values())

    def check_shrunk(self, result: Step) -> None:
        """A gang that gave members back, as the history says, still has its minimum of every role (unless it left too)."""
        for row in result.delta.events:
            body = dict(row.body)
            if row.kind != "task.evicted" or "goes on without it" not in body["message"]:
                continue
            self.seen["given back"] += 1
            run = self.state.work.runs[row.workflow]
            stage = run.stages[run.number_of(body["stage"])]
            states = stage.task_state[stage.indices_of(body["index"] // stage.members)]
            there = [
                s in (*HOLDING, TaskState.SUCCEEDED) and s != TaskState.RELEASING for s in states.tolist()
            ]
            for number, role in enumerate(stage.spec.roles):
                members = sum(here and r == number for here, r in zip(there, stage.role_of, strict=True))
                assert members >= role.minimum or not any(there), (
                    f"a gang that goes on has too few: {stage.spec.name}: {states}"
                )

    def check_gangs(self, result: Step) -> None:
        """Nobody of a gang is intended unless, together with who goes on, every role has at least its minimum."""
        for ident, name, shard in {
            (p.workflow, p.stage, p.shard) for p in result.launches if p.gang is not None
        }:
            stage = next(s for s in self.state.work.runs[ident].stages if s.spec.name == name)
            states = stage.task_state[stage.indices_of(shard)]
            there = [TaskState(s) in (*HOLDING, TaskState.SUCCEEDED) for s in states.tolist()]
            for number, role in enumerate(stage.spec.roles):
                members = sum(
                    is_there and r == number for is_there, r in zip(there, stage.role_of, strict=True)
                )
                assert members >= role.minimum, f"P4: half a gang {name}: {states}"

    def finished(self) -> None:
        """At the end nothing is left anywhere."""
        assert not self.live
        assert not self.state.work.pods
        assert not self.state.cluster.snapshot.claims
        assert not self.state.cluster.snapshot.nominations
        assert not self.state.cluster.pipelines
        assert not self.state.cluster.in_line
        assert not self.state.cluster.sent
        assert not self.state.work.runs
        assert not self.state.data.staging
        assert not self.state.work.ready
        assert not self.state.data.read_from
        assert self.state.data.coming_in.keys() == {
            (dataset, node) for dataset, node, _ in self.state.data.moving
        }
        accounting = self.state.cluster.catalogue.caches
        assert accounting is None or not accounting.owner.keys() - accounting.waiting
        assert set(self.sql.terminal) == set(self.seq)


def fingerprint(state: EngineState) -> tuple[object, ...]:
    """Everything a step may change, comparable."""
    snapshot = state.cluster.snapshot
    runs = []
    for ident, run in sorted(state.work.runs.items()):
        stages = []
        for stage in run.stages:
            arrays: tuple[bytes, ...] = ()
            if stage.uniform is None:
                arrays = tuple(
                    a.tobytes()
                    for a in (
                        stage.task_state,
                        stage.attempt,
                        stage.node,
                        stage.version,
                        stage.goal,
                        stage.charged,
                        stage.lost,
                        stage.times,
                        stage.missing,
                        stage.shard_done,
                        stage.moved,
                        stage.local,
                        stage.not_before,
                        stage.memory_steps,
                        stage.exit_code,
                    )
                )
            words = (
                stage.state,
                stage.reason,
                stage.uniform,
                stage.barriers,
                stage.done,
                stage.failed,
                stage.verdict,
            )
            stages.append(
                (words, stage.counts.tobytes(), stage.totals.tobytes(), arrays, sorted(stage.reasons.items()))
            )
        outputs = sorted((k, sorted(v.items())) for k, v in run.outputs.items() if v)
        runs.append((ident, run.state, run.reason, run.cancel_requested, stages, outputs))
    return (
        snapshot.used.tobytes(),
        snapshot.staging.tobytes(),
        snapshot.inbound.tobytes(),
        sorted(snapshot.claims.items()),
        sorted(snapshot.nominations.items()),
        sorted(state.cluster.pipelines.items()),
        sorted(state.cluster.in_line.items()),
        sorted(state.cluster.sent.items()),
        state.cluster.next_pipeline,
        sorted(snapshot.spent.items()),
        snapshot.lowest_takeable,
        runs,
        sorted(state.work.ready),
        sorted(state.work.pods),
        sorted(state.data.staging),
        sorted(state.data.moving),
        sorted(state.data.coming_in.items()),
        sorted(state.data.read_from.items()),
        sorted(state.data.backoff),
        [sorted(s) for s in map(state.cluster.catalogue.nodes_of, range(len(state.cluster.catalogue))) if s],
        state.work.next_address,
        dict(state.work.engines.ended),
        sorted(state.work.gang_seats),
        caches(state),
        plain(state.round),
    )


def plain(part: RoundState | ForeignState) -> list[object]:
    """All fields of a part of the state, but for the shapes that are worked out once."""
    return [copy(getattr(part, name)) for name in part.__struct_fields__ if name != "shapes"]


def caches(state: EngineState) -> list[object]:
    """The books of caches with a limit."""
    accounting = state.cluster.catalogue.caches
    if accounting is None:
        return []
    return [
        (
            node,
            cache.limit,
            cache.used,
            cache.due,
            sorted(cache.there),
            sorted(cache.pinned.items()),
            sorted(cache.pins),
        )
        for node, cache in sorted(accounting.of.items())
    ]
