"""How an API server behaves whose feature gates for native PodGroups are on: the real one and our fake.

See `conformance`. Measured on 1.36 with GenericWorkload and GangScheduling.
"""

from __future__ import annotations

from typing import Any

import pytest

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.objects.podgroup import NativePodGroup
from tests.kubernetes.talk import Talk

PROTECTION = "scheduling.k8s.io/podgroup-protection"


class NativeConformance:
    """One behaviour of native PodGroups per test."""

    @pytest.fixture
    def talk(self, client: Client, namespace: str) -> Talk:
        """In a namespace of the test's own."""
        return Talk(client, namespace)

    @pytest.fixture
    def groups(self, namespace: str) -> str:
        """The path of its groups."""
        return f"/apis/scheduling.k8s.io/v1alpha2/namespaces/{namespace}/podgroups"

    async def test_discovery_tells_that_they_are_served(self, talk: Talk) -> None:
        """With a status of their own; the group's preferred version stays v1."""
        status, found = await talk.get("/apis/scheduling.k8s.io/v1alpha2")
        assert status == 200
        assert {"podgroups", "podgroups/status"} <= {each["name"] for each in found["resources"]}
        _, about = await talk.get("/apis/scheduling.k8s.io")
        assert about["preferredVersion"]["version"] == "v1"

    async def test_a_group_is_protected_from_its_creation(self, talk: Talk, groups: str) -> None:
        """By a finalizer: deleted, it stays until a controller, or somebody else, takes that away."""
        status, created = await talk.post(groups, group("g", 3))
        assert status == 201
        assert created["metadata"]["finalizers"] == [PROTECTION]
        assert "generation" not in created["metadata"]
        status, ending = await talk.delete(f"{groups}/g")
        assert (status, "deletionTimestamp" in ending["metadata"]) == (200, True)
        assert (await talk.merge(f"{groups}/g", {"metadata": {"finalizers": None}}))[0] == 200
        assert (await talk.get(f"{groups}/g"))[0] == 404

    async def test_its_policy_is_checked_and_never_changes(self, talk: Talk, groups: str) -> None:
        """A gang of at least one, or basic; not another minimum later."""
        wrong: list[dict[str, Any]] = [{}, {"gang": {}}, {"gang": {"minCount": 0}}]
        for policy in wrong:
            document = group("g", 1)
            document["spec"]["schedulingPolicy"] = policy
            assert (await talk.post(groups, document))[0] == 422, policy
        await talk.post(groups, group("g", 3))
        patch = {"spec": {"schedulingPolicy": {"gang": {"minCount": 4}}}}
        status, told = await talk.merge(f"{groups}/g", patch)
        assert (status, told["details"]["causes"][0]["field"]) == (422, "spec.schedulingPolicy")

    async def test_its_conditions_need_a_moment(self, talk: Talk, groups: str) -> None:
        """Unlike those of pods; they are merged by type."""
        await talk.post(groups, group("g", 3))
        condition = {
            "type": "PodGroupScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "no room",
        }
        status, told = await talk.strategic(f"{groups}/g/status", {"status": {"conditions": [condition]}})
        assert (status, told["details"]["causes"][0]["field"]) == (
            422,
            "status.conditions[0].lastTransitionTime",
        )
        condition["lastTransitionTime"] = "2026-01-01T00:00:00Z"
        status, after = await talk.strategic(f"{groups}/g/status", {"status": {"conditions": [condition]}})
        assert (status, after["status"]["conditions"]) == (200, [condition])

    async def test_a_pod_keeps_its_group(self, talk: Talk) -> None:
        """Whether there is such a group or not; it never gets another, and is bound like any pod."""
        created = await talk.new_pod("a", schedulingGroup={"podGroupName": "missing"})
        assert created["spec"]["schedulingGroup"] == {"podGroupName": "missing"}
        patch = {"spec": {"schedulingGroup": {"podGroupName": "other"}}}
        assert (await talk.merge(f"{talk.pods}/a", patch))[0] == 422
        assert (await talk.bind("a", "some-node"))[0] == 201

    async def test_our_struct_reads_it(self, talk: Talk, groups: str) -> None:
        """What the server makes of it, nulls included."""
        await talk.post(groups, group("g", 3))
        found = await talk.client.get(f"{groups}/g", NativePodGroup)
        assert found is not None
        assert found.spec.scheduling_policy.gang is not None
        assert found.spec.scheduling_policy.gang.min_count == 3


def group(name: str, minimum: int) -> dict[str, Any]:
    """A gang."""
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": minimum}}},
    }
