"""What a pod says by annotations of its data, its disk traffic and its runtime, which Kubernetes has no fields for. Pure.

    flowsched.io/inputs     URIs of what it reads, separated by commas, each with "=size" if that is known
    flowsched.io/io-read    bytes it reads from its node's disk in all ("20Gi"), or a second ("100M/s")
    flowsched.io/io-write   the same of what it writes
    flowsched.io/runtime    how long it is expected to run ("25m")

The last "=" of an input separates the size only where a quantity follows, or nothing: "https://a/b?part=2=" is a URI that
ends in "part=2", of unknown size. What cannot be understood counts as not said; see `complaints`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from flowsched.cluster.kubernetes.marks import PREFIX
from flowsched.cluster.kubernetes.pod import Pod
from flowsched.errors import InvalidRequest
from flowsched.workflow.resources import LARGEST_BYTES, parse_bytes, parse_duration

INPUTS: Final = f"{PREFIX}inputs"
IO_READ: Final = f"{PREFIX}io-read"
IO_WRITE: Final = f"{PREFIX}io-write"
RUNTIME: Final = f"{PREFIX}runtime"

_PER_SECOND: Final = "/s"


@dataclass(frozen=True, slots=True)
class Hints:
    """What was said.

    Args:
        inputs: (URI, bytes) of what it reads, each once; 0 = the size is not known.
        io_rate: Bytes a second of its node's disk; 0 = not known.
        io_bytes: Bytes it reads and writes there in all; 0 = not known.
        runtime_ms: The longest it is expected to run, or may run (`activeDeadlineSeconds`); None = not known.
    """

    inputs: tuple[tuple[str, int], ...] = ()
    io_rate: int = 0
    io_bytes: int = 0
    runtime_ms: int | None = None


def hints_of(pod: Pod) -> Hints:
    """What a pod says."""
    return _read(pod)[0]


def complaints(pod: Pod) -> tuple[str, ...]:
    """What it says that cannot be understood, for whoever wrote it."""
    return _read(pod)[1]


def _read(pod: Pod) -> tuple[Hints, tuple[str, ...]]:
    wrong: list[str] = []
    rate = total = 0
    for name in (IO_READ, IO_WRITE):
        text = pod.metadata.annotations.get(name, "")
        amount = _parsed(pod, name, lambda said: parse_bytes(said.removesuffix(_PER_SECOND)), wrong) or 0
        if text.endswith(_PER_SECOND):
            rate += amount
        else:
            total += amount
    runtime = _parsed(pod, RUNTIME, parse_duration, wrong)
    if not rate and total and runtime:
        rate = total * 1000 // runtime
    deadline = pod.spec.active_deadline_seconds
    ends = [end for end in (runtime, None if deadline is None else deadline * 1000) if end is not None]
    # Like any amount: sums of what strangers write must still fit 64 bits.
    rate, total = min(rate, LARGEST_BYTES), min(total, LARGEST_BYTES)
    return Hints(_inputs(pod), rate, total, min(ends, default=None)), tuple(wrong)


def _parsed(pod: Pod, name: str, parse: Callable[[str], int], wrong: list[str]) -> int | None:
    text = pod.metadata.annotations.get(name)
    if text is None:
        return None
    try:
        return parse(text)
    except InvalidRequest as error:
        wrong.append(f"annotation {name}: {error}")
        return None


def _inputs(pod: Pod) -> tuple[tuple[str, int], ...]:
    found: dict[str, int] = {}
    for part in pod.metadata.annotations.get(INPUTS, "").split(","):
        uri, size = _input(part.strip())
        if uri:
            found[uri] = max(size, found.get(uri, 0))
    most = LARGEST_BYTES // max(1, len(found))
    return tuple((uri, min(size, most)) for uri, size in found.items())


def _input(text: str) -> tuple[str, int]:
    uri, equals, size = text.rpartition("=")
    if not equals:
        return text, 0
    if not size:
        return uri, 0
    try:
        return uri, parse_bytes(size)
    except InvalidRequest:
        return text, 0
