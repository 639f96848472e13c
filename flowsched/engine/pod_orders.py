"""Launch orders from placed tasks: names, addresses, seats, devices. Pure; secrets are derived, never stored."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from flowsched.engine.backlog import memory_limit, memory_steps, resources_of
from flowsched.engine.data.inputs import input_files, output_files, outputs_of
from flowsched.engine.state import EngineState
from flowsched.engine.state.work import Candidate, GangSeats, pod_name
from flowsched.executor.protocol import GangSeat, Pod
from flowsched.values import replace
from flowsched.workflow.run.run import StageRun, WorkflowRun
from flowsched.workflow.spec import EMPTY, Container, OutputSpec, Resources, RoleSpec, filled, qos_class

_ENCODER: Final = msgspec.json.Encoder(enc_hook=dict)  # read-only mappings
_DECODER: Final = msgspec.json.Decoder(Pod)


def encode_pod(pod: Pod) -> bytes:
    """A launch order as the intent keeps it, without the gang's secret."""
    if pod.gang is not None:
        pod = structs.replace(pod, gang=replace(pod.gang, token=""))
    return _ENCODER.encode(pod)


def decode_pod(raw: bytes) -> Pod:
    """A launch order as it was kept."""
    return _DECODER.decode(raw)


def seats(
    state: EngineState, candidate: Candidate, gang: GangSeats, tasks: NDArray[np.int64]
) -> dict[int, GangSeat]:
    """The seats of members that start now. `gang`: with them, and all that began before."""
    stage = candidate.stage
    everyone = np.array(gang.members) + int(tasks[0]) // stage.members * stage.members
    addresses = gang.addresses()
    names = tuple(stage.spec.roles[int(stage.role_of[member])].name for member in gang.members)
    token = gang_token(state, candidate.run, stage, everyone)
    generation = int(stage.attempt[everyone].min())
    result, wanted, of_role = {}, set(tasks.tolist()), dict.fromkeys(names, 0)
    for rank, (task, name) in enumerate(zip(everyone.tolist(), names, strict=True)):
        if task in wanted:
            result[task] = GangSeat(name, of_role[name], rank, addresses, names, token, generation=generation)
        of_role[name] += 1
    return result


def gang_token(state: EngineState, run: WorkflowRun, stage: StageRun, tasks: NDArray[np.int64]) -> str:
    """A secret shared by the members of one generation of one gang (one that came back alone is ahead of it)."""
    shard, generation = int(tasks[0]) // stage.members, int(stage.attempt[tasks].min())
    words = f"{run.id}/{stage.spec.name}/{shard}/{generation}".encode()
    return hmac.new(state.policy.secret, words, hashlib.sha256).hexdigest()


class Likeness(msgspec.Struct, frozen=True):
    """What all pods of one role of one group have in common. Its mappings are theirs too, and only read."""

    number: int
    role: RoleSpec
    resources: Resources
    memory_limit_bytes: int | None
    qos: int
    env: dict[str, str]
    secrets: dict[str, str]
    extended: dict[str, int]
    writes: tuple[OutputSpec, ...]  #: what its replica 0 writes, of what the stage writes
    delivers: bool  #: its replica 0 delivers what containers of the gang have in common


#: By stage (its id), role and memory steps. For one look: stages stay alive meanwhile.
Likenesses = dict[tuple[int, int, int], Likeness]


def likeness(candidate: Candidate, number: int, known: Likenesses) -> Likeness:
    """What all pods of a role of a group have in common. `number`: of the role; `known`: what was found before is there."""
    stage = candidate.stage
    steps = memory_steps(stage, candidate.tasks[candidate.at(number)])
    key = id(stage), number, steps
    found = known.get(key)
    if found is None:
        role = stage.spec.roles[number]
        resources, limit = resources_of(stage, role, steps), memory_limit(stage, role, steps)
        found = known[key] = Likeness(
            number=number,
            role=role,
            resources=resources,
            memory_limit_bytes=limit,
            qos=int(qos_class(role.resources, role.limits)),
            env=dict(role.env),
            secrets=dict(role.secrets),
            extended=dict(resources.extended),
            writes=outputs_of(stage, number),
            delivers=number == first_completing(stage),
        )
    return found


def make_pod(
    state: EngineState,
    candidate: Candidate,
    alike: Likeness,
    task: int,
    node: int,
    seat: GangSeat | None,
    gpus: tuple[int, ...],
    remote: Mapping[str, str] = EMPTY,
) -> Pod:
    """The launch order of one task on one node. `alike`: of its role."""
    run, stage = candidate.run, candidate.stage
    spec, members = stage.spec, stage.members
    shard, replica = task, 0
    if members > 1:
        member, shard = task % members, task // members
        replica = int((stage.role_of[:member] == alike.number).sum())
    role, resources = alike.role, alike.resources
    attempt = stage.attempt.item(task)
    first = replica == 0
    return Pod(
        name=pod_name(run.id, spec.name, task, attempt),
        workflow=run.id,
        stage=spec.name,
        index=task,
        shard=shard,
        attempt=attempt,
        epoch=state.policy.epoch,
        node=state.cluster.snapshot.names[node],
        command=role.command,
        env=alike.env,
        image=role.image,
        cpu_millicores=resources.cpu_millicores,
        memory_bytes=resources.memory_bytes,
        gpu_millis=resources.gpu_millis,
        item=None if spec.items is None else spec.items[shard],
        inputs=input_files(run, stage, shard),
        outputs=output_files(run, stage, shard, attempt, alike.writes) if first else (),
        timeout_ms=spec.timeout_ms,
        gang=seat,
        gpu_ids=gpus,
        runtime_hint_ms=candidate.group.runtime_ms,
        secrets=alike.secrets,
        memory_limit_bytes=alike.memory_limit_bytes,
        disk_bytes=resources.disk_bytes,
        extended=alike.extended,
        limits=role.limits,
        rules=spec.rules,
        queue=run.spec.queue,
        priority=run.spec.priority,
        remote=remote,
        container=None
        if spec.container is None
        else container_of(stage, shard, writes=first and alike.delivers),
    )


def first_completing(stage: StageRun) -> int:
    """The number of the role whose member 0 writes what a gang has in common."""
    return next(number for number, role in enumerate(stage.spec.roles) if role.completes)


def container_of(stage: StageRun, shard: int, *, writes: bool = True) -> Container | None:
    """The container of one shard: its number and item stand in the paths and URIs of files, as in those of inputs.

    Args:
        stage: The stage of the shard.
        shard: Its number.
        writes: False for gang members that deliver nothing: one member delivers, the others keep their files.
    """
    container = stage.spec.container
    if container is not None and not writes:
        container = replace(container, delivers=False, leave=(), return_code=None)
    if container is None or not stage.spec.scattered:
        return container
    inputs = tuple(
        given if given.source is None else replace(given, source=filled(given.source, stage.spec, shard))
        for given in container.inputs
    )
    outputs = tuple(
        replace(output, uri=filled(output.uri, stage.spec, shard)) for output in container.outputs
    )
    return replace(container, inputs=inputs, outputs=outputs)
