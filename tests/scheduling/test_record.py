"""A cycle in one file: what is read is what was written, and decides the same; what is no snapshot is refused."""

from __future__ import annotations

import inspect
import io
import json
import zipfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cycles import KINDS, random_cycle, random_file
from scheduling_cases import bag, cluster, frozen, gang, run

from flowsched.errors import FlowschedError, InvalidDocument, InvalidRequest
from flowsched.scheduling.cycle import cycle
from flowsched.scheduling.explain.recording import (
    Reader,
    Writer,
    differences,
    plan_bytes,
    recorded,
    replayed,
    summary,
    unpacked,
)
from flowsched.scheduling.policy.extension import guarded, offered, plugin
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.scheduling.queues.tree import QueueTree
from flowsched.scheduling.state.data import Catalogue
from flowsched.statement import Statement
from flowsched.values import replace


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 10**6))
@settings(max_examples=120, deadline=None)
def test_a_recorded_cycle_decides_the_same_again(kind: str, seed: int) -> None:
    """Byte for byte, and again; the cluster is the same, slot by slot."""
    arguments = random_cycle(kind, seed)
    raw = recorded(cycle(*arguments), *arguments).packed()
    record = unpacked(raw)
    assert frozen(record.inputs["snapshot"]) == frozen(arguments[0])
    assert record.profile == arguments[4]
    assert list(record.inputs["backlog"]) == list(arguments[3])
    assert plan_bytes(replayed(record)) == record.plan
    assert plan_bytes(replayed(record)) == record.plan
    assert plan_bytes(cycle(*arguments)) == record.plan


@given(st.sampled_from(sorted(KINDS)), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_what_was_read_lives_on(kind: str, seed: int) -> None:
    """Claims that come and go change the read cluster as they change the first one."""
    arguments = random_cycle(kind, seed)
    read = unpacked(recorded(cycle(*arguments), *arguments).packed()).inputs["snapshot"]
    for snapshot in (arguments[0], read):
        for owner in list(snapshot.claims)[::2]:
            snapshot.unclaim(owner, Statement())
        run(snapshot, "new", 0, 1, until_ms=2_000_000)
    assert frozen(read) == frozen(arguments[0])
    assert read.paying_queues == arguments[0].paying_queues


def test_all_that_a_cycle_is_given_is_recorded() -> None:
    """An argument that is added to `cycle` is in the file, or this fails."""
    raw = random_file("data", 1)
    assert set(unpacked(raw).inputs) == set(inspect.signature(cycle).parameters)


def test_the_file_holds_the_plan_and_the_profile_for_people() -> None:
    """As JSON in a zip archive."""
    given = (cluster(4), Catalogue(), QueueTree(), [bag(7, 6)], PROFILES["flowsched"], 50, None)
    raw = recorded(cycle(*given), *given).packed()  # type: ignore[arg-type]
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        about = json.loads(archive.read("record.json"))
        plan = json.loads(archive.read("plan.json"))
        profile = json.loads(archive.read("profile.json"))
    assert (about["nodes"], about["groups"], about["now"], about["profile"]) == (1, 1, 50, "flowsched")
    assert plan["placements"][0]["nodes"] == [[0, 0, 0, 0]]
    assert plan["reasons"][0]["code"] == "Insufficient"
    assert profile["profiles"]["flowsched"]["packing"] == "binpack"


def test_another_policy_is_compared_in_words() -> None:
    """Who is placed otherwise, where, and what the plans decide in all."""
    given = (cluster(4, 4), Catalogue(), QueueTree(), [bag(7, 2), gang(8, 7)], Profile(), 50, None)
    record = unpacked(recorded(cycle(*given), *given).packed())  # type: ignore[arg-type]
    other = replace(Profile(), name="wide", packing="spread", backfill="none")
    before = json.loads(record.plan)
    after = json.loads(plan_bytes(replayed(record, other)))
    assert summary(before) == "2 pods of 1 groups placed, 1 reserved; who waits: GangIncomplete 1"
    assert summary(after) == "2 pods of 1 groups placed, 0 reserved; who waits: GangIncomplete 1"
    lines = differences(before, after, record.inputs["backlog"], record.inputs["snapshot"].names)
    assert lines[0] == (
        "placements of g7 (group 7): cost_ms 843, missing_bytes [[0, 0]], on n0 n0 -> "
        "cost_ms 157, missing_bytes [[0, 0]], on n0 n1"
    )
    assert any(
        line.startswith("reservations of g8 (group 8): ") and line.endswith("-> none") for line in lines
    )
    assert differences(before, before, (), ()) == []


def test_a_profile_with_a_plugin_is_recorded_by_its_name() -> None:
    """It is found again where the plugin is installed; elsewhere the file says what is missing."""

    @plugin("filter")
    def first(snapshot: Any, shape: Any, *, most: int = 1) -> Any:
        return np.arange(len(snapshot)) < most, "are too far"

    found = offered("first", first)
    profile = Profile(filters=(guarded(found, {"most": 2}),))  # type: ignore[arg-type]
    given = (cluster(1, 1, 1), Catalogue(), QueueTree(), [bag(1, 3)], profile, 50, None)
    raw = recorded(cycle(*given), *given).packed()  # type: ignore[arg-type]
    record = unpacked(raw, {"first": found})
    assert plan_bytes(replayed(record)) == record.plan
    assert json.loads(record.plan)["placements"][0]["nodes"] == [[0, 1]]
    with pytest.raises(InvalidDocument, match='found "first", expected a filter plugin: none is installed'):
        unpacked(raw)


def repacked(raw: bytes, **changes: bytes) -> bytes:
    """The file with some of its parts replaced."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(raw)) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            new.writestr(name, changes.get(name.partition(".")[0], old.read(name)))
    return file.getvalue()


@pytest.mark.parametrize(
    ("part", "value", "told"),
    [
        ("record", b'{"version": "9.9"}', "made by flowsched 9.9, and this is"),
        ("record", b"{}", "no snapshot that flowsched"),
        ("inputs", b"[", "no snapshot that flowsched"),
        ("inputs", b'{"now": {"=": "object", "is": "os:system", "of": {}}}', "is no class of this version"),
        ("inputs", b'{"now": {"=": "object", "is": "flowsched.errors:Fault", "of": {}}}', "is no class"),
        ("inputs", b'{"now": {"=": "object", "is": "flowsched.scheduling.cycle:cycle", "of": {}}}', "is no class"),
        ("inputs", b'{"now": {"=": "object", "is": "flowsched.scheduling.cycle:PodGroup", "of": {}}}', "is no class"),
        ("inputs", b'{"now": {"=": "made", "is": "flowsched.workflow.spec:Any", "of": ["1"]}}', "is no class"),
        ("inputs", b'{"now": {"=": "made", "is": "builtins:eval", "of": ["1"]}}', "is no class"),
        ("inputs", b'{"now": {"=": "same", "as": 99999}}', "no snapshot"),
        ("inputs", b'{"now": {"=": "code", "of": "1"}}', "is nothing that a snapshot holds"),
        ("inputs", b'{"now": {"=": "array", "type": "object", "shape": [1], "of": ""}}', "is nothing that"),
        ("inputs", b'{"now": {"=": "array", "type": "int8", "shape": [9], "of": "AA=="}}', "no snapshot"),
        ("inputs", b'{"now": 3}', "lacks what a cycle of this version needs"),
    ],
)  # fmt: skip
def test_what_is_no_snapshot_is_refused(part: str, value: bytes, told: str) -> None:
    """With what is wrong; nothing in a file is run."""
    with pytest.raises(InvalidRequest, match=told):
        unpacked(repacked(random_file("data", 3), **{part: value}))


@given(st.binary(max_size=40), st.integers(0, 10**6))
@settings(deadline=None)
def test_a_damaged_file_is_refused_or_read(noise: bytes, at: int) -> None:
    """Whatever the damage, it is one clear error, never another one."""
    raw = bytearray(random_file("data", 3))
    at %= len(raw)
    raw[at : at + len(noise)] = noise
    try:
        unpacked(bytes(raw))
    except InvalidRequest:
        return


def test_what_no_file_can_hold_is_refused_when_it_is_written() -> None:
    """Functions, floats in arrays, objects of other packages."""
    for value, told in (
        (lambda: 1, "cannot be recorded"),
        (np.array([1.5]), "numpy:ndarray cannot be recorded"),
        (io.BytesIO(), "_io:BytesIO cannot be recorded"),
        (1.5, "float cannot be recorded"),
    ):
        with pytest.raises(FlowschedError, match=told):
            Writer().plain(value)


def test_values_come_back_as_they_were() -> None:
    """Tuples, lists, maps with any keys, sets, numbers beyond 64 bits, and the same object twice as one."""
    shared = Profile()
    for value in ((1, [2, (3,)], {"a": {1: (2,)}}, {3, 1}, frozenset({"x"}), 1 << 80, None, True, ""), ()):
        writer = Writer()
        plain = json.loads(json.dumps(writer.plain(value)))
        assert Reader().value(plain) == value
    tree = QueueTree()
    writer = Writer()
    one, other = Reader().value(json.loads(json.dumps(writer.plain((tree, tree)))))
    assert one is other
    assert shared == Profile()
