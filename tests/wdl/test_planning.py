"""A run is planned when it begins: what the service is told, and what comes of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowsched.miniwdl.planning import read_program, sizes
from tests.wdl.engine import Engine, Service, files_below


def test_a_program_is_the_workflow_and_all_it_imports(tmp_path: Path) -> None:
    """By names relative to its folder, each once; what comes from elsewhere is not fetched."""
    (tmp_path / "lib").mkdir()
    main = 'version 1.1\nimport "lib/a.wdl" as a\nimport \'other.wdl\'\nimport "http://host/far.wdl" as far\n'
    texts = {
        "main.wdl": main,
        "lib/a.wdl": 'import "b.wdl"\nimport "../other.wdl"\n',
        "lib/b.wdl": "# nothing\n",
        "other.wdl": "# other\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    program = read_program(str(tmp_path / "main.wdl"))
    assert program.source == main
    assert program.imports == {name: text for name, text in texts.items() if name != "main.wdl"}


def test_files_among_the_inputs_are_measured(tmp_path: Path) -> None:
    """At any depth; what is no file is no file."""
    path = tmp_path / "a.txt"
    path.write_text("12345")
    assert sizes({"w.a": str(path), "w.b": [{"c": str(path)}, "/no/such", 7, None], "w.c": "text"}) == {
        str(path): 5
    }


@pytest.mark.slow
def test_a_call_has_the_rank_that_the_plan_gives_it(engine: Engine, service: Service) -> None:
    """The last call of the run is the way to its end, and the service knows so before it places it."""
    run = engine.run("waiting", "width=1", "--verbose", name="planned")
    run.until(lambda: [run.log()] if "flowsched has planned the run" in run.log() else [])
    (work,) = run.until(lambda: [path.parent for path in files_below(run.folder, "starts")])
    (work / "go").touch()
    assert run.end() == 0, run.said
    ranks = {
        document["call"]["node"]: document["call"].get("rank_ms", 0) for document in service.documents(run)
    }
    assert ranks["join"] > 0
