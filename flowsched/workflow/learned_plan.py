"""The learned plan: the kinds of tasks that follow each kind. The calls that engines send one at a time teach it.

A call names the nodes of its run that wrote its inputs (`Call.after`). Kinds are those under which runtimes are learned
(`WorkflowSpec.kind_of`), so an edge between two kinds holds in every later run that has them. Runtimes are in `estimates`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

from flowsched.statement import Statement
from flowsched.workflow.estimates import ENOUGH, Estimates, typical_ms
from flowsched.workflow.plan import EdgePlan, NodePlan, Plan, ranks

Kind: TypeAlias = tuple[str, str]
#: A kind, and one that follows it.
Edge: TypeAlias = tuple[Kind, Kind]

#: Kinds that have followers at most, and followers of one of them: those that came first stay.
_KINDS: Final = 20_000
_FOLLOWERS: Final = 64
#: `LearnedPlan` remembers the kinds of so many nodes of runs. First it forgets those that sent and wrote nothing for longest.
_NODES: Final = 100_000
#: Nodes of one plan at most: further ones are too far away to decide an order.
_FAR: Final = 200
#: `LearnedPlan` keeps so many plans at a time: it makes a plan again in microseconds.
_MOST_PLANS: Final = 256
#: `LearnedPlan` works out ranks again after so many calls.
_AGAIN: Final = 256


class Gathered(NamedTuple):
    """All calls of a kind as the input of one call of another kind, in one run."""

    calls: int  #: of the other kind
    read_bytes: int  #: by the one call, of all kinds


class LearnedPlan:
    """Kinds and the kinds that follow them. They have no cycle: `note` leaves out an edge that would close one."""

    __slots__ = ("_done", "_followers", "_gathered", "_kinds", "_noted", "_plans", "_ranks", "_refused")

    def __init__(self) -> None:
        self._followers: dict[Kind, dict[Kind, None]] = {}
        self._kinds: OrderedDict[tuple[str, str], Kind] = OrderedDict()  #: by run and node
        self._plans: dict[Kind, Plan] = {}
        self._ranks: dict[Kind, tuple[tuple[int, int], int]] = {}  #: kind -> its basis, and `onward_ms`
        self._refused: set[Edge] = set()  #: they would close a cycle
        self._noted = 0  #: calls
        self._done: dict[
            tuple[str, Kind], int
        ] = {}  #: by run and kind that has come, how many have succeeded
        self._gathered: dict[
            Kind, dict[Kind, Gathered]
        ] = {}  #: kind -> kinds of which one call gathered, in the newest run

    def note(self, run: str, node: str, kind: Kind, after: Iterable[str]) -> list[Edge]:
        """A call of this kind has arrived, which reads outputs of these nodes. Returns the edges that are new. Idempotent."""
        self._noted += 1
        self._kinds[run, node] = kind
        self._kinds.move_to_end((run, node))
        if len(self._kinds) > _NODES:
            self._kinds.popitem(last=False)
        new = []
        for other in after:
            parent = self._kinds.get((run, other))
            if parent is None:
                continue
            self._kinds.move_to_end((run, other))
            known, edge = self._followers.get(parent, {}), (parent, kind)
            full = len(known) >= _FOLLOWERS or (not known and len(self._followers) >= _KINDS)
            if kind in known or full or edge in self._refused:
                continue
            if parent in self._onward(kind):
                if len(self._refused) >= _KINDS:
                    self._refused.clear()
                self._refused.add(edge)
                continue
            self._followers.setdefault(parent, {})[kind] = None
            self._plans.clear()
            self._ranks.clear()
            new.append(edge)
        return new

    def forget(self, edges: Iterable[Edge]) -> None:
        """Take back edges that `note` has returned."""
        for parent, kind in edges:
            del self._followers[parent][kind]
            if not self._followers[parent]:
                del self._followers[parent]
        self._plans.clear()
        self._ranks.clear()
        self._refused.clear()

    def come(self, run: str, kind: Kind, statement: Statement) -> None:
        """A call of this kind has arrived in a run."""
        if (run, kind) not in self._done:
            statement.put(self._done, (run, kind), 0)
            if len(self._done) > _NODES:
                statement.pop(self._done, next(iter(self._done)))

    def has_come(self, run: str, kind: Kind) -> bool:
        """Whether a call of this kind has arrived in a run."""
        return (run, kind) in self._done

    def succeeded(
        self, run: str, kind: Kind, after: Iterable[str], read_bytes: int, statement: Statement
    ) -> None:
        """A call has succeeded, which read outputs of these nodes, so many bytes in all.

        Where it is the first of its kind, and two or more calls of another kind that it follows have succeeded, it gathers them.
        A second one shows that none does.
        """
        count = self._done.get((run, kind), 0) + 1
        statement.put(self._done, (run, kind), count)
        for parent in dict.fromkeys(self._kinds.get((run, node)) for node in after):
            if parent is None or parent == kind:
                continue
            known, calls = self._gathered.get(parent, {}), self._done.get((run, parent), 0)
            if count > 1 or calls < 2:
                if kind in known:
                    statement.pop(known, kind)
            elif known or len(self._gathered) < _KINDS:
                if parent not in self._gathered:
                    statement.put(self._gathered, parent, known)
                if kind in known or len(known) < _FOLLOWERS:
                    statement.put(known, kind, Gathered(calls, read_bytes))

    def gatherers(self, kind: Kind) -> Mapping[Kind, Gathered]:
        """The kinds of which the newest run had one call that read what several calls of this kind wrote."""
        return self._gathered.get(kind, {})

    def plan(self, kind: Kind) -> Plan | None:
        """The plan from a kind on; None where no kind is known to follow it."""
        if kind not in self._followers:
            return None
        if kind not in self._plans:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            onward = self._onward(kind)[:_FAR]
            some = {*onward}
            self._plans[kind] = Plan(
                name=_path(kind),
                language="learned",
                nodes=tuple(
                    NodePlan(path=_path(each), task=each[0], workflow="", call=each[1]) for each in onward
                ),
                edges=tuple(
                    EdgePlan(parent=_path(each), child=_path(child), kind="data")
                    for each in onward
                    for child in self._followers.get(each, ())
                    if child in some
                ),
            )
        return self._plans[kind]

    def onward_ms(self, estimates: Estimates, kind: Kind) -> int:
        """Expected ms from the end of a task of a kind to the end of its run; 0 where no kind is known to follow it.

        This method works it out again after a new edge, after the first samples of a kind, and after `_AGAIN` calls. To do so after
        each sample would cost a tenth of a create.
        """
        plan = self.plan(kind)
        if plan is None:
            return 0
        basis = (
            self._noted // _AGAIN,
            sum(min(estimates.samples(node.task, node.call), ENOUGH) for node in plan.nodes),
        )
        if self._ranks.get(kind, (None, 0))[0] != basis:
            runtimes = {node.path: typical_ms(estimates, node.task, node.call) for node in plan.nodes}
            known = {path: runtime_ms for path, runtime_ms in runtimes.items() if runtime_ms is not None}
            found = ranks(plan, known)[plan.name]
            self._ranks[kind] = basis, found.rank_ms - found.runtime_ms
        return self._ranks[kind][1]

    def _onward(self, kind: Kind) -> list[Kind]:
        """A kind and all that follow it, each after all kinds that it follows."""
        found: dict[Kind, None] = {}
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


def _path(kind: Kind) -> str:
    return "/".join(kind)
