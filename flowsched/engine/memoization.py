"""Memoization: when two tasks are the same, so that the result of one can be taken for the other. Pure.

The cache key of a shard is the digest of its parts: the commands, images, declared environments and devices of its roles, its
item, its outputs, and its inputs' content. CPU, memory and disk are no parts: they change how fast a result comes, not what it
is. An input that another stage wrote is known by its uri, which names the attempt that wrote it. An input from outside is known
by the version that the run reads (`executor.datasets`), or by a digest of its content.

Source: Cromwell's call caching, https://cromwell.readthedocs.io/en/stable/cromwell_features/CallCaching/, and Nextflow's `-resume`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from flowsched.engine.data.inputs import datasets_of, is_own, uri_outside
from flowsched.workflow.run.elastic import PLACED
from flowsched.workflow.run.run import StageRun, WorkflowRun
from flowsched.workflow.run.states import TaskState
from flowsched.workflow.spec import InputSpec, RoleSpec, StageSpec, WorkflowSpec

#: Of more datasets in one input their digest is kept, not each of them: a gather may read 100,000.
_MOST_NAMED: Final = 20
_MADE_HERE: Final = "flowsched:"
#: A shard with an item has its number as a part only if its command or environment names the variable.
_NUMBER: Final = "FLOWSCHED_INDEX"

Parts = dict[str, Any]


class Known(msgspec.Struct, frozen=True):
    """The identity of an input from outside.

    Args:
        version: Which a run reads, as its dataset's name has it.
        content: A digest of it; "" = the version counts.
        why: Why it is not known by either, in words; "" = it is.
    """

    version: str = ""
    content: str = ""
    why: str = ""


_UNSEEN: Final = Known(why="it was not looked at")


class Hit(msgspec.Struct, frozen=True):
    """A task with the same cache key that has succeeded.

    Args:
        name: As people see it: "w1/align/3".
        source: The workflow that wrote the outputs: the hit may itself have taken them.
        outputs: (name, uri, bytes, value) of each.
    """

    name: str
    source: str
    outputs: tuple[tuple[str, str, int, str | None], ...]


class ShardLookup(msgspec.Struct, frozen=True):
    """The cached results for one shard.

    Args:
        shard: Its number.
        key: Its cache key; empty = it has none.
        place: See `place_of`.
        parts: JSON of the parts of the key.
        hits: Tasks with the same key, the newest first.
        why: Why there is none, in words; empty where there is.
    """

    shard: int
    key: str
    place: str
    parts: str
    hits: tuple[Hit, ...] = ()
    why: str = ""


def is_memoized(spec: WorkflowSpec, stage: StageSpec) -> bool:
    """Whether results for a stage are looked for: its document asks for it, or its workflow resumes another.

    A stage with files of its own (`files`, TES) delivers them to places outside, which the cache of results does not know.
    """
    return (stage.cache or bool(spec.resume)) and stage.container is None


def waiting_shards(stage: StageRun) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The shards that have not been looked up: those that are ready as a whole, and those whose gang goes on while members wait.

    The cache is not asked for the latter: their result is under way, of what they read when they began.
    """
    if stage.cache_checked is None or stage.uniform is not None:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    states = stage.task_state.reshape(stage.spec.width, stage.members)
    queued = states == TaskState.QUEUED
    whole = queued.all(axis=1)
    part = queued.any(axis=1) & PLACED[states].any(axis=1)
    return np.flatnonzero(whole & ~stage.cache_checked), np.flatnonzero(part & ~stage.cache_checked)


#: The identities of inputs that all shards of a stage share, by name: (part of the key, why they have none).
Shared = dict[str, tuple[Any, str]]


def parts_of(
    run: WorkflowRun,
    stage: StageRun,
    shard: int,
    known: Mapping[str, Known],
    shared: Shared | None = None,
) -> tuple[Parts, str]:
    """The parts of a shard's cache key: equal parts mean equal work.

    Args:
        run: With the outputs that its stages have published.
        stage: Of the shard.
        shard: Its number; its inputs exist.
        known: Of each uri of an input from outside.
        shared: Remembers the inputs that all shards share, for calls with the same stage and `known`.

    Returns:
        The parts; and why they make no key, in words (empty: they do).
    """
    spec = stage.spec
    parts: Parts = {
        "roles": [_role(role) for role in spec.roles],
        "outputs": [[o.name, o.path, o.role or "", o.optional, o.value] for o in spec.outputs],
    }
    if spec.items is not None:
        parts["item"] = spec.items[shard]
    if spec.scattered and (spec.items is None or _sees_number(spec)):
        parts["shard"] = shard
    inputs: dict[str, Any] = {}
    unknown = ""
    for input_spec in spec.inputs:
        found = None if shared is None else shared.get(input_spec.name)
        if found is None:
            found = _input(run, stage, input_spec, shard, known)
            if shared is not None and not is_own(input_spec):
                shared[input_spec.name] = found
        inputs[input_spec.name], why = found
        unknown = unknown or why
    parts["inputs"] = inputs
    return parts, unknown


def _input(
    run: WorkflowRun,
    stage: StageRun,
    input_spec: InputSpec,
    shard: int,
    known: Mapping[str, Known],
) -> tuple[Any, str]:
    """The identity of one input; and why it has none, in words."""
    read: list[list[str]] = []
    unknown = ""
    if input_spec.stage is None:
        uri = uri_outside(stage, input_spec, shard)
        found = known.get(uri, _UNSEEN)
        read.append(
            [uri.rstrip("/").rpartition("/")[2] if found.content else uri, found.content or found.version]
        )
        if found.why:
            read, unknown = [[uri, ""]], f"input {input_spec.name} cannot be identified: {found.why}"
    else:
        read = [[uri, ""] for uri, _ in datasets_of(run, stage, input_spec, shard)]
    shown: Any = read if len(read) <= _MOST_NAMED else [len(read), _digest(read)]
    return [input_spec.manifest, shown], unknown


def key_of(tenant: str, parts: Parts) -> str:
    """The cache key: tenants do not see each other's results."""
    return _digest([tenant, parts])


def place_of(tenant: str, workflow: str, stage: StageRun, shard: int) -> str:
    """The key of a shard over all runs of a workflow: it finds the earlier run that a miss is compared with.

    Args:
        tenant: Of the run.
        workflow: Its name.
        stage: Of the shard.
        shard: Its number.
    """
    item = stage.spec.items[shard] if stage.spec.items is not None else shard
    return _digest([tenant, workflow, stage.spec.name, item])


def encode_parts(parts: Parts) -> str:
    """Parts as JSON."""
    return json.dumps(parts, sort_keys=True, separators=(",", ":"))


def difference(run: str, now: Parts, before: Parts) -> str:
    """The differences between two shards, in words; empty where there are none.

    Args:
        run: The run of the first shard, which may read outputs of another run.
        now, before: Not modified.
    """
    found = [
        what
        for key, what in _ROLE_WORDS.items()
        if [role.get(key) for role in now["roles"]] != [role.get(key) for role in before["roles"]]
    ]
    found += [key for key in ("item", "shard", "outputs") if now.get(key) != before.get(key)]
    old, new = before["inputs"], now["inputs"]
    for name in dict.fromkeys((*new, *old)):
        if new.get(name) != old.get(name):
            found.append(_input_difference(run, name, new.get(name), old.get(name)))
    return ", ".join(dict.fromkeys(found))


_ROLE_WORDS: Final = {
    "name": "roles",
    "replicas": "replicas",
    "command": "command",
    "image": "image",
    "env": "environment",
    "secrets": "secrets",
    "devices": "devices",
}


def _role(role: RoleSpec) -> Parts:
    return {
        "name": role.name,
        "replicas": [role.replicas, role.minimum, role.completes],
        "command": list(role.command),
        "image": role.image or "",
        "env": dict(role.env),
        "secrets": dict(role.secrets),
        "devices": {"gpu_millis": role.resources.gpu_millis, **role.resources.extended},
    }


def _input_difference(run: str, name: str, now: Any, before: Any) -> str:
    if now is None or before is None:
        return f"input {name} is {'gone' if now is None else 'new'}"
    new, old = [[each for each in found[1] if isinstance(each, list)] for found in (now, before)]
    made = [uri for uri, _ in new if uri.startswith(_MADE_HERE) and [uri, ""] not in old]
    if made:
        maker, stage = made[0].removeprefix(_MADE_HERE).split("/")[:2]
        return f"input {name} ({f'made anew by {stage}' if maker == run else f'{stage} took it from {maker}/{stage}'})"
    by_content = all("/" not in uri for uri, _ in new)  # else a file that was only touched counts as changed
    if by_content != all("/" not in uri for uri, _ in old):
        ways = ("size and time", "content")
        known = f"known by its {ways[by_content]} now, by its {ways[not by_content]} before"
        return f"input {name} ({known}: `serve --cache-content` has changed)"
    if [uri for uri, _ in new] == [uri for uri, _ in old]:
        return f"{'content' if by_content else 'version (size and time, or ETag)'} of input {name}"
    return f"input {name}"


def _sees_number(spec: StageSpec) -> bool:
    texts = (text for role in spec.roles for text in (*role.command, *role.env.values()))
    return any(_NUMBER in text for text in texts) or any("{index}" in output.path for output in spec.outputs)


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
