"""The policy as clients ask about it: the profile in force, plug-ins, a cycle in a file, and what would let a group start."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from msgspec import structs

from flowsched.aside import LARGE_BYTES, aside
from flowsched.control.leading.leader import Leader
from flowsched.control.profiles import Found, ProfileBook
from flowsched.control.views import moment
from flowsched.engine.admission import recorded_idle
from flowsched.engine.events import Tick
from flowsched.engine.explain import Explanation, situations_of
from flowsched.engine.state import EngineState
from flowsched.errors import Conflict, FlowschedError
from flowsched.scheduling.explain.recording import Draft, Tape
from flowsched.scheduling.explain.remedies import outlook
from flowsched.scheduling.policy.extension import Guard
from flowsched.scheduling.policy.profile import document_of, guards_of
from flowsched.workflow.views import PluginView, ProfileView, RefusedView

#: How long a snapshot waits for a cycle.
SNAPSHOT_S: Final = 5.0
#: How long an answer waits until the profile is in force: one step.
IN_FORCE_S: Final = 2.0
_POLL_S: Final = 0.005


class PolicyDesk:
    """Shows, replaces and records the scheduler's policy."""

    def __init__(self, book: ProfileBook, leader: Leader) -> None:
        self.book = book
        self._leader = leader
        self._recording = asyncio.Lock()
        book.changed = leader.profile_changed

    async def run(self) -> None:
        """Watch the profile file, and the plugins, for ever."""
        await self.book.run()

    async def show(self) -> ProfileView:
        """The profile in force, and what was refused since."""
        book = self.book
        refused = book.refused
        return ProfileView(
            name=book.profile.name,
            source=book.source,
            since=moment(book.since_ms),
            kept=book.persists,
            document=document_of(book.profile),
            refused=None
            if refused is None
            else RefusedView(
                at=moment(refused.at_ms), source=refused.source, faults=list(map(asdict, refused.faults))
            ),
        )

    async def apply(self, raw: bytes) -> ProfileView:
        """Check a profile document (YAML or JSON); a good one is in force with the next step, a bad one changes nothing."""
        await self.book.apply(raw)
        dispatcher = self._leader.dispatcher
        if dispatcher is not None:
            for _ in range(int(IN_FORCE_S / _POLL_S)):
                await dispatcher.rest()
                if dispatcher.state.policy.profile is self.book.profile:
                    break
                await asyncio.sleep(_POLL_S)
        return await self.show()

    async def plugins(self) -> list[PluginView]:
        """Plugins that are installed, and how those in force fared."""
        profile = self.book.profile
        guards = {each.name: guards_of(each) for each in (profile, *profile.queues.values())}
        return plugin_views(self.book.refresh_plugins(), guards)

    async def snapshot(self) -> bytes:
        """The next cycle in one file: what it was given, and what it decided.

        Raises:
            NotLeader: Another process leads, on another root.
            Unavailable: This process does not lead yet.
            Conflict: No cycle took place for a while.
        """
        async with self._recording:
            found = await self._recorded()
        if isinstance(found, FlowschedError):
            raise found
        return await asyncio.to_thread(found.packed)

    async def _recorded(self) -> Draft | FlowschedError:
        dispatcher = self._leader.dispatcher
        if dispatcher is None:
            raise self._leader.leadership.not_leading()
        state = dispatcher.state
        tape: Tape = []
        await dispatcher.rest()
        dispatcher.tape, steps = tape, dispatcher.steps
        try:
            dispatcher.report([Tick()])
            for _ in range(int(SNAPSHOT_S / _POLL_S)):
                if tape:
                    return tape[-1]
                await dispatcher.rest()
                if dispatcher.steps > steps and not state.work.ready and not state.foreign.groups:
                    return recorded_idle(state, self.book.now())
                await asyncio.sleep(_POLL_S)
        finally:
            await dispatcher.rest()
            dispatcher.tape = None
        raise Conflict(
            f"no scheduling cycle took place within {SNAPSHOT_S:.0f} s (as many pods as may be are on their way, "
            "or what waits is paused): ask again later"
        )


def plugin_views(found: Found, guards: dict[str, list[Guard]]) -> list[PluginView]:
    """The installed plugins, and how they fare.

    Args:
        found: The installed plugins.
        guards: By profile in force, the plugins it names.
    """
    views = []
    in_force = {guard.name for each in guards.values() for guard in each}
    for name in sorted({*found.origins, *in_force}):
        what = found.plugins.get(name)
        used: Sequence[Guard] = [guard for each in guards.values() for guard in each if guard.name == name]
        troubles = [guard.trouble for guard in used if guard.trouble.times]
        gone = "" if name in found.origins else "it is in force, but not installed any more"
        parameters: dict[str, Any] = {} if what is None else {p.name: p.default for p in what.parameters}
        views.append(
            PluginView(
                name=name,
                kind="" if what is None else what.kind.value,
                origin=found.origins.get(name, ""),
                about="" if what is None else what.about,
                parameters=parameters,
                used_by=[profile for profile, each in guards.items() if any(g.name == name for g in each)],
                problem=found.broken.get(name, gone),
                failures=sum(trouble.times for trouble in troubles),
                last_failure=troubles[-1].last if troubles else "",
            )
        )
    return views


# ---- remedies, worked out on a copy beside the loop that decides ----


#: For so many backlog items of one answer. Each costs up to `remedies.TRIES` cycles.
MOST: Final = 3


async def with_outlooks(state: EngineState, found: Sequence[Explanation], now: int) -> list[Explanation]:
    """The same explanations, the first few with what binds them and what would let them start."""
    asked = dict.fromkeys(each.group for each in found if each.group is not None)
    situations = situations_of(state, list(asked)[:MOST], now)  # no step runs meanwhile
    if not situations:
        return list(found)
    outlooks = await aside(
        LARGE_BYTES + 1, lambda: {group: outlook(each) for group, each in situations.items()}
    )
    return [
        each if each.group not in outlooks else structs.replace(each, outlook=outlooks[each.group])
        for each in found
    ]
