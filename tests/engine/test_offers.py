"""What the backlog remembers of a stage is what it finds when it looks at each group again, in every round of random worlds."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from msgspec import structs

from flowsched.engine import admission, backlog
from flowsched.engine.backlog import Backlog, collect
from flowsched.engine.data.cache_values import Evictable
from flowsched.engine.data.gather_nodes import gathered_bytes
from flowsched.engine.events import LookedUp, NodeDrained, ProfileChanged, Tick
from flowsched.engine.predictor import is_new, written_bytes
from flowsched.engine.state import EngineState
from flowsched.engine.state.cluster import DrainOrder
from flowsched.engine.state.work import Offers
from flowsched.engine.step import step
from flowsched.executor.nodes import NodeInfo
from flowsched.values import replace
from flowsched.workflow.document.decode import check_workflow
from flowsched.workflow.estimates import Measured
from tests.engine.documents import clean, documents
from tests.engine.scene import Scene, calls_of, node
from tests.engine.world import Chances, World
from tests.soak import worlds

pytestmark = pytest.mark.soak

#: Bytes/s of links, by whether tasks read over them what lies on other nodes: they do where links are faster than disks.
LINKS = {False: 1 << 20, True: 10 << 30}
#: Tasks that read inputs of their own from outside: each is a bag.
SIXTY = {
    "name": "b",
    "command": ["x"],
    "scatter": {"count": 60},
    "inputs": [{"name": "i", "uri": "http://o/{index}", "size": 1_000}],
}
BAD = Chances(
    fail=0.1, oom=0.05, gone=0.1, crash=0.05, drop=0.1, cancel=0.02, transfer_fails=0.1, replica_lost=0.1
)  # fmt: skip


def described(backlog: Backlog) -> list[tuple[Any, ...]]:
    """All that a cycle is told, but the ranks, which depend on how many shards there were in earlier rounds."""
    return [
        (
            key,
            structs.replace(each.group, rank_ms=0),
            tuple(part.tolist() for part in each.tasks),
            each.demands,
        )
        for key, each in sorted(backlog.candidates.items())
    ]


def collected(state: EngineState, now: int, evictable: Evictable | None = None) -> Backlog:
    """As `collect`; each offer that it remembered is looked at again, group by group, compared, and remembered as it was."""
    backlog = collect(state, now, evictable)
    assert backlog.groups == {key: each.group for key, each in backlog.candidates.items()}
    kept, state.work.offers = state.work.offers, Offers()
    state.data.coming.clear()
    state.data.coming_from.clear()
    for (workflow, number), gathered in state.data.gathered.items():
        run = state.work.runs[workflow]
        anew = [count * written_bytes(state, run, run.stages[at]) for at, count in gathered.parents.items()]
        assert gathered_bytes(state, run, run.stages[number]) == sum(anew)
    assert described(collect(state, now, evictable)) == described(backlog)
    assert kept.routes == state.work.offers.routes
    state.work.offers = kept
    return backlog


@settings(
    max_examples=worlds(few=15, many=300),
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.lists(documents(), min_size=2, max_size=3), st.integers(0, 2**32), st.booleans(), st.booleans())
def test_what_is_remembered_of_an_offer_is_what_would_be_found_again(
    docs: list[dict[str, Any]], seed: int, bad: bool, remote: bool
) -> None:
    """Replicas come and go, tasks are learned from, promises are made, groups are staged, steps are undone."""
    link = LINKS[remote]
    nodes = [
        NodeInfo(f"n{i}", 4_000, 4 << 30, disk_rate=100 << 20, nic_in_rate=link, nic_out_rate=link)
        for i in range(3)
    ]
    world = World(nodes, seed, BAD if bad else Chances(), "flowsched", remote_reads=remote)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission, "collect", collected)
        patch.setattr(backlog, "is_new", lambda *_: True)  # else estimates may be older than what was learned
        for number, document in enumerate(docs):
            world.submit(f"w{number}", check_workflow(clean(document)))
        world.run()
    world.finished()


def test_shards_that_wait_as_before_are_offered_as_they_were() -> None:
    """Each reads the output of a shard of its own. Two of eight have room. When one ends the next starts, and the requests of
    four others are the same objects; a start is reserved for the fifth.
    """
    scene = Scene(node(cpu=8))
    write = {"name": "a", "command": ["x"], "scatter": {"count": 8}, "outputs": [{"name": "o", "path": "o"}]}
    read = {
        "name": "b",
        "command": ["x"],
        "scatter": {"count": 8},
        "inputs": [{"name": "i", "from": "a.o", "match": "index"}],
    }
    read |= {"resources": {"cpu": 4}, "estimate": {"runtime": "60s"}}
    scene.submit("w", {**write, "resources": {"cpu": 1}}, read)
    writers = scene.launched
    scene.start(*writers)
    scene.end(*writers, after=60_000)
    first, second = scene.launched
    scene.start(first, second)
    before = dict(collect(scene.state, scene.now).candidates)
    scene.end(first, after=60_000)
    after = collect(scene.state, scene.now).candidates
    kept = [key for key in after if after[key] is before.get(key)]
    assert (len(before), len(after), len(kept)) == (6, 5, 4)


def test_what_an_end_teaches_makes_no_bag_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 tasks read outputs of their own, one runs at a time. It takes 200 s instead of 60: the others expect that, and each keeps
    the rest of what was found out about it. Only what begins to wait is looked at.
    """
    looked_at = []
    real = backlog.dataset_ids
    scene = Scene(node(cpu=1))
    write = {"name": "a", "command": ["x"], "scatter": {"count": 40}, "outputs": [{"name": "o", "path": "o"}]}
    read = {
        "name": "b",
        "command": ["x"],
        "scatter": {"count": 40},
        "inputs": [{"name": "i", "from": "a.o", "match": "index"}],
    }
    scene.submit("w", write, {**read, "estimate": {"runtime": "60s"}})
    for _ in range(40):
        (writer,) = scene.launched
        scene.start(writer)
        scene.end(writer)
    (first,) = scene.launched
    scene.start(first)
    before = [each.group.runtime_ms for each in collect(scene.state, scene.now).candidates.values()]
    monkeypatch.setattr(backlog, "dataset_ids", lambda *a, **more: looked_at.append(a[3]) or real(*a, **more))
    scene.end(first, after=200_000)
    after = [each.group.runtime_ms for each in collect(scene.state, scene.now).candidates.values()]
    assert (before, after, looked_at) == ([60_000] * 39, [200_000] * 38, [])


@pytest.mark.parametrize("own", [False, True])
def test_a_stage_of_which_nothing_changed_costs_a_few_comparisons(own: bool) -> None:
    """Of 100 stages one more call each than of 10, and so few that none of their facts is found out again."""
    match = {"match": "index"} if own else {}
    calls = []
    scenes = {count: Scene(node(cpu=1)) for count in (10, 100)}
    for count, scene in scenes.items():
        write = {"name": "a", "command": ["x"], "outputs": [{"name": "o", "path": "o"}]}
        inputs = [{"name": "i", "from": "a.o", **match}]
        stages = [{"name": f"b{at}", "command": ["x"], "inputs": inputs} for at in range(count)]
        scene.submit("w", write, *stages)
        scene.start("fs-w-a-0-0")
        scene.end("fs-w-a-0-0")
        collect(scene.state, scene.now)
        calls.append(calls_of(partial(collect, scene.state, scene.now))[0])
    assert (calls[1] - calls[0]) // 90 <= 13


def test_an_undone_step_leaves_no_offer_of_it_behind() -> None:
    """A task ends and the next starts; then neither was written. Both wait and run as before, and expect what they expected."""
    scene = Scene(node(cpu=4))
    write, read = index_pair(
        {"resources": {"cpu": 1}}, {"resources": {"cpu": 4}, "estimate": {"runtime": "60s"}}
    )
    scene.submit("w", {**write, "scatter": {"count": 4}}, {**read, "scatter": {"count": 4}})
    writers = scene.launched
    scene.start(*writers)
    scene.end(*writers)
    scene.start("fs-w-b-0-0")
    before = described(collect(scene.state, scene.now))
    undone = step(scene.state, [scene.ending("fs-w-b-0-0")], scene.now + 500_000)
    assert len(described(collect(scene.state, scene.now))) == len(before) - 1
    undone.drop()
    assert described(collect(scene.state, scene.now)) == before


def test_a_measurement_of_a_kind_changes_what_its_waiting_tasks_ask_for() -> None:
    """A kind's learned use of disks is corrected: the waiting bags of that kind are looked at again, those of others are not."""
    scene = Scene(node(cpu=1))
    scene.submit(
        "w", {"name": "a", "command": ["x"]}, {"name": "b", "command": ["x"]}, {"name": "c", "command": ["x"]}
    )
    collect(scene.state, scene.now)
    scene.state.work.outdate_kind(("w", "c"))
    kept = {cached.kind: cached.basis is not None for cached in scene.state.work.offers.bags.values()}
    assert kept == {("w", "b"): True, ("w", "c"): False}


def test_a_stage_that_waits_as_one_bag_is_divided_when_its_gather_becomes_known() -> None:
    """Two runs of one workflow: the first writer of the first one shows what such tasks write. Those of the other are offered by
    the two shards that read them, though none of them has changed.
    """
    links = {"nic_in_rate": 1_000_000_000, "disk_rate": 100 << 20}
    scene = Scene(node("n0", **links), node("n1", **links))
    write = {
        "name": "a", "command": ["x"], "scatter": {"count": 4}, "resources": {"cpu": 4},
        "estimate": {"runtime": "60s"}, "outputs": [{"name": "o", "path": "o"}],
    }  # fmt: skip
    read = {
        "name": "b",
        "command": ["x"],
        "scatter": {"count": 2},
        "inputs": [{"name": "i", "from": "a.o", "match": "chunk"}],
    }
    scene.submit("w1", write, read, name="same")
    scene.submit("w2", write, read, name="same")
    scene.start(*sorted(scene.pods))
    scene.end(sorted(scene.pods)[0], after=60_000, size=10_000_000_000)
    waiting = [
        each.tasks[0].tolist()
        for each in collect(scene.state, scene.now).candidates.values()
        if each.run.id == "w2"
    ]
    assert waiting == [[0, 1], [2, 3]]


def index_pair(write: dict[str, Any], read: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two tasks that write, and two that each read the output of one of them."""
    inputs = [{"name": "i", "from": "a.o", "match": "index"}]
    both = {"command": ["x"], "scatter": {"count": 2}}
    return (
        {"name": "a", **both, "outputs": [{"name": "o", "path": "o"}], **write},
        {"name": "b", **both, "inputs": inputs, **read},
    )


def test_a_look_up_for_one_shard_leaves_the_bags_of_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty tasks write one after the other, each has a reader, and a look-up answers for each reader when it is ready: so many
    readers wait, and the inputs of one or two of them are looked up in a round, not of all.
    """
    scene = Scene(node("n0", cpu=1))
    scene.state.policy.memoizing = True
    writers, readers = index_pair(
        {"scatter": {"count": 20}}, {"scatter": {"count": 20}, "resources": {"cpu": 4}}
    )
    readers["inputs"].append({"name": "r", "uri": "file:///ref"})
    scene.submit("w", writers, readers)
    looked: list[object] = []
    counted = backlog.dataset_ids

    def look(*given: Any, **more: Any) -> Any:
        looked.append(given)
        return counted(*given, **more)

    monkeypatch.setattr(backlog, "dataset_ids", look)
    most = 0
    for shard in range(20):
        (pod,) = scene.launched
        scene.start(pod)
        scene.end(pod)
        pods = [scene.pods[name] for name in scene.launched]
        looked.clear()
        answer = {"found": (), "others": (shard,), "names": {"file:///ref": "file:///ref"}, "sizes": {}}
        scene.tell(LookedUp("w", 1, **answer, in_place=frozenset(), looks=scene.runs["w"].looks))
        scene.last.launches[:] = [*scene.last.launches, *pods]
        most = max(most, len(looked))
    assert len(collect(scene.state, scene.now).candidates) == 20
    assert most <= 2


def test_a_change_of_the_profile_changes_what_waiting_tasks_read_over_the_network() -> None:
    """Links are faster than disks: readers copy nothing, until the profile forbids it."""
    links = {"nic_in_rate": 10 << 30, "nic_out_rate": 10 << 30, "disk_rate": 100 << 20}
    scene = Scene(node("n0", **links), node("n1", **links))
    scene.state.policy.remote_reads = True
    scene.submit(
        "w", *index_pair({"scatter": {"count": 8}}, {"scatter": {"count": 8}, "resources": {"cpu": 4}})
    )
    scene.start(*scene.launched)
    scene.end(*scene.pods)
    before = [each.group.remote for each in collect(scene.state, scene.now).candidates.values()]
    scene.tell(ProfileChanged(replace(scene.state.policy.profile, remote_reads=False)))
    after = [each.group.remote for each in collect(scene.state, scene.now).candidates.values()]
    assert len(before) == len(after) > 0
    assert all(before)
    assert not any(after)


def test_one_end_after_many_does_not_have_all_that_wait_estimated_anew() -> None:
    """Of 32 samples one more is not an eighth, in however many rounds it is seen; four more are."""
    scene = Scene(node("n0", cpu=4))
    scene.submit("w", {**SIXTY, "resources": {"cpu": 4}})
    learn = scene.state.work.estimates.learn
    for _ in range(32):
        learn("w", "b", 10_000)
    collect(scene.state, scene.now)
    known = []
    for more in range(4):
        learn("w", "b", 20_000 + more)
        for _ in range(5):
            collect(scene.state, scene.now)
        known.append(scene.state.work.offers.lessons["w", "b"])
    assert known == [(32, 1), (32, 2), (32, 3), (36, 0)]
    for _ in range(9_000):  # more than are remembered by kind
        learn("w", "b", 30_000)
    assert {each.group.runtime_ms for each in collect(scene.state, scene.now).candidates.values()} == {30_000}


@pytest.mark.parametrize(
    ("before", "more", "new"),
    [
        (0, 1, True),
        (7, 1, True),
        (9, 1, False),
        (32, 3, False),
        (32, 4, True),
        (10_000, 31, False),
        (10_000, 32, True),
    ],
)
def test_an_eighth_more_is_new_and_so_is_all_that_is_remembered(before: int, more: int, new: bool) -> None:
    """32 ends of a kind are remembered."""
    assert is_new(before, more) is new


def test_words_that_become_true_among_hundreds_of_ends_are_known_to_have_been_so() -> None:
    """Tasks take eight times what they declare; then more end between two rounds than are remembered by kind, and take what they
    declare; then eight times again. So the waiting task of another kind is expected to take.
    """
    scene = Scene(node("n0", cpu=1))
    waiting = {"name": "b", "command": ["x"], "estimate": {"runtime": "100s"}}
    scene.submit("w", {"name": "a", "command": ["x"]}, waiting)
    learn, found = scene.state.work.estimates.learn, []
    for times, ends in ((8, 40), (1, 9_000), (8, 40)):
        for _ in range(ends):
            learn("w", "c", times * 1_000, Measured(declared_ms=1_000))
        offered = collect(scene.state, scene.now).candidates.values()
        found += [each.group.runtime_ms for each in offered if each.stage.spec.name == "b"]
    assert found == [716_800, 100_000, 716_800]


def test_fitted_memory_follows_four_ends() -> None:
    """However many have ended. The waiting tasks of a kind without fitted memory keep their estimates for an eighth more."""
    found = {}
    for fits in (False, True):
        scene = Scene(node("n0", cpu=4))
        scene.submit("w", {**SIXTY, "fit_memory": fits, "resources": {"cpu": 4, "memory": "4Gi"}})
        collect(scene.state, scene.now)
        stale = []
        scene.state.work.offers.lessons["w", "b"] = 1_000, 0
        for at in range(4):
            scene.state.work.estimates.learn("w", "b", 10_000 + at, Measured(memory_bytes=1 << 30))
            collect(scene.state, scene.now)
            stale.append(scene.state.work.offers.lessons["w", "b"] != (1_000, at + 1))
        found[fits] = stale
        assert not scene.state.work.offers.bags["w", 0].stale
    assert found == {False: [False] * 4, True: [False] * 3 + [True]}


def test_shards_are_ranked_by_what_they_do_not_share_with_those_that_come_later() -> None:
    """The first shard that waits shares all its bytes with itself. The second reads three times as much: 50 s less than
    the stage's rank (0 here), and 50 s more.
    """
    scene = Scene(node(cpu=12))
    scene.submit("other", {"name": "s", "command": ["x"], "resources": {"cpu": 4}})
    hundred = {"resources": {"cpu": 12}, "estimate": {"runtime": "100s"}}
    scene.submit("w", *index_pair({"resources": {"cpu": 4}}, hundred))
    scene.start("fs-other-s-0-0", "fs-w-a-0-0", "fs-w-a-1-0")
    scene.end("fs-w-a-0-0", size=100_000_000)
    assert len(collect(scene.state, scene.now).candidates) == 1
    scene.end("fs-w-a-1-0", size=300_000_000)
    waiting = collect(scene.state, scene.now).candidates.values()
    assert [each.group.rank_ms for each in waiting] == [-50_000, 50_000]


def test_shards_with_inputs_of_their_own_are_judged_anew_as_a_maintenance_comes_nearer() -> None:
    """One of three runs, for the next a start is reserved. 50 minutes before the maintenance neither fits any more."""
    scene = Scene(node(cpu=4))
    three = {"scatter": {"count": 3}, "resources": {"cpu": 1}}
    hour = {"scatter": {"count": 3}, "resources": {"cpu": 4}, "estimate": {"runtime": "1h"}}
    scene.submit("w", *index_pair(three, hour))
    writers = scene.launched
    scene.start(*writers)
    scene.tell(NodeDrained("n0", DrainOrder(scene.now + 110 * 60_000, None, "new disk", "ada")))
    scene.end(*writers)
    assert scene.launched == ["fs-w-b-0-0"]
    scene.start("fs-w-b-0-0")
    scene.end("fs-w-b-0-0", after=60 * 60_000)
    assert scene.launched == []


def test_the_bytes_that_a_task_gathers_follow_its_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is learned. Of two producers 50 MB each are expected, until one has written 4 GB: then as much of the other."""
    monkeypatch.setattr("flowsched.engine.reports.learn", lambda *_: False)
    scene = Scene(node("n0"), node("n1"))
    write, read = index_pair({"resources": {"cpu": 1}}, {"scatter": {"count": 1}})
    read["inputs"] = [{"name": "i", "from": "a.o", "match": "all"}]
    scene.submit("w", write, read)
    run = scene.runs["w"]
    before = gathered_bytes(scene.state, run, run.stages[1])
    scene.start("fs-w-a-0-0", "fs-w-a-1-0")
    scene.end("fs-w-a-0-0", size=4_000_000_000)
    assert (before, gathered_bytes(scene.state, run, run.stages[1])) == (100_000_000, 8_000_000_000)


def test_a_paused_run_goes_on_though_a_step_was_undone_meanwhile() -> None:
    """Two runs wait, one of them is paused. A step is not written; a round follows, and the run is resumed."""
    scene = Scene(node(cpu=2))
    scene.submit("w", {"name": "a", "command": ["x"]}, {"name": "b", "command": ["x"], "needs": ["a"]})
    scene.command("w", "pause")
    scene.end("fs-w-a-0-0")
    step(scene.state, [Tick()], scene.now + 20_000).drop()
    scene.submit("v", {"name": "a", "command": ["x"]})
    assert scene.launched == ["fs-v-a-0-0"]
    scene.command("w", "resume")
    assert scene.launched == ["fs-w-b-0-0"]


def chained() -> list[dict[str, Any]]:
    """Four tasks write, four more read one output each and write in turn, and one reads all of theirs."""
    out, estimate = {"outputs": [{"name": "o", "path": "o"}]}, {"runtime": "60s", "output": "1G"}
    wide = {"command": ["x"], "scatter": {"count": 4}, "resources": {"cpu": 4}, **out}
    return [
        {"name": "a", **wide, "estimate": estimate},
        {"name": "b", **wide, "inputs": [{"name": "i", "from": "a.o", "match": "index"}]},
        {"name": "c", "command": ["x"], "inputs": [{"name": "i", "from": "b.o"}]},
    ]


def gathered(scene: Scene, run: str) -> list[bool]:
    """Whether the waiting bags of a run have a gather node."""
    candidates = collect(scene.state, scene.now).candidates.values()
    return [each.group.home is not None for each in candidates if each.run.id == run]


def test_tasks_that_wait_lose_their_gather_node_when_their_readers_turn_out_to_write_nothing() -> None:
    """Two runs of one workflow. The first shows that the stage in between writes a few bytes. The writers of the second run wait as
    before, and need not run near the task that reads these bytes.
    """
    links = {"nic_in_rate": 100_000_000, "disk_rate": 100 << 20}
    scene = Scene(node("n0", **links), node("n1", **links))
    scene.submit("w1", *chained(), name="same")
    scene.submit("w2", *chained(), name="same", priority=-1)
    for task in range(4):
        name = f"fs-w1-a-{task}-0"
        scene.start(name)
        scene.end(name, after=60_000, size=1_000_000_000)
    between = [name for name, ref in scene.state.work.pods.items() if ref.stage == 1]
    assert gathered(scene, "w2") == [True] * 4
    scene.start(between[0])
    scene.end(between[0], after=60_000, size=10)
    assert set(gathered(scene, "w2")) == {False}
