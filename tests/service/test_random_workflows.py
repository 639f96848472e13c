"""Random workflows through the real leader, dispatcher, writer and SQLite, over fake pods, on a virtual clock (P1 to P6)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from flowsched.control import intake
from flowsched.control.leading import leader
from flowsched.control.leading.dispatch import Dispatcher
from flowsched.engine.events import EngineEvent
from flowsched.engine.state import EngineState
from flowsched.engine.step import Step
from flowsched.errors import Conflict
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import Pod
from flowsched.scheduling.state.claims import ClaimKind
from flowsched.store.database import url_for
from flowsched.workflow.run.states import HOLDING, TaskState
from tests.cluster.fake import FakeProcesses, Outcome
from tests.engine.documents import clean, documents
from tests.service.processes import Process, process
from tests.service.virtual import VirtualLoop, virtual_loop
from tests.soak import worlds

NODES = [NodeInfo(f"n{i}", 4_000, 4 << 30, rack=f"r{i // 2}") for i in range(3)]
TERMINAL = {"SUCCEEDED", "FAILED", "CANCELLED"}
#: Members in these states have room, or needed it no longer.
THERE = {*HOLDING, TaskState.SUCCEEDED}
#: Virtual seconds after which a workflow that has not ended never will.
FOR_EVER_S = 50_000


NUMBERS = itertools.count()


class Crash(BaseException):
    """The service dies here. (No Exception: a leader begins a new term after those.)"""


class Broken(BaseException):
    """A promise does not hold."""


@dataclass
class Trial:
    """One world with its users, its mishaps, and what was seen to hold."""

    seed: int
    mishaps: bool
    seen: Counter[str] = field(default_factory=Counter)
    ended: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.number = next(NUMBERS)  #: a seed may come again, on the same database
        self.random = random.Random(self.seed)
        self.world = FakeProcesses(self.outcome)

    def outcome(self, pod: Pod) -> Outcome:
        """What becomes of a pod: mostly good."""
        if pod.gang is not None and pod.gang.role == "ps":
            return Outcome(runtime_ms=10**9)  # serves until it is released
        delay, runtime = self.random.randrange(500), self.random.randrange(50, 30_000)
        dice = self.random.random() if self.mishaps else 1.0
        if dice < 0.08:
            return Outcome(1, runtime_ms=runtime, start_delay_ms=delay)
        if dice < 0.11:
            return Outcome(137, "OOMKilled", runtime_ms=runtime)
        if dice < 0.16:
            return Outcome(gone="RunnerLost", runtime_ms=runtime, start_delay_ms=delay)
        return Outcome(runtime_ms=runtime, start_delay_ms=delay, ignores_term=dice < 0.2)

    async def failpoint(self, name: str) -> None:
        """Die now and then."""
        if self.mishaps and self.random.random() < 0.015:
            self.seen[f"crash at {name}"] += 1
            raise Crash(name)

    def check(self, state: EngineState, done: Step) -> None:
        """What must hold after every step."""
        snapshot = state.cluster.snapshot
        assert not self.world.violations
        assert (snapshot.used <= snapshot.allocatable).all(), "P6: more is used than there is"
        total = snapshot.used * 0
        for claim in snapshot.claims.values():
            if claim.kind > 0:
                total[claim.node, : len(claim.amount)] += claim.amount
        assert (total == snapshot.used).all(), "claims and arrays disagree"
        # Room that is held for whom others make way is nobody's pod yet.
        rooms = (ClaimKind.STAGING, ClaimKind.NOMINATED)
        holding = {name for name, claim in snapshot.claims.items() if claim.kind not in rooms}
        assert holding == set(state.work.pods), "claims and pods disagree"
        assert self.world.running <= holding, f"P5: {self.world.running - holding} live and hold nothing"
        assert set(self.world.launched.values()) <= {1}, "P3: a pod was launched twice"
        self._check_gangs(state, done)
        for row in done.delta.workflows:
            assert row.workflow not in self.ended, "P1: a terminal state changed"
            if row.state in TERMINAL:
                self.ended[row.workflow] = row.state
                left = [name for name in state.work.pods if name.startswith(f"fs-{row.workflow}-")]
                assert not left, f"P5: {left} outlive their workflow"
        self.seen["step"] += 1

    def _check_gangs(self, state: EngineState, done: Step) -> None:
        """Members are launched with all the others of their minimum, or come back to a gang that has them (P4)."""
        for workflow, name, shard in {
            (p.workflow, p.stage, p.shard) for p in done.launches if p.gang is not None
        }:
            stage = next(each for each in state.work.runs[workflow].stages if each.spec.name == name)
            states = stage.task_state[stage.indices_of(shard)]
            roles = [role.name for role in stage.spec.roles for _ in range(role.replicas)]
            there = Counter(role for role, has in zip(roles, states.tolist(), strict=True) if has in THERE)
            for role in stage.spec.roles:
                assert there[role.name] >= role.minimum, f"P4: half a gang {name}: {dict(there)}"

    def finish(self, state: EngineState) -> None:
        """What must hold when everything has ended."""
        assert not self.world.running, "P5: pods outlive everything"
        assert not state.work.pods
        assert not state.cluster.snapshot.claims
        assert not state.cluster.snapshot.used.any()
        assert not state.work.runs
        assert not state.data.staging
        assert not state.work.ready


class Checked(Dispatcher):
    """A dispatcher whose every step is looked at."""

    trial: Trial

    async def once(self, events: Sequence[EngineEvent], *, placing: bool = True) -> Step:
        done = await super().once(events, placing=placing)
        if not placing:  # a slice of a recovery: what the others bring back is not known yet
            return done
        try:
            self.trial.check(self.state, done)
        except AssertionError as error:
            raise Broken(str(error)) from error
        return done


async def live(
    trial: Trial, url: str, folder: Path, loop: VirtualLoop, docs: list[dict[str, Any]]
) -> list[str]:
    """Submit, disturb, restart after each crash, until all have ended; their states."""
    idents: list[str] = []
    while True:
        opened = process(
            url,
            folder,
            trial.world,
            nodes=NODES,
            clock=loop.clock_ms,
            monotonic=loop.time,
            failpoint=trial.failpoint,
        )
        async with opened as one:
            one.lead()
            try:
                await one.ready()
                while len(idents) < len(docs):
                    document = json.dumps(docs[len(idents)]).encode()
                    view = await one.service.submit(document, idempotency_key=f"{trial.number}-{len(idents)}")
                    idents.append(view.id)
                states = await until_all_ended(trial, one, idents, loop)
                assert one.leader.dispatcher is not None
                trial.finish(one.leader.dispatcher.state)
                return states
            except (Crash, BaseExceptionGroup) as crash:
                if not isinstance(crash, Crash) and crash.split(Crash)[1] is not None:
                    raise
        trial.seen["restart"] += 1


async def until_all_ended(trial: Trial, one: Process, idents: list[str], loop: VirtualLoop) -> list[str]:
    """Look now and then; cancel, lose a pod, or lose a dataset in between."""
    assert one.task is not None
    end = loop.time() + FOR_EVER_S
    while True:
        if one.task.done():
            one.task.result()
        views = [await one.service.workflow(ident) for ident in idents]
        alive = [view.id for view in views if view.state not in TERMINAL]
        if not alive:
            return [view.state for view in views]
        if loop.time() > end:
            told = [await one.service.explain(ident) for ident in alive]
            raise AssertionError(f"{views} do not end: {told}, {trial.world.running}")
        if trial.mishaps:
            await disturb(trial, one, alive)
        await asyncio.wait({one.task}, timeout=trial.random.uniform(1, 20))


async def disturb(trial: Trial, one: Process, alive: list[str]) -> None:
    """Something that happens to a service."""
    dice = trial.random.random()
    world = trial.world
    if dice < 0.04:
        with contextlib.suppress(Conflict):
            await one.service.command(trial.random.choice(alive), "cancel")
            trial.seen["cancel"] += 1
    elif dice < 0.10 and world.running:
        world.lose(trial.random.choice(sorted(world.running)), "NodeLost")
        trial.seen["lost pod"] += 1
    elif dice < 0.15:
        held = [
            (uri, node) for node, uris in world.replicas.items() for uri in uris if not uri.startswith("s3:")
        ]
        if held:
            await one.leader._executor.evict(*trial.random.choice(sorted(held)))  # type: ignore[attr-defined]
            trial.seen["lost dataset"] += 1


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualLoop]:
    monkeypatch.setattr(leader, "Dispatcher", Checked)
    monkeypatch.setattr(intake, "POLL_S", 30.0)  # what this process accepts wakes it at once
    with virtual_loop() as made:
        yield made


#: Each example is a world with four workflows.
EXAMPLES = worlds(few=8, many=100)
RELAXED = settings(
    max_examples=EXAMPLES,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def in_turn(loop: VirtualLoop, url: str, folder: Path, trial: Trial, docs: list[dict[str, Any]]) -> list[str]:
    Checked.trial = trial
    return loop.run_until_complete(live(trial, url, folder, loop, [clean(document) for document in docs]))


@pytest.mark.soak
@pytest.mark.slow
def test_random_workflows_end_and_every_promise_holds_after_every_step(
    tmp_path: Path, loop: VirtualLoop
) -> None:
    """Random workflows with failures, lost pods and datasets, cancels and crashes: each ends, and nothing is left."""
    url, seen = url_for(tmp_path / "db"), Counter[str]()

    @settings(RELAXED)
    @given(st.lists(documents(), min_size=4, max_size=4), st.integers(0, 2**32))
    def example(docs: list[dict[str, Any]], seed: int) -> None:
        trial = Trial(seed, mishaps=True)
        seen.update(in_turn(loop, url, tmp_path, trial, docs))
        seen.update(trial.seen)

    example()
    print(dict(seen))
    assert sum(seen[state] for state in TERMINAL) >= 4 * EXAMPLES
    for what in ("restart", "cancel", "lost pod", "lost dataset", "SUCCEEDED", "FAILED", "CANCELLED"):
        assert seen[what] > 0, f"no {what}: nothing was proved about it"


@pytest.mark.soak
@pytest.mark.slow
def test_without_mishaps_every_workflow_succeeds(tmp_path: Path, loop: VirtualLoop) -> None:
    """Nothing fails by itself."""
    url, seen = url_for(tmp_path / "db"), Counter[str]()

    @settings(RELAXED, max_examples=worlds(few=4, many=20))
    @given(st.lists(documents(), min_size=3, max_size=3), st.integers(0, 2**32))
    def example(docs: list[dict[str, Any]], seed: int) -> None:
        seen.update(in_turn(loop, url, tmp_path, Trial(seed, mishaps=False), docs))

    example()
    assert set(seen) == {"SUCCEEDED"}
