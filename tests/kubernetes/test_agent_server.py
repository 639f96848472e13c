"""The agent's door: who may ask what, what is never answered, and readers of every speed."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest

from flowsched.cluster.kubernetes.agent import streams
from flowsched.cluster.kubernetes.agent.agent import Settings
from flowsched.cluster.kubernetes.agent.events import EventLog
from flowsched.cluster.kubernetes.agent.server import Policy
from flowsched.cluster.kubernetes.agent.sources import Forbidden, SsrfGuard
from flowsched.cluster.kubernetes.agent_keys import bearer_of, signing_key_of
from flowsched.errors import ConfigurationError
from tests.kubernetes.agent_world import KEY, Node, Served, order, several, signed, until, writes

X = "flowsched:wf/a/0/1/x"


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        (only,) = await several(stack, tmp_path, 1)
        yield only


# --- who may -------------------------------------------------------------------------------------------------

#: Every route, and what a stranger gets. A new route must be written here.
STRANGERS = {
    ("GET", "/healthz"): 200,
    ("GET", "/metrics"): 200,
    ("GET", "/v1/replicas"): 401,
    ("GET", "/v1/events"): 401,
    ("POST", "/v1/transfers"): 401,
    ("GET", "/v1/datasets"): 401,
    ("DELETE", "/v1/datasets"): 401,
    ("POST", "/v1/fingerprints"): 401,
    ("GET", "/v1/logs"): 401,
    ("POST", "/v1/logs/keep"): 401,
    ("DELETE", "/v1/logs"): 401,
    ("POST", "/v1/pods/{uid}/inputs"): 400,
    ("POST", "/v1/pods/{uid}/objects"): 400,
    ("POST", "/v1/pods/{uid}/outputs"): 400,
    ("GET", "/v1/pods/{uid}/outputs"): 401,
}


async def test_what_strangers_may_do_on_every_route(node: Served) -> None:
    """Without a key, with a wrong one, with the right one said wrongly: the same answers."""
    assert {(method, path) for _, method, path, _ in node.door.routes} == set(STRANGERS)
    identities = [
        {},
        {"Authorization": "Bearer "},
        {"Authorization": "Bearer wrong"},
        {"Authorization": bearer_of(KEY)},
        {"Authorization": f"Basic {bearer_of(KEY)}"},
        {"Authorization": f"Bearer {KEY.decode()}"},  # the secret is never sent, and so never taken
        {"Authorization": f"Bearer {signing_key_of(KEY).hex()}"},
        {"Authorization": f"Bearer {bearer_of(KEY)}x"},
        {"Authorization": "Bearer \udcff\udcfe"},
    ]
    for (method, path), status in STRANGERS.items():
        for headers in identities:
            url = path.replace("{uid}", node.node.pod())
            reply = await node.call(method, url, key=None, headers=headers)
            assert reply.status == status, (method, path, headers)


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v1/", "/v1/nothing", "//v1/replicas", "/v1/replicas/", "/healthz/../v1/replicas", "/cache", "/v1/pods",
     "/v1/pods/x", "/v1/replicas/healthz", "/healthz/x", "/v1/%72eplicas"],
)  # fmt: skip
async def test_no_spelling_of_a_path_gets_past_the_key(node: Served, path: str) -> None:
    """A stranger does not even learn which routes exist; nothing lists a folder."""
    reader, writer = await asyncio.open_connection("127.0.0.1", node.door.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    head = (await reader.read()).split(b"\r\n")[0]
    writer.close()
    assert head == b"HTTP/1.1 401 Unauthorized"
    reply = await node.call("GET", path)
    assert reply.status in (200, 404, 405)
    assert b"flowsched:" not in reply.body


async def test_what_identifies_datasets_from_outside(node: Served) -> None:
    """As the agent sees them, below its folders; why it does not see the others."""
    body = {"uris": ["file:///etc/passwd", "ftp://x/y"]}
    reply = await node.call("POST", "/v1/fingerprints", json=body)
    told = json.loads(reply.body)
    assert told["seen"] == {}
    assert told["unknown"].keys() == set(body["uris"])
    assert (await node.call("POST", "/v1/fingerprints", json={"uris": ["x"] * 1001})).status == 400


@pytest.mark.parametrize(
    ("modes", "size"),
    [
        ({}, 5),
        ({"lab/ref.fa": 0o640}, None),
        ({"lab": 0o750}, None),
        ({"lab": 0o711}, 5),
        ({".": 0o770}, None),
    ],
)
async def test_only_files_that_all_users_may_read_have_a_size(
    node: Served, tmp_path: Path, modes: dict[str, int], size: int | None
) -> None:
    """An agent reads as root. Without a size the service makes no copy of a file for tasks that name its path."""
    file = tmp_path / "shared" / "lab" / "ref.fa"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"ACGT\n")
    (tmp_path / "shared").chmod(0o755)
    file.parent.chmod(0o755)
    file.chmod(0o644)
    for name, mode in modes.items():
        (tmp_path / "shared" / name).chmod(mode)
    reply = await node.call("POST", "/v1/fingerprints", json={"uris": [str(file)], "sizes": True})
    assert [each["size_bytes"] for each in reply.json["seen"].values()] == ([] if size is None else [size])


async def test_sizes_need_no_look_at_all_of_a_folder(node: Served, tmp_path: Path) -> None:
    """A folder of more than 1,000 entries has no size, nor has a file outside of the agent's folders."""
    many = tmp_path / "shared" / "many"
    many.mkdir(parents=True)
    for number in range(1_001):
        (many / str(number)).touch()
    (many.parent / "x").write_text("123")
    body = {"uris": [str(many), f"{many.parent}/x", "/etc/passwd"], "sizes": True}
    reply = await node.call("POST", "/v1/fingerprints", json=body)
    assert {uri: each["size_bytes"] for uri, each in reply.json["seen"].items()} == {f"{many.parent}/x": 3}


async def test_every_route_says_who_may_use_it(node: Served) -> None:
    """Orders are only taken where the body has one."""
    by_policy = {policy: {path for p, _, path, _ in node.door.routes if p is policy} for policy in Policy}
    assert by_policy[Policy.OPEN] == {"/healthz", "/metrics"}
    steps = ("inputs", "objects", "outputs")
    assert by_policy[Policy.ORDER] == {f"/v1/pods/{{uid}}/{step}" for step in steps}


@pytest.mark.parametrize("key", [b"", b"short", b"with a newline in it\n", "schlüssel-mit-umlaut".encode()])
def test_keys_that_are_none(tmp_path: Path, key: bytes) -> None:
    """An agent does not start with a key that can be guessed or cannot be sent."""
    with pytest.raises(ConfigurationError, match="16 printable"):
        Node(tmp_path).settings(key=key)


def test_a_network_that_is_none(tmp_path: Path) -> None:
    """Said at the start, not at the first fetch."""
    with pytest.raises(ConfigurationError, match=r"10\.0\.0\.1/8"):
        Node(tmp_path).settings(networks=("10.0.0.1/8",))


def test_the_key_is_not_in_what_is_shown_of_the_settings(tmp_path: Path) -> None:
    """A traceback or a log line with the settings in it gives nothing away."""
    shown: Settings = Node(tmp_path).settings()
    assert KEY.decode() not in repr(shown)


# --- bodies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"orders": [{}]}', b'{"orders": [{"uri": 1}]}', b'{"orders": 1}', b"\xff\xfe",
     b'{"orders": [{"uri": ""}]}', b'{"orders": [{"uri": "a\\u0000b"}]}', b'{"orders": [{"uri": "\\ud800"}]}',
     b'{"orders": [{"uri": "x", "size_bytes": 1e400}]}', b'{"orders": [{"uri": "x", "source": {"node": "n"}}]}',
     b'{"orders": [{"uri": "' + b"x" * 5000 + b'"}]}', b"[" * 100_000],
)  # fmt: skip
async def test_bodies_that_cannot_be_understood(node: Served, body: bytes) -> None:
    """400 each time, and the agent is well afterwards."""
    assert (await node.call("POST", "/v1/transfers", data=body)).status == 400
    uid = node.node.pod()
    assert (await node.call("POST", f"/v1/pods/{uid}/inputs", key=None, data=body)).status == 400
    assert (await node.call("GET", "/healthz")).status == 200


async def test_bodies_that_are_too_large(node: Served) -> None:
    """Of what anybody may send, little is read: said by its length, or noticed on the way."""
    uid = node.node.pod()

    async def endless() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 100_000

    for data in (b" " * 5_000_000, endless()):
        reply = await node.call("POST", f"/v1/pods/{uid}/inputs", key=None, data=data)
        assert reply.status == 413


@pytest.mark.parametrize("value", ["-1", "x", "1.5", "", "٣", "1" * 30, "0x1"])
async def test_numbers_that_are_none(node: Served, value: str) -> None:
    """Parameters too."""
    for path in (f"/v1/events?after={value}", f"/v1/logs?namespace=a&pod=b&uid=c&offset={value}"):
        assert (await node.call("GET", path)).status == 400


@pytest.mark.parametrize("uri", ["", "a%00b", "a%0Ab", "x" * 4097])
async def test_datasets_that_cannot_be(node: Served, uri: str) -> None:
    """No uri, no answer."""
    for method in ("GET", "DELETE"):
        assert (await node.call(method, f"/v1/datasets?uri={uri}")).status == 400


@pytest.mark.parametrize(
    "uri", ["../../etc/passwd", "/etc/passwd", "file:///etc/passwd", "..", "meta.json", "%2e%2e/x"]
)
async def test_hostile_names_of_datasets(node: Served, uri: str) -> None:
    """A name is never a path: what is not cached under it is not here."""
    for method in ("GET", "DELETE"):
        assert (await node.call(method, "/v1/datasets", params={"uri": uri})).status == 404


async def test_a_link_in_the_cache_gives_nothing_away(node: Served, tmp_path: Path) -> None:
    """Whoever got one in there gains nothing by it."""
    (tmp_path / "secret").write_text("s")
    path = node.put(X, b"1")
    path.unlink()
    path.symlink_to(tmp_path / "secret")
    assert (await node.call("GET", "/v1/datasets", params={"uri": X})).status == 404


# --- datasets ------------------------------------------------------------------------------------------------


async def test_a_dataset_says_what_it_is(node: Served) -> None:
    """Its length, its name, and that it is no folder."""
    node.put(X, b"12345", "häß lich.bin")
    reply = await node.call("GET", "/v1/datasets", params={"uri": X})
    told = {
        name: reply.headers[name] for name in ("Content-Length", "X-Flowsched-Directory", "X-Flowsched-Name")
    }
    assert told == {
        "Content-Length": "5",
        "X-Flowsched-Directory": "0",
        "X-Flowsched-Name": "h%C3%A4%C3%9F%20lich.bin",
    }
    assert reply.body == b"12345"


async def test_a_slow_reader_holds_no_memory_and_is_cut(tmp_path: Path) -> None:
    """He takes nothing: the agent stops reading for him, serves others meanwhile, and lets go of him."""
    async with Served(Node(tmp_path / "n"), stall_s=5.0) as node:
        node.put(X, bytes(30_000_000))
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", node.door.port))
        request = (
            f"GET /v1/datasets?uri={X} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {bearer_of(KEY)}\r\n\r\n"
        )
        await loop.sock_sendall(sock, request.encode())
        async with asyncio.timeout(200):
            await until(lambda: node.agent.out_bytes)
            whole = await node.call("GET", "/v1/datasets", params={"uri": X})
            assert len(whole.body) == 30_000_000
            await until(lambda: not node.door.readers)
            assert "flowsched_agent_readers 0\n" in (await node.call("GET", "/metrics")).body.decode()
        assert node.agent.out_bytes < 30_000_000 + 15_000_000
        sock.close()


async def test_a_dataset_that_vanishes_while_it_is_read(node: Served, tmp_path: Path) -> None:
    """Its reader gets an error, not a part for the whole, and does not wait for the rest for ever."""
    tree = tmp_path / "shared" / "tree"
    tree.mkdir(parents=True)
    (tree / "a").write_bytes(bytes(20_000_000))
    (tree / "b").write_bytes(b"b")
    await node.bring({"uri": str(tree)})
    assert node.session is not None
    headers = {"Authorization": f"Bearer {bearer_of(KEY)}"}
    async with node.session.get(
        f"{node.url}/v1/datasets", params={"uri": str(tree)}, headers=headers
    ) as answer:
        await answer.content.readexactly(1000)
        (node.agent.cache.home(str(tree)) / "tree" / "b").unlink()
        async with asyncio.timeout(200):
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()


async def test_readers_at_a_time_are_bounded(node: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than may read is told when to come back."""
    node.put(X, b"1")
    monkeypatch.setattr(streams, "MOST_READERS", 0)
    reply = await node.call("GET", "/v1/datasets", params={"uri": X})
    assert (reply.status, reply.headers["Retry-After"]) == (503, "1")


# --- events --------------------------------------------------------------------------------------------------


async def test_events_are_told_at_once(tmp_path: Path) -> None:
    """A follower who waits does not wait for the next heartbeat."""
    async with Served(Node(tmp_path / "n"), heartbeat_s=3600.0) as node:
        heard = asyncio.create_task(node.told(0, lambda events: len(events) == 2))
        for _ in range(2):
            await asyncio.sleep(0.1)
            node.agent.news.replica("flowsched:x", 1, present=True)
        assert [event["seq"] for event in await heard] == [1, 2]


async def test_events_go_on_from_a_number(node: Served) -> None:
    """Nothing twice, nothing left out; the list says the number from which to follow."""
    for number in range(5):
        node.agent.news.replica(f"flowsched:{number}", number, present=True)
    told = (await node.call("GET", "/v1/replicas")).json
    assert (told["seq"], told["instance"]) == (5, node.agent.instance)
    heard = await node.told(2, lambda events: len(events) == 3)
    assert [event["seq"] for event in heard] == [3, 4, 5]
    later = asyncio.create_task(node.told(5, lambda events: len(events) == 1))
    await asyncio.sleep(0.05)
    node.agent.news.replica("flowsched:late", 1, present=False)
    assert await later == [
        {"seq": 6, "kind": "replica", "uri": "flowsched:late", "size_bytes": 1, "present": False}
    ]


async def test_heartbeats(tmp_path: Path) -> None:
    """One at the beginning, which says whose events they are, and one whenever nothing happens for long."""
    async with Served(Node(tmp_path / "n"), heartbeat_s=0.05) as node:
        assert node.session is not None
        headers = {"Authorization": f"Bearer {bearer_of(KEY)}"}
        async with node.session.get(f"{node.url}/v1/events?after=0", headers=headers) as answer:
            lines = [json.loads(await answer.content.readline()) for _ in range(3)]
    assert lines == [{"seq": 0, "kind": "heartbeat", "instance": node.agent.instance}] * 3


async def test_events_that_are_no_longer_known(node: Served) -> None:
    """Too long ago, of another run, or of the future: 410, so that the list is read again."""
    node.agent.news._lines = type(node.agent.news._lines)(maxlen=3)
    for number in range(5):
        node.agent.news.replica(f"flowsched:{number}", number, present=True)
    assert (await node.call("GET", "/v1/events?after=1")).status == 410
    assert (await node.call("GET", "/v1/events?after=6")).status == 410
    assert (await node.call("GET", "/v1/events?after=4&instance=other")).status == 410
    heard = await node.told(2, lambda events: len(events) == 3, instance=node.agent.instance)
    assert [event["seq"] for event in heard] == [3, 4, 5]


async def test_a_follower_who_is_too_slow_is_let_go() -> None:
    """He finds out when he comes back: what he has missed is no longer in the window."""
    news = EventLog("run", window=10)
    for number in range(25):
        news.replica(f"flowsched:{number}", 1, present=True)
    assert news.since(14) is None
    assert [json.loads(line)["seq"] for line in news.since(15) or ()] == list(range(16, 26))
    assert news.since(25) == []


async def test_an_agent_that_stops_lets_its_followers_go(tmp_path: Path) -> None:
    """At once, with the stream's end."""
    async with aiohttp.ClientSession() as session:
        async with Served(Node(tmp_path / "n")) as node:
            headers = {"Authorization": f"Bearer {bearer_of(KEY)}"}
            answer = await session.get(f"{node.url}/v1/events?after=0", headers=headers)
            await answer.content.readline()
        async with asyncio.timeout(200):
            assert await answer.content.read() == b""
        answer.close()


# --- addresses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "networks", "passes"),
    [
        ("8.8.8.8", (), True),
        ("2606:4700:4700::1111", (), True),
        ("127.0.0.1", (), False),
        ("10.1.2.3", (), False),
        ("10.1.2.3", ("10.0.0.0/8",), True),
        ("192.168.0.1", ("10.0.0.0/8",), False),
        ("100.64.0.1", (), False),
        ("0.0.0.0", (), False),
        ("::", (), False),
        ("::1", (), False),
        ("224.0.0.1", (), False),
        ("fe80::1%eth0", (), False),
        ("169.254.1.1", ("0.0.0.0/0",), False),
        ("169.254.1.1", ("169.254.0.0/16",), True),
        ("169.254.169.254", ("169.254.0.0/16",), False),
        ("169.254.169.254", ("169.254.169.254/32",), True),
        ("168.63.129.16", (), False),
        ("fd00:ec2::254", ("fd00::/8",), False),
        ("::ffff:10.0.0.1", (), False),
        ("::ffff:8.8.8.8", (), True),
        ("64:ff9b::a9fe:a9fe", (), False),
        ("2002:a9fe:a9fe::", (), False),
        ("2002:7f00:1::", (), False),
        ("::7f00:1", (), False),
    ],
)
def test_addresses_that_inputs_may_come_from(host: str, networks: tuple[str, ...], passes: bool) -> None:
    """Public ones, and private ones that are set; what a cloud tells a node about itself only by its own name."""
    guard = SsrfGuard(networks)
    if passes:
        guard.check(host)
    else:
        with pytest.raises(Forbidden):
            guard.check(host)


async def test_outputs_need_no_work_path(node: Served) -> None:
    """Where the pod has its folder is only a hint; one that is no path is refused."""
    uid = node.node.pod()
    (node.node.work(uid) / "o").write_bytes(b"1")
    told = order(outputs=[writes("o")])
    for path in ("relative", "/a\nb", "/" + "x" * 5000):
        body = {**signed(told), "work_path": path}
        assert (await node.call("POST", f"/v1/pods/{uid}/outputs", key=None, json=body)).status == 400
    assert (await node.outputs(uid, told)).status == 200
