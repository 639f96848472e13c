"""Which cores the processes of an attempt may run on: as many as the attempt asked for, the least used first."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable
from contextlib import suppress

from .records import Record

#: Cores, and the milli-CPU that an attempt on them asked for.
Use = tuple[tuple[int, ...], int]


def machine() -> tuple[int, ...]:
    """The cores that this process may use; empty where the system does not say (macOS)."""
    return tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ()


def use(order: Record) -> Use:
    """The cores of an attempt, if they are chosen, and how much it asks for."""
    return order.get("cores", ()), order.get("cpu_millicores", 0)  # type: ignore[return-value]


def choose(cores: tuple[int, ...], in_use: Iterable[Use], millicores: int) -> tuple[int, ...]:
    """The cores of one attempt.

    Args:
        cores: Those of the machine.
        in_use: Of the attempts that run.
        millicores: Its request, which is rounded up to whole cores; 0 = it is not bound to any.

    Returns:
        Ascending; empty where it may use all.
    """
    wanted = -(-millicores // 1000)
    if not 0 < wanted < len(cores):
        return ()
    load = dict.fromkeys(cores, 0)
    for others, asked in in_use:
        for core in others:
            load[core] = load.get(core, 0) + asked // len(others)
    return tuple(sorted(heapq.nsmallest(wanted, cores, key=load.__getitem__)))


def bind(cores: tuple[int, ...]) -> None:
    """Let this thread, and what it starts from now on, run on these cores only. Empty: nothing is done."""
    if not cores:
        return
    with suppress(OSError):  # a core was taken from this machine meanwhile
        os.sched_setaffinity(0, cores)
