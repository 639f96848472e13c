"""What others use of network cards leaves less for copies. Literal stories: cards of 100 MB/s each way."""

from __future__ import annotations

from flowsched.executor.nodes import Load, LoadMeasured
from flowsched.executor.protocol import NodeChanged
from flowsched.scheduling.policy.framework import Storage
from flowsched.values import replace
from tests.engine.scene import Scene, node
from tests.engine.test_demand import MB


def cards(count: int = 1) -> Scene:
    """Nodes whose cards carry 100 MB/s each way."""
    return Scene(*(node(f"n{at}", nic_in_rate=100 * MB, nic_out_rate=100 * MB) for at in range(count)))


def measure(scene: Scene, name: str, rate: int, ours: int, times: int = 1) -> None:
    """One way of a card is measured, every five seconds; MB/s."""
    for _ in range(times):
        scene.tell(LoadMeasured(links=(Load(name, rate * MB, ours * MB),)), after=5_000)


def test_what_others_bring_leaves_less_for_copies() -> None:
    """Of 90 MB/s that come 30 are copies: others use 60, so that 100 become 41 (60 is 58.7 in three binary digits)."""
    scene = cards()
    measure(scene, "n0/in", 90, ours=30, times=20)
    assert scene.state.cluster.others == {"n0/in": 59_809_726}
    assert scene.state.cluster.snapshot.nic_in.tolist() == [41_279_744]
    assert scene.state.cluster.snapshot.nic_out.tolist() == [100 * MB]


def test_what_others_send_leaves_less_for_copies() -> None:
    """The other way is a link of its own."""
    scene = cards()
    measure(scene, "n0/out", 60, ours=0, times=20)
    assert scene.state.cluster.snapshot.nic_in.tolist() == [100 * MB]
    assert scene.state.cluster.snapshot.nic_out.tolist() == [41_279_744]


def test_each_way_and_the_disk_are_measured_by_their_own_rates() -> None:
    """4 MB/s are nothing beside the 100 that may come, and much beside the 20 that may go. All is told in one event."""
    scene = Scene(node(nic_in_rate=100 * MB, nic_out_rate=20 * MB, disk_rate=50 * MB))
    links = tuple(Load(f"n0/{way}", 4 * MB, 0) for way in ("in", "out"))
    for _ in range(40):
        scene.tell(LoadMeasured(nodes=(Load("n0", 4 * MB, 0),), links=links), after=5_000)
    info = scene.state.cluster.snapshot.info(0)
    assert info.nic_in_busy_rate == 0
    assert (info.nic_out_busy_rate, info.disk_busy_rate) == (4_194_304, 4_194_304)


def test_a_disk_and_a_card_that_are_told_together_both_count() -> None:
    """A quarter of what others use is believed at once, of either."""
    scene = cards()
    scene.tell(
        LoadMeasured(nodes=(Load("n0", 40 * MB, 0),), links=(Load("n0/out", 40 * MB, 0),)), after=5_000
    )
    info = scene.state.cluster.snapshot.info(0)
    assert (info.disk_busy_rate, info.nic_in_busy_rate, info.nic_out_busy_rate) == (0, 0, 10_485_760)
    scene.tell(
        LoadMeasured(nodes=(Load("n0", 400 * MB, 0),), links=(Load("n0/in", 40 * MB, 0),)), after=5_000
    )
    info = scene.state.cluster.snapshot.info(0)
    assert (info.disk_busy_rate, info.nic_in_busy_rate) == (100_663_296, 10_485_760)


def test_our_own_copies_are_nobody_elses() -> None:
    """A card that copies fill is as good as it was."""
    scene = cards()
    measure(scene, "n0/in", 100, ours=98, times=20)
    assert scene.state.cluster.snapshot.nic_in.tolist() == [100 * MB]


def test_a_card_that_others_fill_still_carries_a_tenth() -> None:
    """Nobody waits for ever; and when they leave it is given back."""
    scene = cards()
    measure(scene, "n0/in", 100, ours=0, times=40)
    assert scene.state.cluster.snapshot.nic_in.tolist() == [10 * MB]
    measure(scene, "n0/in", 0, ours=0, times=40)
    assert scene.state.cluster.snapshot.nic_in.tolist() == [100 * MB]


def test_what_was_measured_outlives_news_of_the_node() -> None:
    """Executors tell nodes anew for many reasons, and know nothing of loads."""
    scene = cards()
    measure(scene, "n0/in", 60, ours=0, times=20)
    scene.tell(NodeChanged(node("n0", cpu=4, nic_in_rate=100 * MB, nic_out_rate=100 * MB)))
    assert scene.state.cluster.snapshot.nic_in.tolist() == [41_279_744]


def test_a_task_goes_where_its_copy_comes_sooner() -> None:
    """400 MB come from outside to either node; of one's card others use 80 MB/s of 100."""
    for busy, goes_to in (("n0/in", "n1"), ("n1/in", "n0")):
        scene = cards(2)
        measure(scene, busy, 80, ours=0, times=20)
        reads = [{"name": "i", "uri": "s3://lab/x", "size": 400 * MB}]
        scene.submit("w", {"name": "a", "command": ["x"], "inputs": reads})
        assert [order.dest for order in scene.last.transfers] == [goes_to]


def test_a_link_of_a_node_that_is_gone_is_passed_over() -> None:
    """And a way that is none."""
    scene = cards()
    measure(scene, "gone/in", 60, ours=0)
    measure(scene, "n0/sideways", 60, ours=0)
    assert scene.state.cluster.others == {}


def test_what_is_measured_of_a_mount_is_the_storages_that_has_it_as_its_source() -> None:
    """Agents know `nas:/lab`, documents say `nfs`; a mount that no storage names is nobody's."""
    scene = cards()
    storages = (Storage("nfs", read_rate=1_000 * MB, source="nas:/lab"),)
    scene.state.policy.profile = replace(scene.state.policy.profile, storages=storages)
    loads = (Load("nas:/lab/read", 400 * MB, 0), Load("nas:/home/read", 400 * MB, 0))
    for _ in range(20):
        scene.tell(LoadMeasured(storages=loads), after=5_000)
    assert scene.state.cluster.snapshot.direct.others == {"nfs/read": 402_653_184}
