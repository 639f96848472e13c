"""Sources that engines run and miniwdl refuses: what changes no call is named in the plan's notes, and the run is planned."""

from __future__ import annotations

import re
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowsched.errors import InvalidDocument
from flowsched.workflow.formats.wdl.plan import plan_wdl
from flowsched.workflow.formats.wdl.sources import sources

from .wdl_cases import edges

#: A workflow with a place for each collision.
SOURCE: Final = """version 1.0
import "lib.wdl" as lib
@import@ @import by keyword@
struct Box { Int n }
struct Shelf { Box first  Array[Box] others }
@struct@
workflow main {
  input { File f  Boolean done = false }
  Int k = 2
  @declaration@
  scatter (i in range(k)) {
    Int twice = i * 2
    @in a section@
    call One { input: f = f, @call input@ n = twice }
  }
  call lib.Two { input: fs = One.o }
  output { @output@ File last = Two.o @output like an input@ @output like a call@ }
}
task One {
  input { File f  Int n }
  @local@
  command <<< cat ~{f} @command@ >>>
  output { @task output@ File o = "o" @task output like an input@ @expression@ }
  meta { author: "A" @meta@ }
  runtime { cpu: n + 1 }
}
@task@
"""
IMPORTS: Final = {
    "lib.wdl": 'version 1.0\ntask Two { input { Array[File] fs } command {} output { File o = "o" } }',
    "runtime.wdl": "version 1.0\nstruct Machine { Int cores }",
    "big-box.wdl": "version 1.0\nstruct Crate { Int n }",
    "box.wdl": "version 1.0\nstruct Box { String label }\nstruct Shelf { Box first  Array[Box] others }",
}
#: Place -> what is put there, and the words of its note.
COLLISIONS: Final = {
    "import": ('import "lib.wdl" as lib  import "box.wdl" as box', "struct Box is another"),
    "import by keyword": (
        'import "runtime.wdl"  import "big-box.wdl" alias Crate as Case',
        "no call can name",
    ),
    "struct": ("struct Box { Int n  Int? m }", "multiple structs named Box"),
    "declaration": ("Int k = 2", "k is declared again"),
    "in a section": ("Int twice = i * 2", "twice is declared again"),
    "call input": ("f = select_first([f, f]),", "duplicate call input 'f'"),
    "output": ("File last = f", "last is declared again"),
    "output like an input": ("Boolean done = true", "the output done has the name of something else in main"),
    "output like a call": (
        "Array[File] One = One.o",
        "the output One has the name of something else in main",
    ),
    "local": ("Int m = 1  Int m = 1", "m is declared again"),
    "command": ('~{sep=" " f}', "'sep' option for non-Array"),
    "task output": ('File o = "other"', "o is declared again"),
    "task output like an input": ('File f = "f"', "the output f has the name of something else in One"),
    "expression": ("Int count = read_nothing()", "read_nothing"),
    "meta": ('author: "B"', "duplicate keys in meta object"),
    "task": ("task main { command {} }", "a task or call has the name of the workflow, main"),
}


def with_collisions(names: frozenset[str]) -> str:
    return re.sub(r"@([a-z ]+)@", lambda place: COLLISIONS[place[1]][0] if place[1] in names else "", SOURCE)


@pytest.mark.parametrize("name", COLLISIONS)
def test_a_collision_that_changes_no_call_is_named_and_the_run_planned(name: str) -> None:
    """With the place of it; the plan is the one of the source without it."""
    plain, plan = (
        plan_wdl(sources(with_collisions(frozenset(names)), IMPORTS), {"main.f": "/f"})
        for names in ([], [name])
    )
    assert (plain.notes, plan.nodes, plan.edges) == ((), plain.nodes, plain.edges)
    named = [each for each in plan.notes if COLLISIONS[name][1] in each]
    assert named
    assert all(re.match(r"main\.wdl:[1-9]\d*:[1-9]\d*: ", note) for note in named)


@settings(max_examples=25, deadline=None)
@given(st.sets(st.sampled_from(sorted(COLLISIONS))).map(frozenset), st.booleans())
def test_collisions_together_change_nothing_either(names: frozenset[str], imported: bool) -> None:
    """Nor where the workflow is a sub-workflow of another source."""
    source, imports = with_collisions(names), IMPORTS
    if imported:
        imports = {**IMPORTS, "inner.wdl": source.replace("main", "inner")}
        source = 'version 1.0\nimport "inner.wdl" as sub\nworkflow main { input { File f } call sub.inner as x { input: f = f } }'
    plan = plan_wdl(sources(source, imports), {"main.f": "/f"})
    inside = "x." if imported else ""
    assert [(node.path, node.tasks, node.cpu.value) for node in plan.nodes] == [
        (f"main.{inside}One", 2, None),
        (f"main.{inside}Two", 1, 1000),
    ]
    assert edges(plan) == [(f"{inside}One", f"{inside}Two", "data")]


def test_a_workflow_that_is_named_like_its_task_is_the_one_that_importers_call() -> None:
    """And its own call is the task, as in WARP's PeakCalling."""
    peaks = """version 1.0
workflow Peaks { input { File f } call Peaks { input: f = f } output { File o = Peaks.o } }
task Peaks { input { File f } command {} output { File o = "o" } }"""
    outer = """version 1.0
import "peaks.wdl" as p
workflow w { input { File f } call p.Peaks { input: f = f } call p.Peaks as again { input: f = Peaks.o } }"""
    plan = plan_wdl(sources(outer, {"peaks.wdl": peaks}), {"w.f": "/f"})
    assert [node.path for node in plan.nodes] == ["w.Peaks.Peaks", "w.again.Peaks"]
    assert plan_wdl(sources(peaks), {"Peaks.f": "/f"}).nodes[0].files[0].uri == "/f"


@pytest.mark.parametrize(
    ("entries", "child_of"),
    [
        ("f = a.o, f = b.o", "b"),
        ("f = b.o,\n # f = nothing, {\n f = a.o", "a"),
        ('n = 1, f = select_first([b.o, "x, f = y"]), n = {"k, n = 2": 1}["k, n = 2"], f = a.o, n = 3', "a"),
    ],
)
def test_of_call_inputs_that_are_given_twice_the_last_counts(entries: str, child_of: str) -> None:
    """Commas, braces and names in texts and comments begin no input."""
    source = f"""version 1.0
workflow w {{ call t as a call t as b call t as c {{ input: {entries} }} }}
task t {{ input {{ File? f  Int n = 0 }} command {{}} output {{ File o = "o" }} }}"""
    assert edges(plan_wdl(sources(source))) == [(child_of, "c", "data")]


@pytest.mark.parametrize(
    "body",
    [
        "Int n = 1  Int n = 2  call t",  # which of them is meant decides what runs
        "call t  call t",
        "call t  call w",
        "call t { input: nobody = 1 }",
        "call t  output { Nothing o = t.o }",
    ],
)
def test_what_may_change_the_calls_is_refused(body: str) -> None:
    """With its place, as before."""
    source = f'version 1.0\nworkflow w {{ {body} }}\ntask t {{ command {{}} output {{ File o = "o" }} }}'
    with pytest.raises(InvalidDocument, match=r"main\.wdl:2:\d+: miniwdl refuses this"):
        plan_wdl(sources(source))


def test_an_alias_of_a_struct_that_is_not_there_is_refused() -> None:
    """It stands beside one whose struct is left out."""
    source = """version 1.0
import "box.wdl" as box alias Box as Chest alias Lid as Cover
struct Chest { Int n }
workflow w { }"""
    with pytest.raises(InvalidDocument, match=r"main\.wdl:2:1: miniwdl refuses this: .*Lid"):
        plan_wdl(sources(source, IMPORTS))


@pytest.mark.parametrize("fault", ["Int n = nobody", "Nothing n", "Int n = [1]"])
def test_what_a_task_asks_for_is_checked(fault: str) -> None:
    """Its declarations decide its resources, and types of outputs those of other calls."""
    source = f"version 1.0\nworkflow w {{ call t }}\ntask t {{ {fault} command {{}} }}"
    with pytest.raises(InvalidDocument, match=r"main\.wdl:3:\d+: miniwdl refuses this"):
        plan_wdl(sources(source))


# ---------------------------------------------------------------------------------------------- imports by URL

URL: Final = "https://raw.githubusercontent.com/owner/repo/1.2/tasks/t.wdl"
TASK: Final = "version 1.0\ntask t { command {} }"
FROM_URL: Final = f'version 1.0\nimport "{URL}" as t\nworkflow w {{ call t.t }}'
NAMES: Final = [
    URL,
    "raw.githubusercontent.com/owner/repo/1.2/tasks/t.wdl",
    "owner/repo/1.2/tasks/t.wdl",
    "repo/1.2/tasks/t.wdl",
    "repo/tasks/t.wdl",
    "tasks/t.wdl",
    "repo/t.wdl",
    "t.wdl",
]


@pytest.mark.parametrize("name", NAMES)
def test_an_import_by_url_is_what_its_end_names(name: str) -> None:
    """As it lies in a clone or a copy; the note says what was read, unless it has the URL itself as its name."""
    plan = plan_wdl(sources(FROM_URL, {name: TASK, "other.wdl": "version 1.0"}))
    assert [node.path for node in plan.nodes] == ["w.t"]
    read = f"main.wdl:2:1: {URL} was read from {name}: flowsched fetches no import"
    assert plan.notes == (() if name == URL else (read,))


@pytest.mark.parametrize("best", range(len(NAMES) - 1))
def test_the_longest_end_of_a_url_is_the_best(best: int) -> None:
    """A file of the same name elsewhere is another one."""
    others = dict.fromkeys(NAMES[best + 1 :], "version 1.0\ntask another { command {} }")
    assert len(plan_wdl(sources(FROM_URL, {NAMES[best]: TASK, **others})).nodes) == 1


def test_what_was_imported_by_url_imports_from_beside_it() -> None:
    """By a path, which is then a URL too."""
    source = f'version 1.0\nimport "{URL}" as t\nworkflow w {{ call t.sub }}'
    sub = 'version 1.0\nimport "../u.wdl" as u\nworkflow sub { call u.t }'
    for imports in ({URL: sub, "repo/u.wdl": TASK}, {"tasks/t.wdl": sub, "u.wdl": TASK}):
        assert [node.path for node in plan_wdl(sources(source, imports)).nodes] == ["w.sub.t"]


def test_a_version_that_the_parser_does_not_know_is_read_as_the_one_before() -> None:
    """It extends that one. What is new in it is refused, with its place."""
    text = "# hello\n\nversion {}\nworkflow w {{ input {{ Int n }} if (n > 1) {{ call t }} {} }}\ntask t {{ command <<< >>> }}"
    plain, plan = (plan_wdl(sources(text.format(version, "")), {"w.n": 2}) for version in ("1.2", "1.3"))
    assert (plan.nodes, plan.edges) == (plain.nodes, plain.edges)
    assert (plain.notes, plan.notes) == ((), ("main.wdl: version 1.3 was read as 1.2",))
    with pytest.raises(InvalidDocument, match=r"main\.wdl:4:"):
        plan_wdl(sources(text.format("1.3", "else if (n > 0) { call t as u }")), {"w.n": 2})
