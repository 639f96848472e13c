"""What container tasks read and deliver outside of the caches, as the engine counts it. Literal stories."""

from __future__ import annotations

from typing import Any

import pytest

from flowsched.engine.events import Accepted, LookedUp
from flowsched.engine.predictor import expected_runtime
from flowsched.engine.state import EngineState
from flowsched.engine.step import step
from flowsched.engine.telemetry import relearn
from flowsched.executor.protocol import (
    ContainerReport,
    DeliveredFile,
    FileCopies,
    NodeChanged,
    PodEnded,
    ReplicaSeen,
    TransferFailed,
    Usage,
)
from flowsched.scheduling.policy.framework import Storage
from flowsched.values import replace
from tests.engine.scene import Scene, node

MB = 1_000_000


def scene() -> Scene:
    s = Scene(node("n0"), node("n1"))
    s.state.policy.memoizing = True
    return s


def steps(name: str, cpu: int = 1, **files: Any) -> dict[str, Any]:
    """A stage as an engine sends it."""
    return {"name": name, "steps": [{"command": ["x"]}], "files": files, "resources": {"cpu": cpu}}


def test_what_a_task_delivers_by_itself_is_not_taken_for_nothing() -> None:
    """Its outputs go to places outside, so what it writes for others is unknown, and not 0 bytes."""
    s = scene()
    s.submit("w", steps("a", outputs=[{"path": "/o", "uri": "s3://lab/o"}]))
    s.start("fs-w-a-0-0")
    report = ContainerReport((), (DeliveredFile("/o", "s3://lab/o", 7 * MB, "tag"),))
    s.tell(PodEnded("fs-w-a-0-0", s.now, 0, usage=Usage(cpu_ms=5), container=report), after=2_000)
    assert s.state.work.estimates.samples("w", "a") == 1
    assert s.state.work.estimates.output_bytes("w", "a") is None


def test_the_reader_of_a_delivered_object_goes_to_its_copy() -> None:
    """The copy on n1 has the version that the reader's look finds: the task starts there at once, and nothing is copied."""
    s = scene()
    name = "s3://lab/o#version=" + "a" * 32
    s.tell(ReplicaSeen(name, "n1", 200 * MB))
    s.submit("w", steps("b", inputs=[{"path": "/i", "uri": "s3://lab/o"}]))
    s.tell(LookedUp("w", 0, others=(0,), names={"s3://lab/o": name}, sizes={name: 200 * MB}))
    assert [(pod.name, pod.node) for pod in s.last.launches] == [("fs-w-b-0-0", "n1")]
    assert s.last.transfers == []


def test_a_copy_of_an_overwritten_object_is_not_read() -> None:
    """The look finds another version: its bytes come from the store, and the copy of the old ones goes."""
    s = scene()
    old, new = ("s3://lab/o#version=" + letter * 32 for letter in "ab")
    s.tell(ReplicaSeen(old, "n1", 200 * MB))
    s.submit("w", steps("b", inputs=[{"path": "/i", "uri": "s3://lab/o"}]))
    s.tell(LookedUp("w", 0, others=(0,), names={"s3://lab/o": new}, sizes={new: 100 * MB}))
    assert [(order.uri, order.source, order.size_bytes) for order in s.last.transfers] == [
        (new, None, 100 * MB)
    ]
    assert [(drop.uri, drop.node) for drop in s.last.drops] == [(old, "n1")]


def test_the_size_that_a_document_states_goes_before_that_of_the_store() -> None:
    """Otherwise the two would take turns."""
    s = scene()
    name = "s3://lab/o#version=" + "a" * 32
    s.submit("w", steps("b", inputs=[{"path": "/i", "uri": "s3://lab/o", "size": "5M"}]))
    s.tell(LookedUp("w", 0, others=(0,), names={"s3://lab/o": name}, sizes={name: 200 * MB}))
    assert [order.size_bytes for order in s.last.transfers] == [5 * MB]


def test_files_that_are_read_where_they_lie_count_as_read() -> None:
    """Their bytes are a part of the sample, and of what is expected of the next of the kind."""
    s = scene()
    for number, size in enumerate((10, 20, 30, 40, 50)):
        pod = arrives(s, f"w{number}", size * MB)
        s.start(pod)
        s.tell(PodEnded(pod, s.now + size * 1_000, 0), after=size * 1_000)
    arrives(s, "w5", 100 * MB)
    stage = s.runs["w5"].stages[0]
    assert stage.local.tolist() == [100 * MB]
    assert expected_runtime(s.state, s.runs["w5"], stage, ()) == (100_000, 100_000)


def test_files_of_unknown_size_do_not_count_as_nothing() -> None:
    """Five tasks of unknown size took 80 s. They change nothing of what is expected by size."""
    s = scene()
    for number, size in enumerate((10, 20, 30, 40, 50)):
        pod = arrives(s, f"w{number}", size * MB)
        s.start(pod)
        s.tell(PodEnded(pod, s.now + size * 1_000, 0), after=size * 1_000)
    for number in range(5):
        pod = arrives(s, f"v{number}")
        s.start(pod)
        s.tell(PodEnded(pod, s.now + 80_000, 0), after=80_000)
    arrives(s, "w", 100 * MB)
    assert s.state.work.estimates.samples("w", "a") == 10
    assert s.state.work.estimates.typical_size("w", "a") == 30 * MB
    assert expected_runtime(s.state, s.runs["w"], s.runs["w"].stages[0], ()) == (100_000, 100_000)


def test_what_tasks_of_unknown_size_took_is_known_all_the_same() -> None:
    """Also after a restart, where their rows have 0 bytes. One task of known size is too few to say more."""
    state = EngineState()
    for size, runtime_ms in ((0, 70_000), (0, 80_000), (5 * MB, 1_000), (0, 90_000)):
        relearn(state, "w", "a", runtime_ms, size, {}, {})
    assert state.work.estimates.runtime_ms("w", "a", 100 * MB) == 80_000


def arrives(s: Scene, ident: str, size: int | None = None) -> str:
    """A task of the kind `w/a` that reads one file of so many bytes in place; its pod."""
    accepted = s.accepted(ident, steps("a", inputs=[{"path": "/i", "uri": "/data/i"}]))
    accepted.run.spec = replace(accepted.run.spec, name="w")
    if size is not None:
        accepted.run.placed_bytes[0] = size
    s.tell(accepted)
    assert s.launched == [f"fs-{ident}-a-0-0"]
    return s.launched[0]


# ---- files that several tasks read ----

REF, VERSION = "/ref/hg38.fa", "/ref/hg38.fa#version=" + "a" * 32


def shard(
    s: Scene,
    ident: str,
    *,
    size: int = 100 * MB,
    path: str = REF,
    uri: str = REF,
    cpu: int = 1,
    also: tuple[str, ...] = (),
    outputs: Any = (),
    **step: str,
) -> Accepted:
    """A task in an image that reads a file of all nodes at its own path, and others of the same size at theirs."""
    files = [{"path": path, "uri": uri}, *({"path": each, "uri": each} for each in also)]
    stage = steps("a", cpu, inputs=files, outputs=list(outputs)) | {
        "steps": [{"command": ["x"], "image": "alpine", **step}]
    }
    accepted = s.accepted(ident, stage)
    accepted.run.file_bytes |= dict.fromkeys((uri, *also), size)
    accepted.run.placed_bytes[0] = size * (1 + len(also))
    return accepted


def looked_up(s: Scene, *idents: str, version: str = VERSION) -> None:
    """The look at the file has its answer."""
    sizes = {version: 100 * MB}
    answers = [
        LookedUp(i, 0, others=(0,), names={REF: version}, sizes=sizes, looks=s.runs[i].looks) for i in idents
    ]
    s.tell(*answers)


def copying(mode: FileCopies = "always", **rates: int) -> Scene:
    s = Scene(node("n0", **rates), node("n1", **rates))
    s.state.policy.memoizing, s.state.policy.file_copies = True, mode
    return s


def test_a_file_that_one_task_reads_stays_where_it_lies() -> None:
    """It would be read once for the copy and once more by the task."""
    s = copying()
    s.tell(shard(s, "w0"))
    assert (s.launched, s.last.lookups) == (["fs-w0-a-0-0"], [])


def copied(s: Scene) -> list[tuple[str, str, str | None]]:
    """Let the ordered copies arrive, and those that are ordered then. Returns dataset, node and source of each."""
    found = []
    while s.last.transfers:
        found += [(order.uri, order.dest, order.source) for order in s.last.transfers]
        s.tell(*map(s.arrival, s.last.transfers))
    return found


def test_a_file_that_several_tasks_read_comes_to_each_node_once() -> None:
    """Eight tasks fill two nodes: one copy is from the storage, one from the other node. Containers have it at the file's path."""
    s = copying()
    names = [f"w{number}" for number in range(8)]
    s.tell(*(shard(s, name) for name in names))
    assert (s.launched, sorted(s.last.lookups)) == ([], [(name, 0) for name in names])
    looked_up(s, *names)
    assert copied(s) == [(VERSION, "n0", None), (VERSION, "n1", "n0")]
    assert len(s.pods) == 8
    container = s.pods["fs-w0-a-0-0"].container
    assert container is not None
    assert [(each.path, each.source, each.input) for each in container.inputs] == [(REF, REF, "file-0")]
    assert [file.uris for file in s.pods["fs-w7-a-0-0"].inputs] == [(VERSION,)]


def test_the_first_reader_gets_the_copy_too_if_it_still_waits() -> None:
    """A task of four cores waits behind another one. The second reader comes a minute later: both read one copy."""
    s = copying()
    s.tell(shard(s, "full", path="/in", size=0, cpu=4), shard(s, "full2", path="/in", size=0, cpu=4))
    s.tell(shard(s, "w0"))
    assert s.last.lookups == []
    s.tell(shard(s, "w1"), after=60_000)
    assert sorted(s.last.lookups) == [("w0", 0), ("w1", 0)]
    looked_up(s, "w0", "w1")
    assert copied(s) == [
        (VERSION, "n0", None)
    ]  # tasks of unknown runtime are expected to end within ten minutes
    s.end("fs-full-a-0-0")
    assert {"fs-w0-a-0-0", "fs-w1-a-0-0"} <= s.pods.keys()


@pytest.mark.parametrize("answered", [True, False], ids=["answered", "under way"])
def test_a_task_reads_no_file_before_its_version_is_known(answered: bool) -> None:
    """A waiting task reads two files. A second reader of the one comes, then one of the other: the first task is looked at anew,
    whether its first look has been answered by then or is still under way.
    """
    other, name = "/ref/chr1.fa", "/ref/chr1.fa#version=" + "c" * 32
    s = copying()
    s.tell(shard(s, "full", path="/in", size=0, cpu=4), shard(s, "full2", path="/in", size=0, cpu=4))
    first = shard(s, "w0", also=(other,))
    s.tell(first)
    s.tell(shard(s, "w1"))
    early = LookedUp("w0", 0, others=(0,), names={REF: VERSION}, sizes={VERSION: 100 * MB}, looks=1)
    if answered:
        s.tell(early)
        copied(s)
    s.tell(shard(s, "w2", path=other, uri=other))
    assert ("w0", 0) in s.last.lookups
    if not answered:
        s.tell(early)
        assert s.last.lookups == [("w0", 0)]
    s.end("fs-full-a-0-0")
    copied(s)
    assert "fs-w0-a-0-0" not in s.pods
    both = {VERSION: 100 * MB, name: 100 * MB}
    s.tell(LookedUp("w0", 0, others=(0,), names={REF: VERSION, other: name}, sizes=both, looks=2))
    copied(s)
    assert [file.uris for file in s.pods["fs-w0-a-0-0"].inputs] == [(VERSION,), (name,)]


def test_a_later_run_knows_that_a_file_is_read_again() -> None:
    """The first reader of the next run finds that two tasks have read it before."""
    s = copying()
    s.tell(shard(s, "w0"), shard(s, "w1"))
    looked_up(s, "w0", "w1")
    copied(s)
    s.end("fs-w0-a-0-0", "fs-w1-a-0-0")
    s.tell(shard(s, "w2"))
    assert s.last.lookups == [("w2", 0)]
    looked_up(s, "w2")
    assert (s.launched, copied(s)) == (["fs-w2-a-0-0"], [])


def test_the_next_task_reads_the_new_bytes_of_a_changed_file() -> None:
    """Its look finds another version: that is copied, and the copies of the old one go."""
    s = copying()
    s.tell(shard(s, "w0"), shard(s, "w1"))
    looked_up(s, "w0", "w1")
    copied(s)
    s.end("fs-w0-a-0-0", "fs-w1-a-0-0")
    new = VERSION.replace("a" * 32, "b" * 32)
    s.tell(shard(s, "w2"))
    looked_up(s, "w2", version=new)
    assert {(drop.uri, drop.node) for drop in s.last.drops} == {(VERSION, "n0")}
    assert copied(s) == [(new, "n0", None)]


def test_a_file_stays_where_all_can_read_it_sooner_than_it_is_copied() -> None:
    """A disk of 100 MB/s and a link of 1,000: eight readers have it sooner over the link; with the ninth and tenth a copy pays."""
    s = copying(disk_rate=100 * MB, nic_in_rate=1_000 * MB)
    s.tell(*(shard(s, f"w{number}") for number in range(8)))
    assert len(s.launched) == 8
    s.tell(*(shard(s, f"v{number}") for number in range(2)))
    assert s.last.lookups == [("v0", 0), ("v1", 0)]


def test_copies_pay_sooner_where_the_storage_is_slower_than_the_link() -> None:
    """All together get 250 MB/s of it. A disk of 100 MB/s has a copy sooner than three tasks can read the file."""
    s = copying(disk_rate=100 * MB, nic_in_rate=1_000 * MB)
    s.state.policy.profile = replace(s.state.policy.profile, storages=(Storage("nfs", read_rate=250 * MB),))
    s.tell(*(shard(s, f"w{number}") for number in range(2)))
    assert len(s.launched) == 2
    s.tell(shard(s, "v"))
    assert s.last.lookups == [("v", 0)]


@pytest.mark.parametrize(
    ("mode", "path", "is_copied"),
    [("never", "/other", False), ("moved", REF, False), ("moved", "/other", True), ("always", REF, True)],
)
def test_a_copy_is_made_only_if_the_task_can_have_it_at_its_path(
    mode: FileCopies, path: str, is_copied: bool
) -> None:
    """A process without an image reads the file at the path of this machine, whatever lies in a cache."""
    s = copying(mode)
    s.tell(shard(s, "w0", path=path), shard(s, "w1", path=path))
    assert (len(s.last.lookups), len(s.launched)) == ((2, 0) if is_copied else (0, 2))


@pytest.mark.parametrize("more", [{"outputs": [{"path": REF, "uri": REF}]}, {"stdout": REF}, {"stderr": REF}])
def test_a_file_that_its_reader_also_writes_stays_where_it_lies(more: dict[str, Any]) -> None:
    """A copy is read-only: the task could not write to it, and the copy would be delivered as the output."""
    s = copying()
    s.tell(shard(s, "w0", **more), shard(s, "w1", **more))
    assert (s.last.lookups, len(s.launched)) == ([], 2)


def test_small_files_and_those_of_unknown_size_are_read_where_they_lie() -> None:
    """A look and a copy would cost more than they gain."""
    s = copying()
    s.tell(*(shard(s, f"w{number}", size=30 * MB) for number in range(2)))
    unknown = shard(s, "v0"), shard(s, "v1")
    for each in unknown:
        each.run.file_bytes.clear()
        each.run.placed_bytes.clear()
    s.tell(*unknown)
    assert (len(s.pods), s.last.lookups) == (4, [])


def test_a_file_that_would_fill_a_cache_is_read_where_it_lies() -> None:
    """Its tasks would wait for room, or for ever. The smaller cache of the two decides."""
    s = Scene(node("n0", cache_bytes=150 * MB), node("n1", cache_bytes=900 * MB))
    s.state.policy.memoizing, s.state.policy.file_copies = True, "always"
    s.tell(shard(s, "w0"), shard(s, "w1"))
    assert len(s.launched) == 2
    s.tell(shard(s, "v0", size=70 * MB), shard(s, "v1", size=70 * MB))
    assert s.last.lookups == [("v0", 0), ("v1", 0)]


def test_a_node_that_changes_changes_what_is_copied() -> None:
    """A cache grows and shrinks, then both nodes get slower disks: the next tasks are decided on by what nodes are then."""
    s = Scene(node("n0", cache_bytes=900 * MB), node("n1", cache_bytes=900 * MB))
    s.state.policy.memoizing, s.state.policy.file_copies = True, "always"
    s.tell(shard(s, "u0"), shard(s, "u1"))
    assert len(s.last.lookups) == 2
    s.tell(NodeChanged(node("n0", cache_bytes=150 * MB)))
    s.tell(shard(s, "v0"), shard(s, "v1"))
    assert (len(s.last.lookups), len(s.launched)) == (0, 2)
    s.tell(*(NodeChanged(node(name, cache_bytes=900 * MB)) for name in ("n0", "n1")))
    s.tell(shard(s, "w0"))
    assert len(s.last.lookups) == 1
    rates = {"disk_rate": 1 * MB, "nic_in_rate": 1_000 * MB}
    s.tell(*(NodeChanged(node(name, cache_bytes=900 * MB, **rates)) for name in ("n0", "n1")))
    s.tell(shard(s, "x0"))
    assert (len(s.last.lookups), len(s.launched)) == (0, 1)


def test_bytes_that_are_copied_do_not_count_as_read_in_place() -> None:
    """They count as those of any input: at its end the task has read them once."""
    s = copying()
    s.tell(shard(s, "w0"), shard(s, "w1"))
    assert s.runs["w0"].placed_bytes == {0: 0}
    looked_up(s, "w0", "w1")
    copied(s)
    s.end("fs-w0-a-0-0", "fs-w1-a-0-0")
    both = [s.runs[name].stages[0] for name in ("w0", "w1")]
    assert [int(stage.local[0] + stage.moved[0]) for stage in both] == [100 * MB] * 2
    s.nothing_left()


def test_a_step_that_is_dropped_shares_no_file() -> None:
    """Nothing of it is remembered: neither the readers of the file nor the input of the stage."""
    s = copying()
    first, second = shard(s, "w0"), shard(s, "w1")
    step(s.state, [first, second], s.now).drop()
    assert s.state.data.file_readers == {}
    assert (first.run.stages[0].spec.inputs, first.run.placed_bytes) == ((), {0: 100 * MB})


@pytest.mark.parametrize("permanent", [True, False], ids=["for good", "eight times"])
def test_tasks_read_a_file_where_it_lies_if_its_copy_fails(permanent: bool) -> None:
    """An agent cannot read the file that tasks can. Neither these two tasks nor the next ones want a copy any more."""
    s = copying()
    s.tell(shard(s, "w0"), shard(s, "w1"))
    looked_up(s, "w0", "w1")
    for _ in range(1 if permanent else 8):
        assert s.launched == []
        s.miss(s.last.transfers[0], permanent=permanent)
        s.tell(after=60_000)
    assert s.pods.keys() == {"fs-w0-a-0-0", "fs-w1-a-0-0"}
    container = s.pods["fs-w0-a-0-0"].container
    assert container is not None
    assert [(each.path, each.source, each.input) for each in container.inputs] == [(REF, REF, None)]
    assert (s.pods["fs-w0-a-0-0"].inputs, s.runs["w0"].placed_bytes) == ((), {0: 100 * MB})
    s.tell(shard(s, "w2"), shard(s, "w3"))
    assert s.launched == ["fs-w2-a-0-0", "fs-w3-a-0-0"]
    s.end("fs-w0-a-0-0", code=1)
    s.end(*(f"fs-w{number}-a-0-0" for number in range(1, 4)))
    s.nothing_left()


def test_a_failed_copy_lets_all_readers_of_the_file_start() -> None:
    """Four tasks wait for the copy to one node, three for that to the other, and the last for the answer to its look."""
    s = copying()
    names = [f"w{number}" for number in range(8)]
    s.tell(*(shard(s, name) for name in names))
    looked_up(s, *names[:7])
    s.miss(s.last.transfers[0], permanent=True)
    assert s.launched == [f"fs-{name}-a-0-0" for name in names]
    assert s.last.transfers == []


def test_a_file_that_changes_with_each_copy_is_read_where_it_lies() -> None:
    """Each of nine copies finds another version than the look did."""
    s = copying()
    s.tell(shard(s, "w0"), shard(s, "w1"))
    for number in range(9):
        version = VERSION.replace("a" * 32, f"{number:032x}")
        looked_up(s, "w0", "w1", version=version)
        order = s.last.transfers[0]
        s.tell(TransferFailed(order.uri, order.dest, s.now, "changed", changed=True), after=10)
    assert s.pods.keys() == {"fs-w0-a-0-0", "fs-w1-a-0-0"}


def test_a_task_that_has_ended_is_no_reader_any_more() -> None:
    """Copies never pay here: only the tasks that still run are remembered, and how many have read the file."""
    s = copying(disk_rate=1 * MB, nic_in_rate=1_000_000 * MB)
    s.tell(*(shard(s, f"w{number}") for number in range(4)))
    s.end("fs-w0-a-0-0", "fs-w2-a-0-0")
    readers = s.state.data.file_readers[REF]
    assert (readers.tasks, list(readers.in_place)) == (4, [("w1", 0), ("w3", 0)])


def test_the_only_reader_of_a_delivered_file_goes_to_its_copy() -> None:
    """The node that wrote it has kept it: the reader starts there, and nothing is read from the storage."""
    s = copying()
    s.tell(ReplicaSeen(VERSION, "n1", 100 * MB))
    s.tell(shard(s, "w0"))
    looked_up(s, "w0")
    assert [(pod.name, pod.node) for pod in s.last.launches] == [("fs-w0-a-0-0", "n1")]
    assert s.last.transfers == []


def test_tasks_that_wait_read_a_file_where_it_lies_once_its_copy_has_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight shards read it beside an object of their own. The copy fails for good while most of them wait: it is ordered no more,
    and all succeed.
    """
    monkeypatch.setattr(
        "flowsched.engine.reports.learn", lambda *_: False
    )  # nothing else makes their requests anew
    s = copying()
    inputs = [{"path": REF, "uri": REF}, {"path": "/i", "uri": "s3://lab/{index}"}]
    stage = steps("a", 4, inputs=inputs) | {"scatter": {"count": 8}, "retry": {"attempts": 1}}
    stage["steps"] = [{"command": ["x"], "image": "alpine"}]
    accepted = s.accepted("w", stage)
    accepted.run.file_bytes[REF] = accepted.run.placed_bytes[0] = 100 * MB
    own = {f"s3://lab/{at}": f"s3://lab/{at}#version=" + "b" * 32 for at in range(8)}
    sizes = {VERSION: 100 * MB, **dict.fromkeys(own.values(), 1_000)}
    s.tell(accepted)
    looks = s.runs["w"].looks
    s.tell(LookedUp("w", 0, others=tuple(range(8)), names={REF: VERSION, **own}, sizes=sizes, looks=looks))
    missed = 0
    for _ in range(40):
        orders, launched = s.last.transfers, s.launched
        for order in orders:
            if order.uri.startswith(REF):
                missed += 1
                s.miss(order, permanent=True)
            else:
                s.arrive(order)
            orders += s.last.transfers
            launched += s.launched
        if launched:
            s.start(*launched)
            s.end(*launched, after=1_000)
        else:
            s.tell(after=5_000)
        if s.runs["w"].state.terminal:
            break
    assert s.state_of("w") == "SUCCEEDED: a SUCCEEDED"
    assert missed <= 2
