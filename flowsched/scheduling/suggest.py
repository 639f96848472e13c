"""What would let a group start: one change, as small as it can be, tried on the real cycle before it is said.

1. Leads: every single change that could matter (see `leads`), each with how far it may go.
2. Each is tried at its end. What lets the group start there binds by itself.
3. Of those, cheapest first, the least amount is found by bisection: what is answered starts the group, and one unit less
   does not, whether or not the change is monotone in between.

It is asked for, never part of a cycle, and its work is counted: at most `TRIES` cycles. Cost orders suggestions and
nothing else: who asked can change a request sooner than a cap, and a cap sooner than the number of nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from flowsched.scheduling.catalogue import Catalogue
from flowsched.scheduling.explain import quantity, vector_text
from flowsched.scheduling.framework import Profile
from flowsched.scheduling.leads import HOUR_MS, Lead, leads
from flowsched.scheduling.podgroup import PodGroup
from flowsched.scheduling.queues import QueueTree
from flowsched.scheduling.snapshot import AXES, ClaimKind, Snapshot
from flowsched.scheduling.whatif import Kind, Situation, Suggestion, alter, node_for
from flowsched.statement import Statement

#: Cycles that one answer may cost. Leads are rarely more than 60, a bisection rarely longer than 30.
TRIES: Final = 400
#: So many of those who wait are in the tried cycles beside the group itself.
OTHERS: Final = 16
#: Changes of the group or its queue. Others (more room, data, or time) show that it waits, not what binds it.
_BINDING: Final = frozenset(
    {
        Kind.REQUEST, Kind.MIN_MEMBER, Kind.MIN_RESOURCES, Kind.TOLERATION, Kind.SELECTOR, Kind.RACK,
        Kind.ONE_PER_NODE, Kind.RULE, Kind.CAP, Kind.RESUME, Kind.INPUT,
    }
)  # fmt: skip
#: Changes whose size is judged against the hour, not against what is there.
_TIMES: Final = (Kind.WAIT, Kind.RUNTIME)


@dataclass(frozen=True, slots=True)
class Outlook:
    """What can be said of a group that waits.

    Args:
        binds: What binds by itself, as (role or queue; "" = the group, resource or rule): without it, the group would
            start. Empty where only several things together keep it.
        suggestions: What would let it start, the cheapest first.
    """

    binds: tuple[tuple[str, str], ...] = ()
    suggestions: tuple[Suggestion, ...] = ()


def suggest(
    snapshot: Snapshot,
    catalogue: Catalogue,
    queues: QueueTree,
    group: PodGroup,
    profile: Profile,
    now: int,
    others: tuple[PodGroup, ...] = (),
) -> Suggestion | None:
    """The cheapest single change after which a group starts; None where no single change does, or it starts anyway.

    Args:
        snapshot: Nodes and claims. Not modified.
        catalogue: Datasets. Not modified.
        queues: Who pays. Not modified.
        group: Who waits.
        profile: The policy.
        now: The moment, wall-clock ms.
        others: Who waits beside it, the most important first; the first `OTHERS` count.
    """
    situation = Situation(snapshot, catalogue, queues, group, others[:OTHERS], profile, now)
    private = situation.copy()
    private.snapshot.devices.look(role.shape.requests for role in group.roles)
    trial = _Trial(private)
    if trial.starts(None):
        return None
    found = _cheapest(trial, leads(private), 1)
    return replace(found[0], message=told(found[0], private)) if found else None


def outlook(situation: Situation, most: int = 3) -> Outlook:
    """What binds a group, and up to `most` changes that would let it start.

    Args:
        situation: A private copy (`Situation.copy`): changes are tried in place, and undone.
        most: How many suggestions, at most.
    """
    situation.snapshot.devices.look(role.shape.requests for role in situation.group.roles)
    trial = _Trial(situation)
    if trial.starts(None):
        return Outlook()
    ways = leads(situation)
    found = _cheapest(trial, ways, most)
    binding = [way for way in ways if way.kind in _BINDING and trial.opens(way)]
    binds = tuple(dict.fromkeys((way.object, way.bound) for way in binding))
    return Outlook(binds, tuple(replace(each, message=told(each, situation)) for each in found))


def _cheapest(trial: _Trial, ways: list[Lead], most: int) -> list[Suggestion]:
    """The cheapest changes that let it start. What cannot be cheaper any more is not tried."""
    found: list[tuple[int, Suggestion]] = []
    for way in sorted(ways, key=lambda way: way.price):
        chosen = _different(found)
        if len(chosen) >= most and chosen[most - 1][0] <= way.price:
            break
        least = trial.least(way) if trial.opens(way) else None
        if least is not None:
            found = sorted([*found, (_price(way, least), least)], key=lambda each: each[0])
    return [suggestion for _, suggestion in _different(found)[:most]]


class _Trial:
    """Tries changes on one copy, so many times and no more."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._left = TRIES
        self._opens: dict[Lead, bool] = {}

    def opens(self, lead: Lead) -> bool:
        """Whether the group starts if a lead goes as far as it may."""
        if lead not in self._opens:
            self._opens[lead] = self.starts(lead.at(lead.steps))
        return self._opens[lead]

    def starts(self, suggestion: Suggestion | None) -> bool:
        """Whether the group starts after a change; False also when there are no tries left."""
        if self._left <= 0:
            return False
        self._left -= 1
        statement = Statement()
        try:
            after = (
                alter(self._situation, suggestion, statement) if suggestion is not None else self._situation
            )
            return after.starts()
        finally:
            statement.rollback()

    def least(self, lead: Lead) -> Suggestion | None:
        """The smallest step of a lead after which the group starts, given that its last does. None = no tries left."""
        low, high = 0, lead.steps  # low does not start it, high does
        if lead.kind is Kind.WAIT and high > 1 and not self.starts(lead.at(high - 1)):
            low = high - 1  # the end of something, as a rule
        while high - low > 1:
            if self._left <= 0:
                return None
            middle = (low + high) // 2
            if self.starts(lead.at(middle)):
                high = middle
            else:
                low = middle
        return lead.at(high)


def _price(lead: Lead, change: Suggestion) -> int:
    """The lead's price, and up to `lead.more` for the size of the change."""
    size = abs(change.to - change.was)
    if change.kind in _TIMES:
        return lead.price + lead.more * size // (size + HOUR_MS)
    if change.kind is Kind.NODE:
        return lead.price + lead.more * (size - 1) // (size + 3)
    return lead.price + lead.more * min(size, lead.whole) // max(lead.whole, 1)


def _different(found: list[tuple[int, Suggestion]]) -> list[tuple[int, Suggestion]]:
    """One of each kind and object: the second best node to free is no news."""
    seen: set[object] = set()
    kept = []
    for each in found:
        change = each[1]
        of = (change.kind, change.object) if change.kind in (Kind.REQUEST, Kind.MIN_MEMBER) else change.kind
        if of not in seen:
            seen.add(of)
            kept.append(each)
    return kept


# ---- words ----


def told(change: Suggestion, situation: Situation) -> str:
    """A suggestion for people."""
    simple = _SAID.get(change.kind)
    if simple is not None:
        return simple.format(
            object=change.object,
            what=change.what,
            was=change.was,
            to=change.to,
            seconds=-(-change.to // 1000),
            rule=change.what.replace("_", " "),
        )
    amount = partial(quantity, change.what)
    match change.kind:
        case Kind.REQUEST:
            return (
                f"ask for {_exact(change, change.to)} instead of {amount(change.was)} a pod ({change.object})"
            )
        case Kind.MIN_RESOURCES:
            return f"ask for min_resources of {_exact(change, change.to)} instead of {amount(change.was)}"
        case Kind.CAP:
            more = _exact(change, change.to - change.was)
            return f"raise the cap of queue {change.object} by {more} to {_exact(change, change.to)}"
        case Kind.FREE:
            more, who = _exact(change, change.to - change.was), ", ".join(_holders(change, situation))
            return f"free {more} on node {change.object}" + (f" (held by {who})" if who else "")
        case Kind.STORAGE:
            now, then = (f"{-(-rate // 1_000_000)} MB/s" for rate in (change.was, change.to))
            return (
                f"let storage {change.object} give those who {change.what} {then} together instead of {now}"
            )
        case Kind.WAIT:
            seconds = -(-(change.to - change.was) // 1000)
            return f"wait {seconds} s: by then enough of what runs is expected to have ended"
        case _:
            nodes = "one more node" if change.to == 1 else f"{change.to} more nodes"
            return f"{nodes} like {change.object}" if change.object else f"{nodes} with {_made(situation)}"


_SAID: Final = {
    Kind.MIN_MEMBER: "start with {to} members instead of {was} (minimum of {object})",
    Kind.RUNTIME: "say that it runs for {seconds} s (if it does): it would end before the promised start",
    Kind.PRIORITY: "give it priority {to} instead of {was}: it would go first",
    Kind.TOLERATION: "tolerate the taint {what}",
    Kind.SELECTOR: "do not ask for the label {what}",
    Kind.RACK: "prefer one rack instead of requiring it",
    Kind.ONE_PER_NODE: "let its pods share a node",
    Kind.RULE: "drop its demand: {rule}",
    Kind.RESUME: "resume queue {object}",
    Kind.LABEL: "add the label {what} to node {object}",
    Kind.READY: "let node {object} take pods again",
    Kind.INPUT: "bring back its input {what}",
    Kind.COPY: "have its input {what} on node {object}",
}


def _made(situation: Situation) -> str:
    """What a node that is made for the group has."""
    node = node_for(situation.group, situation.snapshot)
    known = (node.cpu_millicores, node.memory_bytes, node.disk_bytes, node.gpu_millis)
    return vector_text(AXES, known) + "".join(f", label {key}={value}" for key, value in node.labels.items())


def _exact(change: Suggestion, amount: int) -> str:
    """An amount in the units in which it was found: who asks for a little more than was said is refused."""
    if change.what in ("memory", "disk"):
        return f"{amount >> 20} MiB {change.what}"
    return quantity(change.what, amount)


def _holders(change: Suggestion, situation: Situation, most: int = 3) -> Iterator[str]:
    """Who holds most of a resource of a node."""
    snapshot = situation.snapshot
    node, axis = snapshot.index[change.object], snapshot.axes.index(change.what)
    held: dict[str, int] = {}
    for claim in snapshot.claims.values():
        if claim.node == node and claim.kind is not ClaimKind.STAGING:
            name = claim.group or claim.owner
            held[name] = held.get(name, 0) + int(snapshot.ledger.amount_of(claim.owner)[axis])
    largest = sorted((name for name in held if held[name]), key=lambda name: (-held[name], name))
    for name in largest[:most]:
        yield f"{name} {quantity(change.what, held[name])}"
