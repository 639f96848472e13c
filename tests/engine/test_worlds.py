"""Random workflows in a misbehaving world: every promise is checked after every step."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from flowsched.executor.nodes import NodeInfo
from flowsched.values import replace
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.run.states import TaskState
from tests.engine.documents import clean, documents
from tests.engine.world import Chances, World
from tests.soak import worlds

pytestmark = pytest.mark.soak

GPUS = [NodeInfo(f"n{i}", 4_000, 4 << 30, gpu_millis=2_000, rack=f"r{i // 2}") for i in range(3)]
NODES = [NodeInfo(f"n{i}", 4_000, 4 << 30, rack=f"r{i // 2}") for i in range(3)]
RELAXED = settings(
    max_examples=worlds(few=25, many=400),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def run_world(
    docs: list[dict[str, Any]],
    seed: int,
    chances: Chances,
    policy: str = "flowsched",
    nodes: list[NodeInfo] = NODES,
) -> World:
    world = World(nodes, seed, chances, policy)
    for number, document in enumerate(docs):
        world.submit(f"w{number}", check_workflow(clean(document)))
    world.run()
    world.finished()
    return world


@RELAXED
@given(st.lists(documents(), min_size=1, max_size=3), st.integers(0, 2**32))
def test_in_a_good_world_everything_ends_well(docs: list[dict[str, Any]], seed: int) -> None:
    """No workflow fails unless it asked to (a stage that runs after failures only is skipped)."""
    world = run_world(docs, seed, Chances())
    assert set(world.sql.terminal.values()) == {"SUCCEEDED"}


@RELAXED
@given(st.lists(documents(), min_size=1, max_size=3), st.integers(0, 2**32))
def test_in_a_bad_world_every_promise_holds_after_every_step(docs: list[dict[str, Any]], seed: int) -> None:
    """Failures, lost pods, lost replicas, cancels, dropped commits and crashes at every point of a step: P1 to P6 and P8."""
    chances = Chances(
        fail=0.1,
        oom=0.05,
        gone=0.1,
        crash=0.1,
        drop=0.1,
        cancel=0.02,
        transfer_fails=0.1,
        replica_lost=0.1,
        repeat=0.2,
    )
    run_world(docs, seed, chances)


@RELAXED
@given(st.lists(documents(), min_size=1, max_size=3), st.integers(0, 2**32))
def test_crashes_alone_fail_nothing(docs: list[dict[str, Any]], seed: int) -> None:
    """A service that dies again and again loses no attempt of a user and no workflow."""
    world = run_world(docs, seed, Chances(crash=0.3, drop=0.1, repeat=0.3))
    assert set(world.sql.terminal.values()) == {"SUCCEEDED"}
    assert all(row.charged == 0 for row in world.sql.tasks.values())


@settings(parent=RELAXED, max_examples=worlds(few=15, many=160))
@given(st.lists(documents(), min_size=2, max_size=4), st.integers(0, 2**32))
def test_no_task_of_an_engine_starts_after_its_head_has_ended(docs: list[dict[str, Any]], seed: int) -> None:
    """The first stage of the first document is the head of the others. Pods fail and linger, commits fail, and the service dies at
    every point.
    """
    docs[0]["stages"] = docs[0]["stages"][:1]
    for number, document in enumerate(docs):
        document["call"] = {"run": "r", "node": f"n{number}", "source": "miniwdl", "head": number == 0}
    world = run_world(docs, seed, Chances(gone=0.05, crash=0.3, drop=0.1, repeat=0.2, lingers=0.9))
    assert world.sql.runs_ended == {"r"}


def with_gpus(docs: list[dict[str, Any]], seed: int) -> list[dict[str, Any]]:
    """The documents, every stage or role asking for some of a GPU, for one, or for none."""
    rng = random.Random(seed)
    for stage in (stage for document in docs for stage in document["stages"]):
        for part in stage["roles"].values() if "roles" in stage else [stage]:
            part["resources"] = {**part.get("resources", {}), "gpu": rng.choice([0, 0.3, 0.4, 0.6, 0.7, 1])}
    return docs


@settings(parent=RELAXED, max_examples=worlds(few=15, many=120))
@given(st.lists(documents(), min_size=1, max_size=3), st.integers(0, 2**32))
def test_parts_of_gpus_survive_a_bad_world_too(docs: list[dict[str, Any]], seed: int) -> None:
    """No device is given out twice after any step, crash or dropped commit, and everybody gets one in the end."""
    chances = Chances(gone=0.1, crash=0.15, drop=0.1, repeat=0.2, lingers=0.3)
    world = run_world(with_gpus(docs, seed), seed, chances, nodes=GPUS)
    assert (world.state.cluster.snapshot.devices.free(3) == 1000).all()


def test_gangs_that_give_members_back_survive_a_bad_world_too() -> None:
    """Trainings of 1 to 3 workers, and more important work by and by: members are given back, gangs go on, all end well."""
    worlds = []
    for seed in range(12):
        world = World(NODES, seed, Chances(crash=0.15, drop=0.1, repeat=0.2, lingers=0.3))
        for number in range(8):
            role = {"replicas": 3, "min": 1, "command": ["w"], "resources": {"cpu": 1}}
            training = {"name": "train", "gang": True, "roles": {"worker": role}}
            world.submit(f"low{number}", check_workflow({"name": "low", "stages": [training]}))
        for number in range(6):
            world.turn()
            task = {"name": "t", "scatter": {"count": 5}, "command": ["x"], "resources": {"cpu": 1}}
            world.submit(f"high{number}", check_workflow({"name": "high", "priority": 1, "stages": [task]}))
        world.run()
        world.finished()
        assert set(world.sql.terminal.values()) == {"SUCCEEDED"}
        worlds.append(world)
    assert sum(world.seen["given back"] for world in worlds) >= 12


@settings(parent=RELAXED, max_examples=worlds(few=15, many=120))
@given(documents(), st.integers(0, 2**32))
def test_what_failed_can_be_tried_again(document: dict[str, Any], seed: int) -> None:
    """A retry of a failed workflow runs what did not succeed, and nothing that did."""
    for stage in document["stages"]:
        stage.pop("policies", None)  # what was told to ignore a failure lacks its output for ever
    world = World(NODES, seed, Chances(fail=0.3))
    world.submit("w0", check_workflow(clean(document)))
    world.run()
    if world.sql.terminal["w0"] != "FAILED":
        return
    done = {
        key
        for key, row in world.sql.tasks.items()
        if row.state == TaskState.SUCCEEDED and not _in_gang(document, key[1])
    }
    launched = Counter(name.rsplit("-", 1)[0] for name in world.ever)
    world.chances = Chances()
    world.retry("w0")
    world.run()
    world.finished()
    again = Counter(name.rsplit("-", 1)[0] for name in world.ever) - launched
    for _, stage, index in done:
        assert again[f"fs-w0-s{stage}-{index}"] == 0
    assert world.sql.terminal["w0"] == "SUCCEEDED", [
        (r.state, r.reason, r.counts) for r in world.sql.stages.values()
    ]


def _in_gang(document: dict[str, Any], stage: int) -> bool:
    return bool(document["stages"][stage].get("gang"))


def test_the_bad_world_is_bad() -> None:
    """The misbehaviours really happen: a green run in which nothing went wrong would prove nothing."""
    document = {
        "name": "w",
        "stages": [
            {
                "name": "a",
                "scatter": {"count": 40},
                "command": ["x"],
                "outputs": [{"name": "out", "path": "o"}],
                "retry": {"attempts": 9},
            },
            {
                "name": "b",
                "scatter": {"count": 40},
                "command": ["x"],
                "retry": {"attempts": 9},
                "inputs": [
                    {"name": "i", "from": "a.out", "match": "index"},
                    {"name": "r", "uri": "s3://ref/x", "size": 9},
                ],
            },
            {
                "name": "c",
                "command": ["x"],
                "retry": {"attempts": 9},
                "inputs": [{"name": "i", "from": "a.out"}],
            },
        ],
    }
    chances = Chances(fail=0.1, gone=0.1, crash=0.15, drop=0.1, replica_lost=0.2, repeat=0.2)
    worlds = [run_world([document], seed, chances) for seed in range(3)]
    for what in (
        "dropped",
        "crash before commit",
        "crash after commit",
        "crash after launch",
        "transfer",
        "replica lost",
    ):
        assert sum(world.seen[what] for world in worlds) > 0, what


@settings(parent=RELAXED, max_examples=worlds(few=15, many=160))
@given(st.lists(documents(), min_size=2, max_size=4), st.integers(0, 2**32), st.booleans())
def test_datasets_that_are_forgotten_change_no_decision(
    docs: list[dict[str, Any]], seed: int, remote: bool
) -> None:
    """An engine that sweeps its catalogue after each step starts the same pods at the same times as one that never does."""
    chances = Chances(fail=0.1, gone=0.1, cancel=0.02, transfer_fails=0.1, replica_lost=0.2, repeat=0.2)
    nodes = [replace(node, cache_bytes=30_000_000 * (seed % 3)) for node in NODES]
    ends = []
    for sweeps in (False, True):
        world = World(nodes, seed, chances, remote_reads=remote, sweeps=sweeps)
        for number, document in enumerate(docs):
            world.submit(f"w{number}", check_workflow(clean(document)))
            world.turn()
        world.run()
        world.finished()
        ends.append((world.now, world.starts, world.sql.terminal, world.sql.replicas))
    assert ends[0] == ends[1]


@settings(parent=RELAXED, max_examples=worlds(few=15, many=160))
@given(st.lists(documents(), min_size=2, max_size=4), st.integers(0, 2**32))
def test_who_makes_way_for_others_loses_nothing_but_time(docs: list[dict[str, Any]], seed: int) -> None:
    """Pods that are taken away start, end and linger as they like, commits fail and the service dies at every point in between:
    all workflows succeed, no attempt is charged, no pod runs twice, and a group that waits for its victims gets no more of them.
    """
    for number, document in enumerate(docs):
        document["priority"] = number
    world = run_world(docs, seed, Chances(crash=0.15, drop=0.15, repeat=0.2, lingers=0.7))
    assert set(world.sql.terminal.values()) == {"SUCCEEDED"}
    assert all(row.charged == 0 for row in world.sql.tasks.values())


def test_the_worlds_above_do_take_pods_away() -> None:
    """A bag of low priority, then a gang of higher: under every seed somebody is taken away, and some end well before."""
    seen: Counter[str] = Counter()
    for seed in range(40):
        world = World(NODES, seed, Chances(crash=0.2, drop=0.2, lingers=0.8))
        many = {"name": "s", "scatter": {"count": 14}, "command": ["x"], "resources": {"cpu": 1}}
        ring = {"replicas": 9, "command": ["x"], "resources": {"cpu": 1}}
        world.submit("low", check_workflow({"name": "low", "stages": [many]}))
        world.turn()
        high = {"name": "g", "gang": True, "roles": {"worker": ring}}
        world.submit("high", check_workflow({"name": "high", "priority": 3, "stages": [high]}))
        world.run()
        world.finished()
        assert set(world.sql.terminal.values()) == {"SUCCEEDED"}
        seen += world.seen
    assert seen["released"] > 200
    assert seen["ended while being taken away"] > 20
    assert seen["crash after commit"] > 20


SMALL = [NodeInfo(f"n{i}", 4_000, 4 << 30, rack=f"r{i // 2}", cache_bytes=16_000_000) for i in range(3)]


@settings(RELAXED, max_examples=worlds(few=15, many=160))
@given(st.lists(documents(), min_size=1, max_size=3), st.integers(0, 2**32))
def test_in_a_bad_world_with_full_caches_every_promise_holds_and_everything_ends(
    docs: list[dict[str, Any]], seed: int
) -> None:
    """Caches hold two inputs or some outputs: copies go and come again, nothing that is read goes, nobody waits for ever."""
    chances = Chances(fail=0.05, gone=0.05, crash=0.1, drop=0.1, cancel=0.02, transfer_fails=0.1, repeat=0.2)
    world = World(SMALL, seed, chances)
    for number, document in enumerate(docs):
        world.submit(f"w{number}", check_workflow(clean(document)))
    world.run()
    world.finished()


def test_full_caches_do_drop_copies_and_know_those_again_that_outlived_a_crash() -> None:
    """What the test above is about happens in it: some seeds, the same documents."""
    seen: Counter[str] = Counter()
    stage = {"inputs": [{"name": "i", "uri": "s3://lab/{index}", "size": 5_000_000}], "scatter": {"count": 6}}
    for seed in range(8):
        world = World([replace(SMALL[0], cache_bytes=11_000_000)], seed, Chances(crash=0.4))
        document = {
            "name": "w",
            "stages": [{"name": "a", "command": ["x"], **stage}, {"name": "b", "command": ["x"], **stage}],
        }
        world.submit("w0", check_workflow(document))
        world.run()
        world.finished()
        seen += world.seen
    assert seen["dropped copy"] > 5
    assert seen["copy known again"] > 0


#: Links of 1 GB/s and disks of 100 MB/s: what up to nine tasks read is read where it lies.
LINKED = [
    replace(each, nic_in_rate=1_000_000_000, nic_out_rate=1_000_000_000, disk_rate=100_000_000)
    for each in SMALL
]


@settings(RELAXED, max_examples=worlds(few=15, many=160))
@given(st.lists(documents(), min_size=1, max_size=3), st.integers(0, 2**32))
def test_in_a_bad_world_with_remote_reads_every_promise_holds_and_everything_ends(
    docs: list[dict[str, Any]], seed: int
) -> None:
    """Caches are full, sources lose what is read there, the service crashes: nothing that is read elsewhere is dropped."""
    chances = Chances(
        fail=0.05,
        gone=0.05,
        crash=0.1,
        drop=0.1,
        cancel=0.02,
        transfer_fails=0.1,
        repeat=0.2,
        replica_lost=0.05,
    )
    world = World(LINKED, seed, chances, remote_reads=True)
    for number, document in enumerate(docs):
        world.submit(f"w{number}", check_workflow(clean(document)))
    world.run()
    world.finished()


def test_the_world_above_does_read_remotely() -> None:
    """Six tasks write, one reads all: on eight seeds what lies on other nodes is read there, also after crashes."""
    seen: Counter[str] = Counter()
    write = {"name": "a", "scatter": {"count": 6}, "command": ["x"], "resources": {"cpu": 2}}
    stages = [
        {**write, "outputs": [{"name": "o", "path": "o"}]},
        {"name": "b", "command": ["x"], "inputs": [{"name": "i", "from": "a.o"}]},
    ]
    for seed in range(8):
        world = World(LINKED, seed, Chances(crash=0.3, replica_lost=0.1), remote_reads=True)
        world.submit("w0", check_workflow({"name": "w", "stages": stages}))
        world.run()
        world.finished()
        assert world.sql.terminal == {"w0": "SUCCEEDED"}
        seen += world.seen
    assert seen["remote read"] > 15
    assert seen["transfer"] == 0
