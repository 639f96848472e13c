"""Why a node was chosen: the terms of its cost, and the two nodes that came next."""

from __future__ import annotations

from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.explain.recording import plan_bytes
from flowsched.scheduling.plan import Choice, NodeCost, Plan
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import PROFILES
from flowsched.scheduling.policy.plugins.locality import COPY_OVERHEAD_MS
from flowsched.scheduling.queues.tree import QueueTree
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.data import Catalogue
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement
from tests.scheduling.scheduling_cases import GIB, bag, cluster, gang, run, shape

OURS = PROFILES["flowsched"]
LINK = 100_000_000
#: What the copy of 1 GB over LINK costs: its time, half of it for others, and the overhead of any copy.
COPY_MS = 10_000 + 5_000 + COPY_OVERHEAD_MS


def planned(snapshot: Snapshot, catalogue: Catalogue, *groups: PodGroup) -> Plan:
    return cycle(snapshot, catalogue, QueueTree(), groups, OURS, 1_000_000)


def choices(snapshot: Snapshot, catalogue: Catalogue, group: PodGroup) -> tuple[Choice | None, ...]:
    (placement,) = planned(snapshot, catalogue, group).placements
    return placement.choices


def lab(*cores: int, io: int = 0) -> tuple[Snapshot, Catalogue, int]:
    """Some nodes behind equal links, and a dataset of 1 GB on the first of them."""
    snapshot = cluster(*cores, nic_in_rate=LINK, nic_out_rate=LINK, disk_rate=io)
    catalogue = Catalogue()
    data = catalogue.intern("s3://lab/reads", 1_000_000_000)
    catalogue.add_replica(data, 0)
    return snapshot, catalogue, data


def test_a_pod_beside_its_inputs_says_what_a_copy_would_cost() -> None:
    """On n0, where its input is; the two nodes that came next would have to copy 1 GB first."""
    snapshot, catalogue, data = lab(4, 4, 4)
    (choice,) = choices(snapshot, catalogue, bag(1, inputs=(data,)))
    copy = (("stage-in", COPY_MS),)
    assert choice == Choice({0: (("stage-in", 0),)}, (NodeCost(1, copy), NodeCost(2, copy)))


def test_a_full_node_with_the_data_is_told_as_full() -> None:
    """n0 has the input and no core: another holder has, and n0 is named."""
    snapshot, catalogue, data = lab(1, 4, 4)
    catalogue.add_replica(data, 2)
    run(snapshot, "other", 0, 1)
    (choice,) = choices(snapshot, catalogue, bag(1, inputs=(data,)))
    assert choice is not None
    assert dict(choice.nodes) == {2: (("stage-in", 0),)}
    assert choice.others[0] == NodeCost(0, (("stage-in", 0),), full=True)


def test_a_copy_is_told_with_the_nodes_that_were_dearer() -> None:
    """The only holder is full for long: the copy goes to the node that has half of the bytes, and the third would copy all."""
    snapshot, catalogue, data = lab(1, 4, 4)
    more = catalogue.intern("s3://lab/index", 1_000_000_000)
    catalogue.add_replica(more, 0)
    catalogue.add_replica(more, 1)
    run(snapshot, "other", 0, 1, until_ms=1_000_000_000)
    (choice,) = choices(snapshot, catalogue, bag(1, inputs=(data, more)))
    assert choice is not None
    assert dict(choice.nodes) == {1: (("stage-in", COPY_MS),)}
    assert choice.others == (
        NodeCost(0, (("stage-in", 0),), full=True),
        NodeCost(2, (("stage-in", 2 * COPY_MS - COPY_OVERHEAD_MS),)),
    )


def test_each_cost_has_its_name() -> None:
    """The slow-down by a neighbour on the disk stands beside the data."""
    snapshot, catalogue, data = lab(4, 4, io=LINK)
    heavy = shape(io=1_000_000, io_bytes=1_000_000_000)
    run(snapshot, "other", 0, 1, io_bytes=1_000_000_000)
    (choice,) = choices(snapshot, catalogue, bag(1, what=heavy, inputs=(data,)))
    assert choice is not None
    terms = dict(choice.nodes) | {each.node: each.terms for each in choice.others}
    assert terms[0] == (("stage-in", 0), ("slowdown", 20_000))
    assert terms[1] == (("stage-in", COPY_MS), ("slowdown", 0))


def test_a_gang_tells_of_each_of_its_nodes() -> None:
    """Two members on two nodes: both are told, and the third node came next."""
    snapshot, catalogue, data = lab(1, 1, 1)
    (choice,) = choices(snapshot, catalogue, gang(1, 2, inputs=(data,)))
    assert choice is not None
    assert dict(choice.nodes) == {0: (("stage-in", 0),), 1: (("stage-in", COPY_MS),)}
    assert choice.others == (NodeCost(2, (("stage-in", COPY_MS),)),)


def test_a_pod_that_costs_nothing_anywhere_has_no_choice() -> None:
    """Only packing was weighed, and nothing is spent on telling so."""
    snapshot, catalogue, _ = lab(4, 4)
    assert choices(snapshot, catalogue, bag(1, 3)) == ()


def test_a_recorded_plan_holds_decisions_only() -> None:
    """Recordings of other versions, which kept no choices, stay equal."""
    snapshot, catalogue, data = lab(4, 4)
    raw = plan_bytes(planned(snapshot, catalogue, bag(1, inputs=(data,))))
    assert b"placements" in raw
    assert b"choices" not in raw


def test_memory_decides_what_is_full() -> None:
    """n0 has the input, free cores, and not the memory."""
    snapshot, catalogue, data = lab(4, 4)
    catalogue.add_replica(data, 1)
    snapshot.claim(Claim("large", 0, (0, 16 * GIB), ClaimKind.RUNNING, "default", 0, None), Statement())
    (choice,) = choices(snapshot, catalogue, bag(1, inputs=(data,)))
    assert choice is not None
    assert choice.others[0] == NodeCost(0, (("stage-in", 0),), full=True)


def test_what_a_bag_says_in_two_turns_is_one_choice() -> None:
    """Two of three pods fit beside the input, the third copies: for it n0 was next, and full; for them n1 was."""
    snapshot, catalogue, data = lab(2, 4, 4)
    (choice,) = choices(snapshot, catalogue, bag(1, 3, inputs=(data,), runtime_ms=10_000_000))
    assert choice is not None
    assert set(choice.nodes) == {0, 1}
    assert [each.node for each in choice.cheapest(3)] == [0, 1, 2]
