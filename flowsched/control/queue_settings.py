"""What users say of a queue becomes its row, or every fault of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flowsched.errors import Fault, InvalidDocument, InvalidRequest
from flowsched.store.rows import QueueRow
from flowsched.workflow.resources import parse_bytes, parse_count, parse_cpu, parse_gpu

_PARSERS: Final = {"cpu": parse_cpu, "memory": parse_bytes, "disk": parse_bytes, "gpu": parse_gpu}


def queue_row(name: str, settings: Mapping[str, Any], before: QueueRow) -> QueueRow:
    """The row as it shall be.

    Raises:
        InvalidDocument: With everything that is wrong.
    """
    faults: list[Fault] = []
    changes: dict[str, Any] = {}
    for key, value in settings.items():
        if key in ("cap", "guarantee") and isinstance(value, Mapping):
            changes[key] = _limits(key, value, faults)
        elif key in ("weight", "priority") and isinstance(value, int) and not isinstance(value, bool):
            if key == "weight" and not 1 <= value <= 65_535:
                faults.append(Fault("$.weight", str(value), "1 to 65535"))
            changes[key] = value
        elif key in ("paused", "reclaimable") and isinstance(value, bool):
            changes[key] = value
        elif key == "parent" and (value is None or isinstance(value, str)):
            changes[key] = value
        else:
            known = "weight, priority (whole numbers), paused, reclaimable (true or false), parent, cap, guarantee"
            faults.append(Fault(f"$.{key}", repr(value)[:60], known))
    if changes.get("parent") == name:
        faults.append(Fault("$.parent", repr(name), "another queue"))
    if faults:
        raise InvalidDocument(faults)
    return before._replace(**changes)


def _limits(key: str, value: Mapping[str, Any], faults: list[Fault]) -> dict[str, int]:
    limits = {}
    for resource, amount in value.items():
        try:
            limits[resource] = _PARSERS.get(resource, parse_count)(amount)
        except InvalidRequest as error:
            faults.append(Fault(f"$.{key}.{resource}", repr(amount)[:60], str(error)))
    return limits
