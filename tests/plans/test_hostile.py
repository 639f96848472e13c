"""WDL from people who mean harm, or who made a mistake: an answer that says where, and never a file, an address or an hour."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from flowsched import errors
from flowsched.cli.plan import planned
from flowsched.workflow.formats.wdl import sources as wdl_sources
from flowsched.workflow.formats.wdl.plan import plan_wdl
from flowsched.workflow.formats.wdl.sources import sources, unzipped

from .wdl_cases import nodes, plan_of, told


def faults_of(
    source: str, imports: dict[str, str] | None = None, inputs: dict[str, Any] | None = None
) -> list[str]:
    """Every fault, as people see it."""
    with pytest.raises(errors.InvalidDocument) as caught:
        plan_wdl(sources(source, imports or {}), inputs)
    return [str(fault) for fault in caught.value.faults]


def test_a_syntax_error_has_a_place() -> None:
    """File, line and column."""
    (fault,) = faults_of("version 1.0\nworkflow w {\n  call call\n}")
    assert fault.startswith("main.wdl:3:")


def test_every_type_error_is_told_at_once() -> None:
    """Both lines."""
    found = faults_of("version 1.0\nworkflow w {\n  Int a = [2]\n  Int b = [1]\n}")
    assert [fault.split(": ")[0] for fault in found] == ["main.wdl:3:11", "main.wdl:4:11"]


def test_an_import_that_was_not_given_is_named_with_those_that_were() -> None:
    """With the place of the statement, also where the import stands in another import."""
    given = {"tasks/a.wdl": 'version 1.0\nimport "b.wdl" as b\ntask t { command {} }'}
    (fault,) = faults_of('version 1.0\nimport "tasks/a.wdl" as a\nworkflow w { call a.t }', given)
    assert fault == (
        "tasks/a.wdl:2:1: found an import of 'b.wdl', which is not there, "
        "expected an import that was given (there are: tasks/a.wdl)"
    )


@pytest.mark.parametrize(
    "uri", ["https://example.org/x.wdl", "file:///etc/passwd", "/etc/passwd", "../../etc/passwd"]
)
def test_nothing_is_fetched_and_no_file_is_opened(uri: str) -> None:
    """An import is what was given, whatever it is called."""
    (fault,) = faults_of(f'version 1.0\nimport "{uri}" as x\nworkflow w {{ call x.t }}')
    assert f"an import of '{uri}', which is not there" in fault


def test_an_import_is_found_beside_its_importer_at_the_root_or_by_its_url() -> None:
    """As Cromwell's zip files and metadata name them."""
    task = "version 1.0\ntask t { command {} }"
    relative = 'version 1.0\nimport "../lib/t.wdl" as t\nworkflow s { call t.t output { } }'
    given = {"sub/s.wdl": relative, "lib/t.wdl": task, "https://example.org/u.wdl": task}
    source = """version 1.0
import "sub/s.wdl" as s
import "https://example.org/u.wdl" as u
import "./lib/t.wdl" as l
workflow w { call s.s call u.t call l.t as t2 }"""
    assert [node.path for node in plan_wdl(sources(source, given)).nodes] == ["w.s.t", "w.t", "w.t2"]


def test_imports_in_a_circle_end() -> None:
    """At the depth that is allowed."""
    (fault,) = faults_of(
        'version 1.0\nimport "a.wdl" as a\nworkflow w {}', {"a.wdl": 'version 1.0\nimport "a.wdl" as a'}
    )
    assert "at most 10 imports inside each other" in fault


def test_a_source_that_is_imported_many_times_over_is_read_once() -> None:
    """Six imports of each of eight layers are nine sources, not a million and a half."""
    layers = {
        f"l{n}.wdl": "version 1.0\n"
        + "\n".join(f'import "l{n + 1}.wdl" as x{k}' for k in range(6))
        + "\ntask t { command {} }"
        for n in range(8)
    }
    layers["l8.wdl"] = "version 1.0\ntask t { command {} }"
    plan = plan_wdl(sources('version 1.0\nimport "l0.wdl" as l\nworkflow w { call l.t }', layers))
    assert [node.path for node in plan.nodes] == ["w.t"]


def test_sub_workflows_of_sub_workflows_end() -> None:
    """Eighty calls of eighty calls: the limit of a plan is named."""
    calls = " ".join(f"call t as c{k}" for k in range(80))
    sub = f"version 1.0\nworkflow sub {{ {calls} output {{ }} }}\ntask t {{ command {{}} }}"
    many = " ".join(f"call s.sub as c{k}" for k in range(80))
    with pytest.raises(errors.TooLarge, match="more than 5000 calls"):
        plan_wdl(sources(f'version 1.0\nimport "sub.wdl" as s\nworkflow w {{ {many} }}', {"sub.wdl": sub}))


def test_a_source_with_too_many_calls_is_refused_before_its_types_are_checked() -> None:
    """Types of 30,000 calls take two minutes and 2 GiB: counted first, in sections too, and in imports."""
    task = "version 1.0\ntask t { command {} }\n"
    half = " ".join(f"call t as c{k}" for k in range(3_000))
    more = " ".join(f"call t as d{k}" for k in range(3_000))
    source = f"{task}workflow w {{ {half} if (true) {{ scatter (x in [1]) {{ {more} }} }} output {{ }} }}"
    with pytest.raises(errors.TooLarge, match=r"main\.wdl has 6,000 calls, and a plan has at most 5,000"):
        plan_wdl(sources(source))
    importing = 'version 1.0\nimport "a.wdl" as a\nworkflow v { call a.w }'
    with pytest.raises(errors.TooLarge, match=r"a\.wdl has 6,000 calls, and a plan has at most 5,000"):
        plan_wdl(sources(importing, {"a.wdl": source}))


def test_the_word_call_in_a_command_is_no_call() -> None:
    """What counts is what is called."""
    task = f"task t {{ command {{ {'call t ' * 6_000} }} }}"
    assert len(plan_wdl(sources(f"version 1.0\n{task}\nworkflow w {{ call t }}")).nodes) == 1


@pytest.mark.parametrize("text", ["[" * 3000 + "]" * 3000, "!" * 20000 + "true"])
def test_deep_expressions_are_refused(text: str) -> None:
    """Python's stack is not theirs."""
    with pytest.raises((errors.TooLarge, errors.InvalidDocument)):
        plan_of(f"Array[Int] a = {text}", {})


def test_a_scatter_of_a_million_million_tasks_is_counted() -> None:
    """Not written out."""
    body = "input { File f } scatter (x in range(1000000)) { scatter (y in range(1000000)) { call One { input: f = f } } }"
    assert nodes(plan_of(body, {"w.f": "/f"}))["One"].tasks == 1_000_000_000_000


def test_functions_that_read_or_write_do_neither(tmp_path: Path) -> None:
    """A secret of this machine stays one, also behind a name that is put together."""
    secret = tmp_path / "secret"
    secret.write_text("7")
    body = f"""Int n = read_int("{secret}") call Sized {{ input: n = n }} }}
task Sized {{ input {{ Int n }} command {{}} output {{ Int o = 1 }} runtime {{ cpu: n  docker: read_string("{secret}") }} """
    node = nodes(plan_of(body, {}))["Sized"]
    assert (node.cpu.value, told(node.cpu.until)) == (None, [("content", str(secret))])
    assert (node.image.value, told(node.image.until)) == (None, [("content", str(secret))])


def test_faults_of_the_inputs_are_told_with_their_names() -> None:
    """What is of another type is a fault; what the workflow does not have is a note."""
    source = "version 1.0\nworkflow w { input { Int n  Array[File] fs } }"
    found = faults_of(source, inputs={"w.n": "seven", "w.fs": {"a": 1}, "w.other": 1})
    assert [fault.split(":")[0] for fault in found] == ["$['w.n']", "$['w.fs']"]
    assert plan_wdl(sources(source), {"w.other": 1}).notes == ("the workflow has no input w.other",)


def test_tasks_alone_are_no_plan() -> None:
    """What is missing is said."""
    assert faults_of("version 1.0\ntask t { command {} }") == [
        "main.wdl: found tasks but no workflow, expected a workflow, whose calls can be planned"
    ]


# ---------------------------------------------------------------------------------------------- zip files


def packed(entries: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return made.getvalue()


def test_a_zip_holds_sources_and_whatever_else() -> None:
    """Only WDL is looked at."""
    assert unzipped(packed({"a/b.wdl": b"version 1.0", "data.bin": b"\xff\xfe", "a/": b""})) == {
        "a/b.wdl": "version 1.0"
    }


def test_a_zip_bomb_is_refused_while_it_is_read() -> None:
    """A thousandfold: the header's word is not taken for it."""
    with pytest.raises(errors.TooLarge, match="1048576 bytes"):
        unzipped(packed({"a.wdl": b" " * (64 << 20)}))
    many = {f"{number}.wdl": b" " * (1 << 20) for number in range(17)}
    with pytest.raises(errors.TooLarge, match="16777216 bytes"):
        unzipped(packed(many))


def test_a_zip_of_too_many_entries_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any of them is read."""
    monkeypatch.setattr(wdl_sources, "ZIP_ENTRIES", 3)
    with pytest.raises(errors.TooLarge, match="4 entries"):
        unzipped(packed({f"{number}.txt": b"" for number in range(4)}))


@pytest.mark.parametrize("name", ["../a.wdl", "/a.wdl", "x/../../a.wdl"])
def test_a_zip_may_not_reach_outside_of_itself(name: str) -> None:
    """Nothing is written, but a name that lies is refused all the same."""
    with pytest.raises(errors.InvalidRequest, match="outside of itself"):
        unzipped(packed({name: b"version 1.0"}))


@pytest.mark.parametrize(
    "raw", [b"PK\x03\x04", b"no zip", packed({"a.wdl": b"x" * 100})[:-30]], ids=["head", "text", "cut short"]
)
def test_what_is_no_zip_is_told(raw: bytes) -> None:
    """Also one that was cut."""
    with pytest.raises(errors.InvalidRequest, match="no zip file"):
        unzipped(raw)


def test_a_source_that_is_no_text_or_too_long_is_refused() -> None:
    """With its name."""
    with pytest.raises(errors.InvalidRequest, match=r"a\.wdl .* not UTF-8"):
        unzipped(packed({"a.wdl": b"\xff\xff"}))
    with pytest.raises(errors.TooLarge, match=r"main\.wdl has 1048577 bytes"):
        sources("x" * ((1 << 20) + 1))


def test_a_local_import_by_url_is_read_from_the_wdl_path(tmp_path: Path) -> None:
    """The command line fetches nothing: it reads files beside the source, and below the folders that are named."""
    (tmp_path / "lib").mkdir()
    path = tmp_path / "w.wdl"
    path.write_text('version 1.0\nimport "https://example.org/v1/lib/x.wdl" as x\nworkflow w { call x.t }')
    with pytest.raises(
        errors.InvalidDocument, match=r"w\.wdl:2:1: .*a copy of it below a folder of --wdl-path"
    ):
        planned(path, None, str(tmp_path / "lib"))
    (tmp_path / "lib" / "x.wdl").write_text('version 1.0\nimport "y.wdl" as y\ntask t { command {} }')
    (tmp_path / "lib" / "y.wdl").write_text("version 1.0\ntask u { command {} }")
    plan = planned(path, None, f"{tmp_path}:{tmp_path}/lib")
    assert [node.path for node in plan.nodes] == ["w.t"]
    assert plan.notes == (
        f"{path}:2:1: https://example.org/v1/lib/x.wdl was read from {tmp_path}/lib/x.wdl: flowsched fetches no import",
    )


def test_an_import_that_is_not_beside_its_importer_is_looked_for_in_the_wdl_path(tmp_path: Path) -> None:
    """As in the flat zip files that engines are given."""
    for name, text in {
        "pipelines/w.wdl": 'version 1.0\nimport "t.wdl" as t\nworkflow w { call t.t }',
        "tasks/t.wdl": "version 1.0\ntask t { command {} }",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    plan = planned(tmp_path / "pipelines" / "w.wdl", None, str(tmp_path / "tasks"))
    assert ([node.path for node in plan.nodes], plan.notes) == (["w.t"], ())
