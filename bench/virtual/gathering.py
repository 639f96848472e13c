"""Gangs on a virtual clock as they behave in earnest: a member gets nowhere until all members of its gang have started.

`drive` lets every pod run for its time, whoever is missing. Here the clock of a gang starts when its last member does (the
rendezvous of MPI, of torch.distributed, of a parameter server). Until then the others hold their cores for nothing. With a
patience they give up after a while, as those libraries do (torch waits ten minutes), and their controller starts them anew;
without one they wait for ever, and what can never move again is seen as such: nothing is left to happen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from bench.virtual.drive import Drive, Fate
from flowsched.engine.events import EngineEvent
from flowsched.executor.protocol import Pod, PodEnded, PodStarted

#: Why a member ended that waited for the others in vain.
ALONE: Final = "the other members never came"


class GangName(NamedTuple):
    """Which incarnation of which gang."""

    workflow: str
    stage: str
    shard: int
    generation: int


@dataclass(frozen=True, slots=True)
class Held:
    """How long one pod held its cores, and how much of that it waited for others.

    `waited_ms` counts from its start to the moment at which the last member was there, or to its end if that never came.
    """

    workflow: str
    cpu_millicores: int
    start_ms: int
    end_ms: int
    waited_ms: int


@dataclass(slots=True)
class Member:
    """One pod that has a node. `met_ms`: when all of its gang were there; None = they are not."""

    pod: Pod
    fate: Fate
    start_ms: int
    met_ms: int | None = None


@dataclass
class GatheringDrive(Drive):
    """A cluster whose gangs rendezvous.

    Args:
        patience_ms: How long (ms) a member waits for the others before it exits with 1; None = for ever.

    Attributes:
        held: What pods that have ended held.
        given_up: How many lost their patience.
    """

    patience_ms: Callable[[Pod], int] | None = None
    held: list[Held] = field(default_factory=list)
    given_up: int = 0
    _members: dict[str, Member] = field(default_factory=dict)
    _gangs: dict[GangName, list[str]] = field(default_factory=dict)

    @property
    def idle(self) -> bool:
        """Whether nothing will ever happen any more."""
        return not self._heap

    def waiting(self) -> list[Pod]:
        """Members that hold cores and wait for others now, in the order of their names."""
        alone = [m.pod for m in self._members.values() if m.pod.gang is not None and m.met_ms is None]
        return sorted(alone, key=lambda pod: pod.name)

    def all_held(self, until_ms: int) -> list[Held]:
        """What was held up to a moment, by pods that have ended and by those that are still there."""
        still = (self._told(member, until_ms) for member in self._members.values())
        return [*self.held, *still]

    def _launch(self, pod: Pod) -> None:
        fate = self.fate(pod)
        start = self.now + self.startup_ms
        member = self._members[pod.name] = Member(pod, fate, start)
        self.at(start, PodStarted(pod.name, start))
        if pod.gang is None:
            member.met_ms = start
            self._end(member, start)
            return
        name = GangName(pod.workflow, pod.stage, pod.shard, pod.gang.generation)
        there = self._gangs.setdefault(name, [])
        there.append(pod.name)
        if len(there) >= pod.gang.roster.size:
            self._meet([self._members[each] for each in there])
        elif self.patience_ms is not None:
            end = start + self.patience_ms(pod)
            self.at(end, PodEnded(pod.name, end, 1, "", ALONE))

    def _meet(self, members: Iterable[Member]) -> None:
        """All are there: their time runs from now on."""
        gathered = list(members)
        met = max(member.start_ms for member in gathered)
        for member in gathered:
            if member.met_ms is None:
                member.met_ms = met
                self._end(member, met)

    def _end(self, member: Member, since: int) -> None:
        self.at(since + member.fate.runtime_ms, self.ending(member.pod, member.fate, since))

    def _happens(self, event: EngineEvent) -> bool:
        if isinstance(event, PodEnded):
            member = self._members.get(event.name)
            if member is not None and event.message == ALONE and member.met_ms is not None:
                return False  # they came in time
        happens = super()._happens(event)
        if happens and isinstance(event, PodEnded):
            self.given_up += event.message == ALONE
            self._leave(event.name)
        return happens

    def _leave(self, name: str) -> None:
        """A pod is no more: it keeps no core, and nobody meets it."""
        member = self._members.pop(name, None)
        if member is None:
            return
        self.held.append(self._told(member, self.now))
        pod = member.pod
        if pod.gang is None:
            return
        key = GangName(pod.workflow, pod.stage, pod.shard, pod.gang.generation)
        there = self._gangs.get(key, [])
        if name in there:
            there.remove(name)
        if not there:
            self._gangs.pop(key, None)

    def _told(self, member: Member, end: int) -> Held:
        met = member.met_ms if member.met_ms is not None else end
        waited = max(0, min(met, end) - member.start_ms)
        return Held(member.pod.workflow, member.pod.cpu_millicores, member.start_ms, end, waited)
