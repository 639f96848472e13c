"""Profiles as documents: every field can be said, every fault is told at once, and what is written is read again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flowsched
from flowsched.errors import FlowschedError, InvalidDocument, InvalidRequest
from flowsched.scheduling.policy.extension import FIELDS, Kind, Offered, guarded, offered, plugin
from flowsched.scheduling.policy.framework import PER_QUEUE, PROFILES, Profile
from flowsched.scheduling.policy.profile import (
    document_of,
    field_facts,
    policies_from,
    profile_values,
    written_fields,
)
from flowsched.values import replace
from flowsched.workflow.formats.yaml_text import read_yaml

ROW = re.compile(r"^\| `[a-z_]+` \|.*$", re.MULTILINE)
DOCS = Path(flowsched.__file__).parent.parent / "docs"


@plugin("filter")
def only(snapshot: Any, shape: Any, *, key: str = "disktype", most: int = 3, strict: bool = False) -> Any:
    """Some nodes."""
    return np.ones(len(snapshot), dtype=np.bool_), ""


@plugin("cost")
def dear(snapshot: Any, catalogue: Any, group: Any, role: Any) -> Any:
    """Nothing."""


@plugin("queue-order")
def by_name(groups: Any, now: int) -> Any:
    """All alike."""
    return np.zeros(len(groups), dtype=np.int64)


@plugin("victim")
def anybody(snapshot: Any, victims: Any, now: int) -> Any:
    """All alike."""
    return np.zeros(len(victims), dtype=np.int64)


PLUGINS: Mapping[str, Offered] = {
    name: offered(name, function)
    for name, function in (("only", only), ("dear", dear), ("by-name", by_name), ("anybody", anybody))
}
KINDS = {name: kind for kind, names in FIELDS.items() for name in names}
BY_KIND = {Kind.FILTER: "only", Kind.COST: "dear", Kind.QUEUE_ORDER: "by-name", Kind.VICTIM: "anybody"}


def faults(document: object, broken: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(InvalidDocument) as raised:
        policies_from(document, PLUGINS, broken or {})
    return [str(fault) for fault in raised.value.faults]


def another(name: str, kind: Any, value: Any) -> Any:
    """A value of a field that is not the one given. A type that is not known here fails the tests below."""
    origin, inner = get_origin(kind), get_args(kind)
    if name in KINDS:
        guard = guarded(PLUGINS[BY_KIND[KINDS[name]]], {})
        return (guard,) if origin is tuple else guard
    if kind is bool:
        return not value
    if kind is int:
        return value + 1
    if kind is str:
        return ("/" if name == "prefixes" else value) + "x"
    if origin is Literal:
        return next(each for each in inner if each != value)
    if NoneType in inner:
        bare = next(each for each in inner if each is not NoneType)
        return another(name, bare, 0 if bare is int else "")
    if origin is tuple:
        return (another(name, inner[0], 0 if inner[0] is int else ""),)
    if hasattr(kind, "__dataclass_fields__"):
        value = value if isinstance(value, kind) else kind()
        changes = {k: another(k, t, getattr(value, k)) for k, (_, t) in written_fields(kind).items()}
        return replace(value, **changes)
    raise AssertionError(f"{name}: {kind} is a type that profiles did not have")


def test_every_field_can_be_said_and_read_again() -> None:
    """Each alone, with another value than its default; a field that somebody adds is covered by this."""
    for name, (_, kind) in written_fields().items():
        profile = replace(Profile(name="lab"), **{name: another(name, kind, getattr(Profile(), name))})
        assert profile != Profile(name="lab"), name
        assert policies_from(document_of(profile), PLUGINS).default == profile, name


def test_no_field_is_forgotten() -> None:
    """A profile's fields are those of its document, beside its name and the queues, which stand elsewhere."""
    assert {each.name for each in fields(Profile)} == {*written_fields(), "name", "queues"}
    assert {*written_fields(), "name"} >= PER_QUEUE


def test_every_field_has_a_meaning() -> None:
    """From the docstring, in a sentence."""
    facts = {each.name: each for each in field_facts()}
    assert list(facts) == list(written_fields())
    assert facts["shortest_wait_ms"].about == ("A copy that takes less is never worth waiting instead.")
    assert facts["backfill"].expected.startswith("one of easy, ")
    assert all(len(each.about) > 15 for each in facts.values())


def rows() -> list[str]:
    """The table of docs/profiles.md as it should be."""
    return [
        f"| `{each.name}` | {each.expected} | `{each.default}` | {'yes' if each.per_queue else 'no'} | {each.about} |"
        for each in field_facts()
    ]


def test_the_documentation_has_the_fields_as_they_are() -> None:
    """The table of docs/profiles.md; `python tests/scheduling/test_policy.py` writes it anew."""
    text = (DOCS / "profiles.md").read_text(encoding="utf-8")
    assert ROW.findall(text) == rows(), "run `python tests/scheduling/test_policy.py`"


def test_the_examples_of_the_documentation_are_good() -> None:
    """Every YAML block of docs/profiles.md, read with the plugin that docs/plugins.md shows."""
    known = {**PLUGINS, "only-ssd": replace(PLUGINS["only"], name="only-ssd")}
    blocks = re.findall(r"```yaml\n(.*?)```", (DOCS / "profiles.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        policies_from(read_yaml(block.encode()), known)


def test_a_profile_extends_another() -> None:
    """Said, or not: queues' profiles extend the default one, the default one what is built in."""
    found = policies_from(
        {
            "default": "lab",
            "profiles": {
                "lab": {"window": 7},
                "data": {"packing": "spread"},
                "stock": {"extends": "kube-like", "window": 9},
                "more": {"extends": "data", "order": "fifo"},
            },
            "queues": {"germline": "data", "rest": "lab"},
        },
        PLUGINS,
    )
    assert (found.default.name, found.default.window, found.default.packing) == ("lab", 7, "binpack")
    assert (found.named["data"].window, found.named["data"].packing) == (7, "spread")
    assert (found.named["more"].packing, found.named["more"].order) == ("spread", "fifo")
    assert (found.named["stock"].gang, found.named["stock"].window) == (False, 9)
    assert {queue: each.name for queue, each in found.default.queues.items()} == {"germline": "data"}
    assert found.default.of("germline").packing == "spread"
    assert found.default.of("anything").name == "lab"


def test_the_policy_of_the_command_line_is_what_is_extended() -> None:
    """`--policy kube-like --profile FILE`."""
    found = policies_from({"name": "mine", "window": 5}, {}, base="kube-like")
    assert (found.default.gang, found.default.window, found.default.name) == (False, 5, "mine")


def test_every_fault_is_told_at_once() -> None:
    """Each with its path, what was found and what was expected."""
    assert faults(
        {
            "name": "lab",
            "extends": "nobody",
            "pakcing": "spread",
            "window": 0,
            "gang": 1,
            "packing": "tight",
            "origin_rate": "117M",
            "filters": ["nothing", {"name": "only", "keyy": "x", "most": "3", "strict": True}, 7],
            "costs": ["only"],
            "first_costs": "dear",
            "queue_order": {"nme": "by-name"},
        }
    ) == [
        "$.pakcing: found the key \"pakcing\"; did you mean 'packing'?",
        "$.window: found 0, expected a whole number from 1 to 1,000,000,000,000,000",
        "$.gang: found 1, expected true or false",
        '$.packing: found "tight", expected one of "binpack", "spread"',
        '$.origin_rate: found "117M", expected a whole number from 1 to 1,000,000,000,000,000',
        '$.filters[0]: found "nothing", expected a filter plugin: one of only',
        "$.filters[1].keyy: found the key \"keyy\"; did you mean 'key'?",
        '$.filters[1].most: found "3", expected a whole number from -1,000,000,000,000,000 to 1,000,000,000,000,000',
        "$.filters[2]: found 7, expected an object",
        '$.costs[0]: found "only", a filter plugin, expected a cost plugin: one of dear',
        '$.first_costs: found "dear", expected an array',
        "$.queue_order.name: found nothing, expected a queue-order plugin: one of by-name",
        '$.extends: found "nobody", expected one of flowsched, kube-like, volcano-like',
    ]


@pytest.mark.parametrize("said", ["", 0, False, {}, []])
def test_what_is_empty_is_no_plugin(said: object) -> None:
    """Only null says that there is none: a scheduler that took another value would fail in its first round."""
    for key in ("queue_order", "victim_order"):
        assert len(faults({"name": "lab", key: said})) == 1


@pytest.mark.parametrize("prefix", ["data", "", "./data", "file:///data", "s3:lab"])
def test_a_prefix_that_no_path_or_url_begins_with_is_a_fault(prefix: str) -> None:
    """A relative one matches nothing, and an empty one all paths, as `/` does. Files of file URIs go by their paths."""
    (told,) = faults({"name": "lab", "storages": [{"name": "nfs", "prefixes": ["/scratch", prefix]}]})
    assert told == (
        f'$.storages[0].prefixes[1]: found "{prefix}", '
        "expected an absolute path or the beginning of a URL: /data, s3://lab"
    )


def test_prefixes_are_paths_and_beginnings_of_urls() -> None:
    """Of buckets, of all URLs of a scheme, and the root."""
    prefixes = ["/data", "/", "s3://lab", "s3://", "https://minio.lab/x"]
    made = policies_from({"name": "lab", "storages": [{"name": "nfs", "prefixes": prefixes}]}, {})
    assert made.default.storages[0].prefixes == tuple(prefixes)


def test_a_queue_without_a_name_of_a_profile_is_a_fault() -> None:
    """Null beside a queue would else leave it with the default, unsaid."""
    assert faults({"profiles": {"c": {}}, "queues": {"q": None}}) == [
        "$.queues.q: found null, expected the name of a profile"
    ]


def test_as_many_queues_and_profiles_as_a_large_site_has() -> None:
    """More than a document may have labels."""
    profiles = {f"p{number}": {} for number in range(1_500)}
    queues = {f"q{number}": "p1" for number in range(1_500)}
    found = policies_from({"default": "p0", "profiles": profiles, "queues": queues}, PLUGINS, {})
    assert len(found.default.queues) == 1_500


def test_faults_between_profiles_are_told() -> None:
    """Names, defaults, circles and queues."""
    assert faults(
        {
            "default": "z",
            "profiles": {"a": {"extends": "b"}, "b": {"extends": "a"}, "c d": {}},
            "queues": {"q": "y", "r": 3},
        }
    ) == [
        "$.profiles[\"c d\"]: found the profile \"c d\", expected a name of 1 to 63 letters, digits, '.', '-' and '_'",
        '$.default: found "z", expected one of the profiles: a, b',
        '$.profiles.b.extends: found "a", expected no circle: a -> b -> a',
        '$.queues.q: found "y", expected one of the profiles: a, b',
        "$.queues.r: found 3, expected one of the profiles: a, b",
    ]
    assert faults({"profiles": {}}) == [
        "$.profiles: found an object with 0 keys, expected at least one profile"
    ]
    (wrong_type,) = faults({"profiles": [1]})
    assert wrong_type.startswith("$.profiles: found an array of 1")
    (unknown_key,) = faults({"profiles": {"a": {}}, "defaults": "a"})
    assert unknown_key.startswith("$.defaults: found the key")
    assert faults([]) == ["$: found an array of 0, expected an object"]
    assert faults({"profiles": {"a": {}, "b": {}}}) == [
        "$.default: found nothing, expected one of the profiles: a, b"
    ]


def test_what_concerns_a_whole_cycle_is_said_by_the_default_profile() -> None:
    """A queue's profile cannot place pod by pod while the others place gangs."""
    assert faults(
        {
            "default": "a",
            "profiles": {"a": {}, "b": {"gang": False, "packing": "spread"}},
            "queues": {"q": "b"},
        }
    ) == [
        "$.profiles.b.gang: found false, expected true, as in a: it is the same for all queues "
        "($.queues.q names this profile)"
    ]


def test_a_plugin_that_does_not_work_is_told_with_the_reason() -> None:
    """Rather than that there is none."""
    assert faults({"name": "a", "filters": ["bad"]}, {"bad": "ImportError: no module"}) == [
        '$.filters[0]: found "bad", which does not work: ImportError: no module, expected a filter plugin: one of only'
    ]


def test_a_function_that_nobody_can_find_is_not_written() -> None:
    """Programs may put any function into a profile; a document can only name plugins."""
    with pytest.raises(FlowschedError, match=r"filters: .* is no plugin of an entry point"):
        profile_values(replace(PROFILES["flowsched"], filters=(lambda snapshot, shape: None,)))  # type: ignore[arg-type, return-value]


VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMED = st.dictionaries(
    st.sampled_from([*written_fields(), "extends", "name"]),
    VALUES | st.sampled_from(["a", "b", "flowsched", "only"]),
)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "default": VALUES | st.sampled_from(["a", "b"]),
            "profiles": VALUES | st.dictionaries(st.sampled_from(["a", "b", "c"]), NAMED | VALUES),
            "queues": VALUES
            | st.dictionaries(st.text(max_size=3), st.sampled_from(["a", "b", "c"]), max_size=3),
        },
    )
    | NAMED
    | VALUES
)
def test_whatever_is_said_is_taken_or_refused(document: object) -> None:
    """A profile that can be written again, or faults; nothing else happens."""
    try:
        found = policies_from(document, PLUGINS)
    except InvalidDocument:
        return
    assert policies_from(document_of(found.default), PLUGINS).default == found.default


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"a: [1", "not YAML: expected ',' or ']'"),
        (b"a: 1\na: 2\n", "the key 'a' occurs twice in one object .line 2, column 1"),
        (b"\xff", "not UTF-8: byte 0 is 0xff"),
        (b"a: 1\n---\nb: 2\n", "not YAML: but found another document"),
        (b"!!python/object/apply:os.system [ls]", "not YAML: could not determine a constructor"),
        (b"[" * 100_000, "nested too deeply|not YAML"),
        (b"x" * (1 << 21), "at most 1,048,576 are read"),
        (b"a: !!timestamp 2026-13-45", "not YAML: could not determine a constructor"),
    ],
)
def test_text_that_is_no_document_is_refused(text: bytes, told: str) -> None:
    """With line and column where there are any."""
    with pytest.raises(InvalidRequest, match=told):
        read_yaml(text)


if __name__ == "__main__":
    page = DOCS / "profiles.md"
    old = page.read_text(encoding="utf-8")
    first, *rest = ROW.findall(old)
    for line in rest:
        old = old.replace(f"{line}\n", "", 1)
    page.write_text(old.replace(first, "\n".join(rows()), 1), encoding="utf-8")
