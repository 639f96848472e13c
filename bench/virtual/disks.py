"""Gangs that read their data while they train, from disks that all readers of a node share: fluid, max-min fair.

Each worker reads its share of the data step by step while it computes on the step before, so a step takes the longer of both,
and, as trainings are synchronous, the slowest worker's. So a worker beside too many readers slows its whole gang. The disks
are resources of `flowsched.simulation.network`; times of the network are rounded up to the engine's ms.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from bench.virtual.drive import Fate
from bench.virtual.gathering import GatheringDrive, Member
from flowsched.engine.events import EngineEvent, Tick
from flowsched.simulation.network import Network

#: In how many steps a training reads its data. More change little: slow ones and fast ones meet after each.
STEPS: Final = 20
#: ms: the network's floating point does not tell less apart.
_CRUMB: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Reading:
    """What the members of one workflow's gang do: bytes each of a role reads in all, by role, over `compute_ms` of computing."""

    compute_ms: int
    bytes_by_role: dict[str, int]


class _Wake(Tick, frozen=True):
    """A flow may have ended, or the computing of a step."""

    workflow: str = ""
    step: int = -1


@dataclass(slots=True)
class _Gang:
    """A gang in the middle of a step: what is still to come of it."""

    members: list[Member]
    step: int = -1
    flows: set[tuple[str, str, int]] = field(default_factory=set)
    computed: bool = False


@dataclass
class DiskDrive(GatheringDrive):
    """A cluster whose nodes' disks are shared. `readings`: by workflow; workflows without one take their fate's time."""

    readings: dict[str, Reading] = field(default_factory=dict)
    _network: Network = field(init=False)
    _gangs_reading: dict[str, _Gang] = field(default_factory=dict)
    _disk: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._network = Network([float(node.disk_rate) for node in self.nodes])
        self._disk = {node.name: number for number, node in enumerate(self.nodes)}

    def _meet(self, members: Iterable[Member]) -> None:
        gathered = list(members)
        workflow = gathered[0].pod.workflow
        if workflow not in self.readings:
            super()._meet(gathered)
            return
        met = max(member.start_ms for member in gathered)
        for member in gathered:
            member.met_ms = met
        self._gangs_reading[workflow] = _Gang(gathered)
        self.at(met, _Wake(workflow, -1))

    def _happens(self, event: EngineEvent) -> bool:
        if isinstance(event, _Wake):
            self._wake(event)
            return False
        return super()._happens(event)

    def _wake(self, event: _Wake) -> None:
        self._catch_up()
        gang = self._gangs_reading.get(event.workflow)
        if gang is not None and event.step == gang.step:
            gang.computed = True
            self._next(event.workflow, gang)
        self._watch()

    def _catch_up(self) -> None:
        """Let the network's time pass up to now."""
        now = self.now / 1000
        while (end := self._network.next_end()) is not None and _ms(end) <= self.now:
            for flow in self._network.advance(end):
                assert isinstance(flow, tuple)
                gang = self._gangs_reading[flow[0]]
                gang.flows.discard(flow)
                self._next(flow[0], gang)
        if now > self._network.now:
            self._network.advance(now)

    def _watch(self) -> None:
        """Look again when the first flow ends, as things are."""
        end = self._network.next_end()
        if end is not None:
            self.at(_ms(end), _Wake())

    def _begin(self, workflow: str, gang: _Gang) -> None:
        """The next step of all members: read, and compute."""
        reading = self.readings[workflow]
        for member in gang.members:
            seat = member.pod.gang
            size = reading.bytes_by_role.get(seat.role, 0) // STEPS if seat is not None else 0
            if size:
                flow = (workflow, member.pod.name, gang.step)
                gang.flows.add(flow)
                self._network.start(flow, size, (self._disk[member.pod.node],))
        gang.computed = False
        self.at(self.now + reading.compute_ms // STEPS, _Wake(workflow, gang.step))

    def _next(self, workflow: str, gang: _Gang) -> None:
        """When all have read and computed, the next step begins, or they are done."""
        if gang.flows or not gang.computed:
            return
        gang.step += 1
        if gang.step < STEPS:
            self._begin(workflow, gang)
            return
        del self._gangs_reading[workflow]
        for member in gang.members:
            self.at(self.now, self.ending(member.pod, Fate(0), self.now))

    def _leave(self, name: str) -> None:
        member = self._members.get(name)
        workflow = member.pod.workflow if member is not None else ""
        gang = self._gangs_reading.get(workflow)
        if gang is not None and any(each is member for each in gang.members):
            for flow in gang.flows:  # one is lost, the others get nowhere
                self._network.stop(flow)
            del self._gangs_reading[workflow]
        super()._leave(name)


def _ms(seconds: float) -> int:
    """The first ms at which something of the network's clock has happened."""
    return math.ceil(seconds * 1000 - _CRUMB)
