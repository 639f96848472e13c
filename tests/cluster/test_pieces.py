"""Datasets in pieces on this machine: real files, a real HTTP origin, real crashes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowsched.cluster.local.root_space import Site
from flowsched.cluster.local.transfers import Staging
from flowsched.cluster.local.virtual_nodes import virtual_nodes
from flowsched.cluster.node.cache import Cache, Dropped, Entry, Header, Partial, Partials, merged
from flowsched.cluster.node.origins import Origins
from flowsched.executor.protocol import ClusterEvent, Transfer, TransferDone, TransferFailed
from tests.cluster.origin import RangeOrigin

KB = 1000
DRIVER = Path(__file__).with_name("pieces_driver.py")


class Rig:
    """Nodes without limits, and what is told of copies between them."""

    def __init__(self, folder: Path, nodes: int = 3, cache_bytes: int = 0) -> None:
        self.told: asyncio.Queue[ClusterEvent] = asyncio.Queue()
        made = virtual_nodes(nodes, cpu_millicores=1, memory_bytes=1, nic_rate=0, disk_rate=0)
        site = Site(
            folder, {node.name: node for node in made}, self.told.put_nowait, lambda: 0, lambda _: None
        )
        self.caches = {node.name: Cache(folder / node.name, cache_bytes) for node in made}
        for cache in self.caches.values():
            cache.scan()
        self.staging = Staging(site, self.caches, Origins())

    async def copy(self, order: Transfer) -> TransferDone | TransferFailed:
        self.staging.transfer([order])
        async with asyncio.timeout(60):
            return await self.told.get()  # type: ignore[return-value]

    def put(self, node: str, uri: str, data: bytes, version: str = "") -> None:
        cache = self.caches[node]
        folder = cache.temporary()
        (folder / "data.bin").write_bytes(data)
        cache.publish(folder, Entry(uri, len(data), "data.bin", version=version))

    def bytes_of(self, node: str, uri: str) -> bytes:
        cache = self.caches[node]
        entry = cache.find(uri)
        assert entry is not None
        return cache.payload(entry).read_bytes()

    def half_made(self, node: str) -> list[str]:
        return [name for name in os.listdir(self.caches[node].folder) if name.startswith(".")]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    made = Rig(tmp_path / "rig")
    yield made
    await made.staging.close()


@pytest.fixture
async def origin() -> AsyncIterator[RangeOrigin]:
    async with RangeOrigin(os.urandom(300 * KB)) as made:
        yield made


def piece(
    origin: RangeOrigin, number: int, dest: str = "node-0", source: str | None = None, version: str = ""
) -> Transfer:
    """One of three pieces of 100 KB."""
    return Transfer(origin.uri, 100 * KB, dest, source, number * 100 * KB, whole=False, version=version)


async def test_pieces_make_a_whole_dataset(rig: Rig, origin: RangeOrigin) -> None:
    """Out of order, each asked for once; the last one publishes the dataset, of whose coming nothing is left."""
    told = [await rig.copy(piece(origin, number)) for number in (2, 0, 1)]
    assert [(done.offset, done.moved_bytes, done.whole, done.version) for done in told] == [  # type: ignore[union-attr]
        (200_000, 100_000, False, '"one"'),
        (0, 100_000, False, '"one"'),
        (100_000, 100_000, True, '"one"'),
    ]
    assert rig.bytes_of("node-0", origin.uri) == origin.data
    assert (rig.half_made("node-0"), origin.asked) == ([], [200_000, 0, 100_000])
    assert sorted(os.listdir(rig.caches["node-0"].home(origin.uri))) == ["data.bin", "meta.json"]


async def test_three_pieces_at_a_time(rig: Rig, origin: RangeOrigin) -> None:
    """They go into one file side by side; who finds all of it there says so."""
    rig.staging.transfer([piece(origin, number) for number in range(3)])
    async with asyncio.timeout(60):
        told = [await rig.told.get() for _ in range(3)]
    assert True in [done.whole for done in told]  # type: ignore[union-attr]
    assert [done.moved_bytes for done in told] == [100_000, 100_000, 100_000]  # type: ignore[union-attr]
    assert rig.bytes_of("node-0", origin.uri) == origin.data


async def test_a_node_gives_what_it_has_of_a_dataset_that_is_still_coming(
    rig: Rig, origin: RangeOrigin
) -> None:
    """Node 1 takes piece 1 from node 0, which has no other; what node 0 has not, it does not give."""
    await rig.copy(piece(origin, 1))
    done = await rig.copy(piece(origin, 1, "node-1", "node-0"))
    assert done == TransferDone(origin.uri, "node-1", 0, 100_000, "node-0", 300_000, 100_000, False, '"one"')
    missing = await rig.copy(piece(origin, 2, "node-1", "node-0"))
    assert isinstance(missing, TransferFailed)
    assert (missing.lost, missing.message) == (True, f"node-0 no longer has {origin.uri}")
    assert origin.asked == [100_000]
    traffic = {name: (t.in_bytes, t.out_bytes) for name, t in rig.staging.traffic.items()}
    assert traffic == {"node-0": (100_000, 100_000), "node-1": (100_000, 0)}


async def test_what_is_there_is_not_copied_again(rig: Rig, origin: RangeOrigin) -> None:
    """A piece that is ordered twice moves once, and so does the part of a larger one that is there."""
    await rig.copy(piece(origin, 1))
    assert (await rig.copy(piece(origin, 1))).moved_bytes == 0  # type: ignore[union-attr]
    all_ = await rig.copy(Transfer(origin.uri, 300 * KB, "node-0", whole=False))
    assert (all_.moved_bytes, all_.whole) == (200_000, True)  # type: ignore[union-attr]
    assert origin.asked == [100_000, 0, 200_000]
    assert rig.bytes_of("node-0", origin.uri) == origin.data


async def test_a_service_that_starts_again_goes_on_with_what_there_is(
    tmp_path: Path, origin: RangeOrigin
) -> None:
    """Two pieces were there before; the third is all that is fetched afterwards."""
    before = Rig(tmp_path / "rig")
    for number in (0, 2):
        await before.copy(piece(origin, number))
    await before.staging.close()
    after = Rig(tmp_path / "rig")
    assert (await after.copy(piece(origin, 0))).moved_bytes == 0  # type: ignore[union-attr]
    assert (await after.copy(piece(origin, 1))).whole  # type: ignore[union-attr]
    assert after.bytes_of("node-0", origin.uri) == origin.data
    assert origin.asked == [0, 200_000, 100_000]
    await after.staging.close()


async def test_a_kill_loses_at_most_the_pieces_under_way(tmp_path: Path, origin: RangeOrigin) -> None:
    """Killed in the middle of piece 1: piece 0 is there, of piece 1 nothing counts although half its bytes are in the file."""
    origin.held = 100_000
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(DRIVER), str(tmp_path / "rig"), origin.uri, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        assert await process.stdout.readline() == b"landed 0\n"
        await origin.stopped.wait()
    process.send_signal(signal.SIGKILL)
    await process.wait()
    origin.held = None
    origin.go.set()
    rig = Rig(tmp_path / "rig")
    (partial,) = rig.caches["node-0"].partials.all
    assert partial.spans == ((0, 100_000),)
    for number in (0, 1, 2):
        await rig.copy(piece(origin, number))
    assert rig.bytes_of("node-0", origin.uri) == origin.data
    assert origin.asked == [0, 100_000, 100_000, 200_000]
    await rig.staging.close()


async def test_a_record_that_does_not_fit_its_file_is_not_believed(
    tmp_path: Path, origin: RangeOrigin
) -> None:
    """Half a dataset whose file or record somebody has shortened is removed, and fetched anew."""
    for spoil in ("data.bin", "pieces.json"):
        folder = tmp_path / spoil
        before = Rig(folder)
        await before.copy(piece(origin, 0))
        await before.staging.close()
        (part,) = (folder / "node-0").iterdir()
        os.truncate(part / spoil, 10)
        after = Rig(folder)
        assert (after.half_made("node-0"), after.caches["node-0"].partials.all) == ([], ())
        await after.staging.close()


async def test_a_dataset_that_changes_at_its_origin_is_fetched_anew(rig: Rig, origin: RangeOrigin) -> None:
    """Two versions never mix: the piece of the first is dropped, and the failure says which version there is now."""
    await rig.copy(piece(origin, 0))
    origin.data, origin.etag = os.urandom(300 * KB), '"two"'
    failed = await rig.copy(piece(origin, 1))
    assert isinstance(failed, TransferFailed)
    assert (failed.changed, failed.version, failed.lost, failed.permanent) == (True, '"two"', False, False)
    assert failed.message == (
        f'{origin.uri} is another version at its origin than the one that was to be copied (now: "two")'
    )
    assert rig.half_made("node-0") == []
    for number in (0, 1, 2):
        await rig.copy(piece(origin, number, version='"two"'))
    assert rig.bytes_of("node-0", origin.uri) == origin.data


async def test_a_node_drops_its_pieces_when_another_version_is_ordered(rig: Rig, origin: RangeOrigin) -> None:
    """Node 0 has learned of the second version from nobody; the order names it."""
    await rig.copy(piece(origin, 0))
    origin.data, origin.etag = os.urandom(300 * KB), '"two"'
    for number in (1, 2):
        done = await rig.copy(piece(origin, number, version='"two"'))
        assert (done.whole, done.moved_bytes) == (False, 100_000)  # type: ignore[union-attr]
    done = await rig.copy(piece(origin, 0, version='"two"'))
    assert done.moved_bytes == 100_000  # type: ignore[union-attr]
    assert rig.bytes_of("node-0", origin.uri) == origin.data


async def test_a_peer_with_another_version_gives_nothing(rig: Rig, origin: RangeOrigin) -> None:
    """One that has pieces has lost them; one that has it whole says that there is another version."""
    await rig.copy(piece(origin, 0, "node-0"))
    origin.data, origin.etag = os.urandom(300 * KB), '"two"'
    await rig.copy(piece(origin, 1, "node-1"))
    failed = await rig.copy(piece(origin, 0, "node-1", "node-0"))
    assert (failed.lost, failed.changed) == (True, False)  # type: ignore[union-attr]
    rig.put("node-2", origin.uri, bytes(300 * KB), "copy-1")
    failed = await rig.copy(piece(origin, 0, "node-1", "node-2"))
    assert (failed.lost, failed.changed, failed.version) == (False, True, "copy-1")  # type: ignore[union-attr]
    assert rig.caches["node-1"].partials.find(origin.uri).spans == ((100_000, 200_000),)  # type: ignore[union-attr]


async def test_a_file_that_changes_while_a_piece_is_read(rig: Rig, tmp_path: Path) -> None:
    """A file of this machine has no ETag, but a time, a size and an inode."""
    file = tmp_path / "data.bin"
    file.write_bytes(bytes(300 * KB))
    first = Transfer(file.as_uri(), 100 * KB, "node-0", whole=False)
    await rig.copy(first)
    file.write_bytes(b"x" * (300 * KB))
    os.utime(file, ns=(1, 1))
    failed = await rig.copy(Transfer(file.as_uri(), 100 * KB, "node-0", None, 100 * KB, whole=False))
    assert (failed.changed, failed.version) == (
        True,
        f"{file.stat().st_ino}-300000-1-{file.stat().st_ctime_ns}",
    )  # type: ignore[union-attr]


@pytest.mark.parametrize("lacks", ["ranges", "version"])
async def test_an_origin_that_cannot_is_asked_for_the_whole(
    rig: Rig, origin: RangeOrigin, lacks: str
) -> None:
    """Without ranges, or without anything that tells versions apart, the order comes back as indivisible."""
    if lacks == "ranges":
        origin.ranges = False
    else:
        origin.etag = ""
    failed = await rig.copy(piece(origin, 0))
    assert isinstance(failed, TransferFailed)
    why = {"ranges": "it gives no ranges", "version": "it tells no ETag"}[lacks]
    assert (failed.undivided, failed.message) == (True, f"{origin.uri} moves as a whole: {why}")
    done = await rig.copy(Transfer(origin.uri, 300 * KB, "node-0"))
    assert (done.whole, done.moved_bytes) == (True, 300_000)  # type: ignore[union-attr]


async def test_folders_move_as_a_whole(rig: Rig, tmp_path: Path) -> None:
    """From an origin, and from a node that has one."""
    folder = tmp_path / "index"
    folder.mkdir()
    (folder / "a").write_bytes(b"1")
    uri = folder.as_uri()
    failed = await rig.copy(Transfer(uri, 100, "node-0", whole=False))
    assert failed.undivided  # type: ignore[union-attr]
    await rig.copy(Transfer(uri, 0, "node-0"))
    failed = await rig.copy(Transfer(uri, 100, "node-1", "node-0", whole=False))
    assert failed.undivided  # type: ignore[union-attr]


async def test_the_size_that_was_said_is_not_the_size(rig: Rig, origin: RangeOrigin) -> None:
    """Ordered as 250 KB of pieces of 150: what came says how long it is, and what was short is ordered again by its real size."""
    done = await rig.copy(Transfer(origin.uri, 100 * KB, "node-0", None, 150 * KB, whole=False))
    assert (done.size_bytes, done.whole) == (300_000, False)  # type: ignore[union-attr]
    await rig.copy(Transfer(origin.uri, 150 * KB, "node-0", whole=False))
    done = await rig.copy(Transfer(origin.uri, 150 * KB, "node-0", None, 150 * KB, whole=False))
    assert (done.moved_bytes, done.whole) == (50_000, True)  # type: ignore[union-attr]
    beyond = await rig.copy(Transfer(origin.uri, 100 * KB, "node-1", None, 400 * KB, whole=False))
    assert isinstance(beyond, TransferFailed)


async def test_what_comes_in_pieces_counts_against_the_limit(tmp_path: Path, origin: RangeOrigin) -> None:
    """Room for all of it is kept from its first piece on, and given back when somebody needs it while no piece comes."""
    rig = Rig(tmp_path / "rig", cache_bytes=400 * KB)
    await rig.copy(piece(origin, 0))
    cache = rig.caches["node-0"]
    assert (cache.used_bytes, cache.partials.reserved_bytes) == (0, 300_000)
    assert cache.room_for(100 * KB)
    assert len(cache.partials.all) == 1
    assert cache.room_for(350 * KB)
    assert cache.partials.all == ()
    rig.put("node-0", "flowsched:x", bytes(350 * KB))
    failed = await rig.copy(piece(origin, 0))
    assert failed.message == "the cache of node-0 has 50000 bytes left, 300000 are needed"  # type: ignore[union-attr]
    await rig.staging.close()


async def test_a_whole_copy_ends_what_came_in_pieces(rig: Rig, origin: RangeOrigin) -> None:
    """Whoever brings all of it leaves no half."""
    await rig.copy(piece(origin, 0))
    await rig.copy(Transfer(origin.uri, 300 * KB, "node-0"))
    assert rig.half_made("node-0") == []
    assert (await rig.copy(piece(origin, 1))).whole  # type: ignore[union-attr]


def test_half_a_dataset_that_nobody_adds_to_goes_after_a_day(tmp_path: Path) -> None:
    """At the next start, and when another one begins."""
    now_s = 0.0
    partials = Partials(tmp_path, elapsed=lambda: now_s)
    old = partials.begin(Header("flowsched:old", 10, "", "data"))
    descriptor = old.open()
    old.landed(descriptor, 0, 5)
    os.close(descriptor)
    now_s = 86_000.0
    assert partials.drop_idle() == 0
    os.utime(old.folder / "pieces.json", (1, 1))  # as if the wall clock had been set on by decades
    assert partials.drop_idle() == 0
    assert not Partials(tmp_path).adopt(old.folder)
    now_s = 86_400.0
    assert partials.drop_idle() == 10
    assert os.listdir(tmp_path) == []


def test_what_begins_anew_is_not_taken_for_what_was_dropped(tmp_path: Path) -> None:
    """A thread has looked which ranges are there, or is about to write one; then the dataset is dropped and begins anew, of another
    version. The thread finds no file, and cannot publish the other one either.
    """
    cache, uri = Cache(tmp_path), "flowsched:data"
    old = cache.partials.begin(Header(uri, 10, "one", "data"))
    descriptor = old.open()
    os.pwrite(descriptor, b"0123456789", 0)
    old.landed(descriptor, 0, 10)
    os.close(descriptor)
    assert cache.partials.drop(uri)
    new = cache.partials.begin(Header(uri, 10, "two", "data"))
    assert old.covers(0, 10)
    assert not old.path.exists()
    with pytest.raises(Dropped):
        old.open()
    with pytest.raises(Dropped):
        cache.publish_partial(old, Entry(uri, 10, "data", False, "one"))
    assert cache.find(uri) is None
    assert cache.partials.find(uri) is new
    assert new.path.exists()


def test_of_two_folders_of_one_dataset_a_restart_takes_up_one(tmp_path: Path) -> None:
    """The other one goes."""
    for _ in range(2):
        made = Partials(tmp_path).begin(Header("flowsched:data", 10, "", "data"))
        descriptor = made.open()
        made.landed(descriptor, 0, 5)
        os.close(descriptor)
    cache = Cache(tmp_path)
    cache.scan()
    assert len(cache.partials.all) == 1
    assert os.listdir(tmp_path) == [cache.partials.all[0].folder.name]


RANGES = st.lists(st.integers(0, 30 * 31 - 1), max_size=8)


@given(RANGES, st.integers(0, 30), st.integers(0, 30))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_missing_ranges_are_the_bytes_that_are_not_there(coded: list[int], start: int, end: int) -> None:
    """Byte by byte, whatever came in whatever order."""
    spans = [divmod(code, 31) for code in coded]
    partial = Partial(Path("nowhere"), Header("x", 30, "", "data"), spans)
    there = {byte for first, last in spans for byte in range(first, last)}
    holes = [byte for first, last in partial.missing(start, end) for byte in range(first, last)]
    assert holes == [byte for byte in range(start, end) if byte not in there]
    assert all(a[1] < b[0] for a, b in zip(merged(spans), merged(spans)[1:], strict=False))
