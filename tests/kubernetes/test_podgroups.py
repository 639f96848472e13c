"""Our own gangs' PodGroups in every form, and others' gangs as their operators make them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from flowsched.cluster.kubernetes.foreign.groups import (
    GroupLink,
    link_of,
    priority_of,
    queue_of,
    read_group,
    role_of,
    rule_in,
)
from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.objects.podgroup import (
    CoschedulingPodGroup,
    Form,
    Life,
    NativePodGroup,
    Observed,
    VolcanoPodGroup,
    choose_form,
    group_path,
    pod_link,
    status_patch,
)
from flowsched.cluster.kubernetes.pods.gang_objects import group_manifest
from flowsched.errors import ConfigurationError
from flowsched.executor.protocol import GangSeat, Roster
from flowsched.values import replace
from flowsched.workflow.spec import Resources, Rules
from tests.kubernetes import operators
from tests.kubernetes import written as w

GIB = 1 << 30
AT = "2026-11-21T12:00:00Z"
ALL = {
    "scheduling.k8s.io/v1": {"PriorityClass"},
    "scheduling.k8s.io/v1alpha2": {"PodGroup", "Workload"},
    "scheduling.x-k8s.io/v1alpha1": {"PodGroup", "ElasticQuota"},
    "scheduling.volcano.sh/v1beta1": {"PodGroup", "Queue"},
    "scheduling.run.ai/v2alpha2": {"PodGroup"},
}


# --- which form ----------------------------------------------------------------------------------------------


def test_the_form_is_chosen_by_what_is_served() -> None:
    """Kubernetes' own before others', and none where there is none; four other groups are called the same."""
    assert choose_form(ALL) is Form.NATIVE_ALPHA
    beta = {**ALL, "scheduling.k8s.io/v1beta1": {"PodGroup"}}
    assert choose_form(beta) is Form.NATIVE_BETA
    old = {**ALL, "scheduling.k8s.io/v1beta1": {"PriorityClass"}}
    assert choose_form(old) is Form.NATIVE_ALPHA
    del old["scheduling.k8s.io/v1alpha2"]
    assert choose_form(old) is Form.SCHEDULER_PLUGINS
    del old["scheduling.x-k8s.io/v1alpha1"]
    assert choose_form(old) is Form.VOLCANO
    del old["scheduling.volcano.sh/v1beta1"]
    assert choose_form(old) is Form.NONE


def test_a_wish_is_kept_or_refused() -> None:
    """Never replaced by something else in silence."""
    assert choose_form(ALL, "volcano") is Form.VOLCANO
    assert choose_form(ALL, "scheduler-plugins") is Form.SCHEDULER_PLUGINS
    assert choose_form(ALL, "none") is Form.NONE
    assert choose_form(ALL, "native") is Form.NATIVE_ALPHA
    with pytest.raises(ConfigurationError, match=r"no PodGroup of scheduling\.volcano\.sh/v1beta1"):
        choose_form({}, "volcano")
    with pytest.raises(ConfigurationError, match="one of auto, native"):
        choose_form(ALL, "kai")


def test_paths_name_group_and_version() -> None:
    """Since five resources are called podgroups."""
    assert group_path(Form.VOLCANO, "lab") == "/apis/scheduling.volcano.sh/v1beta1/namespaces/lab/podgroups"
    assert group_path(Form.NATIVE_ALPHA, "lab", "g").endswith(
        "/scheduling.k8s.io/v1alpha2/namespaces/lab/podgroups/g"
    )


def test_how_a_pod_says_where_it_belongs() -> None:
    """By a label, by annotations, by a field; the field alone would be lost where its gate is closed."""
    native = pod_link(Form.NATIVE_BETA, "g", "worker", "Team_A")
    assert native.spec == {"schedulingGroup": {"podGroupName": "g"}}
    assert native.annotations == {"scheduling.k8s.io/group-name": "g", "volcano.sh/task-spec": "worker"}
    volcano = pod_link(Form.VOLCANO, "g", "worker", "team")
    assert (volcano.spec, volcano.labels) == ({}, {})
    assert volcano.annotations == {
        "scheduling.k8s.io/group-name": "g",
        "volcano.sh/task-spec": "worker",
        "scheduling.volcano.sh/queue-name": "team",
    }
    plugins = pod_link(Form.SCHEDULER_PLUGINS, "g", "worker")
    assert (plugins.labels, plugins.annotations) == ({"scheduling.x-k8s.io/pod-group": "g"}, {})
    assert pod_link(Form.NONE, "g") == pod_link(Form.NONE, "other")


@pytest.mark.parametrize("form", [Form.NATIVE_ALPHA, Form.SCHEDULER_PLUGINS, Form.VOLCANO])
def test_what_we_write_we_read(form: Form) -> None:
    """A pod of ours belongs to its own group, also to whoever reads it as a third party's."""
    group = replace(w.GANG, form=form)
    pod = msgspec.convert(w.written(w.task(gang=w.seat()), group=group), Pod)
    link = link_of(pod, native=Form.NATIVE_ALPHA)
    assert link is not None
    assert (link.name, link.form) == ("fs-w1-train-0-g1", form)


# --- our own -------------------------------------------------------------------------------------------------

MEMBER = w.task(gang=w.seat(), cpu_millicores=1500, queue="Team_A", rules=Rules(rack="required"))
ALIKE = structs.replace(
    MEMBER, gang=GangSeat("w", 0, 0, 0, Roster((("w", 0, 3),)), "t"), gpu_millis=500, disk_bytes=7
)


def spec(form: Form, pod: Any = MEMBER) -> dict[str, Any]:
    return json.loads(group_manifest(form, "g", pod, w.SETTINGS))["spec"]


def test_a_native_group() -> None:
    """In v1alpha2 nothing but the policy is allowed without further gates."""
    assert spec(Form.NATIVE_ALPHA) == {"schedulingPolicy": {"gang": {"minCount": 3}}}
    assert spec(Form.NATIVE_BETA) == {
        "schedulingPolicy": {"gang": {"minCount": 3}},
        "disruptionMode": {"all": {}},
    }


def test_a_group_of_scheduler_plugins() -> None:
    """What all members ask for, where one member can know it."""
    assert spec(Form.SCHEDULER_PLUGINS) == {"minMember": 3}
    assert spec(Form.SCHEDULER_PLUGINS, ALIKE) == {
        "minMember": 3,
        "minResources": {
            "cpu": "4500m",
            "memory": "3221225472",
            "ephemeral-storage": "21",
            "nvidia.com/gpu": "2",
        },
    }


def test_a_group_of_volcano() -> None:
    """With a minimum for each role; a queue as Volcano can spell it; a rack as a tier."""
    told = spec(Form.VOLCANO)
    assert told.pop("queue").startswith("team-a-h")
    assert told == {
        "minMember": 3,
        "minTaskMember": {"ps": 1, "worker": 2},
        "networkTopology": {"mode": "hard", "highestTierAllowed": 1},
    }


def test_a_group_says_whose_it_is() -> None:
    """As all that we make; without a form there is nothing to be made."""
    made = json.loads(group_manifest(Form.VOLCANO, "g", MEMBER, w.SETTINGS))
    assert (made["apiVersion"], made["kind"]) == ("scheduling.volcano.sh/v1beta1", "PodGroup")
    assert (made["metadata"]["name"], made["metadata"]["namespace"]) == ("g", "lab")
    assert made["metadata"]["labels"]["flowsched.io/group"] == "g"
    assert made["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "flowsched"
    with pytest.raises(ValueError, match="no PodGroup"):
        group_manifest(Form.NONE, "g", MEMBER, w.SETTINGS)


# --- status --------------------------------------------------------------------------------------------------

PHASES = {
    Life.ACCEPTED: ("Pending", "Pending"),
    Life.ADMITTED: ("Inqueue", "Pending"),
    Life.UNSCHEDULABLE: ("Inqueue", "Pending"),
    Life.SCHEDULED: ("Running", "Scheduling"),
    Life.RUNNING: ("Running", "Running"),
    Life.PARTIAL: ("Unknown", "Unknown"),
    Life.FINISHED: ("Completed", "Finished"),
    Life.FAILED: ("Completed", "Failed"),
}


@pytest.mark.parametrize("life", PHASES)
def test_phases(life: Life) -> None:
    """The words of Volcano and of scheduler-plugins; Inqueue is what lets a controller create pods."""
    seen = Observed(life, AT, running=2, succeeded=1)
    volcano, plugins = status_patch(Form.VOLCANO, seen), status_patch(Form.SCHEDULER_PLUGINS, seen)
    assert volcano is not None
    assert plugins is not None
    assert (volcano.suffix, plugins.suffix) == ("", "/status")
    assert volcano.content_type == plugins.content_type == "application/merge-patch+json"
    told = [json.loads(patch.body)["status"] for patch in (volcano, plugins)]
    assert tuple(status["phase"] for status in told) == PHASES[life]
    assert all((status["running"], status["succeeded"], status["failed"]) == (2, 1, 0) for status in told)
    assert set(json.loads(volcano.body)) == {"status"}


def test_why_a_group_waits() -> None:
    """In each form's own words, with ours as the message."""
    seen = Observed(Life.UNSCHEDULABLE, AT, message="NoRoom: 2 of 6 fit", transition="cycle-7")
    volcano = status_patch(Form.VOLCANO, seen)
    assert volcano is not None
    assert json.loads(volcano.body)["status"]["conditions"] == [
        {
            "type": "Unschedulable",
            "status": "True",
            "transitionID": "cycle-7",
            "lastTransitionTime": AT,
            "reason": "NotEnoughResources",
            "message": "NoRoom: 2 of 6 fit",
        }
    ]
    native = status_patch(Form.NATIVE_ALPHA, seen)
    assert native is not None
    assert (native.suffix, native.content_type) == ("/status", "application/strategic-merge-patch+json")
    assert json.loads(native.body)["status"]["conditions"] == [
        {
            "type": "PodGroupScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "NoRoom: 2 of 6 fit",
            "lastTransitionTime": AT,
        }
    ]


@pytest.mark.parametrize(
    ("life", "started", "told"),
    [
        (Life.ACCEPTED, False, None),
        (Life.ADMITTED, False, None),
        (Life.UNSCHEDULABLE, False, ("False", "Unschedulable")),
        (Life.UNSCHEDULABLE, True, None),
        (Life.SCHEDULED, False, ("True", "Scheduled")),
        (Life.RUNNING, True, ("True", "Scheduled")),
        (Life.PARTIAL, True, None),
        (Life.FINISHED, True, None),
        (Life.FAILED, True, None),
    ],
)
def test_a_native_group_stays_scheduled(life: Life, started: bool, told: tuple[str, str] | None) -> None:
    """PodGroupInitiallyScheduled never turns back, and says nothing of what comes after."""
    patch = status_patch(Form.NATIVE_BETA, Observed(life, AT, started=started))
    if told is None:
        assert patch is None
        return
    assert patch is not None
    (condition,) = json.loads(patch.body)["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (
        "PodGroupInitiallyScheduled",
        *told,
    )


def test_a_group_that_is_taken_away() -> None:
    """Only native groups have a word for it."""
    patch = status_patch(Form.NATIVE_BETA, Observed(Life.PREEMPTED, AT))
    assert patch is not None
    (condition,) = json.loads(patch.body)["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("DisruptionTarget", "PreemptionByScheduler")
    assert status_patch(Form.VOLCANO, Observed(Life.PREEMPTED, AT)) is None
    assert status_patch(Form.SCHEDULER_PLUGINS, Observed(Life.PREEMPTED, AT)) is None
    assert status_patch(Form.NONE, Observed(Life.RUNNING, AT)) is None


# --- others' groups ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "link"),
    [
        ("training_operator_volcano", GroupLink("volcano", "mnist", Form.VOLCANO)),
        ("training_operator_plugins", GroupLink("scheduler-plugins", "bert", Form.SCHEDULER_PLUGINS)),
        ("mpi_operator", GroupLink("scheduler-plugins", "pi", Form.SCHEDULER_PLUGINS)),
        ("spark", GroupLink("volcano", "spark-3f2a-podgroup", Form.VOLCANO)),
        ("kuberay", GroupLink("volcano", "ray-serve-pg", Form.VOLCANO)),
        ("volcano_job", GroupLink("volcano", "tf-u-vcjob", Form.VOLCANO)),
        ("native", GroupLink("native", "ring", Form.NATIVE_ALPHA)),
        ("kueue", GroupLink("kueue", "sweep", Form.NONE)),
        ("yunikorn", GroupLink("yunikorn", "batch-0001", Form.NONE)),
        ("kai", GroupLink("kai", "pg-kai-7f1c", Form.NONE)),
    ],
)
def test_every_pod_finds_its_group(name: str, link: GroupLink) -> None:
    """As each operator says it."""
    assert {link_of(pod, native=Form.NATIVE_ALPHA) for pod in operators.pods(name)} == {link}


def test_the_order_in_which_links_are_asked() -> None:
    """A pod that says it in every way belongs to the first; empty names are none."""
    metadata: dict[str, Any] = {
        "annotations": {
            "scheduling.k8s.io/group-name": "b",
            "scheduling.volcano.sh/group-name": "c",
            "pod-group-name": "e",
            "yunikorn.apache.org/task-group-name": "mapper",
        },
        "labels": {
            "scheduling.x-k8s.io/pod-group": "d",
            "kueue.x-k8s.io/pod-group-name": "f",
            "applicationId": "g",
        },
    }
    found = []
    spec: dict[str, Any] = {"schedulingGroup": {"podGroupName": "a"}}
    for kind, key in (
        ("", ""),
        ("annotations", "scheduling.k8s.io/group-name"),
        ("annotations", "scheduling.volcano.sh/group-name"),
        ("labels", "scheduling.x-k8s.io/pod-group"),
        ("annotations", "pod-group-name"),
        ("labels", "kueue.x-k8s.io/pod-group-name"),
        ("labels", "applicationId"),
    ):
        link = link_of(msgspec.convert({"metadata": metadata, "spec": spec}, Pod))
        found.append(link.name if link else None)
        if key:
            metadata[kind][key] = ""
        spec = {}
    assert found == ["a", "b", "c", "d", "e", "f", "g"]
    assert link_of(msgspec.convert({"metadata": metadata}, Pod)) is None
    assert link_of(msgspec.convert({"metadata": {"labels": {"applicationId": "g"}}}, Pod)) is None


@pytest.mark.parametrize(
    ("name", "roles", "queues"),
    [
        ("training_operator_volcano", ["ps"] * 2 + ["worker"] * 4, {""}),
        ("training_operator_plugins", ["", "", ""], {""}),
        ("kuberay", ["headgroup", "small", "small"], {"ray"}),
        ("volcano_job", ["ps"] * 2 + ["worker"] * 4, {"default"}),
        ("kueue", [""] * 3, {"team-a"}),
        ("yunikorn", ["mapper"] * 2, {"root.sandbox"}),
        ("kai", ["workers"], {"team-b"}),
    ],
)
def test_roles_and_queues(name: str, roles: list[str], queues: set[str]) -> None:
    """Each project has its own words for both."""
    found = operators.pods(name)
    assert [role_of(pod) for pod in found] == roles
    assert {queue_of(pod) for pod in found} == queues


@pytest.mark.parametrize(
    ("metadata", "queue"),
    [
        (
            {
                "annotations": {"scheduling.volcano.sh/queue-name": "a"},
                "labels": {"volcano.sh/queue-name": "b"},
            },
            "a",
        ),
        ({"annotations": {"volcano.sh/queue-name": "b"}}, "b"),
        ({"labels": {"flowsched.io/queue": "c", "kueue.x-k8s.io/queue-name": "d"}}, "c"),
        ({"labels": {"queue": "somebody's own word"}}, ""),
        ({"labels": {"queue": "root.x", "applicationId": "app"}}, "root.x"),
        ({}, ""),
    ],
)
def test_who_pays(metadata: dict[str, Any], queue: str) -> None:
    """The first that says it; a bare `queue` means something with YuniKorn only."""
    assert queue_of(msgspec.convert({"metadata": metadata}, Pod)) == queue


@pytest.mark.parametrize(
    ("annotation", "priority"),
    [
        (None, 7), ("12", 12), ("-3", -3), ("", 7), ("high", 7), ("1e3", 7), ("9" * 30, 7), ("٣", 7), ("2147483648", 7), ("--1", 7),
    ],
)  # fmt: skip
def test_priorities(annotation: str | None, priority: int) -> None:
    """Volcano's annotation if it is a number, else what admission resolved."""
    annotations = {} if annotation is None else {"volcano.sh/task-priority": annotation}
    pod = msgspec.convert({"metadata": {"annotations": annotations}, "spec": {"priority": 7}}, Pod)
    assert priority_of(pod) == priority
    assert priority_of(Pod()) == 0


RULES = {
    "training_operator_volcano": (6, {}, Resources(6000, 6 * GIB), "research", None),
    "training_operator_plugins": (3, {}, Resources(6000, 0, 0, 3000), "default", None),
    "mpi_operator": (3, {}, Resources(5000, 3 * GIB), "default", None),
    "spark": (1, {}, Resources(5000, 9 * GIB), "spark", None),
    "kuberay": (3, {}, Resources(5000, 8 * GIB), "ray", None),
    "volcano_job": (
        6,
        {"ps": 2, "worker": 4},
        Resources(6000, 12 * GIB, extended={"pods": 6}),
        "default",
        "preferred",
    ),
    "native": (3, {}, None, "default", None),
}


@pytest.mark.parametrize("name", RULES)
def test_the_rules_of_operators(name: str) -> None:
    """Minimum, roles, room that must be there, queue, rack; a quota's words beside amounts are left out."""
    _, group = operators.group(name)
    rule = read_group(group, "key")
    assert (rule.key, rule.gang, rule.problem) == ("key", True, "")
    assert (rule.minimum, rule.role_minimums, rule.min_resources, rule.queue, rule.rack) == RULES[name]


def volcano(**spec: Any) -> VolcanoPodGroup:
    return msgspec.convert(
        {"metadata": {"name": "g", "uid": "u", "generation": 3}, "spec": spec}, VolcanoPodGroup
    )


def test_role_minimums_that_do_not_count() -> None:
    """Volcano leaves them out of account when they come to more than minMember."""
    roles = {"ps": 2, "worker": 4, "idle": 0}
    assert read_group(volcano(minMember=6, minTaskMember=roles), "k").role_minimums == {"ps": 2, "worker": 4}
    assert read_group(volcano(minMember=5, minTaskMember=roles), "k").role_minimums == {}
    without = read_group(volcano(), "k")
    assert (without.gang, without.minimum, without.min_resources) == (False, 1, None)


@pytest.mark.parametrize(
    ("topology", "rack"),
    [
        ({"mode": "hard", "highestTierAllowed": 1}, "required"),
        ({"mode": "hard"}, "required"),
        ({}, "required"),
        ({"mode": "soft", "highestTierAllowed": 1}, "preferred"),
        ({"mode": "hard", "highestTierAllowed": 2}, "preferred"),
        ({"highestTierName": "spine"}, "preferred"),
        (None, None),
    ],
)
def test_tiers_are_racks(topology: dict[str, Any] | None, rack: str | None) -> None:
    """The first tier is a rack; who may cross it, or merely would like not to, prefers one."""
    assert read_group(volcano(minMember=1, networkTopology=topology), "k").rack == rack


def test_what_is_not_understood_makes_the_group_wait() -> None:
    """All or nothing with a part of the rule missing would be neither."""
    sub = {"name": "tp", "minSubGroups": 2}
    assert "subGroupPolicy 'tp'" in read_group(volcano(minMember=4, subGroupPolicy=[sub]), "k").problem
    harmless = {"name": "tp", "subGroupSize": 2, "networkTopology": {"mode": "soft"}}
    assert read_group(volcano(minMember=4, subGroupPolicy=[harmless]), "k").problem == ""
    assert (
        "minResources: 'lots' is no"
        in read_group(volcano(minMember=1, minResources={"cpu": "lots"}), "k").problem
    )
    native = {"schedulingPolicy": {"gang": {"minCount": 2}}}
    zone = {**native, "schedulingConstraints": {"topology": [{"key": "zone"}]}}
    rack = {**native, "schedulingConstraints": {"topology": [{"key": "topology.kubernetes.io/rack"}]}}
    part = {**native, "parentCompositePodGroupName": "big"}
    policies = [
        read_group(msgspec.convert({"spec": spec}, NativePodGroup), "k")
        for spec in (native, zone, rack, part)
    ]
    assert [bool(policy.problem) for policy in policies] == [False, True, False, True]
    assert [policy.rack for policy in policies] == [None, "required", "required", None]


def test_all_that_a_group_says() -> None:
    """Identity and version, so that a decision can name the rule it was made by."""
    raw = {
        "metadata": {
            "name": "g",
            "namespace": "lab",
            "uid": "u",
            "resourceVersion": "9",
            "generation": 2,
            "creationTimestamp": AT,
            "deletionTimestamp": AT,
            "labels": {"kueue.x-k8s.io/queue-name": "team"},
        },
        "spec": {"minMember": 2, "scheduleTimeoutSeconds": 90},
        "status": {"phase": "Scheduling"},
    }
    policy = read_group(msgspec.convert(raw, CoschedulingPodGroup), "k")
    assert (policy.version, policy.created_ms, policy.queue) == ("9", 1_795_262_400_000, "team")
    basic = msgspec.convert({"spec": {"schedulingPolicy": {"basic": {}}}}, NativePodGroup)
    assert not read_group(basic, "k").gang


def test_rules_that_pods_carry() -> None:
    """Kueue counts, YuniKorn lists task groups, KAI says where it is written and nobody reads it."""
    kueue = rule_in(operators.pods("kueue")[0], "k")
    assert kueue is not None
    assert (kueue.name, kueue.gang, kueue.minimum, kueue.queue) == ("sweep", True, 3, "team-a")
    yunikorn = rule_in(operators.pods("yunikorn")[0], "y")
    assert yunikorn is not None
    assert (yunikorn.minimum, yunikorn.role_minimums) == (3, {"mapper": 2, "reducer": 1})
    assert (yunikorn.queue, yunikorn.problem) == ("root.sandbox", "")
    kai = rule_in(operators.pods("kai")[0], "x")
    assert kai is not None
    assert "scheduling.run.ai" in kai.problem
    assert rule_in(operators.pods("spark")[0], "s") is None
    assert rule_in(Pod(), "p") is None


texts = st.text() | st.sampled_from(
    ["3", "0", "-1", "[]", "{}", "[{}]", '[{"name": 1}]', "[" * 10_000, "9" * 5000]
)
keys = st.sampled_from(
    [
        "scheduling.k8s.io/group-name", "pod-group-name", "kueue.x-k8s.io/pod-group-name", "applicationId", "queue",
        "kueue.x-k8s.io/pod-group-total-count", "yunikorn.apache.org/task-group-name", "yunikorn.apache.org/task-groups",
        "volcano.sh/task-priority", "volcano.sh/task-spec", "scheduling.x-k8s.io/pod-group",
    ]
)  # fmt: skip


@given(st.dictionaries(keys, texts), st.dictionaries(keys, texts))
def test_fault_28_no_mark_breaks_us(annotations: dict[str, str], labels: dict[str, str]) -> None:
    """Whatever stands in a stranger's marks: a rule that can be kept, or one that says what is wrong with it."""
    pod = msgspec.convert({"metadata": {"annotations": annotations, "labels": labels}}, Pod)
    assert isinstance(role_of(pod) + queue_of(pod), str)
    assert -(1 << 31) <= priority_of(pod) < 1 << 31
    rule = rule_in(pod, "k")
    if rule is not None:
        assert rule.minimum >= 1
        assert all(count >= 0 for count in rule.role_minimums.values())


@given(
    st.integers(-(1 << 31), 1 << 31),
    st.dictionaries(st.text(), st.integers(-(1 << 31), 1 << 31)),
    st.dictionaries(st.text(), st.text() | st.integers() | st.floats()),
)
def test_fault_28_no_group_breaks_us(minimum: int, roles: dict[str, int], amounts: dict[str, Any]) -> None:
    """The same for a PodGroup whose CRD checks nothing."""
    rule = read_group(volcano(minMember=minimum, minTaskMember=roles, minResources=amounts), "k")
    assert rule.minimum >= 1
    assert all(count > 0 for count in rule.role_minimums.values())
    if rule.min_resources is not None:
        assert 0 <= rule.min_resources.cpu_millicores <= 1 << 52
