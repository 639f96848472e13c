"""Applications of Spark's kind on a virtual clock: a driver that makes its executors' pods only once it runs.

So when a driver waits for a node, its executors do not exist, and whoever looks at pods alone starts drivers until no room is left
for any executor. Pods are foreign ones, as Spark makes them on Kubernetes: here the engine is told of them and binds them, and
this module plays the kubelets and the drivers.

An application computes as fast as it has executors. As Spark does, it begins once enough of them have registered, or after a while
with whatever it has, if that is at least one; it has no use for cores it does not get, and gives all back at its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bench.virtual.drive import Drive
from flowsched.engine.events import EngineEvent, Tick
from flowsched.engine.step import Step
from flowsched.executor.foreign import (
    ForeignGroup,
    ForeignPod,
    GroupSeen,
    PodLeft,
    PodTemplate,
    PodWaits,
    RoomTaken,
)
from flowsched.workflow.spec import Resources

DRIVER, EXECUTOR = "driver", "executor"


@dataclass(frozen=True, slots=True)
class Application:
    """What one asks for and what it has to compute.

    Args:
        name: Unique.
        pod: What the driver and each executor take.
        executors: How many it makes.
        work_ms: Core ms that its executors compute together.
        begins_with: Executors that must have registered before it begins …
        waits_ms: … or it begins after so long with at least one; None = it waits for them.
        driver_ms: From the driver's start to the moment at which it makes its executors.
        min_resources: Room that must be there before the driver starts; None = there is no PodGroup, its pods come one by one.
        queues, selectors: By role.
    """

    name: str
    pod: Resources
    executors: int
    work_ms: int
    begins_with: int
    waits_ms: int | None
    driver_ms: int = 5_000
    min_resources: Resources | None = None
    queues: Mapping[str, str] = field(default_factory=dict)
    selectors: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)


class _Due(Tick, frozen=True):
    """Something happens to an application, unless it has changed since."""

    application: str
    change: int


@dataclass(slots=True)
class _Life:
    """How far an application has got.

    `up`: executors that run; `left_ms`: core ms still to compute as of `since_ms`; `change` counts what altered its pace.
    """

    application: Application
    left_ms: int
    since_ms: int = 0
    up: int = 0
    begun: bool = False
    asked_ms: int | None = None  #: when it made its executors
    change: int = 0


@dataclass
class ApplicationDrive(Drive):
    """A cluster on which such applications run.

    Attributes:
        drivers: Applications whose driver has a node and has not ended.
        most_drivers: How many they were at most.
        finished: Application -> when it ended, ms.
        computing_ms: Core ms that executors computed; `held_ms` core ms that any pod was up.
    """

    drivers: set[str] = field(default_factory=set)
    most_drivers: int = 0
    finished: dict[str, int] = field(default_factory=dict)
    held_ms: int = 0
    _lives: dict[str, _Life] = field(default_factory=dict)
    _pods: dict[str, tuple[str, str]] = field(default_factory=dict)  #: uid -> (application, role)
    _on: dict[str, int] = field(default_factory=dict)  #: uid -> since when it has a node

    def arrive(self, application: Application, at: int = 0) -> None:
        """An application is handed in: its driver's pod appears."""
        self._lives[application.name] = _Life(application, application.work_ms)
        for role in (DRIVER,) if application.min_resources is not None else (DRIVER, EXECUTOR):
            self.at(at, GroupSeen(self._group(application, role, at)))
        self._make(application, DRIVER, 0, at)

    @property
    def idle(self) -> bool:
        """Whether nothing will ever happen any more."""
        return not self._heap

    def _group(self, application: Application, role: str, at: int) -> ForeignGroup:
        key = self._group_key(application, role)
        gang = application.min_resources is not None
        queue = application.queues.get(role, "default")
        return ForeignGroup(
            key, "spark", key, queue, gang=gang, min_resources=application.min_resources, created_ms=at
        )

    def _group_key(self, application: Application, role: str) -> str:
        """One PodGroup of both, or each role's pods by themselves."""
        return application.name if application.min_resources is not None else f"{application.name}-{role}"

    def _make(self, application: Application, role: str, number: int, at: int) -> None:
        uid = f"{application.name}-{role}-{number}"
        self._pods[uid] = (application.name, role)
        template = PodTemplate(application.pod, application.selectors.get(role, ()))
        key = self._group_key(application, role)
        self.at(at, PodWaits(ForeignPod(uid, "spark", uid, "1", key, role, template, created_ms=at)))

    def _act(self, result: Step) -> None:
        super()._act(result)
        for bind in result.binds:
            name, role = self._pods[bind.uid]
            self._on[bind.uid] = self.now
            if role == DRIVER:
                self.drivers.add(name)
                self.most_drivers = max(self.most_drivers, len(self.drivers))
            pod = self._lives[name].application.pod
            up = self.now + self.startup_ms
            queue = self._lives[name].application.queues.get(role, "default")
            self.at(up, RoomTaken(bind.uid, bind.node, pod, queue, bind.group, role, name=bind.uid))

    def _happens(self, event: EngineEvent) -> bool:
        if isinstance(event, RoomTaken) and event.owner in self._pods:
            if event.owner not in self._on:
                return False  # it ended before it was up
            self._up(*self._pods[event.owner])
        if isinstance(event, _Due):
            self._due(event)
            return False
        return super()._happens(event)

    def _up(self, name: str, role: str) -> None:
        """A pod runs."""
        life = self._lives[name]
        if role == DRIVER:
            self.at(self.now + life.application.driver_ms, _Due(name, life.change))
            return
        self._settle(life)
        life.up += 1
        self._pace(life)

    def _due(self, event: _Due) -> None:
        life = self._lives[event.application]
        application = life.application
        if event.change != life.change or application.name in self.finished:
            return
        if life.asked_ms is None:  # the driver is ready for its executors
            life.asked_ms = self.now
            for number in range(application.executors):
                self._make(application, EXECUTOR, number, self.now)
            life.change += 1
            return
        self._settle(life)
        if life.begun and life.left_ms <= 0:
            self._end(application)
        else:
            self._pace(life)

    def _settle(self, life: _Life) -> None:
        """What has been computed up to now."""
        if life.begun:
            life.left_ms -= life.up * (self.now - life.since_ms)
        life.since_ms = self.now

    def _pace(self, life: _Life) -> None:
        """When it will be done, or may begin, as things are."""
        application = life.application
        life.change += 1
        due: int | None = None
        if not life.begun:
            asked = life.asked_ms if life.asked_ms is not None else self.now
            waited = application.waits_ms is not None and self.now >= asked + application.waits_ms
            life.begun = life.up >= application.begins_with or (waited and life.up > 0)
            if not life.begun and application.waits_ms is not None and not waited:
                due = asked + application.waits_ms
        if life.begun and life.up:
            due = self.now + max(0, -(-life.left_ms // life.up))
        if due is not None:
            self.at(due, _Due(application.name, life.change))

    def _end(self, application: Application) -> None:
        """It is done: all its pods end."""
        self.finished[application.name] = self.now
        self.drivers.discard(application.name)
        for number in range(-1, application.executors):
            role = DRIVER if number < 0 else EXECUTOR
            uid = f"{application.name}-{role}-{max(number, 0)}"
            since = self._on.pop(uid, None)
            if since is not None:
                self.held_ms += (self.now - since) * application.pod.cpu_millicores // 1000
            key = self._group_key(application, role)
            self.at(self.now, PodLeft(uid, since is not None, key if since is not None else "", role))
