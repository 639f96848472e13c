"""What identifies a dataset from outside: it changes when the content does, and says when that was."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

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


def test_a_file_is_known_by_size_and_time(tmp_path: Path) -> None:
    """Another content of the same size and time is not noticed: that is what `hash` is for."""
    uri = written(tmp_path / "x", "one")
    assert Origins().fingerprint(uri) == Fingerprint("3 1700000000000000000", 1_700_000_000_000)
    written(tmp_path / "x", "two")
    assert Origins().fingerprint(uri).version == "3 1700000000000000000"
    written(tmp_path / "x", "two", AT_NS + 1)
    assert Origins().fingerprint(uri).version == "3 1700000000000000001"
    assert Origins().fingerprint(f"file://{uri}").version == "3 1700000000000000001"


def test_a_file_is_known_by_its_content(tmp_path: Path) -> None:
    """Whatever its time."""
    found = Origins().fingerprint(written(tmp_path / "x", "one"), by_content=True)
    assert found == Fingerprint(hashlib.sha256(b"one").hexdigest(), 1_700_000_000_000, True)


@pytest.mark.parametrize("by_content", [False, True])
def test_a_folder_is_known_by_all_that_is_in_it(tmp_path: Path, by_content: bool) -> None:
    """Names, files, and where links lead."""
    origins, folder = Origins(), tmp_path / "d"
    written(folder / "a", "1")
    (folder / "sub").mkdir()
    written(folder / "sub" / "b", "2")
    versions = [origins.fingerprint(str(folder), by_content=by_content).version]
    written(folder / "sub" / "b", "3", AT_NS + 5)
    versions.append(origins.fingerprint(str(folder), by_content=by_content).version)
    (folder / "link").symlink_to("a")
    versions.append(origins.fingerprint(str(folder), by_content=by_content).version)
    (folder / "a").rename(folder / "c")
    versions.append(origins.fingerprint(str(folder), by_content=by_content).version)
    (folder / "empty").mkdir()
    versions.append(origins.fingerprint(str(folder), by_content=by_content).version)
    assert len(set(versions)) == 5
    assert origins.fingerprint(str(folder), by_content=by_content).version == versions[-1]


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
        assert first == {origin.uri: Fingerprint('"one"')}
        assert second == {origin.uri: Fingerprint('"two"')}
        assert third == {
            origin.uri: f"{origin.uri}: its server tells neither an ETag nor when it was changed"
        }
        assert origin.sent < 10


async def test_a_content_is_read_once_for_each_size_and_time(tmp_path: Path) -> None:
    """A genome takes minutes: a second look trusts the first, until the file changes."""
    uri = written(tmp_path / "x", "one")
    look = Identities(Origins())
    first = await look.of([uri], by_content=True)
    written(tmp_path / "x", "two")
    assert await look.of([uri], by_content=True) == first
    written(tmp_path / "x", "two", AT_NS + 1)
    changed = (await look.of([uri], by_content=True))[uri]
    assert isinstance(changed, Fingerprint)
    assert changed.version == hashlib.sha256(b"two").hexdigest()


async def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    """One missing file does not spoil the others."""
    uri = written(tmp_path / "x", "one")
    found = await asyncio.wait_for(Identities(Origins()).of([uri, str(tmp_path / "y")], by_content=False), 10)
    assert isinstance(found[uri], Fingerprint)
    assert found[str(tmp_path / "y")] == f"there is no {tmp_path / 'y'}"
