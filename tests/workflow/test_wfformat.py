"""Reading WfFormat: two versions of one workflow, older habits, and everything that a hostile document may say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_documents import DIVIDED, FLAT, changed, raw

from bench.synthetic.document import Largest, Place, Scale, synthetic
from flowsched.errors import InvalidDocument, InvalidRequest, TooLarge
from flowsched.values import replace
from flowsched.workflow.formats.wfformat import LIMITS, read_trace
from flowsched.workflow.traces.trace import Trace, TraceFile, TraceTask, Work, work
from tests.soak import worlds

SPLIT = TraceTask("split_ID1", "split", 4.0, (), (0,), (2, 3), busy_cores=0.5)


def test_a_divided_document_is_read_whole() -> None:
    """Version 1.5: tasks and files by number, in the order of the document; what was not said is None."""
    trace = read_trace(raw(DIVIDED))
    assert (trace.name, trace.version) == ("counts", "1.5")
    assert trace.files == (
        TraceFile("text", 3000, None),
        TraceFile("words", 500, None),
        TraceFile("a", 1000, 0),
        TraceFile("b", 2000, 0),
        TraceFile("na", 10, 1),
        TraceFile("nb", 20, 2),
        TraceFile("all", 0, 3),
    )
    assert trace.tasks == (
        SPLIT,
        TraceTask("count_ID2", "count", 10.0, (0,), (2, 1), (4,), 1.5, 1, 100_000_000, 1500, 10),
        TraceTask("count_ID3", "count", 12.0, (0,), (3, 1), (5,), 0.8, 1, 200_000_000),
        TraceTask("join_ID4", "join", 1.5, (1, 2), (4, 5), (6,)),
    )
    assert trace.levels() == [0, 1, 1, 2]


def by_name(trace: Trace) -> dict[str, Any]:
    """Numbers replaced by names, since both documents name their files in another order."""
    return {
        task.name: (
            replace(task, parents=(), inputs=(), outputs=()),
            {trace.tasks[parent].name for parent in task.parents},
            {trace.files[file] for file in task.inputs if trace.files[file].producer is None},
            {trace.files[file].name for file in task.inputs},
            {trace.files[file].name for file in task.outputs},
        )
        for task in trace.tasks
    }


def test_a_flat_document_means_the_same() -> None:
    """Version 1.4: parents by name or by id, or only by the child or the file that says so."""
    flat, divided = read_trace(raw(FLAT)), read_trace(raw(DIVIDED))
    assert flat.version == "1.4"
    assert by_name(flat) == by_name(divided)
    assert {file.name: file.size_bytes for file in flat.files} == {
        "text": 3000, "a": 1000, "b": 2000, "words": 500, "na": 10, "nb": 20, "all": 0,
    }  # fmt: skip


def test_jobs_of_the_first_versions_are_tasks() -> None:
    """Before 1.3: `jobs`, `runtime`, `size`, `memory` in KB, and a file's path before its name."""
    document = {
        "name": "old",
        "schemaVersion": "1.0",
        "workflow": {
            "jobs": [
                {"name": "a_1", "runtime": 2, "memory": 5, "files": [{"link": "output", "name": "x", "path": "/d/", "size": 7}]},
                {"name": "b_1", "runtime": 3, "files": [{"link": "Input", "name": "x", "path": "/d/", "size": 9}]},
            ]
        },
    }  # fmt: skip
    trace = read_trace(raw(document))
    assert [(task.category, task.runtime_s, task.memory_bytes, task.parents) for task in trace.tasks] == [
        ("a", 2.0, 5000, ()),
        ("b", 3.0, None, (0,)),
    ]
    assert trace.files == (TraceFile("/d/x", 9, 0),)


@pytest.mark.parametrize(
    ("name", "program", "category"),
    [
        ("individuals_ID0000001", "individuals", "individuals"),
        ("chr21_chr21_ID0000001", "chr21", "chr21"),
        ("sift_17", "python", "sift"),
        ("alone", "python", "alone"),
        ("_12", "x", "_12"),
    ],
)
def test_a_category_is_what_tasks_of_one_program_share(name: str, program: str, category: str) -> None:
    """The program where the name begins with it, else the name without its number."""
    document = changed("workflow.specification.tasks.3.id", name)
    document["workflow"]["specification"]["tasks"][3]["name"] = name
    document["workflow"]["specification"]["tasks"][1]["children"] = []
    document["workflow"]["specification"]["tasks"][2]["children"] = []
    document["workflow"]["execution"]["tasks"][3] = {
        "id": name, "runtimeInSeconds": 1, "command": {"program": program, "arguments": []},
    }  # fmt: skip
    assert read_trace(raw(document)).tasks[3].category == category


def test_what_a_task_writes_it_does_not_read() -> None:
    """A file changed in place would make its task wait for itself."""
    document = changed("workflow.specification.tasks.3.inputFiles", ["na", "nb", "all", "na"])
    assert read_trace(raw(document)).tasks[3].inputs == (4, 5)


def faults(document: Any) -> list[tuple[str, str]]:
    with pytest.raises(InvalidDocument) as caught:
        read_trace(raw(document))
    return [(fault.path, fault.found) for fault in caught.value.faults]


@pytest.mark.parametrize(
    ("path", "value", "at", "found"),
    [
        ("workflow.specification.tasks.1.parents", ["nobody"], "$.workflow.specification.tasks[1].parents[0]", '"nobody"'),
        ("workflow.specification.tasks.1.children", ["nobody"], "$.workflow.specification.tasks[1].children[0]", '"nobody"'),
        ("workflow.specification.tasks.0.inputFiles", ["void"], "$.workflow.specification.tasks[0].inputFiles[0]", '"void"'),
        ("workflow.specification.tasks.0.inputFiles", [7], "$.workflow.specification.tasks[0].inputFiles[0]", "7"),
        ("workflow.specification.tasks.0.inputFiles", "text", "$.workflow.specification.tasks[0].inputFiles", '"text"'),
        ("workflow.specification.tasks.0", 3, "$.workflow.specification.tasks[0]", "3"),
        ("workflow.specification.tasks", [], "$.workflow.specification.tasks", "an array of 0"),
        ("workflow.specification.tasks", None, "$.workflow.specification.tasks", "nothing"),
        ("workflow.specification.files.0.sizeInBytes", -1, "$.workflow.specification.files[0].sizeInBytes", "-1"),
        ("workflow.specification.files.0.sizeInBytes", 1e300, "$.workflow.specification.files[0].sizeInBytes", "1e+300"),
        ("workflow.specification.files.0.sizeInBytes", True, "$.workflow.specification.files[0].sizeInBytes", "true"),
        ("workflow.specification.files.0.sizeInBytes", None, "$.workflow.specification.files[0].sizeInBytes", "nothing"),
        ("workflow.specification.files.1.id", "text", "$.workflow.specification.files[1].id", '"text"'),
        ("workflow.specification", None, "$.workflow", "neither"),
        ("workflow.specification", [], "$.workflow.specification", "an array of 0"),
        ("workflow.execution", None, "$.workflow.execution", "nothing"),
        ("workflow.execution.tasks.0.runtimeInSeconds", -0.5, "$.workflow.execution.tasks[0].runtimeInSeconds", "-0.5"),
        ("workflow.execution.tasks.0.runtimeInSeconds", "4", "$.workflow.execution.tasks[0].runtimeInSeconds", '"4"'),
        ("workflow.execution.tasks.0.runtimeInSeconds", None, "$.workflow.execution.tasks[0].runtimeInSeconds", "nothing"),
        ("workflow.execution.tasks.0.avgCPU", -3, "$.workflow.execution.tasks[0].avgCPU", "-3"),
        ("workflow.execution.tasks.1.memoryInBytes", -3, "$.workflow.execution.tasks[1].memoryInBytes", "-3"),
        ("workflow.execution.tasks.1.id", "split_ID1", "$.workflow.execution.tasks[1].id", '"split_ID1"'),
        ("workflow", None, "$.workflow", "nothing"),
        ("workflow", "x", "$.workflow", '"x"'),
        ("schemaVersion", "2.0", "$.schemaVersion", '"2.0"'),
        ("schemaVersion", 1.5, "$.schemaVersion", "1.5"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_a_fault_with_its_place(path: str, value: Any, at: str, found: str) -> None:
    """One change, and the first fault names it."""
    assert (at, found) in faults(changed(path, value))


def test_a_task_that_did_not_run_is_a_fault() -> None:
    """Its runtime is nowhere."""
    document = changed("workflow.execution.tasks.3", None)
    assert faults(document) == [("$.workflow.specification.tasks[3].id", '"join_ID4"')]


def test_names_occur_once() -> None:
    """Two tasks of one name would be one number."""
    document = changed("workflow.specification.tasks.2.id", "count_ID2")
    assert ("$.workflow.specification.tasks[2]", 'a second task "count_ID2"') in faults(document)


def test_a_file_has_one_producer() -> None:
    """The second task that says it wrote a file is told of the first."""
    document = changed("workflow.specification.tasks.2.outputFiles", ["nb", "na"])
    assert faults(document) == [("$.workflow.specification.tasks[2].outputFiles[1]", 'the output "na"')]


def test_a_cycle_is_printed() -> None:
    """Whether parents or files make it."""
    document = changed("workflow.specification.tasks.0.parents", ["join_ID4"])
    assert faults(document) == [
        (
            "$.workflow.specification.tasks[0].parents",
            "the cycle split_ID1 → count_ID2 → join_ID4 → split_ID1",
        )
    ]
    document = changed("workflow.specification.tasks.0.inputFiles", ["all"])
    assert faults(document) == [
        (
            "$.workflow.specification.tasks[0].parents",
            "the cycle split_ID1 → count_ID2 → join_ID4 → split_ID1",
        )
    ]
    document = changed("workflow.specification.tasks.0.parents", ["split_ID1"])
    assert faults(document) == [
        ("$.workflow.specification.tasks[0].parents", "the cycle split_ID1 → split_ID1")
    ]


def test_all_faults_are_told_at_once() -> None:
    """Each with its own place."""
    document = changed("workflow.specification.files.0.sizeInBytes", -1)
    document["workflow"]["specification"]["tasks"][1]["parents"] = ["nobody"]
    document["workflow"]["execution"]["tasks"][0]["runtimeInSeconds"] = "long"
    assert [path for path, _ in faults(document)] == [
        "$.workflow.specification.files[0].sizeInBytes",
        "$.workflow.execution.tasks[0].runtimeInSeconds",
        "$.workflow.specification.tasks[1].parents[0]",
    ]


@pytest.mark.parametrize("text", [b"", b"[", b"\xff", b'{"name": NaN}', b'{"a": 1, "a": 2}', b"1e999"])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    """NaN and infinity among it: no schedule could be compared with them."""
    with pytest.raises(InvalidRequest) as caught:
        read_trace(text)
    assert caught.value.status == 400


@pytest.mark.parametrize("text", [b"[]", b"7", b"null", b'"x"'])
def test_a_document_is_an_object(text: bytes) -> None:
    """Anything else is one fault, at the root."""
    with pytest.raises(InvalidDocument) as caught:
        read_trace(text)
    assert [fault.path for fault in caught.value.faults] == ["$"]


def test_limits_hold() -> None:
    """Tasks, edges and bytes, each by its name."""
    for name, limit in (("tasks", 3), ("edges", 3), ("document_bytes", 100), ("depth", 3)):
        with pytest.raises(TooLarge, match=f"'{name}'"):
            read_trace(raw(DIVIDED), replace(LIMITS, **{name: limit}))


def test_many_faults_are_counted() -> None:
    """A million wrong entries are not a million lines."""
    document = changed(
        "workflow.specification.files", [{"id": str(n), "sizeInBytes": -1} for n in range(3000)]
    )
    assert len(faults(json.loads(json.dumps(document)))) == 1001


@pytest.mark.parametrize(
    ("busy", "count", "expected"),
    [
        (None, 1, Work(1, 100.0)),
        (None, 4, Work(4, 100.0)),
        (0.5, 1, Work(1, 50.0)),
        (1.2, 1, Work(1, 100.0)),  # a quarter of a core above is no second core
        (1.5, 1, Work(2, 75.0)),
        (0.5, 4, Work(4, 12.5)),
        (7.9, 2, Work(8, 98.75)),
    ],
)
def test_work_is_what_was_computed(busy: float | None, count: int, expected: Work) -> None:
    """Waiting for files is no work: CPU seconds over the cores that were kept busy."""
    assert work(TraceTask("t", "t", 100.0, busy_cores=busy, core_count=count)) == expected


def test_work_on_fewer_cores_takes_longer() -> None:
    """The core-seconds stay."""
    assert Work(8, 10.0).on(2) == Work(2, 40.0)
    assert Work(1, 10.0).on(2) == Work(1, 10.0)


def test_a_node_of_the_reference_caps_the_cores_of_a_task() -> None:
    """There a task takes its runtime on fewer cores than it kept busy: the referee of reference traces asks for that."""
    task = TraceTask("t", "t", 100.0, busy_cores=7.9, core_count=2)
    assert work(task, 16) == Work(8, 98.75)
    assert work(task, 4) == Work(4, 100.0)
    assert work(TraceTask("t", "t", 100.0, core_count=8), 4) == Work(4, 100.0)


def leaves(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a document."""
    yield way
    for key, inner in (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    ):
        yield from leaves(inner, (*way, key))


STRANGE: list[Any] = [
    None,
    True,
    -1,
    0,
    1e308,
    2**70,
    "",
    "x",
    "split_ID1",
    "a",
    [],
    [[]],
    {},
    {"id": 1},
    ["a", "a"],
    "\0",
    "\ud800",
]


@given(st.sampled_from([DIVIDED, FLAT]), st.data())
@pytest.mark.soak
@settings(max_examples=worlds(120, 2000), deadline=None)
def test_a_document_is_read_or_refused_whatever_it_says(document: Any, data: st.DataObject) -> None:
    """Up to three places hold something strange: a trace that keeps its word, or an error of ours."""
    document = json.loads(json.dumps(document))
    for _ in range(data.draw(st.integers(1, 3))):
        way = data.draw(st.sampled_from([way for way in leaves(document) if way]))
        at = document
        for key in way[:-1]:
            at = at[key]
        at[way[-1]] = deepcopy(data.draw(st.sampled_from(STRANGE)))
    try:
        trace = read_trace(raw(document))
    except InvalidRequest:
        return
    assert sorted(trace.order()) == list(range(len(trace.tasks)))
    for number, task in enumerate(trace.tasks):
        assert not set(task.inputs) & set(task.outputs)
        assert all(trace.files[file].producer == number for file in task.outputs)
        assert {trace.files[file].producer for file in task.inputs} - {None} <= set(task.parents)
    synthetic(trace, Scale(), Largest(1000, 1 << 30), Place("file:///in"))
