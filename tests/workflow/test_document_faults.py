"""Every fault a document can have: where it is, what was found and what was expected, word for word."""

from typing import Any

import pytest
from valid_documents import Json, document, faults_of, stage

from flowsched.errors import InvalidDocument
from flowsched.workflow.document.decode import check_workflow

Faults = list[tuple[str, str, str]]
OUT = [{"name": "o", "path": "o"}]
VALUE = [{"name": "v", "path": "v", "value": True}]
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def one(**more: Any) -> Json:
    """A document of one stage, `a`."""
    return document(stage(**more))


def given(**more: Any) -> Json:
    """A document whose one stage has one input."""
    return one(inputs=[{"name": "i", **more}])


def after(*parents: Json, **more: Any) -> Json:
    """These stages, then `z`."""
    return document(*parents, stage("z", **more))


def wide(name: str, count: int) -> Json:
    return stage(name, scatter={"count": count}, outputs=OUT)


def policy(**more: Any) -> Json:
    return one(policies=[more])


def gang(**more: Any) -> Json:
    return one(**{"gang": True, "roles": {"w": {}}, **more})


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        ([], [("$", "an array of 0", "an object")]),
        (
            {},
            [
                ("$.name", "nothing", "1-128 printable characters"),
                ("$.stages", "nothing", "an array of stages"),
            ],
        ),
        (
            {"name": "a", "gang": True, "roles": {}},
            [
                (
                    "$",
                    'a stage ("roles", "gang") in place of a workflow',
                    'it in a list: {"name": …, "stages": [{…}]}',
                )
            ],
        ),
        ({**one(), "nmae": 1}, [("$.nmae", 'the key "nmae"', "did you mean 'name'?")]),
        ({**one(), "tasks": []}, [("$.tasks", 'the key "tasks"', "stages")]),
        (document(), [("$.stages", "an array of 0", "at least one entry")]),
        ({"name": "x", "stages": {}}, [("$.stages", "an object with 0 keys", "an array")]),
        ({**one(), "name": ""}, [("$.name", '""', "1-128 printable characters")]),
        ({**one(), "user": " "}, [("$.user", '" "', "1-128 printable characters")]),
        ({**one(), "name": "a\n"}, [("$.name", '"a\\n"', "1-128 printable characters")]),
        (
            {**one(), "queue": "a b"},
            [("$.queue", '"a b"', "1-63 letters, digits, -, _ or ., the first no - or .")],
        ),
        (
            {**one(), "queue": None},
            [("$.queue", "null", "1-63 letters, digits, -, _ or ., the first no - or .")],
        ),
        (
            {**one(), "priority": 1.5},
            [("$.priority", "1.5", "a whole number from -1,000,000,000 to 1,000,000,000")],
        ),
        (
            {**one(), "priority": 10**10},
            [("$.priority", "10000000000", "a whole number from -1,000,000,000 to 1,000,000,000")],
        ),
        (
            {**one(), "priority": 10**100},
            [("$.priority", "a number of 333 bits", "a whole number from -1,000,000,000 to 1,000,000,000")],
        ),
        ({**one(), "labels": {"a": [1]}}, [("$.labels.a", "an array of 1", "text")]),
        (
            {**one(), "labels": {"": "a"}},
            [('$.labels[""]', 'the key ""', "a label's name of 1-256 printable characters")],
        ),
        (document(1), [("$.stages[0]", "1", "an object")]),
    ],
)
def test_faults_of_the_workflow(value: Any, faults: Faults) -> None:
    """Names, numbers and stages of the document itself."""
    assert faults_of(value) == faults


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        (one(comand=["x"]), [("$.stages[0].comand", 'the key "comand"', "did you mean 'command'?")]),
        (
            one(minResources={}),
            [("$.stages[0].minResources", 'the key "minResources"', "did you mean 'min_resources'?")],
        ),
        (one(image="x"), [("$.stages[0].image", 'the key "image"', 'container: {"image": …}')]),
        (one(depends_on=["b"]), [("$.stages[0].depends_on", 'the key "depends_on"', "needs")]),
        (
            one(replicas=2),
            [
                (
                    "$.stages[0].replicas",
                    'the key "replicas"',
                    (
                        "gang: true with roles: replicas belong to a role; independent copies are "
                        "scatter.count"
                    ),
                )
            ],
        ),
        (
            one(**{"x" * 200: 1}),
            [
                (
                    "$.stages[0]",
                    'the key "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…"',
                    (
                        "one of name, scatter, inputs, outputs, needs, estimate, retry, timeout, "
                        "policies, when, gang, roles, min_resources, selector, tolerations, affinity, "
                        "anti_affinity, topology, io, cache, fit_memory, steps, files, container, command, resources, limits, env, "
                        "secrets"
                    ),
                )
            ],
        ),
        (
            document(stage("a.b")),
            [("$.stages[0].name", '"a.b"', "1-63 letters, digits, - or _, the first a letter or digit")],
        ),
        (
            document(stage(name=None)),
            [("$.stages[0].name", "nothing", "1-63 letters, digits, - or _, the first a letter or digit")],
        ),
        (
            document(stage(), stage()),
            [("$.stages[1].name", '"a"', "a name of its own: $.stages[0] has this one")],
        ),
        (one(gang="yes"), [("$.stages[0].gang", '"yes"', "true or false")]),
        (one(cache=1), [("$.stages[0].cache", "1", "true or false")]),
        (one(timeout=0), [("$.stages[0].timeout", "0", "more than nothing (leave it out for no limit)")]),
        (
            one(timeout="5 min"),
            [("$.stages[0].timeout", '"5 min"', 'a duration, as "25m", "1h30m", "90s", "250ms", or seconds')],
        ),
        (
            one(estimate={"runtime": -1, "output": []}),
            [
                (
                    "$.stages[0].estimate.runtime",
                    "-1",
                    'a duration, as "25m", "1h30m", "90s", "250ms", or seconds (it may not be negative)',
                ),
                (
                    "$.stages[0].estimate.output",
                    "an array of 0",
                    'bytes, as "9Gi" (a quantity is text or a number)',
                ),
            ],
        ),
        (
            one(retry=3),
            [("$.stages[0].retry", "3", 'an object: {"attempts": 3}')],
        ),
        (
            one(retry={"attempts": 101, "memory_factor": 0.5}),
            [
                ("$.stages[0].retry.attempts", "101", "a whole number from 1 to 100"),
                ("$.stages[0].retry.memory_factor", "0.5", "a number from 1 to 10"),
            ],
        ),
    ],
)
def test_faults_of_a_stage(value: Any, faults: Faults) -> None:
    """Its name and its keys."""
    assert faults_of(value) == faults


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        (
            one(command=None),
            [
                (
                    "$.stages[0].command",
                    "nothing",
                    'what to run, as a list of arguments: ["./align.sh", "--fast"]',
                )
            ],
        ),
        (
            one(command="ls -l"),
            [
                (
                    "$.stages[0].command",
                    '"ls -l"',
                    'a list of arguments: ["/bin/sh", "-c", "…"] if a shell is wanted',
                )
            ],
        ),
        (one(command=[]), [("$.stages[0].command", "an array of 0", "at least one entry")]),
        (
            one(command=[True]),
            [("$.stages[0].command[0]", "true", 'text (a truth value needs quotes: "true")')],
        ),
        (one(command=["a", None]), [("$.stages[0].command[1]", "null", "text")]),
        (
            one(command=["a\0b"]),
            [("$.stages[0].command[0]", '"a\\u0000b" with a NUL character at 1', "text without NUL")],
        ),
        (one(command=[""]), [("$.stages[0].command[0]", '""', "the name of a program")]),
        (
            one(container={"image": "a b"}),
            [
                (
                    "$.stages[0].container.image",
                    '"a b"',
                    "an image reference without spaces, the first character no -",
                )
            ],
        ),
        (
            one(container={"image": "-h"}),
            [
                (
                    "$.stages[0].container.image",
                    '"-h"',
                    "an image reference without spaces, the first character no -",
                )
            ],
        ),
        (
            one(container={}),
            [
                (
                    "$.stages[0].container.image",
                    "nothing",
                    "an image reference without spaces, the first character no -",
                )
            ],
        ),
        (
            one(resources={"cpu": "4x", "memory": "8GB", "memroy": 1}),
            [
                ("$.stages[0].resources.cpu", '"4x"', 'cores, as 4, 0.5 or "500m"'),
                (
                    "$.stages[0].resources.memory",
                    '"8GB"',
                    'bytes, as "8Gi" (write Gi (times 1024) or G (times 1000), as in Kubernetes)',
                ),
                ("$.stages[0].resources.memroy", 'the key "memroy"', "did you mean 'memory'?"),
            ],
        ),
        (
            one(resources={"nvidia.com/gpu": 0.5}),
            [
                (
                    '$.stages[0].resources["nvidia.com/gpu"]',
                    "0.5",
                    "a whole count ('0.5' is not a whole count)",
                )
            ],
        ),
        (
            one(resources={"requests": {}}),
            [
                (
                    "$.stages[0].resources.requests",
                    'the key "requests"',
                    "the amounts themselves: limits stand beside resources, in the stage or role",
                )
            ],
        ),
        (
            one(resources={"cpu": 4}, limits={"cpu": 2}),
            [
                (
                    "$.stages[0].limits.cpu",
                    "a limit below what is requested",
                    "at least as much as in resources",
                )
            ],
        ),
        (
            one(limits={"cpu": 0}),
            [("$.stages[0].limits.cpu", "0", "more than nothing (leave it out for no limit)")],
        ),
        (one(min_resources=4), [("$.stages[0].min_resources", "4", "an object")]),
        (
            one(env={"A": True}),
            [("$.stages[0].env.A", "true", 'text (a truth value needs quotes: "true")')],
        ),
        (
            one(env={"FLOWSCHED_X": "1"}),
            [
                (
                    "$.stages[0].env.FLOWSCHED_X",
                    'the key "FLOWSCHED_X"',
                    "a name that does not begin with FLOWSCHED_: those are the service's own",
                )
            ],
        ),
        (
            one(env={"1A": "x"}),
            [
                (
                    '$.stages[0].env["1A"]',
                    'the key "1A"',
                    "1-256 letters, digits, _, - or ., the first no digit",
                )
            ],
        ),
        (
            one(env={"A": "hidden\0"}),
            [("$.stages[0].env.A", "a text with a NUL character at 6", "text without NUL")],
        ),
        (
            one(secrets={"A": "two words"}),
            [
                (
                    "$.stages[0].secrets.A",
                    "a text of 9 characters",
                    "the name of a secret (never the secret itself): letters, digits, '.', '_' and '-', the first no '.'; "
                    "of one of its keys, as NAME/KEY",
                )
            ],
        ),
        (
            one(env={"A": "1"}, secrets={"A": "x"}),
            [("$.stages[0].secrets.A", 'the key "A"', "a name that is not in env too")],
        ),
    ],
)
def test_faults_of_a_pod_template(value: Any, faults: Faults) -> None:
    """Command, container, resources, environment."""
    assert faults_of(value) == faults


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        (
            given(uri="/x", **{"from": "b.o"}),
            [("$.stages[0].inputs[0]", "uri and from", "exactly one of uri and from")],
        ),
        (given(), [("$.stages[0].inputs[0]", "neither uri nor from", "exactly one of uri and from")]),
        (
            one(inputs=[{"uri": "/x"}]),
            [
                (
                    "$.stages[0].inputs[0].name",
                    "nothing",
                    "1-63 letters, digits, -, _ or ., the first no - or .",
                )
            ],
        ),
        (
            one(inputs=[{"name": "a-b", "uri": "/x"}, {"name": "a_b", "uri": "/y"}]),
            [
                (
                    "$.stages[0].inputs[1].name",
                    '"a_b"',
                    (
                        'a name that does not become FLOWSCHED_INPUT_A_B too, as "a-b" at '
                        "$.stages[0].inputs[0] does"
                    ),
                )
            ],
        ),
        (
            given(uri="data/x"),
            [
                (
                    "$.stages[0].inputs[0].uri",
                    '"data/x"',
                    (
                        "an absolute path or file:///…: the service has no working folder (the command "
                        "line resolves relative paths against the document's folder; in Python write Path(...))"
                    ),
                )
            ],
        ),
        (
            given(uri="gs://b/x"),
            [
                (
                    "$.stages[0].inputs[0].uri",
                    '"gs://b/x"',
                    (
                        "/absolute/path, file:///path, http(s)://host/path or s3://bucket/key: the "
                        'scheme "gs" is not supported'
                    ),
                )
            ],
        ),
        (
            given(uri="https://user:hidden@h/x"),
            [
                (
                    "$.stages[0].inputs[0].uri",
                    '"https://…@h/x"',
                    "a uri without user name or password: those belong in secrets, never in a document",
                )
            ],
        ),
        (
            given(uri="https://user:hid/den@h/x"),
            [
                (
                    "$.stages[0].inputs[0].uri",
                    '"https://…@h/x"',
                    "/absolute/path, file:///path, http(s)://host/path or s3://bucket/key",
                )
            ],
        ),
        (
            given(uri="https://h/x y?sig=hidden"),
            [
                (
                    "$.stages[0].inputs[0].uri",
                    '"https://h/x y?…"',
                    "/absolute/path, file:///path, http(s)://host/path or s3://bucket/key",
                )
            ],
        ),
        (
            given(uri="file://host/x"),
            [
                (
                    "$.stages[0].inputs[0].uri",
                    '"file://host/x"',
                    "/absolute/path, file:///path, http(s)://host/path or s3://bucket/key",
                )
            ],
        ),
        (
            given(uri="s3://bucket"),
            [
                (
                    "$.stages[0].inputs[0].uri",
                    '"s3://bucket"',
                    "/absolute/path, file:///path, http(s)://host/path or s3://bucket/key",
                )
            ],
        ),
        (given(uri="/x\n"), [("$.stages[0].inputs[0].uri", '"/x\\n"', "a uri without control characters")]),
        (
            given(uri="/x/{item}"),
            [
                (
                    "$.stages[0].inputs[0].uri",
                    '"/x/{item}"',
                    "{index}, or scatter.items: this stage has no items",
                )
            ],
        ),
        (
            one(scatter={"count": 2}, inputs=[{"name": "i", "uri": "/x/{item}"}]),
            [
                (
                    "$.stages[0].inputs[0].uri",
                    '"/x/{item}"',
                    "{index}, or scatter.items: this stage has no items",
                )
            ],
        ),
        (
            one(scatter={"count": 2}, outputs=[{"name": "o", "path": "{item}.bam"}]),
            [
                (
                    "$.stages[0].outputs",
                    '"{item}.bam"',
                    "{index}, or scatter.items: this stage has no items",
                )
            ],
        ),
        (
            one(scatter={"items": ["HG001", "lab/HG002"]}, outputs=[{"name": "o", "path": "{item}.bam"}]),
            [
                (
                    "$.stages[0].outputs",
                    'the item "lab/HG002"',
                    "the name of a file, of at most 128 bytes: the path {item}.bam is made of it",
                )
            ],
        ),
        (
            one(
                scatter={"items": ["a", "b"]},
                outputs=[{"name": "o", "path": "{item}/x"}, {"name": "p", "path": "b"}],
            ),
            [("$.stages[0].outputs", 'the item "b"', "an item that makes no two outputs one file")],
        ),
        (
            one(scatter={"items": ["h"]}, inputs=[{"name": "i", "uri": "https://{item}/x"}]),
            [
                (
                    "$.stages[0].inputs[0].uri",
                    '"https://{item}/x"',
                    "{item} and {index} behind the host or bucket only",
                )
            ],
        ),
        (
            one(scatter={"items": ["/a", "b"]}, inputs=[{"name": "i", "uri": "{item}"}]),
            [
                (
                    "$.stages[0].inputs[0].uri",
                    'the item "b"',
                    (
                        "an absolute path or file:///…: the service has no working folder (the command "
                        "line resolves relative paths against the document's folder; in Python write Path(...))"
                    ),
                )
            ],
        ),
        (
            given(uri="/x", match="all"),
            [("$.stages[0].inputs[0].match", 'the key "match"', "no such key beside uri: it goes with from")],
        ),
        (
            given(uri="/x", size="1GB"),
            [
                (
                    "$.stages[0].inputs[0].size",
                    '"1GB"',
                    'bytes, as "12Gi" (write Gi (times 1024) or G (times 1000), as in Kubernetes)',
                )
            ],
        ),
        (
            after(stage(outputs=OUT), inputs=[{"name": "i", "from": "a.o", "size": 1}]),
            [("$.stages[1].inputs[0].size", 'the key "size"', "estimate.output in the stage that writes it")],
        ),
        (
            after(stage(outputs=OUT), inputs=[{"name": "i", "from": "a.o", "match": "idnex"}]),
            [("$.stages[1].inputs[0].match", '"idnex"', "did you mean 'index'?")],
        ),
        (
            after(stage(outputs=OUT), inputs=[{"name": "i", "from": "a"}]),
            [("$.stages[1].inputs[0].from", '"a"', 'an output of a stage, as "align.bam"')],
        ),
    ],
)
def test_faults_of_inputs(value: Any, faults: Faults) -> None:
    """Bytes from outside and from stages."""
    assert faults_of(value) == faults


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        (
            one(outputs=[{"name": "o"}]),
            [("$.stages[0].outputs[0].path", "nothing", "a path below the task's working folder")],
        ),
        (
            one(outputs=[{"name": "o", "path": "/o"}]),
            [
                (
                    "$.stages[0].outputs[0].path",
                    '"/o"',
                    "a relative path: outputs lie below the task's working folder",
                )
            ],
        ),
        (
            one(outputs=[{"name": "o", "path": "a/../../o"}]),
            [
                (
                    "$.stages[0].outputs[0].path",
                    '"a/../../o"',
                    "a path below the task's working folder, without .. and control characters",
                )
            ],
        ),
        (
            one(outputs=[{"name": "o", "path": "."}]),
            [
                (
                    "$.stages[0].outputs[0].path",
                    '"."',
                    "a path below the task's working folder, without .. and control characters",
                )
            ],
        ),
        (
            one(outputs=[{"name": "o", "path": "o"}, {"name": "p", "path": "./o"}]),
            [
                (
                    "$.stages[0].outputs[1].path",
                    '"./o"',
                    "a path that neither is, holds nor is inside the one of $.stages[0].outputs[0]",
                )
            ],
        ),
        (
            one(outputs=[{"name": "o", "path": "o/x"}, {"name": "p", "path": "o"}]),
            [
                (
                    "$.stages[0].outputs[1].path",
                    '"o"',
                    "a path that neither is, holds nor is inside the one of $.stages[0].outputs[0]",
                )
            ],
        ),
        (
            one(outputs=[{"name": "o", "path": "o"}, {"name": "p", "path": "o/x/y"}]),
            [
                (
                    "$.stages[0].outputs[1].path",
                    '"o/x/y"',
                    "a path that neither is, holds nor is inside the one of $.stages[0].outputs[0]",
                )
            ],
        ),
        (
            one(outputs=[{"name": "O.x", "path": "o"}, {"name": "o_x", "path": "p"}]),
            [
                (
                    "$.stages[0].outputs[1].name",
                    '"o_x"',
                    (
                        'a name that does not become FLOWSCHED_OUTPUT_O_X too, as "O.x" at '
                        "$.stages[0].outputs[0] does"
                    ),
                )
            ],
        ),
        (
            gang(roles={"worker": {}}, outputs=[{"name": "o", "path": "o", "role": "wroker"}]),
            [("$.stages[0].outputs[0].role", '"wroker"', "a role of this stage: did you mean 'worker'?")],
        ),
        (
            one(outputs=[{"name": "o", "path": "x" * 256}]),
            [
                (
                    "$.stages[0].outputs[0].path",
                    '"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…"',
                    "at most 32 parts of 255 bytes, and 1,024 bytes in all",
                )
            ],
        ),
    ],
)
def test_faults_of_outputs(value: Any, faults: Faults) -> None:
    """Files below the working folder."""
    assert faults_of(value) == faults


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        (
            after(stage("align", outputs=OUT), inputs=[{"name": "i", "from": "aling.o"}]),
            [("$.stages[1].inputs[0].from", '"aling.o"', "the name of a stage: did you mean 'align'?")],
        ),
        (
            after(stage(outputs=[{"name": "bam", "path": "o"}]), inputs=[{"name": "i", "from": "a.bams"}]),
            [("$.stages[1].inputs[0].from", '"a.bams"', "an output of \"a\": did you mean 'bam'?")],
        ),
        (
            after(stage(), inputs=[{"name": "i", "from": "a.o"}]),
            [
                (
                    "$.stages[1].inputs[0].from",
                    '"a.o"',
                    'an output of "a", which has none (needs is for order alone)',
                )
            ],
        ),
        (
            one(needs=["a"]),
            [("$.stages[0].needs[0]", '"a"', "another stage: this one would wait for itself")],
        ),
        (
            one(needs=["b", 1, ""]),
            [
                ("$.stages[0].needs[1]", "1", "the name of a stage"),
                ("$.stages[0].needs[2]", '""', "the name of a stage"),
                ("$.stages[0].needs[0]", '"b"', 'the name of a stage: "a"'),
            ],
        ),
        (
            one(outputs=OUT, inputs=[{"name": "i", "from": "a.o"}]),
            [("$.stages[0].inputs[0].from", '"a.o"', "another stage: this one would wait for itself")],
        ),
        (
            document(stage("a", needs=["c"]), stage("b", needs=["a"]), stage("c", needs=["b"])),
            [("$.stages[0]", "a cycle: a → b → c → a", "stages that do not wait for themselves")],
        ),
        (
            document(*(stage(f"s{i}", needs=[f"s{(i - 1) % 20}"]) for i in range(20))),
            [
                (
                    "$.stages[0]",
                    "a cycle: s0 → s1 → s2 → s3 → s4 → s5 → (9 more) → s15 → s16 → s17 → s18 → s19 → s0",
                    "stages that do not wait for themselves",
                )
            ],
        ),
        (
            after(
                wide("a", 3), scatter={"count": 2}, inputs=[{"name": "i", "from": "a.o", "match": "index"}]
            ),
            [
                (
                    "$.stages[1].inputs[0].match",
                    "a with 3 shards, z with 2",
                    "equal widths for index (or match: all, or chunk)",
                )
            ],
        ),
        (
            after(
                wide("a", 3),
                wide("b", 2),
                inputs=[{"name": n, "from": f"{n}.o", "match": "index"} for n in "ab"],
            ),
            [
                (
                    "$.stages[2].inputs[1].match",
                    "b with 2 shards, z with 3",
                    "equal widths for index (or match: all, or chunk)",
                )
            ],
        ),
        (
            after(
                wide("a", 3), scatter={"count": 4}, inputs=[{"name": "i", "from": "a.o", "match": "chunk"}]
            ),
            [
                (
                    "$.stages[1].inputs[0].match",
                    "a with 3 shards, z with 4",
                    "no more shards than there are items to divide",
                )
            ],
        ),
    ],
)
def test_faults_of_edges(value: Any, faults: Faults) -> None:
    """References, cycles and widths."""
    assert faults_of(value) == faults


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        (
            one(scatter={"items": [1], "count": 2}),
            [("$.stages[0].scatter", "items and count", "exactly one of items and count")],
        ),
        (
            one(scatter={}),
            [("$.stages[0].scatter", "neither items nor count", "exactly one of items and count")],
        ),
        (
            one(scatter={"count": -1}),
            [("$.stages[0].scatter.count", "-1", "a whole number from 0 to 1,000,000")],
        ),
        (
            one(scatter={"count": 2.0}),
            [("$.stages[0].scatter.count", "2.0", "a whole number from 0 to 1,000,000")],
        ),
        (one(scatter={"items": "ab"}), [("$.stages[0].scatter.items", '"ab"', "an array")]),
        (
            one(scatter={"items": ["a", None, True, "b\0"]}),
            [
                ("$.stages[0].scatter.items[1]", "null", 'text or a number (in quotes: "null")'),
                ("$.stages[0].scatter.items[2]", "true", 'text or a number (in quotes: "true")'),
                ("$.stages[0].scatter.items[3]", '"b\\u0000" with a NUL character at 1', "text without NUL"),
            ],
        ),
        (
            one(scatter={"items": [2**63]}),
            [
                (
                    "$.stages[0].scatter.items[0]",
                    "9223372036854775808",
                    "a whole number of at most 63 bits, or text",
                )
            ],
        ),
        (
            one(scatter={"items": [{"lr": 1}]}),
            [
                (
                    "$.stages[0].scatter.items[0]",
                    "an object with 1 key",
                    "text or a number; several values are one text of JSON (Python: json.dumps(item)), which the task reads",
                )
            ],
        ),
        (one(scatter=3), [("$.stages[0].scatter", "3", "an object")]),
    ],
)
def test_faults_of_scatters(value: Any, faults: Faults) -> None:
    """Items or a count."""
    assert faults_of(value) == faults


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        (
            one(roles={"w": {}}),
            [
                (
                    "$.stages[0].roles",
                    "an object with 1 key",
                    'roles only beside "gang": true: members of a gang start together',
                )
            ],
        ),
        (gang(roles={}), [("$.stages[0].roles", "an object with 0 keys", "at least one role")]),
        (gang(roles=[]), [("$.stages[0].roles", "an array of 0", "an object")]),
        (
            gang(roles={"w": {"completes": False}}),
            [
                (
                    "$.stages[0].roles",
                    "an object with 1 key",
                    "at least one role that completes: else the stage would never end",
                )
            ],
        ),
        (
            gang(roles={"a.b": {}}),
            [
                (
                    '$.stages[0].roles["a.b"]',
                    'the role "a.b"',
                    "1-63 letters, digits, - or _, the first a letter or digit",
                )
            ],
        ),
        (
            gang(roles={"w": {"replicas": 2, "min": 3}}),
            [("$.stages[0].roles.w.min", "3", "a whole number from 1 to 2")],
        ),
        (
            gang(roles={"w": {"replica": 2}}),
            [("$.stages[0].roles.w.replica", 'the key "replica"', "did you mean 'replicas'?")],
        ),
        (
            gang(command=None),
            [
                (
                    "$.stages[0].roles.w.command",
                    "nothing",
                    'what to run, as a list of arguments: ["./align.sh", "--fast"]',
                )
            ],
        ),
    ],
)
def test_faults_of_gangs(value: Any, faults: Faults) -> None:
    """Roles."""
    assert faults_of(value) == faults


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        (
            one(when="sometimes"),
            [("$.stages[0].when", '"sometimes"', 'one of "success", "failure", "always"')],
        ),
        (one(when=3), [("$.stages[0].when", "3", 'one of "success", "failure", "always"')]),
        (
            one(when="failure"),
            [
                (
                    "$.stages[0].when",
                    '"failure"',
                    "needs or inputs of other stages beside it: nothing could fail before this stage",
                )
            ],
        ),
        (
            after(stage(outputs=OUT), when={"equals": {"a.o": "x", "c.o": "y", "a.p": "z", "nodot": "q"}}),
            [
                ("$.stages[1].when.equals.nodot", 'the key "nodot"', 'an output of a stage, as "align.bam"'),
                ('$.stages[1].when.equals["c.o"]', '"c.o"', 'the name of a stage: "a", "z"'),
                ('$.stages[1].when.equals["a.p"]', '"a.p"', 'an output of "a": "o"'),
                ('$.stages[1].when.equals["a.o"]', 'the key "a.o"', 'an output with "value": true'),
            ],
        ),
        (
            after(wide("a", 2), when={"equals": {"a.o": "x"}}),
            [
                ('$.stages[1].when.equals["a.o"]', 'the key "a.o"', 'an output with "value": true'),
                ('$.stages[1].when.equals["a.o"]', '"a" with 2 shards', "a stage with one shard: one value"),
            ],
        ),
        (
            one(outputs=VALUE, when={"equals": {"a.v": "x"}}),
            [('$.stages[0].when.equals["a.v"]', '"a.v"', "another stage: this one would wait for itself")],
        ),
        (
            after(stage(outputs=VALUE), when={"equals": {"a.v": []}}),
            [('$.stages[1].when.equals["a.v"]', "an array of 0", "at least one entry")],
        ),
        (
            after(stage(outputs=VALUE), when={"equals": {"a.v": {}}}),
            [
                (
                    '$.stages[1].when.equals["a.v"]',
                    "an object with 0 keys",
                    "the text an output must have, or an array of texts",
                )
            ],
        ),
    ],
)
def test_faults_of_conditions(value: Any, faults: Faults) -> None:
    """`when`."""
    assert faults_of(value) == faults


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        (
            policy(),
            [
                (
                    "$.stages[0].policies[0].action",
                    "nothing",
                    ("one of restart_task, restart_gang, fail_stage, abort_workflow, complete_stage, ignore"),
                ),
                (
                    "$.stages[0].policies[0].event",
                    "nothing",
                    "one of task_failed, task_evicted, task_completed, task_unknown, task_pending, *",
                ),
            ],
        ),
        (
            policy(event="failed", action="skip"),
            [
                ("$.stages[0].policies[0].event", '"failed"', "did you mean 'task_failed'?"),
                (
                    "$.stages[0].policies[0].action",
                    '"skip"',
                    'one of "restart_task", "restart_gang", "fail_stage", "abort_workflow", "complete_stage", "ignore"',
                ),
            ],
        ),
        (
            policy(event="task_faild", action="restrt_task"),
            [
                ("$.stages[0].policies[0].event", '"task_faild"', "did you mean 'task_failed'?"),
                ("$.stages[0].policies[0].action", '"restrt_task"', "did you mean 'restart_task'?"),
            ],
        ),
        (
            policy(event="task_failed", on="*", action="ignore"),
            [("$.stages[0].policies[0].on", '"*"', "one of event and on, which are the same")],
        ),
        (
            policy(event="task_completed", action="restart_task"),
            [
                (
                    "$.stages[0].policies[0].action",
                    '"restart_task"',
                    "another action: a task that succeeds would run for ever",
                )
            ],
        ),
        (
            policy(event="task_pending", action="ignore"),
            [("$.stages[0].policies[0].timeout", "nothing", 'how long a task may be pending, as "30m"')],
        ),
        (
            policy(event="task_evicted", action="RestartJob", exit_codes=[1], timeout=1),
            [
                (
                    "$.stages[0].policies[0].action",
                    '"RestartJob"',
                    "restart_task: this stage is no gang, its tasks do not depend on each other",
                ),
                (
                    "$.stages[0].policies[0].exit_codes",
                    "an array of 1",
                    "no exit codes: only task_failed has one",
                ),
                (
                    "$.stages[0].policies[0].timeout",
                    "1",
                    (
                        "no timeout: only task_pending and task_unknown are waited for, other events act "
                        "at once"
                    ),
                ),
            ],
        ),
        (
            policy(exit_codes=[0, "x"], action="ignore"),
            [
                ("$.stages[0].policies[0].exit_codes[0]", "0", "an exit code from 1 to 255"),
                ("$.stages[0].policies[0].exit_codes[1]", '"x"', "an exit code from 1 to 255"),
            ],
        ),
        (
            policy(events=["PodFailed"], event="PodFailed", action="ignore"),
            [("$.stages[0].policies[0].events", 'the key "events"', "one policy for each event")],
        ),
    ],
)
def test_faults_of_policies(value: Any, faults: Faults) -> None:
    """What no event or action can mean."""
    assert faults_of(value) == faults


@pytest.mark.parametrize(
    ("value", "faults"),
    [
        (
            one(selector={"a b": "x", "c": "x y"}),
            [
                (
                    '$.stages[0].selector["a b"]',
                    'the key "a b"',
                    'a label key as in Kubernetes ("disktype", "example.org/zone")',
                ),
                (
                    "$.stages[0].selector.c",
                    '"x y"',
                    "a label value as in Kubernetes: at most 63 letters, digits, -, _ or .",
                ),
            ],
        ),
        (
            one(
                tolerations=[
                    {"operator": "Exists", "value": "x"},
                    {},
                    {"operator": "Exists", "tolerationSeconds": 4},
                ]
            ),
            [
                (
                    "$.stages[0].tolerations[2].tolerationSeconds",
                    'the key "tolerationSeconds"',
                    "nothing: how long a lost node is waited for is a setting of the service",
                ),
                ("$.stages[0].tolerations[0].value", '"x"', "nothing beside operator Exists"),
                (
                    "$.stages[0].tolerations[1].key",
                    "nothing",
                    'the key of a taint (or operator "Exists" for all taints)',
                ),
            ],
        ),
        (
            one(affinity={"podAffinity": {}, "podAntiAffinity": {}}),
            [
                (
                    "$.stages[0].affinity.podAffinity",
                    'the key "podAffinity"',
                    'topology: {"rack": "required" or "preferred"}: pods of other stages cannot be named',
                ),
                (
                    "$.stages[0].affinity.podAntiAffinity",
                    'the key "podAntiAffinity"',
                    'anti_affinity: "node": pods of other stages cannot be named',
                ),
            ],
        ),
        (
            one(affinity={"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": []}}}),
            [
                (
                    "$.stages[0].affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution",
                    "an object with 1 key",
                    (
                        'selector: {"label": "value"}: flowsched demands equality only, so one term of '
                        "matchExpressions with operator In and one value is all that can be said here"
                    ),
                )
            ],
        ),
        (
            one(
                selector={"z": "1"},
                affinity={
                    "nodeAffinity": {
                        REQUIRED: {
                            "nodeSelectorTerms": [
                                {"matchExpressions": [{"key": "z", "operator": "In", "values": ["2"]}]}
                            ]
                        }
                    }
                },
            ),
            [("$.stages[0].affinity", "an object with 1 key", 'the same value for "z" as in selector')],
        ),
        (one(anti_affinity="rack"), [("$.stages[0].anti_affinity", '"rack"', 'one of "node"')]),
        (
            one(topology={"zone": "required"}),
            [
                (
                    "$.stages[0].topology.zone",
                    'the key "zone"',
                    "topology.rack only: a rack is the one domain flowsched knows the network of",
                )
            ],
        ),
        (
            one(topology={"rack": "must"}),
            [("$.stages[0].topology.rack", '"must"', 'one of "required", "preferred"')],
        ),
        (
            one(io={"read": "fast", "write": "2Mi/m"}),
            [
                ("$.stages[0].io.read", '"fast"', 'bytes in all, as "3Gi", or a rate, as "200Mi/s"'),
                ("$.stages[0].io.write", '"2Mi/m"', 'bytes in all, as "3Gi", or a rate, as "200Mi/s"'),
            ],
        ),
    ],
)
def test_faults_of_rules(value: Any, faults: Faults) -> None:
    """Where pods may run, and their traffic."""
    assert faults_of(value) == faults


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", ".hidden", "a//b", "a/b/c", "a/../b", "a b"])
def test_a_secrets_name_is_never_a_path(name: str) -> None:
    """It was accepted, and refused only when the task started."""
    document = {"name": "x", "stages": [{"name": "a", "command": ["x"], "secrets": {"KEY": name}}]}
    with pytest.raises(InvalidDocument) as refused:
        check_workflow(document)
    assert [fault.path for fault in refused.value.faults] == ["$.stages[0].secrets.KEY"]


@pytest.mark.parametrize(
    ("argument", "name"),
    [
        ("train $TF_CONFIG", "TF_CONFIG"),
        ("train ${TF_CONFIG:-}", "TF_CONFIG"),
        ("$(FLOWSCHED_HOSTS)", "FLOWSCHED_HOSTS"),
        ("$(FLOWSCHED_HOSTS_PS_2)", "FLOWSCHED_HOSTS_PS_2"),
    ],
)
def test_a_gang_whose_lists_fit_no_variable_cannot_use_one(argument: str, name: str) -> None:
    """513 members, by roles; with 512 it can."""
    roles = {"ps": {"replicas": 2}, "w": {"replicas": 511, "command": ["sh", "-c", argument]}}
    found = f"a command with ${name}, in a gang of 513"
    expected = (
        f"a command without {name}: in a gang of more than 512 members the files that FLOWSCHED_CLUSTER_FILE "
        "and FLOWSCHED_HOSTFILE name list them"
    )
    assert faults_of(gang(roles=roles)) == [("$.stages[0].roles", found, expected)]
    check_workflow(gang(roles={**roles, "ps": {"replicas": 1}}))


def test_a_large_gang_may_name_what_it_sets_itself_or_escapes() -> None:
    """Its own variable of the name, an escaped reference, and the variables that name files."""
    command = ["sh", "-c", "train $TF_CONFIG $$(FLOWSCHED_HOSTS) $FLOWSCHED_HOSTFILE $FLOWSCHED_CLUSTER_FILE"]
    check_workflow(gang(roles={"w": {"replicas": 600, "command": command, "env": {"TF_CONFIG": "x"}}}))
