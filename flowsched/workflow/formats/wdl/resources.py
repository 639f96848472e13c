"""Resources of a WDL task in flowsched's units, with the defaults of the WDL specification where its runtime section is silent."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from WDL import Error, Type, Value

from flowsched.workflow.formats.wdl.partial_values import BYTE_UNITS, Opaque, PlanLibrary, parts, reasons
from flowsched.workflow.formats.wdl.scope import Bound, Scope, evaluated, shown
from flowsched.workflow.plan import Amount, Image, PlannedFile, Until

Runtime = Mapping[str, object]

#: Of the WDL specification (1.1 and 1.2): one core, 2 GiB, 1 GiB of disk, no GPU.
DEFAULT_CPU: Final = 1000
DEFAULT_MEMORY: Final = 2 << 30
DEFAULT_DISK: Final = 1 << 30
#: Beyond this an amount is nonsense, and would not fit a database's number.
MOST: Final = 1 << 53
#: Files of one node that are listed; further ones are counted.
FILES: Final = 200

_NUMBER: Final = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def amounts(
    runtime: Mapping[str, object], overrides: Mapping[str, Value.Base], scope: Scope, library: PlanLibrary
) -> dict[str, Amount]:
    """CPU, memory, disk and GPUs of one task.

    Args:
        runtime: The runtime (or requirements) section: key -> expression.
        overrides: Values that the inputs give in place of it.
        scope: The task's own names.
        library: Functions.
    """

    def ask(keys: tuple[str, ...], default: int, read: Callable[[Value.Base], int]) -> Amount:
        return _amount(_first(runtime, overrides, keys, scope, library), default, read)

    return {
        "cpu": ask(("cpu", "cpus"), DEFAULT_CPU, _cores),
        "memory": ask(("memory",), DEFAULT_MEMORY, _bytes),
        "disk": ask(("disks", "disk"), DEFAULT_DISK, _disks),
        "gpu": ask(("gpuCount", "acceleratorCount", "gpu"), 0, _devices),
    }


def image(
    runtime: Mapping[str, object], overrides: Mapping[str, Value.Base], scope: Scope, library: PlanLibrary
) -> Image:
    """The container image; the first one where there are several."""
    found = _first(runtime, overrides, ("container", "docker"), scope, library)
    if found is None:
        return Image()
    text, value = found
    if isinstance(value, Value.Array) and value.value:
        value = value.value[0]
    if isinstance(value, Value.String):
        return Image(value.value, text)
    return Image(None, text, _sorted(reasons(value)))


def _first(
    runtime: Mapping[str, object],
    overrides: Mapping[str, Value.Base],
    keys: tuple[str, ...],
    scope: Scope,
    library: PlanLibrary,
) -> tuple[str, Value.Base] | None:
    for key in keys:
        if key in overrides:
            return f"from the inputs: {overrides[key]}", overrides[key]
        if key in runtime:
            expr = runtime[key]
            return shown(expr), evaluated(expr, scope, library).value  # type: ignore[arg-type]  # expressions, typed loosely here
    return None


def _amount(found: tuple[str, Value.Base] | None, default: int, read: Callable[[Value.Base], int]) -> Amount:
    if found is None or isinstance(found[1], Value.Null):
        return Amount(default)
    text, value = found
    hidden = reasons(value)
    if hidden:
        return Amount(None, text, _sorted(hidden), given=True)
    try:
        amount = read(value)
        if 0 <= amount <= MOST:
            return Amount(amount, text, given=True)
        why = f"{amount} is beyond what there can be"
    except (ValueError, TypeError, OverflowError, Error.RuntimeError) as error:
        why = f"{value} is no such amount ({error})"
    return Amount(None, text, (Until("error", why),), given=True)


def _cores(value: Value.Base) -> int:
    return math.ceil(float(value.value) * 1000)


def _bytes(value: Value.Base) -> int:
    if isinstance(value, Value.Int):
        return int(value.value)
    number, unit = _quantity(str(value.value))
    return math.ceil(number * (BYTE_UNITS[unit] if unit else 1))


def _quantity(text: str) -> tuple[float, str]:
    found = _NUMBER.fullmatch(text.strip())
    if found is None or (found[2] and found[2] not in BYTE_UNITS):
        raise ValueError("a number and a unit such as GiB are expected")
    return float(found[1]), found[2]


def _disks(value: Value.Base) -> int:
    """`local-disk 100 HDD`, `/mnt 50 SSD`, `100 GiB`, a number of GiB, and lists of these: their sum."""
    if isinstance(value, Value.Array):
        return sum(_disks(each) for each in value.value)
    if isinstance(value, Value.Int | Value.Float):
        gib: float = value.value
        return math.ceil(gib * (1 << 30))
    total = 0
    for disk in str(value.value).split(","):
        found = _NUMBER.search(disk)
        if found is None:
            raise ValueError("a size such as `local-disk 100 HDD` is expected")
        unit = found[2] if found[2] in BYTE_UNITS else "GiB"
        total += math.ceil(float(found[1]) * BYTE_UNITS[unit])
    return total


def _devices(value: Value.Base) -> int:
    if isinstance(value, Value.Boolean):
        return int(value.value)
    return int(str(value.value))


def known_files(given: Mapping[str, Bound]) -> tuple[tuple[PlannedFile, ...], int]:
    """Files among a call's inputs that are known ahead, also those that differ between shards.

    Returns:
        The first `FILES` of them, each once, and how many more there are.
    """
    found: dict[PlannedFile, None] = {}
    for name, bound in given.items():
        waiting = deque([bound.value])
        while waiting:
            for each in parts(waiting.popleft()):
                if isinstance(each, Opaque):
                    waiting.extend(each.variants)
                elif isinstance(each, Value.File | Value.Directory):
                    found.setdefault(PlannedFile(name, each.value))
    listed = tuple(found)[:FILES]
    return listed, len(found) - len(listed)


def _sorted(until: frozenset[Until]) -> tuple[Until, ...]:
    return tuple(sorted(until))


def kind_of(declared: Type.Base, *, has_default: bool) -> Type.Base:
    """The type a given value is taken as: what has a default may be left out."""
    return declared.copy(optional=True) if has_default else declared
