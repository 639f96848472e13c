"""What a task reads where it lies: when, from whom, and what becomes of it there."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from flowsched.engine.data.cache_values import Evictable
from flowsched.engine.data.remote_reads import end_reading, pin_sources, reads_remotely, sources
from flowsched.engine.events import Stored
from flowsched.engine.forecast import expected_starts
from flowsched.engine.recovery import reclaim
from flowsched.engine.state.work import PodRef
from flowsched.executor.nodes import NodeInfo
from flowsched.executor.protocol import NodeChanged, ReplicaSeen
from flowsched.scheduling.state.cache_space import Need
from flowsched.statement import Statement
from flowsched.values import replace
from flowsched.workflow.estimates import Measured
from flowsched.workflow.spec import EMPTY
from tests.engine.scene import Scene, node
from tests.scheduling.scheduling_cases import bag

MB = 1_000_000


def linked(name: str, nic: int = 1_000 * MB, disk: int = 100 * MB, **more: Any) -> NodeInfo:
    """A node with a link that is ten times as fast as its disk."""
    return node(name, nic_in_rate=nic, nic_out_rate=nic, disk_rate=disk, **more)


def scene(*nodes: NodeInfo, able: bool = True) -> Scene:
    """An executor whose pods can read elsewhere."""
    made = Scene(*nodes)
    made.state.policy.remote_reads = able
    return made


def write(width: int = 2, **more: Any) -> dict[str, Any]:
    """Tasks of three cores, so that a node has room for one, that write one dataset each."""
    outputs = [{"name": "part", "path": "part"}]
    return {
        "name": "write", "scatter": {"count": width}, "command": ["x"], "resources": {"cpu": 3},
        "outputs": outputs, **more,
    }  # fmt: skip


def read(name: str = "read", **more: Any) -> dict[str, Any]:
    """A task that reads all of it."""
    return {"name": name, "command": ["x"], "inputs": [{"name": "parts", "from": "write.part"}], **more}


def part(shard: int) -> str:
    """What a shard of `write` wrote in its first attempt."""
    return f"flowsched:w/write/{shard}/0/part"


def written(on: Scene, *stages: dict[str, Any]) -> Scene:
    """Two nodes have written 50 MB each."""
    on.submit("w", write(), *stages)
    assert [(pod.name, pod.node) for pod in on.last.launches] == [
        ("fs-w-write-0-0", "n0"),
        ("fs-w-write-1-0", "n1"),
    ]
    on.start("fs-w-write-0-0", "fs-w-write-1-0")
    on.end("fs-w-write-0-0", "fs-w-write-1-0", size=50 * MB)
    return on


def test_a_gather_reads_the_other_node_and_copies_nothing() -> None:
    """On n0 half is there; the other half is read from n1 over a link that is faster than n0's disk. It counts as moved."""
    on = written(scene(linked("n0"), linked("n1")), read())
    assert on.last.transfers == []
    assert [(pod.node, dict(pod.remote)) for pod in on.last.launches] == [("n0", {part(1): "n1"})]
    assert on.state.data.read_from == {(on.state.cluster.catalogue.intern(part(1)), 1): 1}
    on.start("fs-w-read-0-0")
    on.end("fs-w-read-0-0")
    assert on.runs["w"].stages[1].totals.tolist()[3:5] == [50 * MB, 50 * MB]  # local, moved
    on.nothing_left()


@pytest.mark.parametrize(
    ("nic", "disk", "able"),
    [
        pytest.param(100 * MB, 100 * MB, True, id="the link is no faster than the disk"),
        pytest.param(1_000 * MB, 0, True, id="nobody knows how fast disks are"),
        pytest.param(1_000 * MB, 100 * MB, False, id="the executor cannot"),
    ],
)
def test_where_it_would_not_be_sooner_bytes_are_copied(nic: int, disk: int, able: bool) -> None:
    """The half that is missing is copied to n0 before the task gets cores."""
    on = written(scene(linked("n0", nic, disk), linked("n1", nic, disk), able=able), read())
    assert on.launched == []
    assert [(order.uri, order.dest, order.source) for order in on.last.transfers] == [(part(1), "n0", "n1")]
    on.arrive(on.last.transfers[0])
    assert [(pod.node, pod.remote) for pod in on.last.launches] == [("n0", EMPTY)]


def test_a_profile_may_forbid_it() -> None:
    """`remote_reads: false`."""
    on = scene(linked("n0"), linked("n1"))
    on.state.policy.profile = replace(on.state.policy.profile, remote_reads=False)
    written(on, read())
    assert [(order.uri, order.dest) for order in on.last.transfers] == [(part(1), "n0")]


def test_what_many_read_is_copied() -> None:
    """Ten readers over a link ten times as fast as a disk: one copy is as soon there for all of them. Nine of them read it."""
    few = written(scene(linked("n0"), linked("n1")), read(scatter={"count": 9}))
    assert few.last.transfers == []
    assert {pod.remote.get(part(1)) for pod in few.last.launches if pod.node == "n0"} == {"n1"}
    many = written(scene(linked("n0"), linked("n1")), read(scatter={"count": 9}), read("more"))
    assert many.last.transfers != []
    assert all(pod.remote == EMPTY for pod in many.last.launches)


def test_gangs_and_what_comes_from_outside_are_copied() -> None:
    """Members of a gang would hold each other up; a storage's link is everybody's."""
    on = written(scene(linked("n0"), linked("n1")), read(gang=True))
    assert [(order.uri, order.dest) for order in on.last.transfers] == [(part(1), "n0")]
    outside = scene(linked("n0"))
    outside.submit(
        "v", {"name": "a", "command": ["x"], "inputs": [{"name": "i", "uri": "s3://lab/x", "size": 1000}]}
    )
    assert [(order.uri, order.source) for order in outside.last.transfers] == [("s3://lab/x", None)]


def test_what_is_lost_at_its_source_is_written_again() -> None:
    """The pod finds nothing on n1: that replica is gone, n0's is not, and the producer of the lost one runs again."""
    on = written(scene(linked("n0"), linked("n1")), read())
    on.gone("fs-w-read-0-0", reason="InputLost", lost=[part(1)])
    assert on.launched == ["fs-w-write-1-1"]
    assert on.state.cluster.catalogue.nodes_of(on.state.cluster.catalogue.intern(part(0))) == {0}
    on.end("fs-w-write-1-1", size=50 * MB)
    assert on.launched == ["fs-w-read-0-1"]


def test_what_only_a_storage_has_is_copied_from_there() -> None:
    """Both parts are kept outside. Their last copies are lost, one while it is read and one before: both come from outside."""
    on = written(scene(linked("n0"), linked("n1")), read())
    on.tell(Stored(part(0)), Stored(part(1)))
    on.gone("fs-w-read-0-0", reason="InputLost", lost=[part(1)])
    assert on.launched == []
    assert [(order.uri, order.dest, order.source) for order in on.last.transfers] == [(part(1), "n0", None)]


def test_offers_are_made_anew_once_nobody_holds_what_was_to_be_read() -> None:
    """Each of two shards waits for a node of its kind. Before that comes, the last copies of the parts are lost."""
    each = {"scatter": {"count": 2}, "inputs": [{"name": "part", "from": "write.part", "match": "index"}]}
    on = scene(linked("n0"), linked("n1"))
    on.submit("w", write(), read(selector={"at": "n9"}, **each))
    on.end("fs-w-write-0-0", "fs-w-write-1-0", size=50 * MB)
    on.tell(Stored(part(0)), Stored(part(1)))
    on.tell(*(ReplicaSeen(part(at), f"n{at}", 0, present=False) for at in (0, 1)))
    on.tell(NodeChanged(linked("n9", labels={"at": "n9"})))
    assert on.launched == []
    assert sorted((order.uri, order.dest, order.source) for order in on.last.transfers) == [
        (part(0), "n9", None),
        (part(1), "n9", None),
    ]


def test_a_producer_whose_output_is_read_remotely_has_no_home() -> None:
    """It need not be where its reader will be: nothing is pushed anywhere."""
    for able, homes in ((True, []), (False, [0])):
        on = scene(linked("n0", 400 * MB), linked("n1", 400 * MB), able=able)
        on.submit("w", write(estimate={"runtime": "5s", "output": 500 * MB}), read())
        assert list(on.state.data.homes.values()) == homes


def test_a_dataset_in_pieces_is_on_its_way_as_a_whole() -> None:
    """300 MB in pieces of 100: whoever is placed next shares the link with all that is still to come."""
    on = scene(linked("n0"))
    on.state.cluster.transfer_limits = replace(
        on.state.cluster.transfer_limits, piece_bytes=100 * MB, per_dest=1
    )
    on.submit(
        "w", {"name": "a", "command": ["x"], "inputs": [{"name": "i", "uri": "s3://lab/x", "size": 300 * MB}]}
    )
    assert [order.size_bytes for order in on.last.transfers] == [100 * MB]
    counted = [on.state.cluster.snapshot.inbound.tolist()]
    for _ in range(3):
        order = on.last.transfers[0]
        done = structs.replace(
            on.arrival(order, 300 * MB), offset=order.offset, whole=False, moved_bytes=100 * MB
        )
        on.tell(done)
        counted.append(on.state.cluster.snapshot.inbound.tolist())
    assert counted == [[300 * MB], [200 * MB], [100 * MB], [0]]
    assert on.launched == ["fs-w-a-0-0"]


def test_what_is_read_stays_in_full_caches_wherever_it_lies() -> None:
    """Of two parts the reader finds one on its own node and reads the other on n1: a limit of either cache lets go neither."""
    on = written(scene(linked("n0", cache_bytes=200 * MB), linked("n1", cache_bytes=200 * MB)), read())
    caches, catalogue = on.state.cluster.catalogue.caches, on.state.cluster.catalogue
    assert caches is not None
    mine, other = catalogue.intern(part(0)), catalogue.intern(part(1))
    assert dict(caches.of[0].pinned) == {mine: 1}
    assert on.state.data.read_from == {(other, 1): 1}
    evictable = Evictable(on.state)
    assert [copy.dataset for node in (0, 1) for copy in evictable.copies(node, (), Need.AGAIN)] == []
    on.end("fs-w-read-0-0")
    on.nothing_left()


def test_the_node_in_the_middle_says_how_fast_links_and_disks_are() -> None:
    """One slow link of three, or one fast one, changes nothing; nor does one slow disk, or one that is not known."""
    slow, fast = 100 * MB, 1_000 * MB
    for links, disks, remote in (
        ((slow, fast, fast), (slow, slow, slow), True),
        ((slow, slow, fast), (slow, slow, slow), False),
        ((fast, fast, fast), (0, slow, slow), True),
        ((fast, fast, fast), (slow, fast, fast), False),
    ):
        on = scene(
            *(linked(f"n{at}", nic, disk) for at, (nic, disk) in enumerate(zip(links, disks, strict=True)))
        )
        on.submit("w", write(), read())
        run = on.runs["w"]
        assert reads_remotely(on.state, run, run.stages[1], run.stages[1].spec.inputs[0]) is remote


def test_who_has_it_and_is_read_from_least_is_read_from() -> None:
    """The first of three holders is away, two read from the second and one from the third; when all are away any will do."""
    on = scene(*(linked(f"n{at}", ready=at != 0) for at in range(4)))
    dataset = on.state.cluster.catalogue.intern("part", MB)
    for at in range(3):
        on.state.cluster.catalogue.add_replica(dataset, at)
    statement = Statement()
    for name, at in (("a", 1), ("b", 1), ("c", 2)):
        on.state.work.pods[name] = PodRef("w", 0, 0, 0, {"part": f"n{at}"})
        pin_sources(on.state, on.state.work.pods[name], statement)
    who = bag(1, remote=(dataset,))
    assert sources(on.state, who, 3) == {"part": "n2"}
    assert sources(on.state, who, 1) == {}
    for name, left in (("a", 1), ("b", None)):
        end_reading(on.state, name, statement)
        assert on.state.data.read_from.get((dataset, 1)) == left
    assert sources(on.state, who, 3) == {"part": "n1"}
    on.tell(*(NodeChanged(linked(f"n{at}", ready=False)) for at in (1, 2)))
    assert sources(on.state, who, 3) == {"part": "n0"}


def test_after_a_restart_what_is_read_is_known_again() -> None:
    """A pod that is taken over reads on: its source is counted as before."""
    before = written(scene(linked("n0"), linked("n1")), read())
    again = scene(linked("n0"), linked("n1"))
    again.state.work.runs = before.state.work.runs
    pods = [before.pods["fs-w-read-0-0"]]
    assert reclaim(again.state, before.runs["w"], pods, Statement(), 0) == []
    names = {
        again.state.cluster.catalogue.uris[dataset]: node for dataset, node in again.state.data.read_from
    }
    assert names == {part(1): 1}


def test_starts_are_foretold_by_all_that_is_read() -> None:
    """In 60 s a node is free for who reads 100 MB, which takes its kind 100 s (10 s for next to nothing). A gang waits for it."""
    on = scene(linked("n0"), linked("n1"))
    for at in range(20):
        on.state.work.estimates.learn("w", "read", 100_000 + at % 2, Measured(100 * MB))
        on.state.work.estimates.learn("w", "read", 10_000 + at % 2, Measured(1 * MB))
    on.submit("w", write(), read(resources={"cpu": 4}))
    busy = {"name": "busy", "scatter": {"count": 2}, "command": ["x"], "resources": {"cpu": 4}}
    on.submit("u", {**busy, "estimate": {"runtime": "60s"}}, priority=1)
    on.end("fs-w-write-0-0", "fs-w-write-1-0", size=50 * MB)
    assert on.launched == ["fs-u-busy-0-0", "fs-u-busy-1-0"]
    both = {"worker": {"replicas": 2, "command": ["x"], "resources": {"cpu": 4}}}
    on.submit("v", {"name": "g", "gang": True, "roles": both})
    (gang,) = (key for key, group in on.state.round.refused.items() if group.gang)
    assert 140_000 < expected_starts(on.state, [gang], on.now)[gang].first.start_ms - on.now < 161_000


def test_a_source_that_became_known_after_its_reader() -> None:
    """A pod is taken over that reads from a node which is away. The node comes back: the pod's end finds nothing counted."""
    on = scene(linked("n0"))
    ref = PodRef("w", 0, 0, 0, {part(1): "n9"})
    statement = Statement()
    on.state.work.pods["pod"] = ref
    pin_sources(on.state, ref, statement)
    assert on.state.data.read_from == {}
    on.tell(NodeChanged(linked("n9")))
    end_reading(on.state, "pod", statement)
    assert (on.state.work.pods, on.state.data.read_from) == ({}, {})
