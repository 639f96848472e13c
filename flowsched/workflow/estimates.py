"""Estimates: the time, CPU, bytes and memory of a kind of task, learned from finished tasks.

A kind is (kind of the workflow, stage name). Each amount is a `Trend` over the bytes a task reads, with the spread that was seen
around it. The last few samples of each kind are kept and nothing else, so a model is the same whether it was learned in one
life of the service or in several.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice, pairwise
from math import isqrt
from typing import Final, NamedTuple

import msgspec

from flowsched.workflow.memory import first_request
from flowsched.workflow.spec import WorkflowSpec

#: Fewer samples say nothing of a slope.
ENOUGH: Final = 5
#: The ridge: sizes that differ by less than this part of their mean say nothing of a slope either.
_RIDGE: Final = 1_000
#: Parts in which ratios are compared.
_FINE: Final = 1 << 32
#: Levels of quantiles are given in per mille.
PER_MILLE: Final = 1_000
#: A user's word of a runtime that is wrong by this factor says less than the tasks that have ended.
_FAR: Final = 2


class Trend(msgspec.Struct, frozen=True):
    """A model that was fitted: y = base + slope * x, never below `least`.

    Args:
        base: y at x = 0.
        slope: (numerator, denominator), the denominator above 0.
        least: A line that falls, or was drawn far from here, ends at this.
        errors: (observed, predicted) of each sample, both at least 1, by their ratio: how much more than predicted it was.
        samples: From how many it was fitted.
    """

    base: int
    slope: tuple[int, int]
    least: int
    errors: tuple[tuple[int, int], ...]
    samples: int

    def at(self, size: int) -> int:
        """The expected amount of a task that reads `size` bytes: the median, half of them take less."""
        return max(self.least, self.base + self.slope[0] * size // self.slope[1])

    def high(self, size: int, per_mille: int = 900) -> int:
        """The amount that so many of a thousand tasks do not exceed: the sample of that rank, scaled to this size."""
        observed, predicted = self.errors[min(self.samples - 1, self.samples * per_mille // PER_MILLE)]
        return self.at(size) * observed // predicted

    def quantile(self, size: int, per_mille: int) -> int:
        """As `high`, but between two samples where the level is between their ranks, and for few samples honest: the level p is
        rank p * (n + 1), not beyond the first and the last.
        """
        place = min(max(per_mille * (self.samples + 1) - PER_MILLE, 0), PER_MILLE * (self.samples - 1))
        below, part = divmod(place, PER_MILLE)
        middle = self.at(size)
        observed, predicted = self.errors[below]
        first = middle * observed // predicted
        if not part:
            return first
        observed, predicted = self.errors[below + 1]
        return first + (middle * observed // predicted - first) * part // PER_MILLE

    def deviation(self, size: int) -> int:
        """The standard deviation around the median, scaled to this size; 0 for a single sample."""
        if self.samples < 2:
            return 0
        middle = self.at(size)
        squares = sum((middle * (amount - predicted) // predicted) ** 2 for amount, predicted in self.errors)
        return isqrt(squares // (self.samples - 1))


def fit(sizes: Sequence[int], amounts: Sequence[int]) -> Trend:
    """Fit one model to samples.

    Args:
        sizes: Bytes that were read, >= 0; as many as amounts, at least one.
        amounts: The measured amounts, >= 0.
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
    predicted = [max(1, least, base + numerator * size // denominator) for size in sizes]
    errors = [(max(1, observed), estimate) for observed, estimate in zip(amounts, predicted, strict=True)]
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
        predicted = (y - amount) // count + over * (size * count - (x - size)) // (under * count)
        erred += abs(amount - predicted)
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


# ---- learned amounts by kind ----


#: How many finished tasks of a kind are remembered: enough for a line and a high quantile, little to keep.
MOST_SAMPLES: Final = 32
#: How many kinds are remembered: names of workflows may have a date, and a service lives for years.
KINDS: Final = 20_000
#: So many changes of samples are remembered by their kinds: while a round rests (`engine.pacing`), hundreds of tasks may end.
_LATEST: Final = 8_192
#: Reservations use the runtime that so many of a thousand tasks do not exceed. A gang waits for all tasks that hold its room: of a
#: dozen, the last one ends about here.
FEW: Final = 950
#: The assumed runtime of a task if no similar task was observed, in ms.
UNKNOWN_MS: Final = 60_000
#: No task is expected to run for longer (two years): moments fit 64 bits.
LONGEST_MS: Final = 1 << 36
#: In a sample: it was not measured.
UNMEASURED: Final = -1


class Measured(NamedTuple):
    """The measurements of one task beside its runtime. `UNMEASURED` where it was not measured.

    `output_bytes` is all it wrote for others, `declared_ms` the runtime that its user declared, `read_bytes` and `written_bytes`
    all that its processes moved, `disk_bytes` the part of that which went to and from disks: the rest lay in memory. `shared_ms`
    is the time that its disk took for the bytes of pods that started with it.
    """

    input_bytes: int = 0
    cpu_ms: int = UNMEASURED
    read_bytes: int = UNMEASURED
    written_bytes: int = UNMEASURED
    memory_bytes: int = UNMEASURED
    output_bytes: int = UNMEASURED
    declared_ms: int = UNMEASURED
    disk_bytes: int = UNMEASURED
    shared_ms: int = 0


#: A time, and nothing else.
NOTHING: Final = Measured()

#: Columns of a sample: the input bytes, the runtime, and the others as in `Measured`.
INPUT, RUNTIME, CPU, READ, WRITTEN, MEMORY, OUTPUT, DECLARED, DISK, SHARED = range(10)
_WIDTH: Final = 10

#: Workflow and stage; a third name where it is one output of several; the workflow alone for the words of its author.
Kind = tuple[str, ...]
#: Kinds with their samples: _WIDTH numbers each, oldest first. Arrays are replaced, never changed, so they can be put back.
Before = Sequence[tuple[Kind, "array[int]"]]


def is_far(declared_ms: int, observed_ms: int) -> bool:
    """Whether tasks that declared this runtime took at least `_FAR` times it, or at most that part of it."""
    return observed_ms >= declared_ms * _FAR or declared_ms >= observed_ms * _FAR


class Estimates:
    """Learned amounts by kind."""

    __slots__ = ("_latest", "_requests", "_samples", "_sizes", "_trends", "_waits", "_words", "learned")

    def __init__(self) -> None:
        self._samples: dict[Kind, array[int]] = {}
        self._trends: dict[Kind, dict[int, Trend | None]] = {}
        #: asked, waiting, input beyond the known ones -> `memory_request`
        self._requests: dict[Kind, dict[tuple[int, int, int], int]] = {}
        self._sizes: dict[Kind, int] = {}  #: `typical_size`
        self.learned = 0  #: how often the samples of any kind have changed
        self._latest: deque[Kind] = deque(maxlen=_LATEST)  #: of which kinds
        self._words: dict[Kind, int | None] = {}  #: of workflows -> `word`
        self._waits: dict[Kind, tuple[int, int, int]] = {}  #: cores, disk rate -> `_wait_ms`

    # ---- learning ----

    def learn(
        self,
        workflow: str,
        stage: str,
        runtime_ms: int,
        measured: Measured = NOTHING,
        outputs: Mapping[str, int] | None = None,
    ) -> Before:
        """A task of this kind took so long, and so much.

        Args:
            workflow, stage: The kind.
            runtime_ms: From its start to its end.
            measured: The other measurements.
            outputs: Name -> bytes, where it wrote several.

        Returns:
            The samples known before, for `recall`.
        """
        kind: Kind = (workflow, stage)
        size, *rest = measured
        before = [(kind, self._add(kind, (size, runtime_ms, *rest)))]
        if measured.declared_ms > 0:
            word = Measured(declared_ms=measured.declared_ms)
            before.append(((workflow,), self._add((workflow,), (0, runtime_ms, *word[1:]))))
        if outputs is not None and len(outputs) > 1:
            none = (UNMEASURED,) * (OUTPUT - CPU)
            for name, wrote in outputs.items():
                each: Kind = (workflow, stage, name)
                before.append(
                    (each, self._add(each, (size, UNMEASURED, *none, wrote, UNMEASURED, UNMEASURED, 0)))
                )
        return before

    def _add(self, kind: Kind, sample: tuple[int, ...]) -> array[int]:
        before = self._samples.pop(kind, None)
        if before is None:
            before = array("q")
        self._samples[kind] = (before + array("q", sample))[-MOST_SAMPLES * _WIDTH :]  # last: learned last
        self._refit(kind)
        if len(self._samples) > KINDS:
            oldest = next(iter(self._samples))
            del self._samples[oldest]
            self._refit(oldest)
        return before

    def _refit(self, kind: Kind) -> None:
        """Forget what was derived from the samples of a kind."""
        self._trends.pop(kind, None)
        self._requests.pop(kind, None)
        self._sizes.pop(kind, None)
        self.learned += 1
        self._latest.append(kind)
        self._waits.pop(kind, None)
        self._words.pop(kind, None)

    def learned_since(self, learned: int) -> list[Kind] | None:
        """The kinds whose samples have changed since `learned` was so much; None if there are more than are remembered."""
        more = self.learned - learned
        return None if more > len(self._latest) else list(islice(reversed(self._latest), more))

    def recall(self, before: Before) -> None:
        """Undo `learn`."""
        for kind, samples in before:
            self._samples.pop(kind, None)
            self._refit(kind)
            if samples:
                self._samples[kind] = samples

    # ---- what is expected ----

    def trend(self, workflow: str, stage: str, column: int, output: str | None = None) -> Trend | None:
        """The model of one column over the input bytes; for `DECLARED`, of the runtime over the declared one. None before the first
        sample.
        """
        kind = (workflow, stage) if output is None else (workflow, stage, output)
        samples = self._samples.get(kind)
        if samples is None:
            return None
        fitted = self._trends.setdefault(kind, {})
        if column not in fitted:
            against = DECLARED if column == DECLARED else INPUT
            pairs = [
                (size, amount)
                for size, amount in zip(
                    samples[against::_WIDTH],
                    samples[RUNTIME if column == DECLARED else column :: _WIDTH],
                    strict=True,
                )
                if amount >= 0 and (size >= 0 or against == INPUT)
            ]
            known = [pair for pair in pairs if pair[0] >= 0]
            if len(known) < ENOUGH:  # the model is a constant, for which no size is needed
                known = [(0, amount) for _, amount in pairs]
            fitted[column] = fit(*zip(*known, strict=True)) if known else None
        return fitted[column]

    def samples(self, workflow: str, stage: str) -> int:
        """How many of a kind are remembered."""
        return len(self._samples.get((workflow, stage), ())) // _WIDTH

    def typical_size(self, workflow: str, stage: str) -> int | None:
        """The bytes that the median task of a kind read; None where that was never measured."""
        kind = (workflow, stage)
        if kind not in self._sizes:
            sizes = sorted([size for size in self._samples.get(kind, ())[::_WIDTH] if size >= 0])
            if not sizes:
                return None
            self._sizes[kind] = _middle(sizes)
        return self._sizes[kind]

    def runtime_ms(self, workflow: str, stage: str, input_bytes: int = 0) -> int | None:
        """The middle: half of those that read so much take less. None before the first has finished."""
        trend = self.trend(workflow, stage, RUNTIME)
        return None if trend is None else trend.at(input_bytes)

    def high_ms(self, workflow: str, stage: str, input_bytes: int = 0) -> int | None:
        """The runtime that few tasks with so many input bytes exceed, for reservations that shall hold."""
        trend = self.trend(workflow, stage, RUNTIME)
        return None if trend is None else trend.high(input_bytes, FEW)

    def high_declared_ms(self, workflow: str, stage: str, declared_ms: int) -> int | None:
        """The runtime that few tasks exceed of those with this declared runtime; None if none ever declared one."""
        trend = self.trend(workflow, stage, DECLARED)
        return None if trend is None else trend.high(declared_ms, FEW)

    def as_declared_ms(self, workflow: str, stage: str, declared_ms: int) -> int | None:
        """The runtime of a task with this declared one, by the tasks of its kind that have ended. Before the first of these, by at
        least `ENOUGH` of its workflow's other kinds; None if these are too few, or if the words of its author are about true.
        """
        if (workflow, stage) in self._samples:
            trend = self.trend(workflow, stage, DECLARED)  # else they were relearned, or declared none
            found = self.runtime_ms(workflow, stage) if trend is None else trend.at(declared_ms)
        else:
            word = self.word(workflow)
            found = None if word is None else word * declared_ms // PER_MILLE
        return None if found is None else min(max(1, found), LONGEST_MS)

    def word(self, workflow: str) -> int | None:
        """The middle ratio of observed to declared runtimes of a workflow, per mille. None where the declared ones are not far from
        the truth, and from fewer than `ENOUGH` tasks.
        """
        samples = self._samples.get((workflow,), ())
        if len(samples) < ENOUGH * _WIDTH:
            return None
        if (workflow,) not in self._words:
            pairs = zip(samples[RUNTIME::_WIDTH], samples[DECLARED::_WIDTH], strict=True)
            word = max(1, _middle(sorted(ran * PER_MILLE // said for ran, said in pairs)))
            shift = max(0, word.bit_length() - 3)  # waiting tasks are not outdated by each task that ends
            word = word >> shift << shift
            self._words[workflow,] = word if is_far(PER_MILLE, word) else None
        return self._words[workflow,]

    def weight_ms(self, workflow: str, stage: str, input_bytes: int = 0) -> int | None:
        """The median and half a standard deviation, for priorities: a task that may take long begins early."""
        trend = self.trend(workflow, stage, RUNTIME)
        return None if trend is None else trend.at(input_bytes) + trend.deviation(input_bytes) // 2

    def cpu_ms(self, workflow: str, stage: str, input_bytes: int = 0) -> int | None:
        """CPU time; None where it was never measured."""
        return self._expected(workflow, stage, CPU, input_bytes)

    def memory_request(
        self, workflow: str, stage: str, asked_bytes: int, waiting: int, input_bytes: int = 0
    ) -> int:
        """The memory of the first try of a task, in bytes: at most `asked_bytes`, which it is before the first sample.

        Peaks are taken to grow as inputs do beyond the largest input that was seen: short tasks with small inputs end first.

        Args:
            workflow, stage: The kind.
            asked_bytes: The memory that the task asks for.
            waiting: How many tasks cannot start before it has ended.
            input_bytes: The bytes that the task reads; 0 where that is not known.
        """
        kind = (workflow, stage)
        samples = self._samples.get(kind)
        if samples is None:
            return asked_bytes
        largest = max(samples[INPUT::_WIDTH])
        beyond = input_bytes if 0 < largest < input_bytes else 0
        requests = self._requests.setdefault(kind, {})
        known = requests.get((asked_bytes, waiting, beyond))
        if known is None:
            peaks = [peak for peak in samples[MEMORY::_WIDTH] if peak > 0]
            if beyond:
                peaks = [peak * beyond // largest for peak in peaks]
            runtime_ms = self.runtime_ms(workflow, stage) or UNKNOWN_MS
            known = first_request(peaks, asked_bytes, runtime_ms, waiting)
            requests[asked_bytes, waiting, beyond] = known
        return known

    def output_bytes(
        self, workflow: str, stage: str, input_bytes: int = 0, output: str | None = None
    ) -> int | None:
        """Bytes a shard will write for others, or those of one of its outputs.

        Args:
            workflow, stage: The kind.
            input_bytes: The bytes that the shard reads.
            output: The name of one output; None = all of them together.

        Returns:
            None before the first has finished.
        """
        if output is not None and (workflow, stage, output) in self._samples:
            return self._expected(workflow, stage, OUTPUT, input_bytes, output)
        return self._expected(workflow, stage, OUTPUT, input_bytes)  # of one output: all is that one's

    def moved_bytes(self, workflow: str, stage: str, input_bytes: int = 0) -> int | None:
        """Bytes its processes read and write; None where neither was measured."""
        parts = [self._expected(workflow, stage, column, input_bytes) for column in (READ, WRITTEN)]
        return None if parts == [None, None] else sum(part or 0 for part in parts)

    def bytes_of(self, workflow: str, stage: str, column: int, input_bytes: int = 0) -> int:
        """The expected amount of one of the columns of bytes; 0 where it was never measured."""
        return self._expected(workflow, stage, column, input_bytes) or 0

    def disk_bytes(self, workflow: str, stage: str, input_bytes: int = 0) -> int | None:
        """Bytes that went to and from disks; None where that was never measured."""
        return self._expected(workflow, stage, DISK, input_bytes)

    def unshared_ms(
        self, workflow: str, stage: str, input_bytes: int, cores: int, disk_rate: int
    ) -> int | None:
        """Its runtime less the time that its disk took for the bytes of others, as far as samples had such a time; None before the
        first has finished.
        """
        wall_ms = self.runtime_ms(workflow, stage, input_bytes)
        if wall_ms is None or (shared_ms := max(self._samples[workflow, stage][SHARED::_WIDTH])) <= 0:
            return wall_ms
        alone_ms = self.alone_ms(workflow, stage, input_bytes, cores, disk_rate)
        return wall_ms if alone_ms is None else min(wall_ms, max(alone_ms, wall_ms - shared_ms))

    def alone_ms(self, workflow: str, stage: str, input_bytes: int, cores: int, disk_rate: int) -> int | None:
        """The time that it needs beside a disk of `disk_rate` bytes/s which it has for itself: its CPU time, its moving of bytes,
        and the waits that both do not explain, such as those of a start. None where CPU time or disk bytes were never measured.
        """
        cpu = self.cpu_ms(workflow, stage, input_bytes)
        moved = self.disk_bytes(workflow, stage, input_bytes)
        if cpu is None or moved is None:
            return None
        cores, disk_rate = max(1, cores), max(1, disk_rate)
        wait_ms = self._wait_ms((workflow, stage), cores, disk_rate)
        return max(1, cpu // cores + moved * 1000 // disk_rate + wait_ms)

    def io_rate(self, workflow: str, stage: str, input_bytes: int, cores: int, disk_rate: int) -> int | None:
        """Bytes/s of a disk of `disk_rate` on which it runs alone: what goes to and from it, over `alone_ms`."""
        alone_ms = self.alone_ms(workflow, stage, input_bytes, cores, disk_rate)
        if alone_ms is None:
            return None
        return min(disk_rate, self.bytes_of(workflow, stage, DISK, input_bytes) * 1000 // alone_ms)

    def _wait_ms(self, kind: Kind, cores: int, disk_rate: int) -> int:
        """The shortest wait of any sample: a disk that is shared makes waits longer, and never shorter. The time of the bytes that
        pods beside it moved is no wait: a first wave of tasks has no sample that had the disk for itself.
        """
        known = self._waits.get(kind)
        if known is None or known[:2] != (cores, disk_rate):
            samples = self._samples[kind]
            columns = (samples[column::_WIDTH] for column in (RUNTIME, CPU, DISK, SHARED))
            waits = (
                max(0, runtime - cpu // cores - moved * 1000 // disk_rate - shared)
                for runtime, cpu, moved, shared in zip(*columns, strict=True)
                if min(runtime, cpu, moved) >= 0
            )
            known = self._waits[kind] = cores, disk_rate, min(waits, default=0)
        return known[2]

    def _expected(
        self, workflow: str, stage: str, column: int, input_bytes: int, output: str | None = None
    ) -> int | None:
        trend = self.trend(workflow, stage, column, output)
        return None if trend is None else trend.at(input_bytes)

    def named(self, names: Collection[str]) -> dict[str, int]:
        """Learned runtimes under these kinds of workflows: kind -> ms, of the stage that was learned last."""
        kinds = {kind[0]: kind for kind in self._samples if len(kind) == 2 and kind[0] in names}
        found = {}
        for name, (workflow, stage) in kinds.items():
            expected = self.runtime_ms(workflow, stage, self.typical_size(workflow, stage) or 0)
            if expected is not None:
                found[name] = expected
        return found


def weights(estimates: Estimates, spec: WorkflowSpec) -> list[int]:
    """The runtime of one task of each stage for ranks, in ms.

    The user's estimate; else the learned runtime and half a deviation, because a task may take longer; else the median of this
    workflow's other stages, since the steps of one pipeline are more alike than any two tasks; else a minute.
    """
    return filled(
        stage.estimate.runtime_ms or typical_ms(estimates, *spec.kind_of(stage)) for stage in spec.stages
    )


def filled(known_ms: Iterable[int | None]) -> list[int]:
    """Runtimes of one DAG in one scale: an unknown one is the middle of the known ones, and a minute where none is known.

    A rank adds runtimes up. A constant beside learned ones would decide the order by its own size alone.
    """
    runtimes = list(known_ms)
    known = sorted(max(1, each) for each in runtimes if each is not None)
    typical = known[len(known) // 2] if known else UNKNOWN_MS
    return [typical if each is None else max(1, each) for each in runtimes]


def typical_ms(estimates: Estimates, workflow: str, stage: str) -> int | None:
    """The runtime of a task of a kind for ranks, in ms; None where it is not known. For stages that have not begun.

    How much they will read is not known, so they read as much as the last samples.
    """
    return estimates.weight_ms(workflow, stage, estimates.typical_size(workflow, stage) or 0)
