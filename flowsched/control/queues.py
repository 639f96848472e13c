"""A queue's settings, as a user sends them, become its row, or every fault of them."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, Final

from flowsched.errors import Conflict, Fault, InvalidDocument, InvalidRequest
from flowsched.scheduling.reasons import quantity
from flowsched.scheduling.state.snapshot import PODS
from flowsched.store.rows import QueueRow
from flowsched.workflow.document import reader
from flowsched.workflow.document.reader import shown
from flowsched.workflow.resources import parse_bytes, parse_count, parse_cpu, parse_gpu

_PARSERS: Final = {
    "cpu": parse_cpu,
    "memory": parse_bytes,
    "disk": parse_bytes,
    "gpu": parse_gpu,
    "io": parse_bytes,
}


def queue_row(name: str, settings: Mapping[str, Any], before: QueueRow) -> QueueRow:
    """The row as it shall be.

    Args:
        name: Of the queue.
        settings: The new values. The kind of each value has been checked where it arrived.
        before: The row as it is.

    Raises:
        InvalidDocument: With everything that is wrong.
    """
    faults: list[Fault] = []
    if reader.PART.fullmatch(name) is None:  # no document could name it
        faults.append(Fault("{name}", shown(name), reader.PART_TEXT))
    changes: dict[str, Any] = {}
    for key, value in settings.items():
        changes[key] = _limits(key, value, before, faults) if key in ("cap", "guarantee") else value
    if changes.get("parent") == name:
        faults.append(Fault("$.parent", repr(name), "another queue"))
    if faults:
        raise InvalidDocument(faults)
    return before._replace(**changes)


def check_tree(row: QueueRow, others: Mapping[str, QueueRow]) -> None:
    """See that a queue goes with those above and below it.

    Args:
        row: As it shall be.
        others: All that are configured, by name.

    Raises:
        Conflict: Its parent is missing.
        InvalidDocument: It is guaranteed more than its cap or its parent allows, or less than those below it are.
    """
    if row.parent is not None and row.parent not in others and row.parent != row.name:
        raise Conflict(f"queue {row.name!r}: there is no parent queue {row.parent!r}; create it first")
    tree = {**others, row.name: row}
    faults: list[Fault | None] = []
    for resource, amount in sorted(row.guarantee.items()):
        if amount > row.cap.get(resource, amount):
            expected = f"at most its cap, {quantity(resource, row.cap[resource])}"
            faults.append(Fault(f"$.guarantee.{resource}", quantity(resource, amount), expected))
    if row.parent is not None:
        faults += [_beyond(tree, row.parent, resource, row) for resource in sorted(row.guarantee)]
    below = {resource for other in tree.values() if other.parent == row.name for resource in other.guarantee}
    faults += [_beyond(tree, row.name, resource, row) for resource in sorted(below)]
    if any(faults):
        raise InvalidDocument([fault for fault in faults if fault is not None])


def _beyond(tree: Mapping[str, QueueRow], parent: str, resource: str, row: QueueRow) -> Fault | None:
    """The fault if queues below `parent` are guaranteed more than its own guarantee (if it has one) or its cap."""
    above = tree.get(parent)
    if above is None:
        return None
    parts = [other for other in tree.values() if other.parent == parent and other.guarantee.get(resource)]
    together = sum(other.guarantee[resource] for other in parts)
    most = min(above.guarantee.get(resource) or together, above.cap.get(resource, together))
    if together <= most:
        return None
    sum_text = " + ".join(f"{other.name} {quantity(resource, other.guarantee[resource])}" for other in parts)
    whole = f" = {quantity(resource, together)}" if len(parts) > 1 else ""
    if row.name == parent:
        expected = f"at least what the queues below it are guaranteed: {sum_text}{whole}"
        return Fault(f"$.guarantee.{resource}", quantity(resource, most), expected)
    bound = f"at most {quantity(resource, most)}, which {parent} has"
    expected = f"all queues below {parent} together to be guaranteed {bound}: {sum_text}{whole}"
    return Fault(f"$.guarantee.{resource}", quantity(resource, row.guarantee[resource]), expected)


def _limits(key: str, value: Mapping[str, Any], before: QueueRow, faults: list[Fault]) -> Mapping[str, int]:
    """The limits as they shall be: resources that are not named keep theirs, and None takes one away."""
    limits = dict(before.cap if key == "cap" else before.guarantee)
    for resource, amount in value.items():
        path = f"$.{key}.{resource}"
        parse = _PARSERS.get(resource, parse_count)
        if resource not in _PARSERS and resource != PODS and reader.EXTENDED.fullmatch(resource) is None:
            close = difflib.get_close_matches(resource, _PARSERS, n=1, cutoff=0.6)
            names = f"{', '.join(_PARSERS)}, or a name with a domain, as nvidia.com/gpu"
            expected = f"did you mean {close[0]}?" if close else names
            faults.append(Fault(path, f"the resource {shown(resource)}", expected))
            continue
        if amount is None:
            limits.pop(resource, None)
            continue
        try:
            limits[resource] = parse(amount)
        except InvalidRequest as error:
            what = str(error).rpartition(" is no quantity: ")[2].removeprefix("write ")
            faults.append(Fault(path, repr(amount)[:60], what))
    return limits
