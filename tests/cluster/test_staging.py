"""Bytes on their way: real copies, real limits, real failures."""

from __future__ import annotations

import asyncio
import gzip
import os
import ssl
import subprocess
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from urllib.parse import quote

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from flowsched.cluster.local.root_space import Site
from flowsched.cluster.local.transfers import Staging
from flowsched.cluster.local.virtual_nodes import virtual_nodes
from flowsched.cluster.node.cache import Cache, Entry, file_name
from flowsched.cluster.node.origins import Origins
from flowsched.cluster.node.rates import TokenBucket
from flowsched.cluster.node.transfers import finish
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import ClusterEvent, Transfer, TransferDone, TransferFailed
from flowsched.values import replace


class Rig:
    """Staging between two nodes, on a clock that only moves when a flow waits for its turn."""

    def __init__(self, folder: Path, nodes: Sequence[NodeInfo], origins: Origins) -> None:
        self.told: list[ClusterEvent] = []
        self.now = 0.0
        self._sleepers: list[tuple[float, asyncio.Event]] = []
        by_name = {node.name: node for node in nodes}
        site = Site(folder, by_name, self.told.append, lambda: 0, lambda _: None)
        self.caches = {name: Cache(folder / name, node.cache_bytes) for name, node in by_name.items()}
        for cache in self.caches.values():
            cache.scan()
        self.staging = Staging(site, self.caches, origins, now=lambda: self.now, sleep=self._sleep)

    async def _sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        self._sleepers.append((self.now + seconds, woken))
        await woken.wait()

    async def carry(self, *orders: Transfer) -> list[TransferDone | TransferFailed]:
        """Carry orders out; time goes on whenever every flow sleeps."""
        before = len(self.told)
        self.staging.transfer(orders)
        async with asyncio.timeout(60):
            while len(self.told) < before + len(orders):
                running = len(self.staging._under_way)
                if self._sleepers and len(self._sleepers) == running:
                    self._sleepers.sort(key=lambda sleeper: sleeper[0])
                    self.now, woken = self._sleepers.pop(0)
                    woken.set()
                await asyncio.sleep(0.0005)
        return self.told[before:]  # type: ignore[return-value]

    def put(self, node: str, uri: str, size: int) -> Path:
        cache = self.caches[node]
        folder = cache.temporary()
        (folder / "payload.bin").write_bytes(os.urandom(size))
        cache.publish(folder, Entry(uri, size, "payload.bin"))
        return cache.home(uri) / "payload.bin"


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    nodes = virtual_nodes(3, cpu_millicores=1000, memory_bytes=1, nic_rate=1_000_000, disk_rate=0)
    made = Rig(tmp_path / "rig", nodes, Origins())
    yield made
    await made.staging.close()


def test_a_bucket_hands_out_in_order() -> None:
    """A second of bytes takes a second; who asks later waits for who asked before; idle time is not saved up."""
    bucket = TokenBucket(100)
    assert bucket.reserve(50, 0.0) == 0.5
    assert bucket.reserve(100, 0.1) == 1.5
    assert bucket.reserve(100, 10.0) == 11.0
    assert TokenBucket(0).reserve(10**12, 3.0) == 3.0


async def test_a_copy_is_a_copy(rig: Rig) -> None:
    """Bytes are really copied: another inode, one link, the same content."""
    source = rig.put("node-0", "x", 300_000)
    (done,) = await rig.carry(Transfer("x", 300_000, "node-1", "node-0"))
    assert done == TransferDone("x", "node-1", 0, 300_000, "node-0", 300_000)
    copy = rig.caches["node-1"].home("x") / "payload.bin"
    assert copy.read_bytes() == source.read_bytes()
    assert (copy.stat().st_nlink, source.stat().st_nlink) == (1, 1)
    assert copy.stat().st_ino != source.stat().st_ino


async def test_flows_share_a_link_fairly(rig: Rig) -> None:
    """Two copies from one node take twice as long, and a small one does not wait for the end of a big one."""
    rig.put("node-0", "big", 2_000_000)
    rig.put("node-0", "small", 200_000)
    ends: dict[str, float] = {}
    rig.told = _Noting(ends, rig)  # type: ignore[assignment]
    rig.staging._site = replace(rig.staging._site, report=rig.told.append)
    await rig.carry(
        Transfer("big", 2_000_000, "node-1", "node-0"), Transfer("small", 200_000, "node-2", "node-0")
    )
    assert ends["big"] == pytest.approx(2.2)
    assert ends["small"] < 0.6


class _Noting(list[ClusterEvent]):
    def __init__(self, ends: dict[str, float], rig: Rig) -> None:
        super().__init__()
        self.ends, self.rig = ends, rig

    def append(self, event: ClusterEvent) -> None:
        assert isinstance(event, TransferDone)
        self.ends[event.uri] = self.rig.now
        super().append(event)


async def test_the_slowest_of_all_limits(tmp_path: Path) -> None:
    """Disk and network count."""
    (node,) = virtual_nodes(1, cpu_millicores=1, memory_bytes=1, nic_rate=1_000_000, disk_rate=2_000_000)
    file = tmp_path / "file"
    file.write_bytes(bytes(1_000_000))
    rig = Rig(tmp_path / "rig", [node], Origins())
    await rig.carry(Transfer(str(file), 0, "node-0"))
    assert rig.now == pytest.approx(1.0)
    slower = Rig(tmp_path / "slower", [replace(node, disk_rate=500_000)], Origins())
    await slower.carry(Transfer(str(file), 0, "node-0"))
    assert slower.now == pytest.approx(2.0)


async def test_a_folder_is_copied_whole(rig: Rig, tmp_path: Path) -> None:
    """From its origin and between nodes, with the links inside of it."""
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "a").write_text("123")
    (tree / "link").symlink_to("deep/a")
    (tree / "out").symlink_to(outside := tmp_path / "outside")
    first, second = [
        *(await rig.carry(Transfer(tree.as_uri(), 0, "node-0"))),
        *(await rig.carry(Transfer(tree.as_uri(), 3, "node-1", "node-0"))),
    ]
    assert isinstance(first, TransferDone)
    assert isinstance(second, TransferDone)
    assert (first.size_bytes, second.size_bytes) == (3, 3)
    copy = rig.caches["node-1"].home(tree.as_uri()) / "tree"
    assert (copy / "link").read_text() == "123"
    assert os.readlink(copy / "link") == "deep/a"
    assert os.readlink(copy / "out") == str(outside)


async def test_a_folder_is_on_the_disk_before_it_has_its_name(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power failure, a copy that has its name has all of its bytes: the cache looks at no file of a folder again."""
    origin = tmp_path / "reference"
    (origin / "index").mkdir(parents=True)
    (origin / "genome.fa").write_bytes(b"ACGT")
    (origin / "index" / "genome.bwt").write_bytes(b"bwt")
    synced: list[tuple[int, bool]] = []
    home, fsync = rig.caches["node-0"].home(str(origin)), os.fsync

    def note(fd: int) -> None:
        synced.append((os.fstat(fd).st_ino, home.exists()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    (told,) = await rig.carry(Transfer(str(origin), 7, "node-0"))
    assert isinstance(told, TransferDone)
    for path in (home / "reference", *(home / "reference").rglob("*")):
        assert (path.stat().st_ino, False) in synced, path
        assert path.is_dir() or path.stat().st_mode & 0o777 == 0o444


@pytest.mark.parametrize(
    "uri", ["data/x.fq", "file:relative", "magic://x/y", "simplecache::file:///etc/passwd"]
)
async def test_uris_that_cannot_be_fetched(rig: Rig, uri: str) -> None:
    """Each fails for good."""
    (failed,) = await rig.carry(Transfer(uri, 1, "node-0"))
    assert isinstance(failed, TransferFailed)
    assert failed.permanent
    assert "no /" not in failed.message  # nothing was looked for below the service's own folder


async def test_an_origin_that_has_no_such_file(rig: Rig) -> None:
    """Trying again is no use."""
    (failed,) = await rig.carry(Transfer("file:///no/such/file", 1, "node-0"))
    assert isinstance(failed, TransferFailed)
    assert (failed.permanent, failed.lost) == (True, False)
    assert "/no/such/file" in failed.message


async def test_an_object_store_without_its_package_says_what_to_install(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base installation knows files and HTTP."""
    monkeypatch.setattr("fsspec.core.url_to_fs", refuse)
    (failed,) = await rig.carry(Transfer("s3://bucket/key", 1, "node-0"))
    assert isinstance(failed, TransferFailed)
    assert failed.permanent
    assert "pip install flowsched[objectstore]" in failed.message


def refuse(uri: str, **_options: object) -> None:
    """What fsspec does when a file system's package is missing."""
    raise ImportError("Install s3fs to access S3")


async def test_a_transfer_that_breaks_is_told_as_failed(tmp_path: Path) -> None:
    """An error that no part foresees is an event all the same, or the task would wait for ever."""

    class Broken(Origins):
        def local_path(self, uri: str) -> Path | None:
            raise RuntimeError("broken")

    rig = Rig(tmp_path / "rig", virtual_nodes(1), Broken())
    (failed,) = await rig.carry(Transfer("http://x/y", 1, "node-0"))
    assert isinstance(failed, TransferFailed)
    assert failed.message == "cannot copy http://x/y to node-0: RuntimeError('broken')"
    assert os.listdir(rig.caches["node-0"].folder) == []
    await rig.staging.close()


async def test_files_outside_of_the_allowed_roots(tmp_path: Path) -> None:
    """Refused after links are followed; a sibling with the same beginning is outside too (row 45d)."""
    for folder in ("data", "data-evil"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x").write_text("x")
    (tmp_path / "data" / "link").symlink_to("/etc/passwd")
    rig = Rig(tmp_path / "rig", virtual_nodes(1), Origins(allowed_roots=[tmp_path / "data"]))
    paths = ["data/x", "data-evil/x", "data/../data-evil/x", "data/link"]
    ends = [*(await rig.carry(*(Transfer(f"{tmp_path}/{path}", 1, "node-0") for path in paths)))]
    allowed = {end.uri.removeprefix(f"{tmp_path}/"): isinstance(end, TransferDone) for end in ends}
    assert allowed == {"data/x": True, "data-evil/x": False, "data/../data-evil/x": False, "data/link": False}
    await rig.staging.close()


async def test_a_full_cache_takes_nothing_more(tmp_path: Path) -> None:
    """It says how much is missing; after an eviction there is room."""
    node = replace(virtual_nodes(1)[0], cache_bytes=1000)
    rig = Rig(tmp_path / "rig", [node], Origins())
    rig.put("node-0", "old", 800)
    file = tmp_path / "new"
    file.write_bytes(bytes(300))
    order = Transfer(str(file), 300, "node-0")
    (failed,) = await rig.carry(order)
    assert isinstance(failed, TransferFailed)
    assert (failed.permanent, failed.lost) == (False, False)
    assert "200 bytes left, 300" in failed.message
    rig.caches["node-0"].evict("old")
    (done,) = await rig.carry(order)
    assert isinstance(done, TransferDone)
    await rig.staging.close()


# --- HTTP ----------------------------------------------------------------------------------------------------


@pytest.fixture
async def server() -> AsyncIterator[TestServer]:
    async def ok(_: web.Request) -> web.Response:
        return web.Response(body=b"x" * 100_000)

    async def truncated(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Length": "1000"})
        await answer.prepare(request)
        await answer.write(b"x" * 10)
        assert request.transport is not None
        request.transport.close()
        return answer

    async def status(request: web.Request) -> web.Response:
        return web.Response(status=int(request.match_info["status"]))

    async def loop(_: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": "/loop"})

    async def astray(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": request.query["to"]})

    app = web.Application()
    app.add_routes(
        [
            web.get("/reads.fq.gz", ok),
            web.get("/truncated", truncated),
            web.get("/status/{status}", status),
            web.get("/astray", astray),
            web.get("/loop", loop),
        ]
    )
    async with TestServer(app) as running:
        yield running


async def test_http(rig: Rig, server: TestServer) -> None:
    """A file from a web server, under the name its uri ends with."""
    uri = str(server.make_url("/reads.fq.gz?token=1"))
    (done,) = await rig.carry(Transfer(uri, 0, "node-0"))
    assert isinstance(done, TransferDone)
    assert (done.size_bytes, done.moved_bytes) == (100_000, 100_000)
    assert (rig.caches["node-0"].home(uri) / "reads.fq.gz").stat().st_size == 100_000


@pytest.mark.parametrize(
    ("path", "permanent"),
    [
        ("/status/401", True),
        ("/status/403", True),
        ("/status/404", True),
        ("/status/410", True),
        ("/status/451", True),
        ("/status/429", False),
        ("/status/503", False),
        ("/truncated", False),
    ],
)
async def test_http_that_fails(rig: Rig, server: TestServer, path: str, permanent: bool) -> None:
    """What is not there never will be; a server in trouble, or a body cut off, may be asked again."""
    (failed,) = await rig.carry(Transfer(str(server.make_url(path)), 0, "node-0"))
    assert isinstance(failed, TransferFailed)
    assert (failed.permanent, failed.lost) == (permanent, False)
    assert rig.caches["node-0"].entries == {}


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("/loop", "its server redirects in a circle, or more than 10 times"),
        ("ftp://lab/x", "its server redirects to 'ftp://lab/x', which is no http or https URL"),
        ("http://[lab/x", "its server redirects to 'http://[lab/x"),
        ("/status/410", "answered 410"),
    ],
)
async def test_a_redirect_that_leads_nowhere_is_followed_once(
    rig: Rig, server: TestServer, to: str, why: str
) -> None:
    """It leads nowhere the next time, too: the transfer fails for good, with the reason."""
    uri = f"{server.make_url('/astray')}?to={quote(to, safe='')}"
    (failed,) = await rig.carry(Transfer(uri, 0, "node-0"))
    assert isinstance(failed, TransferFailed)
    assert failed.permanent
    assert why in failed.message


async def test_a_certificate_that_is_not_valid_is_no_missing_package(rig: Rig, tmp_path: Path) -> None:
    """The transfer fails for good and says what is wrong with the certificate. A server without TLS may get it later."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-nodes", "-days", "1", "-subj", "/CN=localhost"]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", *subject, "-keyout", key, "-out", certificate]
    subprocess.run(made, check=True, capture_output=True)  # noqa: ASYNC221
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    secure = TestServer(web.Application(), scheme="https")
    await secure.start_server(ssl=context)
    (failed,) = await rig.carry(Transfer(str(secure.make_url("/x")), 0, "node-0"))
    await secure.close()
    assert isinstance(failed, TransferFailed)
    assert failed.permanent
    assert failed.message.endswith(": its server's certificate is not valid (self-signed certificate)")
    async with TestServer(web.Application()) as plain:
        (failed,) = await rig.carry(Transfer(f"https://{plain.host}:{plain.port}/x", 0, "node-0"))
    assert isinstance(failed, TransferFailed)
    assert not failed.permanent
    assert failed.message.endswith(": no connection (TLS: wrong version number)")


class Habits:
    """A web server with habits of real ones: it marks stored files as encoded, packs others if it may, and redirects.

    Attributes:
        asked: What stood in each request, as it came.
    """

    PACKED = gzip.compress(b"reads\n" * 1000, mtime=0)

    def __init__(self) -> None:
        self.asked: list[str] = []
        app = web.Application()
        app.router.add_get("/{tail:.*}", self._give)
        self.server = TestServer(app)

    async def _give(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.raw_path)
        if request.raw_path.startswith("/to/"):
            return web.Response(status=302, headers={"Location": request.raw_path.removeprefix("/to")})
        if request.raw_path == "/spaces":
            return web.Response(status=307, headers={"Location": "a b/ü?sig=%2F"})
        if request.path == "/text" and "gzip" in request.headers.get("Accept-Encoding", ""):
            return web.Response(body=self.PACKED, headers={"Content-Encoding": "gzip", "ETag": '"1"'})
        body = b"reads\n" * 1000 if request.path == "/text" else self.PACKED
        headers = {"ETag": '"1"'} if request.path == "/text" else {"Content-Encoding": "gzip", "ETag": '"1"'}
        if "Range" not in request.headers:
            return web.Response(body=body, headers=headers)
        part = request.http_range
        headers["Content-Range"] = f"bytes {part.start}-{part.stop - 1}/{len(body)}"
        return web.Response(status=206, body=body[part], headers=headers)


@pytest.fixture
async def habits() -> AsyncIterator[Habits]:
    made = Habits()
    async with made.server:
        yield made


@pytest.mark.parametrize(
    ("path", "content"),
    [("/reads.fq.gz", Habits.PACKED), ("/to/reads.fq.gz", Habits.PACKED), ("/text", b"reads\n" * 1000)],
    ids=["packed", "by a redirect", "plain"],
)
async def test_a_file_comes_as_its_server_stores_it(
    rig: Rig, habits: Habits, path: str, content: bytes
) -> None:
    """Neither a file that is marked `Content-Encoding: gzip` is unpacked, nor is one packed on the way. Ranges are of the same."""
    uri = f"http://127.0.0.1:{habits.server.port}{path}"
    (done,) = await rig.carry(Transfer(uri, 0, "node-0"))
    assert isinstance(done, TransferDone)
    assert (rig.caches["node-0"].home(uri) / file_name(uri)).read_bytes() == content
    section = await asyncio.to_thread(Origins().open_section, uri, 3, 13, "x")
    assert (await asyncio.to_thread(section.stream.read, 100), section.total) == (content[3:13], len(content))
    await asyncio.to_thread(section.stream.close)


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/x?sig=a%2Fb%3D&name=foo%27bar%2C%3A%20+", ["/x?sig=a%2Fb%3D&name=foo%27bar%2C%3A%20+"]),
        ("/a%2fb/..//c%3A;v=1,2?q#part", ["/a%2fb/..//c%3A;v=1,2?q"]),
        ("/ü?x={}|", ["/%C3%BC?x={}|"]),
        ("/to/x%27?sig=a%2Fb%3D", ["/to/x%27?sig=a%2Fb%3D", "/x%27?sig=a%2Fb%3D"]),
        ("/spaces", ["/spaces", "/a%20b/%C3%BC?sig=%2F"]),
    ],
)
async def test_a_url_is_sent_as_it_is_written(rig: Rig, habits: Habits, path: str, asked: list[str]) -> None:
    """A signature may cover each of its characters; redirects too. Only what no request may hold is escaped."""
    (done,) = await rig.carry(Transfer(f"http://127.0.0.1:{habits.server.port}{path}", 0, "node-0"))
    assert isinstance(done, TransferDone)
    assert habits.asked == asked


# --- the cache -----------------------------------------------------------------------------------------------


def test_a_cache_after_a_crash(tmp_path: Path) -> None:
    """Half-made and damaged entries are removed, whole ones are known again."""
    cache = Cache(tmp_path / "cache")
    cache.scan()
    for uri, size in (("whole", 10), ("short", 10), ("nameless", 10)):
        folder = cache.temporary()
        (folder / "f").write_bytes(bytes(size))
        cache.publish(folder, Entry(uri, size, "f"))
    os.truncate(cache.home("short") / "f", 4)
    (cache.home("nameless") / "meta.json").unlink()
    (cache.temporary() / "half").write_bytes(b"half")
    again = Cache(tmp_path / "cache")
    again.scan()
    assert again.entries == {"whole": Entry("whole", 10, "f")}
    assert again.used_bytes == 10
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [cache.home("whole").name]


def test_a_cache_that_was_emptied_behind_our_back(tmp_path: Path) -> None:
    """What is no longer there is not found."""
    cache = Cache(tmp_path / "cache")
    cache.scan()
    folder = cache.temporary()
    (folder / "f").write_bytes(b"1")
    cache.publish(folder, Entry("x", 1, "f"))
    (cache.home("x") / "f").unlink()
    assert cache.find("x") is None
    assert cache.used_bytes == 0


@pytest.mark.parametrize(
    ("uri", "name"),
    [
        ("s3://lab/NA18507/L001.fq.gz", "L001.fq.gz"),
        ("file:///data/with%20space.txt", "with space.txt"),
        ("https://x/y?z=1", "y"),
        ("https://x/", "data"),
        ("https://x/a/..", "data"),
        ("https://x/a%2Fb", "a_b"),
        ("https://x/meta.json", "data"),
        ("s3://lab/a#b?c%20d", "a#b?c%20d"),
        ("file:///data/a#b?c", "a#b?c"),
    ],
)
def test_names_of_files_from_outside(uri: str, name: str) -> None:
    """The last part of the path, never one that means something else."""
    assert file_name(uri) == name


async def test_short_answers_of_one_server_come_over_one_connection(tmp_path: Path) -> None:
    """A look at the version and the copy after it: what has been read whole leaves its connection to the next."""
    peers: set[object] = set()

    async def give(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        peers.add(request.transport.get_extra_info("peername"))
        answer = web.StreamResponse(headers={"ETag": '"one"'})
        answer.content_length = 5
        await answer.prepare(request)
        await asyncio.sleep(0.1)  # the body comes after its head, as from a server far away
        await answer.write(b"reads")
        return answer

    app = web.Application()
    app.router.add_get("/{name}", give)
    server = TestServer(app)
    await server.start_server()
    origins = Origins()

    def read(name: str) -> tuple[str, bytes]:
        uri = str(server.make_url(name))
        seen = origins.fingerprint(uri).version
        finish(origins.copy(uri, tmp_path / name, 4096), lambda _: None)
        return seen, (tmp_path / name).read_bytes()

    try:
        found = [await asyncio.to_thread(read, name) for name in ("a", "b", "c")]
    finally:
        await server.close()
    assert found == [('"one"', b"reads")] * 3
    assert len(peers) == 1
