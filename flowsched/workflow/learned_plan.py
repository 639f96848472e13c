"""The plan that was learned: which kinds of tasks follow which, from the calls that engines sent one at a time.

A call names the nodes of its run that wrote its inputs (`Call.after`). Kinds are those under which runtimes are learned, so an
edge between two kinds holds in every later run that has them. Runtimes are in `estimates`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

from flowsched.workflow.estimates import ENOUGH, Estimates, typical_ms
from flowsched.workflow.plan import EdgePlan, NodePlan, Plan, ranks

#: Kinds that have followers at most, and followers of one of them: those that came first stay.
_KINDS: Final = 20_000
_FOLLOWERS: Final = 64
#: Nodes of runs whose kinds are remembered; the oldest go first.
_NODES: Final = 100_000
#: Nodes of one plan at most: further ones are too far away to decide an order.
_FAR: Final = 200
#: Plans that are kept at a time; a plan is made again in microseconds.
_MOST_PLANS: Final = 256
#: After so many calls ranks are worked out again.
_AGAIN: Final = 256


class LearnedPlan:
    """Kinds and the kinds that follow them. It has no cycle: an edge that would close one is left out."""

    __slots__ = ("_followers", "_kinds", "_noted", "_plans", "_ranks")

    def __init__(self) -> None:
        self._followers: dict[str, dict[str, None]] = {}
        self._kinds: OrderedDict[tuple[str, str], str] = (
            OrderedDict()
        )  #: (run, node) -> the kind of its tasks
        self._plans: dict[str, Plan] = {}
        self._ranks: dict[str, tuple[tuple[int, int], int]] = {}  #: kind -> its basis, and `onward_ms`
        self._noted = 0  #: calls

    def note(self, run: str, node: str, kind: str, after: Iterable[str]) -> bool:
        """A call of this kind has arrived, which reads outputs of these nodes. Returns whether an edge is new. Idempotent."""
        self._noted += 1
        self._kinds[run, node] = kind
        if len(self._kinds) > _NODES:
            self._kinds.popitem(last=False)
        new = False
        for other in after:
            parent = self._kinds.get((run, other))
            known = self._followers.get(parent or "", {})
            full = len(known) >= _FOLLOWERS or (not known and len(self._followers) >= _KINDS)
            if parent is None or kind in known or full or parent in self._onward(kind):
                continue
            self._followers.setdefault(parent, {})[kind] = None
            self._plans.clear()
            self._ranks.clear()
            new = True
        return new

    def plan(self, kind: str) -> Plan | None:
        """The plan from a kind on; None where no kind is known to follow it."""
        if kind not in self._followers:
            return None
        if kind not in self._plans:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            onward = self._onward(kind)[:_FAR]
            some = {*onward}
            self._plans[kind] = Plan(
                name=kind,
                language="learned",
                nodes=tuple(NodePlan(path=each, task=each, workflow="", call=each) for each in onward),
                edges=tuple(
                    EdgePlan(parent=each, child=child, kind="data")
                    for each in onward
                    for child in self._followers.get(each, ())
                    if child in some
                ),
            )
        return self._plans[kind]

    def onward_ms(self, estimates: Estimates, kind: str, stage: str) -> int:
        """Expected ms from the end of a task of a kind to the end of its run; 0 where no kind is known to follow it.

        It is worked out again with each new edge, with the first samples of a kind, and after `_AGAIN` calls: with each sample
        it would cost a tenth of a create.
        """
        plan = self.plan(kind)
        if plan is None:
            return 0
        basis = (
            self._noted // _AGAIN,
            sum(min(estimates.samples(node.path, stage), ENOUGH) for node in plan.nodes),
        )
        if self._ranks.get(kind, (None, 0))[0] != basis:
            runtimes = {node.path: typical_ms(estimates, node.path, stage) for node in plan.nodes}
            known = {path: runtime_ms for path, runtime_ms in runtimes.items() if runtime_ms is not None}
            found = ranks(plan, known)[kind]
            self._ranks[kind] = basis, found.rank_ms - found.runtime_ms
        return self._ranks[kind][1]

    def _onward(self, kind: str) -> list[str]:
        """A kind and all that follow it, each after all kinds that it follows."""
        found: dict[str, None] = {}
        stack = [(kind, iter(self._followers.get(kind, ())))]
        while stack:
            each, left = stack[-1]
            child = next((other for other in left if other not in found), None)
            if child is None:
                found[each] = None
                stack.pop()
            else:
                stack.append((child, iter(self._followers.get(child, ()))))
        return list(found)[::-1]
