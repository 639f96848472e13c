"""Datasets as streams: what a user unpacks is what the task left."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from flowsched.cluster.node.ranges import open_payload


def test_a_folder_comes_as_a_tar_stream_of_the_promised_length(tmp_path: Path) -> None:
    """Names, bytes and inner links as they were; long names and empty files too."""
    made = tmp_path / "cache" / "hash" / "calls"
    (made / "sub").mkdir(parents=True)
    (made / "empty").touch()
    (made / "sub" / ("n" * 150)).write_bytes(b"x" * 513)
    (made / "link").symlink_to("sub")
    opened = open_payload(tmp_path / "cache", made)
    assert opened is not None
    size, chunks = opened
    raw = b"".join(chunks)
    assert len(raw) == size
    with tarfile.open(fileobj=io.BytesIO(raw)) as tar:
        tar.extractall(tmp_path / "out", filter="data")
    out = tmp_path / "out" / "calls"
    assert sorted(path.name for path in out.rglob("*")) == ["empty", "link", "n" * 150, "sub"]
    assert (out / "sub" / ("n" * 150)).read_bytes() == b"x" * 513
    assert (out / "link").readlink() == Path("sub")


def test_nothing_outside_of_the_cache_is_read(tmp_path: Path) -> None:
    """Whoever puts a link into a cache gets nothing by it."""
    (tmp_path / "secret").write_text("s")
    (tmp_path / "cache" / "hash").mkdir(parents=True)
    link = tmp_path / "cache" / "hash" / "data"
    link.symlink_to(tmp_path / "secret")
    assert open_payload(tmp_path / "cache", link) is None
    assert open_payload(tmp_path / "cache", tmp_path / "cache" / "none") is None


def test_a_file_that_is_removed_meanwhile_is_read_to_its_end(tmp_path: Path) -> None:
    """It was opened before its length was told."""
    file = tmp_path / "cache" / "data"
    file.parent.mkdir()
    file.write_bytes(b"whole")
    opened = open_payload(tmp_path / "cache", file)
    file.unlink()
    assert opened is not None
    assert (opened[0], b"".join(opened[1])) == (5, b"whole")
