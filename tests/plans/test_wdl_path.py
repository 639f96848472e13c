"""What is read of the folders that hold WDL sources, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowsched.control.planning.wdl_path import WdlPath, folders
from flowsched.errors import ConfigurationError, TooLarge


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in {
        "lib/a.wdl": 'import "b.wdl"\n',
        "lib/b.wdl": "task b { command {} }\n",
        "lib/notes.txt": "none of it\n",
        "pipelines/w/main.wdl": "",
        "pipelines/tasks/t.wdl": 'import "../structs.wdl"\n',
        "pipelines/structs.wdl": "struct S { Int n }\n",
        "outside/secret.wdl": "task secret { command {} }\n",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "lib" / "link.wdl").symlink_to(tmp_path / "outside" / "secret.wdl")
    return tmp_path


def test_a_folder_is_the_root_of_the_imports(tree: Path) -> None:
    """What is imported imports from its own folder; what is known already is not read."""
    found, missing = WdlPath([tree]).imports('version 1.0\nimport "lib/a.wdl" as a', {})
    assert (sorted(found), missing) == (["lib/a.wdl", "lib/b.wdl"], [])
    given, missing = WdlPath([tree]).imports("import 'lib/a.wdl'", {"lib/a.wdl": "task mine { command {} }"})
    assert (given, missing) == ({"lib/a.wdl": "task mine { command {} }"}, [])


def test_a_workflow_submitted_by_its_path_imports_from_beside_it(tree: Path) -> None:
    """Its own folder comes first, and may be left upwards while the file is in a folder of the path."""
    for url in (f"{tree}/pipelines/w/main.wdl", f"file://{tree}/pipelines/w/main.wdl"):
        found, missing = WdlPath([tree / "pipelines"]).imports('import "../tasks/t.wdl"', {}, url)
        assert (sorted(found), missing) == (["../structs.wdl", "../tasks/t.wdl"], [])


@pytest.mark.parametrize(
    "uri",
    ["../outside/secret.wdl", "/etc/passwd", "link.wdl", "notes.txt", "https://example.org/no.wdl", "no.wdl"],
)
def test_no_other_file_is_read_and_nothing_fetched(tree: Path, uri: str) -> None:
    """Neither upwards, nor by a link, nor a file that is no WDL."""
    found, missing = WdlPath([tree / "lib"]).imports(f'import "{uri}" as x', {}, f"{tree}/outside/w.wdl")
    assert (found, missing) == ({}, [uri])


@pytest.mark.parametrize("end", ["", "lib/", "raw/v1/lib/", "lib/../lib/"])
def test_an_import_by_url_is_the_file_that_its_end_names(tree: Path, end: str) -> None:
    """And what that imports lies beside it."""
    found, missing = WdlPath([tree]).imports(f'import "https://example.org/{end}lib/a.wdl"', {})
    assert (sorted(found), missing) == (["lib/a.wdl", "lib/b.wdl"], [])


@pytest.mark.parametrize(
    "uri", ["https://example.org/../outside/secret.wdl", "https://a/link.wdl", "https://a/notes.txt"]
)
def test_a_url_reaches_no_other_file(tree: Path, uri: str) -> None:
    """Neither upwards, nor by a link, nor what is no WDL."""
    assert WdlPath([tree / "lib"]).imports(f'import "{uri}" as x', {}) == ({}, [uri])


def test_a_source_beyond_the_limit_is_refused(tree: Path) -> None:
    """Before it is read."""
    (tree / "lib" / "big.wdl").write_bytes(b" " * ((1 << 20) + 1))
    with pytest.raises(TooLarge, match=r"big\.wdl"):
        WdlPath([tree / "lib"]).imports('import "big.wdl"', {})


def test_a_setting_that_names_no_folder_is_refused(tree: Path) -> None:
    """Before anything starts."""
    assert folders("") == ()
    assert folders(f"{tree}/lib:{tree}/pipelines") == (tree / "lib", tree / "pipelines")
    with pytest.raises(ConfigurationError, match=r"FLOWSCHED_WDL_PATH: .*/none is no folder"):
        folders(f"{tree}/none")
