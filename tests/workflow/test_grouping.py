"""Tasks as stages: the shapes that pipelines have, and that nothing is lost or added whatever the trace."""

from __future__ import annotations

from collections import Counter

from expanding import Expanded, expand
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.synthetic.document import Largest, Place, Scale, synthetic
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.spec import Match
from flowsched.workflow.traces.grouping import Read, grouped
from flowsched.workflow.traces.trace import Trace, TraceFile, TraceTask

LARGE = Largest(64_000, 1 << 40)
FULL = Scale(1.0, 1.0)


def trace_of(*rows: tuple[str, str, str], order: dict[int, tuple[int, ...]] | None = None) -> Trace:
    """Tasks from (category, files read, files written), files as words; `order` adds parents without files."""
    names = list(dict.fromkeys(word for _, reads, writes in rows for word in f"{reads} {writes}".split()))
    number = {name: at for at, name in enumerate(names)}
    producer = {word: at for at, (_, _, writes) in enumerate(rows) for word in writes.split()}
    tasks = []
    for at, (category, reads, writes) in enumerate(rows):
        parents = {producer[word] for word in reads.split() if word in producer} | set(
            (order or {}).get(at, ())
        )
        inputs, outputs = (tuple(number[word] for word in words.split()) for words in (reads, writes))
        tasks.append(TraceTask(f"{category}-{at}", category, 1.0, tuple(sorted(parents)), inputs, outputs))
    files = tuple(TraceFile(name, 100 + at, producer.get(name)) for at, name in enumerate(names))
    return Trace("t", "1.5", tuple(tasks), files)


def shape(trace: Trace) -> list[tuple[int, ...]]:
    """The tasks of each group."""
    return [group.tasks for group in grouped(trace, [task.category for task in trace.tasks])]


def test_lanes_are_one_scatter_after_the_other() -> None:
    """Element by element, in whatever order the trace lists them."""
    trace = trace_of(
        ("a", "x1", "y1"), ("a", "x2", "y2"), ("a", "x3", "y3"), ("b", "y3", "z3"), ("b", "y1", "z1"), ("b", "y2", "z2"),
    )  # fmt: skip
    first, second = grouped(trace, ["a", "a", "a", "b", "b", "b"])
    assert (first.tasks, second.tasks) == ((0, 1, 2), (4, 5, 3))
    assert first.reads == (Read(own=(0, 2, 4)),)
    assert second.reads == (Read(group=0, slot=0, match=Match.INDEX),)


def test_a_gather_reads_all() -> None:
    """And a file that every shard reads is one file."""
    trace = trace_of(("a", "r x1", "y1"), ("a", "r x2", "y2"), ("c", "y1 y2", "z"))
    first, second = grouped(trace, ["a", "a", "c"])
    assert first.tasks == (0, 1)
    assert set(first.reads) == {Read(shared=0), Read(own=(1, 3))}
    assert second.reads == (Read(group=0, slot=0, match=Match.ALL),)


def test_several_gathers_read_chunks() -> None:
    """The shards are ordered so that each chunk is what one of them reads."""
    trace = trace_of(
        ("a", "", "y1"), ("a", "", "y2"), ("a", "", "y3"), ("a", "", "y4"), ("c", "y4 y1", "p"), ("c", "y2 y3", "q"),
    )  # fmt: skip
    first, second = grouped(trace, ["a", "a", "a", "a", "c", "c"])
    assert (first.tasks, second.tasks) == ((0, 3, 1, 2), (4, 5))
    assert second.reads == (Read(group=0, slot=0, match=Match.CHUNK),)


def test_a_split_into_parts_gives_stages_of_one_task() -> None:
    """Nobody can say that shard 2 reads the second output of one task."""
    trace = trace_of(("s", "x", "a b"), ("c", "a", "p"), ("c", "b", "q"), ("m", "p q", "z"))
    assert shape(trace) == [(0,), (1,), (2,), (3,)]


def test_two_children_of_each_lane_are_two_scatters() -> None:
    """Fewer stages than one for each lane."""
    trace = trace_of(
        ("a", "", "y1"), ("a", "", "y2"), ("a", "", "y3"),
        ("b", "y1", "p1"), ("b", "y1", "q1"), ("b", "y2", "p2"), ("b", "y2", "q2"), ("b", "y3", "p3"), ("b", "y3", "q3"),
    )  # fmt: skip
    assert shape(trace) == [(0, 1, 2), (3, 5, 7), (4, 6, 8)]


def test_groups_that_read_the_same_files_shard_by_shard_share_them() -> None:
    """One file keeps one URI, so that a node fetches it once."""
    trace = trace_of(("a", "x1", "p1"), ("a", "x2", "p2"), ("b", "x2", "q2"), ("b", "x1", "q1"))
    first, second = grouped(trace, ["a", "a", "b", "b"])
    assert (first.tasks, second.tasks) == ((0, 1), (3, 2))
    assert first.reads == second.reads == (Read(own=(0, 2)),)


def test_a_file_that_some_shards_read_divides_them() -> None:
    """Else the others would wait for bytes they never open."""
    trace = trace_of(("a", "r x1", ""), ("a", "r x2", ""), ("a", "x3", ""))
    assert sorted(shape(trace)) == [(0, 1), (2,)]


def test_groups_that_share_files_across_shards_keep_each_file_whole() -> None:
    """Stage a pairs x1 with x2, b pairs x1 with x3: no numbering suits both, and each file is still one."""
    trace = trace_of(
        ("a", "x1 x2", "p1"), ("a", "x3 x4", "p2"), ("b", "x1 x3", "q1"), ("b", "x2 x4", "q2"),
    )  # fmt: skip
    assert same(trace)


def test_crossed_lanes_are_divided() -> None:
    """D reads b of one lane and c of another one: no order of the shards suits both."""
    trace = trace_of(
        ("a", "", "y1"), ("a", "", "y2"), ("b", "y1", "b1"), ("b", "y2", "b2"), ("c", "y1", "c1"), ("c", "y2", "c2"),
        ("d", "b1 c2", "d1"), ("d", "b2 c1", "d2"),
    )  # fmt: skip
    assert same(trace)
    assert max(map(len, shape(trace))) == 1


def test_order_without_files_is_a_barrier() -> None:
    """All of one group for all of the other, else they are divided."""
    barrier = trace_of(("a", "", ""), ("a", "", ""), ("b", "", ""), order={2: (0, 1)})
    assert [group.needs for group in grouped(barrier, ["a", "a", "b"])] == [(), (0,)]
    lanes = trace_of(("a", "", ""), ("a", "", ""), ("b", "", ""), ("b", "", ""), order={2: (0,), 3: (1,)})
    assert sorted(shape(lanes)) == [(0,), (1,), (2,), (3,)]
    assert same(lanes)


def test_tasks_of_one_category_at_two_levels_are_two_stages() -> None:
    """A stage cannot wait for itself."""
    assert shape(trace_of(("a", "x", "y"), ("a", "y", "z"))) == [(0,), (1,)]


def expanded(trace: Trace) -> Expanded:
    """What the document of a trace says."""
    made = synthetic(trace, FULL, LARGE, Place("file:///in"))
    check_workflow(made.document)
    return expand(made.document, made.files, "file:///in")


def wanted(trace: Trace) -> Expanded:
    """What the trace says. Files that nobody writes and nobody reads are not part of the work."""
    name = [task.name for task in trace.tasks]
    readers = [
        frozenset(name[at] for at, task in enumerate(trace.tasks) if number in task.inputs)
        for number in range(len(trace.files))
    ]
    return Expanded(
        {(name[parent], task.name) for task in trace.tasks for parent in task.parents},
        Counter(
            (None if file.producer is None else name[file.producer], file.size_bytes, who)
            for file, who in zip(trace.files, readers, strict=True)
            if who or file.producer is not None
        ),
        sorted(name),
    )


def same(trace: Trace) -> bool:
    """Whether the document says what the trace says."""
    found = expanded(trace)
    found.tasks.sort()
    assert found == wanted(trace)
    return True


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Small DAGs in which any task may read any earlier file, or wait for any earlier task."""
    rows: list[tuple[str, str, str]] = []
    order: dict[int, tuple[int, ...]] = {}
    there = [f"x{number}" for number in range(draw(st.integers(0, 4)))]
    for at in range(draw(st.integers(1, 9))):
        reads = draw(st.lists(st.sampled_from(there), unique=True, max_size=4)) if there else []
        writes = [f"y{at}-{number}" for number in range(draw(st.integers(0, 2)))]
        if at and draw(st.integers(0, 4)) == 0:
            order[at] = tuple(draw(st.lists(st.integers(0, at - 1), unique=True, max_size=3)))
        rows.append((draw(st.sampled_from("ab")), " ".join(reads), " ".join(writes)))
        there += writes
    return trace_of(*rows, order=order)


@st.composite
def pipelines(draw: st.DrawFn) -> Trace:
    """Layers that meet in the ways that pipelines have, in a shuffled order: here groups can be wide."""
    width = draw(st.sampled_from([2, 3, 4, 6]))
    layer = [f"x{lane}" for lane in range(width)]
    rows: list[tuple[str, str, str]] = []
    for number in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["lanes", "halves", "all", "twice", "parts", "shared"]))
        last, layer = layer, []
        lanes = draw(st.permutations(last))
        made: list[str] = []
        match kind:
            case "halves" if len(last) % 2 == 0:
                made = [f"{lanes[at]} {lanes[at + 1]}" for at in range(0, len(lanes), 2)]
            case "all":
                made = [" ".join(lanes)]
            case "twice":
                made = [lane for lane in lanes for _ in range(2)]
            case "shared":
                made = [f"{lane} common{number}" for lane in lanes]
            case _:
                made = list(lanes)
        for at, reads in enumerate(made):
            outputs = [f"y{number}-{at}-{part}" for part in range(2 if kind == "parts" else 1)]
            rows.append((f"s{number}", reads, " ".join(outputs)))
            layer += outputs
    return trace_of(*rows)


@given(st.one_of(traces(), pipelines()))
@settings(deadline=None, max_examples=200)
def test_no_edge_and_no_file_is_lost_or_added(trace: Trace) -> None:
    """The document, taken apart by its own rules, is the trace: every edge, every file with its bytes and its readers."""
    assert same(trace)
