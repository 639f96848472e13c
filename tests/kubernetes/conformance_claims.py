"""How an API server treats claims on devices, as far as flowsched relies on it: the real one and our fake. Measured on 1.36."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.talk import Talk

API = "/apis/resource.k8s.io/v1"
FINALIZER = "resource.kubernetes.io/delete-protection"
USER = {"resource": "pods", "name": "p", "uid": "u-1"}
OTHER = {"resource": "pods", "name": "q", "uid": "u-2"}


def allocation(device: str = "gpu-a") -> dict[str, Any]:
    """Of the one request, on a node."""
    field = {"key": "metadata.name", "operator": "In", "values": ["n1"]}
    result = {"request": "gpu", "driver": "gpu.test", "pool": "n1", "device": device}
    return {
        "devices": {"results": [result]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
    }


def document(name: str, **metadata: Any) -> dict[str, Any]:
    """A claim on one device."""
    exactly = {"deviceClassName": "gpu.test", "allocationMode": "ExactCount", "count": 1}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, **metadata},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
    }


async def made(talk: Talk, name: str, *users: dict[str, str], **metadata: Any) -> tuple[str, dict[str, Any]]:
    """A new claim, allocated if anybody uses it: its path, and itself."""
    path = f"{API}/namespaces/{talk.namespace}/resourceclaims"
    status, claim = await talk.post(path, document(name, **metadata))
    assert status == 201, claim
    if users:
        given = {"status": {"allocation": allocation(), "reservedFor": list(users)}}
        status, claim = await talk.merge(f"{path}/{name}/status", given)
        assert status == 200, claim
    return f"{path}/{name}", claim


def fields(told: dict[str, Any]) -> list[str]:
    """What a refusal is about."""
    return [cause["field"] for cause in told["details"]["causes"]]


class ClaimConformance:
    """One behaviour per test. Needs a fixture `talk`."""

    async def test_claims_slices_and_classes_are_served(self, talk: Talk) -> None:
        """Claims with a status of their own."""
        status, found = await talk.get(API)
        assert status == 200
        names = {each["name"] for each in found["resources"]}
        assert {"resourceclaims", "resourceclaims/status", "resourceslices", "deviceclasses"} <= names

    async def test_a_claim_is_made_without_a_status(self, talk: Talk) -> None:
        """Whatever is said of it; its finalizers are taken as they are."""
        path = f"{API}/namespaces/{talk.namespace}/resourceclaims"
        given = {**document("a", finalizers=[FINALIZER]), "status": {"allocation": allocation()}}
        status, claim = await talk.post(path, given)
        assert (status, claim.get("status", {})) == (201, {})
        assert claim["metadata"]["finalizers"] == [FINALIZER]
        assert (await talk.post(path, given))[1]["reason"] == "AlreadyExists"

    async def test_what_a_claim_asks_for_never_changes(self, talk: Talk) -> None:
        """Its labels may; a status is not written there."""
        path, _ = await made(talk, "a")
        changed = {"devices": {"requests": []}}
        status, told = await talk.merge(path, {"spec": changed})
        assert (status, fields(told)) == (422, ["spec"])
        status, claim = await talk.merge(
            path, {"metadata": {"labels": {"a": "b"}}, "status": {"allocation": allocation()}}
        )
        assert (status, claim["metadata"]["labels"], claim.get("status", {})) == (200, {"a": "b"}, {})

    async def test_a_status_changes_nothing_else(self, talk: Talk) -> None:
        """No finalizers, no labels."""
        path, _ = await made(talk, "a", finalizers=[FINALIZER])
        meta = {"finalizers": None, "labels": {"a": "b"}}
        status, claim = await talk.merge(
            f"{path}/status", {"metadata": meta, "status": {"allocation": allocation()}}
        )
        assert (status, claim["status"]) == (200, {"allocation": allocation()})
        assert claim["metadata"]["finalizers"] == [FINALIZER]
        assert "labels" not in claim["metadata"]

    async def test_nobody_uses_what_is_not_allocated(self, talk: Talk) -> None:
        """Nor is it taken away from somebody who uses it."""
        path, _ = await made(talk, "a")
        status, told = await talk.merge(f"{path}/status", {"status": {"reservedFor": [USER]}})
        assert (status, fields(told)) == (422, ["status.reservedFor"])
        path, _ = await made(talk, "b", USER)
        status, told = await talk.merge(f"{path}/status", {"status": {"allocation": None}})
        assert (status, fields(told)) == (422, ["status.reservedFor"])
        status, claim = await talk.merge(
            f"{path}/status", {"status": {"allocation": None, "reservedFor": None}}
        )
        assert (status, claim["status"]) == (200, {})

    async def test_an_allocation_is_not_changed_but_taken_away(self, talk: Talk) -> None:
        """And then given anew."""
        path, _ = await made(talk, "a", USER)
        other = {"status": {"allocation": allocation("gpu-b")}}
        status, told = await talk.merge(f"{path}/status", other)
        assert (status, fields(told)) == (422, ["status.allocation"])
        await talk.merge(f"{path}/status", {"status": {"allocation": None, "reservedFor": None}})
        status, claim = await talk.merge(f"{path}/status", other)
        assert (status, claim["status"]) == (200, other["status"])

    async def test_a_claim_has_256_users_at_most_and_each_once(self, talk: Talk) -> None:
        """By uid."""
        path, _ = await made(talk, "a", USER)
        users = [{**USER, "uid": f"u-{number}"} for number in range(257)]
        status, told = await talk.merge(f"{path}/status", {"status": {"reservedFor": users}})
        assert (status, fields(told)) == (422, ["status.reservedFor"])
        status, told = await talk.merge(f"{path}/status", {"status": {"reservedFor": [USER, USER]}})
        assert (status, fields(told)) == (422, ["status.reservedFor[1]"])
        status, _ = await talk.merge(f"{path}/status", {"status": {"reservedFor": users[:256]}})
        assert status == 200

    async def test_a_patch_may_be_of_one_version(self, talk: Talk) -> None:
        """Of the object and of its status alike. No two objects have the same version; another uid is a fault, no conflict."""
        path, claim = await made(talk, "a", USER)
        uid, version = claim["metadata"]["uid"], claim["metadata"]["resourceVersion"]
        for part in ("", "/status"):
            wrong = {"metadata": {"uid": uid, "resourceVersion": "1"}, "status": {"reservedFor": [OTHER]}}
            status, told = await talk.merge(f"{path}{part}", wrong)
            assert (status, told["reason"]) == (409, "Conflict")
        another = {
            "metadata": {"uid": "another", "resourceVersion": version},
            "status": {"reservedFor": [OTHER]},
        }
        status, told = await talk.merge(f"{path}/status", another)
        assert (status, set(fields(told))) == (422, {"metadata.uid"})
        right = {
            "metadata": {"uid": uid, "resourceVersion": version},
            "status": {"reservedFor": [USER, OTHER]},
        }
        status, claim = await talk.merge(f"{path}/status", right)
        assert (status, claim["status"]["reservedFor"]) == (200, [USER, OTHER])

    async def test_a_protected_claim_is_marked_and_takes_nobody_in(self, talk: Talk) -> None:
        """It is gone when it is not protected any more."""
        path, claim = await made(talk, "a", USER, finalizers=[FINALIZER])
        status, told = await talk.delete(path)
        assert (status, told["kind"], told["metadata"]["uid"]) == (
            200,
            "ResourceClaim",
            claim["metadata"]["uid"],
        )
        assert told["metadata"]["deletionTimestamp"]
        status, told = await talk.merge(f"{path}/status", {"status": {"reservedFor": [USER, OTHER]}})
        assert (status, fields(told)) == (422, ["status.reservedFor"])
        status, _ = await talk.merge(f"{path}/status", {"status": {"reservedFor": None, "allocation": None}})
        assert status == 200
        assert (await talk.merge(path, {"metadata": {"finalizers": None}}))[0] == 200
        assert (await talk.get(path))[0] == 404

    async def test_a_claim_that_is_not_protected_goes_at_once(self, talk: Talk) -> None:
        """If it is the one, in the version that was looked at."""
        path, claim = await made(talk, "a")
        meta = claim["metadata"]
        wrong = {"preconditions": {"uid": meta["uid"], "resourceVersion": "1"}}
        assert (await talk.delete(path, wrong))[0] == 409
        right = {"preconditions": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}}
        status, told = await talk.delete(path, right)
        assert (status, told["kind"], told["metadata"]["uid"]) == (200, "ResourceClaim", meta["uid"])
        assert (await talk.get(path))[0] == 404

    async def test_a_slice_is_what_a_driver_says(self, talk: Talk) -> None:
        """It belongs to no namespace; a change of its spec is counted."""
        name = f"{talk.namespace}-slice"
        pool = {"name": "n1", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": "gpu.test", "nodeName": "n1", "pool": pool, "devices": [{"name": "gpu-a"}]}
        given = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": name},
            "spec": spec,
        }
        status, made = await talk.post(f"{API}/resourceslices", given)
        assert (status, made["metadata"]["generation"], made["spec"]["devices"]) == (
            201,
            1,
            [{"name": "gpu-a"}],
        )
        path = f"{API}/resourceslices/{name}"
        _, changed = await talk.merge(path, {"spec": {"pool": {**pool, "generation": 2}}})
        assert (changed["metadata"]["generation"], changed["spec"]["pool"]["generation"]) == (2, 2)
        assert name in await talk.names(f"{API}/resourceslices", fieldSelector="spec.driver=gpu.test")
        assert name not in await talk.names(f"{API}/resourceslices", fieldSelector="spec.nodeName=n2")
        assert (await talk.delete(path))[0] == 200
