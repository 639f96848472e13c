"""Bytes that are no document, and documents that are too large: one refusal each, whatever they are."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from valid_documents import document, encoded, stage

from flowsched.errors import InvalidDocument, InvalidRequest, TooLarge
from flowsched.values import replace
from flowsched.workflow.document.decode import check_workflow, decode_workflow
from flowsched.workflow.document.limits import DEFAULT, Limits
from flowsched.workflow.document.reader import read_document

MEBI = 1 << 20


def refusal(raw: bytes, limits: Limits = DEFAULT) -> tuple[type[Exception], str]:
    """How a document is refused, by class and message."""
    with pytest.raises(InvalidRequest) as raised:
        decode_workflow(raw, limits)
    return type(raised.value), str(raised.value)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "not JSON: Expecting value: line 1, column 1"),
        (
            b"name: x",
            "not JSON: Expecting value: line 1, column 1 (commands such as `flowsched submit` read YAML, HTTP does not)",
        ),
        (b"{", "not JSON: Expecting property name enclosed in double quotes: line 1, column 2"),
        (b'{"a": 1}\n{', "not JSON: Extra data: line 2, column 1"),
        (b"{'a': 1}", "not JSON: Expecting property name enclosed in double quotes: line 1, column 2"),
        (b'"\xff"', "not UTF-8: byte 1 is 0xff"),
        (b'"\xed\xa0\x80"', "not UTF-8: byte 1 is 0xed"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8: byte 0 is 0xff"),
        (b"\xef\xbb\xbf{}", "not JSON: Unexpected UTF-8 BOM (decode using utf-8-sig): line 1, column 1"),
        (b'"a\x00b"', "not JSON: Invalid control character at: line 1, column 3"),
        (b"[NaN]", "not JSON: NaN is no number"),
        (b"[-Infinity]", "not JSON: -Infinity is no number"),
        (b"[1e400]", "the number '1e400' is beyond the range of a float"),
        (b"[-1e400]", "the number '-1e400' is beyond the range of a float"),
        (b"[" + b"7" * 5000 + b"]", "a whole number has more than 4,300 digits"),
        (b'{"a": 1, "b": 2, "a": 3}', "the key 'a' occurs twice in one object"),
        (b'{"a": 1, "\\u0061": 3}', "the key 'a' occurs twice in one object"),
        (
            b'{"name": "\\ud800"}',
            "half of a surrogate pair (\\ud8…): not a character, no text can hold it",
        ),
        (
            b'["\\ud83d\\ude00\\ude00"]',
            "half of a surrogate pair (\\ude…): not a character, no text can hold it",
        ),
        (
            b'["\\ud83d\\ud83d\\ude00"]',
            "half of a surrogate pair (\\ud8…): not a character, no text can hold it",
        ),
    ],
)
def test_bytes_that_are_no_document(raw: bytes, message: str) -> None:
    """400, and what is wrong in one line."""
    assert refusal(raw) == (InvalidRequest, message)


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b'"\\\\ud800"', "\\ud800"),
        (b'"\\\\\\" [[["', '\\" [[['),
        (b'["[", "]", "[\\"["]', ["[", "]", '["[']),
        (b'[{"a": {"a": 1}}, {"a": 1}]', [{"a": {"a": 1}}, {"a": 1}]),
        (b"1e-400", 0.0),
        (b" null ", None),
    ],
)
def test_bytes_that_only_look_wrong(raw: bytes, value: object) -> None:
    """Pairs, escaped backslashes, brackets in texts, the same key in two objects."""
    assert read_document(raw) == value


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"[" * 100_000, "nested too deeply: 100,000, the limit 'depth' is 32"),
        (b'{"a":' * 100_000, "nested too deeply: 100,000, the limit 'depth' is 32"),
        (
            b" " * (16 * MEBI + 1),
            "the document is too large (bytes): 16,777,217, the limit 'document_bytes' is 16,777,216",
        ),
        (
            b"[" + b"[]," * 600_000 + b"[]]",
            "too many objects and arrays: 600,002, the limit 'objects' is 500,000",
        ),
        (b"[" + b"1," * 4_000_000 + b"1]", "too many values: 4,000,001, the limit 'values' is 3,000,000"),
        (
            b'{"name":"' + b"x" * (10 * MEBI) + b'"}',
            "the text at $.name is too long (bytes): 10,485,760, the limit 'string_bytes' is 65,536",
        ),
        (
            b'{"name":"x","stages":[{"name":"a","command":["x","' + b"x" * 65_537 + b'"]}]}',
            "the text at $.stages[0].command[1] is too long (bytes): 65,537, the limit 'string_bytes' is 65,536",
        ),
    ],
)
def test_documents_beyond_a_limit(raw: bytes, message: str) -> None:
    """413, with the limit, its name and what was found; fault 41."""
    assert refusal(raw) == (TooLarge, message)


def test_a_depth_of_the_limit_is_allowed() -> None:
    """And one more is not; brackets in texts do not count."""
    read_document(b"[" * 32 + b'"[[["' + b"]" * 32)
    with pytest.raises(TooLarge):
        read_document(b"[" * 33 + b"]" * 33)


@given(st.binary() | st.text().map(str.encode))
def test_any_bytes_are_decoded_or_refused(raw: bytes) -> None:
    """Nothing else is ever raised."""
    with pytest.raises(InvalidRequest):
        decode_workflow(raw)


JSON_TEXTS = st.text(st.sampled_from('ab"\\[]{},:\x00é\U0001f600/ '), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | JSON_TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(JSON_TEXTS, inner),
)


@given(JSON, st.booleans())
def test_good_json_is_read_as_it_is(value: object, ascii_only: bool) -> None:
    """Whatever texts look like from outside."""
    raw = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert read_document(raw) == value


@given(JSON)
def test_depth_is_counted_exactly(value: object) -> None:
    """With a limit of the true depth it is read, with one less it is refused."""

    def depth(part: object) -> int:
        if isinstance(part, dict | list):
            parts = part.values() if isinstance(part, dict) else part
            return 1 + max(map(depth, parts), default=0)
        return 0

    raw, true = json.dumps(value).encode(), depth(value)
    assert read_document(raw, replace(DEFAULT, depth=true)) == value
    if true:
        with pytest.raises(TooLarge):
            read_document(raw, replace(DEFAULT, depth=true - 1))


OUTPUT = [{"name": "o", "path": "o"}]


@pytest.mark.parametrize(
    ("limits", "value", "message"),
    [
        (
            {"stages": 2},
            document(*(stage(n) for n in "abc")),
            "too many entries at $.stages: 3, the limit 'stages' is 2",
        ),
        (
            {"tasks": 5},
            document(stage("a", scatter={"count": 3}), stage("b", scatter={"count": 3})),
            "too many tasks in all: 6, the limit 'tasks' is 5",
        ),
        (
            {"tasks_per_stage": 5},
            document(stage(scatter={"count": 6})),
            "$.stages[0].scatter.count is too large: 6, the limit 'tasks_per_stage' is 5",
        ),
        (
            {"tasks_per_stage": 5},
            document(stage(scatter={"items": list("abcdef")})),
            "too many items at $.stages[0].scatter.items: 6, the limit 'tasks_per_stage' is 5",
        ),
        (
            {"tasks_per_stage": 5},
            document(stage(gang=True, scatter={"count": 2}, roles={"w": {"replicas": 3}})),
            "too many tasks at $.stages[0]: 6, the limit 'tasks_per_stage' is 5",
        ),
        (
            {"gang_members": 5},
            document(stage(gang=True, roles={"w": {"replicas": 3}, "v": {"replicas": 3}})),
            "the gang at $.stages[0] is too large: 6, the limit 'gang_members' is 5",
        ),
        (
            {"gang_members": 5},
            document(stage(gang=True, roles={"w": {"replicas": 10**400}})),
            "$.stages[0].roles.w.replicas is too large: 9,223,372,036,854,775,808, the limit 'gang_members' is 5",
        ),
        (
            {"roles": 1},
            document(stage(gang=True, roles={"v": {}, "w": {}})),
            "too many entries at $.stages[0].roles: 2, the limit 'roles' is 1",
        ),
        (
            {"inputs": 1},
            document(stage(inputs=[{"name": n, "uri": "/x"} for n in "ab"])),
            "too many entries at $.stages[0].inputs: 2, the limit 'inputs' is 1",
        ),
        (
            {"outputs": 1},
            document(stage(outputs=[{"name": n, "path": n} for n in "ab"])),
            "too many entries at $.stages[0].outputs: 2, the limit 'outputs' is 1",
        ),
        (
            {"needs": 1},
            document(stage("a"), stage("b"), stage("c", needs=["a", "b"])),
            "too many entries at $.stages[2].needs: 2, the limit 'needs' is 1",
        ),
        (
            {"edges": 1},
            document(stage("a"), stage("b", needs=["a"]), stage("c", needs=["a"])),
            "too many edges between stages: 2, the limit 'edges' is 1",
        ),
        (
            {"items_bytes": 4},
            document(stage(scatter={"items": ["aa", "éé"]})),
            "the items at $.stages[0].scatter.items are too large (bytes): 6, the limit 'items_bytes' is 4",
        ),
        (
            {"string_bytes": 4},
            document(stage("a", scatter={"items": ["aaaaa"]}), name="x"),
            "the text at $.stages[0].scatter.items[0] is too long (bytes): 5, the limit 'string_bytes' is 4",
        ),
        (
            {"arguments": 2},
            document(stage(command=["a", "b", "c"])),
            "too many entries at $.stages[0].command: 3, the limit 'arguments' is 2",
        ),
        (
            {"environment": 1},
            document(stage(env={"A": "1", "B": "1"})),
            "too many entries at $.stages[0].env: 2, the limit 'environment' is 1",
        ),
        (
            {"command_bytes": 9},
            document(stage(command=["abc"], env={"ABC": "d"})),
            "command and environment at $.stages[0] are too large (bytes): 10, the limit 'command_bytes' is 9",
        ),
        (
            {"labels": 1},
            document(stage(), labels={"a": "1", "b": "1"}),
            "too many entries at $.labels: 2, the limit 'labels' is 1",
        ),
    ],
)
def test_each_limit_has_its_own_message(limits: dict[str, int], value: object, message: str) -> None:
    """Which says where, how much, and the name of the limit."""
    assert refusal(encoded(value), replace(DEFAULT, **limits)) == (TooLarge, message)


@pytest.mark.parametrize(
    "limits",
    [
        {"stages": 2, "tasks": 6, "tasks_per_stage": 3, "edges": 1, "inputs": 1, "outputs": 1},
        {"needs": 1, "arguments": 1, "items_bytes": 3, "depth": 5},
    ],
)
def test_a_document_at_its_limits_is_accepted(limits: dict[str, int]) -> None:
    """A limit is the largest that is allowed."""
    first = stage("a", scatter={"items": ["x", "y", "z"]}, outputs=OUTPUT)
    second = stage("b", needs=["a"], inputs=[{"name": "i", "from": "a.o", "match": "index"}])
    spec = decode_workflow(encoded(document(first, second)), replace(DEFAULT, **limits))
    assert [s.width for s in spec.stages] == [3, 3]


def test_a_thousand_faults_are_written_down_and_the_rest_is_counted() -> None:
    """So that an answer is never larger than what was asked."""
    with pytest.raises(InvalidDocument) as raised:
        check_workflow({"name": "x", "stages": [1] * 5_000})
    assert len(raised.value.faults) == 1_001
    assert str(raised.value.faults[-1]) == (
        "$: found 4,000 more entries with faults or not looked at, expected the faults above mended first"
    )


def test_a_fault_among_a_million_items_is_found_without_a_million_messages() -> None:
    """Looking ends when no more faults are written down."""
    with pytest.raises(InvalidDocument) as raised:
        check_workflow(document(stage(scatter={"items": [None] * 1_000_000})))
    assert len(raised.value.faults) == 1_001
    assert raised.value.faults[999].path == "$.stages[0].scatter.items[999]"


def test_a_thousand_stages_of_a_thousand_tasks_are_not_expanded() -> None:
    """A million tasks are a thousand entries."""
    stages = [stage("s0", scatter={"count": 1000}, outputs=OUTPUT)]
    for i in range(1, 1000):
        inputs = [{"name": "i", "from": f"s{i - 1}.o", "match": "index"}]
        stages.append(stage(f"s{i}", inputs=inputs, outputs=OUTPUT))
    spec = decode_workflow(encoded(document(*stages)))
    assert sum(s.tasks for s in spec.stages) == 1_000_000


def test_fault_40_poison_dags_are_refused_or_accepted_without_recursion() -> None:
    """A cycle of ten thousand stages, a chain of them, and a million-way fan-in."""
    chain = [stage("s0")] + [stage(f"s{i}", needs=[f"s{i - 1}"]) for i in range(1, 10_000)]
    assert len(check_workflow(document(*chain)).stages) == 10_000
    chain[0] = stage("s0", needs=["s9999"])
    with pytest.raises(InvalidDocument) as raised:
        check_workflow(document(*chain))
    assert [fault.path for fault in raised.value.faults] == ["$.stages[0]"]
    fan_in = document(stage("a", scatter={"count": 1_000_000}), stage("b", needs=["a"]))
    assert check_workflow(fan_in).stages[1].needs == ("a",)
