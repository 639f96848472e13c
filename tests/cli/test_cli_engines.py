"""Which file is a workflow of another engine, and which program runs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flowsched import engine_programs
from flowsched.cli.running import document, language
from flowsched.errors import InvalidRequest

WDL = b"version 1.1\nworkflow w {}\n"


@contextmanager
def pipe(written: bytes) -> Iterator[str]:
    """A path as the shell gives it for `<(…)`."""
    reader, writer = os.pipe()
    os.write(writer, written)
    os.close(writer)
    yield f"/dev/fd/{reader}"
    os.close(reader)


def test_a_document_of_a_pipe_is_read_once() -> None:
    """Its language is that of its name."""
    with pipe(b'{"name": "a"}') as path:
        assert language(path) == ""
        assert document(path).written == b'{"name": "a"}'
    with pipe(WDL) as path:
        assert language(path) == ""
        with pytest.raises(InvalidRequest, match="give its file to `flowsched run`, which starts the engine"):
            document(path)


def test_a_file_says_its_language_by_its_text(tmp_path: Path) -> None:
    """WDL of any name. Of a file that is not there, the name is known."""
    (tmp_path / "pipeline").write_bytes(WDL)
    assert language(str(tmp_path / "pipeline")) == "WDL"
    assert language(str(tmp_path / "none.nf")) == "NFL"
    assert language("-") == ""


def test_the_miniwdl_beside_flowsched_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend is a plug-in of that one. Other engines are those of the PATH."""
    for folder in ("path", "own"):
        (tmp_path / folder).mkdir()
        for name in ("miniwdl", "snakemake"):
            (tmp_path / folder / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "own" / "python"))
    assert engine_programs.find("WDL")[1] == str(tmp_path / "own" / "miniwdl")
    assert engine_programs.find("SMK")[1] == str(tmp_path / "path" / "snakemake")
