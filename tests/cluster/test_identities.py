"""What identifies a dataset from outside: it changes when the content does, and says when that was."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from flowsched.cluster.node.identities import Identities
from flowsched.cluster.node.origins import NotFetched, Origins
from flowsched.executor.protocol import Fingerprint
from tests.cluster.origin import RangeOrigin

AT_NS = 1_700_000_000_000_000_000


def written(path: Path, text: str, at_ns: int = AT_NS) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(at_ns, at_ns))
    return str(path)


def test_a_file_is_another_version_after_each_change(tmp_path: Path) -> None:
    """Also one of the same size whose time was set back, one that an older file was moved over, and one that a link leads to."""
    uri, origins = written(tmp_path / "x", "one"), Origins()
    versions = [origins.fingerprint(uri).version]
    assert origins.fingerprint(f"file://{uri}") == Fingerprint(versions[0], 1_700_000_000_000, size_bytes=3)
    written(tmp_path / "x", "two")
    versions.append(origins.fingerprint(uri).version)
    Path(written(tmp_path / "y", "six", AT_NS - 5)).replace(tmp_path / "x")
    versions.append(origins.fingerprint(uri).version)
    (tmp_path / "x").unlink()
    (tmp_path / "x").symlink_to(written(tmp_path / "y", "ten"))
    versions.append(origins.fingerprint(uri).version)
    assert len(set(versions)) == 4
    assert origins.fingerprint(uri).version == versions[-1]


def test_a_content_is_digested_if_that_is_asked(tmp_path: Path) -> None:
    """Beside the version, which names copies all the same."""
    uri = written(tmp_path / "x", "one")
    found = Origins().fingerprint(uri, by_content=True)
    assert found == Fingerprint(
        Origins().fingerprint(uri).version,
        1_700_000_000_000,
        hashlib.sha256(b"one").hexdigest(),
        size_bytes=3,
    )


@pytest.mark.parametrize("by_content", [False, True])
def test_a_folder_is_known_by_all_that_is_in_it(tmp_path: Path, by_content: bool) -> None:
    """Names, files, and where links lead."""
    folder = tmp_path / "d"

    def version() -> str:
        found = Origins().fingerprint(str(folder), by_content=by_content)
        return found.content if by_content else found.version

    written(folder / "a", "1")
    (folder / "sub").mkdir()
    written(folder / "sub" / "b", "2")
    versions = [version()]
    written(folder / "sub" / "b", "3", AT_NS + 5)
    versions.append(version())
    (folder / "link").symlink_to("a")
    versions.append(version())
    (folder / "a").rename(folder / "c")
    versions.append(version())
    (folder / "empty").mkdir()
    versions.append(version())
    assert len(set(versions)) == 5
    assert version() == versions[-1]


def test_files_outside_of_the_allowed_folders_are_not_looked_at(tmp_path: Path) -> None:
    """Their times are not told either."""
    uri = written(tmp_path / "secret", "x")
    (tmp_path / "open").mkdir()
    with pytest.raises(NotFetched):
        Origins((tmp_path / "open",)).fingerprint(uri)


async def test_a_file_of_a_server_is_known_by_its_etag() -> None:
    """One that tells neither an ETag nor a time cannot be identified. No more than a byte is asked for."""
    async with RangeOrigin(b"x" * 1_000_000) as origin:
        look = Identities(Origins())
        first = await look.of([origin.uri], by_content=False)
        origin.etag = '"two"'
        second = await look.of([origin.uri], by_content=True)
        origin.etag = ""
        third = await look.of([origin.uri], by_content=False)
        assert first == {origin.uri: Fingerprint('"one"', size_bytes=1_000_000)}
        assert second == {origin.uri: Fingerprint('"two"', size_bytes=1_000_000)}
        assert third == {
            origin.uri: f"{origin.uri}: its server tells neither an ETag nor when it was changed"
        }
        assert origin.sent < 10


async def test_a_content_is_read_once_for_each_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A genome takes minutes: a second look trusts the first, until the file changes."""
    uri, look, digest, reads = written(tmp_path / "x", "one"), Identities(Origins()), hashlib.file_digest, []
    monkeypatch.setattr(hashlib, "file_digest", lambda *given: reads.append(1) or digest(*given))
    first = await look.of([uri], by_content=True)
    assert await look.of([uri], by_content=True) == first
    assert len(reads) == 1
    written(tmp_path / "x", "two")
    changed = (await look.of([uri], by_content=True))[uri]
    assert isinstance(changed, Fingerprint)
    assert changed.content == hashlib.sha256(b"two").hexdigest()


async def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    """One missing file does not spoil the others."""
    uri = written(tmp_path / "x", "one")
    found = await asyncio.wait_for(Identities(Origins()).of([uri, str(tmp_path / "y")], by_content=False), 10)
    assert isinstance(found[uri], Fingerprint)
    assert found[str(tmp_path / "y")] == f"there is no {tmp_path / 'y'}"


async def test_sizes_of_files_that_all_nodes_see(tmp_path: Path) -> None:
    """Of a file, of one behind a link, of a folder; what is not there, or has more than 1,000 entries, has none."""
    written(tmp_path / "a b", "123")
    (tmp_path / "link").symlink_to("a b")
    written(tmp_path / "d" / "x", "45")
    (tmp_path / "d" / "sub").mkdir()
    written(tmp_path / "d" / "sub" / "y", "6789")
    (tmp_path / "many").mkdir()
    for number in range(1_001):
        (tmp_path / "many" / str(number)).touch()
    names = ("a b", "link", "d", "many", "none")
    paths = [*(f"{tmp_path}/{name}" for name in names), f"file://{tmp_path}/a%20b"]
    found = await Identities(Origins()).placed_sizes(paths)
    assert found == {paths[0]: 3, paths[1]: 3, paths[2]: 6, paths[5]: 3}
    below = Identities(Origins(allowed_roots=[tmp_path / "d"]))  # as an agent's
    assert await below.placed_sizes([*paths, f"{tmp_path}/d/x"]) == {f"{tmp_path}/d/x": 2, paths[2]: 6}


async def test_a_file_system_that_does_not_answer_holds_up_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile no size is known, and inputs are identified as ever. Once it answers, sizes are known again."""
    stat, free, asked = os.stat, threading.Event(), []

    def hangs(path: str, **more: Any) -> os.stat_result:
        if str(path).startswith("/nfs/"):
            asked.append(str(path))
            free.wait(60)
            return stat(uri)
        return stat(path, **more)

    monkeypatch.setattr(os, "stat", hangs)
    monkeypatch.setattr("flowsched.cluster.node.identities._PATIENCE_S", 0.05)
    monkeypatch.setattr("flowsched.cluster.node.identities._SIZE_S", 0.0)
    uri, look = written(tmp_path / "x", "one"), Identities(Origins())
    try:
        assert await look.placed_sizes([uri, "/nfs/x"]) == {uri: 3}
        for number in range(40):
            assert await look.placed_sizes([f"/nfs/{number}"]) == {}
        assert asked == ["/nfs/x"]
        found = await asyncio.wait_for(look.of([uri], by_content=False), 10)
        assert isinstance(found[uri], Fingerprint)
    finally:
        free.set()
    async with asyncio.timeout(10):
        while await look.placed_sizes([uri, "/nfs/y"]) != {uri: 3, "/nfs/y": 3}:
            await asyncio.sleep(0.01)
