"""Efficiency: the use that attempts of a stage made of their requests, and better requests. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from flowsched.workflow.engine_words import Words, words_of
from flowsched.workflow.views import AttemptUseView, View

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
#: CPU use of an attempt is an average over its time; one that ran for less says little.
LEAST_RUN_MS: Final = 1_000
#: Advice leaves so much above the highest use: a run on other data needs more.
_MARGIN: Final = 1.2
#: Less is advised only if it is at most this part of the request.
_WORTH_LESS: Final = 0.75
LEAST_SAVED_BYTES: Final = 128 * _MIB
#: More memory is advised if an attempt used more than this part of its request.
_NEARLY_ALL: Final = 0.9
#: More cores are advised if an attempt used more than this many times its request.
_BEYOND: Final = 1.25
OUT_OF_MEMORY: Final = "OOMKilled"
#: Of an attempt that was taken away: its task was preempted, drained or cancelled.
RELEASED: Final = "Released"


class EfficiencyView(View, kw_only=True):
    """The use that the ended attempts of a stage made of their requests. None: it was not measured."""

    stage: str
    attempts: int = 0
    failed: int = 0  #: attempts that failed; one that was taken away did not
    running_seconds: float = 0.0  #: sum over attempts
    core_seconds: float = 0.0  #: asked for, while they ran
    cpu_seconds: float | None = None  #: used
    cpu_efficiency: float | None = None  #: used / asked for, of the measured attempts
    cores_asked: float = 0.0  #: the most of one attempt
    cores_used: float | None = None  #: the highest average of an attempt that ran for a second or longer
    memory_asked_bytes: int = 0  #: the most of one attempt
    memory_used_bytes: int | None = None  #: the highest peak of an attempt
    memory_efficiency: float | None = None  #: of the attempt with the highest peak
    read_bytes: int | None = None
    written_bytes: int | None = None
    advice: list[str] = msgspec.field(default_factory=list)


def efficiencies(attempts: Iterable[AttemptUseView], engine: str = "") -> list[EfficiencyView]:
    """Each stage, in the order in which they come, with advice in the words of the engine that sent them (`engine_in`)."""
    stages: dict[str, list[AttemptUseView]] = {}
    for each in attempts:
        if each.ended_at is not None:
            stages.setdefault(each.stage, []).append(each)
    return [efficiency(name, some, words_of(engine)) for name, some in stages.items()]


def efficiency(stage: str, attempts: Sequence[AttemptUseView], words: Words) -> EfficiencyView:
    """One stage, from its attempts that have ended."""
    view = EfficiencyView(stage=stage, attempts=len(attempts))
    measured_core_ms = 0.0
    for each in attempts:
        ran_ms = running_ms(each)
        cores, memory = each.requested.get("cpu", 0) / 1000, memory_asked(each)
        view.failed += failed(each)
        view.running_seconds += ran_ms / 1000
        view.core_seconds += cores * ran_ms / 1000
        view.cores_asked = max(view.cores_asked, cores)
        view.memory_asked_bytes = max(view.memory_asked_bytes, memory)
        used = each.usage
        if used.get("cpu_ms"):
            view.cpu_seconds = (view.cpu_seconds or 0.0) + used["cpu_ms"] / 1000
            measured_core_ms += cores * ran_ms
            if ran_ms >= LEAST_RUN_MS:
                view.cores_used = max(view.cores_used or 0.0, used["cpu_ms"] / ran_ms)
        if (peak := used.get("max_rss_bytes", 0)) > (view.memory_used_bytes or 0):
            view.memory_used_bytes = peak
            view.memory_efficiency = peak / memory if memory else None
        if used.get("read_bytes") or used.get("written_bytes"):
            view.read_bytes = (view.read_bytes or 0) + used.get("read_bytes", 0)
            view.written_bytes = (view.written_bytes or 0) + used.get("written_bytes", 0)
    if view.cpu_seconds is not None and measured_core_ms:
        view.cpu_efficiency = view.cpu_seconds * 1000 / measured_core_ms
    view.advice = [*_memory_advice(view, attempts, words), *_cpu_advice(view, words)]
    return view


def memory_asked(attempt: AttemptUseView) -> int:
    """The memory that its document asks for, in bytes: memory that fits may have given it less."""
    return attempt.usage.get("memory_asked_bytes", 0) or attempt.requested.get("memory", 0)


def running_ms(attempt: AttemptUseView) -> int:
    """How long its process ran."""
    if attempt.started_at is None or attempt.ended_at is None:
        return 0
    return round((attempt.ended_at - attempt.started_at).total_seconds() * 1000)


def succeeded(attempt: AttemptUseView) -> bool:
    """Whether it ended well."""
    return attempt.exit_code == 0 and not attempt.reason


def failed(attempt: AttemptUseView) -> bool:
    """Whether it ended badly by itself: it was not taken away (preempted, drained, cancelled)."""
    return attempt.ended_at is not None and not succeeded(attempt) and attempt.reason != RELEASED


def _memory_advice(view: EfficiencyView, attempts: Sequence[AttemptUseView], words: Words) -> list[str]:
    asked, used = view.memory_asked_bytes, view.memory_used_bytes
    killed = [
        each.requested.get("memory", 0)
        for each in attempts
        if each.reason == OUT_OF_MEMORY and "memory_asked_bytes" not in each.usage
    ]
    well = [each.usage.get("max_rss_bytes", 0) for each in attempts if succeeded(each)]
    if killed:
        limits = (
            size(max(killed)) if min(killed) == max(killed) else f"{size(min(killed))} to {size(max(killed))}"
        )
        times = f"{len(killed)} attempt{'s' if len(killed) > 1 else ''} had too little with {limits}"
        enough = max(well, default=0)
        wanted = rounded_memory(int(enough * _MARGIN)) if enough > max(killed) else 2 * max(killed)
        return [f"memory: {times}: ask for {words.memory(wanted)}"] if wanted else []
    if used is None:
        return []
    wanted = rounded_memory(int(used * _MARGIN))
    if asked == 0:
        return [f"memory: asked for none, used at most {size(used)}: ask for {words.memory(wanted)}"]
    if used > _NEARLY_ALL * asked:
        return [
            f"memory: asked for {size(asked)}, used up to {size(used)}, {used / asked:.0%} of it: ask for {words.memory(wanted)}"
        ]
    if wanted <= _WORTH_LESS * asked and asked - wanted >= LEAST_SAVED_BYTES:
        return [f"memory: asked for {size(asked)}, used at most {size(used)}: ask for {words.memory(wanted)}"]
    return []


def _cpu_advice(view: EfficiencyView, words: Words) -> list[str]:
    asked, used = view.cores_asked, view.cores_used
    if used is None or not asked:
        return []
    wanted = rounded_cores(used)
    if used > _BEYOND * asked:
        return [
            f"cpu: asked for {_cores(asked)}, used up to {used:.1f}: ask for {words.cores(wanted)}, or limit its threads"
        ]
    if wanted <= _WORTH_LESS * asked:
        return [f"cpu: asked for {_cores(asked)}, used at most {used:.2g}: ask for {words.cores(wanted)}"]
    return []


def rounded_memory(number: int) -> int:
    """The next amount that people write: steps of 32 MiB, from 1 GiB of 128 MiB, from 4 GiB of 512 MiB, from 32 GiB of 4 GiB."""
    steps = {_GIB: 32 * _MIB, 4 * _GIB: 128 * _MIB, 32 * _GIB: 512 * _MIB}
    step = next((step for below, step in steps.items() if number <= below), 4 * _GIB)
    return max(1, -(-number // step)) * step


def rounded_cores(used: float) -> float:
    """Whole cores; below one in tenths, with a margin. A program that uses 1.04 cores has one thread that computes."""
    if used <= 0.9:
        return max(0.1, math.ceil(used * _MARGIN * 10) / 10)
    return math.ceil(used - 0.1)


def size(number: float) -> str:
    """An amount of memory for people, in the units of documents."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if number < 1024 or unit == "TiB":
            return f"{number:.0f} {unit}" if unit == "B" or number >= 100 else f"{number:.3g} {unit}"
        number /= 1024
    raise AssertionError


def _cores(number: float) -> str:
    return f"{number:g} core" if number == 1 else f"{number:g} cores"


def whole(views: Iterable[EfficiencyView]) -> Mapping[str, float | None]:
    """Over all stages: `running_seconds`, `core_seconds`, `cpu_seconds`, and `cpu_efficiency` of the measured attempts."""
    some = list(views)
    used = [view.cpu_seconds for view in some if view.cpu_seconds is not None]
    measured = sum(
        view.cpu_seconds / view.cpu_efficiency
        for view in some
        if view.cpu_seconds is not None and view.cpu_efficiency
    )
    return {
        "running_seconds": sum(view.running_seconds for view in some),
        "core_seconds": sum(view.core_seconds for view in some),
        "cpu_seconds": sum(used) if used else None,
        "cpu_efficiency": sum(used) / measured if measured else None,
    }
