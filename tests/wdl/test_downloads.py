"""Inputs that lie elsewhere: what they are called here, and that they come."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from flowsched.miniwdl.downloads import name_of
from tests.wdl.engine import Engine, Service


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("https://host/data/a%20b.fq.gz?signature=x/y#part", "a b.fq.gz"),
        ("s3://bucket/deep/key.bam", "key.bam"),
        ("http://host/a/..", "file.."),
        ("http://host/.bashrc", "file.bashrc"),
        ("http://host/", "file"),
        ("http://host/%2Fetc%2Fpasswd", "_etc_passwd"),
    ],
)
def test_a_fetched_file_is_called_like_the_last_part_of_its_path(uri: str, name: str) -> None:
    """And never lies anywhere else, whatever the URI says."""
    assert name_of(uri) == name


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """A web server that has one file."""
    (tmp_path / "two lines.txt").write_text("one\ntwo\n")
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.slow
def test_a_file_of_a_web_server_comes_without_any_program_for_it(
    site: str, engine: Engine, service: Service
) -> None:
    """The download is a call of the run, and keeps the file's name."""
    run = engine.run("fetched", f"far={site}/two%20lines.txt")
    assert run.end() == 0, run.said
    assert run.result() == {
        "fetched.lines": ["one", "two"],
        "fetched.names": ["two lines.txt", "two lines.txt"],
    }
    assert sorted(document["call"]["node"] for document in service.documents(run)) == [
        "download-flowsched_download",
        "line",
        "line",
    ]


@pytest.mark.slow
def test_a_file_that_is_not_there_fails_the_run_with_its_reason(site: str, engine: Engine) -> None:
    """In the words of whoever asked for it."""
    run = engine.run("fetched", f"far={site}/no.txt", name="missing")
    assert run.end() != 0
    assert "404" in run.said or "no.txt" in run.said
