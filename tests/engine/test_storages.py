"""Who works straight on a shared storage, and how many at a time. A storage gives 1,000 MB/s to all its readers."""

from __future__ import annotations

from typing import Any

import pytest

from flowsched.engine.data.staging import limits_now
from flowsched.engine.events import Accepted, ProfileChanged
from flowsched.engine.explain import explain
from flowsched.engine.io_demand import storage_of
from flowsched.engine.recovery import reclaim
from flowsched.engine.state import EngineState
from flowsched.engine.state.policy import PolicyState
from flowsched.engine.step import step
from flowsched.engine.telemetry import relearn
from flowsched.executor.protocol import NodeChanged, PodEnded, Usage
from flowsched.scheduling.explain.recording import plan_bytes, replayed, unpacked
from flowsched.scheduling.policy.framework import Storage, storage_at
from flowsched.scheduling.policy.profile import document_of, policies_from
from flowsched.scheduling.state.snapshot import IO
from flowsched.statement import Statement
from flowsched.values import replace
from flowsched.workflow.spec import Traffic
from tests.engine.scene import Scene, calls_of, node

MB = 1_000_000
NFS = Storage("nfs", read_rate=1_000 * MB, write_rate=500 * MB)


def reading(name: str, rate: int, count: int = 1, **more: Any) -> dict[str, Any]:
    """A bag of tasks of one core that read from the storage at a rate (MB/s); a minute each."""
    io = {"io": {"read": f"{rate * MB}/s", "storage": "nfs"}} if rate else {}
    said: dict[str, Any] = {
        "name": name,
        "command": ["x"],
        "resources": {"cpu": 1},
        "scatter": {"count": count},
    }
    return said | io | {"estimate": {"runtime": "1m"}} | more


def scene(cpu: int = 16, storage: Storage = NFS, **profile: Any) -> Scene:
    """One node, and the storage in the profile."""
    made = Scene(node(cpu=cpu))
    made.state.policy.profile = replace(made.state.policy.profile, storages=(storage,), **profile)
    return made


def stages(made: Scene) -> list[str]:
    """Of what stages the last step launched pods, sorted."""
    return sorted(pod.stage for pod in made.last.launches)


def test_together_they_stay_within_the_budget() -> None:
    """Four of 200 MB/s (202 in three binary digits) fit 900 MB/s, a fifth does not. When one ends, it goes."""
    one = scene()
    one.submit("w", reading("read", 200, 8))
    assert stages(one) == ["read"] * 4
    one.end("fs-w-read-2-0")
    assert one.launched == ["fs-w-read-4-0"]


def test_who_computes_is_not_kept_waiting_by_those_who_read() -> None:
    """Twelve cores are left, and the storage does not concern it."""
    one = scene()
    one.submit("w", reading("read", 200, 8), reading("compute", 0, 20))
    assert stages(one).count("compute") == 12


def test_readers_go_in_their_turn_only_as_far_as_all_work_reads_on_average() -> None:
    """Eight read 202 MB/s for a minute, 56 compute for one: on average an eighth of 16 cores reads. So two readers start, first
    of all though they came last; the rest of the cores compute.
    """
    one = scene()
    one.submit("w", reading("compute", 0, 56), reading("read", 200, 8))
    assert [stages(one).count(name) for name in ("read", "compute")] == [2, 14]


def test_cores_that_nobody_else_wants_are_for_readers_after_all() -> None:
    """Two cores' worth of others: readers fill the budget, beyond the average."""
    one = scene()
    one.submit("w", reading("compute", 0, 2), reading("read", 200, 8))
    assert [stages(one).count(name) for name in ("read", "compute")] == [4, 2]


def test_who_asks_for_more_than_there_is_goes_alone() -> None:
    """2,000 MB/s of a storage of 1,000: one at a time, while nobody else is on it."""
    one = scene()
    one.submit("w", reading("huge", 2_000, 2))
    assert stages(one) == ["huge"]
    one.end("fs-w-huge-0-0")
    assert stages(one) == ["huge"]


def test_a_gang_goes_with_all_it_asks_for_or_waits() -> None:
    """Two workers of 300 MB/s beside two readers of 200: not before one of those has ended. Its third worker would be too much."""
    one = scene()
    one.submit("w", reading("read", 200, 2))
    worker = {"replicas": 3, "min": 2, "command": ["x"], "resources": {"cpu": 1}}
    io = {"io": {"read": f"{300 * MB}/s", "storage": "nfs"}}
    one.submit("g", {"name": "train", "gang": True, "roles": {"worker": worker | io}})
    assert one.launched == []
    one.end("fs-w-read-0-0")
    assert stages(one) == ["train"] * 2


def test_who_has_waited_long_is_waited_for() -> None:
    """One that needs 800 MB/s beside a stream of small ones: after an hour nobody passes it any more, and it starts."""
    one = scene(promote_ms=3_600_000)
    one.submit("a", reading("read", 200, 3))
    one.submit("b", reading("large", 800))
    one.end("fs-a-read-0-0")
    one.submit("c", reading("read", 200))
    assert one.launched == ["fs-c-read-0-0"]  # it passes
    one.now += 3_600_000
    one.submit("d", reading("read", 200))
    assert one.launched == []
    one.end("fs-a-read-1-0")
    assert one.launched == []
    one.end("fs-a-read-2-0", "fs-c-read-0-0")
    assert one.launched == ["fs-b-large-0-0"]


def test_who_waits_is_told_with_numbers() -> None:
    """What may be read together, what is, what it asks for, and when that is expected to be free."""
    one = scene()
    one.submit("v", reading("read", 200, 4))
    one.submit("w", reading("read", 200))
    (told,) = explain(one.state, one.runs["w"], one.now)
    assert told.code == "StorageBudget"
    assert told.message == (
        "pods may read 900 MB/s of storage nfs together; those that run ask for 806 MB/s, and this asks for 202 MB/s"
    )
    assert told.start_ms == 61_000


def test_a_storage_that_nobody_bounds_bounds_nobody() -> None:
    """Its name is in no profile: what is read there counts nowhere, nor on the node's disk."""
    one = scene(storage=replace(NFS, name="other"))
    one.submit("w", reading("read", 400, 8))
    assert len(one.launched) == 8
    assert one.state.cluster.snapshot.used[0, 4] == 0


def test_where_all_data_are_mounted_inputs_and_outputs_count() -> None:
    """20 s of computing and 20 GB at 1,000 MB/s: 500 MB/s alone, of which half counts; 250 MB/s, in three binary digits 234."""
    state = EngineState(
        policy=PolicyState(
            profile=replace(Scene().state.policy.profile, locality=False, storages=(NFS,)), mounted=True
        )
    )
    one = Scene()
    one.state = state
    one.tell(NodeChanged(node(cpu=16)))
    bam = {"name": "bam", "uri": "s3://b/{index}.bam", "size": "20G"}
    one.submit("w", reading("sort", 0, 8, inputs=[bam], estimate={"runtime": "20s"}))
    assert stages(one) == ["sort"] * 3
    assert state.cluster.snapshot.direct.rates == {"nfs/read": 3 * 234_881_024}


def test_a_step_that_is_dropped_leaves_no_demand() -> None:
    """Ends and restarts count as they happened: nothing is left when all is done."""
    one = scene()
    one.submit("w", reading("read", 200, 4))
    before = dict(one.state.cluster.snapshot.direct.rates)
    step(one.state, [PodEnded("fs-w-read-0-0", one.now, 0)], one.now).drop()
    assert one.state.cluster.snapshot.direct.rates == before
    pods = one.last.launches
    for pod in pods:
        one.state.cluster.snapshot.unclaim(pod.name, Statement())
    assert one.state.cluster.snapshot.direct.rates == {"nfs/read": 0}
    reclaim(one.state, one.runs["w"], pods, Statement(), 0)
    assert one.state.cluster.snapshot.direct.rates == before
    one.end(*(pod.name for pod in pods))
    assert one.state.cluster.snapshot.direct.rates == {"nfs/read": 0}
    assert one.state.cluster.snapshot.direct.claims == {}


@pytest.mark.parametrize("origin", [True, False])
def test_copies_from_the_same_storage_give_way(origin: bool) -> None:
    """Pods ask for 806 of 900 MB/s: of eight copies from outside one goes, not eight, and it counts. Elsewhere all go."""
    one = scene(storage=replace(NFS, prefixes=("s3://b",) if origin else ("s3://bb",)))
    one.submit("r", reading("read", 200, 4))
    before = one.state.cluster.snapshot.direct.rates["nfs/read"]
    inputs = [{"name": f"i{at}", "uri": f"s3://b/{at}", "size": "1G"} for at in range(3)]
    one.submit("w", reading("copy", 0, inputs=inputs))
    assert len(one.last.transfers) == (1 if origin else 3)
    counted = one.state.cluster.snapshot.direct.rates["nfs/read"] - before
    assert counted == (56_250_000 if origin else 0)
    one.arrive(one.last.transfers[0])
    assert len(one.last.transfers) == (1 if origin else 0)
    assert one.state.cluster.snapshot.direct.rates["nfs/read"] == before + counted


@pytest.mark.parametrize("prefix", ["s3://b", "s3://bb"])
def test_copies_that_wait_give_way_by_the_new_profile(prefix: str) -> None:
    """Eight go from outside at once, three of them to the node. The profile says then on which storage all of them lie."""
    one = scene(storage=replace(NFS, prefixes=("s3://other",)))
    one.submit("r", reading("read", 200, 4))
    inputs = [{"name": f"i{at}", "uri": f"s3://b/{at}", "size": "1G"} for at in range(6)]
    one.submit("w", reading("copy", 0, inputs=inputs))
    going = one.last.transfers
    first, again = (
        replace(one.state.policy.profile, storages=(replace(NFS, prefixes=(prefix,)),)) for _ in range(2)
    )
    step(one.state, [ProfileChanged(first)], one.now).drop()
    assert one.state.data.wanted_from == {}
    one.tell(ProfileChanged(first))
    one.tell(ProfileChanged(again))
    one.tell(*map(one.arrival, going))
    assert len(one.last.transfers) == (1 if prefix == "s3://b" else 3)
    while one.last.transfers:
        one.tell(*map(one.arrival, one.last.transfers))
    one.end("fs-w-copy-0-0", *(f"fs-r-read-{number}-0" for number in range(4)))
    one.nothing_left()


def test_a_step_looks_at_no_want_that_it_does_not_serve() -> None:
    """Pods work on the storage, and no wanted dataset lies there: 200 that wait take no more calls than 20 do."""
    calls = []
    for count in (20, 200):
        one = scene()
        one.submit("r", reading("read", 200, 4))
        inputs = [{"name": f"i{at}", "uri": f"s3://b/{at}", "size": "1G"} for at in range(count)]
        one.submit("w", reading("copy", 0, inputs=inputs))
        calls.append(calls_of(lambda made=one: limits_now(made.state))[0])  # type: ignore[misc]
    assert calls[0] == calls[1]


def test_a_profile_says_what_storages_there_are() -> None:
    """By name, with whole numbers of bytes a second, as it does of what comes from outside."""
    said = {"name": "lab", "storages": [{"name": "nfs", "read_rate": 1_000 * MB, "write_rate": 500 * MB}]}
    profile = policies_from(said, {}).default
    assert profile.storages == (NFS,)
    assert document_of(profile)["profiles"]["lab"]["storages"] == [
        {"name": "nfs", "read_rate": 1_000_000_000, "write_rate": 500_000_000, "prefixes": [], "source": ""}
    ]


def test_a_recorded_cycle_replays_with_its_budgets() -> None:
    """What runs on the storage, and the profile that bounds it, are in the file."""
    one = scene()
    one.submit("v", reading("read", 200, 3))
    one.tape = []
    one.submit("w", reading("read", 200, 4), reading("compute", 0, 3))
    (draft,) = one.tape
    record = unpacked(draft.packed())  # type: ignore[union-attr]
    assert plan_bytes(replayed(record)) == record.plan
    assert b"StorageBudget" in record.plan


def in_place(one: Scene, ident: str, path: str, size: int = 2_000 * MB, out: str = "") -> Accepted:
    """A task of one core that an engine sends: it reads one file where it lies, computes for 2 s, and delivers to `out`."""
    outputs = [{"path": "/out", "uri": out}] if out else []
    files = {"inputs": [{"path": "/in", "uri": path}], "outputs": outputs}
    stage = {"name": "t", "steps": [{"command": ["x"]}], "files": files, "estimate": {"runtime": "2s"}}
    accepted = one.accepted(ident, stage | {"resources": {"cpu": 1}})
    accepted.run.placed_bytes[0] = accepted.run.file_bytes[path] = size
    return accepted


def test_heavy_readers_of_files_in_place_are_staggered() -> None:
    """2 s of computing and 2 GB at 1,000 MB/s: half of 500 MB/s counts, in three binary digits 235. Of 20, three read at a time."""
    one = scene(cpu=20)
    one.tell(*(in_place(one, f"w{number:02}", f"/data/{number}.bam") for number in range(20)))
    assert one.launched == ["fs-w00-t-0-0", "fs-w01-t-0-0", "fs-w02-t-0-0"]
    one.end("fs-w01-t-0-0", after=4_000)
    assert one.launched == ["fs-w03-t-0-0"]


@pytest.mark.parametrize(
    ("path", "at_once"),
    [("/data/x", 3), ("file:///data/x", 3), ("/database/x", 8), ("/scratch/x", 8)],
)
def test_a_path_lies_on_the_storage_with_its_prefix(path: str, at_once: int) -> None:
    """`/data` is on the bounded storage, and a folder whose name only begins so is not. All other paths are on another one."""
    one = scene(cpu=8, storage=replace(NFS, prefixes=("/data",)))
    other = Storage("scratch")
    one.state.policy.profile = replace(
        one.state.policy.profile, storages=(*one.state.policy.profile.storages, other)
    )
    one.tell(*(in_place(one, f"w{number}", path + str(number)) for number in range(8)))
    assert len(one.launched) == at_once


def test_a_storage_without_prefixes_has_the_paths_and_no_urls() -> None:
    """The longest prefix decides, before the order of the profile."""
    deep, urls = Storage("deep", prefixes=("/data/deep/",)), Storage("minio", prefixes=("s3://", "https://m"))
    rest, flat = Storage("rest"), Storage("flat", prefixes=("/data", "s3://flat"))
    storages = (rest, flat, deep, urls)
    places = ["/data/deep/x", "/data/x", "/x", "s3://flat/x", "s3://flatter/x", "https://m/x", "https://n/x"]
    found = [storage_at(storages, place) for place in places]
    assert found == [deep, flat, rest, flat, urls, urls, None]


def test_declared_traffic_of_the_disk_stays_on_the_disk() -> None:
    """A stage that states its `io` without a storage means its node's disk, wherever its files lie."""
    one = scene(cpu=8)
    for number in range(8):
        accepted = in_place(one, f"w{number}", f"/data/{number}")
        accepted.run.stages[0].spec = replace(accepted.run.stages[0].spec, io=Traffic(read_rate=1))
        one.tell(accepted)
    assert len(one.pods) == 8


@pytest.mark.parametrize("bound", [0, 1_000 * MB])
def test_a_heavy_reader_goes_where_the_link_is_fast_and_free(bound: int) -> None:
    """n1 has the faster link to the storage, so the first reader goes there, and the second one beside it costs more than n0 does.

    This holds whether the storage has a bound or not.
    """
    one = Scene(node("n0", nic_in_rate=400 * MB), node("n1", nic_in_rate=500 * MB))
    profile = replace(one.state.policy.profile, storages=(Storage("nfs", read_rate=bound),))
    one.state.policy.profile = profile
    for number in range(2):
        one.tell(in_place(one, f"w{number}", f"/data/{number}"))
    assert [pod.node for pod in one.pods.values()] == ["n1", "n0"]


@pytest.mark.parametrize(
    ("out", "rates"),
    [
        ("/data/out", {"nfs/read": 167_772_160, "nfs/write": 83_886_080}),
        ("s3://lab/out", {"nfs/read": 234_881_024}),
        ("", {"nfs/read": 234_881_024}),
    ],
)
def test_what_a_kind_was_measured_to_write_counts_where_it_is_delivered(
    out: str, rates: dict[str, int]
) -> None:
    """Five of the kind wrote 1 GB each. If that goes to the storage, the next one asks for a rate of writing, too."""
    one = scene(cpu=8)
    for number in range(6):
        accepted = in_place(one, f"w{number}", f"/data/{number}", out=out)
        accepted.run.spec = replace(accepted.run.spec, name="w")
        one.tell(accepted)
        one.start(f"fs-w{number}-t-0-0")
        usage = Usage(cpu_ms=2_000, read_bytes=2_000 * MB, written_bytes=1_000 * MB)
        if number < 5:
            one.tell(PodEnded(f"fs-w{number}-t-0-0", one.now + 4_000, 0, usage=usage), after=4_000)
    assert {key: rate for key, rate in one.state.cluster.snapshot.direct.rates.items() if rate} == rates


@pytest.mark.parametrize(
    ("bound", "size", "rates"),
    [
        (0, 1_000, {}),
        (1_000 * MB, 1_000, {}),
        (0, 1_000 * MB, {"nfs/read": 234_881_024}),
        (1_000 * MB, 1_000 * MB, {"nfs/read": 167_772_160}),
    ],
)
def test_a_task_that_reads_in_place_uses_its_disk_as_learned(
    bound: int, size: int, rates: dict[str, int]
) -> None:
    """The kind moves 8 GB on its node's disk of 500 MB/s. It does so whether a task reads a small file of the storage or a large
    one in place; with the small one it asks for nothing of the storage.
    """
    one = Scene(node(cpu=20, disk_rate=500 * MB))
    storages = (replace(NFS, read_rate=bound, prefixes=("/data",)),)
    one.state.policy.profile = replace(one.state.policy.profile, storages=storages)
    used = {"cpu_ms": 2_000, "read_bytes": 4_000 * MB, "written_bytes": 4_000 * MB, "disk_bytes": 8_000 * MB}
    for _ in range(5):
        relearn(one.state, "w", "t", 18_000, size, used, {})
    accepted = in_place(one, "w", "/data/adapters.txt", size)
    one.tell(accepted)
    assert one.launched == ["fs-w-t-0-0"]
    assert one.state.cluster.snapshot.used[0, IO] == 234_881_024
    assert {key: rate for key, rate in one.state.cluster.snapshot.direct.rates.items() if rate} == rates


def test_a_file_that_is_copied_to_the_node_is_not_read_on_the_storage() -> None:
    """Two tasks read one file: their bytes come as copies, so the tasks themselves ask the storage for nothing."""
    one = scene(cpu=8)
    one.state.policy.memoizing, one.state.policy.file_copies = True, "moved"
    both = [in_place(one, f"w{number}", "/data/ref") for number in range(2)]
    one.tell(*both)
    assert [storage_of(one.state, each.run, each.run.stages[0], 0) for each in both] == [None, None]
