"""URIs of inputs and outputs: the path of a file URI, and the name of a file."""

from __future__ import annotations

from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowsched.workflow.document.uris import base_name, file_path, target_path

NAMES = st.text(st.characters(blacklist_characters="/\0", codec="utf-8"), min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..")
)


@pytest.mark.parametrize(
    ("uri", "exists", "path"),
    [
        ("/data/a%20b", [], "/data/a%20b"),
        ("/data/a#b?c", [], "/data/a#b?c"),
        ("file:///data/a%20b", ["/data/a b"], "/data/a b"),
        ("file:///data/a%20b", [], "/data/a b"),
        ("file:///data/a%20b", ["/data/a b", "/data/a%20b"], "/data/a%20b"),
        ("file:///data/a%2520b", ["/data/a%20b"], "/data/a%20b"),
        ("file://localhost/data/%C3%BC", [], "/data/ü"),
        ("file:///data/a b#c?d", [], "/data/a b#c?d"),
        ("file:///data/p%41", [], "/data/p%41"),
        ("file:///data/100%", [], "/data/100%"),
        ("file:///data/nul%00", [], "/data/nul%00"),
        ("file://host/data", [], None),
        ("file:data", [], None),
        ("s3://lab/a", [], None),
    ],
)
def test_the_path_of_a_file_uri(uri: str, exists: list[str], path: str | None) -> None:
    """A path is as it is written. A file URI too if there is such a file, or if nothing escapes so; else it is decoded."""
    assert file_path(uri, exists.__contains__) == path


@given(NAMES, NAMES)
def test_a_file_is_found_escaped_and_unescaped(folder: str, name: str) -> None:
    """Whatever it is called: as a path, in a URI that escapes, and in one that does not."""
    path = f"/{folder}/{name}"
    for uri in (path, f"file://{path}", PurePosixPath(path).as_uri()):
        assert file_path(uri, [path].__contains__) == path


@given(NAMES)
def test_an_output_is_delivered_under_its_own_name(name: str) -> None:
    """Both to clients that escape paths (cwl-tes) and to those that do not (Cromwell, Nextflow)."""
    path = f"/lab/{name}"
    assert target_path(f"file://{path}", f"/out/{name}") == path
    assert target_path(PurePosixPath(path).as_uri(), f"/out/{name}") == path


def test_an_output_with_another_name_is_delivered_to_what_its_uri_escapes() -> None:
    """`%41` is no escape of any program, so it is a part of the name."""
    assert target_path("file:///lab/a%20b", "/out/o") == "/lab/a b"
    assert target_path("file:///lab/p%41", "/out/o") == "/lab/p%41"
    assert target_path("s3://lab/a", "/out/o") is None


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("s3://lab/runs/a#1?b%20c", "a#1?b%20c"),
        ("s3://lab/folder%2F/", "folder%2F"),
        ("https://host/runs/a%20b%2Fc?name=x/y#z/w", "a b/c"),
        ("https://host", ""),
        ("https://host?x=/y", ""),
        ("file:///runs/a#1?b%20c", "a#1?b c"),
        ("/runs/a#1?b%20c", "a#1?b%20c"),
        ("flowsched:w1/align/0/bam", "bam"),
    ],
)
def test_what_the_file_of_a_uri_is_called(uri: str, name: str) -> None:
    """Keys and paths are as they are written; what is behind the path of a URL is no name, and its escapes are decoded."""
    assert base_name(uri, lambda _: False) == name
