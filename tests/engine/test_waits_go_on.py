"""A restart, or a change of leader, does not forget since when work waits."""

from __future__ import annotations

from typing import Any

from flowsched.engine.delta import TaskWrite
from flowsched.engine.events import Accepted, EngineEvent, Recovered, Tick
from flowsched.engine.pod_orders import decode_pods
from flowsched.engine.recovery import rebuild_run
from flowsched.engine.state import EngineState
from flowsched.engine.state.policy import PolicyState
from flowsched.engine.step import Step, step
from flowsched.executor.protocol import PodEnded, PodStarted, Published
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.scheduling.queues.tree import Queue, QueueTree
from flowsched.values import replace
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.run.run import WorkflowRun
from tests.engine.scene import node
from tests.engine.world import Sql

SECOND = 1_000
PROFILE = replace(PROFILES["flowsched"], promote_ms=20 * SECOND)
CORE: dict[str, Any] = {"command": ["x"], "resources": {"cpu": 1}}


class Service:
    """One service over rows, with one node. What it launches starts at once."""

    def __init__(self, cores: int = 1) -> None:
        self.sql, self.cores, self.now = Sql(), cores, 0
        self.state = self.fresh()

    def fresh(self) -> EngineState:
        queues = QueueTree([Queue("high", priority=2), Queue("low")])
        state = EngineState(policy=PolicyState(profile=PROFILE, queues=queues, secret=b"s"))
        state.cluster.snapshot.put_node(node(cpu=self.cores))
        return state

    def submit(self, ident: str, *stages: dict[str, Any], queue: str = "low") -> None:
        spec = check_workflow({"name": ident, "queue": queue, "stages": list(stages)})
        self.sql.specs[ident], self.sql.workflows[ident] = spec, ("PENDING", "", None)
        self.tell(Accepted(WorkflowRun(ident, spec, StageGraph(spec), len(self.sql.specs))))

    def tell(self, *events: EngineEvent, after: int = 0) -> list[str]:
        """A step. Returns what it launched."""
        self.now += after
        launched = self.keep(step(self.state, events or [Tick()], self.now))
        if launched:
            self.keep(step(self.state, [PodStarted(name, self.now) for name in launched], self.now))
        return launched

    def keep(self, result: Step) -> list[str]:
        self.sql.commit(result)
        result.keep()
        return sorted(pod.name for pod in result.launches)

    def end(self, name: str, after: int = 0) -> list[str]:
        self.now += after
        (pod,) = decode_pods([("w", 0, self.sql.intents[name].pod)], {})
        wrote = tuple(Published(out.name, out.uri, 1) for out in pod.outputs)
        return self.tell(PodEnded(name, self.now, 0, outputs=wrote))

    def restart(self, after: int = 0) -> list[str]:
        """The process dies, and another one reads the rows."""
        self.now += after
        self.state = self.fresh()
        events: list[EngineEvent] = []
        for seq, ident in enumerate(self.sql.specs, 1):
            if ident not in self.sql.terminal:
                rows = self.sql.remembered(ident, seq)
                run = rebuild_run(
                    self.state, rows=rows, spec=self.sql.specs[ident], graph=StageGraph(self.sql.specs[ident])
                )
                events.append(Recovered(run, tuple(rows.pods)))
        return self.tell(*events)

    def row(self, ident: str, task: int = 0, stage: int = 0) -> TaskWrite:
        return self.sql.tasks[ident, stage, task]


def test_restarts_do_not_put_a_promotion_off() -> None:
    """The low task is promoted after 40 s behind an endless queue, although the service restarts each 16 s. Then it ends."""
    service = Service()
    service.submit("h", CORE | {"name": "a", "scatter": {"count": 99}}, queue="high")
    service.submit("l", CORE | {"name": "a"})
    assert service.end("fs-h-a-0-0", after=8 * SECOND) == ["fs-h-a-1-0"]
    assert service.restart(after=8 * SECOND) == []
    assert service.end("fs-h-a-1-0", after=8 * SECOND) == ["fs-h-a-2-0"]
    assert service.restart(after=8 * SECOND) == []
    assert service.end("fs-h-a-2-0", after=9 * SECOND) == ["fs-l-a-0-0"]
    assert service.row("l").ready_ms == 0
    assert service.row("l").bound_ms == 41 * SECOND
    assert service.restart(after=SECOND) == []  # no task of the high queue takes its room back
    assert service.tell(after=SECOND) == []
    assert service.end("fs-l-a-0-0", after=SECOND) == ["fs-h-a-3-0"]
    assert service.sql.terminal == {"l": "SUCCEEDED"}


def test_a_task_waits_from_the_end_of_its_own_parent() -> None:
    """Shard 0 of the child waits for the core that shard 1 of its parent has."""
    service = Service()
    parent = CORE | {"name": "a", "scatter": {"count": 2}, "outputs": [{"name": "x", "path": "x"}]}
    child = CORE | {
        "name": "b",
        "scatter": {"count": 2},
        "inputs": [{"name": "x", "from": "a.x", "match": "index"}],
    }
    service.submit("w", parent, child)
    assert service.end("fs-w-a-0-0", after=2 * SECOND) == ["fs-w-a-1-0"]
    service.restart(after=9 * SECOND)
    assert service.state.work.runs["w"].stages[1].times[:, 0].tolist() == [2 * SECOND, -1]
