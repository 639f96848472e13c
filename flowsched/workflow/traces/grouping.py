"""Tasks of a trace as stages: which of them can be the shards of one scatter, so that no edge and no file is lost or added.

A stage's shards have the same inputs and outputs, and meet those of another stage in one of three ways (`index`, `chunk`,
`all`). So tasks may share a stage only if the trace's files relate them to every neighbour in exactly such a way. Found by
refining: start with all tasks of one kind together, divide a group whenever its members differ in what they read or what
reads them (colours of tasks and files, as in testing graphs for isomorphism), or when two groups meet in no such way. A task
alone can always be said, so it ends, and it ends right; it does not always find the fewest stages.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from flowsched.workflow.spec import Match
from flowsched.workflow.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class Read:
    """One input of a group: from a slot of another group, one file for all, or one file for each shard."""

    group: int | None = None
    slot: int = 0
    match: Match = Match.ALL
    shared: int | None = None  #: number of a file that no task writes and every shard reads
    own: tuple[
        int, ...
    ] = ()  #: per shard, the number of a file that no task writes; of this group only that shard reads it


@dataclass(frozen=True, slots=True)
class Group:
    """Tasks that are shards of one stage, in the order of the shards."""

    tasks: tuple[int, ...]
    reads: tuple[Read, ...] = ()
    writes: tuple[tuple[int, ...], ...] = ()  #: per slot, the file of each shard
    needs: tuple[int, ...] = ()  #: groups it waits for though it reads nothing of theirs


def grouped(trace: Trace, kinds: Sequence[Hashable]) -> tuple[Group, ...]:
    """Divide the tasks of a trace into stages.

    Args:
        trace: Any.
        kinds: Per task; only tasks of equal kind may share a stage.

    Returns:
        Groups, ordered by level and then by their first task. Every task is in exactly one.
    """
    levels = trace.levels()  # refining would find them too, some rounds later
    found = _Partition(trace, [(level, kind) for level, kind in zip(levels, kinds, strict=True)])
    while True:
        found.refine()
        if found.divide():
            continue
        shards = found.shards()
        crooked = found.crooked(shards)
        if not crooked:
            return found.groups(shards, levels)
        found.scatter(crooked)


#: In place of a class: files that no task writes, and that `parent` only reads too.
NOBODYS: Final = -1


@dataclass(frozen=True, slots=True)
class _Meeting:
    """How the files of one class, which group `parent` writes, are read by group `child`."""

    files: int
    parent: int
    child: int
    match: Match
    pairs: tuple[tuple[int, int], ...]  #: (producer, reader)


class _Partition:
    """Colours of tasks and files: tasks of one colour are a group, files of one colour a class."""

    def __init__(self, trace: Trace, kinds: Sequence[Hashable]) -> None:
        self.trace = trace
        self.tasks = _numbered(kinds)
        self.files = [0] * len(trace.files)
        self.readers: list[list[int]] = [[] for _ in trace.files]
        self.ordered_by: list[list[int]] = []  # per task, the parents that it reads nothing of
        self.orders: list[list[int]] = [[] for _ in trace.tasks]  # the inverse
        for number, task in enumerate(trace.tasks):
            for file in task.inputs:
                self.readers[file].append(number)
            read = {trace.files[file].producer for file in task.inputs}
            self.ordered_by.append([parent for parent in task.parents if parent not in read])
            for parent in self.ordered_by[-1]:
                self.orders[parent].append(number)
        self.meetings: list[_Meeting] = []
        self._task_marks: dict[int, tuple[int, ...]] = {}
        self._file_marks: dict[int, tuple[int, ...]] = {}

    def refine(self) -> None:
        """Divide until members of a group have the same numbers of neighbours in every other group and class."""
        before = (-1, -1)
        while True:
            tasks = _numbered(map(self._task_colour, range(len(self.tasks))))
            files = _numbered(map(self._file_colour, range(len(self.files))))
            self.tasks, self.files = tasks, files
            now = (max(tasks, default=0), max(files, default=0))
            if now == before:
                return
            before = now

    def _task_colour(self, number: int) -> Hashable:
        task = self.trace.tasks[number]
        return (
            self.tasks[number],
            tuple(sorted(self.files[file] for file in task.inputs)),
            tuple(sorted(self.files[file] for file in task.outputs)),
            tuple(sorted(self.tasks[parent] for parent in self.ordered_by[number])),
            tuple(sorted(self.tasks[child] for child in self.orders[number])),
        )

    def _file_colour(self, number: int) -> Hashable:
        producer = self.trace.files[number].producer
        readers = tuple(sorted(self.tasks[reader] for reader in self.readers[number]))
        return (self.files[number], -1 if producer is None else self.tasks[producer], readers)

    def divide(self) -> bool:
        """Divide groups and classes that meet in no way a document can say; False if there are none.

        Notes how the others meet.
        """
        self.meetings = []
        groups = _members(self.tasks)
        for colour, files in _members(self.files).items():
            readers = sorted({self.tasks[reader] for file in files for reader in self.readers[file]})
            producer = self.trace.files[files[0]].producer
            if producer is None:
                self._meet_outside(files, [groups[child] for child in readers])
            else:
                for child in readers:
                    self._meet(colour, files, groups, self.tasks[producer], child)
        self._meet_in_order(groups)
        return self._repaint()

    def _meet_outside(self, files: Sequence[int], readers: Sequence[Sequence[int]]) -> None:
        """Files that no task writes: all of them for every shard of a group, or for each shard its own.

        Groups that read the same files shard by shard get one order, so that one file keeps one URI.
        """
        taken = set(files)
        read = [len(taken.intersection(self.trace.tasks[group[0]].inputs)) for group in readers]
        if all(count == len(files) for count in read):
            return
        owners = [self._owners(files, group) for group in readers]
        if all(len(owner) == len(files) for owner in owners) and len(set(read)) == 1:
            meetings = [self._side_by_side(owners[0], owner) for owner in owners[1:]]
            if None not in meetings:
                self.meetings += [meeting for meeting in meetings if meeting is not None]
                return
        self._mark(self._file_marks, {file: file for file in files})

    def _owners(self, files: Sequence[int], group: Sequence[int]) -> dict[int, int]:
        """File -> the one task of a group that reads it; without those that several read."""
        members = set(group)
        found = {file: [reader for reader in self.readers[file] if reader in members] for file in files}
        return {file: readers[0] for file, readers in found.items() if len(readers) == 1}

    def _side_by_side(self, one: Mapping[int, int], other: Mapping[int, int]) -> _Meeting | None:
        """How two groups read the same files, if shard by shard."""
        pairs = sorted({(reader, other[file]) for file, reader in one.items()})
        width = len(set(one.values()))
        if len(pairs) != width or len(set(other.values())) != width:
            return None
        parent, child = pairs[0]
        return _Meeting(NOBODYS, self.tasks[parent], self.tasks[child], Match.INDEX, tuple(pairs))

    def _meet(
        self, colour: int, files: Sequence[int], groups: Mapping[int, Sequence[int]], parent: int, child: int
    ) -> None:
        """Files of one class that `parent` writes and `child` reads."""
        producers = {file: self.trace.files[file].producer or 0 for file in files}
        each = len(files) // len(groups[parent])  # of the class, how many one producer writes
        pairs: list[tuple[int, int]] = []
        for reader in groups[child]:
            counts = Counter(producers[file] for file in self.trace.tasks[reader].inputs if file in producers)
            if any(
                count < each for count in counts.values()
            ):  # some of what one task writes: tell its files apart
                ordinals = _ordinals((producers[file], file) for file in files)
                self._mark(self._file_marks, ordinals)
                return
            pairs += [(producer, reader) for producer in sorted(counts)]
        match = _match(len(pairs), len(groups[parent]), len(groups[child]))
        if match is None:
            self._part(pairs, len(groups[parent]), len(groups[child]))
        else:
            self.meetings.append(_Meeting(colour, parent, child, match, tuple(pairs)))

    def _meet_in_order(self, groups: Mapping[int, Sequence[int]]) -> None:
        """Order without data is a barrier: all of a group wait for all of another, or the groups are divided."""
        met = {
            (self.tasks[parent], self.tasks[child])
            for child, parents in enumerate(self.ordered_by)
            for parent in parents
        }
        for parent, child in sorted(met):
            members = set(groups[parent])
            pairs = [
                (mother, number)
                for number in groups[child]
                for mother in self.trace.tasks[number].parents
                if mother in members
            ]
            if len(pairs) < len(groups[parent]) * len(groups[child]):
                self._part(pairs, len(groups[parent]), len(groups[child]))

    def _part(self, pairs: Sequence[tuple[int, int]], parents: int, children: int) -> None:
        """Divide two groups that meet in no way a document can say.

        Where each child has one parent, the children go into lanes: the first child of every parent, the second, and so on.
        Else both groups are divided along what hangs together, and if all does, the children stand alone.
        """
        siblings = len(pairs) // parents
        knots = _knots(pairs)
        if len(pairs) == children and 1 < siblings < parents:
            self._mark(self._task_marks, _ordinals(pairs))
        elif len(set(knots.values())) > 1:
            self._mark(self._task_marks, knots)
        else:
            self._mark(self._task_marks, {parent: -1 for parent, _ in pairs})
            self._mark(self._task_marks, {child: child for _, child in pairs})

    def scatter(self, groups: Collection[int]) -> None:
        """Let each task of these groups stand alone."""
        self._mark(
            self._task_marks, {task: task for task, colour in enumerate(self.tasks) if colour in groups}
        )
        self._repaint()

    @staticmethod
    def _mark(marks: dict[int, tuple[int, ...]], found: Mapping[int, int]) -> None:
        for number, mark in found.items():
            marks[number] = (*marks.get(number, ()), mark)

    def _repaint(self) -> bool:
        """Divide by the marks, and forget them; False if there were none."""
        marked = bool(self._task_marks or self._file_marks)
        self.tasks = _numbered((colour, self._task_marks.get(n)) for n, colour in enumerate(self.tasks))
        self.files = _numbered((colour, self._file_marks.get(n)) for n, colour in enumerate(self.files))
        self._task_marks, self._file_marks = {}, {}
        return marked

    def shards(self) -> dict[int, list[int]]:
        """Per group its tasks in an order that suits the meetings, as far as one was found.

        Groups that meet by `index` have one order. A group that is read in chunks follows its reader, which is narrower:
        hence the narrow ones come first.
        """
        groups = _members(self.tasks)
        lanes: dict[int, list[_Meeting]] = defaultdict(list)
        gathered: dict[int, _Meeting] = {}
        for meeting in self.meetings:
            if meeting.match is Match.INDEX:
                lanes[meeting.parent].append(meeting)
                lanes[meeting.child].append(meeting)
            elif meeting.match is Match.CHUNK:
                gathered.setdefault(meeting.parent, meeting)
        found: dict[int, list[int]] = {}
        for start in sorted(
            groups, key=lambda group: (len(groups[group]), group not in gathered, groups[group][0])
        ):
            if start in found:
                continue
            found[start] = groups[start]
            if start in gathered:
                place = {task: at for at, task in enumerate(found[gathered[start].child])}
                reader = {parent: place[child] for parent, child in gathered[start].pairs}
                found[start] = sorted(groups[start], key=lambda task: (reader[task], task))
            waiting = [start]
            while waiting:
                known = waiting.pop()
                for meeting in lanes[known]:
                    forth = meeting.parent == known
                    other = meeting.child if forth else meeting.parent
                    if other not in found:
                        to = (
                            dict(meeting.pairs)
                            if forth
                            else {child: parent for parent, child in meeting.pairs}
                        )
                        found[other] = [to[task] for task in found[known]]
                        waiting.append(other)
        return found

    def crooked(self, shards: Mapping[int, Sequence[int]]) -> set[int]:
        """Groups that do not meet another one shard by shard, or chunk by chunk, in this order."""
        found = set()
        for meeting in self.meetings:
            if meeting.match is Match.ALL:
                continue
            parents, children = shards[meeting.parent], shards[meeting.child]
            place = {task: at for at, task in enumerate(children)}
            reader = {parent: place[child] for parent, child in meeting.pairs}
            each = len(parents) // len(children)
            if any(reader[task] != at // each for at, task in enumerate(parents)):
                found.add(meeting.child)
        return found

    def groups(self, shards: Mapping[int, Sequence[int]], levels: Sequence[int]) -> tuple[Group, ...]:
        """The groups as values."""
        colours = sorted(shards, key=lambda colour: (levels[shards[colour][0]], min(shards[colour])))
        number_of = {colour: number for number, colour in enumerate(colours)}
        matches = {(meeting.files, meeting.child): meeting.match for meeting in self.meetings}
        writes = []
        slots: dict[int, list[tuple[int, int]]] = defaultdict(list)  # class -> (group, slot) of each
        for colour in colours:
            columns = [self._by_class(self.trace.tasks[task].outputs) for task in shards[colour]]
            writes.append(tuple(zip(*columns, strict=True)))
            for slot, files in enumerate(writes[-1]):
                slots[self.files[files[0]]].append((number_of[colour], slot))
        made = []
        for colour, written in zip(colours, writes, strict=True):
            tasks = shards[colour]
            reads: list[Read] = []
            inputs = self._by_class(self.trace.tasks[tasks[0]].inputs)
            for kind in dict.fromkeys(self.files[file] for file in inputs):
                if (kind, colour) in matches:
                    reads += [Read(group, slot, matches[kind, colour]) for group, slot in slots[kind]]
                else:
                    reads += self._outside(kind, tasks)
            needs = {number_of[self.tasks[parent]] for task in tasks for parent in self.ordered_by[task]}
            made.append(Group(tuple(tasks), tuple(reads), written, tuple(sorted(needs))))
        return tuple(made)

    def _by_class(self, files: Iterable[int]) -> list[int]:
        return sorted(files, key=lambda file: (self.files[file], file))

    def _outside(self, colour: int, tasks: Sequence[int]) -> Iterator[Read]:
        """Inputs that no task writes: the same files for all shards, or for each its own."""
        columns = [
            [file for file in self._by_class(self.trace.tasks[task].inputs) if self.files[file] == colour]
            for task in tasks
        ]
        for files in zip(*columns, strict=True):
            yield Read(shared=files[0]) if len(set(files)) == 1 else Read(own=files)


def _match(pairs: int, parents: int, children: int) -> Match | None:
    """How two groups meet, given that all members of each have the same number of partners."""
    if pairs == parents * children:
        return Match.ALL
    if pairs == parents:  # each producer has one reader
        return Match.INDEX if parents == children else Match.CHUNK
    return None


def _knots(pairs: Sequence[tuple[int, int]]) -> dict[int, int]:
    """Task -> the lowest task that it hangs together with."""
    root: dict[int, int] = {}

    def find(task: int) -> int:
        root.setdefault(task, task)
        while root[task] != task:
            root[task] = root[root[task]]
            task = root[task]
        return task

    for parent, child in pairs:
        low, high = sorted((find(parent), find(child)))
        root[high] = low
    return {task: find(task) for task in root}


def _ordinals(pairs: Iterable[tuple[int, int]]) -> dict[int, int]:
    """Of (owner, thing): thing -> how many of its owner's things came before it."""
    counts: Counter[int] = Counter()
    found = {}
    for owner, thing in pairs:
        found[thing] = counts[owner]
        counts[owner] += 1
    return found


def _members(colours: Sequence[int]) -> dict[int, list[int]]:
    """Colour -> its members, ascending."""
    found: dict[int, list[int]] = defaultdict(list)
    for number, colour in enumerate(colours):
        found[colour].append(number)
    return found


def _numbered(marks: Iterable[Hashable]) -> list[int]:
    """Equal marks as equal numbers from 0 on."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(mark, len(numbers)) for mark in marks]
