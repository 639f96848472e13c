"""What agents measured becomes one event for the engine. Literal stories: two nodes, measurements of five seconds."""

from __future__ import annotations

import pytest

from flowsched.cluster.kubernetes.agents import EVENT, Loads, NodeLoad
from flowsched.executor.nodes import Load, LoadMeasured

MB = 1_000_000


def heard(loads: Loads, node: str, at: float, **said: object) -> None:
    """An agent's measurement arrives."""
    loads.hear(node, NodeLoad(over_ms=5_000, **said), at)  # type: ignore[arg-type]


def test_the_disks_of_all_nodes_in_one_event() -> None:
    """Of 100 MB in 5 s a pod of ours moved 60, and somebody else's 20; on b nobody can tell; c has no disk that is counted."""
    loads = Loads(is_ours={"ours"}.__contains__)
    heard(
        loads,
        "a",
        100.0,
        disk_bytes=100 * MB,
        pods={"ours": (60 * MB, 90 * MB, 7), "theirs": (20 * MB, 20 * MB, 7)},
    )
    heard(loads, "b", 100.0, disk_bytes=10 * MB)
    heard(loads, "c", 100.0)
    assert loads.event(101.0, ["a", "b", "c"]) == LoadMeasured(
        (Load("a", 20 * MB, 12 * MB), Load("b", 2 * MB, -1))
    )


def test_each_measurement_is_told_once() -> None:
    """Every five seconds, and only what is new."""
    loads = Loads()
    heard(loads, "a", 100.0, disk_bytes=5 * MB)
    assert loads.event(100.0, ["a"]) == LoadMeasured((Load("a", MB, -1),))
    heard(loads, "b", 101.0, disk_bytes=10 * MB)
    assert loads.event(102.0, ["a", "b"]) is None
    assert loads.event(105.0, ["a", "b"]) == LoadMeasured((Load("b", 2 * MB, -1),))
    assert loads.event(110.0, ["a", "b"]) is None


def test_both_ways_of_a_card() -> None:
    """All that came and went, and what of it was copies."""
    loads = Loads()
    heard(loads, "a", 100.0, card=(500 * MB, 50 * MB), copied=(400 * MB, 0))
    assert loads.event(100.0, ["a"]) == LoadMeasured(
        links=(Load("a/in", 100 * MB, 80 * MB), Load("a/out", 10 * MB, 0))
    )


def test_a_mount_is_told_when_all_agents_have_told() -> None:
    """Of a part of its clients nobody could say what it carries; then they are added up."""
    loads = Loads()
    heard(loads, "a", 100.0, mounts={"nas:/lab": (50 * MB, 5 * MB)})
    assert loads.event(100.0, ["a", "b"]) is None
    heard(loads, "a", 106.0, mounts={"nas:/lab": (50 * MB, 5 * MB)})
    heard(loads, "b", 106.0, mounts={"nas:/lab": (20 * MB, 0), "nas:/home": (0, 0)})
    assert loads.event(106.0, ["a", "b"]) == LoadMeasured(
        storages=(
            Load("nas:/home/read", 0),
            Load("nas:/home/write", 0),
            Load("nas:/lab/read", 14 * MB),
            Load("nas:/lab/write", MB),
        )
    )


def test_what_an_agent_told_long_ago_counts_no_more() -> None:
    """Nor what one told that is gone."""
    loads = Loads()
    heard(loads, "a", 100.0, disk_bytes=5 * MB)
    assert loads.event(116.0, ["a"]) is None
    heard(loads, "a", 120.0, disk_bytes=5 * MB)
    loads.forget("a")
    assert loads.event(122.0, ["a"]) is None


def test_what_a_pod_has_moved_is_remembered() -> None:
    """In all, as it was last told, with its CPU time; -1 where nobody told it."""
    loads = Loads()
    heard(loads, "a", 100.0, disk_bytes=0, pods={"u": (60, 90, 40)})
    heard(loads, "a", 105.0, disk_bytes=0, pods={"v": (1, 1, 0)})
    assert [loads.used_by(uid) for uid in "uvw"] == [(90, 40), (1, 0), (-1, 0)]


@pytest.mark.parametrize(
    "load",
    [
        b'{"over_ms":-1}',
        b'{"over_ms":5000,"disk_bytes":-5}',
        b'{"over_ms":5000,"pods":{"u":[1]}}',
        b'{"over_ms":5000,"card":[1,9223372036854775807]}',
    ],
)
def test_a_measurement_that_is_none_is_not_taken(load: bytes) -> None:
    """Its agent is asked again, as after any line that cannot be understood."""
    with pytest.raises(ValueError):
        EVENT.decode(b'{"seq":1,"kind":"load","load":' + load + b"}")


def test_a_line_of_an_agents_is_understood() -> None:
    """As `agent.meter` writes it; what a later version adds is passed over."""
    line = (
        b'{"seq":7,"kind":"load","load":{"over_ms":5003,"disk_bytes":40960000,"pods":{"u":[30,33,250]},'
        b'"card":[8,5],"copied":[6,0],"mounts":{"nas:/lab":[3,0]},"more":1}}'
    )
    assert EVENT.decode(line).load == NodeLoad(
        over_ms=5003,
        disk_bytes=40_960_000,
        pods={"u": (30, 33, 250)},
        card=(8, 5),
        copied=(6, 0),
        mounts={"nas:/lab": (3, 0)},
    )
