"""How long a kind of task takes, learned from those that finished. A kind is (workflow name, stage name).

Whole numbers: the mean of the logarithm would need floats, so the median of the last few is kept instead, which a single
straggler does not move.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

#: How many finished tasks of a kind are remembered: enough for a median and a high quantile, little to keep.
KEPT: Final = 32
#: How many kinds are remembered: names of workflows may hold a date, and a service lives for years.
KINDS: Final = 20_000


class Estimates:
    """Learned runtimes by kind."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[int, ...]] = {}

    def learn(self, workflow: str, stage: str, runtime_ms: int) -> Sequence[int]:
        """A task of this kind took so long. Returns what was known before, for `recall`."""
        kind = (workflow, stage)
        before = self._seen.pop(kind, ())
        self._seen[kind] = (*before, runtime_ms)[-KEPT:]  # last in the dictionary: learned last
        if len(self._seen) > KINDS:
            del self._seen[next(iter(self._seen))]
        return before

    def recall(self, workflow: str, stage: str, before: Sequence[int]) -> None:
        """Undo `learn`."""
        self._seen.pop((workflow, stage), None)
        if before:
            self._seen[(workflow, stage)] = tuple(before)

    def runtime_ms(self, workflow: str, stage: str) -> int | None:
        """The median of the last ones; None before the first has finished."""
        seen = self._seen.get((workflow, stage))
        return sorted(seen)[len(seen) // 2] if seen else None

    def named(self, names: Collection[str]) -> dict[str, int]:
        """The medians of all kinds whose workflow or stage has one of these names: name -> ms, the last learned kind of each."""
        kinds: dict[str, tuple[int, ...]] = {}
        for kind, seen in self._seen.items():
            for name in kind:
                if name in names:
                    kinds[name] = seen
        return {name: sorted(seen)[len(seen) // 2] for name, seen in kinds.items()}

    def high_ms(self, workflow: str, stage: str) -> int | None:
        """A high quantile (nine tenths) of the last ones, for promises that shall hold."""
        seen = self._seen.get((workflow, stage))
        return sorted(seen)[min(len(seen) - 1, len(seen) * 9 // 10)] if seen else None
