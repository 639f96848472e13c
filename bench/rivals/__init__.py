"""Policies of others, to compare with: they decide over a `World` directly, and are no part of what flowsched does.

An opponent sees what a scheduler may see: the DAG, sizes of files that exist, free cores, which node holds which files, and the
mean of what tasks of a category took before. It never sees a compute time before that task has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from bench.rivals.blind import Blind
from bench.rivals.heft import Heft
from bench.rivals.opponent import Opponent
from bench.rivals.wow import Wow
from flowsched.engine.events import Accepted
from flowsched.engine.explain import Facts, stage_reason
from flowsched.engine.state import EngineState
from flowsched.engine.state.policy import PolicyState
from flowsched.engine.step import step
from flowsched.executor.protocol import NodeChanged
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.simulation import policies
from flowsched.simulation.clusters import Loss, SimulatedCluster
from flowsched.simulation.simulate import unfinished_text
from flowsched.simulation.workload import Workload
from flowsched.simulation.world import World
from flowsched.values import replace
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.run.run import WorkflowRun
from flowsched.workflow.spec import Condition, WorkflowSpec

#: The opponents by name.
RIVALS: Final[Mapping[str, Callable[[SimulatedCluster, Sequence[Workload]], Opponent]]] = {
    "blind": Blind,
    "heft": Heft,
    "wow": Wow,
}
#: All names: profiles of the engine, and opponents.
POLICIES: Final = (*PROFILES, *RIVALS)


def simulated(
    policy: str,
    cluster: SimulatedCluster,
    workloads: Sequence[Workload],
    losses: Sequence[Loss] = (),
    begun: Callable[[World], None] = lambda _: None,
) -> World:
    """As `flowsched.simulation.policies.simulated`, under an opponent as well: those run nothing again, so they lose no node."""
    if policy not in RIVALS:
        return policies.simulated(policy, cluster, workloads, losses, begun)
    if losses:
        raise ValueError(f"{policy} runs nothing again that is lost")
    rival = RIVALS[policy](cluster, workloads)
    begun(rival.world)
    for number, workload in enumerate(workloads):
        never = misfits(cluster, workload.spec)
        jobs = {
            job: stage
            for (stage, _), job in workload.numbers.items()
            if stage in never and job not in workload.skipped
        }
        rival.never.update((number, job) for job in jobs)
        rival.world.unfinished += [
            unfinished_text(workload.name, stage, count, never[stage])
            for stage, count in Counter(jobs.values()).items()
        ]
    return rival.run()


def misfits(cluster: SimulatedCluster, spec: WorkflowSpec) -> dict[str, str]:
    """Stages that fit the cluster not even while it is empty, and why, in the words of the engine.

    Opponents count cores alone. So the engine is asked for them, about one shard of each kind of stage.
    """
    found: dict[str, str] = {}
    known: dict[str, str | None] = {}
    for stage in spec.stages:
        asks = [(role.resources, role.limits, role.replicas, role.minimum) for role in stage.roles]
        kind = repr((stage.gang, stage.rules, stage.min_resources, asks))
        if kind not in known:
            alone = replace(
                stage,
                width=1,
                items=None,
                scattered=False,
                inputs=(),
                needs=(),
                when=Condition(),
                policies=(),
            )
            one = replace(spec, stages=(alone,))
            run = WorkflowRun("w", one, StageGraph(one))
            state = EngineState(policy=PolicyState(mounted=True))
            step(state, [*(NodeChanged(node.info()) for node in cluster.nodes), Accepted(run)], 0)
            reason = stage_reason(Facts(state, run), run.stages[0], 0)
            known[kind] = reason.message if reason is not None and reason.permanent else None
        why = known[kind]
        if why is not None:
            found[stage.name] = why
    return found
