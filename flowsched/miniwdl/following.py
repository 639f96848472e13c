"""One call of a run from its submission to its end, on a loop of its own: miniwdl itself is threads.

The service may be away for a while, or restart: every question is asked again until the patience is used up, and a submission
carries a key, so that none runs twice.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from flowsched.client import Client, Run
from flowsched.client.calls import is_terminal
from flowsched.errors import FlowschedError, Unavailable
from flowsched.workflow.views import WorkflowView

T = TypeVar("T")

#: Takes whether it is a warning, a sentence and its fields. Called from the loop's thread.
Log: TypeAlias = Callable[[bool, str, Mapping[str, Any]], None]

#: Waits between questions while the service is away.
FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 10.0
#: A stream that has ended before the call: how long until the next one.
AGAIN_S: Final = 1.0
#: After so long the log says why a call does not start. Each further wait is twice as long.
ASK_WHY_S: Final = 30.0
#: The longest wait for a cancel at the end of a run: miniwdl is to end too, even if the service does not come back.
CANCEL_PATIENCE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Where:
    """The service, and how long it may be away."""

    url: str
    token: str | None
    patience_s: float


@dataclass(frozen=True, slots=True)
class End:
    """How a call ended."""

    workflow: str
    state: str  #: SUCCEEDED, FAILED or CANCELLED
    launched: bool  #: whether it had been given a place; one that is lost may have run unseen
    exit_code: int | None  #: None: no program of it has ended, or it is not known how
    reason: str
    message: str


@dataclass(slots=True)
class Following:
    """One call that is followed. Made and asked by miniwdl's thread, filled by the loop's.

    Args:
        where: The service.
        document: The workflow to run.
        key: So that it is accepted once, however often it is sent.
        log: Called with messages for readers of the run's log.
    """

    where: Where
    document: Mapping[str, Any]
    key: str
    log: Log
    running: threading.Event = field(default_factory=threading.Event)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    def stop(self) -> None:
        """Cancel the call, and end when it is gone."""
        loop().call_soon_threadsafe(self._stop.set)

    async def end(self) -> End:
        """Submit the call and wait for its end.

        Raises:
            Unavailable: The service stayed away for too long.
            FlowschedError: It refused.
        """
        async with Client(self.where.url, self.where.token, start_timeout=0) as client:
            run = await self._asked(lambda: client.submit(self.document, idempotency_key=self.key))
            self.log(False, "submitted", {"workflow": run.id})
            why = asyncio.create_task(self._explained(run))
            try:
                view = await self._unless_stopped(run)
            finally:
                why.cancel()
                await asyncio.gather(why, return_exceptions=True)
            return await self._end_of(client, view)

    async def _unless_stopped(self, run: Run) -> WorkflowView:
        following = asyncio.create_task(self._followed(run))
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait({following, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if following.done():
            return following.result()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        self.log(False, "cancelling", {"workflow": run.id})
        try:
            async with asyncio.timeout(CANCEL_PATIENCE_S):
                await self._asked(lambda: run.cancel("its run of miniwdl was ended"))
                return await self._followed(run)
        except (TimeoutError, Unavailable) as error:
            left = f"{run.id} may still run: `flowsched cancel {run.id}` once the service is back"
            raise Unavailable(f"no sign of the end after {CANCEL_PATIENCE_S:g} s; {left}") from error

    async def _followed(self, run: Run) -> WorkflowView:
        """Read events until the workflow has ended: they come as they happen, so nothing is polled."""
        last_event = 0
        while True:
            try:
                async for event in run.events(last_event):
                    last_event = event.id
                    if event.kind == "task.running":
                        self.running.set()
            except Unavailable:
                pass  # the question below says whether it is back, or for how long it has been away
            view = await self._asked(run.view)
            if is_terminal(view.state):
                return view
            await asyncio.sleep(AGAIN_S)

    async def _explained(self, run: Run) -> None:
        """Say from time to time why a call does not start."""
        wait, logged = ASK_WHY_S, ""
        while True:
            await asyncio.sleep(wait)
            wait *= 2
            if self.running.is_set():
                return
            try:
                reasons = await run.explain()
            except FlowschedError:
                continue  # `_followed` says that the service is away
            text = "; ".join(sorted({f"{reason.code}: {reason.message}" for reason in reasons}))
            if text and text != logged:
                self.log(True, "the task waits", {"workflow": run.id, "why": text})
                logged = text

    async def _end_of(self, client: Client, view: WorkflowView) -> End:
        stage = self.document["stages"][0]["name"]
        task = await self._asked(lambda: client.task(view.id, stage))
        if not task.attempts:
            return End(view.id, view.state, False, None, task.reason, view.reason)
        last = task.attempts[-1]
        code = task.exit_code if view.state == "SUCCEEDED" else last.exit_code
        return End(view.id, view.state, True, code, last.reason, last.message or view.reason)

    async def _asked(self, question: Callable[[], Awaitable[T]]) -> T:
        return await asked(question, self._patience_s, self.log)

    def _patience_s(self) -> float:
        return min(CANCEL_PATIENCE_S, self.where.patience_s) if self._stop.is_set() else self.where.patience_s


async def asked(question: Callable[[], Awaitable[T]], patience_s: Callable[[], float], log: Log) -> T:
    """Ask until there is an answer.

    Raises:
        Unavailable: The service has been away for longer than `patience_s` says.
    """
    now = asyncio.get_running_loop().time
    since, wait, complained = now(), FIRST_WAIT_S, False
    while True:
        try:
            answer = await question()
        except Unavailable as error:
            if now() - since > patience_s():
                raise
            if not complained:
                log(
                    True,
                    "flowsched does not answer; asking again",
                    {"error": str(error), "patience_s": patience_s()},
                )
            complained = True
            await asyncio.sleep(wait)
            wait = min(wait * 2, LONGEST_WAIT_S)
        else:
            if complained:
                log(False, "flowsched answers again", {"seconds": round(now() - since)})
            return answer


_lock = threading.Lock()
_loops: list[asyncio.AbstractEventLoop] = []


def loop() -> asyncio.AbstractEventLoop:
    """The loop of this process that all calls are followed on; it runs in a thread that ends with the process."""
    with _lock:
        if not _loops:
            made = asyncio.new_event_loop()
            threading.Thread(target=made.run_forever, name="flowsched", daemon=True).start()
            _loops.append(made)
        return _loops[0]


def begin(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Run a coroutine on the loop."""
    return asyncio.run_coroutine_threadsafe(work, loop())


async def report_end(where: Where, run: str, state: str, reason: str) -> None:
    """Say how a run has ended.

    Raises:
        FlowschedError: The service does not answer, or knows no call of the run.
    """
    async with Client(where.url, where.token, start_timeout=0) as client:
        await client.report_end(run, state, reason)


async def largest_node(where: Where, log: Log) -> tuple[int, int]:
    """The most cores and the most bytes of memory that one node has; (0, 0) if there is none now.

    Raises:
        Unavailable: The service stayed away for too long.
        FlowschedError: It refused.
    """
    async with Client(where.url, where.token, start_timeout=0) as client:
        nodes = await asked(client.nodes, lambda: where.patience_s, log)
    cores = max((node.allocatable.get("cpu", 0) // 1000 for node in nodes if node.ready), default=0)
    memory = max((node.allocatable.get("memory", 0) for node in nodes if node.ready), default=0)
    return cores, memory
