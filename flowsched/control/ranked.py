"""Calls get the ranks that plans give them: in their documents where the plan is there first, else in the leader's memory.

A run's first calls come before its plan: Cromwell's metadata are 404 for some seconds, and a client may post a plan at any time.
Such a call is accepted without a rank, and is ranked as soon as the plan is there. Its document stays as it is, so the leader
of a new term asks for the ranks of all calls that have none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Protocol

import msgspec
import structlog

from flowsched.control.dispatch import Dispatcher
from flowsched.engine.events import CallsRanked
from flowsched.errors import FlowschedError
from flowsched.workflow.spec import Call, WorkflowSpec

log = structlog.get_logger(__name__)

#: How often it is looked whether another process has made a plan, or this one leads now. Twice as long: calls of a run that another
#: replica has planned wait twice as long for their ranks.
LOOK_S: Final = 10.0
#: Calls that are asked for before others get their turn on the event loop.
_SLICE: Final = 1_000


class Ranks(Protocol):
    """Who knows ranks: `plans.PlanBook`."""

    async def rank_ms(self, call: Call, labels: Mapping[str, str]) -> int | None:
        """See `PlanBook.rank_ms`."""
        ...


async def with_rank(spec: WorkflowSpec, raw: bytes, known: Ranks) -> tuple[WorkflowSpec, bytes]:
    """The document with `call.rank_ms`, where it is a call that says none and a plan does; else as it is."""
    if spec.call is None or spec.call.rank_ms:
        return spec, raw
    rank = await known.rank_ms(spec.call, spec.labels)
    if not rank:
        return spec, raw
    document = msgspec.json.decode(raw)
    document["call"]["rank_ms"] = rank
    return replace(spec, call=replace(spec.call, rank_ms=rank)), msgspec.json.encode(document)


class NewestPlan(Ranks, Protocol):
    """Who knows ranks, and which plan is the newest: `plans.PlanBook`."""

    async def newest(self) -> str | None:
        """See `PlanBook.newest`."""
        ...


class LateRanks:
    """Ranks calls that were accepted before their plan was known.

    Args:
        plans: Knows ranks.
        leading: The dispatcher, which holds the calls that live, while this process leads.
    """

    def __init__(self, plans: NewestPlan, leading: Callable[[], Dispatcher | None]) -> None:
        self._plans = plans
        self._leading = leading

    async def run(self) -> None:
        """Look for ever, for new plans of other processes and for calls that came while a plan was made."""
        seen: tuple[Dispatcher | None, str | None] = None, None
        again = False
        while True:
            try:
                now = self._leading(), await self._plans.newest()
                if now != seen or again:
                    await self.rank()
                    seen, again = (
                        now,
                        now != seen,
                    )  # a call that was being accepted meanwhile is found by the next look
            except FlowschedError as error:
                log.warning("calls cannot be ranked by their plans yet", error=str(error))
            await asyncio.sleep(LOOK_S)

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
            for ident, each in dispatcher.state.runs.items()
            if (call := each.spec.call) is not None and not call.rank_ms and run in call.run
        ]
        ranks: dict[str, int] = {}
        for number, (ident, call, labels) in enumerate(waiting):
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            if rank_ms := await self._plans.rank_ms(call, labels):
                ranks[ident] = rank_ms
        if ranks:
            dispatcher.tell([CallsRanked(ranks)])
