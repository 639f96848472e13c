"""How an amount grows with the bytes that a task reads, from a few samples. Whole numbers throughout.

Three models stand to choose: the same whatever is read, in proportion to it, and a line. Below five samples only the first:
two points make a line of anything. From five on each is asked for every sample what it would have said of it from the others
alone, and who erred least is taken, the simpler one at a tie. Middles are medians, so that one straggler moves little.

Source: ridge regression per task type, as in the Common Workflow Scheduler and Lotaru; leave-one-out choice in its closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isqrt
from typing import Final

#: Fewer samples say nothing of a slope.
ENOUGH: Final = 5
#: The ridge: sizes that differ by less than this part of their mean say nothing of a slope either.
_RIDGE: Final = 1_000
#: Parts in which ratios are compared.
_FINE: Final = 1 << 32
#: Levels of quantiles are given in per mille.
PER_MILLE: Final = 1_000


@dataclass(frozen=True, slots=True)
class Trend:
    """A model that was fitted: y = base + slope * x, never below `least`.

    Args:
        base: y at x = 0.
        slope: (numerator, denominator), the denominator above 0.
        least: A line that falls, or was drawn far from here, ends at this.
        errors: (seen, said) of each sample, both at least 1, by their ratio: how much more than said it was.
        samples: From how many it was fitted.
    """

    base: int
    slope: tuple[int, int]
    least: int
    errors: tuple[tuple[int, int], ...]
    samples: int

    def at(self, size: int) -> int:
        """What is expected of a task that reads `size` bytes: the middle, half of them take less."""
        return max(self.least, self.base + self.slope[0] * size // self.slope[1])

    def high(self, size: int, per_mille: int = 900) -> int:
        """What so many of a thousand are not above: the sample of that rank, carried over to this size."""
        seen, said = self.errors[min(self.samples - 1, self.samples * per_mille // PER_MILLE)]
        return self.at(size) * seen // said

    def quantile(self, size: int, per_mille: int) -> int:
        """As `high`, but between two samples where the level is between their ranks, and for few samples honest: the level p is
        rank p * (n + 1), not beyond the first and the last.
        """
        place = min(max(per_mille * (self.samples + 1) - PER_MILLE, 0), PER_MILLE * (self.samples - 1))
        below, part = divmod(place, PER_MILLE)
        middle = self.at(size)
        seen, said = self.errors[below]
        first = middle * seen // said
        if not part:
            return first
        seen, said = self.errors[below + 1]
        return first + (middle * seen // said - first) * part // PER_MILLE

    def deviation(self, size: int) -> int:
        """The standard deviation around the middle, carried over to this size; of one sample none can be told: 0."""
        if self.samples < 2:
            return 0
        middle = self.at(size)
        squares = sum((middle * (seen - said) // said) ** 2 for seen, said in self.errors)
        return isqrt(squares // (self.samples - 1))


def fit(sizes: Sequence[int], amounts: Sequence[int]) -> Trend:
    """Fit one model to samples.

    Args:
        sizes: Bytes that were read, >= 0; as many as amounts, at least one.
        amounts: What was measured, >= 0.
    """
    constant = (_middle(sorted(amounts)), (0, 1))
    if len(sizes) < ENOUGH or min(sizes) == max(sizes):
        return _made(constant, sizes, amounts)
    best, least = constant, _constant_errors(amounts)
    for errors, model in ((_ratio_errors, _ratio), (_line_errors, _line)):
        erred = errors(sizes, amounts)
        if erred is not None and erred < least:
            best, least = model(sizes, amounts), erred
    return _made(best, sizes, amounts)


def _made(model: tuple[int, tuple[int, int]], sizes: Sequence[int], amounts: Sequence[int]) -> Trend:
    base, (numerator, denominator) = model
    least = 0 if numerator == 0 or not amounts else min(amounts) // 2
    said = [max(1, least, base + numerator * size // denominator) for size in sizes]
    errors = [(max(1, seen), told) for seen, told in zip(amounts, said, strict=True)]
    errors.sort(key=lambda each: each[0] * _FINE // each[1])
    return Trend(base, (numerator, denominator), least, tuple(errors), len(amounts))


def _middle(ordered: Sequence[int]) -> int:
    return ordered[len(ordered) // 2]


def _without(ordered: Sequence[int], value: int, at: int) -> int:
    """The middle of all but one: `value`, which stands at `at`."""
    middle = (len(ordered) - 1) // 2
    return ordered[middle + 1] if at <= middle else ordered[middle]


def _constant_errors(amounts: Sequence[int]) -> int:
    ordered = sorted(amounts)
    return sum(abs(value - _without(ordered, value, at)) for at, value in enumerate(ordered))


def _rates(sizes: Sequence[int], amounts: Sequence[int]) -> list[int]:
    return sorted(amount * _FINE // size for size, amount in zip(sizes, amounts, strict=True))


def _ratio_errors(sizes: Sequence[int], amounts: Sequence[int]) -> int | None:
    """None where something read nothing: nothing is in proportion to that."""
    if min(sizes) <= 0:
        return None
    rates = [(amount * _FINE // size, size, amount) for size, amount in zip(sizes, amounts, strict=True)]
    rates.sort()
    ordered = [rate for rate, _, _ in rates]
    erred = 0
    for at, (rate, size, amount) in enumerate(rates):
        erred += abs(amount - _without(ordered, rate, at) * size // _FINE)
    return erred


def _ratio(sizes: Sequence[int], amounts: Sequence[int]) -> tuple[int, tuple[int, int]]:
    return 0, (_middle(_rates(sizes, amounts)), _FINE)


def _slope(count: int, x: int, y: int, xx: int, xy: int) -> tuple[int, int]:
    """Least squares with a small ridge, from sums. Counts are above 1."""
    return count * xy - x * y, count * xx - x * x + (x // _RIDGE) ** 2 + 1


def _line_errors(sizes: Sequence[int], amounts: Sequence[int]) -> int:
    count = len(sizes) - 1
    x, y = sum(sizes), sum(amounts)
    xx = sum(size * size for size in sizes)
    xy = sum(size * amount for size, amount in zip(sizes, amounts, strict=True))
    erred = 0
    for size, amount in zip(sizes, amounts, strict=True):
        over, under = _slope(count, x - size, y - amount, xx - size * size, xy - size * amount)
        said = (y - amount) // count + over * (size * count - (x - size)) // (under * count)
        erred += abs(amount - said)
    return erred


def _line(sizes: Sequence[int], amounts: Sequence[int]) -> tuple[int, tuple[int, int]]:
    xx = sum(size * size for size in sizes)
    xy = sum(size * amount for size, amount in zip(sizes, amounts, strict=True))
    over, under = _slope(len(sizes), sum(sizes), sum(amounts), xx, xy)
    base = _middle(sorted(a - over * s // under for s, a in zip(sizes, amounts, strict=True)))
    return base, (over, under)


def between(points: Sequence[tuple[int, int]], level: int) -> int:
    """The value at a level, on straight lines between (level, value) points in ascending order; the ends beyond them."""
    if level <= points[0][0]:
        return points[0][1]
    for (left, low), (right, high) in pairwise(points):
        if level <= right:
            return low + (high - low) * (level - left) // (right - left)
    return points[-1][1]
