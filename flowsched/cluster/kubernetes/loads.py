"""What node agents measured, put together: one event for all nodes every few seconds, and what each pod has moved so far.

Of a node's disk what is ours is what control groups count for our pods; where no agent can tell it, nobody can (-1). Of its
network card what is ours is the copies; what pods send each other is not. A mount of several nodes is told only while all agents
tell: of a part of its clients nobody could say what it carries.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from flowsched.cluster.kubernetes.agentnews import NodeLoad
from flowsched.cluster.measuring import INTERVAL_S
from flowsched.executor.nodes import Load, LoadMeasured

#: What an agent measured counts for so long: three of its measurements may be late.
_FRESH_S: Final = 3 * INTERVAL_S
#: Of so many pods it is remembered what they moved.
_KEPT: Final = 50_000


@dataclass(slots=True)
class Loads:
    """What all agents measured last."""

    is_ours: Callable[[str], bool] = lambda _: False  #: whether a pod, by uid, is one of ours
    _last: dict[str, tuple[float, NodeLoad]] = field(default_factory=dict)
    _told: dict[str, float] = field(default_factory=dict)
    _used: dict[str, tuple[int, int]] = field(default_factory=dict)  #: uid -> (bytes, CPU ms) in all
    _due: float = 0.0

    def hear(self, node: str, load: NodeLoad, now: float) -> None:
        """An agent has measured its node.

        Args:
            node: Whose.
            load: What it told.
            now: The loop's time, s.
        """
        self._last[node] = now, load
        for uid, (_, total, cpu_ms) in (load.pods or {}).items():
            self._used.pop(uid, None)
            self._used[uid] = total, cpu_ms
        while len(self._used) > _KEPT:
            del self._used[next(iter(self._used))]

    def forget(self, node: str) -> None:
        """The agent of a node is gone."""
        self._last.pop(node, None)
        self._told.pop(node, None)

    def used_by(self, uid: str) -> tuple[int, int]:
        """Bytes of its node's disk that a pod has moved (-1 = nobody told it) and its CPU time in ms, as they were last told."""
        return self._used.get(uid, (-1, 0))

    def event(self, now: float, agents: Collection[str]) -> LoadMeasured | None:
        """What is new, once in `INTERVAL_S`; None where there is nothing to tell.

        Args:
            now: The loop's time, s.
            agents: The nodes with an agent.
        """
        if now < self._due:
            return None
        self._due = now + INTERVAL_S
        fresh = {node: load for node, (at, load) in self._last.items() if now - at <= _FRESH_S}
        news = [node for node in fresh if self._told.get(node) != self._last[node][0]]
        self._told |= {node: self._last[node][0] for node in news}
        nodes = tuple(self._disk(node, fresh[node]) for node in news if fresh[node].disk_bytes is not None)
        links = tuple(each for node in news for each in _card(node, fresh[node]))
        whole = bool(news) and set(agents) <= fresh.keys()
        storages = _mounts(fresh.values()) if whole else ()
        return LoadMeasured(nodes, storages, links) if nodes or links or storages else None

    def _disk(self, node: str, load: NodeLoad) -> Load:
        rate = _rate(load.disk_bytes or 0, load)
        if load.pods is None:
            return Load(node, rate)
        return Load(
            node,
            rate,
            _rate(sum(moved for uid, (moved, _, _) in load.pods.items() if self.is_ours(uid)), load),
        )


def _rate(amount: int, load: NodeLoad) -> int:
    return amount * 1000 // max(1, load.over_ms)


def _card(node: str, load: NodeLoad) -> tuple[Load, ...]:
    if load.card is None:
        return ()
    ways = zip(("in", "out"), load.card, load.copied, strict=True)
    return tuple(Load(f"{node}/{way}", _rate(all_, load), _rate(ours, load)) for way, all_, ours in ways)


def _mounts(loads: Collection[NodeLoad]) -> tuple[Load, ...]:
    """Of each mount what all nodes read from and write to it."""
    rates: dict[str, int] = {}
    for load in loads:
        for source, (read, wrote) in load.mounts.items():
            for way, amount in (("read", read), ("write", wrote)):
                rates[f"{source}/{way}"] = rates.get(f"{source}/{way}", 0) + _rate(amount, load)
    return tuple(Load(name, rates[name]) for name in sorted(rates))
