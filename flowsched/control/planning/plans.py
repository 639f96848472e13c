"""Plans of runs: where their sources come from, plans made in limited processes, kept, and used for the rank of each call."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from flowsched import errors
from flowsched.aside import aside
from flowsched.control.leading.dispatch import Dispatcher
from flowsched.control.planning.planner import MEMORY_BYTES, SECONDS, PlanJob, PlanResult
from flowsched.control.planning.run_planner import RunPlanner
from flowsched.control.planning.wdl_path import WdlPath
from flowsched.control.views import view_of
from flowsched.engine.events import CallsRanked
from flowsched.errors import (
    ConfigurationError,
    FlowschedError,
    Forbidden,
    InvalidRequest,
    NotFound,
    TooLarge,
    Unavailable,
    Unsupported,
)
from flowsched.log_lines import get_logger
from flowsched.store.database import Database
from flowsched.store.plans import PlanRow, Plans
from flowsched.store.runs import Runs
from flowsched.values import replace
from flowsched.workflow.plan import (
    Plan,
    RankPlan,
    as_json,
    from_json,
    prefetch,
    rank_of,
    ranks,
    stages,
)
from flowsched.workflow.run.states import RunState
from flowsched.workflow.spec import Call, WorkflowSpec
from flowsched.workflow.views import PlanBody, PlanPage, PlanSummary, PlanView

# ---- what a Cromwell server was given for a run ----
#
# Its source, imports and inputs. Only servers that the operator named are asked.


TIMEOUT_S: Final = 30.0
ANSWER_BYTES: Final = 32 << 20
UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


class _Submitted(msgspec.Struct, rename="camel"):
    workflow: str | None = None
    workflow_url: str | None = None
    inputs: str | dict[str, Any] = "{}"
    imports: dict[str, str] | None = None


class _Failure(msgspec.Struct, rename="camel"):
    message: str = ""
    caused_by: list[_Failure] = []


class _Metadata(msgspec.Struct, rename="camel"):
    submitted_files: _Submitted | None = None
    failures: list[_Failure] = []


class _Status(msgspec.Struct):
    status: str


#: How a workflow has ended, by Cromwell's word for it. Under any other it goes on.
_ENDS: Final = {"Succeeded": RunState.SUCCEEDED, "Failed": RunState.FAILED, "Aborted": RunState.CANCELLED}


def servers(text: str) -> tuple[str, ...]:
    """The servers that a setting names, separated by commas.

    Raises:
        ConfigurationError: One of them is no URL.
    """
    found = tuple(part.strip().rstrip("/") for part in text.split(",") if part.strip())
    for each in found:
        if not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#\s]*)?", each):
            raise ConfigurationError(f"FLOWSCHED_CROMWELL: {each!r} is no URL such as http://cromwell:8000")
    return found


class Cromwell:
    """Asks the servers that may be asked.

    Args:
        allowed: Their URLs. No request makes it contact another server.
        sources: Where imports are found: Cromwell's metadata have those of draft-2 workflows only.
    """

    def __init__(
        self, allowed: Sequence[str], sources: WdlPath | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        self.allowed = tuple(allowed)
        self._sources = sources or WdlPath()
        self._timeout_s = timeout_s

    async def submitted(self, url: str, root: str) -> PlanJob:
        """The submission of a root workflow.

        Raises:
            Forbidden: The server is not one of those allowed.
            InvalidRequest: The id is none of Cromwell's.
            NotFound: The server knows no such workflow, or not yet its source: it stores both some time after the submission.
            Unsupported: The workflow imports what is neither in the metadata nor in a folder of sources.
            Unavailable: It does not answer, or not in a form that can be read.
        """
        base = url.rstrip("/")
        if base not in self.allowed:
            named = ", ".join(self.allowed) or "none is"
            raise Forbidden(
                f"{url!r} is not a Cromwell server that may be asked ({named} named in FLOWSCHED_CROMWELL)"
            )
        if not UUID.fullmatch(root):
            raise InvalidRequest(f"{root[:60]!r} is no id of a Cromwell workflow (a UUID in lower case)")
        try:
            found = (await self._metadata(base, root, "submittedFiles")).submitted_files
            if found is None or not found.workflow:
                raise NotFound(f"{base} knows {root}, but has not stored its source yet")
            inputs = found.inputs
            if isinstance(inputs, str):
                inputs = await aside(len(inputs), json.loads, inputs)
            imports, missing = await asyncio.to_thread(
                self._sources.imports, found.workflow, found.imports or {}, found.workflow_url
            )
            if missing:
                raise Unsupported(
                    f"it imports {', '.join(missing[:5])}{' …' * (len(missing) > 5)}, and the metadata of {base} have no "
                    "imports of WDL 1.0 and later: name the folder that holds them in `serve --wdl-path` "
                    "(FLOWSCHED_WDL_PATH), or post the plan with its imports (docs/plans.md)"
                )
            return msgspec.convert({"source": found.workflow, "imports": imports, "inputs": inputs}, PlanJob)
        except (msgspec.MsgspecError, ValueError) as error:
            raise Unavailable(f"{base} answered with metadata that cannot be read: {error}") from error

    async def any_of(self, root: str) -> PlanJob:
        """The submission of a root workflow, by the first server that knows it.

        Raises:
            NotFound: No server knows it (yet).
            Unavailable: One of the servers does not answer, and no other knows it.
            FlowschedError: See `submitted`.
        """
        refusals: list[NotFound | Unavailable] = []
        for base in self.allowed:
            try:
                return await self.submitted(base, root)
            except (NotFound, Unavailable) as error:
                refusals.append(error)
        kind = Unavailable if any(isinstance(each, Unavailable) for each in refusals) else NotFound
        raise kind("; ".join(map(str, refusals)))

    async def end_of(self, root: str) -> tuple[str, str] | None:
        """How a root workflow has ended, by the first server that knows it: a state and a reason; None while it goes on.

        Raises:
            NotFound: No server knows it.
            FlowschedError: None answers, or not in a form that can be read.
        """
        refusals: list[FlowschedError] = []
        for base in self.allowed:
            try:
                word = msgspec.json.decode(await self._asked(base, root, "status"), type=_Status).status
            except FlowschedError as error:
                refusals.append(error)
                continue
            except msgspec.MsgspecError as error:
                refusals.append(Unavailable(f"{base} answered with a status that cannot be read: {error}"))
                continue
            state = _ENDS.get(word)
            if state is None:
                return None
            return state.value, await self._why(base, root) if state is RunState.FAILED else ""
        raise NotFound("; ".join(map(str, refusals)))

    async def _why(self, base: str, root: str) -> str:
        """Why a workflow failed: the first cause of its first failure. Cromwell's own state, where it does not say."""
        try:
            failures = (await self._metadata(base, root, "failures")).failures
        except (FlowschedError, msgspec.MsgspecError):
            failures = []
        message = ""
        while failures:
            message, failures = failures[0].message or message, failures[0].caused_by
        return f"Cromwell: {message or 'Failed'}"[:1000]

    async def _metadata(self, base: str, root: str, key: str) -> _Metadata:
        answer = await self._asked(base, root, "metadata", includeKey=key)
        return await aside(len(answer), msgspec.json.decode, answer, type=_Metadata)

    async def _asked(self, base: str, root: str, what: str, **params: str) -> bytes:
        import aiohttp  # few services ask a Cromwell server

        address = f"{base}/api/workflows/v1/{root}/{what}"
        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
                session.get(address, params=params, allow_redirects=False) as answer,
            ):
                if answer.status == 404:
                    raise NotFound(f"{base} knows no workflow {root}")
                if answer.status != 200:
                    raise Unavailable(
                        f"{base} answered {answer.status} when it was asked for the {what} of {root}"
                    )
                parts = bytearray()
                async for part in answer.content.iter_any():
                    parts += part
                    if len(parts) > ANSWER_BYTES:
                        raise TooLarge(
                            f"the {what} of {root} has more than {ANSWER_BYTES} bytes, which is the limit"
                        )
                return bytes(parts)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise Unavailable(f"{base} does not answer ({error or type(error).__name__})") from error


# ---- planning in processes with limits, a few at a time ----


#: Plans that are made at the same time; others wait, `WAITING` of them.
AT_ONCE: Final = 2
WAITING: Final = 20
#: A plan is not larger than this, as JSON.
PLAN_BYTES: Final = 32 << 20
#: Wall-clock seconds: more than the CPU seconds, since the machine has other work.
PATIENCE_S: Final = 2.0 * SECONDS
#: The variables of our environment that the process gets: no token, no password.
_PASSED_ENVIRONMENT: Final = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "SYSTEMROOT")


class Planning:
    """Makes plans."""

    def __init__(
        self, at_once: int = AT_ONCE, waiting: int = WAITING, patience_s: float = PATIENCE_S
    ) -> None:
        self._slots = asyncio.Semaphore(at_once)
        self._most = at_once + waiting
        self._busy = 0
        self._patience_s = patience_s

    async def plan(self, job: PlanJob) -> Plan:
        """Plan in a process of its own.

        Raises:
            FlowschedError: The WDL or its inputs are wrong, or planning takes too long; the message says which.
            Unavailable: Too many plans are being made already.
        """
        if self._busy >= self._most:
            raise errors.Unavailable(f"{self._busy} plans are being made already; try again in a while")
        self._busy += 1
        try:
            async with self._slots:
                return await self._plan(msgspec.json.encode(job))
        finally:
            self._busy -= 1

    async def _plan(self, request: bytes) -> Plan:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "flowsched.control.planning.planner",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={name: os.environ[name] for name in _PASSED_ENVIRONMENT if name in os.environ},
        )
        try:
            async with asyncio.timeout(self._patience_s):
                output, complained = await process.communicate(request)
        except TimeoutError:
            raise errors.TooLarge(f"planning this takes longer than {self._patience_s:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise _died(process.returncode, complained)
        if len(output) > PLAN_BYTES:
            raise errors.TooLarge(f"the plan has {len(output)} bytes; it may have {PLAN_BYTES}")
        return await aside(len(output), _result, output)


def _died(code: int, complained: bytes) -> errors.FlowschedError:
    """A negative code is a signal: the kernel ended it at one of its limits."""
    last = complained.decode("utf-8", "replace").strip().rpartition("\n")[2][:200]
    if code < 0 or "MemoryError" in last:
        return errors.TooLarge(
            f"planning this takes more than {SECONDS} s of CPU or {MEMORY_BYTES >> 20} MiB of memory"
        )
    return errors.FlowschedError(f"the planning process ended with exit code {code}: {last}")


def _result(output: bytes) -> Plan:
    result = msgspec.json.decode(output, type=PlanResult)
    if result.plan is not None:
        return result.plan
    if result.kind == "InvalidDocument":
        raise errors.InvalidDocument([errors.Fault(*fault) for fault in result.faults])
    known = {each.__name__: each for each in (errors.InvalidRequest, errors.TooLarge, errors.Unsupported)}
    raise known.get(result.kind, errors.FlowschedError)(result.message)


# ---- the book of plans ----


log = get_logger(__name__)

#: A label with the id of a plan. With Cromwell a workflow label, which becomes a tag of each of its tasks.
LABEL: Final = "flowsched-plan"
#: Ranks that were worked out are used for so long: runtimes are learned meanwhile, and hundreds of calls may come in a second.
FRESH_MS: Final = 10_000
_MOST_KNOWN: Final = 256
_RUN: Final = re.compile(r"[ -~]{0,255}")


class PlanBook:
    """See the module.

    Args:
        database: Where plans are kept.
        planning: Makes them.
        cromwell: Servers that may be asked.
        learned: How long tasks took: name of workflow -> ms, for those of these names of which something is known.
        clock: Wall-clock ms.
        new_id: Makes ids.
    """

    def __init__(
        self,
        database: Database,
        planning: Planning,
        cromwell: Cromwell,
        *,
        learned: Callable[[Collection[str]], Awaitable[Mapping[str, int]]],
        clock: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._stored = Plans(database)
        self._planning = planning
        self._cromwell = cromwell
        self._learned = learned
        self._clock = clock
        self._new_id = new_id
        self._known: OrderedDict[str, tuple[int, Plan | None, Mapping[str, RankPlan]]] = OrderedDict()
        self._looking = asyncio.Lock()  #: while a call looks for its plan
        self._runs = Runs(database)
        self._wanted = RunPlanner(self._plan_run, self._lives)
        #: Awaited with the name of a run that has a plan now.
        self.planned: Callable[[str], Awaitable[None]] = _nothing

    # ------------------------------------------------------------------------------------------ for people

    async def create(self, body: PlanBody) -> PlanView:
        """Plan a workflow and keep the plan; in place of an earlier one of the same run.

        Raises:
            FlowschedError: See `Planning.plan` and `Cromwell.submitted`.
        """
        if (body.source is None) == (body.cromwell is None):
            raise InvalidRequest(
                "a plan is made of `source` (with `imports` and `inputs`) or of `cromwell`: give one of them"
            )
        if not _RUN.fullmatch(body.run):
            raise InvalidRequest("`run` is at most 255 printable ASCII characters")
        run = body.run
        if body.cromwell is not None:
            run = run or body.cromwell.root_workflow_id
            job = await self._cromwell.submitted(body.cromwell.url, body.cromwell.root_workflow_id)
        else:
            job = PlanJob(
                source=body.source or "",
                imports=body.imports,
                inputs=body.inputs,
                sizes=body.sizes,
                contents=body.contents,
            )
        return await self._view(*await self._make(job, run))

    async def _make(self, job: PlanJob, run: str) -> tuple[PlanRow, Plan]:
        plan = await self._planning.plan(job)
        ident = "p" + self._new_id()[1:]
        row = await self._stored.put(ident, plan.name, run, len(plan.nodes), as_json(plan), self._clock())
        self._known.clear()  # what was known of the run, by whichever of its names
        self._wanted.planned(run)
        await self.planned(run)
        return row, plan

    async def get(self, ident: str) -> PlanView:
        """One plan, with ranks as they are now.

        Raises:
            NotFound: There is none.
        """
        row, raw = await self._stored.get(ident)
        return await self._view(row, from_json(raw))

    async def list(
        self, *, limit: int = 100, page_token: str | None = None, run: str | None = None
    ) -> PlanPage:
        """Plans, newest first; of one run, if it is named."""
        page = await self._stored.list(limit, page_token, run)
        return PlanPage(
            plans=[view_of(PlanSummary, row, url=_url(row)) for row in page.items],
            next_page_token=page.next_token,
        )

    async def newest(self) -> str | None:
        """The id of the plan that was made last, by whichever process; None = there is none."""
        page = await self._stored.list(1, None, None)
        return page.items[0].id if page.items else None

    async def remove(self, ident: str) -> PlanSummary:
        """Remove a plan; returns what it was.

        Raises:
            NotFound: There is none.
        """
        row, _ = await self._stored.get(ident)
        await self._stored.delete(ident)
        self._known.clear()
        return view_of(PlanSummary, row, url=_url(row))

    async def _view(self, row: PlanRow, plan: Plan) -> PlanView:
        return view_of(
            PlanView,
            row,
            url=_url(row),
            plan=plan,
            ranks=await self._ranks(plan),
            stages=stages(plan),
            files={uri: list(nodes) for uri, nodes in prefetch(plan).items()},
        )

    # ------------------------------------------------------------------------------------------ for calls

    async def rank_ms(self, call: Call, labels: Mapping[str, str]) -> int | None:
        """How long it is expected to be from a call's start to the end of its run; None where no plan says it.

        A run of Cromwell that has no plan is planned meanwhile, for the calls that come later, if its server may be asked.
        """
        label = labels.get(LABEL, "")
        key = f"{label} {call.run}"
        if not self._is_fresh(key):
            async with self._looking:  # the calls of a wide scatter come together: one of them looks
                if not self._is_fresh(key):
                    now, plan = self._clock(), await self._found(label, call.run)
                    ranks = {} if plan is None else await self._ranks(plan)
                    self._known[key] = now, plan, ranks
                    self._known.move_to_end(key)
                    while len(self._known) > _MOST_KNOWN:
                        self._known.popitem(last=False)
        _, plan, found = self._known[key]
        if plan is None:
            self._want(call)
            return None
        return rank_of(plan, found, call.node)

    def _is_fresh(self, key: str) -> bool:
        """Whether the plan of a run was looked for a moment ago."""
        known = self._known.get(key)
        return known is not None and self._clock() - known[0] <= FRESH_MS

    async def _found(self, label: str, run: str) -> Plan | None:
        """The plan of a call. One that cannot be read is none: a call must be accepted whatever became of its plan."""
        try:
            return await self._find(label, run)
        except (FlowschedError, msgspec.DecodeError) as error:
            log.warning("the plan of a call cannot be read", plan=label[:60], run=run[:60], error=str(error))
            return None

    async def _find(self, label: str, run: str) -> Plan | None:
        if label:
            with suppress(NotFound):
                return from_json((await self._stored.get(label))[1])
        found = await self._stored.of_run(run, *UUID.findall(run)[:1])
        return None if found is None else from_json(found[1])

    def _want(self, call: Call) -> None:
        root = UUID.search(call.run)
        if call.source == "cromwell" and root is not None and self._cromwell.allowed:
            self._wanted.want(root[0], call.run)

    async def run(self) -> None:
        """Plan runs of Cromwell as their first calls arrive, for ever."""
        await self._wanted.run()

    async def _plan_run(self, root: str) -> None:
        if await self._stored.of_run(root) is not None:
            return  # a client has posted one meanwhile
        row, plan = await self._make(await self._cromwell.any_of(root), root)
        log.info("a run was planned", run=root, plan=row.id, nodes=len(plan.nodes))

    async def _lives(self, run: str) -> bool:
        return any(not RunState(tally.state).terminal for tally in await self._runs.tallies([run]))

    def why_not(self, run: str) -> str | None:
        """Why a run of Cromwell has no plan; None where it has one, or where no server is asked for it."""
        root = UUID.search(run)
        return None if root is None else self._wanted.why_not(root[0])

    async def _ranks(self, plan: Plan) -> dict[str, RankPlan]:
        """By what was learned of the plan's calls under the names of their tasks here.

        A call is what its engine calls it: its path (miniwdl, Cromwell's config backend) or `workflow.call` (Cromwell over TES).
        A bare name may be that of another pipeline's call. Bare names therefore count only where none of the plan's calls is
        known by its own, so that a rank never adds up both.
        """
        own = {node.path: (node.path, f"{node.workflow}.{node.call}") for node in plan.nodes}
        bare = {node.path: (node.call, node.task) for node in plan.nodes}
        for names in (own, bare):
            learned = await self._learned({name for each in names.values() for name in each})
            if learned:
                break
        return ranks(
            plan,
            {
                path: learned[name]
                for path, each in names.items()
                if (name := next(filter(learned.__contains__, each), None))
            },
        )


async def _nothing(_run: str) -> None:
    """The default of `planned`: no component waits for plans."""


def _url(row: PlanRow) -> str:
    return f"/api/v1/plans/{row.id}"


# ---- ranks: in a call's document where the plan is there first, else in the leader's memory ----
#
# A run's first calls come before its plan: Cromwell's metadata are 404 for some seconds, and a client may post a plan at any
# time. Such a call is accepted without a rank, and is ranked as soon as the plan is there. Its document stays as it is, so the
# leader of a new term asks for the ranks of all calls that have none.


#: How often it is looked whether another process has made a plan, or this one leads now. Twice as long: calls of a run that another
#: replica has planned wait twice as long for their ranks.
POLL_S: Final = 10.0
#: Calls that are asked for before the event loop serves other requests.
_SLICE: Final = 1_000


async def with_rank(spec: WorkflowSpec, raw: bytes, known: PlanBook) -> tuple[WorkflowSpec, bytes]:
    """The document with `call.rank_ms`, where it is a call that says none and a plan does; else as it is."""
    if spec.call is None or spec.call.rank_ms:
        return spec, raw
    rank = await known.rank_ms(spec.call, spec.labels)
    if not rank:
        return spec, raw
    ranked = await aside(len(raw), _ranked, raw, rank)
    return replace(spec, call=replace(spec.call, rank_ms=rank)), ranked


def _ranked(raw: bytes, rank_ms: int) -> bytes:
    document = msgspec.json.decode(raw)
    document["call"]["rank_ms"] = rank_ms
    return msgspec.json.encode(document)


class LateRanks:
    """Ranks calls that were accepted before their plan was known.

    Args:
        plans: Knows ranks.
        leading: The dispatcher, which holds the calls that live, while this process leads.
    """

    def __init__(self, plans: PlanBook, leading: Callable[[], Dispatcher | None]) -> None:
        self._plans = plans
        self._leading = leading

    async def run(self) -> None:
        """Look for ever, for new plans of other processes and for calls that came while a plan was made."""
        ranked: tuple[Dispatcher | None, str | None] = None, None
        again = False
        while True:
            try:
                now = self._leading(), await self._plans.newest()
                if now != ranked or again:
                    await self.rank()
                    ranked, again = (
                        now,
                        now != ranked,
                    )  # a call that was being accepted meanwhile is found by the next look
            except Unavailable as away:
                log.debug("calls are ranked when the database is back", error=str(away))  # `OutageLog` warns
            except FlowschedError as error:
                log.warning("calls cannot be ranked by their plans yet", error=str(error))
            await asyncio.sleep(POLL_S)

    async def rank(self, run: str = "") -> None:
        """Tell the engine the ranks of calls that live without one, as far as plans say them; the next step orders by them.

        Args:
            run: Of this run alone: its id or its name here; "" = of all runs.
        """
        dispatcher = self._leading()
        if dispatcher is None:
            return  # the leader looks when its term begins
        await dispatcher.rest()
        waiting = [
            (ident, call, each.spec.labels)
            for ident, each in dispatcher.state.work.runs.items()
            if (call := each.spec.call) is not None and not call.rank_ms and run in call.run
        ]
        ranks: dict[str, int] = {}
        for number, (ident, call, labels) in enumerate(waiting):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            if rank_ms := await self._plans.rank_ms(call, labels):
                ranks[ident] = rank_ms
        if ranks:
            dispatcher.report([CallsRanked(ranks)])
