"""The pod index: which pods are on which nodes, as far as rules of other pods look at them.

Pods are kept as *kinds* (everything a rule can ask of a pod) with the nodes they are on. The index keeps the questions of
rules as *counts*: for one question, how many pods on each node answer it with yes. A question is asked of every kind once, then
its counts follow each pod that comes or goes, so that asking again costs nothing. The counts least recently asked
for are dropped; they can always be made again.

Nothing here knows nodes but by index, nor what the rules mean for them: see the plugins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowsched.executor.constraints import HostPort, PodTerm, Rules, Selector
from flowsched.executor.selectors import Labels, collide, selects, term_selects
from flowsched.statement import Statement

Counts = NDArray[np.int64]

#: How many questions are remembered: 8 bytes a node each.
_QUESTIONS: Final = 256

_Key = tuple[str, tuple[tuple[str, str], ...], tuple[PodTerm, ...], tuple[HostPort, ...], bool]


@dataclass(slots=True, eq=False)
class _Kind:
    """Pods that no rule can tell apart. Made with its first pod, dropped with its last."""

    namespace: str
    labels: dict[str, str]
    anti_affinity: tuple[PodTerm, ...]
    ports: tuple[HostPort, ...]
    leaving: bool
    where: dict[int, int]  #: node index -> how many
    counts: list[_Count]  #: the questions it answers with yes


@dataclass(slots=True, eq=False)
class _Count:
    """The answer to one question. `nodes`: (at least N,) how many pods answer it with yes."""

    asks: Callable[[_Kind], bool]
    nodes: Counts


class Peers:
    """The pods on nodes, for the rules of others.

    Attributes:
        namespaces: The labels of every namespace. Change them by `set_namespace`.
    """

    def __init__(self) -> None:
        self.namespaces: dict[str, Labels] = {}
        self._kinds: dict[_Key, _Kind] = {}
        self._guards: dict[_Key, _Kind] = {}  #: the kinds that keep others away
        self._guarded: dict[str, int] = {}  #: topology key -> in how many terms of guards
        self._counts: dict[object, _Count] = {}  #: the one asked for last is last
        self._nodes = 0
        self._room = 0  #: how many nodes the counts have room for

    # ---- what is where ----

    def set_namespace(self, name: str, labels: Labels | None) -> None:
        """Note the labels of a namespace; None = there is no such namespace."""
        if self.namespaces.get(name) == labels:
            return
        if labels is None:
            del self.namespaces[name]
        else:
            self.namespaces[name] = dict(labels)
        self._forget_counts()

    def resize(self, nodes: int) -> None:
        """Say how many nodes there are. Pods of nodes beyond must have left."""
        self._nodes = nodes
        if nodes > self._room:
            self._room = max(nodes, 2 * self._room, 16)
            self._forget_counts()

    def count(self, rules: Rules, node: int, leaving: bool, pods: int) -> None:
        """Note that so many pods have come to a node, or gone from it (negative).

        Args:
            rules: The facts that rules of other pods may see of such a pod. Demands that bind no other pod do not matter.
            node: The node's index.
            leaving: Whether the pod is being taken away: it still keeps others away, but spread counts it no more.
            pods: How many.
        """
        key = (rules.namespace, rules.labels, rules.anti_affinity, rules.ports, leaving)
        kind = self._kinds.get(key) or self._meet(key)
        here = kind.where.get(node, 0) + pods
        if here:
            kind.where[node] = here
        else:
            kind.where.pop(node, None)
        for count in kind.counts:
            count.nodes[node] += pods
        if not kind.where:
            self._part(key, kind)

    def put(self, rules: Rules, nodes: Iterable[int], statement: Statement) -> None:
        """Suppose a pod on each of these nodes."""
        for node in nodes:
            self.count(rules, node, False, +1)
            statement.undo_with(partial(self.count, rules, node, False, -1))

    def _meet(self, key: _Key) -> _Kind:
        namespace, labels, terms, ports, leaving = key
        kind = self._kinds[key] = _Kind(namespace, dict(labels), terms, ports, leaving, {}, [])
        kind.counts.extend(count for count in self._counts.values() if count.asks(kind))
        if terms:
            self._guards[key] = kind
            for term in terms:
                self._guarded[term.topology_key] = self._guarded.get(term.topology_key, 0) + 1
        return kind

    def _part(self, key: _Key, kind: _Kind) -> None:
        del self._kinds[key]
        if kind.anti_affinity:
            del self._guards[key]
            for term in kind.anti_affinity:
                self._guarded[term.topology_key] -= 1
                if not self._guarded[term.topology_key]:
                    del self._guarded[term.topology_key]

    # ---- what rules ask ----

    def selected(self, terms: tuple[PodTerm, ...]) -> Counts:
        """(N,) pods that *all* these terms select. Live: read only."""

        def asks(kind: _Kind) -> bool:
            return all(term_selects(t, kind.namespace, kind.labels, self.namespaces) for t in terms)

        return self._ask(("selected", tuple((*_who(term),) for term in terms)), asks)

    def spread(self, namespace: str, selector: Selector | None) -> Counts:
        """(N,) pods that a spread constraint counts: not those that are leaving, and none for an empty selector."""

        def asks(kind: _Kind) -> bool:
            counted = bool(selector) and not kind.leaving and kind.namespace == namespace
            return counted and selects(selector, kind.labels)

        return self._ask(("spread", namespace, selector), asks)

    def using(self, port: HostPort) -> Counts:
        """(N,) pods that hold a host port which collides with this one. Live: read only."""
        return self._ask(("port", port), lambda kind: any(collide(port, used) for used in kind.ports))

    def guards_against(self, rules: Rules) -> dict[str, Counts]:
        """By topology key, (N,) pods that keep such a pod away by their required anti-affinity. Live: read only."""
        if not self._guarded:
            return {}
        labels = dict(rules.labels)

        def question(key: str) -> Callable[[_Kind], bool]:
            return lambda kind: any(
                term.topology_key == key and term_selects(term, rules.namespace, labels, self.namespaces)
                for term in kind.anti_affinity
            )

        return {
            key: self._ask(("against", key, rules.namespace, rules.labels), question(key), self._guards)
            for key in sorted(self._guarded)
        }

    def _ask(
        self, question: object, asks: Callable[[_Kind], bool], among: Mapping[_Key, _Kind] | None = None
    ) -> Counts:
        count = self._counts.pop(question, None)
        if count is None:
            count = _Count(asks, np.zeros(self._room, dtype=np.int64))
            for kind in (self._kinds if among is None else among).values():
                if asks(kind):
                    kind.counts.append(count)
                    for node, pods in kind.where.items():
                        count.nodes[node] += pods
            while len(self._counts) >= _QUESTIONS:
                self._drop(next(iter(self._counts)))
        self._counts[question] = count
        return count.nodes[: self._nodes]

    def _drop(self, question: object) -> None:
        gone = self._counts.pop(question)
        for kind in self._kinds.values():
            if gone in kind.counts:
                kind.counts.remove(gone)

    def _forget_counts(self) -> None:
        self._counts.clear()
        for kind in self._kinds.values():
            kind.counts.clear()


def _who(term: PodTerm) -> tuple[Selector | None, tuple[str, ...], Selector | None]:
    """Which pods a term means, whatever its topology."""
    return term.selector, term.namespaces, term.namespace_selector
