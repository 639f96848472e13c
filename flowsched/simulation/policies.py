"""The policies that a simulation knows by name: profiles of the engine, and opponents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from flowsched.engine.events import Accepted
from flowsched.engine.explain import Facts, stage_reason
from flowsched.engine.state import EngineState
from flowsched.engine.state.policy import PolicyState
from flowsched.engine.step import step
from flowsched.errors import InvalidRequest
from flowsched.executor.protocol import NodeChanged
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.simulation.clusters import Loss, SimulatedCluster
from flowsched.simulation.rivals import RIVALS, opponent
from flowsched.simulation.simulate import Simulation, unfinished_text
from flowsched.simulation.workload import Workload
from flowsched.simulation.world import World
from flowsched.values import replace
from flowsched.workflow.graph import StageGraph
from flowsched.workflow.run.run import WorkflowRun
from flowsched.workflow.spec import Condition, WorkflowSpec

#: All names.
POLICIES: Final = (*PROFILES, *RIVALS)


def simulated(
    policy: str | Profile,
    cluster: SimulatedCluster,
    workloads: Sequence[Workload],
    losses: Sequence[Loss] = (),
    begun: Callable[[World], None] = lambda _: None,
) -> World:
    """Let workloads run under a policy. Returns the world, with the trace.

    Args:
        policy: A name of `POLICIES`, or a profile for the engine.
        cluster: Where.
        workloads: What.
        losses: Which nodes are lost, and when.
        begun: Is given the world before anything happens in it: another thread may look how far it is.

    Raises:
        ConfigurationError: There is no policy of that name.
        InvalidRequest: It is an opponent, and nodes are lost.
    """
    if losses:
        refuse_losses(policy)
    if isinstance(policy, str):
        if policy not in PROFILES:
            rival = opponent(policy, cluster, workloads)
            begun(rival.world)
            for number, workload in enumerate(workloads):
                never = misfits(cluster, workload.spec)
                jobs = {job: stage for (stage, _), job in workload.numbers.items() if stage in never}
                rival.never.update((number, job) for job in jobs)
                rival.world.unfinished += [
                    unfinished_text(workload.name, stage, count, never[stage])
                    for stage, count in Counter(jobs.values()).items()
                ]
            return rival.run()
        policy = PROFILES[policy]
        if (
            not policy.gang
        ):  # one workflow engine submits its tasks one after the other, not many controllers by turns
            policy = replace(policy, interleave=False)
    simulation = Simulation(cluster, workloads, policy, losses=losses)
    begun(simulation.world)
    return simulation.run()


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


def refuse_losses(policy: str | Profile) -> None:
    """See to it that a policy can go on after a node is lost: opponents cannot.

    Raises:
        InvalidRequest: It is one.
    """
    if policy in RIVALS:
        raise InvalidRequest(
            f"--lose with policy {policy!r}: opponents run nothing again; it can be one of {', '.join(PROFILES)}, or a profile"
        )
