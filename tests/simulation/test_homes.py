"""Outputs that are read together are written together, or brought together while others still compute."""

from __future__ import annotations

from typing import Any

from flowsched.simulation.clusters import SimulatedCluster, SimulatedNode
from flowsched.simulation.documents import from_document
from flowsched.simulation.policies import simulated
from flowsched.simulation.world import World
from flowsched.values import replace
from flowsched.workflow.document.decode import check_workflow

MB = 1_000_000


def nodes(count: int, cores: int) -> SimulatedCluster:
    """Nodes with links of 100 MB/s."""
    return SimulatedCluster(
        tuple(SimulatedNode(f"n{at}", cores, nic_in=100 * MB, nic_out=100 * MB) for at in range(count))
    )


def gather(width: int, chunks: int, output: int, runtime: str = "5s") -> dict[str, Any]:
    """`width` tasks write `output` bytes each; `chunks` tasks read them in equal parts."""
    return {
        "name": "gather",
        "stages": [
            {
                "name": "write",
                "scatter": {"count": width},
                "command": ["write"],
                "outputs": [{"name": "part", "path": "part"}],
                "estimate": {"runtime": runtime, "output": output},
            },
            {
                "name": "combine",
                "scatter": {"count": chunks},
                "command": ["combine"],
                "inputs": [
                    {"name": "parts", "from": "write.part", "match": "chunk" if chunks > 1 else "all"}
                ],
                "estimate": {"runtime": "1s"},
            },
        ],
    }


def run(document: dict[str, Any], cluster: SimulatedCluster) -> World:
    """Simulate it under the service's own policy."""
    return simulated("flowsched", cluster, [from_document(check_workflow(document), "w", "w.json")])


def test_what_is_read_together_is_written_on_one_node() -> None:
    """Sixteen tasks in chunks of four on four nodes of four cores: every chunk on a node of its own, and nothing moves."""
    world = run(gather(16, 4, 500 * MB), nodes(4, 4))
    at = {line["task"]: line["node"] for line in world.lines if "task" in line}
    for chunk in range(4):
        assert {at[f"write/{shard}"] for shard in range(4 * chunk, 4 * chunk + 4)} == {at[f"combine/{chunk}"]}
    assert [line for line in world.lines if "transfer" in line] == []


def test_who_would_bring_its_output_later_waits_for_room_at_home() -> None:
    """Eight tasks of a second, 1 GB each, one gather, two nodes of two cores: a copy takes 10 s, waiting three times a second."""
    world = run(gather(8, 1, 1000 * MB, "1s"), nodes(2, 2))
    assert {line["node"] for line in world.lines if "task" in line} == {"n0"}


def test_what_was_written_elsewhere_is_pushed_home_before_it_is_asked_for() -> None:
    """Tasks of a minute are worth running elsewhere: what they wrote has moved when the last has ended, or moves then."""
    world = run(gather(12, 1, 200 * MB, "60s"), nodes(3, 2))
    pushed = [line for line in world.lines if line.get("kind") == "push"]
    combine = next(line for line in world.lines if line.get("task") == "combine/0")
    assert pushed
    assert {line["to"] for line in pushed} == {combine["node"]}
    assert min(line["start"] for line in pushed) < combine["ready"]


def test_small_outputs_have_no_home() -> None:
    """A kilobyte each is nothing to plan for: the tasks spread over the cores there are, at once."""
    world = run(gather(8, 1, 1000, "10s"), nodes(2, 4))
    starts = {line["start"] for line in world.lines if line.get("task", "").startswith("write")}
    assert starts == {0.0}


def test_most_readers_say_where_outputs_are_gathered() -> None:
    """Two pairs of writers; each pair has six readers, and one task reads all four. Were its home everybody's, one of two nodes
    would have all the work: so each pair is written, and read by its six, on a node of its own.
    """
    wrote = {
        "command": ["x"],
        "estimate": {"runtime": "5s", "output": 500 * MB},
        "outputs": [{"name": "o", "path": "o"}],
    }
    stages: list[dict[str, Any]] = [{"name": name, **wrote} for name in ("a1", "a2", "b1", "b2")]
    stages.append({
        "name": "both", "command": ["x"], "estimate": {"runtime": "5s"},
        "inputs": [{"name": each, "from": f"{each}.o"} for each in ("a1", "a2", "b1", "b2")],
    })  # fmt: skip
    for pair in ("a", "b"):
        inputs = [{"name": each, "from": f"{each}.o"} for each in (f"{pair}1", f"{pair}2")]
        six = {"scatter": {"count": 6}, "command": ["x"], "estimate": {"runtime": "5s"}, "inputs": inputs}
        stages.append({"name": f"read-{pair}", **six})
    world = run({"name": "pairs", "stages": stages}, nodes(2, 8))
    at = {line["task"]: line["node"] for line in world.lines if "task" in line}
    assert at["a1/0"] == at["a2/0"] != at["b1/0"] == at["b2/0"]
    for pair in ("a", "b"):
        assert {at[f"read-{pair}/{shard}"] for shard in range(6)} == {at[f"{pair}1/0"]}


def wrote(name: str, width: int, output: int, runtime: str = "5s", **more: Any) -> dict[str, Any]:
    """A stage whose tasks write `output` bytes each."""
    return {
        "name": name,
        "command": ["x"],
        "scatter": {"count": width},
        "outputs": [{"name": "o", "path": "o"}],
        "estimate": {"runtime": runtime, "output": output},
        **more,
    }


def reads(stage: str, match: str = "all") -> dict[str, Any]:
    """An input: what another stage wrote."""
    return {"name": stage, "from": f"{stage}.o", "match": match}


def where(world: World) -> dict[str, str]:
    """Task -> node."""
    return {line["task"]: line["node"] for line in world.lines if "task" in line}


def test_who_waits_for_a_node_counts_what_its_disk_has_to_do() -> None:
    """Forty tasks read 500 MB that one node has, and write 2 GB each: its disk takes 160 s for that. A copy to each of three
    others takes 5 s, so they wait for cores of that node for no longer than that is worth, although one of it is always free.
    """
    io = {"write": "2G"}
    stages = [
        wrote("one", 1, 500 * MB, "1s"),
        wrote("many", 40, 2000 * MB, "2s", inputs=[reads("one")], io=io),
    ]
    world = run({"name": "fork", "stages": stages}, nodes(4, 32))
    at = where(world)
    shares = [sum(at[f"many/{shard}"] == name for shard in range(40)) for name in ("n0", "n1", "n2", "n3")]
    assert min(shares) >= 5
    assert max(line["end"] for line in world.lines) < 90


def test_pods_of_one_look_pay_for_each_other_on_the_link_home() -> None:
    """Forty tasks whose inputs come from outside, 300 MB each, write 1 GB: the link of the node where all is gathered takes 10 s
    for each that runs elsewhere, and 3 s for each input of one that runs there. All are placed in one look, nearly all there.
    """
    own = [{"name": "i", "uri": "s3://lab/{index}", "size": "300M"}]
    stages = [wrote("make", 40, 1000 * MB, "2s", inputs=own), wrote("take", 1, MB, inputs=[reads("make")])]
    at = where(run({"name": "gather", "stages": stages}, nodes(4, 64)))
    assert sum(at[f"make/{shard}"] == at["take/0"] for shard in range(40)) >= 36


def test_few_links_that_carry_much_go_before_many_that_carry_little() -> None:
    """Each of sixteen outputs is read with a small partner, and one task reads all sixteen: 1.6 s on the link of any node for each
    pair, and 24 s on one for all. So they are written where that one will run.
    """
    stages = [
        wrote("big", 16, 150 * MB),
        wrote("small", 16, 10 * MB),
        wrote("pair", 16, 1, inputs=[reads("big", "index"), reads("small", "index")]),
        wrote("all", 1, 1, inputs=[reads("big")]),
    ]
    at = where(run({"name": "both", "stages": stages}, nodes(4, 16)))
    assert {at[f"big/{shard}"] for shard in range(16)} == {at["all/0"]}


def moved(world: World) -> int:
    """Megabytes."""
    return int(sum(line["bytes"] for line in world.lines if "transfer" in line)) // MB


def test_who_gathers_for_a_gatherer_is_gathered_near_it() -> None:
    """Eight tasks gather two outputs each and write 2 GB for one that gathers theirs. On nodes of their own they would move 14 GB;
    one runs elsewhere, since its half minute is worth more.
    """
    stages = [
        wrote("part", 16, 400 * MB),
        wrote("half", 8, 2000 * MB, "30s", inputs=[reads("part", "chunk")]),
        wrote("whole", 1, 1, inputs=[reads("half")]),
    ]
    world = run({"name": "tree", "stages": stages}, nodes(4, 8))
    at = where(world)
    assert sum(at[f"half/{shard}"] == at["whole/0"] for shard in range(8)) == 7
    assert moved(world) == 3600


def test_what_passes_through_one_reader_is_written_where_that_will_be_gathered() -> None:
    """A first stage writes 1 GB for each of a second, whose outputs of 1 GB one task gathers. 24 of each on four nodes of eight
    cores: all but a few of both stages run where the last will, and at most three outputs move.
    """
    stages = [
        wrote("first", 24, 1000 * MB),
        wrote("second", 24, 1000 * MB, inputs=[reads("first", "index")]),
        wrote("last", 1, 1, inputs=[reads("second")]),
    ]
    quick = [replace(each, disk=4_000 * MB) for each in nodes(4, 8).nodes]
    world = run({"name": "chains", "stages": stages}, SimulatedCluster(tuple(quick)))
    at = where(world)
    for stage in ("first", "second"):
        assert sum(at[f"{stage}/{shard}"] == at["last/0"] for shard in range(24)) >= 21
    assert moved(world) <= 3000


def test_outputs_that_leave_by_a_slow_link_stay_away_from_it() -> None:
    """Six tasks for three nodes of four cores, and what they write is gathered: four run where it is, two on the node whose link is
    as fast, none where a gigabyte takes 100 s to leave.
    """
    fast = SimulatedNode("n0", 4, nic_in=100 * MB, nic_out=100 * MB)
    slow = replace(fast, name="n1", nic_out=10 * MB)
    stages = [wrote("make", 6, 1000 * MB, "60s"), wrote("take", 1, MB, inputs=[reads("make")])]
    at = where(
        run({"name": "slow", "stages": stages}, SimulatedCluster((fast, slow, replace(fast, name="n2"))))
    )
    assert sorted(at[f"make/{shard}"] for shard in range(6)) == ["n0", "n0", "n0", "n0", "n2", "n2"]


def slow_disks(count: int, cores: int) -> SimulatedCluster:
    """Nodes with links of 100 MB/s and disks of 120 MB/s."""
    return replace(
        nodes(count, cores),
        nodes=tuple(replace(node, disk=120 * MB) for node in nodes(count, cores).nodes),
    )


def test_nobody_waits_for_a_home_whose_disk_has_more_to_do_than_its_link() -> None:
    """Forty tasks of 5 s write 500 MB each, for one that gathers them. What is written at home and what comes there is all written
    by one disk, which takes 167 s for it and as long to read it: who waits for room there has nothing gathered sooner.
    """
    stages = [wrote("make", 40, 500 * MB, "5s"), wrote("take", 1, 1, inputs=[reads("make")])]
    world = run({"name": "gather", "stages": stages}, slow_disks(4, 4))
    at = where(world)
    assert sum(at[f"make/{shard}"] == at["take/0"] for shard in range(40)) <= 16
    assert max(line["end"] for line in world.lines) < 290


def test_gatherers_have_homes_on_several_disks() -> None:
    """Four tasks gather 4 GB each and write as much for one last reader. Near its home they would all be on one disk of 120 MB/s,
    with 32 GB in all: they are on several, although some of what they write has to cross a link then. It saves a quarter.
    """
    stages: list[dict[str, Any]] = []
    for group in range(4):
        stages += [
            wrote(f"make{group}", 8, 500 * MB, "5s"),
            wrote(f"add{group}", 1, 4000 * MB, "5s", inputs=[reads(f"make{group}")]),
        ]
    stages.append(wrote("view", 1, 1, inputs=[reads(f"add{group}") for group in range(4)]))
    world = run({"name": "mosaic", "stages": stages}, slow_disks(4, 16))
    at = where(world)
    assert len({at[f"add{group}/0"] for group in range(4)}) >= 2
    assert max(line["end"] for line in world.lines) < 230
