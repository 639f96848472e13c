"""What documents become: every field, in whole numbers."""

import gc
from collections import UserDict
from typing import Any

import pytest
from valid_documents import EVERYTHING, GERMLINE, Json, document, encoded, faults_of, stage

from flowsched.errors import InvalidDocument
from flowsched.workflow.document.decode import check_workflow, decode_workflow
from flowsched.workflow.document.reader import variable
from flowsched.workflow.spec import (
    Action,
    Condition,
    Estimate,
    InputSpec,
    Match,
    On,
    OutputSpec,
    Policy,
    Resources,
    Retry,
    RoleSpec,
    Rules,
    StageSpec,
    Toleration,
    Traffic,
    When,
    WorkflowSpec,
)


def only(**more: Any) -> StageSpec:
    """The one stage of a document."""
    return decode_workflow(encoded(document(stage(**more)))).stages[0]


def test_a_document_with_every_key() -> None:
    """Stage by stage, value by value."""
    spec = decode_workflow(encoded(EVERYTHING))
    assert (spec.name, spec.queue, spec.priority) == ("every key", "lab.genomics", -5)
    assert spec.user == "ann@example.org"
    assert dict(spec.labels) == {"sample": "NA18507", "Größe": "ähnlich"}
    make, count, judge, gang, mourn = spec.stages
    assert make == StageSpec(
        name="make",
        width=3,
        items=("x", "7", "0.5"),
        scattered=True,
        gang=False,
        roles=(
            RoleSpec(
                name="task",
                replicas=1,
                minimum=1,
                command=("make", ""),
                image="registry.example.org/tools@sha256:0123",
                resources=Resources(500, 1_073_741_824, 0, 500, {"fpga.io/x": 2}),
                limits=Resources(1000, 2_147_483_648, 0, 0),
                env={"THREADS": "4"},
                secrets={"TOKEN": "lab/token"},
            ),
        ),
        inputs=(
            InputSpec("data", uri="https://example.org:8443/{item}/{index}?v=1"),
            InputSpec("local", uri="/data/with space/{sample}"),
        ),
        outputs=(OutputSpec("part", "out/part.txt"), OutputSpec("log.txt", "log", optional=True)),
        estimate=Estimate(90_000, 1_000),
        retry=Retry(2, 200),
        timeout_ms=5_400_000,
        rules=Rules(
            selector={"disktype": "ssd"},
            tolerations=(Toleration("dedicated", "Exists", "", "NoSchedule"),),
            rack="preferred",
            one_per_node=True,
        ),
        io=Traffic(read_bytes=3_221_225_472, write_rate=209_715_200),
        cache=True,
    )
    assert (count.width, count.items, count.scattered) == (2, None, True)
    assert count.inputs == (
        InputSpec("parts", stage="make", output="part", match=Match.CHUNK, manifest=True),
    )
    assert count.rules == Rules(selector={"zone": "z1"})
    assert judge.inputs == (
        InputSpec("logs", stage="make", output="log.txt", match=Match.ALL, optional=True),
    )
    assert judge.outputs == (OutputSpec("verdict", "verdict", value=True),)
    assert gang.roles == (
        RoleSpec(
            "ps",
            2,
            2,
            ("serve",),
            resources=Resources(2000),
            env={"A": "1", "B": "2"},
            completes=False,
        ),
        RoleSpec(
            "worker",
            4,
            3,
            ("work",),
            resources=Resources(2000),
            env={"B": "1"},
            secrets={"A": "lab/a"},
        ),
    )
    assert (gang.gang, gang.members, gang.tasks) == (True, 6, 6)
    assert gang.min_resources == Resources(8000, 2_147_483_648)
    assert gang.when == Condition(When.SUCCESS, (("judge", "verdict", ("good", "fair")),))
    assert gang.policies == (
        Policy(On.TASK_EVICTED, Action.RESTART_GANG),
        Policy(On.TASK_FAILED, Action.RESTART_TASK, (137, 143)),
        Policy(On.TASK_PENDING, Action.ABORT_WORKFLOW, (), 1_800_000),
    )
    assert (mourn.needs, mourn.when) == (("gang",), Condition(When.FAILURE))


def test_defaults() -> None:
    """A stage that says nothing but its command."""
    assert decode_workflow(encoded(document(stage()))) == WorkflowSpec(
        "test",
        (StageSpec("a", 1, None, False, False, (RoleSpec("task", 1, 1, ("true",)),)),),
    )


def test_widths_and_items_are_inherited_along_index_inputs() -> None:
    """Transitively, and only where the stage has no scatter of its own."""
    align, sort, call, train = decode_workflow(encoded(GERMLINE)).stages
    assert (sort.width, sort.items, sort.scattered) == (3, ("L001", "L002", "L003"), True)
    assert (call.width, call.items, call.scattered) == (1, None, False)
    assert (align.tasks, train.tasks) == (3, 6)


def test_items_come_from_the_index_input_that_has_some() -> None:
    """Whatever its place among the inputs."""
    out = [{"name": "o", "path": "o"}]
    both = [{"name": n, "from": f"{n}.o", "match": "index"} for n in "ab"]
    spec = decode_workflow(
        encoded(
            document(
                stage("c", inputs=[*both, {"name": "u", "uri": "s3://b/{item}"}]),
                stage("a", scatter={"count": 2}, outputs=out),
                stage("b", scatter={"items": [1, 2]}, outputs=out),
            )
        )
    )
    assert (spec.stages[0].width, spec.stages[0].items) == (2, ("1", "2"))


@pytest.mark.parametrize(
    ("given", "resources", "limits"),
    [
        ({}, Resources(), None),
        ({"resources": {"cpu": 2}}, Resources(2000, 268_435_456), None),
        ({"limits": {"memory": "1Gi"}}, Resources(1000, 1 << 30), Resources(0, 1 << 30)),
        (
            {"resources": {"cpu": 1, "memory": "1Gi"}, "limits": {"cpu": 2, "gpu": 1}},
            Resources(1000, 1 << 30, 0, 1000),
            Resources(2000, 0, 0, 1000),
        ),
        ({"resources": {"cpu": 0}}, Resources(0, 268_435_456), None),
    ],
)
def test_a_request_that_is_not_named_is_its_limit(
    given: Json, resources: Resources, limits: Resources | None
) -> None:
    """As in Kubernetes; what is not limited is 0 in limits."""
    role = only(**given).roles[0]
    assert (role.resources, role.limits) == (resources, limits)


@pytest.mark.parametrize(
    "uri",
    [
        "/data/a b/ü",
        "file:///data/x",
        "file://localhost/x",
        "http://h",
        "https://h.example.org:80/a?b=c#d",
        "http://[::1]:8080/x",
        "s3://bucket/key with space",
        "s3://lab/{other}/${HOME}",
    ],
)
def test_uris_that_are_accepted_stay_as_they_are(uri: str) -> None:
    """Other braces than {item} and {index} are part of a name."""
    assert only(inputs=[{"name": "i", "uri": uri}]).inputs[0].uri == uri


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "x",
        "./x",
        "~/x",
        "file:/x",
        "file:x",
        "file://",
        "FILE:///x",
        "http://",
        "http:///x",
        "http://h:99x/",
        "http://h\\@evil/",
        "http://[::1/",
        "https://h/a b",
        "https://@h/",
        "s3://",
        "s3://b",
        "s3://b/",
        "s3:///k",
        "s3://u@b/k",
        "ftp://h/x",
        "data:,x",
        "javascript:alert(1)",
        "/x\x7f",
        "/x\r\n",
    ],
)
def test_uris_that_are_refused(uri: str) -> None:
    """One fault each, at the uri."""
    faults = faults_of(document(stage(inputs=[{"name": "i", "uri": uri}])))
    assert [path for path, _, _ in faults] == ["$.stages[0].inputs[0].uri"]


def test_items_may_be_whole_uris() -> None:
    """Each is checked as one."""
    spec = only(scatter={"items": ["s3://lab/a.fq", "/b.fq"]}, inputs=[{"name": "i", "uri": "{item}"}])
    assert spec.inputs[0].uri == "{item}"


def test_volcano_events_and_actions_are_all_known() -> None:
    """Every event of Volcano's Job with every action: mapped, or refused by name with the reason."""
    events = {
        "*": On.ANY,
        "PodPending": On.TASK_PENDING,
        "PodFailed": On.TASK_FAILED,
        "PodEvicted": On.TASK_EVICTED,
        "Unknown": On.TASK_UNKNOWN,
        "TaskCompleted": On.TASK_COMPLETED,
        "PodRunning": None,
        "TaskFailed": None,
        "OutOfSync": None,
        "CommandIssued": None,
        "JobUpdated": None,
    }
    actions = {
        "AbortJob": Action.ABORT_WORKFLOW,
        "TerminateJob": Action.ABORT_WORKFLOW,
        "RestartJob": Action.RESTART_GANG,
        "RestartTask": Action.RESTART_TASK,
        "RestartPod": Action.RESTART_TASK,
        "CompleteJob": Action.COMPLETE_STAGE,
        "RestartPartition": None,
        "ResumeJob": None,
        "SyncJob": None,
        "EnqueueJob": None,
        "SyncQueue": None,
        "OpenQueue": None,
        "CloseQueue": None,
    }
    endless = {("TaskCompleted", name) for name in ("RestartJob", "RestartTask", "RestartPod")}
    for event, on in events.items():
        for action, act in actions.items():
            policy = {"event": event, "action": action} | ({"timeout": 1} if event == "PodPending" else {})
            value = document(stage(gang=True, policies=[policy]))
            if on is None or act is None or (event, action) in endless:
                assert all(expected.strip() for _, _, expected in faults_of(value))
                assert len(faults_of(value)) == max(1, (on is None) + (act is None))
                continue
            decoded = decode_workflow(encoded(value)).stages[0].policies
            assert decoded == (Policy(on, act, (), 1000 if event == "PodPending" else None),)


def test_exit_codes_alone_mean_a_failure() -> None:
    """As in Volcano."""
    policies = [{"exit_codes": [3], "action": "complete_stage"}]
    assert only(policies=policies).policies == (Policy(On.TASK_FAILED, Action.COMPLETE_STAGE, (3,)),)


def test_python_values_are_checked_as_they_are() -> None:
    """Mappings and tuples do as well as dicts and lists."""
    given = UserDict({"name": "x", "stages": (UserDict(stage(command=("a", "b"))),)})
    assert check_workflow(given).stages[0].roles[0].command == ("a", "b")


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        (object(), ["$: found a Python object, expected an object"]),
        ({1: 2}, ["$: found the key 1, expected keys that are texts"]),
        (
            document(stage(command={"ls"})),
            ["$.stages[0].command: found a Python set, expected an array"],
        ),
        (
            document(stage(command=["a\ud800"])),
            [
                "$.stages[0].command[0]: found a text with half of a surrogate pair, "
                "expected text that can be encoded"
            ],
        ),
        (
            document(stage(scatter={"items": ["\ud800"]})),
            [
                "$.stages[0].scatter.items[0]: found a text with half of a surrogate pair, "
                "expected text that can be encoded"
            ],
        ),
        (
            document(stage(resources={"cpu": float("nan")})),
            ['$.stages[0].resources.cpu: found nan, expected cores, as 4, 0.5 or "500m"'],
        ),
        (
            document(stage(scatter={"items": [float("inf")]})),
            ["$.stages[0].scatter.items[0]: found inf, expected text or a number"],
        ),
        (
            document(stage(), priority=10**5000),
            [
                "$.priority: found a number of 16610 bits, "
                "expected a whole number from -1,000,000,000 to 1,000,000,000"
            ],
        ),
    ],
    ids=range(8),
)
def test_python_values_that_no_json_has(value: object, faults: list[str]) -> None:
    """Are faults like any others."""
    with pytest.raises(InvalidDocument) as raised:
        check_workflow(value)
    assert [str(fault) for fault in raised.value.faults] == faults


def test_a_value_that_holds_itself_is_a_fault() -> None:
    """Nothing is followed deeper than a document goes."""
    value = document(stage())
    value["stages"].append(value["stages"])
    with pytest.raises(InvalidDocument) as raised:
        check_workflow(value)
    assert [str(fault) for fault in raised.value.faults] == [
        "$.stages[1]: found an array of 2, expected an object"
    ]


def test_names_become_variables() -> None:
    """Upper case, and whatever is no letter or digit is an underscore."""
    assert variable("INPUT", "ref-dict.v2") == "FLOWSCHED_INPUT_REF_DICT_V2"


def test_what_was_decoded_cannot_be_changed() -> None:
    """Not even the environment."""
    with pytest.raises(TypeError):
        only(env={"A": "1"}).roles[0].env["A"] = "2"  # type: ignore[index]


def test_a_role_says_what_its_pods_read_or_that_they_read_nothing() -> None:
    """Without a word of its own it has its stage's: None."""
    roles = {
        "ps": {"command": ["serve"], "io": {}},
        "worker": {"command": ["work"], "io": {"read": "3Gi", "write": "2Mi/s"}},
        "judge": {"command": ["judge"]},
    }
    stage = {"name": "train", "gang": True, "roles": roles, "io": {"read": 7}}
    spec = check_workflow({"name": "w", "stages": [stage]}).stages[0]
    assert [role.io for role in spec.roles] == [
        Traffic(),
        Traffic(read_bytes=3_221_225_472, write_rate=2_097_152),
        None,
    ]
    assert spec.io == Traffic(read_bytes=7)


def test_a_decoded_document_leaves_nothing_to_the_garbage_collector() -> None:
    """The service's collector looks rarely, and never again at objects that were there when it had recovered."""
    raw = encoded(EVERYTHING)
    decode_workflow(raw)
    while gc.collect():
        pass  # finalizers of the tests before leave garbage of their own
    gc.disable()
    try:
        decode_workflow(raw)
        assert gc.collect() < 50
    finally:
        gc.enable()
