"""What a node agent measures: the kernel's words as they are written, a host made of files, and the agent's door."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from flowsched.cluster.kubernetes.agent_keys import bearer_of
from flowsched.cluster.node import meter as kernel
from flowsched.cluster.node.meter import Meter, disk_of
from tests.kubernetes.agent_world import KEY, AgentProcess, Node, Served, call, order, until, writes
from tests.kubernetes.host_world import ROUTE, Host

ONE = "0f2b6a1c-9d1e-4c53-8c1a-1f2e3d4c5b6a"
TWO = "7a6b5c4d-3e2f-4a1b-9c8d-0123456789ab"


@pytest.fixture
async def stack() -> Any:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host", tmp_path)


# --- the kernel's words ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "uid"),
    [
        ("pod0f2b6a1c-9d1e-4c53-8c1a-1f2e3d4c5b6a", ONE),
        ("kubepods-pod0f2b6a1c_9d1e_4c53_8c1a_1f2e3d4c5b6a.slice", ONE),
        ("kubepods-besteffort-pod0f2b6a1c_9d1e_4c53_8c1a_1f2e3d4c5b6a.slice", ONE),
        ("kubelet-kubepods-burstable-pod0f2b6a1c_9d1e_4c53_8c1a_1f2e3d4c5b6a.slice", ONE),
        ("pod0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef"),
        ("kubepods-burstable.slice", None),
        ("cri-containerd-0f2b6a1c.scope", None),
        ("podman-1.scope", None),
    ],
)
def test_the_pod_of_a_control_group_by_its_folders_name(folder: str, uid: str | None) -> None:
    """As the drivers cgroupfs and systemd make them, with a root of the kubelet's own too; a static pod's uid is a hash."""
    assert kernel.uid_of(folder) == uid


@pytest.mark.parametrize(
    ("folder", "leads"),
    [
        ("kubepods.slice", True),
        ("kubelet.slice", True),
        ("kubepods", True),
        ("burstable", True),
        ("besteffort", True),
        ("system.slice", False),
        ("user.slice", False),
        ("init.scope", False),
    ],
)
def test_folders_that_pods_may_be_below(folder: str, leads: bool) -> None:
    """The rest of a host is not looked through."""
    assert kernel.leads_to_pods(folder) is leads


IO_STAT = """259:0 rbytes=90430464 wbytes=299008000 rios=8950 wios=1252 dbytes=50331648 dios=3021
253:0 rbytes=90430464 wbytes=299000000 rios=8950 wios=1252 dbytes=0 dios=0
8:16
7:0 rbytes=x wbytes=3
"""


@pytest.mark.parametrize(
    ("numbers", "moved"),
    [
        (("259:0",), 389_438_464),
        (("253:0",), 389_430_464),
        (("253:0", "259:0"), 389_438_464),
        (("8:16",), 0),
        (("8:0",), 0),
        (("7:0",), 3),
    ],
)
def test_what_a_pod_has_moved(numbers: tuple[str, ...], moved: int) -> None:
    """What was read and written, not what was discarded; of a volume and the disk below it, which count the same bytes, one."""
    assert kernel.pod_bytes(IO_STAT, numbers) == moved


def test_what_time_a_pod_has_taken() -> None:
    """In ms, of microseconds; 0 where it does not say."""
    assert kernel.cpu_ms("usage_usec 2540123\nuser_usec 2000000\nsystem_usec 540123\n") == 2540
    assert kernel.cpu_ms("nr_periods 0\n") == 0


def test_the_card_that_the_default_route_leads_over() -> None:
    """Not the links of pods, whose bytes go over the card once more; two cards, where two routes lead out."""
    assert kernel.cards(ROUTE) == ("eth0",)
    assert kernel.cards(ROUTE + "ens5\t00000000\t0102\t3\t0\t0\t100\t00000000\t0\t0\t0\n") == ("eth0", "ens5")
    assert kernel.cards("Iface\tDestination\n") == ()
    half = "tun0\t00000000\t0102\t3\t0\t0\t0\t00000080\t0\t0\t0\n"  # a VPN's, of half the world
    assert kernel.cards(half + ROUTE) == ("eth0",)


def test_bytes_of_cards() -> None:
    """In and out; None of a card that is not there."""
    dev = (
        "Inter-| Receive | Transmit\n face |bytes packets\n"
        "    lo: 9 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n"
        "  eth0:6193805028 200606 0 0 0 0 0 0 13865736 121258 0 0 0 0 0 0\n"
        "  ens5: 1000 1 0 0 0 0 0 0 2000 1 0 0 0 0 0 0\n"
    )
    assert kernel.carried(dev, ("eth0",)) == (6_193_805_028, 13_865_736)
    assert kernel.carried(dev, ("eth0", "ens5")) == (6_193_806_028, 13_867_736)
    assert kernel.carried(dev, ("bond0",)) is None


MOUNTSTATS = """device /dev/vda mounted on / with fstype ext4
device nas:/lab mounted on /mnt/lab with fstype nfs4 statvers=1.1
	opts:	rw,vers=4.2,rsize=1048576
	events:	1 2 3
	bytes:	111 222 0 0 5000000000 700000 1220704 171
	xprt:	tcp 0 0 1 0 0 1
device nas:/lab mounted on /mnt/again with fstype nfs4 statvers=1.1
	bytes:	111 222 0 0 5000000000 700000 1220704 171
device nas:/home mounted on /home with fstype nfs statvers=1.1
	bytes:	1 2 3 4 5 6 7 8
device tmpfs mounted on /tmp with fstype tmpfs
	bytes:	1 2 3 4 5 6 7 8
"""


def test_what_nfs_has_carried() -> None:
    """What came from and went to the server, not what programs read and wrote; two mounts of one export count the same bytes."""
    assert kernel.mounts(MOUNTSTATS) == {"nas:/lab": (5_000_000_000, 700_000), "nas:/home": (5, 6)}


# --- a host ------------------------------------------------------------------------------------------------------


def test_a_node_is_measured(host: Host, tmp_path: Path) -> None:
    """In 5 s: 40 MB of the disk, 30 of them a pod's; 8 MB came, 6 of them copies; a mount gave 3 MB."""
    meter = Meter(tmp_path, host.root)
    host.card(1_000, 2_000)
    host.mount(50, 60)
    host.pod(ONE, 1_000_000, 2_000_000)
    host.pod(TWO, 400, 500, driver="cgroupfs")
    assert meter.measure((100, 200), 5_000) is None
    host.disk(40_960_000)
    host.card(8_001_000, 2_500)
    host.mount(3_000_050, 60)
    host.pod(ONE, 11_000_000, 22_000_000, cpu_ms=2_540)
    assert meter.measure((6_000_100, 200), 5_000) == {
        "over_ms": 5_000,
        "disk_bytes": 40_960_000,
        "pods": {ONE: (30_000_000, 33_000_000, 2_540), TWO: (0, 900, 0)},
        "card": (8_000_000, 500),
        "copied": (6_000_000, 0),
        "mounts": {"nas:/lab": (3_000_000, 0)},
    }


def test_a_pod_that_came_in_between_counts_from_its_beginning(host: Host, tmp_path: Path) -> None:
    """It had moved nothing before."""
    meter = Meter(tmp_path, host.root)
    meter.measure((0, 0), 5_000)
    host.pod(TWO, 4_000, 500, driver="cgroupfs")
    told = meter.measure((0, 0), 5_000)
    assert told is not None
    assert told["pods"] == {TWO: (4_500, 4_500, 0)}
    told = meter.measure((0, 0), 5_000)
    assert told is not None
    assert told["pods"] == {}


def test_a_pod_that_was_there_before_the_agent_is_told_once(host: Host, tmp_path: Path) -> None:
    """What it has moved in all; nobody knows when."""
    host.pod(ONE, 4_000, 500, cpu_ms=30)
    meter = Meter(tmp_path, host.root)
    meter.measure((0, 0), 5_000)
    for expected in ({ONE: (0, 4_500, 30)}, {}):
        told = meter.measure((0, 0), 5_000)
        assert told is not None
        assert told["pods"] == expected


def test_the_most_memory_that_was_seen_of_a_pod_is_kept(host: Host, tmp_path: Path) -> None:
    """300 MB at the second measurement, 20 when it is asked; the cache of files does not count. A pod that is gone is forgotten."""
    meter = Meter(tmp_path, host.root)
    for memory in (100_000_000, 300_000_000, 50_000_000):
        host.pod(ONE, 1, 2, memory=memory)
        meter.measure((0, 0), 5_000)
    host.pod(ONE, 1, 2, memory=20_000_000)
    assert meter.used(ONE)["max_rss_bytes"] == 300_000_000
    host.pod(TWO, 1, 2, memory=7)
    assert meter.used(TWO)["max_rss_bytes"] == 7
    assert kernel.used_memory_bytes("anon 5\nfile 70\nshmem 30\n") == 35
    assert kernel.used_memory_bytes("") == 0
    shutil.rmtree(host.cgroup / "kubepods.slice")
    meter.measure((0, 0), 5_000)
    assert meter.used(ONE) == {}


def test_where_control_groups_do_not_count_io_nobody_can_tell_whose_it_is(host: Host, tmp_path: Path) -> None:
    """The first version of control groups has no list of controllers at its root: the disk is told, pods are not."""
    (host.cgroup / "cgroup.controllers").unlink()
    host.pod(ONE, 1, 2)
    meter = Meter(tmp_path, host.root)
    meter.measure((0, 0), 5_000)
    assert meter.measure((0, 0), 5_000) == {"over_ms": 5_000, "disk_bytes": 0}
    assert meter.used(ONE) == {}


def test_a_host_that_tells_nothing(tmp_path: Path) -> None:
    """No file is there: no number is made up."""
    meter = Meter(tmp_path, tmp_path / "nowhere")
    assert meter.measure((0, 0), 5_000) is None
    assert meter.measure((0, 0), 5_000) == {"over_ms": 5_000}


def test_counters_that_begin_anew(host: Host, tmp_path: Path) -> None:
    """A driver that was loaded again counts from 0: nothing was carried, not less than nothing."""
    meter = Meter(tmp_path, host.root)
    host.card(9_000, 9_000)
    host.mount(9_000, 9_000)
    meter.measure((0, 0), 5_000)
    host.card(10, 9_500)
    host.mount(10, 10)
    assert meter.measure((0, 0), 5_000) == {
        "over_ms": 5_000,
        "disk_bytes": 0,
        "pods": {},
        "card": (0, 500),
        "copied": (0, 0),
        "mounts": {"nas:/lab": (0, 0)},
    }


def test_another_disk_under_the_same_folder(host: Host, tmp_path: Path) -> None:
    """A partition turns up whose disk is another one: its counters say nothing about the time before."""
    meter = Meter(tmp_path, host.root)
    host.disk(1024)
    assert meter.measure((0, 0), 5_000) is None
    major, minor = host.device.split(":")
    line = f" {major} {minor} sdq1 1 0 9 9 1 0 9 9 0 9 9\n 8 240 sdq 1 0 90 9 1 0 90 9 0 9 9\n"
    (host.root / "proc" / "diskstats").write_text(line)
    assert "disk_bytes" not in (meter.measure((0, 0), 5_000) or {})


def test_pods_deep_below_a_kubelets_own_root(host: Host, tmp_path: Path) -> None:
    """A kubelet in a container has a folder of its own above those of all pods."""
    meter = Meter(tmp_path, host.root)
    above = host.cgroup / "kubelet.slice" / "kubelet-kubepods.slice" / "kubelet-kubepods-burstable.slice"
    folder = above / f"kubelet-kubepods-burstable-pod{ONE.replace('-', '_')}.slice"
    folder.mkdir(parents=True)
    (folder / "io.stat").write_text(f"{host.device} rbytes=3 wbytes=4\n")
    assert meter.used(ONE) == {"disk_bytes": 7}


def test_this_machines_disk(tmp_path: Path) -> None:
    """Eight megabytes that were really written are seen, with whatever else was."""
    if disk_of(tmp_path, Path("/proc")) is None:
        pytest.skip("the folder of this test lies on no disk that the kernel counts")
    meter = Meter(tmp_path, Path("/"))
    meter.measure((0, 0), 5_000)
    with open(tmp_path / "written", "wb") as file:
        file.write(os.urandom(8 << 20))
        file.flush()
        os.fsync(file.fileno())
    told = meter.measure((0, 0), 5_000)
    assert told is not None
    assert told["disk_bytes"] >= 8 << 20


# --- the agent ---------------------------------------------------------------------------------------------------


async def test_measurements_are_told_to_followers(stack: AsyncExitStack, tmp_path: Path) -> None:
    """Beside the events, without a number of their own, and not to those who come later."""
    node = Node(tmp_path / "node-0")
    host = Host(tmp_path / "host", node.folder)
    served = await stack.enter_async_context(Served(node, host_root=host.root, measure_s=0.05))
    told = served.told(0, lambda heard: sum(event["kind"] == "load" for event in heard) >= 2)
    following = asyncio.create_task(told)
    await until(lambda: served.agent.news.load[0] > 3)
    host.pod(ONE, 3_000, 0)
    heard = await following
    assert {event["kind"] for event in heard} == {"load"}
    assert {event["seq"] for event in heard} == {0}
    assert served.agent.news.since(0) == []


async def test_without_the_hosts_folder_nothing_is_measured(stack: AsyncExitStack, tmp_path: Path) -> None:
    """An agent as it was before: its answer about outputs says no more either."""
    served = await stack.enter_async_context(Served(Node(tmp_path / "node-0"), measure_s=0.01))
    uid = served.node.pod(ONE)
    (served.node.work(uid) / "out").write_bytes(b"x")
    reply = await served.outputs(uid, order(outputs=[writes("out")]))
    assert sorted(reply.json) == ["outputs"]
    assert served.agent.news.load == (0, b"")


async def test_what_a_pod_has_used_comes_with_its_outputs(stack: AsyncExitStack, tmp_path: Path) -> None:
    """Its control group lives as long as its last step waits for this answer; and a second asking gets the same."""
    node = Node(tmp_path / "node-0")
    host = Host(tmp_path / "host", node.folder)
    served = await stack.enter_async_context(Served(node, host_root=host.root))
    uid = node.pod(ONE)
    host.pod(uid, 5_000_000, 7_000_000, cpu_ms=1_250, memory=64_000_000)
    (node.work(uid) / "out").write_bytes(b"x")
    first = await served.outputs(uid, order(outputs=[writes("out")]))
    assert (first.json["disk_bytes"], first.json["cpu_ms"]) == (12_000_000, 1_250)
    assert first.json["max_rss_bytes"] == 64_000_000
    host.pod(uid, 6_000_000, 7_000_000)
    again = await served.outputs(uid, order(outputs=[writes("out")]))
    assert again.json == first.json
    known = await served.call("GET", f"/v1/pods/{uid}/outputs")
    assert known.json == first.json


async def test_a_real_agent_measures_the_host_that_it_is_shown(tmp_path: Path) -> None:
    """As a process of its own, told by its argument."""
    node = Node(tmp_path / "node-0")
    host = Host(tmp_path / "host", node.folder)
    host.card(1_000, 1_000)
    with AgentProcess(node, f"--host-root={host.root}") as process:
        async with aiohttp.ClientSession() as session:
            ready = await call(session, "GET", f"{process.url()}/healthz", key=None)
            assert ready.status == 200
            load = await first_load(session, process.url())
    assert load["disk_bytes"] == 0
    assert load["card"] == [0, 0]
    assert load["pods"] == {}


async def first_load(session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """The first measurement that an agent tells."""
    headers = {"Authorization": f"Bearer {bearer_of(KEY)}"}
    async with asyncio.timeout(200):
        async with session.get(f"{url}/v1/events", headers=headers) as answer:
            async for line in answer.content:
                event = json.loads(line)
                if event["kind"] == "load":
                    load: dict[str, Any] = event["load"]
                    return load
    raise AssertionError("the stream ended")
