"""Which devices there are, which number means which, and what the claims on them say. No server."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowsched.cluster.kubernetes.api.watch import Batch
from flowsched.cluster.kubernetes.dra.inventory import (
    FINALIZER,
    ClaimBook,
    Consumer,
    DeviceId,
    Inventory,
    Place,
    ResourceClaim,
    ResourceSlice,
    allocation_of,
    claim_manifest,
    claim_name,
    finalizers_patch,
    numbered,
    place_of,
    places_of,
    status_patch,
)
from flowsched.cluster.kubernetes.objects.release import GpuSettings
from flowsched.cluster.kubernetes.settings import from_environment
from flowsched.errors import ConfigurationError
from flowsched.executor.protocol import InputFile
from flowsched.values import replace
from tests.kubernetes import written as w

DRIVER = "gpu.test"
SETTINGS = replace(w.SETTINGS, gpu=GpuSettings(fractions="dra", driver=DRIVER))


def piece(
    name: str, devices: Iterable[str | dict[str, Any]], pool: str = "n1", node: str = "n1", **changes: Any
) -> ResourceSlice:
    """A slice of a pool; `generation`, `of` (slices), `driver`."""
    told = [each if isinstance(each, dict) else {"name": each} for each in devices]
    spec = {
        "driver": changes.get("driver", DRIVER),
        "pool": {
            "name": pool,
            "generation": changes.get("generation", 1),
            "resourceSliceCount": changes.get("of", 1),
        },
        "devices": told,
        **({"nodeName": node} if node else {"allNodes": True}),
    }
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, ResourceSlice)


def claim(
    name: str, device: str = "", version: int = 1, uid: str = "u", users: Sequence[str] = (), **metadata: Any
) -> ResourceClaim:
    """Somebody's claim on a device of the pool n1."""
    meta = {"name": name, "namespace": "else", "uid": uid, "resourceVersion": str(version), **metadata}
    status: dict[str, Any] = {"reservedFor": [{"resource": "pods", "name": n, "uid": n} for n in users]}
    if device:
        result = {"request": "gpu", "driver": DRIVER, "pool": "n1", "device": device}
        status["allocation"] = {"devices": {"results": [result]}}
    return msgspec.convert({"metadata": meta, "status": status}, ResourceClaim)


def own(number: int, device: str = "", version: int = 1, uid: str = "u", node: str = "n1") -> ResourceClaim:
    """A claim as we make it, as it came back."""
    place = Place(node, number, claim_name(node, number, SETTINGS))
    made = json.loads(claim_manifest(place, SETTINGS))["metadata"]
    return claim(
        made["name"], device, version, uid,
        namespace=made["namespace"], labels=made["labels"], annotations=made["annotations"],
    )  # fmt: skip


def dev(*names: str) -> list[DeviceId]:
    return [DeviceId("n1", name) for name in names]


def book(*devices: str) -> ClaimBook:
    """With these devices on n1."""
    inventory = Inventory(DRIVER)
    inventory.changed(Batch(replaced=[piece("s", devices)]))
    return ClaimBook(SETTINGS, inventory)


# --- slices --------------------------------------------------------------------------------------------------


def test_devices_are_in_the_order_of_pool_and_name() -> None:
    """Whatever the order of slices; only of the driver."""
    inventory = Inventory(DRIVER)
    changed = inventory.changed(
        Batch(replaced=[
            piece("b", ["z", "a"], pool="p2"), piece("a", ["y"], pool="p1"), piece("c", ["x"], pool="p0", driver="other"),
        ])
    )  # fmt: skip
    assert changed == {"n1"}
    assert inventory.of("n1") == [DeviceId("p1", "y"), DeviceId("p2", "a"), DeviceId("p2", "z")]
    assert inventory.of("n2") == []


def test_only_the_newest_generation_counts_and_only_once_it_is_complete() -> None:
    """While a driver replaces its slices the pool has no devices."""
    inventory = Inventory(DRIVER)
    inventory.changed(Batch(replaced=[piece("a", ["a"], of=2), piece("b", ["b"], of=2)]))
    assert inventory.of("n1") == dev("a", "b")
    assert inventory.changed(Batch(changed=[("MODIFIED", piece("a", ["a", "c"], generation=2, of=2))])) == {
        "n1"
    }
    assert inventory.of("n1") == []
    inventory.changed(Batch(changed=[("MODIFIED", piece("b", ["b"], generation=2, of=2))]))
    assert inventory.of("n1") == dev("a", "b", "c")
    inventory.changed(Batch(changed=[("DELETED", piece("b", []))]))
    assert inventory.of("n1") == []
    assert inventory.changed(Batch(replaced=[])) == set()


def test_a_slice_that_goes_over_to_another_pool_leaves_the_first() -> None:
    """Names of slices are the driver's to use again."""
    inventory = Inventory(DRIVER)
    inventory.changed(Batch(replaced=[piece("a", ["a"])]))
    assert inventory.changed(Batch(changed=[("MODIFIED", piece("a", ["a"], pool="n2", node="n2"))])) == {
        "n1",
        "n2",
    }
    assert (inventory.of("n1"), inventory.of("n2")) == ([], [DeviceId("n2", "a")])


@pytest.mark.parametrize(
    "device",
    [
        {"name": "x", "taints": [{"key": "broken", "effect": "NoSchedule"}]},
        {
            "name": "x",
            "taints": [{"key": "told", "effect": "None"}, {"key": "broken", "effect": "NoExecute"}],
        },
        {"name": "x", "consumesCounters": [{"counterSet": "s", "counters": {}}]},
        {"name": "x", "bindingConditions": ["Attached"]},
        {"name": "x", "allowMultipleAllocations": True},
    ],
)
def test_what_is_not_supported_does_not_count(device: dict[str, Any]) -> None:
    """And does not keep the others from it."""
    inventory = Inventory(DRIVER)
    inventory.changed(
        Batch(
            replaced=[piece("a", ["a", device, {"name": "b", "taints": [{"key": "told", "effect": "None"}]}])]
        )
    )
    assert inventory.of("n1") == dev("a", "b")


def test_devices_of_several_nodes_do_not_count_and_names_are_unique() -> None:
    """A pool that says a device twice makes no sense, as for kube-scheduler."""
    inventory = Inventory(DRIVER)
    assert inventory.changed(Batch(replaced=[piece("a", ["a"], node="")])) == set()
    inventory.changed(Batch(replaced=[piece("a", ["a"], of=2), piece("b", ["a"], of=2)]))
    assert inventory.of("n1") == []


# --- numbers -------------------------------------------------------------------------------------------------


def test_numbers_follow_the_order_and_leave_out_what_others_have() -> None:
    """So that the first numbers, which the engine gives first, can be had."""
    assert numbered(dev("a", "b", "c"), {}, ()) == dict(enumerate(dev("a", "b", "c")))
    assert numbered(dev("a", "b", "c"), {}, dev("a")) == dict(enumerate(dev("b", "c")))


def test_a_number_in_use_keeps_its_device() -> None:
    """Whatever comes and goes beside it; a device that is gone takes its number with it."""
    [a, b, c] = dev("a", "b", "c")
    assert numbered([a, b, c], {1: b}, [a]) == {0: c, 1: b}
    assert numbered([a, b, c], {0: b}, ()) == {0: b, 1: a, 2: c}
    assert numbered([a, c], {1: b}, ()) == {0: a, 2: c}


@given(st.data())
@settings(max_examples=200)
def test_no_device_has_two_numbers(data: st.DataObject) -> None:
    """Nor one that somebody else has, unless it is ours as well."""
    devices = dev(*sorted(data.draw(st.sets(st.sampled_from("abcdefgh")))))
    pins = data.draw(st.lists(st.sampled_from("abcdefgh"), unique=True))
    numbers = data.draw(st.lists(st.integers(0, 9), unique=True, min_size=len(pins), max_size=len(pins)))
    pinned = dict(zip(numbers, dev(*pins), strict=True))
    taken = dev(*data.draw(st.sets(st.sampled_from("abcdefgh"))))
    found = numbered(devices, pinned, taken)
    assert len(set(found.values())) == len(found)
    assert set(found.values()) == {d for d in devices if d not in taken or d in pinned.values()}
    assert all(found.get(number, device) == device for number, device in pinned.items())


# --- claims --------------------------------------------------------------------------------------------------


def test_a_claim_of_ours_pins_its_number_and_others_take_devices_away() -> None:
    """As the watch tells them."""
    known = book("a", "b", "c")
    assert known.count("n1") == (3, 0)
    assert known.changed(Batch(replaced=[own(1, "a"), claim("theirs", "b")])) == {"n1"}
    assert known.devices("n1") == {0: DeviceId("n1", "c"), 1: DeviceId("n1", "a")}
    assert known.changed(Batch(changed=[("MODIFIED", claim("theirs", "", 2))])) == {"n1"}
    assert known.count("n1") == (3, 0)
    assert known.changed(Batch(replaced=[])) == {"n1"}
    assert known.devices("n1") == dict(enumerate(dev("a", "b", "c")))
    assert known.ours == {}


def test_a_number_in_use_may_be_higher_than_there_are_devices() -> None:
    """Then there are numbers below it that nobody can have; devices that are free come first."""
    known = book("a", "b", "c")
    known.record(own(2, "c"))
    known.record(claim("theirs", "a"))
    assert known.devices("n1") == {0: DeviceId("n1", "b"), 2: DeviceId("n1", "c")}
    assert known.count("n1") == (3, 1)
    known.record(own(2, "", version=2))
    assert known.count("n1") == (2, 0)


def test_what_is_older_than_what_is_known_is_left_out() -> None:
    """An answer may be faster than the watch; a claim that was made anew is not mixed up with the one before."""
    known = book("a")
    known.record(own(0, "a", version=5, uid="new"))
    known.record(own(0, "", version=4, uid="new"))
    assert known.devices("n1") == {0: DeviceId("n1", "a")}
    known.record(own(0, "", version=3, uid="old"))
    assert known.gone(own(0, "", version=9, uid="old")) == set()
    assert known.ours[own(0).metadata.name].metadata.uid == "new"
    assert known.gone(own(0, "", version=9, uid="new")) == {"n1"}


def test_what_is_chosen_is_nobody_elses_until_it_is_settled() -> None:
    """Two pods at a time, before either claim is written; and a choice is made anew if somebody else was faster."""
    known = book("a", "b")
    first, second = (Place("n1", n, claim_name("n1", n, SETTINGS)) for n in (0, 1))
    assert known.choose(second) == DeviceId("n1", "b")
    known.record(claim("theirs", "a"))
    assert known.choose(first) is None
    assert known.devices("n1") == {1: DeviceId("n1", "b")}
    known.record(claim("more", "b"))
    assert known.choose(second) is None
    known.settled(second)
    assert known.devices("n1") == {}


def test_a_number_that_has_lost_its_device_gets_one_that_is_free() -> None:
    """The last, which is wanted last; and never one that is in use."""
    known = book("a", "b")
    third, second, first = (Place("n1", n, claim_name("n1", n, SETTINGS)) for n in (2, 1, 0))
    assert known.choose(third) == DeviceId("n1", "b")
    assert known.devices("n1") == {0: DeviceId("n1", "a"), 2: DeviceId("n1", "b")}
    assert known.choose(second) == DeviceId("n1", "a")
    assert known.choose(first) is None


def test_an_allocation_that_is_not_ours_to_understand_keeps_its_number() -> None:
    """It is no device, and nobody else gets the number."""
    known = book("a", "b")
    other = own(0, "a")
    results = msgspec.structs.replace(other.status.allocation.devices.results[0], driver="other")  # type: ignore[union-attr]
    document = msgspec.to_builtins(other)
    document["status"]["allocation"]["devices"]["results"] = [msgspec.to_builtins(results)]
    known.record(msgspec.convert(document, ResourceClaim))
    assert known.devices("n1") == {1: DeviceId("n1", "a"), 2: DeviceId("n1", "b")}


@pytest.mark.parametrize(
    "changes",
    [
        {"namespace": "else"},
        {"labels": {}},
        {"annotations": {}},
        {"annotations": {"flowsched.io/node": "n1", "flowsched.io/gpu": "1"}},
        {"annotations": {"flowsched.io/node": "n1", "flowsched.io/gpu": "²"}},
        {"name": "fs-gpu-x-0"},
    ],
)
def test_only_a_claim_with_all_marks_is_ours(changes: dict[str, Any]) -> None:
    """One of them is easily copied."""
    ours = own(0)
    assert place_of(ours, SETTINGS) == Place("n1", 0, claim_name("n1", 0, SETTINGS))
    theirs = msgspec.structs.replace(ours, metadata=msgspec.structs.replace(ours.metadata, **changes))
    assert place_of(theirs, SETTINGS) is None


def test_a_claim_that_loses_its_marks_is_somebody_elses() -> None:
    """Then its device is taken."""
    known = book("a", "b")
    known.record(own(0, "a"))
    plain = own(0, "a", version=2)
    known.record(msgspec.structs.replace(plain, metadata=msgspec.structs.replace(plain.metadata, labels={})))
    assert known.ours == {}
    assert known.devices("n1") == {0: DeviceId("n1", "b")}


def test_looking_on_takes_nothing() -> None:
    """Admin access is for monitoring."""
    known = book("a")
    told = msgspec.to_builtins(claim("monitor", "a"))
    told["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    known.record(msgspec.convert(told, ResourceClaim))
    assert known.count("n1") == (1, 0)


# --- what is written -----------------------------------------------------------------------------------------


def test_a_claim_is_on_one_device() -> None:
    """All of it, in literals; the name is a hash of installation and node."""
    place = Place("node-7", 3, claim_name("node-7", 3, SETTINGS))
    assert place.claim.startswith("fs-gpu-")
    assert place.claim.endswith("-3")
    assert claim_name("node-7", 3, replace(SETTINGS, instance="other")) != place.claim
    told = json.loads(claim_manifest(place, replace(SETTINGS, gpu=replace(SETTINGS.gpu, device_class="big"))))
    assert told["metadata"]["finalizers"] == [FINALIZER] == ["resource.kubernetes.io/delete-protection"]
    assert told["metadata"]["labels"] == {
        "app.kubernetes.io/name": "flowsched-task",
        "app.kubernetes.io/instance": "flowsched",
        "app.kubernetes.io/component": "gpu",
        "app.kubernetes.io/part-of": "flowsched",
        "app.kubernetes.io/managed-by": "flowsched",
    }
    assert told["metadata"]["annotations"] == {"flowsched.io/node": "node-7", "flowsched.io/gpu": "3"}
    exactly = {"deviceClassName": "big", "allocationMode": "ExactCount", "count": 1}
    assert told["spec"] == {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    assert SETTINGS.gpu.claimed_class == DRIVER


def test_an_allocation_is_what_kube_scheduler_would_write() -> None:
    """With the configuration of the class; and the node by its name."""
    place = Place("n1", 0, "c")
    config = {"opaque": {"driver": DRIVER, "parameters": {"sharing": "TimeSlicing"}}}
    assert allocation_of(place, DeviceId("p", "d"), SETTINGS, [config]) == {
        "devices": {
            "results": [{"request": "gpu", "driver": DRIVER, "pool": "p", "device": "d"}],
            "config": [{"source": "FromClass", "requests": ["gpu"], **config}],
        },
        "nodeSelector": {
            "nodeSelectorTerms": [
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}
            ]
        },
    }
    assert "config" not in allocation_of(place, DeviceId("p", "d"), SETTINGS)["devices"]


def test_patches_are_of_one_version() -> None:
    """With nobody left there is no allocation; others' finalizers stay."""
    known = claim("c", "a", 7, "u1", finalizers=["x", FINALIZER])
    precondition = {"resourceVersion": "7"}
    user = Consumer(resource="pods", name="p", uid="u2")
    assert json.loads(status_patch(known, [user])) == {
        "metadata": precondition,
        "status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "u2"}]},
    }
    assert json.loads(status_patch(known, [])) == {
        "metadata": precondition,
        "status": {"reservedFor": None, "allocation": None},
    }
    assert json.loads(finalizers_patch(known, protected=False))["metadata"] == {
        **precondition,
        "finalizers": ["x"],
    }
    assert json.loads(finalizers_patch(known, protected=True))["metadata"]["finalizers"] == ["x", FINALIZER]


def test_a_pod_names_its_claims_and_asks_for_no_extended_resource() -> None:
    """Whole devices and parts alike; the driver adds the devices, and the runtime none by itself."""
    for millis, ids in ((500, (1,)), (2000, (0, 3))):
        pod = w.task(gpu_millis=millis, gpu_ids=ids, inputs=(InputFile("reads", ("s3://a",)),))
        manifest = w.written(pod, SETTINGS)
        names = [claim_name("n1", number, SETTINGS) for number in ids]
        assert [place.claim for place in places_of(pod, SETTINGS)] == names
        assert manifest["spec"]["resourceClaims"] == [
            {"name": f"gpu-{number}", "resourceClaimName": name}
            for number, name in zip(ids, names, strict=True)
        ]
        task = w.container(manifest, "task")
        assert task["resources"]["claims"] == [{"name": f"gpu-{number}"} for number in ids]
        assert set(task["resources"]["limits"]) == {"memory"}
        assert "claims" not in w.container(manifest, "stage-in")["resources"]
        env, _ = w.started(manifest, "task", {})
        assert {key: value for key, value in env.items() if "DEVICE" in key} == {
            "NVIDIA_VISIBLE_DEVICES": "void"
        }
    assert "resourceClaims" not in w.written(w.task(), SETTINGS)["spec"]
    assert places_of(w.task(gpu_millis=500, gpu_ids=(1,)), w.SETTINGS) == []


def test_it_is_set_by_the_environment() -> None:
    """And refused where it makes no sense."""
    told = from_environment({"FLOWSCHED_GPU_FRACTIONS": "dra", "FLOWSCHED_GPU_DRIVER": "gpu.amd.com",
                             "FLOWSCHED_GPU_DEVICE_CLASS": "big"})  # fmt: skip
    assert (told.gpu_fractions, told.gpu_driver, told.gpu_device_class) == ("dra", "gpu.amd.com", "big")
    assert from_environment({}).gpu_fractions == "cuda"
    with pytest.raises(ConfigurationError, match="one of cuda, runtime, dra"):
        from_environment({"FLOWSCHED_GPU_FRACTIONS": "half"})
    with pytest.raises(ConfigurationError, match="does not go with"):
        from_environment({"FLOWSCHED_GPU_FRACTIONS": "dra", "FLOWSCHED_HAND_OVER": "volcano"})
