"""The plan that calls teach: edges between kinds, in the form of any plan."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    learned.forget(new, "r", kind("sort"))
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


def test_one_call_of_a_run_gathers_what_many_write() -> None:
    """A run has one such call, and many of the kind before it. A second one in a run, or none known yet: nothing gathers."""
    learned, align, merge = LearnedPlan(), kind("align"), kind("merge")
    for shard in range(3):
        learned.note("night-1", f"a{shard}", align, ())
    assert learned.gatherer(align) is None
    learned.note("night-1", "m", merge, ["a0", "a1", "a2"])
    assert learned.gatherer(align) == merge
    assert learned.gatherer(merge) is None
    assert learned.most_calls(align) == 3
    assert learned.has_come("night-1", merge)
    assert not learned.has_come("night-2", merge)
    learned.note("night-2", "m", merge, (), 0)
    assert learned.gatherer(align) == merge, "a retry is no second call"
    learned.note("night-1", "m2", merge, ["a1"])
    assert learned.gatherer(align) is None
