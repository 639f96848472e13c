"""TES tasks: each becomes a workflow of one stage, and is answered from the leader's memory, its rows, or what was kept of it.

A repeated create gives the task that exists (`repeated`); after its workflow has expired, a task is answered from what was kept of
it.
"""

from __future__ import annotations

import asyncio
import hashlib
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from flowsched.aside import aside
from flowsched.control import allowed_paths
from flowsched.control.admission import Admission, submission_of
from flowsched.control.allowed_paths import Refusal
from flowsched.control.documents import Documents
from flowsched.control.forecasts import Forecasts
from flowsched.control.planning.plans import PlanBook, with_rank
from flowsched.engine.explain import Explanation, explain, with_starts
from flowsched.engine.state import EngineState
from flowsched.errors import Conflict, FlowschedError, InvalidDocument, NotFound, Unavailable
from flowsched.log_lines import get_logger
from flowsched.scheduling.explain.forecast import Starts
from flowsched.store.database import Database
from flowsched.store.requests import Repeats, TesTask, compress
from flowsched.store.tes import TesFilter, TesRow, TesTasks, page_token, read_logs, read_token
from flowsched.values import replace
from flowsched.workflow.formats.tes import answers
from flowsched.workflow.formats.tes.document import STAGE, in_their_words, workflow_of
from flowsched.workflow.formats.tes.engines import (
    BESIDE,
    CROMWELL,
    RESTS_MS,
    Identity,
    continued,
    files_of,
    identify,
    repetition,
)
from flowsched.workflow.formats.tes.task import InvalidTask, Task, encode_task, read_task, without_content
from flowsched.workflow.resources import format_span
from flowsched.workflow.run.moves import STARTED
from flowsched.workflow.run.states import RunState, TaskState
from flowsched.workflow.spec import Call

#: Runs remembered, and files of each: beyond that, edges are not found, and nothing else happens.
_RUNS: Final = 64
_FILES: Final = 100_000
_PAGE: Final = 2_000
_MOST_AFTER: Final = 1_000


class _Run(msgspec.Struct):
    id: str
    writers: dict[str, str] = msgspec.field(default_factory=dict)  #: file -> node
    following: int = 2  #: the number of the next run of the same text
    #: (node, task) -> the highest number of those beside it
    tasks: dict[tuple[str, str], int] = msgspec.field(default_factory=dict)
    seq: int = 0  #: newest task that was read from the database
    last_ms: int = 0  #: when this process was sent the last task


class Edges:
    """The last few runs. With `refresh`, other processes accept tasks too: what is not known is looked for."""

    def __init__(self, reads: TesTasks, *, refresh: bool = False) -> None:
        self._reads = reads
        self._refresh = refresh
        self._runs: OrderedDict[str, _Run] = OrderedDict()  #: by the text that names them in their tasks

    async def place(self, identity: Identity, task: Task, now_ms: int, size: int) -> Identity:
        """The identity with all that earlier tasks say of it: which run goes on, which task is tried again, and the nodes that
        wrote the input files. The task is noted for later ones; `forget` its run if it is refused. `size`: bytes of its body.
        """
        call = identity.call
        if call is None or call.source == CROMWELL:  # the ids of Cromwell and its folders say all of it
            return identity
        if "\0" in call.run + call.node + call.task:  # the check of the document refuses it
            return identity
        reads, writes = await aside(size, files_of, task)
        if not (reads or writes or identity.reused):
            return identity
        run = await self._run(call, reused=identity.reused)
        if self._refresh and (identity.reused or any(name not in run.writers for name in reads)):
            await self._load(run)
        if identity.reused:
            run, call = await self._continued(run, call, now_ms)
        nodes = {run.writers[name]: None for name in reads if name in run.writers}
        if len(run.writers) < _FILES:
            run.writers.update(dict.fromkeys(writes, call.node))
        after = tuple(node for node in nodes if node != call.node)[:_MOST_AFTER]
        return replace(identity, call=replace(call, after=after))

    async def _continued(self, run: _Run, call: Call, now_ms: int) -> tuple[_Run, Call]:
        """The run that a task belongs to, and its call there. The database is asked where a task comes again, or after a rest."""
        text, place = call.run, (call.node, call.task)
        found, again = replace(call, run=run.id), place in run.tasks
        if again or (run.tasks and now_ms - run.last_ms >= RESTS_MS):
            so_far = await self._reads.run_so_far(run.id, *place)
            if again and not so_far.tries and now_ms - run.last_ms >= REPEAT_MS:  # it has expired
                run.tasks.pop(place, None)
            elif again and not so_far.tries:  # the earlier one is being accepted
                so_far = so_far._replace(live=True, tries={call.task: RunState.PENDING})
            beside = run.tasks.get(place, 0)
            found = continued(call, run.id, so_far, now_ms, run.following, beside)
        if found.run != run.id:
            newer = self._runs.get(text)
            if newer is not None and newer.id == found.run:  # another task has begun it
                return await self._continued(newer, call, now_ms)
            run = self._runs[text] = _Run(found.run, following=run.following + 1)
        run.tasks[place] = max(run.tasks.get(place, 1), repetition(call.task, found.task, BESIDE))
        run.last_ms = now_ms
        return run, found

    def forget(self, run: str) -> None:
        """Read a run anew for its next task: one that was noted is no task, but a repeat of a create, or was refused."""
        self._runs = OrderedDict((text, each) for text, each in self._runs.items() if each.id != run)

    async def _run(self, call: Call, *, reused: bool) -> _Run:
        text = call.run
        run = known = self._runs.get(text)
        if run is None or (reused and self._refresh):
            latest, following = await self._reads.latest_run(call) if reused else (text, 2)
            if run is None or repetition(text, latest) > repetition(text, run.id):
                run = _Run(latest, following=following)
                await self._load(run)
                if self._runs.get(text) is known:  # no other task was faster
                    self._runs[text] = run
            run = self._runs.setdefault(text, run)  # another task may have forgotten it
        self._runs.move_to_end(text)
        if len(self._runs) > _RUNS:
            self._runs.popitem(last=False)
        return run

    async def _load(self, run: _Run) -> None:
        while len(run.writers) < _FILES:
            found = await self._reads.siblings(run.id, run.seq, _PAGE)
            for seq, node, task, body in found:
                run.seq = seq
                run.tasks.setdefault((node, task), 1)
                writes = await aside(len(body), _written, body)
                run.writers.update(dict.fromkeys(writes, node))
            if len(found) < _PAGE:
                return


def _written(stored: bytes) -> Sequence[str]:
    """The files that a stored task writes."""
    return files_of(msgspec.json.decode(zlib.decompress(stored), type=Task))[1]


# ---- live tasks, from the leader's memory: most polls are of these, and need no SQL ----


class Live(msgspec.Struct, frozen=True):
    """How far it has got."""

    state: str  #: as TES has it
    attempt: int  #: the present one, from 0
    node: str  #: "" for none
    started_ms: int | None  #: when the present attempt began


def live(state: EngineState | None, ident: str) -> Live | None:
    """A task as memory has it; None if it is not there, or has ended."""
    run = None if state is None else state.work.runs.get(ident)
    if state is None or run is None or run.state.terminal:
        return None
    stage = run.stages[0]
    if stage.uniform is not None:
        return Live(answers.live_state(stage.uniform, None, started=False), 0, "", None)
    task, goal = TaskState(int(stage.task_state[0])), TaskState(int(stage.goal[0]))
    began, node = int(stage.times[0, STARTED]), int(stage.node[0])
    shown = answers.live_state(task, goal, started=began >= 0)
    return Live(
        shown,
        int(stage.attempt[0]),
        state.cluster.snapshot.names[node] if node >= 0 else "",
        began if began >= 0 else None,
    )


def waits(
    state: EngineState | None, ident: str, now: int, expected: Mapping[int, Starts], hit_rate: str
) -> list[str]:
    """Why a task that lives does not run, as `explain` says it; nothing if it runs, or if this process does not lead.

    Args:
        state: Not modified.
        ident: The task.
        now: Wall-clock ms.
        expected: The starts that are expected, by the number of a group.
        hit_rate: How many earlier forecasts held, as text; "" = not known.
    """
    run = None if state is None else state.work.runs.get(ident)
    if state is None or run is None or run.state.terminal:
        return []
    found = with_starts(explain(state, run, now, forecast=False), expected)
    return [f"{each.code}: {each.message}{_start_text(each, now, hit_rate)}" for each in found]


def _start_text(found: Explanation, now: int, hit_rate: str) -> str:
    """When it is expected to start, and how often such a forecast held; "" where no start is expected."""
    if found.start_low_ms is None or found.start_high_ms is None:
        return ""
    rate = f" (of earlier forecasts {hit_rate} held)" if hit_rate else ""
    return f"; expected to start in {format_span(found.start_low_ms - now, found.start_high_ms - now)}{rate}"


# ---- the service of the TES routes ----


log = get_logger(__name__)

#: For so long a body that says nothing of its own (no description, no tags) is taken for a repeat of the same one before it.
REPEAT_MS: Final = 60_000
#: Bodies kept in memory: each poll of a task in full shows it.
_REMEMBERED_BYTES: Final = 64 << 20
_HEARD: Final = 200_000
#: The ends of a running executor's logs are read again after so long, and waited for so long.
_TAILS_MS: Final = 2_000
_TAILS_S: Final = 2.0
#: A page of a list ends after so many bytes, however many tasks were asked for.
_PAGE_BYTES: Final = 16 << 20
#: Keys of clients, and of bodies: what another API's clients may send as a key has no line breaks in it.
_KEY: Final = "tes\nkey\n"
_BODY: Final = "tes\nbody\n"


class _Known(msgspec.Struct):
    """The answer about a task, remembered so that a poll decodes nothing."""

    created_ms: int
    full: bytes
    basic: bytes
    state: str = ""  #: as last answered
    logs: Sequence[Mapping[str, Any]] = ()
    ended: bool = False  #: state and logs are the last
    pod: tuple[int, str] | None = None  #: attempt and node of its present pod
    tails: tuple[str, ...] = ()  #: of stdout and stderr of the executor that runs
    tails_of: tuple[int, str] | None = None  #: the pod that has them
    read_ms: int = 0  #: when they were read


class Known:
    """Tasks that were asked for lately, up to so many bytes of what their clients sent."""

    def __init__(self, most_bytes: int = _REMEMBERED_BYTES) -> None:
        self._most = most_bytes
        self._bytes = 0
        self._tasks: OrderedDict[str, _Known] = OrderedDict()

    def get(self, ident: str) -> _Known | None:
        """One of them."""
        found = self._tasks.get(ident)
        if found is not None:
            self._tasks.move_to_end(ident)
        return found

    def put(self, ident: str, known: _Known) -> _Known:
        """Remember one; those not asked for longest go."""
        self._drop(self._tasks.pop(ident, None))
        self._tasks[ident] = known
        self._bytes += _weight(known)
        self._shrink()
        return known

    def show_tails(self, ident: str, known: _Known, pod: tuple[int, str] | None, *tails: str) -> None:
        """Remember the ends of the logs of a task's pod in place of those before."""
        before = _weight(known)
        known.tails_of, known.tails = pod, tails
        if self._tasks.get(ident) is known:
            self._bytes += _weight(known) - before
            self._shrink()

    def _shrink(self) -> None:
        while self._bytes > self._most and len(self._tasks) > 1:
            self._drop(self._tasks.popitem(last=False)[1])

    def _drop(self, known: _Known | None) -> None:
        self._bytes -= 0 if known is None else _weight(known)


def _weight(known: _Known) -> int:
    body = len(known.full) + (0 if known.basic is known.full else len(known.basic))
    return body + sum(map(len, known.tails)) + 1024


class TesPage(msgspec.Struct, frozen=True):
    """A part of the list of TES tasks, each as JSON; `next_token` is None at the end."""

    tasks: Sequence[bytes]
    next_token: str | None = None


class TesService:
    """Answers the routes of GA4GH TES. Views are MINIMAL, BASIC and FULL."""

    def __init__(
        self,
        reads: TesTasks,
        admission: Admission,
        documents: Documents,
        *,
        clock: Callable[[], int],
        new_id: Callable[[], str],
        wake: Callable[[], None],
        cancel: Callable[[str], Awaitable[object]],
        ranks: PlanBook,
        memory: Callable[[], EngineState | None],
        forecasts: Forecasts,
        failpoint: Callable[[str], Awaitable[None]],
        tails: Callable[[str, int, str], Awaitable[tuple[str, str]]],
        replicated: bool = False,
        refusal: Refusal | None = None,
    ) -> None:
        self._tails = tails
        self._refusal = refusal
        self._reads = reads
        self._admission = admission
        self._documents = documents
        self._clock = clock
        self._new_id = new_id
        self._wake = wake
        self._cancel = cancel
        self._ranks = ranks
        self._memory = memory
        self._forecasts = forecasts
        self._failpoint = failpoint
        self._replicated = replicated
        self._known = Known()
        self._heard: OrderedDict[str, None] = OrderedDict()
        self._edges = Edges(reads, refresh=replicated)

    def storage(self) -> list[str]:
        """Where inputs and outputs may lie, as the description of the service lists it."""
        is_reached = self._refusal is None or not self._refusal("s3://", False)
        return ["file:///", *["s3://"] * is_reached]

    # ------------------------------------------------------------------------------------------ create

    async def create(
        self, raw: bytes, *, client: str = "", idempotency_key: str | None = None, run: str = ""
    ) -> str:
        """Accept a task durably; a repeat of one that is there gives that one's id. `run`: the one that its endpoint names."""
        task = await aside(len(raw), read_task, raw)
        identity = await self._edges.place(
            await aside(len(raw), identify, task, run), task, self._clock(), len(raw)
        )
        try:
            return await self._accept(task, identity, raw, client, idempotency_key)
        except BaseException:  # refused, or its client is gone
            if identity.call is not None:
                self._edges.forget(identity.call.run)
            raise

    async def _accept(
        self, task: Task, identity: Identity, raw: bytes, client: str, idempotency_key: str | None
    ) -> str:
        made = await aside(len(raw), workflow_of, task, identity=identity)
        await allowed_paths.check(made.spec, self._refusal)
        body = encode_task(task)
        stored = await aside(len(body), compress, body)
        now = self._clock()
        key, repeats = self._key(task, raw, client, idempotency_key, now)
        spec, document = await with_rank(made.spec, made.document, self._ranks)
        await self._failpoint("submit.before")
        submission = submission_of(
            spec,
            document,
            raw,
            id=self._new_id(),
            labels=dict(spec.labels),
            now_ms=now,
            idempotency_key=key,
            tes=TesTask(task.name or "", task.labels, stored),
            repeats=repeats,
        )
        try:
            submitted = await self._admission.submit(submission, spec)
        except InvalidDocument as error:
            raise InvalidTask([in_their_words(fault) for fault in error.faults]) from None
        await self._failpoint("submit.after")
        if submitted.created:
            ident = submitted.workflow_id
            self._documents.keep(ident, spec, len(document))
            self._known.put(ident, _known(now, body, task))
            self._wake()
            if made.ignored:
                log.info("parameters mean nothing here", task=ident, parameters=list(made.ignored))
        elif spec.call is not None:
            self._edges.forget(spec.call.run)
        return submitted.workflow_id

    def _key(
        self, task: Task, raw: bytes, client: str, idempotency_key: str | None, now: int
    ) -> tuple[str, Repeats | None]:
        """Under which key a create is one and the same, and for how long."""
        if idempotency_key is not None:
            return _KEY + idempotency_key, None
        digest = hashlib.sha256(b"\0".join((client.encode("utf-8", "replace"), raw))).hexdigest()
        unique = bool((task.description or "").strip()) and bool(task.labels)
        return _BODY + digest, Repeats(now - REPEAT_MS, unique, self._heard)

    # ------------------------------------------------------------------------------------------ look

    async def get(self, ident: str, view: str) -> bytes:
        """One task as JSON.

        Raises:
            NotFound: There is none.
            Unavailable: The database does not answer, and nothing was remembered.
        """
        known = self._known.get(ident)
        if known is not None:
            self._hear(ident)
            if known.ended or self._answer_live(ident, view, known):
                await self._read_tails(ident, view, known)
                return self._shown(ident, view, known, self._expected(view, known))
        try:
            row = await self._reads.get(ident, body=known is None)
            if row is None:
                raise NotFound(f"there is no task {ident!r}")
            tries = (await self._reads.attempts([ident]))[ident] if _tried(row, view) else ()
        except Unavailable:
            if known is None or not known.state:
                raise
            return self._shown(ident, view, known, {})
        self._hear(ident)
        if known is None:
            known = self._known.put(ident, await aside(len(row.body), _remembered, row))
        known.state, known.logs = _now(row, tries, view, known.logs)
        known.pod = (tries[-1].attempt, tries[-1].node) if tries else None
        await self._read_tails(ident, view, known)
        # A failed workflow can be tried again by another process, which this one does not hear of.
        again = self._replicated and row.run_state == RunState.FAILED
        known.ended = view != "MINIMAL" and known.state in answers.FINAL and not again
        return self._shown(ident, view, known, self._expected(view, known))

    def _expected(self, view: str, known: _Known) -> Mapping[int, Starts]:
        """The expected starts, where an answer may show one."""
        return self._forecasts.known() if view == "FULL" and known.state == answers.QUEUED else {}

    def _shown(self, ident: str, view: str, known: _Known, expected: Mapping[int, Starts]) -> bytes:
        """One answer. Why a task waits is worked out only for the view FULL."""
        if view != "FULL":
            return _shown(ident, view, known, known.logs)
        why: Sequence[str] = ()
        if known.state not in answers.FINAL:
            why = waits(self._memory(), ident, self._clock(), expected, self._forecasts.hit_rate)
        logs = answers.with_notes(known.logs, known.state, why)
        if known.tails:
            logs = answers.with_tails(logs, *known.tails)
        return _shown(ident, view, known, logs)

    async def _read_tails(self, ident: str, view: str, known: _Known) -> None:
        """Read the ends of the logs of a running task for the view FULL, at most once in a while."""
        now, pod = self._clock(), known.pod if known.state == answers.RUNNING else None
        if known.tails_of != pod:  # it has ended, or is tried again
            self._known.show_tails(ident, known, pod)
            known.read_ms = 0
        if view != "FULL" or pod is None or now - known.read_ms < _TAILS_MS:
            return
        known.read_ms = now
        with suppress(FlowschedError, OSError):
            async with asyncio.timeout(_TAILS_S):
                tails = await self._tails(ident, *pod)
                if known.tails_of == pod:
                    self._known.show_tails(ident, known, pod, *tails)

    def _answer_live(self, ident: str, view: str, known: _Known) -> bool:
        """Answer from memory, if it knows all that the view shows."""
        found = live(self._memory(), ident)
        if found is None or (found.attempt > 0 and view != "MINIMAL"):
            return False
        known.state, known.pod = found.state, (found.attempt, found.node)
        if view != "MINIMAL":
            tries = [answers.Try(found.node, found.attempt, found.started_ms)] if found.node else []
            known.logs = answers.task_logs(tries, found.started_ms, found.state, "", None)
        return True

    def revived(self, ident: str) -> None:
        """A failed task is tried again: the remembered end is not its last one."""
        known = self._known.get(ident)
        if known is not None:
            known.ended = False

    def _hear(self, ident: str) -> None:
        """Its client has its id: the same body once more is another task."""
        self._heard[ident] = None
        self._heard.move_to_end(ident)
        if len(self._heard) > _HEARD:
            self._heard.popitem(last=False)

    async def list(
        self,
        view: str,
        *,
        name_prefix: str = "",
        state: str | None = None,
        tags: Sequence[tuple[str, str]] = (),
        page_size: int = 256,
        token: str | None = None,
    ) -> TesPage:
        """One page, newest first.

        Raises:
            InvalidRequest: The token is not one of ours.
        """
        before = read_token(token) if token else None
        runs, final_states = None, None
        if state is not None:
            runs = tuple(str(each) for each in answers.RUNS_OF.get(state, ()))
            final_states = (state,)
        which = TesFilter(name_prefix, tuple(tags), runs, final_states)
        full = view != "MINIMAL"
        found: list[tuple[int, bytes]] = []
        size, more = 0, True
        while more:
            limit = min(page_size, 100 if full else 2_000) + 1
            rows = await self._reads.page(which, body=full, before=before, limit=limit)
            tries = await self._reads.attempts([row.id for row in rows if _tried(row, view)])
            for row in rows:
                if len(found) == page_size or size > _PAGE_BYTES:
                    return TesPage([shown for _, shown in found], page_token(found[-1][0]))
                known = _Known(row.created_ms, b"", b"")
                known.state, known.logs = _now(row, tries.get(row.id, ()), view, ())
                before = row.seq
                if state in (None, known.state):
                    if view == "BASIC":
                        known.basic = (await aside(len(row.body), _remembered, row)).basic
                    elif view == "FULL":
                        known.full = await aside(len(row.body), zlib.decompress, row.body)
                    expected = self._expected(view, known)
                    found.append((row.seq, self._shown(row.id, view, known, expected)))
                    size += len(found[-1][1])
            more = len(rows) == limit
        return TesPage([shown for _, shown in found])

    # ------------------------------------------------------------------------------------------ cancel

    async def cancel(self, ident: str) -> None:
        """Cancel a task; one that has ended, or does not exist, is cancelled enough."""
        if await self._reads.get(ident, body=False) is None:
            return
        self._hear(ident)
        with suppress(Conflict, NotFound):  # it has ended meanwhile, or expired
            await self._cancel(ident)


def _known(created_ms: int, body: bytes, task: Task) -> _Known:
    short = without_content(task)
    return _Known(created_ms, body, body if short is task else encode_task(short))


def _remembered(row: TesRow) -> _Known:
    body = zlib.decompress(row.body)
    return _known(row.created_ms, body, msgspec.json.decode(body, type=Task))


def _tried(row: TesRow, view: str) -> bool:
    """Whether the answer needs the attempts: for logs, and to tell an executor error from a system error."""
    if row.run_state is None:
        return False
    failed = row.run_state in (RunState.FAILED, RunState.SKIPPED)
    return failed or (view != "MINIMAL" and row.attempt is not None)


def _now(
    row: TesRow, tries: Sequence[answers.Try], view: str, logs: Sequence[Mapping[str, Any]]
) -> tuple[str, Sequence[Mapping[str, Any]]]:
    """(state, logs) of a task; the logs that are known where the view does not show any."""
    if row.run_state is None:
        return row.final_state or answers.SYSTEM_ERROR, read_logs(row.final_logs)
    state = state_of(row, tries)
    if view == "MINIMAL":
        return state, logs
    return state, logs_of(row, tries, state)


def state_of(row: TesRow, tries: Sequence[answers.Try]) -> str:
    """The state of a task that still has its workflow."""
    run = RunState(row.run_state or "")
    if run.terminal:
        return answers.final_state(run, tries[-1] if tries else None)
    task = None if row.task_state is None else TaskState(row.task_state)
    goal = None if row.goal is None else TaskState(row.goal)
    return answers.live_state(task, goal, started=row.started_ms is not None)


def logs_of(row: TesRow, tries: Sequence[answers.Try], state: str) -> Sequence[Mapping[str, Any]]:
    """The logs of a task that still has its workflow."""
    since = row.started_ms if tries and tries[-1].attempt == row.attempt else None
    sentence = (row.run_reason or "").removeprefix(f"{STAGE}: ")
    return answers.task_logs(tries, since, state, row.reason or "", row.ended_ms, sentence)


def _shown(ident: str, view: str, known: _Known, logs: Sequence[Mapping[str, Any]]) -> bytes:
    if view == "MINIMAL":
        return answers.minimal(ident, known.state)
    if view == "BASIC":
        short = answers.in_basic(logs)
        return answers.joined(ident, known.state, known.created_ms, known.basic, short)
    return answers.joined(ident, known.state, known.created_ms, known.full, logs)


# ---- how tasks ended, kept when their workflows expire: clients may ask for weeks what became of an id ----


#: Ids of TES tasks stay answerable for at least so long after they were made.
KEEP_MS: Final = 30 * 86_400_000
_AT_ONCE: Final = 500


async def keep_ends(database: Database, before_ms: int) -> int:
    """Keep the ends of tasks of workflows that ended before a time. These may then be removed. Returns how many tasks."""
    reads = TesTasks(database)
    saved = 0
    while rows := await reads.expiring(before_ms, _AT_ONCE):
        tries = await reads.attempts([row.id for row in rows])
        finals = []
        for row in rows:
            state = state_of(row, tries[row.id])
            logs = logs_of(row, tries[row.id], state)
            finals.append((row.id, state, msgspec.json.encode(logs).decode()))
        await reads.keep(finals)
        saved += len(finals)
    return saved


async def forget_ends(database: Database, before_ms: int, now_ms: int) -> int:
    """Remove tasks that are older than a time and than 30 days, and have no workflow any more. Returns how many."""
    reads = TesTasks(database)
    gone = 0
    while count := await reads.forget(min(before_ms, now_ms - KEEP_MS)):
        gone += count
    return gone
