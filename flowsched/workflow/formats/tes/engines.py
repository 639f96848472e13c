"""The engine that sent a TES task, and what the task says of its run: one recognizer for each engine. Pure.

TES carries no DAG, but engines leave traces of theirs in their tasks. A recognizer reads them: the kind of the task, its run, its
node with shard and attempt. docs/engines.md has the same as a table. A task that no recognizer knows is a workflow of its own.
"""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from flowsched.values import replace
from flowsched.workflow.formats.tes.task import Input, Task
from flowsched.workflow.run.states import RunState
from flowsched.workflow.run_tasks import LONGEST, cromwell_place, shard_number
from flowsched.workflow.spec import Call

#: Tags that name a run, where the engine names none itself; the first that is there counts.
RUN_TAGS: Final = ("workflow_id", "workflow_run_id", "run_id", "workflow", "workflow_name")
#: Tags that name a node of it, and the kind of its tasks.
NODE_TAGS: Final = ("step", "node", "rule", "process", "job_name")
#: The source of calls that Cromwell makes.
CROMWELL: Final = "cromwell"
_MOST_AFTER: Final = 1_000
#: A run and a task leave room for `~2` and `#2`.
_LONGEST: Final = LONGEST - 16
_DESCRIPTION: Final = re.compile(
    r"[^:]*:BackendJobDescriptorKey_CommandCallNode_(.+):(-1|[0-9]{1,9}):([0-9]{1,6})"
)
_PROPERTIES: Final = re.compile(r"^# properties = (\{.*\})\s*$", re.MULTILINE)
_SOURCES: Final = re.compile(r"snakemake-workflow-sources\.([0-9a-f]{16,})\.tar")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ATTEMPT: Final = re.compile(r" --attempt ([0-9]{1,6}) ")
_SNAKEJOB: Final = re.compile(r"snakejob\.(.+)\.[^.]+\.sh")
#: The script by which Nextflow wraps a task, in the task's own folder below the work folder.
_WRAPPER: Final = re.compile(r"(.+)/[0-9a-f]{2}/[0-9a-f]{30}/\.command\.run")
_NEXTFLOW_NAME: Final = re.compile(r"(\S+)(?: \((.*)\))?", re.DOTALL)
#: Sprocket's name of a task: the calls and shards around it, and 12 random characters.
_SPROCKET_NAME: Final = re.compile(r"([A-Za-z].*)-[0-9A-Za-z]{12}")
#: Toil's name of a job: 'class' unit id-in-the-job-store vVERSION.
_TOIL_NAME: Final = re.compile(r"'([^']+)'(?: (.+))? (\S+) v([0-9]{1,6})")
_TOIL_CONTEXT: Final = re.compile(rb"--context ([A-Za-z0-9+/]+=*)")
_TOIL_UUID: Final = re.compile(_UUID.pattern.encode())
#: cwltool names the second task of a step `step_2`.
_CWL_NAME: Final = re.compile(r"(.+)_([1-9][0-9]{0,8})")
#: cwltool draws the folder of all containers of one process at random. A document may name one, as `/output`: a word. One of 20
#: random folders looks like a word, too.
_CWL_FOLDER: Final = re.compile(r"/((?=.[a-z]*[A-Z])(?=.*[a-z])[A-Za-z]{6})")


class Identity(msgspec.Struct, frozen=True):
    """The kind and the run of a task, as the task itself names them.

    Args:
        kind: Tasks of the same kind are expected to take as long, in whatever run.
        call: Its place in its run; None = it names no run.
        reused: Whether a later run of the same engine may have the same `call.run`.
    """

    kind: str
    call: Call | None = None
    reused: bool = False


class RunSoFar(NamedTuple):
    """A run, before one more task of it comes.

    Args:
        reported: Whether its end was reported.
        live: Whether a task of it waits or runs.
        ended_ms: When the last of its tasks ended; 0 = none has.
        tries: The states of the last tries of the task, and of those beside it, by task.
    """

    reported: bool
    live: bool
    ended_ms: int
    tries: Mapping[str, RunState]


#: After the text of a run, before the number of its repetition; after a task, before the number of the one beside it.
REPEATED: Final = "~"
BESIDE: Final = "#"
#: A run that no task has lived in for so long is over. Engines send the next task some seconds after the last has ended; twice
#: as long, and a repeated run is more often shown as one with the first.
RESTS_MS: Final = 3_600_000
#: Where an engine numbers no tries, a task is sent again by a repeated run only after so long without a living task. Before that,
#: it is the next of several equal tasks of one run.
EQUAL_MS: Final = 60_000


def repetition(text: str, run: str, mark: str = REPEATED) -> int:
    """The number of a run among those of the same text, or of a task (`BESIDE`), from 1; 0 if it has another text."""
    number = run.removeprefix(text + mark)
    return 1 if run == text else int(number) if number != run and re.fullmatch("[0-9]{1,9}", number) else 0


def continued(call: Call, run: str, so_far: RunSoFar, now_ms: int, following: int, beside: int = 0) -> Call:
    """A call as one of the run that goes on, or of the next one; as a retry of a task, or as one beside it.

    A run is over when its end was reported, when it rests for `RESTS_MS`, or when nothing of it lives and the call is the first
    try of a task that has succeeded in it. An engine that numbers no tries may send a task that differs from another one in
    nothing that is known: it is a retry where a try has failed, else another task. Its run is over only after `EQUAL_MS`.

    Args:
        call: As the task itself says it.
        run: The newest run of the same text.
        so_far: That run.
        now_ms: Wall-clock ms.
        following: The number of the next run of the same text.
        beside: The highest number of a task beside this one, of those that are being accepted.
    """
    rested_ms = 0 if so_far.live else now_ms - so_far.ended_ms
    succeeded = call.attempt <= 1 and so_far.tries.get(call.task) is RunState.SUCCEEDED
    done = not so_far.live and succeeded and (call.attempt or rested_ms >= EQUAL_MS)
    if so_far.reported or rested_ms >= RESTS_MS or done:
        return replace(call, run=f"{call.run}{REPEATED}{following}")
    call = replace(call, run=run)
    if call.attempt or not so_far.tries:
        return call
    over = (RunState.FAILED, RunState.CANCELLED)
    failed = next((task for task, state in so_far.tries.items() if state in over), None)
    highest = max(beside, *(repetition(call.task, task, BESIDE) for task in so_far.tries))
    return replace(call, task=failed or f"{call.task}{BESIDE}{highest + 1}")


class Found(msgspec.Struct, frozen=True):
    """The findings of a recognizer; the fields are those of `Call` and `Identity`. An empty node is the kind."""

    kind: str = ""  #: "" = it does not say
    run: str = ""  #: "" = none is named
    run_name: str = ""
    node: str = ""
    shard: int | None = None
    attempt: int = 0
    task: str = ""
    after: tuple[str, ...] = ()
    reused: bool = False


def identify(task: Task, run: str = "") -> Identity:
    """Read the kind and the run of a task from the task itself.

    Args:
        task: As it was sent.
        run: The run that the endpoint names, to which the task was sent; it counts before the one that the task names.
    """
    source, found = next((name, found) for name, recognize in ENGINES if (found := recognize(task)))
    return _identity(task, source, replace(found, run=run or found.run))


def _identity(task: Task, source: str, found: Found) -> Identity:
    first = task.executors[0]
    kind = found.kind or " ".join((first.image, *first.command[:1]))
    node = found.node or found.kind
    if not found.run.strip() or not node.strip():
        return Identity(kind)
    call = Call(
        found.run[:_LONGEST], found.run_name[:LONGEST], source, node[:LONGEST],
        found.shard, found.attempt, found.after, found.task[-_LONGEST:],
    )  # fmt: skip
    return Identity(kind, call, found.reused)


def _tags(task: Task) -> dict[str, str]:
    """The tags of a task, their names in small letters."""
    return {key.lower(): value for key, value in task.labels.items()}


def _tag(tags: Mapping[str, str], names: tuple[str, ...]) -> str:
    """The first tag of some names that says something."""
    return next((tags[name] for name in names if tags.get(name, "").strip()), "")


def _digest(*values: object) -> str:
    return hashlib.sha256(msgspec.json.encode(values, order="deterministic")).hexdigest()


def _cromwell(task: Task) -> Found | None:
    """A call of Cromwell's TES backend, known by its script: by the folders of its calls, else by its description."""
    tags = task.labels
    script = next((each for each in task.inputs or () if _is_script(each)), None)
    if script is None or not tags.get("workflow_id"):
        return None
    run = tags.get("root_workflow_id") or tags["workflow_id"]
    place = cromwell_place(script.path, run) or cromwell_place(script.url or "", run)
    match = _DESCRIPTION.fullmatch(task.description or "")
    attempt = max(1, int(match[3])) if match else 1
    name = match[1] if match else task.name or ""
    if place is None:
        shard = int(match[2]) if match and int(match[2]) >= 0 else None
        known = f"{tags['workflow_id']}/{name}/{match[2]}" if match else ""
        return Found(name, run, name.partition(".")[0], name, shard, attempt if match else 0, known)
    return Found(
        kind=name or place.node,
        run=run,
        run_name=place.run_name,
        node=place.node,
        shard=place.shard,
        attempt=attempt if match else place.attempt,
        task=place.task,
        after=_after(task, run, place.node),
    )


def _is_script(task_input: Input) -> bool:
    return task_input.name == "commandScript" and (task_input.description or "").endswith(".commandScript")


def _after(task: Task, run: str, node: str) -> tuple[str, ...]:
    """The nodes that have the inputs below their folders, each once, in the order of the inputs."""
    nodes: dict[str, None] = {}
    for task_input in task.inputs or ():
        place = cromwell_place(task_input.url or "", run)
        if place is not None and place.node != node:
            nodes[place.node] = None
    return tuple(nodes)[:_MOST_AFTER]


def _snakemake(task: Task) -> Found | None:
    """A job of Snakemake's TES plugin: its run is known by the sources that all its jobs unpack."""
    found, tagged = snakemake_job(task), _tag(_tags(task), RUN_TAGS)
    if found is None:
        named = _SNAKEJOB.fullmatch(task.name or "")
        return None if named is None else Found(named[1], tagged, tagged)
    text, properties = found
    sources = _SOURCES.search(text)
    node = properties.get("rule") or properties.get("groupid")
    if not isinstance(node, str):
        return None
    attempt = _ATTEMPT.search(text)
    return Found(
        kind=node,
        run=f"snakemake-{sources[1][:16]}" if sources else tagged,
        run_name="snakemake" if sources else tagged,
        shard=_snakemake_shard(properties),
        attempt=max(1, int(attempt[1])) if attempt else 1,
        task=_snakemake_task(properties),
        reused=True,
    )


def _snakemake_task(properties: Mapping[str, Any]) -> str:
    """Which job of its rule: its wildcards and output files; of a group, the UUID that Snakemake makes of those of its jobs.

    Not the `jobid`: with other targets, Snakemake numbers the jobs of the same sources in another way.
    """
    known = (
        [properties.get("jobid")]
        if properties.get("type") == "group"
        else [properties.get("wildcards"), properties.get("output")]
    )
    return _digest(*known)[:32]


def _snakemake_shard(properties: Mapping[str, Any]) -> int | None:
    """Which job of its rule: the `jobid` that Snakemake's own log names; None of a rule without wildcards, which has one job.

    Snakemake numbers the jobs of a DAG, those included that have nothing to do, in an order that the sources alone decide: a
    job has the same number when the run is started again. A group's `jobid` is a UUID of its rules and wildcards; its last
    31 bits are the number.
    """
    ident = properties.get("jobid")
    if properties.get("type") == "group" and isinstance(ident, str):
        return int(ident[-8:], 16) % (1 << 31) if _UUID.fullmatch(ident) else None
    return ident if properties.get("wildcards") and type(ident) is int and 0 <= ident < 1 << 31 else None


def snakemake_job(task: Task) -> tuple[str, Mapping[str, Any]] | None:
    """(job script, its properties) of a job of Snakemake; None if the task is none."""
    for task_input in task.inputs or ():
        line = (
            _PROPERTIES.search(task_input.content)
            if task_input.content and "# properties = " in task_input.content
            else None
        )
        if line is None:
            continue
        try:
            properties = msgspec.json.decode(line[1])
        except msgspec.DecodeError:
            continue
        if isinstance(properties, dict):
            return task_input.content or "", properties
    return None


def files_of(task: Task) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(inputs, outputs) as names that mean the same file in every task of its run."""
    reads = [each.url for each in task.inputs or () if each.url]
    writes = [each.url for each in task.outputs or ()]
    job = snakemake_job(task)
    if job is not None:
        reads += _texts(job[1].get("input"))
        writes += _texts(job[1].get("output"))
    return tuple(map(_same, reads)), tuple(map(_same, writes))


def _texts(value: object) -> Iterator[str]:
    yield from (each for each in value if isinstance(each, str)) if isinstance(value, list) else ()


def _same(url: str) -> str:
    return url.removeprefix("file://").rstrip("/") or "/"


def _nextflow(task: Task) -> Found | None:
    """A task of Nextflow's nf-ga4gh: `process (tag)`, in a folder of its own below the work folder.

    Neither its name nor its tags tell a retry from another task with the same `tag`. A retry reads and writes the same files.
    """
    places = (
        _WRAPPER.fullmatch(each.url or "") for each in task.inputs or () if each.path.endswith(_WRAPPED)
    )
    place = next(filter(None, places), None)
    name = _NEXTFLOW_NAME.fullmatch(task.name or "")
    if place is None or name is None:
        return None
    own, tag, tags = place[0].removesuffix(_WRAPPED), name[2] or "", _tags(task)
    reads = sorted(
        (each.path, each.url or "") for each in task.inputs or () if not (each.url or "").startswith(own)
    )
    files = _digest(tag, reads, sorted(each.path for each in task.outputs or ()))[:12]
    run = _tag(tags, RUN_TAGS)
    return Found(
        kind=name[1],
        run=run or f"nextflow-{_digest(place[1])[:16]}",
        run_name=tags.get("workflow_name") or run or "nextflow",
        shard=int(tag) if tag.isascii() and tag.isdecimal() and len(tag) < 10 else None,
        task=f"{tag} {files}".strip(),
        reused=True,
    )


_WRAPPED: Final = "/.command.run"


def _sprocket(task: Task) -> Found | None:
    """A task of Sprocket. All tasks of one process have its random name at the beginning of a tag.

    The name of a task has dashes between the calls and shards around it: `inner-0--make-2` is shard 2 of `make` in shard 0 of
    `inner`. No name of WDL has a dash in it.
    """
    process = task.labels.get("crankshaft-task-group", "").rsplit("-", 2)
    if len(process) < 3:
        return None
    name = _SPROCKET_NAME.fullmatch(task.name or "")
    if name is None:
        return Found(run=f"sprocket-{process[0]}", run_name="sprocket", node=task.name or "task")
    parts = name[1].split("-")
    return Found(
        kind="-".join(part for part in parts if not _is_number(part)),
        run=f"sprocket-{process[0]}",
        run_name="sprocket",
        shard=shard_number([int(part) for part in parts if _is_number(part)]),
        task="/".join(f"shard-{part}" if _is_number(part) else f"call-{part}" for part in parts),
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _toil(task: Task) -> Found | None:
    """A job of Toil: its first input is the job store, its name ends with its id there and with its version, which a retry raises.

    The order to the worker has the id of the workflow, pickled and packed twice: a later run in the same job store has another
    one. It is searched as bytes, since to unpickle is to run what a client sends. The folders before the id may have a UUID, too.

    The numbers in the job's unit are shards. A tool that has no file of its own has a new UUID in each run.
    """
    store = next(iter(task.inputs or ()), None)
    name = _TOIL_NAME.fullmatch(task.name or "")
    if store is None or name is None or not "".join(task.executors[0].command[:1]).startswith("_toil"):
        return None
    parts = [part for part in (name[2] or "").split(".") if not part.startswith("_:")]
    url, workflow = (store.url or "").rstrip("/"), _toil_workflow(task.executors[0].command)
    return Found(
        kind=".".join(part for part in parts if not _is_number(part)) or name[1],
        run=f"toil-{workflow or _digest(url)[:16]}",
        run_name=url.rpartition("/")[2] or "toil",
        shard=shard_number([int(part) for part in parts if _is_number(part)]),
        attempt=max(1, int(name[4])),
        task=name[3],
        reused=not workflow,
    )


def _toil_workflow(command: Sequence[str]) -> str:
    """The id of Toil's workflow in an order to a worker; "" if none is found."""
    try:
        order = b64decode("".join(command[1:2]), validate=True)
        context = _TOIL_CONTEXT.search(order)
        found = list(_TOIL_UUID.finditer(b64decode(context[1], validate=True))) if context else []
    except ValueError:
        return ""
    return found[-1][0].decode() if found else ""


def _cwl_tes(task: Task) -> Found | None:
    """A task of cwl-tes: all tasks of one process have the same random folder, and a number after the name of their step."""
    document = _tags(task).get("cwldocumentid", "").partition("#")[0]
    if not document or not task.name:
        return None
    folder = _CWL_FOLDER.fullmatch(task.executors[0].workdir or "")
    name = _CWL_NAME.fullmatch(task.name)
    again = name is not None and int(name[2]) > 1
    return Found(
        kind=name[1] if name is not None and again else task.name,
        run=f"cwl-tes-{folder[1] if folder else _digest(document)[:16]}",
        run_name=document.rpartition("/")[2],
        shard=int(name[2]) - 1 if name is not None and again else None,
        task=task.name,
        reused=True,
    )


def _tagged(task: Task) -> Found:
    """A task of any other client, which may name its run by a tag."""
    tags = _tags(task)
    run, step = _tag(tags, RUN_TAGS), _tag(tags, NODE_TAGS)
    return Found(step, run, tags.get("workflow_name") or run, step or task.name or "task")


#: The engines by the sources of their calls. The first that knows a task counts; the last knows every one.
ENGINES: Final[tuple[tuple[str, Callable[[Task], Found | None]], ...]] = (
    (CROMWELL, _cromwell),
    ("snakemake", _snakemake),
    ("nextflow", _nextflow),
    ("sprocket", _sprocket),
    ("toil", _toil),
    ("cwl-tes", _cwl_tes),
    ("tes", _tagged),
)
