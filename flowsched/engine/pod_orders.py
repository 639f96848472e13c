"""Launch orders from placed tasks: names, addresses, seats, devices; and the rows that they are kept in. Pure; secrets are
derived, never stored.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from flowsched.engine.backlog import fits_memory, memory_limit, memory_steps, resources_of
from flowsched.engine.data.inputs import input_files, output_files, outputs_of
from flowsched.engine.state import EngineState
from flowsched.engine.state.work import Candidate, GangSeats, pod_name
from flowsched.executor.protocol import GangSeat, OutputFile, Pod, Roster
from flowsched.values import replace
from flowsched.workflow.run.run import StageRun, WorkflowRun
from flowsched.workflow.spec import (
    EMPTY,
    Container,
    LeftFor,
    OutputSpec,
    Resources,
    RoleSpec,
    filled,
    qos_class,
)

_ENCODER: Final = msgspec.json.Encoder(enc_hook=dict)  # read-only mappings
_DECODER: Final = msgspec.json.Decoder(Pod)


class MemberOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """The member's own part of its launch order, in the member's row: some 120 bytes. Rows of the gang have the rest
    (`delta.GangOrderWrite`): one the roster, and one for each role the part that all of its members share.
    """

    shared: str = ""  #: key of the row that has the rest
    index: int = 0
    node: str = ""
    epoch: int = 0
    rank: int = 0
    role_index: int = 0
    number: int = 0
    attempt: int = 0
    shard: int = 0
    item: str | None = None
    cpu_millicores: int = 0
    memory_bytes: int = 0
    gpu_millis: int = 0
    gpu_ids: tuple[int, ...] = ()
    outputs: tuple[OutputFile, ...] = ()
    runtime_hint_ms: int | None = None
    remote: Mapping[str, str] = EMPTY


#: Key of the row with a gang's roster.
ROSTER: Final = ""
#: Fields of a Pod, and of its GangSeat, that a MemberOrder has under the same name.
_OWN: Final = tuple(name for name in MemberOrder.__struct_fields__ if name in Pod.__struct_fields__)
_OWN_SEAT: Final = ("rank", "role_index", "number")
_MEMBER: Final = msgspec.json.Decoder(MemberOrder)
_ROSTER: Final = msgspec.json.Decoder(Roster)
_NO_MEMBERS: Final = Roster(())


def encode_pod(pod: Pod) -> bytes:
    """The launch order of a task that is alone, as its row keeps it."""
    return _ENCODER.encode(pod)


def encode_member(pod: Pod, shared: str) -> bytes:
    """The launch order of a gang's member, as its row keeps it beside the row `shared`."""
    own = {name: getattr(pod, name) for name in _OWN} | {name: getattr(pod.gang, name) for name in _OWN_SEAT}
    return _ENCODER.encode(MemberOrder(shared, **own))


def encode_shared(pod: Pod) -> tuple[str, bytes]:
    """The row for the common part of a gang's members of one role: its key, and its text without the gang's secret.

    The key is a digest of the text: rows of members that started earlier keep their meaning.
    """
    pod = _with_own(structs.replace(pod, name=""), MemberOrder(), _NO_MEMBERS)
    text = _ENCODER.encode(pod)
    return hashlib.blake2b(text, digest_size=6).hexdigest(), text


def encode_roster(roster: Roster) -> bytes:
    """The row for a gang's roster, whose key is `ROSTER`."""
    return _ENCODER.encode(roster)


def decode_pods(
    rows: Iterable[tuple[str, int, bytes]], shared: Mapping[tuple[str, int, int, str], bytes]
) -> list[Pod]:
    """Launch orders as they were kept.

    Args:
        rows: Workflow, number of the stage, and the result of `encode_pod` or `encode_member`.
        shared: Workflow, number of the stage, shard, key -> the result of `encode_shared` or `encode_roster`.
    """
    rosters = {key[:3]: _ROSTER.decode(text) for key, text in shared.items() if key[3] == ROSTER}
    common = {key: _DECODER.decode(text) for key, text in shared.items() if key[3] != ROSTER}
    pods = []
    for workflow, stage, raw in rows:
        if raw.startswith(b'{"shared":'):
            own = _MEMBER.decode(raw)
            gang = workflow, stage, own.shard
            pod = _with_own(common[*gang, own.shared], own, rosters[gang])
            name = pod_name(workflow, pod.stage, pod.index, pod.attempt)
            pods.append(structs.replace(pod, name=name))
        else:
            pods.append(_DECODER.decode(raw))
    return pods


def _with_own(pod: Pod, own: MemberOrder, roster: Roster) -> Pod:
    """A member's launch order with all that is its own taken from `own`."""
    assert pod.gang is not None
    seat = replace(pod.gang, token="", roster=roster, **{name: getattr(own, name) for name in _OWN_SEAT})
    return structs.replace(pod, gang=seat, **{name: getattr(own, name) for name in _OWN})


def seats(
    state: EngineState, candidate: Candidate, gang: GangSeats, tasks: NDArray[np.int64]
) -> dict[int, GangSeat]:
    """The seats of members that start now. `gang`: with them, and all that began before."""
    stage = candidate.stage
    everyone = np.array(gang.members) + int(tasks[0]) // stage.members * stage.members
    roles = [role.name for role in stage.spec.roles]
    names = [roles[number] for number in stage.role_of[list(gang.members)].tolist()]
    roster = Roster.of(zip(names, gang.numbers(), strict=True))
    token = gang_token(state, candidate.run, stage, everyone)
    generation = int(stage.attempt[everyone].min())
    wanted = set(tasks.tolist())
    return {
        task: GangSeat(*member[:2], rank, member.number, roster, token, generation=generation)
        for rank, (task, member) in enumerate(zip(everyone.tolist(), roster.members(), strict=True))
        if task in wanted
    }


def gang_token(state: EngineState, run: WorkflowRun, stage: StageRun, tasks: NDArray[np.int64]) -> str:
    """A secret shared by the members of one generation of one gang (one that came back alone is ahead of it)."""
    shard, generation = int(tasks[0]) // stage.members, int(stage.attempt[tasks].min())
    words = f"{run.id}/{stage.spec.name}/{shard}/{generation}".encode()
    return hmac.new(state.policy.secret, words, hashlib.sha256).hexdigest()


class Likeness(msgspec.Struct, frozen=True):
    """The common part of all pods of one role of one group. Its mappings are theirs too, and only read."""

    number: int
    role: RoleSpec
    resources: Resources
    memory_limit_bytes: int | None
    qos: int
    env: dict[str, str]
    secrets: dict[str, str]
    extended: dict[str, int]
    first: int  #: number of its replica 0 among the members of a group
    writes: tuple[OutputSpec, ...]  #: the outputs of the stage that its replica 0 writes
    delivers: bool  #: its replica 0 delivers the common outputs of the gang's containers


#: By stage (its id), role, memory steps and what is read where that matters. For one round: stages stay alive meanwhile.
Likenesses = dict[tuple[int, int, int, tuple[int, ...]], Likeness]


def likeness(state: EngineState, candidate: Candidate, number: int, known: Likenesses) -> Likeness:
    """The common part of all pods of a role of a group. `number`: of the role; `known`: earlier results of this function."""
    stage = candidate.stage
    steps = memory_steps(stage, candidate.tasks[candidate.at(number)])
    reads = candidate.group.reads if fits_memory(state, candidate.run, stage) else ()
    key = id(stage), number, steps, reads
    found = known.get(key)
    if found is None:
        role = stage.spec.roles[number]
        resources = resources_of(state, candidate.run, stage, number, steps, reads)
        limit = memory_limit(stage, role, steps, resources.memory_bytes)
        found = known[key] = Likeness(
            number=number,
            role=role,
            resources=resources,
            memory_limit_bytes=limit,
            qos=int(qos_class(role.resources, role.limits)),
            env=dict(role.env),
            secrets=dict(role.secrets),
            extended=dict(resources.extended),
            first=int(np.argmax(stage.role_of == number)) if stage.members > 1 else 0,
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
    promoted: tuple[int, ...] = (),
    pipeline: str = "",
    after: int = 0,
) -> Pod:
    """The launch order of one task on one node. `alike`: of its role."""
    run, stage = candidate.run, candidate.stage
    spec, members = stage.spec, stage.members
    shard, member = task, 0
    if members > 1:
        shard, member = divmod(task, members)
    role, resources = alike.role, alike.resources
    attempt = stage.attempt.item(task)
    first = member == alike.first
    is_fitted = resources.memory_bytes < role.resources.memory_bytes
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
        timeout_ms=spec.timeout_ms or default_timeout_ms(state, run),
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
        promoted=promoted,
        pipeline=pipeline,
        after=after,
        is_last=stage.charged.item(task) + 1 >= spec.retry.attempts,
        is_fitted=is_fitted,
        container=None
        if spec.container is None
        else container_of(stage, shard, writes=first and alike.delivers, retried=is_fitted),
    )


def default_timeout_ms(state: EngineState, run: WorkflowRun) -> int | None:
    """The timeout of the run's tasks that state none; None = they have none."""
    own = state.policy.profile.of(run.spec.queue)
    return own.default_timeout_ms or own.max_timeout_ms or None


def first_completing(stage: StageRun) -> int:
    """The number of the role whose member 0 writes the common outputs of a gang."""
    return next(number for number, role in enumerate(stage.spec.roles) if role.completes)


def container_of(
    stage: StageRun, shard: int, *, writes: bool = True, retried: bool = False
) -> Container | None:
    """The container of one shard: its number and item stand in the paths and URIs of files, as in those of inputs.

    Args:
        stage: The stage of the shard.
        shard: Its number.
        writes: False for gang members that deliver nothing: one member delivers, the others keep their files.
        retried: The attempt is followed by another if it runs out of memory: no file says to its client that it did.
    """
    container = stage.spec.container
    if container is not None and retried:
        leave = tuple(left for left in container.leave if left.reason is not LeftFor.OOM_KILLED)
        container = replace(container, leave=leave)
    if container is not None and not writes:
        container = replace(container, delivers=False, leave=(), return_code=None)
    if container is None or not stage.spec.scattered:
        return container
    inputs = tuple(
        file if file.source is None else replace(file, source=filled(file.source, stage.spec, shard))
        for file in container.inputs
    )
    outputs = tuple(
        replace(output, uri=filled(output.uri, stage.spec, shard)) for output in container.outputs
    )
    return replace(container, inputs=inputs, outputs=outputs)
