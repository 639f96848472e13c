"""The plan that calls teach: edges between kinds, in the form of any plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowsched.statement import Statement
from flowsched.workflow.estimates import Estimates, Measured
from flowsched.workflow.learned_plan import LearnedPlan
from flowsched.workflow.plan import ranks
from tests.engine.scene import calls_of


def kind(name: str) -> tuple[str, str]:
    """The kind of a TES task."""
    return name, "task"


def edges(learned: LearnedPlan, name: str) -> list[tuple[str, str]]:
    """The edges from a kind on."""
    plan = learned.plan(kind(name))
    return [] if plan is None else [(each.parent, each.child) for each in plan.edges]


def test_a_kind_follows_the_kind_that_wrote_its_inputs() -> None:
    """Nodes belong to runs, kinds to all: a later run with other nodes finds the same edges, and adds its own."""
    learned = LearnedPlan()
    assert not learned.note("night-1", "call-align", kind("align"), ())
    assert learned.note("night-1", "call-sort", kind("sort"), ["call-align"])
    assert not learned.note("night-2", "a", kind("align"), ())
    assert not learned.note("night-2", "s", kind("sort"), ["a"])
    assert learned.note("night-2", "m", kind("merge"), ["s", "a"])
    plan = learned.plan(kind("align"))
    assert plan is not None
    assert (plan.name, plan.language, [node.path for node in plan.nodes]) == (
        "align/task",
        "learned",
        ["align/task", "sort/task", "merge/task"],
    )
    assert edges(learned, "align") == [
        ("align/task", "sort/task"),
        ("align/task", "merge/task"),
        ("sort/task", "merge/task"),
    ]
    assert learned.plan(kind("merge")) is None
    found = ranks(plan, {"align/task": 1_000, "sort/task": 20_000, "merge/task": 300_000})
    assert found["align/task"].rank_ms == 321_000


def test_nodes_of_another_run_are_no_parents() -> None:
    """The same word in two runs."""
    learned = LearnedPlan()
    learned.note("one", "prepare", kind("align"), ())
    assert not learned.note("two", "call", kind("sort"), ["prepare"])
    assert learned.plan(kind("align")) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=3)), max_size=40))
def test_a_plan_has_no_cycle_whatever_arrives(arrivals: list[tuple[int, list[int]]]) -> None:
    """Each kind stands after all kinds that it follows, so ranks are defined."""
    learned = LearnedPlan()
    for number, after in arrivals:
        learned.note("r", f"n{number}", kind(f"k{number}"), [f"n{each}" for each in after])
    for number in range(10):
        plan = learned.plan(kind(f"k{number}"))
        if plan is not None:
            order = {node.path: at for at, node in enumerate(plan.nodes)}
            assert order[f"k{number}/task"] == 0
            assert all(order[edge.parent] < order[edge.child] for edge in plan.edges)


@pytest.mark.parametrize("stage", ["task", ""], ids=["TES", "stages named by their calls"])
def test_the_runtimes_of_kinds_that_follow_count_however_a_client_names_its_stages(stage: str) -> None:
    """Miniwdl and the config backend of Cromwell name a stage by its call: a kind has its own stage name."""
    learned, estimates = LearnedPlan(), Estimates()
    align, merge = ("align", stage or "align"), ("merge", stage or "merge")
    learned.note("r", "a", align, ())
    learned.note("r", "b", merge, ["a"])
    for _ in range(5):
        estimates.learn(*align, 1_000, Measured(0, 10))
        estimates.learn(*merge, 3_600_000, Measured(0, 10))
    assert learned.onward_ms(estimates, align) == 3_600_000


def test_an_edge_that_would_close_a_cycle_is_looked_at_once() -> None:
    """A client that sends such calls again and again costs no walk along the whole plan each time."""
    learned = LearnedPlan()
    for number in range(300):
        learned.note("r", f"n{number}", kind(f"k{number}"), [f"n{number - 1}"] if number else [])
    first, edges = calls_of(lambda: learned.note("r", "n0", kind("k0"), ["n299"]))
    again, more = calls_of(lambda: learned.note("r", "n0", kind("k0"), ["n299"]))
    assert edges == more == []
    assert first > 300
    assert again < 30


def test_edges_that_are_taken_back_are_new_again() -> None:
    """Their step was undone. What they alone had refused is possible."""
    learned = LearnedPlan()
    learned.note("r", "a", kind("align"), ())
    new = learned.note("r", "b", kind("sort"), ["a"])
    assert not learned.note("r", "a", kind("align"), ["b"])
    learned.forget(new)
    assert learned.plan(kind("align")) is None
    assert learned.note("r", "a", kind("align"), ["b"]) == [(kind("sort"), kind("align"))]


def test_nodes_of_a_long_run_outlast_those_of_later_runs() -> None:
    """Of 100,000 nodes that are remembered, one that still sends calls, and one that they read, stay."""
    learned = LearnedPlan()
    learned.note("long", "index", kind("index"), ())
    for number in range(150_000):
        if number % 50_000 == 0:
            learned.note("long", "split", kind("split"), ["index"])
        learned.note("r", str(number), kind("other"), ())
    assert learned.note("long", "map", kind("map"), ["split", "index"]) == [
        (kind("split"), kind("map")),
        (kind("index"), kind("map")),
    ]


def ran(learned: LearnedPlan, run: str, shards: int, *gatherers: str, read_bytes: int = 900) -> Statement:
    """A run in which so many `align` succeed, and then these calls, which read them all."""
    statement = Statement()
    for shard in range(shards):
        learned.note(run, f"a{shard}", kind("align"), ())
        learned.come(run, kind("align"), statement)
        learned.succeeded(run, kind("align"), (), 0, statement)
    for name in gatherers:
        after = [f"a{shard}" for shard in range(shards)]
        learned.note(run, name, kind(name), after)
        learned.come(run, kind(name), statement)
        learned.succeeded(run, kind(name), after, read_bytes, statement)
    return statement


def test_one_call_of_a_run_gathers_what_many_write() -> None:
    """The newest run says how many calls it read, and how many bytes. A second one in a run: none gathers."""
    learned, align, merge = LearnedPlan(), kind("align"), kind("merge")
    ran(learned, "night-1", 3)
    assert not learned.gatherers(align)
    ran(learned, "night-2", 3, "merge")
    assert learned.gatherers(align) == {merge: (3, 900)}
    assert not learned.gatherers(merge)
    ran(learned, "night-3", 5, "merge", read_bytes=1500)
    assert learned.gatherers(align) == {merge: (5, 1500)}
    ran(learned, "night-4", 3, "merge", "merge")
    assert not learned.gatherers(align)
    ran(learned, "night-5", 1, "merge")
    assert not learned.gatherers(align), "one call is not several"


def test_a_call_that_failed_is_no_second_one() -> None:
    """Only those that have succeeded count: the engine sends a failed one again, under whatever number."""
    learned, merge = LearnedPlan(), kind("merge")
    learned.come("night-1", merge, Statement())
    assert learned.has_come("night-1", merge)
    assert not learned.has_come("night-2", merge)
    learned.note("night-1", "merge", merge, ())
    ran(learned, "night-1", 3, "merge")
    assert learned.gatherers(kind("align")) == {merge: (3, 900)}


def test_gatherers_of_a_step_that_is_undone_are_forgotten() -> None:
    """What came before it stays."""
    learned, align, merge = LearnedPlan(), kind("align"), kind("merge")
    ran(learned, "night-1", 3, "merge").rollback()
    assert not learned.gatherers(align)
    assert not learned.has_come("night-1", merge)
    ran(learned, "night-2", 3, "merge")
    ran(learned, "night-3", 3, "merge", "merge").rollback()
    assert learned.gatherers(align) == {merge: (3, 900)}
