"""What is known though something in it is not, and what is never guessed."""

from __future__ import annotations

from typing import Any

import pytest

from .wdl_cases import edges, nodes, plan_of, told

SPLIT = "input { File f }\n call One { input: f = f }\n"
GIVEN = {"w.f": "/data/f"}

#: Array expression -> width of a scatter over it; `One.fs` is an output, so of unknown length; `each` is a gathered one of 3.
WIDTHS = [
    ("[1, 2, 3, 4]", 4),
    ("range(7)", 7),
    ("range(1000000000)", 1_000_000_000),
    ("cross(range(100000), range(100000))", 10_000_000_000),
    ("each.o", 3),
    ("zip(each.o, each.k)", 3),
    ("cross(each.o, [1, 2])", 6),
    ("flatten([each.o, each.o])", 6),
    ("transpose([each.o, each.o])", 3),
    ("range(length(each.o))", 3),
    ("select_all(each.o)", 3),
    ("if defined(One.o) then [1, 2] else [3]", 2),
    ("if true then [f] else One.fs", 1),
    ("[One.o, One.o]", 2),
    ("[[1, 2], [3, 4, 5]][1]", 3),
    ("One.fs", None),
    ("range(One.k)", None),
    ("if One.b then [1, 2] else [3, 4]", None),
    ("flatten([One.fs, [One.o]])", None),
    ("read_lines(f)", None),
    ("range(ceil(size(f)))", None),
    ("zip(One.fs, One.fs)", None),
]


@pytest.mark.parametrize(("over", "width"), WIDTHS)
def test_a_width_is_known_exactly_if_it_follows(over: str, width: int | None) -> None:
    """Lengths are kept though the elements are not known, and conditions decide only when they are known themselves."""
    body = f"{SPLIT} scatter (x in [1, 2, 3]) {{ call One as each {{ input: f = f }} }}\n"
    plan = plan_of(f"{body} scatter (y in {over}) {{ call One as Last {{ input: f = f }} }}", GIVEN)
    assert nodes(plan)["Last"].tasks == width


#: Expression -> what its value waits for.
REASONS: list[tuple[str, list[tuple[str, str]]]] = [
    ("One.fs", [("node", "w.One")]),
    ("read_lines(f)", [("content", "/data/f")]),
    ("range(ceil(size(f)))", [("size", "/data/f")]),
    ("range(ceil(size(f)) + One.k)", [("node", "w.One"), ("size", "/data/f")]),
    ("range(missing)", [("input", "missing")]),
    ("read_lines(One.o)", [("node", "w.One")]),
    ("read_lines(write_lines(['a']))", [("error", "write_lines() writes a file, which a plan does not")]),
    ("range(1 / 0)", [("error", "range((1 / 0)) fails: integer division or modulo by zero")]),
    ("zip(One.fs, read_lines(f))", [("content", "/data/f"), ("node", "w.One")]),
]


@pytest.mark.parametrize(("over", "until"), REASONS)
def test_what_is_not_known_says_what_it_waits_for(over: str, until: list[tuple[str, str]]) -> None:
    """All of it, also where several things are missing."""
    call = "{ input: f = f }"
    body = (
        f"input {{ File f  Int missing }} call One {call} scatter (y in {over}) {{ call One as Last {call} }}"
    )
    plan = plan_of(body, GIVEN)
    (scatter,) = plan.scatters
    assert (scatter.width, scatter.total, told(scatter.until)) == (None, None, until)
    assert nodes(plan)["Last"].gang_width is None


def test_the_width_of_a_gathered_array_waits_for_the_scatter_not_for_its_tasks() -> None:
    """As long as the first scatter, whose width an input gives: nothing waits for the tasks in it."""
    body = """input { Array[File] fs } scatter (f in fs) { call One { input: f = f } }
              scatter (o in One.o) { call One as Again { input: f = o } }"""
    assert told(plan_of(body, None).scatters[1].until) == [("input", "fs")]


CONDITIONS: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("true", "yes", []),
    ("length(['a']) > 3", "no", []),
    ("One.b", "unknown", [("node", "w.One")]),
    ("false && One.b", "no", []),
    ("true || One.b", "yes", []),
    ("One.b || true", "unknown", [("node", "w.One")]),
    ("defined(maybe)", "no", []),
    ("defined(One.o)", "yes", []),
    ("select_first([maybe, 3]) == 3", "yes", []),
    ("read_boolean(f)", "unknown", [("content", "/data/f")]),
]


@pytest.mark.parametrize(("text", "holds", "until"), CONDITIONS)
def test_a_condition_holds_or_does_not_or_waits(text: str, holds: str, until: list[tuple[str, str]]) -> None:
    """From left to right, as WDL evaluates them."""
    body = f"input {{ File f  Int? maybe }} call One {{ input: f = f }} if ({text}) {{ call One as Last {{ input: f = f }} }}"
    plan = plan_of(body, GIVEN)
    (condition,) = plan.conditions
    assert (condition.holds, told(condition.until)) == (holds, until)
    assert nodes(plan)["Last"].runs == holds


def test_without_inputs_an_optional_one_is_unknown_and_with_them_it_is_missing() -> None:
    """Nobody has said yet that it is not given."""
    body = "input { File f  Int? maybe } if (defined(maybe)) { call One { input: f = f } }"
    assert told(plan_of(body, None).conditions[0].until) == [("input", "maybe")]
    assert plan_of(body, {}).conditions[0].holds == "no"


READ: list[tuple[str, str, int | None]] = [
    ("read_lines(f)", "a\nb\r\nc\n", 3),
    ("read_lines(f)", "", 0),
    ("read_tsv(f)", "a\tb\nc\td", 2),
    ("range(read_int(f))", " 5\n", 5),
    ("range(ceil(read_float(f)))", "2.5", 3),
    ("if read_boolean(f) then [1, 2] else [3]", "TRUE\n", 2),
    ("if read_string(f) == 'x' then [1, 2] else [3]", "x\n", 2),
    ("listed", '["a", "b", "c", "d"]', 4),
    ("range(read_int(f))", "many", None),
    ("if read_boolean(f) then [1, 2] else [3]", "perhaps", None),
    ("listed", "[", None),
    ("read_objects(f)", "a\nb", None),
    ("range(ceil(size(f)))", "seven b", 7),
]


@pytest.mark.parametrize(("over", "text", "width"), READ)
def test_a_text_that_was_given_is_read_as_wdl_reads_it(over: str, text: str, width: int | None) -> None:
    """GATK's workflows have their intervals in a list; what is no such text, or in a form that is not read here, is not known."""
    body = f"input {{ File f }} Array[String] listed = read_json(f) scatter (x in {over}) {{ call One {{ input: f = f }} }}"
    plan = plan_of(body, GIVEN, contents={"/data/f": text})
    assert nodes(plan)["One"].tasks == width


def test_what_a_skipped_call_would_have_written_is_missing() -> None:
    """So that the next best is taken, and its producer is the parent."""
    body = """input { File f } call One as A { input: f = f } if (false) { call One as B { input: f = f } }
              call One as C { input: f = select_first([B.o, A.o]) }"""
    assert edges(plan_of(body, GIVEN)) == [("A", "C", "data")]


def test_nodes_may_stand_in_any_order() -> None:
    """WDL says what depends on what; the source's order means nothing."""
    body = """input { File f } call Two { input: fs = One.o } scatter (x in xs) { call One { input: f = f } }
              Array[Int] xs = range(n) Int n = 2"""
    plan = plan_of(body, GIVEN)
    assert [(node.path, node.tasks) for node in plan.nodes] == [("w.One", 2), ("w.Two", 1)]
    assert edges(plan) == [("One", "Two", "data")]


def test_later_scatters_are_as_wide_as_the_first() -> None:
    """GATK's joint genotyping: all widths wait for the split alone, branches close, and the models join."""
    body = """input { File f  Boolean gnarly = false  Int samples }
      call One { input: f = f }
      scatter (i in range(length(One.fs))) {
        if (gnarly) { call One as Gnarly { input: f = One.fs[i] } }
        if (!gnarly) { call One as Plain { input: f = One.fs[i] } }
        File genotyped = select_first([Gnarly.o, Plain.o])
        call One as Filter { input: f = genotyped }
      }
      if (samples > 100) { scatter (i in range(length(Filter.o))) { call One as Model { input: f = Filter.o[i] } } }
      if (samples <= 100) { call Two as Classic { input: fs = Filter.o } }
      scatter (i in range(length(Filter.o))) {
        call One as Apply { input: f = if defined(Model.o) then select_first([Model.o])[i] else select_first([Classic.o]) }
      }"""
    plan = plan_of(body, GIVEN | {"w.samples": 7})
    found = nodes(plan)
    split = [("node", "w.One")]
    assert {name: (node.tasks, node.runs, told(node.until)) for name, node in found.items()} == {
        "One": (1, "yes", []),
        "Gnarly": (None, "no", split),
        "Plain": (None, "yes", split),
        "Filter": (None, "yes", split),
        "Model": (None, "no", split),
        "Classic": (1, "yes", []),
        "Apply": (None, "yes", split),
    }
    assert [edge for edge in edges(plan) if "Gnarly" not in edge and "Model" not in edge] == [
        ("One", "Plain", "data"),
        ("Plain", "Filter", "data"),
        ("Filter", "Classic", "data"),
        ("Filter", "Apply", "data"),  # by its scatter's index
        ("Classic", "Apply", "data"),
    ]


def test_a_scatter_over_very_many_files_is_counted_and_so_are_its_files() -> None:
    """200 of them are listed."""
    body = "input { Array[File] fs } scatter (x in fs) { call One { input: f = x } }"
    node = nodes(plan_of(body, {"w.fs": [f"s3://b/{number}" for number in range(20_000)]}))["One"]
    assert (node.tasks, len(node.files), node.more_files) == (20_000, 200, 19_800)
    assert (node.files[0].uri, node.files[199].uri) == ("s3://b/0", "s3://b/199")


def test_scatters_multiply() -> None:
    """Three times two, with conditions between that hold."""
    body = """input { File f } scatter (x in range(3)) { if (true) { scatter (y in ["a", "b"]) { call One { input: f = f } } } }"""
    plan = plan_of(body, GIVEN)
    assert nodes(plan)["One"].tasks == 6
    assert [(each.width, each.total) for each in plan.scatters] == [(3, 3), (2, 6)]


def test_a_scatter_over_nothing_runs_nothing() -> None:
    """A width of 0 is known, and no task comes of it."""
    plan = plan_of("input { File f } scatter (x in range(0)) { call One { input: f = f } }", GIVEN)
    assert (nodes(plan)["One"].tasks, nodes(plan)["One"].runs) == (0, "no")


def test_a_condition_on_a_shard_counts_the_shards_it_holds_in() -> None:
    """Twice in three, and so for each of the two shards around it; what is scattered inside by such a shard is not counted."""
    body = """input { File f  Array[Array[Int]] lists } scatter (a in range(2)) { scatter (x in [1, 2, 3]) {
                if (x > 1) { call One { input: f = f } } } }
              scatter (list in lists) { if (length(list) > 1) { scatter (y in list) { call One as Deep { input: f = f } } } }"""
    plan = plan_of(body, GIVEN | {"w.lists": [[1], [1, 2], [1, 2, 3]]})
    assert (nodes(plan)["One"].tasks, nodes(plan)["One"].runs) == (4, "yes")
    assert nodes(plan)["Deep"].tasks is None


#: Sections around one call, over lists of 1, 2 and 3 -> its tasks, and whether it runs. What is None is 9, 3 and 14.
UNEVEN = [
    (
        "scatter (a in range(3)) { scatter (x in lists) { if (length(x) == 3) { scatter (y in x) { CALL } } } }",
        None,
        "yes",
    ),
    ("scatter (x in lists) { scatter (y in x) { if (length(x) == 3) { CALL } } }", 6, "unknown"),
    ("scatter (x in lists) { scatter (y in x) { scatter (z in x) { CALL } } }", None, "yes"),
    ("scatter (x in lists) { scatter (y in x) { scatter (z in range(y)) { CALL } } }", None, "yes"),
    ("scatter (a in range(2)) { scatter (x in lists) { scatter (y in x) { CALL } } }", 12, "yes"),
    ("scatter (x in lists) { scatter (y in x) { if (y == 1) { CALL } } }", 3, "yes"),
]


@pytest.mark.parametrize(("sections", "tasks", "runs"), UNEVEN)
def test_uneven_widths_are_never_multiplied(sections: str, tasks: int | None, runs: str) -> None:
    """A mean times a number would often be right, and sometimes not."""
    body = (
        f"input {{ File f  Array[Array[Int]] lists }} {sections.replace('CALL', 'call One { input: f = f }')}"
    )
    node = nodes(plan_of(body, GIVEN | {"w.lists": [[1], [1, 2], [1, 2, 3]]}))["One"]
    assert (node.tasks, node.runs) == (tasks, runs)


def test_shards_of_two_scatters_are_not_taken_for_the_same() -> None:
    """Both have two elements, and still the pairs are four: nothing is said of them."""
    body = "scatter (x in [1, 2]) { scatter (y in [1, 2]) { if (x == y) { call One { input: f = f } } } }"
    plan = plan_of(f"input {{ File f }} {body}", GIVEN)
    assert nodes(plan)["One"].runs == "unknown"
    assert [kind for kind, _ in told(plan.conditions[0].until)] == ["shard", "shard"]


def test_an_element_that_nobody_knows_yet_is_told_beside_those_that_differ() -> None:
    """One of two elements is an output: what hangs on any of them waits for it too."""
    body = """input { File f } call One { input: f = f } scatter (x in [One.k, 2]) { call Sized { input: n = x } } }
task Sized { input { Int n } command {} output { Int o = 1 } runtime { cpu: n } """
    node = nodes(plan_of(body, GIVEN))["Sized"]
    assert (node.tasks, [kind for kind, _ in told(node.cpu.until)]) == (2, ["node", "shard"])


def test_who_uses_nothing_of_a_scatter_waits_for_its_width_all_the_same() -> None:
    """An edge of order; and what an `if` leaves behind waits for its condition."""
    body = """input { File f } call One { input: f = f }
      scatter (x in One.fs) { call One as Last { input: f = f } }
      if (One.b) { File chosen = f }
      call One as After { input: f = select_first([chosen, f]) }"""
    assert edges(plan_of(body, GIVEN)) == [("One", "Last", "order"), ("One", "After", "order")]


def test_a_shard_that_differs_leaves_resources_unknown() -> None:
    """A number for all of them would be a guess; where all agree, it is none."""
    body = """input { File f } scatter (x in [1, 2]) { call Sized { input: n = x } call Sized as Same { input: n = length([x]) } } }
task Sized { input { Int n } command {} output { Int o = 1 } runtime { cpu: n memory: "3 GB" } """
    plan = plan_of(body, GIVEN)
    assert nodes(plan)["Sized"].cpu.value is None
    assert [kind for kind, _ in told(nodes(plan)["Sized"].cpu.until)] == ["shard"]
    assert nodes(plan)["Same"].cpu.value == 1000
    assert nodes(plan)["Sized"].memory.value == 3_000_000_000


RESOURCES: list[tuple[str, str, int | None]] = [
    ("cpu", "0.5", 500),
    ("cpu", '"2"', 2000),
    ("cpu", '"many"', None),
    ("cpu", "-1", None),
    ("memory", '"2 GiB"', 2 * 1024**3),
    ("memory", '"2G"', 2_000_000_000),
    ("memory", "1024", 1024),
    ("memory", '"7.5 GB"', 7_500_000_000),
    ("memory", '"lots"', None),
    ("memory", '"9999999 TiB"', None),
    ("disks", '"local-disk 100 HDD"', 100 * 1024**3),
    ("disks", '"local-disk 10 SSD, /mnt 5 HDD"', 15 * 1024**3),
    ("disks", '"20 GB"', 20_000_000_000),
    ("disks", "3", 3 * 1024**3),
    ("disks", '"local-disk"', None),
    ("gpu", "true", 1),
    ("gpuCount", '"2"', 2),
]


@pytest.mark.parametrize(("key", "text", "value"), RESOURCES)
def test_resources_are_read_as_engines_read_them(key: str, text: str, value: int | None) -> None:
    """CPU in millicores, memory and disk in bytes, GPUs in devices; nonsense is not known, and says why."""
    task = f"call Asks {{}} }} task Asks {{ command {{}} runtime {{ {key}: {text} }} "
    node = nodes(plan_of(task, {}))["Asks"]
    amount = {
        "cpu": node.cpu,
        "memory": node.memory,
        "disks": node.disk,
        "gpu": node.gpu,
        "gpuCount": node.gpu,
    }[key]
    assert (amount.value, amount.given) == (value, True)
    assert [each.kind for each in amount.until] == ([] if value is not None else ["error"])


def test_what_a_task_does_not_say_is_the_specifications_default() -> None:
    """One core, 2 GiB, 1 GiB of disk, no GPU, no image: and marked as not given."""
    node = nodes(plan_of("call Asks {} } task Asks { command {} ", {}))["Asks"]
    amounts = (node.cpu, node.memory, node.disk, node.gpu)
    assert [each.value for each in amounts] == [1000, 2 * 1024**3, 1024**3, 0]
    assert [each.given for each in amounts] == [False] * 4
    assert node.image.value is None


def test_a_sub_workflow_called_twice_is_two_sets_of_nodes() -> None:
    """Each with its own inputs, and what follows waits for all of it."""
    sub = """version 1.0
workflow sub { input { File f  Int n = 2 }
  scatter (x in range(n)) { call One { input: f = f } } call One as Side { input: f = f }
  output { Array[File] os = One.o } }
task One { input { File f } command {} output { File o = "o" } }"""
    body = (
        """input { File f } call s.sub as A { input: f = f } call s.sub as B { input: f = A.os[0], n = 5 }"""
    )
    source = f'import "sub.wdl" as s\nworkflow w {{ {body} }}'
    plan = plan_of_source(source, {"sub.wdl": sub}, GIVEN)
    assert {path: node.tasks for path, node in nodes(plan).items()} == {
        "A.One": 2,
        "A.Side": 1,
        "B.One": 5,
        "B.Side": 1,
    }
    assert sorted(edges(plan)) == [
        ("A.One", "B.One", "data"),
        ("A.One", "B.Side", "data"),
        ("A.Side", "B.One", "order"),
        ("A.Side", "B.Side", "order"),
    ]


def test_inputs_reach_calls_inside_sub_workflows() -> None:
    """By the names that Cromwell gives them."""
    sub = """version 1.0
workflow sub { call One  output { Int o = One.o } }
task One { input { Int cores = 1 } command {} output { Int o = 1 } runtime { cpu: cores } }"""
    plan = plan_of_source(
        'import "sub.wdl" as s\nworkflow w { call s.sub }', {"sub.wdl": sub}, {"w.sub.One.cores": 6}
    )
    assert nodes(plan)["sub.One"].cpu.value == 6000


def test_after_is_an_edge_of_order() -> None:
    """WDL 1.1's `after`: nothing is read."""
    source = """workflow w { call T as A call T as B after A }
task T { command {} output { Int o = 1 } }"""
    assert edges(plan_of_source(source, {}, {}, version="1.1")) == [("A", "B", "order")]


def plan_of_source(
    text: str, imports: dict[str, str], inputs: dict[str, Any] | None, version: str = "1.0"
) -> Any:
    from flowsched.workflow.formats.wdl.plan import plan_wdl
    from flowsched.workflow.formats.wdl.sources import sources

    return plan_wdl(sources(f"version {version}\n{text}", imports), inputs)
