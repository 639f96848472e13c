"""How an API server behaves, as far as flowsched relies on it: run on the real one and on our fake.

What stands here was measured on Kubernetes 1.36 first. A test that fails on the real one is wrong; one that fails on the
fake has found a fault of the fake. Watches are in `conformance_watches`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from flowsched.cluster.kubernetes.api.client import Client
from flowsched.cluster.kubernetes.objects.request_bodies import MERGE
from flowsched.workflow.resources import parse_quantity
from tests.kubernetes.conformance_claims import ClaimConformance
from tests.kubernetes.conformance_watches import WatchConformance
from tests.kubernetes.talk import PATIENCE_S, Talk, pod

LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
EVENTS = "/apis/events.k8s.io/v1/namespaces/{}/events"


def reason(answer: dict[str, Any]) -> str:
    """The reason of a refusal."""
    assert answer["kind"] == "Status"
    assert answer["status"] == "Failure"
    return str(answer["reason"])


def conditions(document: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Type of a condition -> (status, reason)."""
    found = document["status"].get("conditions", [])
    return {each["type"]: (each["status"], each.get("reason", "")) for each in found}


class Conformance(WatchConformance, ClaimConformance):
    """One behaviour per test. Needs fixtures `client` and `namespace`."""

    # Creating

    async def test_a_pod_gets_an_identity_and_defaults(self, talk: Talk) -> None:
        """Uid, version and moment by the server; a scheduler's name, a grace, a priority; phase Pending."""
        created = await talk.new_pod("a")
        assert created["metadata"]["uid"]
        assert int(created["metadata"]["resourceVersion"]) > 0
        assert created["metadata"]["creationTimestamp"].endswith("Z")
        spec = created["spec"]
        assert (spec["schedulerName"], spec["priority"], spec["restartPolicy"]) == (
            "default-scheduler",
            0,
            "Always",
        )
        assert (spec["terminationGracePeriodSeconds"], spec["preemptionPolicy"]) == (
            30,
            "PreemptLowerPriority",
        )
        assert [each["tolerationSeconds"] for each in spec["tolerations"]] == [300, 300]
        assert created["status"] == {"phase": "Pending", "qosClass": "BestEffort"}

    async def test_a_name_is_taken_once(self, talk: Talk) -> None:
        """The second create is refused, and the first pod is untouched."""
        first = await talk.new_pod("a")
        status, told = await talk.post(talk.pods, pod("a"))
        assert (status, reason(told)) == (409, "AlreadyExists")
        assert told["message"] == 'pods "a" already exists'
        assert (await talk.pod("a"))["metadata"]["uid"] == first["metadata"]["uid"]

    async def test_what_is_wrong_with_a_document_is_told_apart(self, talk: Talk) -> None:
        """A missing namespace, a bad name, no containers, another kind, no JSON, an unknown priority class."""
        status, told = await talk.post("/api/v1/namespaces/nowhere-at-all/pods", pod("a"))
        assert (status, reason(told), told["details"]["kind"]) == (404, "NotFound", "namespaces")
        status, told = await talk.post(talk.pods, pod("Not_A_Name"))
        assert (status, reason(told), told["details"]["causes"][0]["field"]) == (
            422,
            "Invalid",
            "metadata.name",
        )
        status, told = await talk.post(talk.pods, pod("a", containers=[]))
        assert (status, told["details"]["causes"][0]["field"]) == (422, "spec.containers")
        status, told = await talk.post(
            talk.pods, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}
        )
        assert (status, reason(told)) == (400, "BadRequest")
        answer = await talk.client.call("POST", talk.pods, body=b"{nothing")
        assert (answer.status, answer.reason) == (400, "BadRequest")
        status, told = await talk.post(talk.pods, pod("a", priorityClassName="no-such-class"))
        assert (status, reason(told)) == (403, "Forbidden")

    async def test_a_label_must_be_one(self, talk: Talk) -> None:
        """Keys and values with blanks are refused."""
        for labels in ({"a b": "x"}, {"a": "x y"}, {"a": "x" * 64}):
            status, told = await talk.post(talk.pods, pod("a", metadata={"labels": labels}))
            assert (status, told["details"]["causes"][0]["field"]) == (422, "metadata.labels")

    async def test_an_owner_has_a_uid(self, talk: Talk) -> None:
        """A reference without one is refused."""
        owners = [{"apiVersion": "v1", "kind": "Pod", "name": "b"}]
        status, told = await talk.post(talk.pods, pod("a", metadata={"ownerReferences": owners}))
        assert (status, told["details"]["causes"][0]["field"]) == (422, "metadata.ownerReferences.uid")

    async def test_names_can_be_generated(self, talk: Talk) -> None:
        """From a prefix."""
        document = pod("")
        document["metadata"] = {"generateName": "gen-"}
        status, created = await talk.post(talk.pods, document)
        assert status == 201
        assert created["metadata"]["name"].startswith("gen-")
        assert len(created["metadata"]["name"]) > len("gen-")

    async def test_a_dry_run_changes_nothing(self, talk: Talk) -> None:
        """It is answered as if."""
        status, _ = await talk.post(talk.pods, pod("a"), dryRun="All")
        assert status == 201
        assert (await talk.get(f"{talk.pods}/a"))[0] == 404

    async def test_a_priority_class_gives_the_priority(self, talk: Talk) -> None:
        """Its value and preemption policy are written into the pod."""
        path, name = "/apis/scheduling.k8s.io/v1/priorityclasses", f"high-{talk.namespace}"
        level = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        assert (await talk.post(path, level | {"value": 1000, "preemptionPolicy": "Never"}))[0] == 201
        async with asyncio.timeout(PATIENCE_S):
            while True:  # admission knows the class a moment later
                status, created = await talk.post(talk.pods, pod("a", priorityClassName=name))
                if status == 201:
                    break
                await asyncio.sleep(0.1)
        assert (created["spec"]["priority"], created["spec"]["preemptionPolicy"]) == (1000, "Never")
        await talk.delete(f"{path}/{name}")

    async def test_requests_default_to_limits_and_are_written_as_text(self, talk: Talk) -> None:
        """Numbers become quantities; a pod whose requests are its limits is Guaranteed."""
        resources = {"limits": {"cpu": 1.5, "memory": "1Gi", "nvidia.com/gpu": 1}}
        created = await talk.new_pod("a", containers=[{"name": "main", "image": "i", "resources": resources}])
        requests = created["spec"]["containers"][0]["resources"]["requests"]
        assert all(isinstance(value, str) for value in requests.values())
        assert {key: parse_quantity(value, 1000) for key, value in requests.items()} == {
            "cpu": 1500,
            "memory": 1000 << 30,
            "nvidia.com/gpu": 1000,
        }
        assert created["status"]["qosClass"] == "Guaranteed"

    async def test_the_native_group_of_a_pod_is_dropped_where_the_gate_is_off(self, talk: Talk) -> None:
        """Silently, so the form must be chosen by discovery."""
        created = await talk.new_pod("a", schedulingGroup={"podGroupName": "g"})
        assert "schedulingGroup" not in created["spec"]
        assert (await talk.get("/apis/scheduling.k8s.io/v1alpha2"))[0] == 404

    # Binding

    async def test_a_bind_assigns_the_node_in_one_write(self, talk: Talk) -> None:
        """201 and a Status; the pod has the node, PodScheduled is True, one version later."""
        created = await talk.new_pod("a")
        status, told = await talk.bind("a", "some-node", uid=created["metadata"]["uid"])
        assert (status, told["kind"], told["status"]) == (201, "Status", "Success")
        bound = await talk.pod("a")
        assert bound["spec"]["nodeName"] == "some-node"
        assert conditions(bound) == {"PodScheduled": ("True", "")}
        assert bound["metadata"]["generation"] == created["metadata"]["generation"]

    async def test_annotations_of_a_binding_reach_the_pod(self, talk: Talk) -> None:
        """With the bind, in the same write; its labels too."""
        await talk.new_pod("a", metadata={"annotations": {"was": "there"}})
        await talk.bind("a", "some-node", annotations={"flowsched.io/decision": "7"}, labels={"l": "m"})
        metadata = (await talk.pod("a"))["metadata"]
        assert metadata["annotations"] == {"was": "there", "flowsched.io/decision": "7"}
        assert metadata["labels"]["l"] == "m"

    async def test_a_bind_of_another_pod_of_the_name_is_refused(self, talk: Talk) -> None:
        """The uid is a precondition."""
        await talk.new_pod("a")
        status, told = await talk.bind("a", "some-node", uid="11111111-1111-4111-8111-111111111111")
        assert (status, reason(told)) == (409, "Conflict")
        assert "UID in precondition" in told["message"]
        assert "nodeName" not in (await talk.pod("a"))["spec"]

    async def test_a_bind_of_an_older_version_is_refused(self, talk: Talk) -> None:
        """The resourceVersion is a precondition, if it is given."""
        created = await talk.new_pod("a")
        version = created["metadata"]["resourceVersion"]
        await talk.merge(f"{talk.pods}/a", {"metadata": {"labels": {"x": "y"}}})
        status, told = await talk.bind("a", "some-node", resourceVersion=version)
        assert (status, reason(told)) == (409, "Conflict")
        assert "ResourceVersion in precondition" in told["message"]
        version = (await talk.pod("a"))["metadata"]["resourceVersion"]
        assert (await talk.bind("a", "some-node", resourceVersion=version))[0] == 201

    @pytest.mark.parametrize("again", ["some-node", "other-node"])
    async def test_a_pod_is_bound_once(self, talk: Talk, again: str) -> None:
        """Also to the same node: after a lost answer one has to look."""
        await talk.new_pod("a")
        await talk.bind("a", "some-node")
        status, told = await talk.bind("a", again)
        assert (status, reason(told), told["details"]["kind"]) == (409, "Conflict", "pods/binding")
        assert 'already assigned to node "some-node"' in told["message"]

    async def test_a_gated_pod_is_not_bound(self, talk: Talk) -> None:
        """As long as one gate is left."""
        await talk.new_pod("a", schedulingGates=[{"name": "example.com/quota"}])
        status, told = await talk.bind("a", "some-node")
        assert (status, reason(told)) == (409, "Conflict")
        assert "non-empty .spec.schedulingGates" in told["message"]

    async def test_a_pod_that_is_ending_is_not_bound(self, talk: Talk) -> None:
        """It has a deletionTimestamp, and is held by a finalizer."""
        await talk.new_pod("a", metadata={"finalizers": ["example.com/hold"]})
        await talk.delete(f"{talk.pods}/a")
        status, told = await talk.bind("a", "some-node")
        assert (status, reason(told)) == (409, "Conflict")
        assert "is being deleted" in told["message"]
        await talk.merge(f"{talk.pods}/a", {"metadata": {"finalizers": None}})

    async def test_a_missing_pod_is_not_bound(self, talk: Talk) -> None:
        """404."""
        status, told = await talk.bind("a", "some-node")
        assert (status, reason(told)) == (404, "NotFound")

    async def test_a_missing_node_is_no_hindrance(self, talk: Talk) -> None:
        """Neither to a bind nor to a pod created with its node: nobody checks."""
        await talk.new_pod("a")
        assert (await talk.bind("a", "no-such-node"))[0] == 201
        created = await talk.new_pod("b", nodeName="no-such-node")
        assert created["spec"]["nodeName"] == "no-such-node"

    async def test_a_bind_can_be_tried(self, talk: Talk) -> None:
        """A dry run checks the preconditions and binds nothing."""
        await talk.new_pod("a")
        assert (await talk.bind("a", "some-node", params={"dryRun": "All"}))[0] == 201
        assert "nodeName" not in (await talk.pod("a"))["spec"]
        status, _ = await talk.bind("a", "some-node", params={"dryRun": "All"}, uid="another")
        assert status == 409

    async def test_a_binding_must_name_its_pod_and_a_node(self, talk: Talk) -> None:
        """400 for another name; an empty or strange target is, oddly, 500 without a reason."""
        await talk.new_pod("a")
        wrong = {"metadata": {"name": "b"}, "target": {"kind": "Node", "name": "some-node"}}
        assert (await talk.post(f"{talk.pods}/a/binding", wrong))[0] == 400
        for target in ({"kind": "Node", "name": ""}, {"kind": "Pod", "name": "x"}):
            status, told = await talk.post(
                f"{talk.pods}/a/binding", {"metadata": {"name": "a"}, "target": target}
            )
            assert (status, told.get("reason", "")) == (500, "")

    async def test_a_bind_clears_the_nomination(self, talk: Talk) -> None:
        """And what PodScheduled=False said."""
        await talk.new_pod("a")
        waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
        patch = {"status": {"nominatedNodeName": "some-node", "conditions": [waiting]}}
        assert (await talk.strategic(f"{talk.pods}/a/status", patch))[0] == 200
        await talk.bind("a", "other-node")
        bound = await talk.pod("a")
        assert "nominatedNodeName" not in bound["status"]
        assert conditions(bound) == {"PodScheduled": ("True", "")}

    async def test_the_zone_of_the_node_is_copied_to_the_pod(self, talk: Talk) -> None:
        """As labels, with the bind."""
        node = f"zoned-{talk.namespace}"
        labels = {"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r1", "other": "x"}
        await talk.post(
            "/api/v1/nodes",
            {"kind": "Node", "apiVersion": "v1", "metadata": {"name": node, "labels": labels}},
        )
        found: dict[str, str] = {}
        async with asyncio.timeout(PATIENCE_S):
            for number in range(1000):  # admission knows the node a moment later
                await talk.new_pod(f"a{number}")
                await talk.bind(f"a{number}", node)
                found = (await talk.pod(f"a{number}"))["metadata"].get("labels", {})
                if found:
                    break
                await asyncio.sleep(0.1)
        assert found == {"topology.kubernetes.io/zone": "z1", "topology.kubernetes.io/region": "r1"}
        await talk.delete(f"/api/v1/nodes/{node}")

    # Gates

    async def test_a_gated_pod_says_so(self, talk: Talk) -> None:
        """PodScheduled is False from the beginning; it has no node and may not get one."""
        created = await talk.new_pod("a", schedulingGates=[{"name": "example.com/quota"}])
        assert conditions(created) == {"PodScheduled": ("False", "SchedulingGated")}
        gated = pod("b", schedulingGates=[{"name": "example.com/quota"}], nodeName="some-node")
        status, told = await talk.post(talk.pods, gated)
        assert (status, told["details"]["causes"][0]["field"]) == (422, "spec.nodeName")

    async def test_gates_are_only_ever_removed(self, talk: Talk) -> None:
        """By a merge patch; adding one later is refused."""
        await talk.new_pod("a", schedulingGates=[{"name": "example.com/quota"}])
        status, after = await talk.merge(f"{talk.pods}/a", {"spec": {"schedulingGates": None}})
        assert status == 200
        assert "schedulingGates" not in after["spec"]
        status, told = await talk.merge(
            f"{talk.pods}/a", {"spec": {"schedulingGates": [{"name": "example.com/x"}]}}
        )
        assert (status, reason(told)) == (422, "Invalid")

    async def test_a_node_selector_can_be_added_while_a_pod_is_gated(self, talk: Talk) -> None:
        """Not changed, and not without a gate."""
        await talk.new_pod("a", schedulingGates=[{"name": "example.com/quota"}])
        path = f"{talk.pods}/a"
        assert (await talk.merge(path, {"spec": {"nodeSelector": {"disk": "ssd"}}}))[0] == 200
        assert (await talk.merge(path, {"spec": {"nodeSelector": {"disk": "hdd"}}}))[0] == 422
        assert (await talk.merge(path, {"spec": {"schedulingGates": None}}))[0] == 200
        assert (await talk.merge(path, {"spec": {"nodeSelector": {"zone": "z"}}}))[0] == 422

    # Changing

    async def test_a_patch_of_the_status_changes_the_status_only(self, talk: Talk) -> None:
        """What it says of the spec is left out; labels and annotations are taken."""
        await talk.new_pod("a")
        patch = {
            "spec": {"nodeName": "x"},
            "metadata": {"annotations": {"k": "v"}},
            "status": {"phase": "Running", "hostIP": "127.0.0.1"},
        }
        status, after = await talk.merge(f"{talk.pods}/a/status", patch)
        assert (status, after["status"]["phase"], after["status"]["hostIP"]) == (200, "Running", "127.0.0.1")
        assert "nodeName" not in after["spec"]
        assert after["metadata"]["annotations"] == {"k": "v"}

    async def test_a_patch_of_the_object_leaves_the_status(self, talk: Talk) -> None:
        """It is answered by 200, and nothing happens: not even a new version."""
        created = await talk.new_pod("a")
        status, after = await talk.merge(f"{talk.pods}/a", {"status": {"phase": "Running"}})
        assert (status, after["status"]["phase"]) == (200, "Pending")
        assert after["metadata"]["resourceVersion"] == created["metadata"]["resourceVersion"]

    async def test_a_strategic_patch_merges_conditions_by_type(self, talk: Talk) -> None:
        """One replaced, one added, and a moment that nobody gave is null."""
        await talk.new_pod("a")
        path = f"{talk.pods}/a/status"
        waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
        await talk.strategic(path, {"status": {"conditions": [waiting]}})
        _, after = await talk.strategic(
            path, {"status": {"conditions": [{"type": "Other", "status": "True"}]}}
        )
        assert conditions(after) == {"PodScheduled": ("False", "Unschedulable"), "Other": ("True", "")}
        assert {each["lastTransitionTime"] for each in after["status"]["conditions"]} == {None}
        waiting["message"] = "still no room"
        _, after = await talk.strategic(path, {"status": {"conditions": [waiting]}})
        assert len(after["status"]["conditions"]) == 2

    async def test_a_merge_patch_replaces_lists(self, talk: Talk) -> None:
        """So a condition that is not in it is gone."""
        await talk.new_pod("a")
        path = f"{talk.pods}/a/status"
        await talk.merge(path, {"status": {"conditions": [{"type": "One", "status": "True"}]}})
        _, after = await talk.merge(path, {"status": {"conditions": [{"type": "Two", "status": "True"}]}})
        assert conditions(after) == {"Two": ("True", "")}

    async def test_a_patch_has_preconditions(self, talk: Talk) -> None:
        """Another resourceVersion: 409. Another uid: 422. No such pod: 404. No known format: 415."""
        await talk.new_pod("a")
        path = f"{talk.pods}/a"
        status, told = await talk.merge(path, {"metadata": {"resourceVersion": "1", "labels": {"x": "y"}}})
        assert (status, reason(told)) == (409, "Conflict")
        status, told = await talk.merge(path, {"metadata": {"uid": "another", "labels": {"x": "y"}}})
        assert (status, reason(told)) == (422, "Invalid")
        assert (await talk.merge(f"{talk.pods}/b", {"metadata": {}}))[0] == 404
        assert (await talk.ask("PATCH", path, {"metadata": {}}, content_type="application/json"))[0] == 415

    async def test_what_a_pod_runs_can_hardly_be_changed(self, talk: Talk) -> None:
        """Images can, and nothing else that matters to placement; not even the node."""
        await talk.new_pod("a")
        path = f"{talk.pods}/a"
        _, after = await talk.strategic(path, {"spec": {"containers": [{"name": "main", "image": "new:2"}]}})
        assert after["spec"]["containers"][0]["image"] == "new:2"
        for change in (
            {"nodeName": "x"},
            {"schedulerName": "x"},
            {"priority": 7},
            {"nodeSelector": {"a": "b"}},
        ):
            status, told = await talk.merge(path, {"spec": change})
            assert (status, reason(told)) == (422, "Invalid"), change

    async def test_a_container_that_has_ended_for_good_does_not_run_again(self, talk: Talk) -> None:
        """With restart policy Never; its pod's phase is not guarded."""
        await talk.new_pod("a", restartPolicy="Never", nodeName="some-node")
        path = f"{talk.pods}/a/status"

        def states(state: dict[str, Any]) -> dict[str, Any]:
            told = {
                "name": "main",
                "image": "i",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": state,
            }
            return {"status": {"containerStatuses": [told]}}

        assert (await talk.merge(path, states({"terminated": {"exitCode": 1}})))[0] == 200
        status, told = await talk.merge(path, states({"running": {}}))
        assert (status, reason(told)) == (422, "Invalid")
        await talk.merge(path, {"status": {"phase": "Failed"}})
        assert (await talk.merge(path, {"status": {"phase": "Running"}}))[1]["status"]["phase"] == "Running"

    async def test_a_replacement_needs_the_version_where_leaders_are_elected(self, talk: Talk) -> None:
        """A Lease: create once; replace with the version that was read; otherwise conflict. PUT of a new one creates."""
        path = LEASES.format(talk.namespace)
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "leader"}}
        lease["spec"] = {"holderIdentity": "a", "leaseDurationSeconds": 15}
        status, held = await talk.post(path, lease)
        assert status == 201
        assert reason((await talk.post(path, lease))[1]) == "AlreadyExists"
        held["spec"]["holderIdentity"] = "b"
        status, after = await talk.put(f"{path}/leader", held)
        assert (status, after["spec"]["holderIdentity"]) == (200, "b")
        status, told = await talk.put(f"{path}/leader", held)
        assert (status, reason(told)) == (409, "Conflict")
        del held["metadata"]["resourceVersion"]
        assert (await talk.put(f"{path}/leader", held))[0] == 422
        assert (await talk.put(f"{path}/other", {**lease, "metadata": {"name": "other"}}))[0] == 201

    async def test_a_node_is_created_with_its_status(self, talk: Talk) -> None:
        """And patched like a kubelet does: amounts are merged, addresses by type, taints are replaced."""
        name = f"node-{talk.namespace}"
        path = f"/api/v1/nodes/{name}"
        amounts = {"cpu": "4", "memory": "8Gi"}
        document = {
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": {"name": name},
            "status": {"allocatable": amounts},
        }
        status, created = await talk.post("/api/v1/nodes", document)
        assert (status, created["status"]["allocatable"]) == (201, amounts)
        for kind, address in (("InternalIP", "127.0.0.1"), ("Hostname", name)):
            patch = {"addresses": [{"type": kind, "address": address}], "allocatable": {"pods": "110"}}
            _, after = await talk.strategic(f"{path}/status", {"status": patch})
        assert {each["type"] for each in after["status"]["addresses"]} == {"InternalIP", "Hostname"}
        assert after["status"]["allocatable"] == {**amounts, "pods": "110"}
        for key in ("one", "two"):
            patch = {"spec": {"taints": [{"key": key, "effect": "NoSchedule"}]}}
            _, after = await talk.strategic(path, patch)
        assert [taint["key"] for taint in after["spec"]["taints"]] == ["two"]
        status, told = await talk.delete(path)
        assert (status, told["status"], told["details"]["uid"]) == (
            200,
            "Success",
            created["metadata"]["uid"],
        )

    # Ending

    async def test_an_unbound_pod_ends_at_once(self, talk: Talk) -> None:
        """Whatever its grace; the answer is the pod as it was."""
        await talk.new_pod("a", terminationGracePeriodSeconds=30)
        status, last = await talk.delete(f"{talk.pods}/a")
        assert (status, last["kind"], last["metadata"]["deletionGracePeriodSeconds"]) == (200, "Pod", 0)
        assert (await talk.get(f"{talk.pods}/a"))[0] == 404
        assert (await talk.delete(f"{talk.pods}/a"))[0] == 404

    async def test_a_bound_pod_waits_for_its_kubelet(self, talk: Talk) -> None:
        """It stays with a deletionTimestamp; the kubelet's own DELETE, with grace 0, ends it."""
        await talk.new_pod("a", terminationGracePeriodSeconds=30)
        await talk.bind("a", "some-node")
        path = f"{talk.pods}/a"
        await talk.until_cached("a", lambda pod: pod["spec"].get("nodeName"))
        _, ending = await talk.delete(path)
        assert ending["metadata"]["deletionGracePeriodSeconds"] == 30
        again = await talk.delete(path)
        assert again[1]["metadata"]["deletionTimestamp"] == ending["metadata"]["deletionTimestamp"]
        _, sooner = await talk.delete(path, {"gracePeriodSeconds": 5})
        assert sooner["metadata"]["deletionGracePeriodSeconds"] == 5
        assert (await talk.delete(path, {"gracePeriodSeconds": 0}))[0] == 200
        assert (await talk.get(path))[0] == 404

    async def test_a_bound_pod_that_has_ended_or_wants_no_grace_goes_at_once(self, talk: Talk) -> None:
        """Phase Succeeded, or terminationGracePeriodSeconds 0."""
        await talk.new_pod("a", nodeName="some-node")
        await talk.merge(f"{talk.pods}/a/status", {"status": {"phase": "Succeeded"}})
        await talk.new_pod("b", nodeName="some-node", terminationGracePeriodSeconds=0)
        for name in ("a", "b"):
            await talk.delete(f"{talk.pods}/{name}")
            assert (await talk.get(f"{talk.pods}/{name}"))[0] == 404

    async def test_a_delete_has_preconditions(self, talk: Talk) -> None:
        """The uid and the version."""
        created = await talk.new_pod("a")
        path, uid = f"{talk.pods}/a", created["metadata"]["uid"]
        for wrong in ({"uid": "another"}, {"resourceVersion": "1"}, {"uid": uid, "resourceVersion": "1"}):
            status, told = await talk.delete(path, {"preconditions": wrong})
            assert (status, reason(told)) == (409, "Conflict")
        assert (await talk.delete(path, {"preconditions": {"uid": uid}}))[0] == 200

    async def test_a_finalizer_holds_an_object(self, talk: Talk) -> None:
        """Until it is removed."""
        await talk.new_pod("a", metadata={"finalizers": ["example.com/hold"]})
        path = f"{talk.pods}/a"
        _, ending = await talk.delete(path, {"gracePeriodSeconds": 0})
        assert ending["metadata"]["finalizers"] == ["example.com/hold"]
        assert (await talk.get(path))[0] == 200
        status, last = await talk.merge(path, {"metadata": {"finalizers": None}})
        assert (status, "deletionTimestamp" in last["metadata"]) == (200, True)
        assert (await talk.get(path))[0] == 404

    async def test_many_can_be_deleted_by_a_selector(self, talk: Talk) -> None:
        """The answer lists what was deleted."""
        for number in range(4):
            await talk.new_pod(f"a{number}", metadata={"labels": {"odd": str(number % 2)}})
        status, told = await talk.delete(talk.pods, labelSelector="odd=1")
        assert (status, told["kind"]) == (200, "PodList")
        assert [item["metadata"]["name"] for item in told["items"]] == ["a1", "a3"]
        assert await talk.names(talk.pods) == ["a0", "a2"]
        assert len((await talk.delete(talk.pods))[1]["items"]) == 2
        assert (await talk.delete(talk.pods))[1]["items"] == []

    async def test_an_eviction_ends_a_pod(self, talk: Talk) -> None:
        """As a DELETE does; a missing pod is not found."""
        await talk.new_pod("a", nodeName="some-node")
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
        eviction["deleteOptions"] = {"gracePeriodSeconds": 0}
        assert (await talk.post(f"{talk.pods}/a/eviction", eviction))[0] == 201
        assert (await talk.get(f"{talk.pods}/a"))[0] == 404
        assert (await talk.post(f"{talk.pods}/a/eviction", eviction))[0] == 404

    async def test_an_eviction_overwrites_the_reason_of_a_disruption(self, talk: Talk) -> None:
        """Whoever wants another reason there writes it again while the pod is leaving."""
        await talk.new_pod("a", nodeName="some-node", terminationGracePeriodSeconds=30)
        target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        mine = {"status": {"conditions": [target]}}
        await talk.merge(f"{talk.pods}/a/status", mine)
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a"}}
        assert (await talk.post(f"{talk.pods}/a/eviction", eviction))[0] == 201
        conditions = (await talk.get(f"{talk.pods}/a"))[1]["status"]["conditions"]
        assert [(each["type"], each["reason"]) for each in conditions] == [
            ("DisruptionTarget", "EvictionByEvictionAPI")
        ]
        assert (await talk.merge(f"{talk.pods}/a/status", mine))[0] == 200
        conditions = (await talk.get(f"{talk.pods}/a"))[1]["status"]["conditions"]
        assert [each["reason"] for each in conditions] == ["PreemptionByScheduler"]

    async def test_a_disruption_budget_is_asked_before_anything_else(
        self, talk: Talk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It lets one go, even one that the eviction's uid then keeps from going; pods that do not run yet are not protected."""
        monkeypatch.setattr("flowsched.cluster.kubernetes.api.client.TRIES", 1)  # a refusal is one
        labels = {"labels": {"app": "guarded"}}
        for name in ("a", "b", "c"):
            await talk.new_pod(name, nodeName="some-node", metadata=labels)
        for name in ("a", "b"):
            serves = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            await talk.merge(f"{talk.pods}/{name}/status", {"status": serves})
        path = f"/apis/policy/v1/namespaces/{talk.namespace}/poddisruptionbudgets"
        spec = {"maxUnavailable": 1, "selector": {"matchLabels": labels["labels"]}}
        budget = {"kind": "PodDisruptionBudget", "apiVersion": "policy/v1", "metadata": {"name": "p"}}
        await talk.post(path, {**budget, "spec": spec})

        async def evict(name: str, uid: str | None = None) -> tuple[int, str]:
            eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid} if uid else None}
            status, told = await talk.post(
                f"{talk.pods}/{name}/eviction", {**eviction, "deleteOptions": options}
            )
            return status, told.get("reason", "")

        counts = {"currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}
        healthy = {"status": {"observedGeneration": 1, "disruptionsAllowed": 1, **counts}}
        assert await evict("a") == (429, "TooManyRequests")  # nobody has worked it out yet
        await talk.merge(f"{path}/p/status", healthy)
        assert await evict("a", uid="another") == (409, "Conflict")
        assert await evict("a") == (429, "TooManyRequests")
        await talk.merge(f"{path}/p/status", healthy)
        assert await evict("a") == (201, "")
        assert await evict("b") == (429, "TooManyRequests")
        assert (await talk.get(f"{path}/p"))[1]["status"]["disruptionsAllowed"] == 0
        assert await evict("c") == (201, "")

    async def test_a_namespace_that_is_ending_takes_nothing(self, talk: Talk) -> None:
        """403 with a cause, until its finalizer goes, which is a controller manager's to take; then 404."""
        name = f"ending-{talk.namespace}"
        await talk.post(
            "/api/v1/namespaces", {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": name}}
        )
        status, ending = await talk.delete(f"/api/v1/namespaces/{name}")
        assert (status, ending["status"]["phase"]) == (200, "Terminating")
        status, told = await talk.post(f"/api/v1/namespaces/{name}/pods", pod("a"))
        assert (status, reason(told)) == (403, "Forbidden")
        assert told["details"]["causes"][0]["reason"] == "NamespaceTerminating"
        done = ending | {"spec": {"finalizers": []}}
        assert (await talk.put(f"/api/v1/namespaces/{name}/finalize", done))[0] == 200
        for _ in range(200):  # a real server looks namespaces up in a cache, which follows
            status, told = await talk.post(f"/api/v1/namespaces/{name}/pods", pod("a"))
            if status != 403:
                break
            await asyncio.sleep(0.05)
        assert (status, reason(told), told["message"]) == (
            404,
            "NotFound",
            f'namespaces "{name}" not found',
        )

    # Listing

    async def test_lists_can_be_selected_by_labels(self, talk: Talk) -> None:
        """Equal, not equal, in, not in, present, absent, and all of them."""
        for number in range(3):
            await talk.new_pod(f"a{number}", metadata={"labels": {"k": f"v{number}", "odd": str(number % 2)}})
        await talk.new_pod("b")
        expected = {
            "k in (v1,v2)": ["a1", "a2"],
            "k=v1": ["a1"],
            "k!=v1": ["a0", "a2", "b"],
            "k notin (v0, v1)": ["a2", "b"],
            "k": ["a0", "a1", "a2"],
            "!k": ["b"],
            "k,odd=0": ["a0", "a2"],
        }
        assert {text: await talk.names(talk.pods, labelSelector=text) for text in expected} == expected
        assert (await talk.get(talk.pods, labelSelector="a in b"))[0] == 400

    async def test_lists_can_be_selected_by_fields(self, talk: Talk) -> None:
        """Of pods: node, scheduler, phase, name. Anything else is refused."""
        await talk.new_pod("a", schedulerName="flowsched")
        await talk.new_pod("b", nodeName="some-node")
        await talk.merge(f"{talk.pods}/b/status", {"status": {"phase": "Succeeded"}})
        expected = {
            "spec.nodeName=": ["a"],
            "spec.nodeName=some-node": ["b"],
            "spec.nodeName!=": ["b"],
            "spec.schedulerName=flowsched": ["a"],
            "status.phase!=Succeeded,status.phase!=Failed": ["a"],
            "metadata.name=b": ["b"],
        }
        assert {text: await talk.names(talk.pods, fieldSelector=text) for text in expected} == expected
        status, told = await talk.get(talk.pods, fieldSelector="spec.priority=0")
        assert (status, told["message"]) == (400, "field label not supported: spec.priority")

    async def test_a_list_comes_in_pages_of_one_moment(self, talk: Talk) -> None:
        """What is created between two pages is not in the second; all pages have the first one's version."""
        for number in range(5):
            await talk.new_pod(f"a{number}")
        _, first = await talk.get(talk.pods, limit="2")
        assert first["metadata"]["remainingItemCount"] == 3
        await talk.new_pod("a2b")
        seen, page = [item["metadata"]["name"] for item in first["items"]], first
        while token := page["metadata"].get("continue"):
            _, page = await talk.get(talk.pods, limit="2", **{"continue": token})
            assert page["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
            seen += [item["metadata"]["name"] for item in page["items"]]
        assert seen == ["a0", "a1", "a2", "a3", "a4"]
        status, told = await talk.get(talk.pods, limit="2", **{"continue": "nonsense"})
        assert (status, reason(told)) == (400, "BadRequest")

    async def test_items_of_a_list_do_not_repeat_their_kind(self, talk: Talk) -> None:
        """The list says it once; a single object says it itself."""
        await talk.new_pod("a")
        _, found = await talk.get(talk.pods)
        assert (found["kind"], found["apiVersion"]) == ("PodList", "v1")
        assert sorted(found["items"][0]) == ["metadata", "spec", "status"]
        assert (await talk.pod("a"))["kind"] == "Pod"

    # Kinds

    async def test_what_is_not_served_is_told_by_discovery(self, talk: Talk) -> None:
        """A known group answers with its kinds, an unknown one with 404, and so do its paths."""
        status, found = await talk.get("/apis/coordination.k8s.io/v1")
        assert (status, found["kind"]) == (200, "APIResourceList")
        assert found["resources"][0]["name"] == "leases"
        _, groups = await talk.get("/apis")
        assert "coordination.k8s.io" in [group["name"] for group in groups["groups"]]
        for path in (
            "/apis/no.such.group/v1",
            "/apis/no.such.group/v1/things",
            "/api/v1/things",
            "/nonsense",
        ):
            assert (await talk.get(path))[0] == 404

    async def test_custom_resources(self, talk: Talk) -> None:
        """Served after their definition; no strategic patches; a status apart, with which not even labels change."""
        group = f"g{talk.namespace}.example.com"
        await define(talk, group)
        path = f"/apis/{group}/v1/namespaces/{talk.namespace}/things"
        document = {
            "apiVersion": f"{group}/v1",
            "kind": "Thing",
            "metadata": {"name": "a"},
            "spec": {"minMember": 2},
        }
        status, created = await talk.post(path, document | {"status": {"phase": "Running"}})
        assert (status, created["metadata"]["generation"], "status" in created) == (201, 1, False)
        patch = {"status": {"phase": "Pending"}, "spec": {"minMember": 9}, "metadata": {"labels": {"x": "y"}}}
        _, after = await talk.merge(f"{path}/a/status", patch)
        assert (after["status"], after["spec"], after["metadata"].get("labels")) == (
            {"phase": "Pending"},
            {"minMember": 2},
            None,
        )
        _, after = await talk.merge(f"{path}/a", patch | {"status": {"phase": "Failed"}})
        assert (after["status"]["phase"], after["spec"]["minMember"], after["metadata"]["generation"]) == (
            "Pending",
            9,
            2,
        )
        assert (await talk.strategic(f"{path}/a", {"spec": {"minMember": 1}}))[0] == 415
        assert (await talk.put(f"{path}/a", document))[0] == 422
        assert (await talk.post(path, {"metadata": {"name": "b"}}))[0] == 400
        _, found = await talk.get(path)
        assert found["items"][0]["kind"] == "Thing"
        status, told = await talk.delete(f"{path}/a")
        assert (told["status"], told["details"]["name"]) == ("Success", "a")

    async def test_a_name_is_not_generated_from_one_that_ends_with_a_dot(self, talk: Talk) -> None:
        """A dash at its end is fine, a dot is not: what it is generated from must be a name by itself."""
        document = pod("x")
        document["metadata"] = {"generateName": "gen."}
        status, told = await talk.post(talk.pods, document)
        assert (status, told["details"]["causes"][0]["field"]) == (422, "metadata.generateName")

    async def test_events_are_checked(self, talk: Talk) -> None:
        """An action must be given, a note has at most 1,024 characters."""
        path = EVENTS.format(talk.namespace)
        event = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": "a"},
            "eventTime": "2026-01-01T00:00:00.000000Z",
            "reportingController": "flowsched.io/scheduler",
            "reportingInstance": "one",
            "action": "Binding",
            "reason": "Scheduled",
            "type": "Normal",
            "note": "x" * 1024,
            "regarding": {"kind": "Pod", "name": "a", "namespace": talk.namespace},
        }
        assert (await talk.post(path, event))[0] == 201
        for wrong in ({"action": ""}, {"note": "x" * 1025}):
            status, told = await talk.post(path, {**event, "metadata": {"name": "b"}, **wrong})
            assert (status, reason(told)) == (422, "Invalid")

    async def test_a_patch_is_json_of_its_type(self, client: Client, talk: Talk) -> None:
        """Half a document is 400."""
        await talk.new_pod("a")
        body = json.dumps({"metadata": {}}).encode()[:-1]
        answer = await client.call("PATCH", f"{talk.pods}/a", body=body, content_type=MERGE)
        assert answer.status == 400


async def define(talk: Talk, group: str) -> None:
    """Define a kind Thing of a group, and wait until it is served."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"things.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing"},
            "versions": [version],
        },
    }
    assert (await talk.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition))[0] == 201
    await talk.served(f"/apis/{group}/v1/namespaces/{talk.namespace}/things")
