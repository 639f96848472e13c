"""Datasets between nodes and from origins: real agents, real files, real sockets."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from flowsched.cluster.node.origins import Body, NotFetched, Origins
from tests.kubernetes.agent_world import AgentProcess, Node, Served, call, several, until


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as opened:
        yield opened


def source(peer: Served) -> dict[str, str]:
    return {"node": peer.node.name, "url": peer.url}


def shared(tmp_path: Path, name: str) -> Path:
    """A path below the folder that inputs may come from."""
    path = tmp_path / "shared" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


async def test_a_file_of_50_mb_goes_from_node_to_node_to_node(stack: AsyncExitStack, tmp_path: Path) -> None:
    """From its origin to the first, from there to the second, from there to the third: the same bytes, read-only."""
    data = os.urandom(50_000_000)
    file = shared(tmp_path, "genome.fa")
    file.write_bytes(data)
    uri = file.as_uri()
    first, second, third = await several(stack, tmp_path, 3)
    (told,) = await first.bring({"uri": uri, "size_bytes": len(data)})
    assert told | {"seq": 0} == {
        "seq": 0, "kind": "transfer", "uri": uri, "source": None,
        "moved_bytes": 50_000_000, "size_bytes": 50_000_000, "error": None,
    }  # fmt: skip
    (told,) = await second.bring({"uri": uri, "source": source(first)})
    assert (told["source"], told["moved_bytes"]) == ("node-0", 50_000_000)
    await third.bring({"uri": uri, "source": source(second)})
    copy = third.agent.cache.home(uri) / "genome.fa"
    assert hashlib.sha256(copy.read_bytes()).digest() == hashlib.sha256(data).digest()
    assert copy.stat().st_mode & 0o777 == 0o444
    assert await third.replicas() == {uri: 50_000_000}


async def test_a_folder_goes_whole_with_its_links(stack: AsyncExitStack, tmp_path: Path) -> None:
    """Empty files and folders, links inside, programs that stay executable, names that are not ASCII."""
    tree = shared(tmp_path, "index")
    (tree / "deep" / "er").mkdir(parents=True)
    (tree / "empty").touch()
    (tree / "none").mkdir()
    (tree / "deep" / "er" / "häßlich.txt").write_bytes(b"123")
    (tree / "deep" / "link").symlink_to("../run")
    (tree / "run").write_text("#!/bin/sh\n")
    (tree / "run").chmod(0o755)
    uri = tree.as_uri()
    first, second = await several(stack, tmp_path, 2)
    await first.bring({"uri": uri})
    (told,) = await second.bring({"uri": uri, "source": source(first)})
    assert (told["size_bytes"], told["error"]) == (13, None)
    copy = second.agent.cache.home(uri) / "index"
    assert sorted(path.relative_to(copy).as_posix() for path in copy.rglob("*")) == [
        "deep", "deep/er", "deep/er/häßlich.txt", "deep/link", "empty", "none", "run",
    ]  # fmt: skip
    assert os.readlink(copy / "deep" / "link") == "../run"
    assert (copy / "deep" / "er" / "häßlich.txt").read_bytes() == b"123"
    assert (copy / "run").stat().st_mode & 0o777 == 0o555
    assert (copy / "deep").stat().st_mode & 0o777 == 0o755


async def test_what_is_there_does_not_travel_again(stack: AsyncExitStack, tmp_path: Path) -> None:
    """An order for a dataset of the cache is done at once, and moves nothing."""
    (only,) = await several(stack, tmp_path, 1)
    only.put("flowsched:wf/a/0/1/x", b"12345")
    (told,) = await only.bring({"uri": "flowsched:wf/a/0/1/x", "size_bytes": 5})
    assert (told["moved_bytes"], told["size_bytes"], told["error"]) == (0, 5, None)


async def test_a_second_order_joins_the_transfer_under_way(stack: AsyncExitStack, tmp_path: Path) -> None:
    """The peer is asked once, and the end is told once."""
    asked = 0
    go = asyncio.Event()

    async def slowly(_: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        await go.wait()
        headers = {"X-Flowsched-Name": "x", "X-Flowsched-Size": "3", "X-Flowsched-Directory": "0"}
        return web.Response(body=b"abc", headers=headers)

    peer = await stack.enter_async_context(_server(slowly))
    (only,) = await several(stack, tmp_path, 1)
    order = {"uri": "flowsched:x", "source": {"node": "peer", "url": str(peer.make_url(""))}}
    for _ in range(3):
        assert (await only.call("POST", "/v1/transfers", json={"orders": [order, order]})).status == 202
    await until(lambda: asked)
    go.set()
    heard = await only.told(0, lambda events: any(event["kind"] == "transfer" for event in events))
    assert [event["kind"] for event in heard] == ["replica", "transfer"]
    assert asked == 1
    assert only.agent.news.seq == 2


async def test_transfers_at_a_time_are_bounded(stack: AsyncExitStack, tmp_path: Path) -> None:
    """Ten orders, two at a time."""
    now = most = 0

    async def busy(_: web.Request) -> web.Response:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.02)
        now -= 1
        headers = {"X-Flowsched-Name": "x", "X-Flowsched-Size": "0", "X-Flowsched-Directory": "0"}
        return web.Response(body=b"", headers=headers)

    peer = await stack.enter_async_context(_server(busy))
    (only,) = await several(stack, tmp_path, 1, parallel=2)
    away = {"node": "peer", "url": str(peer.make_url(""))}
    ends = await only.bring(*({"uri": f"flowsched:{number}", "source": away} for number in range(10)))
    assert [end["error"] for end in ends] == [None] * 10
    assert most == 2


async def test_a_peer_that_has_it_no_more(stack: AsyncExitStack, tmp_path: Path) -> None:
    """It is lost there: somebody else must be asked."""
    first, second = await several(stack, tmp_path, 2)
    (told,) = await second.bring({"uri": "flowsched:x", "source": source(first)})
    assert (told["error"]["lost"], told["error"]["permanent"]) == (True, False)


async def test_a_peer_that_is_not_there(stack: AsyncExitStack, tmp_path: Path) -> None:
    """That says nothing about the dataset: it may be asked again."""
    first, second = await several(stack, tmp_path, 2)
    await first.door.close()
    (told,) = await second.bring({"uri": "flowsched:x", "source": source(first)})
    assert (told["error"]["lost"], told["error"]["permanent"]) == (False, False)
    assert "node-0" in told["error"]["message"]


async def test_a_peer_that_wants_another_key(stack: AsyncExitStack, tmp_path: Path) -> None:
    """Told with its status; nothing is cached."""
    first = await stack.enter_async_context(Served(Node(tmp_path / "a", "a"), key=b"another-key-of-16-bytes"))
    second = await stack.enter_async_context(Served(Node(tmp_path / "b", "b")))
    first.put("flowsched:x", b"x")
    (told,) = await second.bring({"uri": "flowsched:x", "source": source(first)})
    assert "401" in told["error"]["message"]
    assert (told["error"]["lost"], told["error"]["permanent"]) == (False, False)
    assert await second.replicas() == {}


@pytest.mark.parametrize("cut", ["body", "tar", "size", "no-length", "no-name"])
async def test_a_peer_that_lies_or_dies(stack: AsyncExitStack, tmp_path: Path, cut: str) -> None:
    """A body cut off, a tar stream cut off, a size that is not so, headers that are missing: tried again later, never kept."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as writing:
        writing.addfile(_member("top", tarfile.DIRTYPE))
        writing.addfile(_member("top/f", tarfile.REGTYPE, 5000), io.BytesIO(bytes(5000)))

    async def lie(request: web.Request) -> web.StreamResponse:
        headers = {"X-Flowsched-Name": "top", "X-Flowsched-Size": "5000", "X-Flowsched-Directory": "0"}
        if cut == "size":
            return web.Response(body=b"123", headers=headers)
        if cut == "no-name":
            del headers["X-Flowsched-Name"]
            return web.Response(body=bytes(5000), headers=headers)
        answer = web.StreamResponse(headers=headers | {"X-Flowsched-Directory": str(int(cut == "tar"))})
        if cut == "no-length":
            answer.enable_chunked_encoding()
        else:
            answer.content_length = len(tar.getvalue())
        await answer.prepare(request)
        await answer.write(tar.getvalue()[:2000])
        assert request.transport is not None
        if cut != "no-length":
            request.transport.close()
        return answer

    peer = await stack.enter_async_context(_server(lie))
    (only,) = await several(stack, tmp_path, 1)
    (told,) = await only.bring({"uri": "flowsched:x", "source": {"node": "p", "url": str(peer.make_url(""))}})
    assert told["error"] is not None
    assert (told["error"]["lost"], told["error"]["permanent"]) == (False, False)
    assert await only.replicas() == {}
    assert only.node.half_made() == []


HOSTILE = {
    "absolute": lambda tar: tar.addfile(_member("/etc/x", tarfile.REGTYPE)),
    "parent": lambda tar: tar.addfile(_member("top/../../x", tarfile.REGTYPE)),
    "device": lambda tar: tar.addfile(_member("top/null", tarfile.CHRTYPE)),
    "pipe": lambda tar: tar.addfile(_member("top/pipe", tarfile.FIFOTYPE)),
    "hard-link": lambda tar: tar.addfile(_member("top/shadow", tarfile.LNKTYPE, link="/etc/shadow")),
    "link-out": lambda tar: tar.addfile(_member("top/out", tarfile.SYMTYPE, link="../../x")),
    "link-absolute": lambda tar: tar.addfile(_member("top/out", tarfile.SYMTYPE, link="/etc")),
    "through-a-link": lambda tar: (
        tar.addfile(_member("top/inner", tarfile.DIRTYPE)),
        tar.addfile(_member("top/way", tarfile.SYMTYPE, link="inner")),
        tar.addfile(_member("top/way/x", tarfile.REGTYPE)),
    ),
    "over-a-link": lambda tar: (
        tar.addfile(_member("top/x", tarfile.SYMTYPE, link="y")),
        tar.addfile(_member("top/x", tarfile.REGTYPE)),
    ),
    "other-top": lambda tar: tar.addfile(_member("elsewhere/x", tarfile.REGTYPE)),
    "no-parent": lambda tar: tar.addfile(_member("top/a/b/c", tarfile.REGTYPE)),
    "long": lambda tar: tar.addfile(_member(f"top/{'n' * 300}", tarfile.REGTYPE)),
}


@pytest.mark.parametrize("attack", HOSTILE)
async def test_an_archive_cannot_leave_its_folder(stack: AsyncExitStack, tmp_path: Path, attack: str) -> None:
    """Whatever a folder's stream asks for, nothing appears outside and nothing of it is kept."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as writing:
        writing.addfile(_member("top", tarfile.DIRTYPE))
        HOSTILE[attack](writing)

    async def send(_: web.Request) -> web.Response:
        headers = {"X-Flowsched-Name": "top", "X-Flowsched-Size": "0", "X-Flowsched-Directory": "1"}
        return web.Response(body=tar.getvalue(), headers=headers)

    peer = await stack.enter_async_context(_server(send))
    (only,) = await several(stack, tmp_path, 1)
    before = _everything(tmp_path)
    (told,) = await only.bring({"uri": "flowsched:x", "source": {"node": "p", "url": str(peer.make_url(""))}})
    assert told["error"] is not None
    assert _everything(tmp_path) == before


# --- origins -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "uri",
    [
        "file:///etc/passwd",
        "/etc/passwd",
        "{shared}/../secret",
        "{shared}/link",
        "{shared}-evil/x",
        "file://{shared}/none",
        "gopher://127.0.0.1/x",
        "ftp://127.0.0.1/x",
        "simplecache::file:///etc/passwd",
        "s3::file:///etc/passwd",
        "local:///etc/passwd",
        "relative/path",
        "http://169.254.169.254/latest/meta-data/",
        "http://[::ffff:169.254.169.254]/",
        "http://2852039166/",
        "http://[fd00:ec2::254]/",
    ],
)
async def test_origins_that_are_refused(stack: AsyncExitStack, tmp_path: Path, uri: str) -> None:
    """Other folders of the node, other schemes, and what a cloud tells a node about itself: for good."""
    shared(tmp_path, "x")
    (tmp_path / "secret").write_text("s")
    (tmp_path / "shared-evil").mkdir()
    (tmp_path / "shared-evil" / "x").write_text("s")
    (tmp_path / "shared" / "link").symlink_to("/etc/passwd")
    (only,) = await several(stack, tmp_path, 1)
    (told,) = await only.bring({"uri": uri.format(shared=tmp_path / "shared")})
    assert told["error"]["permanent"], told
    assert await only.replicas() == {}


async def test_private_addresses_are_fetched_from_where_that_is_set(
    stack: AsyncExitStack, tmp_path: Path
) -> None:
    """The same server, with and without its range among the agent's networks."""

    async def hello(_: web.Request) -> web.Response:
        return web.Response(body=b"hello")

    origin = await stack.enter_async_context(_server(hello))
    uri = str(origin.make_url("/reads.fq?token=1"))
    allowed = await stack.enter_async_context(Served(Node(tmp_path / "a", "a")))
    (told,) = await allowed.bring({"uri": uri})
    assert (told["error"], told["size_bytes"]) == (None, 5)
    assert (allowed.agent.cache.home(uri) / "reads.fq").read_bytes() == b"hello"
    strict = await stack.enter_async_context(Served(Node(tmp_path / "b", "b"), networks=()))
    (told,) = await strict.bring({"uri": uri})
    assert told["error"]["permanent"]
    (told,) = await strict.bring({"uri": uri.replace("127.0.0.1", "localhost")})
    assert told["error"]["permanent"]


async def test_a_redirect_is_looked_at_too(stack: AsyncExitStack, tmp_path: Path) -> None:
    """An allowed server that sends the agent to a forbidden address gains nothing."""
    asked = []

    async def secret(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response(body=b"credentials")

    inner = await stack.enter_async_context(_server(secret, host="127.0.0.2"))

    async def redirect(_: web.Request) -> web.Response:
        raise web.HTTPFound(str(inner.make_url("/secret")))

    outer = await stack.enter_async_context(_server(redirect))
    served = await stack.enter_async_context(
        Served(Node(tmp_path / "a", "a"), networks=("127.0.0.1/32", "127.0.0.4/30"))
    )
    (told,) = await served.bring({"uri": str(outer.make_url("/x"))})
    assert told["error"]["permanent"]
    assert asked == []


def test_an_origin_that_ends_too_early(tmp_path: Path) -> None:
    """Fewer bytes than its length, with no error of its own: not kept, and asked again."""

    class Short(Origins):
        def open(self, uri: str) -> Body:
            return Body(io.BytesIO(b"123"), uri, 5)

    with pytest.raises(NotFetched, match="ended after 3 of 5 bytes") as failed:
        list(Short(()).copy("s3://b/{x}", tmp_path / "x", 1 << 20))
    assert (failed.value.lost, failed.value.permanent) == (False, False)


async def test_a_dataset_that_is_no_file_and_no_folder(stack: AsyncExitStack, tmp_path: Path) -> None:
    """Pipes, and folders with links that lead out of them, cannot be datasets."""
    os.mkfifo(shared(tmp_path, "pipe"))
    tree = shared(tmp_path, "tree")
    tree.mkdir()
    (tree / "out").symlink_to("../../secret")
    (only,) = await several(stack, tmp_path, 1)
    ends = await only.bring({"uri": str(tmp_path / "shared" / "pipe")}, {"uri": str(tree)})
    assert [end["error"]["permanent"] for end in ends] == [True, True]


async def test_a_full_disk_is_no_fault_of_the_copy(
    stack: AsyncExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No copy begins that the disk cannot hold; the event says that the node has no room, and of which file system."""
    (only,) = await several(stack, tmp_path, 1)
    file = shared(tmp_path, "new")
    file.write_bytes(bytes(300))
    found = os.statvfs(tmp_path)
    full = os.statvfs_result((*found[:4], 0, *found[5:]))
    with monkeypatch.context() as patched:
        patched.setattr("flowsched.cluster.node.space.os.statvfs", lambda _: full)
        (told,) = await only.bring({"uri": str(file), "size_bytes": 300})
    assert (told["error"]["full"], told["error"]["permanent"]) == (True, False)
    assert told["error"]["message"].startswith(f"cannot copy {file} to node-0: the file system ")
    assert only.node.half_made() == []
    (told,) = await only.bring({"uri": str(file), "size_bytes": 300})
    assert told["error"] is None


# --- crashes -------------------------------------------------------------------------------------------------


async def test_an_agent_killed_in_mid_transfer_leaves_nothing_half_done(tmp_path: Path) -> None:
    """Killed by -9 with bytes on the disk; the next start shows no dataset, has swept the rest, and brings it whole."""
    data = os.urandom(3_000_000)
    async with Served(Node(tmp_path / "a", "a")) as peer, aiohttp.ClientSession() as session:
        peer.put("flowsched:x", data)
        node = Node(tmp_path / "b", "b")
        orders = {"orders": [{"uri": "flowsched:x", "source": source(peer)}]}
        with AgentProcess(node, "--nic-rate", "500k") as first:
            url = await asyncio.to_thread(first.url)
            assert (await call(session, "POST", f"{url}/v1/transfers", json=orders)).status == 202
            await until(lambda: any(file.stat().st_size for file in node.folder.glob("cache/.tmp-*/*")))
            first.kill(signal.SIGKILL)
        assert node.half_made() != []
        with AgentProcess(node) as again:
            url = await asyncio.to_thread(again.url)
            assert (await call(session, "GET", f"{url}/v1/replicas")).json["replicas"] == []
            assert node.half_made() == []
            await call(session, "POST", f"{url}/v1/transfers", json=orders)
            held: list[Any] = []
            while not held:
                held = (await call(session, "GET", f"{url}/v1/replicas")).json["replicas"]
                await asyncio.sleep(0.05)
            assert held == [{"uri": "flowsched:x", "size_bytes": 3_000_000}]
            got = await call(session, "GET", f"{url}/v1/datasets", params={"uri": "flowsched:x"})
            assert got.body == data


async def test_an_agent_that_is_asked_to_stop_does_not_wait_for_a_peer(tmp_path: Path) -> None:
    """SIGTERM in mid-transfer, with an origin that says nothing: it ends at once, and well."""

    async def silent(_: web.Request) -> web.Response:
        await asyncio.sleep(3600)
        return web.Response()

    async with AsyncExitStack() as opened:
        origin = await opened.enter_async_context(_server(silent))
        session = await opened.enter_async_context(aiohttp.ClientSession())
        node = Node(tmp_path / "a", "a")
        with AgentProcess(node, "--network", "127.0.0.0/8") as process:
            url = await asyncio.to_thread(process.url)
            orders = {"orders": [{"uri": str(origin.make_url("/x"))}]}
            await call(session, "POST", f"{url}/v1/transfers", json=orders)
            await until(node.half_made)
            assert await asyncio.to_thread(process.kill, signal.SIGTERM) == 0


@pytest.mark.parametrize(
    ("key", "said"), [("", "16 printable"), ("short", "16 printable"), ("x" * 32, "cannot listen")]
)
def test_an_agent_that_cannot_start_says_why(tmp_path: Path, key: str, said: str) -> None:
    """In one sentence, with an exit code: no key, a short one, an address that is not the node's."""
    program = "import typer; from flowsched.cli.agent import agent; typer.run(agent)"
    paths = [
        argument
        for name in ("cache", "state", "pods", "logs")
        for argument in (f"--{name}", str(tmp_path / name))
    ]
    command = [sys.executable, "-c", program, "--node", "n", *paths, "--host", "192.0.2.1"]
    env = {"PATH": os.environ["PATH"], "FLOWSCHED_AGENT_KEY": key}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode not in (0, None)
    assert said in done.stderr
    assert "Traceback" not in done.stderr


async def test_two_agents_do_not_share_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second says which folder it is, and leaves it alone."""
    monkeypatch.setattr("flowsched.cluster.kubernetes.agent.agent.PREDECESSOR_S", 0.1)
    async with Served(Node(tmp_path / "a", "a")) as first:
        with pytest.raises(Exception, match="another agent works in"):
            async with Served(first.node):
                pass


# --- helpers -------------------------------------------------------------------------------------------------


def _server(handler: Any, host: str = "127.0.0.1") -> TestServer:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", handler)
    return TestServer(app, host=host)


def _member(name: str, kind: bytes, size: int = 0, link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.size, member.linkname = kind, size, link
    member.mode = 0o755
    return member


def _everything(folder: Path) -> set[str]:
    """All paths below a folder, but for the agents' own files."""
    return {str(path) for path in folder.rglob("*") if "state" not in path.parts}
