"""Hostile labels, annotations and statuses, on our pods and on strangers' (row 28): a metadata field must not stop the service.

Argo's controller could be crashed by one annotation, and with it everybody's workflows (CVE-2026-40886).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from flowsched.cluster.kubernetes.api.watch import MISUNDERSTOOD, Batch
from flowsched.cluster.kubernetes.executor import KubernetesCluster
from flowsched.cluster.kubernetes.lease import Lease
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.podgroup import CoschedulingPodGroup, Form, VolcanoPodGroup
from flowsched.cluster.kubernetes.view import View
from flowsched.engine.state import EngineState
from flowsched.engine.step import step
from flowsched.executor.foreign import RoomTaken
from tests.executors.executor_contract import pod as order
from tests.kubernetes.exec_world import nothing
from tests.kubernetes.fake import FakeApi
from tests.kubernetes.faults.world import World
from tests.kubernetes.hostile import TEXTS
from tests.soak import worlds

#: Keys that somebody reads, ours and others'.
KEYS = (
    "flowsched.io/pod", "flowsched.io/workflow", "flowsched.io/stage", "flowsched.io/index", "flowsched.io/attempt",
    "flowsched.io/epoch", "flowsched.io/group", "flowsched.io/role", "flowsched.io/usage", "flowsched.io/queue",
    "flowsched.io/fenced-by", "app.kubernetes.io/managed-by",
    "app.kubernetes.io/instance", "app.kubernetes.io/component", "app.kubernetes.io/part-of",
    "scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name", "scheduling.x-k8s.io/pod-group",
    "pod-group-name", "kai.scheduler/subgroup-name", "kueue.x-k8s.io/pod-group-name",
    "kueue.x-k8s.io/pod-group-total-count", "yunikorn.apache.org/task-group-name", "yunikorn.apache.org/task-groups",
    "yunikorn.apache.org/schedulingPolicyParameters", "applicationId", "volcano.sh/task-spec", "volcano.sh/task-index",
    "volcano.sh/task-priority", "flowsched.io/preemptible", "volcano.sh/preemptable",
    "volcano.sh/queue-name", "scheduling.volcano.sh/queue-name", "kai.scheduler/queue",
    "flowsched.io/hollow-runtime", "topology.kubernetes.io/zone", "kubernetes.io/hostname",
)  # fmt: skip
NASTY = (
    *TEXTS, "true", "flowsched", "node-agent", "-1", "0", "9" * 400, "1e400", "NaN", "[" * 5000, '{"a":' * 3000, "\x00",
    "\ud800", '[{"name":"a","minMember":-1}]', '[{"name":"a","minMember":1e99}]', '[{"minMember":"x"}]', "[]", "null",
    "fs-wf-s-0-1", "work", '{"outputs":[{"name":"a\\u0000","uri":"b\\u0000","size_bytes":1,"value":"c\\u0000"}]}',
    '{"lost":["a\\u0000"]}', '{"reason":"a\\u0000"}', "9999999999999999999", '{"task":{"cpu_ms":"x"}}', '{"task":{"cpu_ms":1e999}}',
)  # fmt: skip
VALUES = st.sampled_from(NASTY) | st.text(max_size=40) | st.integers().map(str)
MARKS = st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=20), VALUES, max_size=6)
STAMPS = st.sampled_from(
    ["", "2026-01-01T00:00:00Z", "yesterday", "-1", "9999-99-99T99:99:99Z", "0001-01-01T00:00:00Z"]
)
QUANTITIES = st.sampled_from(["1", "100m", "-1", "", "x", "1e30", "1Zi", "9" * 50, "0.0000001", "1Ei", "٣"])
PHASES = st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown", "", "Odd"])
TERMINATED = st.fixed_dictionaries(
    {
        "exitCode": st.integers(-(2**40), 2**40),
        "reason": VALUES,
        "message": VALUES,
        "startedAt": STAMPS,
        "finishedAt": STAMPS,
    }
)
STATES = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"waiting": st.fixed_dictionaries({"reason": VALUES, "message": VALUES})}),
    st.fixed_dictionaries({"running": st.fixed_dictionaries({"startedAt": STAMPS})}),
    st.fixed_dictionaries({"terminated": TERMINATED}),
)
CONTAINERS = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["task", "stage-in", "stage-out", "x", ""]), "state": STATES}
    ),
    max_size=3,
)


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    """Anybody's pod; perhaps with all the marks of one of ours."""
    ours = draw(st.booleans())
    labels, annotations = draw(MARKS), draw(MARKS)
    name = "fs-wf-s-0-1" if ours else draw(st.sampled_from(["a", "b", "fs-wf-s-0-1"]))
    if ours:
        labels = {**labels, "app.kubernetes.io/managed-by": "flowsched", "app.kubernetes.io/instance": "work"}
        annotations = {**annotations, "flowsched.io/pod": name}
    return {
        "metadata": {
            "name": name,
            "namespace": draw(st.sampled_from(["work", "flowsched-system", "other"])) if not ours else "work",
            "uid": draw(st.sampled_from(["u1", "u2", "u3"])),
            "resourceVersion": "5",
            "labels": labels,
            "annotations": annotations,
            "creationTimestamp": draw(STAMPS),
            "deletionTimestamp": draw(st.none() | STAMPS),
            "ownerReferences": draw(st.just([]) | st.just([{"kind": "Job", "name": "\n", "uid": "", "controller": True}])),
        },
        "spec": {
            "nodeName": draw(st.sampled_from(["", "n1", "\n", "nowhere"])),
            "schedulerName": draw(st.sampled_from(["work", "default-scheduler", ""])),
            "priority": draw(st.none() | st.integers(-(2**31), 2**31 - 1)),
            "nodeSelector": draw(MARKS),
            "containers": [
                {"name": "task", "resources": {"requests": draw(st.dictionaries(VALUES, QUANTITIES, max_size=2))
                                               | {"cpu": draw(QUANTITIES)}}}
            ],
        },
        "status": {
            "phase": draw(PHASES),
            "reason": draw(VALUES),
            "message": draw(VALUES),
            "podIP": draw(VALUES),
            "hostIP": draw(VALUES),
            "startTime": draw(STAMPS),
            "containerStatuses": draw(CONTAINERS),
            "initContainerStatuses": draw(CONTAINERS),
        },
    }  # fmt: skip


@st.composite
def groups(draw: st.DrawFn) -> dict[str, Any]:
    """Somebody's PodGroup, with whatever a custom resource without a strict schema may hold."""
    number = st.integers(-(2**63), 2**63) | st.just(1)
    return {
        "metadata": {"name": draw(VALUES), "namespace": "work", "uid": "g", "resourceVersion": "6", "labels": draw(MARKS),
                     "annotations": draw(MARKS), "creationTimestamp": draw(STAMPS)},
        "spec": {"minMember": draw(number), "queue": draw(VALUES), "priorityClassName": draw(VALUES),
                 "minResources": draw(st.dictionaries(VALUES, QUANTITIES, max_size=3)),
                 "minTaskMember": draw(st.dictionaries(VALUES, number, max_size=3))},
        "status": {"phase": draw(VALUES)},
    }  # fmt: skip


FORMS = ((Form.SCHEDULER_PLUGINS, CoschedulingPodGroup), (Form.VOLCANO, VolcanoPodGroup))


def decoded(kind: Any, document: dict[str, Any]) -> list[Any]:
    """As a watch reads it: what cannot be decoded is left out there."""
    try:
        return [msgspec.json.decode(json.dumps(document).encode(errors="replace"), type=kind)]
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []


def innocent(uid: str, node: str) -> Pod:
    """A stranger who has done nothing."""
    text = f"""{{"metadata": {{"name": "{uid}", "namespace": "other", "uid": "{uid}", "resourceVersion": "7"}},
                 "spec": {{"nodeName": "{node}", "containers": [{{"name": "x"}}]}}, "status": {{"phase": "Running"}}}}"""
    return msgspec.json.decode(text.encode(), type=Pod)


@pytest.mark.soak
async def test_fault_28_no_metadata_stops_the_service(fake: FakeApi, fake_world: World) -> None:
    """Whatever pods and PodGroups say of themselves, they are understood or left out one by one: those after them are seen, and
    the engine takes a step. Random pods and groups, on a view of the fake.
    """
    lease = Lease(lambda: 1_700_000_000_000, nothing)
    cluster = KubernetesCluster(fake.connection, fake_world.settings(), lease)
    try:
        nodes = await cluster.start()
        await cluster.view()
        view = cluster._view
        cluster.pods.launch([structs.replace(order("fs-wf-s-0-1"), node=nodes[0].name)])

        @settings(max_examples=worlds(50, 1000), deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.lists(pods(), min_size=1, max_size=3), st.lists(groups(), max_size=2))
        def survives(strange: Sequence[dict[str, Any]], odd: Sequence[dict[str, Any]]) -> None:
            cluster.queue.drain()
            for form, kind in FORMS:
                view.groups.changed(
                    form, Batch(replaced=[each for one in odd for each in decoded(kind, one)])
                )
            listed = [each for one in strange for each in decoded(Pod, one)]
            view.pods_changed(Batch(replaced=[innocent("before", "n1"), *listed, innocent("after", "n1")]))
            view.pods_changed(Batch(changed=[("MODIFIED", each) for each in listed]))
            assert {"before", "after"} <= view.pods.keys()
            assert not MISUNDERSTOOD, MISUNDERSTOOD
            state = EngineState()
            for node in nodes:
                state.cluster.snapshot.put_node(node)
            events = [*view.everything(), *cluster.queue.drain()]
            step(state, events, 1_700_000_000_000).keep()
            step(state, [], 1_700_000_001_000).keep()

        survives()
    finally:
        await cluster.stop()


async def test_fault_28_a_bug_that_an_object_brings_out_costs_only_itself(
    fake: FakeApi, fake_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object that we cannot deal with, for whatever reason, is left out: others in the same news are seen, and the room it takes
    is counted. The fake.
    """
    cluster = KubernetesCluster(fake.connection, fake_world.settings(), Lease(lambda: 0, nothing))
    try:
        await cluster.start()
        await cluster.view()
        event_of = View._event

        def buggy(view: View, pod: Pod, *others: Any) -> Any:
            if pod.metadata.uid == "odd":
                raise ZeroDivisionError("a bug of ours")
            return event_of(view, pod, *others)

        monkeypatch.setattr(View, "_event", buggy)
        three = [innocent(uid, "n1") for uid in ("before", "odd", "after")]
        cluster._view.pods_changed(Batch(replaced=three))
        taken = [seen.event for seen in cluster._view.pods.values()]
        assert [event.owner for event in taken if isinstance(event, RoomTaken)] == ["before", "odd", "after"]
        assert MISUNDERSTOOD.pop("odd") == 1
    finally:
        await cluster.stop()
