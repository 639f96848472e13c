"""Writes of API processes: submissions and commands. Nothing here needs to lead."""

from __future__ import annotations

import zlib
from collections.abc import Container, Mapping, Sequence, Set
from typing import Any, Final, NamedTuple

import msgspec
from sqlalchemy import text

from flowsched.engine.delta import EventRow
from flowsched.errors import Conflict, NotFound
from flowsched.store import tables
from flowsched.store.bulk import encode, insert, select_among, tidy, tidy_text, update
from flowsched.store.statements import Statements
from flowsched.workflow.run.states import RunState, TaskState
from flowsched.workflow.spec import Call

#: zlib's middle: a workflow of 1,000 stages shrinks about tenfold in a few milliseconds.
_COMPRESSION: Final = 6


class TesTask(msgspec.Struct, frozen=True):
    """The document of a TES client, stored beside the workflow that it becomes."""

    name: str
    tags: Mapping[str, str]
    body: bytes  #: compressed JSON


class Repeats(msgspec.Struct, frozen=True):
    """For how long a key stands for the workflow it was first used for. Without such a rule it does for ever.

    A workflow that lives and is older than `since_ms` counts if `while_live`. One that has ended counts if it is younger and its
    sender has not heard of it. A client that asks about a task has its id, so it sends the same task again on purpose. So does an
    engine after its loss, which has cancelled its tasks.
    """

    since_ms: int
    while_live: bool
    heard_of: Container[str] = frozenset()


class Submission(msgspec.Struct, frozen=True):
    """A workflow to be accepted."""

    id: str
    name: str
    queue: str
    priority: int
    labels: Mapping[str, str]
    spec: bytes  #: the raw JSON document
    stages: Sequence[tuple[str, int, int]]  #: name, width (shards), members of each shard
    now_ms: int
    idempotency_key: str | None = None
    body_hash: str = ""
    tenant: str = ""  #: keys of one tenant never meet those of another
    owner: str = ""
    call: Call | None = None  #: of which run it is a call, and which
    kind: str = ""  #: as in its document; empty = its name
    tes: TesTask | None = None
    repeats: Repeats | None = None


class Submitting(NamedTuple):
    """A submission with its document as it will be stored."""

    submission: Submission
    stored: bytes


class Submitted(msgspec.Struct, frozen=True):
    """The outcome of a submission. Not `created`: the same request was accepted before, under this id."""

    workflow_id: str
    created: bool
    seq: int


class Command(msgspec.Struct, frozen=True):
    """Something a user wants of a workflow: cancel, pause, resume, retry …; the leader carries it out."""

    workflow_id: str
    kind: str
    body: Mapping[str, Any] = msgspec.field(default_factory=dict)
    now_ms: int = 0


def compress(document: bytes) -> bytes:
    """The document as it is stored.

    A small one gets small tables: zlib's usual 256 KiB empty the caches of the processor, which costs more than the compression.
    """
    window = min(max(len(document).bit_length(), 9), zlib.MAX_WBITS)
    level = _COMPRESSION if window == zlib.MAX_WBITS else 1
    packer = zlib.compressobj(level, zlib.DEFLATED, window, window - 7)
    return packer.compress(document) + packer.flush()


def allocate_numbers(connection: Statements, name: str, count: int) -> int:
    """The first of `count` new numbers. Until the commit no other transaction can take any, so they follow
    the order of commits.
    """
    result = connection.execute(_ALLOCATE, {"name": name, "count": count})
    return int(result.scalar_one()) - count + 1


_ALLOCATE: Final = text(
    "INSERT INTO counters (name, value) VALUES (:name, :count) "
    "ON CONFLICT (name) DO UPDATE SET value = counters.value + excluded.value RETURNING value"
)

_SUBMITTED_COLUMNS: Final = [
    "id",
    "seq",
    "name",
    "queue",
    "priority",
    "labels",
    "state",
    "tenant",
    "owner",
    "created_ms",
    "stages",
    "tasks",
    "spec_bytes",
    "run",
    "node",
    "task",
    "kind",
    "shard",
    "call_attempt",
    "after",
    "spec",
]


class Requests:
    """The statements for submissions and commands, for one kind of database."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._keys = insert(
            kind,
            tables.idempotency,
            ["tenant", "key", "body_hash", "workflow_id", "created_ms"],
            "ON CONFLICT DO NOTHING",
            returning="tenant, key",
        )
        self._workflows = insert(
            kind, tables.workflows, _SUBMITTED_COLUMNS, "ON CONFLICT DO NOTHING", returning="id"
        )
        self._stages = insert(
            kind, tables.stages, ["workflow_id", "stage", "name", "state", "width", "members", "counts"]
        )
        self._runs = insert(
            kind,
            tables.runs,
            ["id", "seq", "name", "source", "queue", "labels", "created_ms"],
            "ON CONFLICT DO NOTHING",
        )
        self._tes = insert(kind, tables.tes_tasks, ["id", "seq", "created_ms", "name", "tags", "body"])
        self._renew = update(
            kind,
            tables.idempotency,
            {"workflow_id": "{new}", "body_hash": "{new}", "created_ms": "{new}"},
            {"tenant": "tenant", "key": "key", "earlier": "workflow_id"},
        )
        self._commands = insert(kind, tables.commands, ["id", "workflow_id", "kind", "body", "at_ms"])
        same = {"id": "id"}
        self._cancel = update(kind, tables.workflows, {"cancel_requested": "{new}"}, same)
        self._pause = update(kind, tables.workflows, {"paused": "{new}"}, same)

    def submit(
        self, connection: Statements, submissions: Sequence[Submitting]
    ) -> tuple[list[Submitted | Conflict], list[EventRow]]:
        """Write submissions (each with its compressed document) and return the outcome of each.

        Raises:
            Conflict: An id is taken: the whole transaction must be rolled back.
        """
        if not submissions:
            return [], []
        firsts = _first_of_each_key(submissions)
        taken = self._taken_keys(connection, firsts)
        new = [
            Submitting(submission, spec)
            for submission, spec in submissions
            if submission.idempotency_key is None
            or (_key(submission) not in taken and firsts[_key(submission)] is submission)
        ]
        numbers = self._insert(connection, new)
        known = {key: (first.body_hash, first.id, numbers.get(first.id, 0)) for key, first in firsts.items()}
        known |= taken
        created = {id(submission) for submission, _ in new}
        outcomes: list[Submitted | Conflict] = [
            Submitted(submission.id, True, numbers[submission.id])
            if id(submission) in created
            else _same_or_conflict(submission, *known[_key(submission)])
            for submission, _ in submissions
        ]
        return outcomes, [_submitted_event(submission) for submission, _ in new]

    def is_repeat(self, connection: Statements, submission: Submission) -> bool:
        """Whether its key stands for a workflow already, so that accepting it again makes none."""
        key = _key(submission)
        if submission.idempotency_key is None:
            return False
        holder = (self._holders(connection, {key})).get(key)
        return holder is not None and not _is_over(submission, holder)

    def _taken_keys(
        self, connection: Statements, firsts: Mapping[tuple[str, str], Submission]
    ) -> dict[tuple[str, str], tuple[str, str, int]]:
        """Claim keys. Returns the keys that a submission holds already, with body hash, workflow and its number.

        In order of the keys, so that two processes that claim the same ones wait instead of deadlocking.
        """
        rows = [
            (*key, submission.body_hash, submission.id, submission.now_ms)
            for key, submission in sorted(firsts.items())
        ]
        claimed = {(row.tenant, row.key) for row in self._keys.fetch(connection, rows)}
        wanted = firsts.keys() - claimed
        taken: dict[tuple[str, str], tuple[str, str, int]] = {}
        while wanted:
            there = self._holders(connection, wanted)
            over = [key for key in sorted(wanted) if key in there and _is_over(firsts[key], there[key])]
            renewed = [key for key in over if self._renews(connection, firsts[key], there[key])]
            # A key that was over and was not renewed now belongs to a faster process: look again.
            settled = wanted - set(over)
            taken |= {key: there[key][:3] if key in there else ("", "", 0) for key in settled}
            wanted = wanted - settled - set(renewed)
        return taken

    def _holders(self, connection: Statements, keys: Set[tuple[str, str]]) -> dict[tuple[str, str], Any]:
        """The row of each key: body hash, workflow, its number, its state, when the key was used, whether a user cancelled it."""
        found = select_among(
            connection,
            self._kind,
            "SELECT i.tenant, i.key, i.body_hash, i.workflow_id, w.seq, w.state, i.created_ms, w.cancel_requested "
            "FROM idempotency i LEFT JOIN workflows w ON w.id = i.workflow_id WHERE",
            "i.key",
            {key for _, key in keys},
        )
        return {
            (row.tenant, row.key): (
                *(row.body_hash, row.workflow_id, row.seq or 0),
                *(row.state, row.created_ms, row.cancel_requested),
            )
            for row in found
        }

    def _renews(self, connection: Statements, submission: Submission, holder: Any) -> bool:
        """Give a key that is over to a new workflow; False if another process was faster."""
        now = (submission.id, submission.body_hash, submission.now_ms)
        return self._renew.run(connection, [(*now, *_key(submission), holder[1])]) == 1

    def _insert(self, connection: Statements, new: Sequence[Submitting]) -> dict[str, int]:
        """Insert workflows and their stages; return each one's number.

        Raises:
            Conflict: An id is taken.
        """
        if not new:
            return {}
        first = allocate_numbers(connection, "workflow", len(new))
        numbers = {submission.id: first + place for place, (submission, _) in enumerate(new)}
        rows = [_workflow_row(submission, spec, first + n) for n, (submission, spec) in enumerate(new)]
        inserted = {row.id for row in self._workflows.fetch(connection, tidy(rows, 2, 3))}
        if len(inserted) < len(new):
            taken = [s.id for s, _ in new if s.id not in inserted] or ["one of this batch"]
            raise Conflict(f"there is a workflow {taken[0]} already")
        stages = [
            (submission.id, number, name, RunState.PENDING.value, width, members, _pending(width * members))
            for submission, _ in new
            for number, (name, width, members) in enumerate(submission.stages)
        ]
        self._stages.run(connection, stages)
        self._runs.run(connection, _first_of_each_run(new, numbers))
        self._tes.run(
            connection,
            [
                (s.id, numbers[s.id], s.now_ms, tidy_text(s.tes.name), encode(s.tes.tags), s.tes.body)
                for s, _ in new
                if s.tes is not None
            ],
        )
        return numbers

    def command(self, connection: Statements, commands: Sequence[Command]) -> list[int | NotFound]:
        """Write commands, set the flags they stand for, and return their numbers in the order of commits."""
        if not commands:
            return []
        names = {command.workflow_id for command in commands}
        found = select_among(connection, self._kind, "SELECT id FROM workflows WHERE", "id", names)
        there = {row.id for row in found}
        good = [command for command in commands if command.workflow_id in there]
        self._flag(connection, good)
        numbers = iter(range(0))
        if good:
            first = allocate_numbers(connection, "command", len(good))
            numbers = iter(range(first, first + len(good)))
        outcomes: list[int | NotFound] = [
            next(numbers)
            if c.workflow_id in there
            else NotFound(f"there is no workflow with the id {c.workflow_id}")
            for c in commands
        ]
        rows = [
            (number, c.workflow_id, c.kind, encode(c.body), c.now_ms)
            for number, c in zip(outcomes, commands, strict=True)
            if isinstance(number, int)
        ]
        self._commands.run(connection, rows)
        return outcomes

    def _flag(self, connection: Statements, commands: Sequence[Command]) -> None:
        """Set `cancel_requested` (for ever) and `paused` (as last ordered), workflows in order of their ids."""
        cancelled = {command.workflow_id for command in commands if command.kind == "cancel"}
        self._cancel.run(connection, [(True, name) for name in sorted(cancelled)])
        paused = {c.workflow_id: c.kind == "pause" for c in commands if c.kind in ("pause", "resume")}
        self._pause.run(connection, [(flag, name) for name, flag in sorted(paused.items())])


def _key(submission: Submission) -> tuple[str, str]:
    """The key with the tenant it counts in."""
    return submission.tenant, submission.idempotency_key or ""


def _first_of_each_key(
    submissions: Sequence[Submitting],
) -> dict[tuple[str, str], Submission]:
    """Of several copies in one batch, the first is the one."""
    firsts: dict[tuple[str, str], Submission] = {}
    for submission, _ in submissions:
        if submission.idempotency_key is not None:
            firsts.setdefault(_key(submission), submission)
    return firsts


def _first_of_each_run(new: Sequence[Submitting], numbers: Mapping[str, int]) -> list[tuple[Any, ...]]:
    """Rows of the runs that these are calls of, in order of their ids, so that two processes wait instead of deadlocking."""
    rows: dict[str, tuple[Any, ...]] = {}
    for submission, _ in new:
        call = submission.call
        if call is None or call.run in rows:
            continue
        name = tidy_text(call.run_name or call.run)
        labels = {tidy_text(str(key)): tidy_text(str(value)) for key, value in submission.labels.items()}
        began = call.since_ms or submission.now_ms
        rows[call.run] = (
            tidy_text(call.run),
            numbers[submission.id],
            name,
            tidy_text(call.source),
            submission.queue,
            encode(labels),
            began,
        )
    return [rows[run] for run in sorted(rows)]


def _is_over(submission: Submission, holder: Any) -> bool:
    """Whether a key no longer stands for the workflow it was used for."""
    rule = submission.repeats
    if rule is None:
        return False
    _, workflow, _, state, used_ms, by_user = holder
    if state in (RunState.CANCELLING, RunState.CANCELLED) and not by_user:
        return True
    young = used_ms >= rule.since_ms
    if state is not None and not RunState(state).terminal:
        return not (young or rule.while_live)
    return not young or workflow in rule.heard_of


def _same_or_conflict(
    submission: Submission, body_hash: str, workflow_id: str, seq: int
) -> Submitted | Conflict:
    """The earlier workflow if the body is the same, else a refusal."""
    if submission.body_hash == body_hash:
        return Submitted(workflow_id, False, seq)
    return Conflict("this idempotency key was used for another request body")


def _workflow_row(submission: Submission, spec: bytes, seq: int) -> tuple[Any, ...]:
    """In the order of `_SUBMITTED_COLUMNS`."""
    labels = {tidy_text(str(key)): tidy_text(str(value)) for key, value in submission.labels.items()}
    return (
        submission.id,
        seq,
        submission.name,
        submission.queue,
        submission.priority,
        encode(labels),
        RunState.PENDING.value,
        submission.tenant,
        submission.owner,
        submission.now_ms,
        len(submission.stages),
        sum(width * members for _, width, members in submission.stages),
        len(submission.spec),
        *_call_columns(submission),
        spec,
    )


def _call_columns(submission: Submission) -> tuple[Any, ...]:
    """run, node and task of the call, the kind, shard and attempt of the call, and its predecessors."""
    call, kind = submission.call, tidy_text(submission.kind or submission.name)
    if call is None:
        return "", "", "", kind, None, 1, "[]"
    after = encode([tidy_text(node) for node in call.after])
    task = tidy_text(call.identity(submission.id))
    return tidy_text(call.run), tidy_text(call.node), task, kind, call.shard, call.attempt or 1, after


def _pending(tasks: int) -> str:
    """The counts of a stage of which nothing has been ready."""
    return encode({TaskState.PENDING.name: tasks} if tasks else {})


def _submitted_event(submission: Submission) -> EventRow:
    """The first line of a workflow's history."""
    body: dict[str, Any] = {"name": tidy_text(submission.name), "queue": tidy_text(submission.queue)}
    if submission.call is not None:
        body |= {"shard": submission.call.shard} if submission.call.shard is not None else {}
        body |= {"attempt": submission.call.attempt or 1}
    return EventRow(submission.id, submission.now_ms, "workflow.submitted", body)
